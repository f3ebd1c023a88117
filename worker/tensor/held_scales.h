/* SPDX-License-Identifier: Apache-2.0 */
/* held_scales.h - scales of weights that a run holds for several steps (float8.scalify_refresh): powers of two. Every
 * rank has those of all weights, from the statistics of the last committed step. They are part of the training state:
 * checkpoints store them, and a rank that joins gets them from a rank with a state. */
#ifndef TITAN_WORKER_TENSOR_HELD_SCALES_H
#define TITAN_WORKER_TENSOR_HELD_SCALES_H

#include <stdbool.h>
#include <stdint.h>

#define HELD_SCALES_MAX 4096
#define HELD_SCALES_NONE INT8_MIN /* no scale, or 0: the weight has an element that is not finite */

struct held_scales {
    uint64_t step;                 /* committed step behind which they hold */
    int n;                         /* tensors of the model; 0: no scales are known */
    int8_t power[HELD_SCALES_MAX]; /* exponents, in the order of the statistics' scales (program.h) */
};

/* Takes the scales of a committed step: [n], n > 0. What is no power of two is taken as the one below. */
void held_scales_take(struct held_scales *h, uint64_t step, const double *scales, int n);
float held_scales_value(const struct held_scales *h, int64_t i);
/* The scales that the step behind the committed one holds, of a model with n tensors. NULL: it looks for them, because
 * it is the first of `every` steps, or no scales of the committed step are known. */
const struct held_scales *held_scales_for(const struct held_scales *h, uint64_t committed, int n, int64_t every);

#endif
