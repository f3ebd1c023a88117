/* SPDX-License-Identifier: Apache-2.0 */
/* curves.h - the metrics of a job, however many steps it has, in a bounded number of ranges of steps: of each the
 * least, the largest and the mean value. */
#ifndef TITAN_CTL_CURVES_H
#define TITAN_CTL_CURVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "titan/v1/titan.pb-c.h"

/* Number, field of a metric point: the curve has its name. */
#define CURVES_TABLE                                                                                                   \
    X(LOSS, loss)                                                                                                      \
    X(GRAD_NORM, grad_norm)                                                                                            \
    X(LEARNING_RATE, learning_rate)                                                                                    \
    X(TOKENS_PER_SECOND, tokens_per_second)                                                                            \
    X(MFU, mfu)                                                                                                        \
    X(STEP_MS, step_ms)                                                                                                \
    X(MEMORY_BYTES, memory_bytes)

enum {
#define X(number, field) CURVES_##number,
    CURVES_TABLE
#undef X
        CURVES_VALIDATION,
    CURVES_N,
    CURVES_RANGES = 2048, /* most of them */
};

struct curves_values {
    double min, max, sum; /* of the finite ones */
    uint32_t n, bad;      /* how many are finite, and how many are not */
};

struct curves_range {
    uint64_t step, last_step; /* of what is in it */
    int64_t at_ms;            /* of its first step */
    struct curves_values values[CURVES_N];
};

struct curves {
    struct curves_range *ranges; /* n of them, in order; those without a step are left out */
    size_t n;
    uint64_t stride; /* steps in a range */
    uint64_t points;
    double first_loss, last_loss; /* NaN before the first */
    uint64_t tokens;              /* trained on */
    uint32_t skipped_steps;
    int64_t last_at_ms;
};

/* False: out of memory. */
bool curves_init(struct curves *c);
void curves_free(struct curves *c);
/* Steps come in order. */
void curves_add(struct curves *c, const Titan__V1__MetricPoint *point);
/* NaN: none is finite. */
double curves_mean(const struct curves_values *v);
/* An object: "step", "last_step", "at_ms" (since begin_ms), and each curve as an array of "min", "max", "mean" and
 * "bad" (counts of values that are not finite), as long as there are ranges. A curve without any value is left out;
 * null is a range without one. With one step to a range there is "mean" alone. */
void curves_put(const struct curves *c, const char *key, int64_t begin_ms, struct json_writer *w);

#endif
