/* SPDX-License-Identifier: Apache-2.0 */
/* curves.h - the metrics of a job in a bounded number of step ranges, however many steps it has. Each range has the
 * least, the largest and the mean value. Also finds the slowest ranks. */
#ifndef TITAN_PROTO_CURVES_H
#define TITAN_PROTO_CURVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "titan/v1/titan.pb-c.h"

/* Number, name, condition under which metric point p has the value, the value. */
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
    CURVES_RANGES = 2048, /* most ranges */
    CURVES_RANKS = 1024,  /* higher ranks are not counted as slowest */
};

struct curves_values {
    double min, max, sum, last; /* over finite values; the last one by step */
    uint32_t n, bad;            /* numbers of finite and of other values */
};

struct curves_range {
    uint64_t step, last_step; /* first and last step of the range */
    int64_t at_ms;            /* time of the first step */
    struct curves_values values[CURVES_N];
    double tokens, seconds; /* sums over the range's steps */
    uint64_t trained;       /* tokens trained on by its last step, since step 0 */
    double waited;          /* longest wait for the slowest rank in a step of the range; -1: unknown */
    uint32_t slowest;       /* the slowest rank in that step */
};

/* Steps in which a rank was the slowest, and their times. */
struct curves_rank {
    uint64_t steps;
    double busy_ms, waited_ms; /* sums: busy time of this rank; the others' mean wait for it */
};

struct curves {
    struct curves_range *ranges; /* n ranges, in order; empty ranges are left out */
    size_t n;
    uint64_t stride;              /* steps per range */
    uint64_t epoch;               /* epoch of the newest step */
    uint64_t points, splits;      /* points: steps; splits: steps of several ranks with a known slowest rank */
    struct curves_rank *ranks;    /* CURVES_RANKS */
    double first_loss, last_loss; /* NaN before the first step */
    uint64_t tokens;              /* training tokens */
    uint32_t skipped_steps;
    int64_t last_at_ms;
};

/* False: out of memory. */
bool curves_init(struct curves *c);
void curves_free(struct curves *c);
/* Adds a step. Steps come in order; a later epoch may repeat earlier steps. */
void curves_add(struct curves *c, const Titan__V1__MetricPoint *point);
/* NaN: no value is finite. */
double curves_mean(const struct curves_values *v);
/* Mean over all steps; NaN: no value. */
double curves_mean_of_all(const struct curves *c, int curve);
/* The ranks with the longest waits of the others, longest first, at most `most`; returns their number. */
size_t curves_slowest(const struct curves *c, size_t most, uint32_t *ret);
/* Writes an object: "step", "last_step", "at_ms" (since begin_ms), "slowest" (the rank with the longest wait of the
 * others in one step of the range), and each curve. A curve is an array per range of "min", "max", "mean" and "bad"
 * (number of non-finite values); null stands for a range without values. A curve without any value is left out. If each
 * range is one step, a curve has only "mean". */
void curves_put(const struct curves *c, const char *key, int64_t begin_ms, struct json_writer *w);
/* For a page that shows many jobs: merges the ranges until there are at most `most`. */
void curves_shrink(struct curves *c, size_t most);
/* Writes the same for such a page: times are "at", in ms since 1970; "tokens" are those trained on by the end of the
 * range; each curve also has "last", its newest value. */
void curves_put_page(const struct curves *c, const char *key, struct json_writer *w);

#endif
