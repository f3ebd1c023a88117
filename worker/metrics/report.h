/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what is known of a step that all ranks have agreed on. */
#ifndef TITAN_WORKER_METRICS_REPORT_H
#define TITAN_WORKER_METRICS_REPORT_H

#include <stdint.h>

#include "base/evaluation_report.h"
#include "base/step_split.h"

struct step_report {
    uint64_t step, tokens, epoch;
    double loss, loss_max, grad_norm, learning_rate;
    double tokens_per_second, tflops; /* of the run; TFLOP/s of a worker, counted as for mfu */
    double mfu, mfu_causal;           /* recipe_flops_per_token, recipe_causal_flops_per_token */
    double step_ms;
    struct step_split split;
    double expert_tokens_min, expert_tokens_max, expert_tokens_mean; /* tokens of an expert; mean 0: there are none */
    double dropped;                                                  /* rows for experts that had no room for them */
    double further_rounds, room_needed; /* of experts' rows; room 0: rounds are not counted */
    int world;
    uint64_t memory_bytes;  /* measured, the most of any rank since the epoch began */
    uint64_t planned_bytes; /* of this rank's device memory */
    uint32_t skipped_steps;
    int64_t at_ms;                       /* when it was committed, wall clock, for people */
    struct evaluation_report evaluation; /* after this step, where there was one */
};

#endif
