/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_line.h - the checkpoints of a folder that lead to where its run is.
 *
 * A run that goes back to an earlier step begins a branch there. Checkpoints that it had written behind that step stay
 * in the folder until it comes to their steps; none of them is gone on from by itself. Each manifest has the branches
 * that led to it near its beginning, "line":[[NUMBER,FROM],...]: the newest branch of a folder is the run's. */
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
        uint64_t number; /* from 1; no two branches of a folder have the same */
        uint64_t from;   /* the step that the run went back to */
    } branch[CHECKPOINT_BRANCHES_MAX];
};

/* The member "line" of a manifest; none is a line of no branches. TITAN_ECORRUPT: it cannot be one. */
titan_status checkpoint_line_parse(const struct json *manifest, struct checkpoint_line *ret,
                                   struct titan_error *err) TITAN_MUST_USE;
void checkpoint_line_print(const struct checkpoint_line *line, struct json_writer *w);
/* The run goes back to a step of that line. The earliest branch is forgotten where there would be too many. */
void checkpoint_line_go_back(struct checkpoint_line *line, uint64_t number, uint64_t step);

struct checkpoint_line_list {
    uint64_t *steps; /* on the run's line, newest first; unreadable checkpoints count as on it */
    size_t n;
    uint64_t *left; /* of branches that were given up, newest first */
    size_t n_left;
    struct checkpoint_line line; /* the run's */
    uint64_t branches;           /* the largest number of a branch */
};
/* at: the folder. A checkpoint without a manifest of its step that can be read is listed by its name. */
titan_status checkpoint_line_list(int at, struct checkpoint_line_list *ret, struct titan_error *err) TITAN_MUST_USE;
void checkpoint_line_list_clear(struct checkpoint_line_list *list);

#endif
