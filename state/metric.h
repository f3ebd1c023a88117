/* SPDX-License-Identifier: Apache-2.0 */
/* metric.h - one row per training step, and one per evaluation, in metrics.db. */
#ifndef TITAN_STATE_METRIC_H
#define TITAN_STATE_METRIC_H

#include "base/buf.h"
#include "base/evaluation_report.h"
#include "base/step_split.h"
#include "state/db.h"

struct metric {
    uint64_t job_id, step;
    int64_t at_ms;
    double loss, loss_max, grad_norm, learning_rate, tokens_per_second, step_ms;
    double tflops, mfu, mfu_causal;                                  /* of a worker; 0: not known */
    double expert_tokens_min, expert_tokens_max, expert_tokens_mean; /* tokens of an expert; mean 0: there are none */
    double dropped;                                                  /* rows for experts that had no room for them */
    double further_rounds, room_needed; /* of experts' rows; room 0: rounds are not counted */
    uint64_t tokens, epoch;
    uint32_t world_size;
    uint64_t memory_bytes;
    struct step_split split;
    uint32_t skipped_steps;
    struct evaluation_report evaluation; /* after this step; step 0: none */
};

/* A row of a step or, where it has one, of its evaluation alone: job_id, step, at_ms, epoch and that. A step trained
 * again in a later epoch replaces its row, and those behind it that are of earlier epochs go: they are not of this run
 * any more. */
titan_status metric_put(struct db *db, const struct metric *m, struct titan_error *err) TITAN_MUST_USE;
/* Rows of a job that are not there, or are of an earlier epoch, from the text that its workers wrote down themselves
 * (JOB_DIR/metrics.jsonl). Lines that are none are passed over. ret_last: of the last step; step 0: there is none. */
titan_status metric_backfill(struct db *db, uint64_t job_id, const struct buf *text, struct metric *ret_last,
                             struct titan_error *err) TITAN_MUST_USE;
/* The same text without the lines at its beginning that are of steps up to `after`. Were there any? */
bool metric_skip(struct buf *text, uint64_t after);
/* The last step up to `step` that was trained in `epoch` or before; 0: none. Below `step`, later ones are trained
 * again.
 */
titan_status metric_reached(struct db *db, uint64_t job_id, uint64_t step, uint64_t epoch, uint64_t *ret,
                            struct titan_error *err) TITAN_MUST_USE;
/* Steps after `after` in order, with their evaluations. */
titan_status metric_list(struct db *db, uint64_t job_id, uint64_t after, int limit,
                         bool (*each)(const struct metric *m, void *data), void *data,
                         struct titan_error *err) TITAN_MUST_USE;

#endif
