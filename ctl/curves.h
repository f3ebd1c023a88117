/* SPDX-License-Identifier: Apache-2.0 */
/* curves.h - the metrics of a job, however many steps it has, in a bounded number of ranges of steps: of each the
 * least, the largest and the mean value; and which ranks were the slowest. */
#ifndef TITAN_CTL_CURVES_H
#define TITAN_CTL_CURVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "titan/v1/titan.pb-c.h"

/* Number, name, whether a metric point p has it, its value. */
#define CURVES_TABLE                                                                                                   \
    X(LOSS, loss, true, p->loss)                                                                                       \
    X(GRAD_NORM, grad_norm, true, p->grad_norm)                                                                        \
    X(LEARNING_RATE, learning_rate, true, p->learning_rate)                                                            \
    X(TOKENS_PER_SECOND, tokens_per_second, true, p->tokens_per_second)                                                \
    X(TFLOPS, tflops, p->tflops != 0, p->tflops)                                                                       \
    X(MFU, mfu, true, p->mfu)                                                                                          \
    X(MFU_CAUSAL, mfu_causal, p->mfu_causal != 0, p->mfu_causal)                                                       \
    X(STEP_MS, step_ms, true, p->step_ms)                                                                              \
    X(MEMORY_BYTES, memory_bytes, true, (double)p->memory_bytes)                                                       \
    X(DATA, data_ms, p->split, p->split->data_ms)                                                                      \
    X(COMPUTE, compute_ms, p->split, p->split->compute_ms)                                                             \
    X(COMMUNICATION, communication_ms, p->split, p->split->communication_ms)                                           \
    X(CHECKPOINT, checkpoint_ms, p->split, p->split->checkpoint_ms)                                                    \
    X(STRAGGLERS, straggler_ms, p->split, p->split->straggler_ms)                                                      \
    X(EXPERT_LEAST, expert_tokens_min, p->experts, p->experts->least)                                                  \
    X(EXPERT_MEAN, expert_tokens_mean, p->experts, p->experts->mean)                                                   \
    X(EXPERT_MOST, expert_tokens_max, p->experts, p->experts->most)                                                    \
    X(EXPERT_DROPPED, expert_tokens_dropped, p->experts, p->experts->dropped)                                          \
    X(EXPERT_ROUNDS, expert_further_rounds, p->experts, p->experts->further_rounds)                                    \
    X(EXPERT_ROOM, expert_room_needed, p->experts && p->experts->room_needed > 0, p->experts->room_needed)             \
    X(VALIDATION, validation, p->validation, p->validation->loss)

enum {
#define X(number, name, has, value) CURVES_##number,
    CURVES_TABLE
#undef X
        CURVES_N,
    CURVES_RANGES = 2048, /* most of them */
    CURVES_RANKS = 1024,  /* what ranks above are slow at is counted for none */
};

struct curves_values {
    double min, max, sum; /* of the finite ones */
    uint32_t n, bad;      /* how many are finite, and how many are not */
};

struct curves_range {
    uint64_t step, last_step; /* of what is in it */
    int64_t at_ms;            /* of its first step */
    struct curves_values values[CURVES_N];
    double tokens, seconds; /* of its steps */
    double waited;          /* for the slowest rank of a step, the longest in the range; -1: not known */
    uint32_t slowest;       /* that rank */
};

/* Steps that a rank was the slowest of, and what they took. */
struct curves_rank {
    uint64_t steps;
    double busy_ms, waited_ms; /* sums: it itself; the others for it, on average */
};

struct curves {
    struct curves_range *ranges; /* n of them, in order; those without a step are left out */
    size_t n;
    uint64_t stride;              /* steps in a range */
    uint64_t epoch;               /* of the newest step */
    uint64_t points, splits;      /* steps; those of several ranks that are known to have had a slowest one */
    struct curves_rank *ranks;    /* CURVES_RANKS */
    double first_loss, last_loss; /* NaN before the first */
    uint64_t tokens;              /* trained on */
    uint32_t skipped_steps;
    int64_t last_at_ms;
};

/* False: out of memory. */
bool curves_init(struct curves *c);
void curves_free(struct curves *c);
/* Steps come in order; in a later epoch it may begin again behind an earlier one. */
void curves_add(struct curves *c, const Titan__V1__MetricPoint *point);
/* NaN: none is finite. */
double curves_mean(const struct curves_values *v);
/* Over all steps; NaN: there is no value. */
double curves_mean_of_all(const struct curves *c, int curve);
/* The ranks that the others waited for longest, that one first, at most `most`; how many they are. */
size_t curves_slowest(const struct curves *c, size_t most, uint32_t *ret);
/* An object: "step", "last_step", "at_ms" (since begin_ms), "slowest" (the rank that the others waited for longest in a
 * step of the range), and each curve as an array of "min", "max", "mean" and "bad" (counts of values that are not
 * finite), as long as there are ranges. A curve without any value is left out; null is a range without one. With one
 * step to a range there is "mean" alone. */
void curves_put(const struct curves *c, const char *key, int64_t begin_ms, struct json_writer *w);

#endif
