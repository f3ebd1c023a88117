/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what is known of a step that all ranks have agreed on. */
#ifndef TITAN_WORKER_METRICS_REPORT_H
#define TITAN_WORKER_METRICS_REPORT_H

#include <stdint.h>

#include "base/evaluation_report.h"

struct step_report {
    uint64_t step, tokens, epoch;
    double loss, grad_norm, learning_rate, tokens_per_second, mfu, step_ms;
    int world;
    uint64_t memory_bytes;
    uint32_t skipped_steps;
    int64_t at_ms;                       /* when it was committed, wall clock, for people */
    struct evaluation_report evaluation; /* after this step, where there was one */
};

#endif
