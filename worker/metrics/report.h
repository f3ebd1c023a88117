/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - the numbers of a step that all ranks agreed on. */
#ifndef TITAN_WORKER_METRICS_REPORT_H
#define TITAN_WORKER_METRICS_REPORT_H

#include <stdint.h>

#include "base/evaluation_report.h"
#include "base/step_split.h"

struct step_report {
    uint64_t step, tokens, epoch;
    double loss, loss_max, grad_norm, learning_rate;
    double tokens_per_second, tflops; /* tokens of the whole run; TFLOP/s per worker, counted as for mfu */
    double mfu, mfu_causal;           /* recipe_flops_per_token, recipe_causal_flops_per_token */
    double step_ms;
    struct step_split split;
    double expert_tokens_min, expert_tokens_max, expert_tokens_mean; /* tokens per expert; mean 0 = no experts */
    double dropped;                                                  /* rows dropped by full experts */
    double further_rounds, room_needed; /* of experts' rows (step_outcome); room_needed 0 = rounds are not counted */
    double balance_loss, mtp_loss;      /* as in step_outcome */
    int world;
    uint64_t memory_bytes;  /* measured, the maximum over ranks since the epoch began */
    uint64_t planned_bytes; /* planned device memory of this rank */
    uint32_t skipped_steps;
    int64_t at_ms;                       /* commit time, wall clock, for people */
    struct evaluation_report evaluation; /* evaluation after this step, if there is one */
};

#endif
