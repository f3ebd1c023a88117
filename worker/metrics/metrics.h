/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - where a finished step is written down: a line in the log and a line of JSON in JOB_DIR/metrics.jsonl.
 * Evaluations are in the line of their step. Rank 0 writes, and holds a lock on the file meanwhile. After a recovery
 * steps may come again, with a higher epoch. */
#ifndef TITAN_WORKER_METRICS_METRICS_H
#define TITAN_WORKER_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "worker/metrics/report.h"

struct metrics {
    const char *job_dir; /* borrowed; NULL: not rank 0's, or closed */
    int fd;              /* metrics.jsonl, -1: closed; the writer's */
    struct line_writer *writer;
    bool stalled; /* the file takes no lines for now, and it was said */
    int64_t log_freq;
    int64_t steps;    /* of the run */
    uint64_t written; /* newest step in the file; rank 0 only */
};

/* Opens for appending; nothing is written by ranks other than 0. job_dir is borrowed until the close. A file that
 * cannot be opened is tried again with every line. */
void metrics_open(struct metrics *m, const char *job_dir, int rank, int64_t log_freq, int64_t steps);
void metrics_close(struct metrics *m);
/* With the evaluation it has, if any. A file that cannot be opened and a disk that is full or does not answer cost
 * lines of metrics, not the run. */
void metrics_step(struct metrics *m, const struct log *log, const struct step_report *report);
/* A step's line, without an evaluation; and what it says. False: it is none of a step. */
void metrics_print_step(const struct step_report *report, struct buf *out);
bool metrics_parse_step(const char *line, struct step_report *ret);
/* An evaluation on a line of its own: its step's is written already, or in no memory any more. */
void metrics_evaluation(struct metrics *m, const struct log *log, const struct evaluation_report *report,
                        uint64_t epoch, int64_t at_ms);
/* Is the evaluation of this step, as it was trained last, in the file? Rank 0; false elsewhere. */
bool metrics_have_evaluation(const struct metrics *m, uint64_t step);

#endif
