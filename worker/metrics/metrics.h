/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - records a finished step: a line in the log, and a line of JSON in JOB_DIR/metrics.jsonl, with the step's
 * evaluation. Rank 0 writes, and holds a lock on the file while it is open. After a recovery, steps may come again in a
 * higher epoch. */
#ifndef TITAN_WORKER_METRICS_METRICS_H
#define TITAN_WORKER_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"
#include "worker/metrics/report.h"

struct metrics {
    const char *job_dir; /* borrowed; NULL: not rank 0, or closed */
    int fd;              /* metrics.jsonl, owned by writer; -1 = closed */
    struct line_writer *writer;
    bool stalled; /* the file accepts no lines now, and the log has been told */
    int64_t log_freq;
    int64_t steps;    /* of the run */
    uint64_t written; /* newest step in the file; rank 0 only */
};

/* Opens for appending; ranks other than 0 write nothing. job_dir is borrowed until the close. A failed open is retried
 * with every line. */
void metrics_open(struct metrics *m, const char *job_dir, int rank, int64_t log_freq, int64_t steps);
void metrics_close(struct metrics *m);
/* Records a step with its evaluation, if any. A file that cannot be opened, or a full or unresponsive disk, loses lines
 * of metrics, not the run. */
void metrics_step(struct metrics *m, const struct log *log, const struct step_report *report);
/* Print and parse a step's line without the evaluation. False: the line is not the line of a step. */
void metrics_print_step(const struct step_report *report, struct buf *out);
bool metrics_parse_step(const char *line, struct step_report *ret);
/* Writes an evaluation on a line of its own. Call it if the step's line is already written, or if the step's report is
 * lost. */
void metrics_evaluation(struct metrics *m, const struct log *log, const struct evaluation_report *report,
                        uint64_t epoch, int64_t at_ms);
/* Does the file have the evaluation of the step as it was trained last? Always false on ranks other than 0. */
bool metrics_have_evaluation(const struct metrics *m, uint64_t step);

#endif
