/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what is known of a step that all ranks have agreed on. */
#ifndef TITAN_WORKER_METRICS_REPORT_H
#define TITAN_WORKER_METRICS_REPORT_H

#include <stdint.h>

/* The model on the validation data. */
struct evaluation_report {
    uint64_t step;          /* after which; 0: there is none */
    uint64_t tokens, bytes; /* that count; the bytes of text behind them */
    double loss;            /* mean over the tokens, in nats */
    double ms;
};
double evaluation_perplexity(const struct evaluation_report *r);
double evaluation_bits_per_byte(const struct evaluation_report *r);

struct step_report {
    uint64_t step, tokens, epoch;
    double loss, grad_norm, learning_rate, tokens_per_second, mfu, step_ms;
    int world;
    uint64_t memory_bytes;
    uint32_t skipped_steps;
    int64_t at_ms;                       /* when it was committed, wall clock, for people */
    struct evaluation_report evaluation; /* newest that no report before this one has */
};

#endif
