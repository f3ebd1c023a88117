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
    double tflops, mfu, mfu_causal;                                  /* per worker; 0: unknown */
    double expert_tokens_min, expert_tokens_max, expert_tokens_mean; /* tokens per expert; mean 0: no experts */
    double dropped;                                                  /* rows dropped for lack of room in their expert */
    double further_rounds, room_needed; /* both for experts' rows; room 0: rounds are not counted */
    uint64_t tokens, epoch;
    uint32_t world_size;
    uint64_t memory_bytes;
    struct step_split split;
    uint32_t skipped_steps;
    struct evaluation_report evaluation; /* after this step; step 0: none */
};

/* Stores the row of a step. If m has an evaluation, stores only the step's evaluation: job_id, step, at_ms, epoch and
 * the evaluation. A step trained again in a later epoch replaces its row; later rows of earlier epochs are deleted,
 * because they left the run's history. */
titan_status metric_put(struct db *db, const struct metric *m, struct titan_error *err) TITAN_MUST_USE;
/* Adds missing rows, and replaces rows of earlier epochs, from the workers' own records (JOB_DIR/metrics.jsonl).
 * Malformed lines are skipped. ret_last: the row of the last step; step 0: none. */
titan_status metric_backfill(struct db *db, uint64_t job_id, const struct buf *text, struct metric *ret_last,
                             struct titan_error *err) TITAN_MUST_USE;
/* Drops the text's leading lines of steps up to `after`. True: some were dropped. */
bool metric_skip(struct buf *text, uint64_t after);
/* The last step up to `step` that was trained in `epoch` or before; 0: none. If it is below `step`, later steps are
 * trained again. */
titan_status metric_reached(struct db *db, uint64_t job_id, uint64_t step, uint64_t epoch, uint64_t *ret,
                            struct titan_error *err) TITAN_MUST_USE;
struct metric_filter {
    uint64_t job_id, after; /* steps after `after` */
    int limit;
};
/* Lists steps in order, with their evaluations. */
titan_status metric_list(struct db *db, const struct metric_filter *filter,
                         bool (*each)(const struct metric *m, void *data), void *data,
                         struct titan_error *err) TITAN_MUST_USE;

#endif
