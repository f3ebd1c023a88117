/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_line.h - the checkpoints in a folder that belong to its run's current history.
 *
 * A run that returns to an earlier step begins a branch at that step. Checkpoints of later steps stay in the folder
 * until the run reaches their steps again; no run continues from them automatically. Near its beginning, each manifest
 * lists the branches that led to it: "line":[[NUMBER,FROM],...]. The newest branch of a folder is the run's branch. */
#ifndef TITAN_BASE_CHECKPOINT_LINE_H
#define TITAN_BASE_CHECKPOINT_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

#define CHECKPOINT_BRANCHES_MAX 16
#define CHECKPOINT_STEP_MAX (UINT64_C(1) << 40)

struct checkpoint_line {
    int n; /* 0: the run has never gone back */
    struct checkpoint_branch {
        uint64_t number; /* from 1; unique within a folder */
        uint64_t from;   /* the step to which the run returned */
    } branch[CHECKPOINT_BRANCHES_MAX];
};

/* Reads the member "line" of a manifest; a missing member is a line without branches. TITAN_ECORRUPT: the member is
 * malformed. */
titan_status checkpoint_line_parse(const struct json *manifest, struct checkpoint_line *ret,
                                   struct titan_error *err) TITAN_MUST_USE;
void checkpoint_line_print(const struct checkpoint_line *line, struct json_writer *w);
/* Records that the run returns to a step of the line. A full line drops its earliest branch. */
void checkpoint_line_go_back(struct checkpoint_line *line, uint64_t number, uint64_t step);

struct checkpoint_line_list {
    uint64_t *steps; /* steps on the run's line, newest first; an unreadable checkpoint counts as on the line */
    size_t n;
    uint64_t *left; /* steps of abandoned branches, newest first */
    size_t n_left;
    struct checkpoint_line line; /* the line of the run */
    uint64_t branches;           /* the largest branch number */
};
/* at: the folder. A checkpoint without a readable manifest of its step is listed by its name. */
titan_status checkpoint_line_list(int at, struct checkpoint_line_list *ret, struct titan_error *err) TITAN_MUST_USE;
void checkpoint_line_list_clear(struct checkpoint_line_list *list);

#endif
