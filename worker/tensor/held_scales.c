/* SPDX-License-Identifier: Apache-2.0 */
/* held_scales.c - see held_scales.h. */
#include "worker/tensor/held_scales.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"

void held_scales_take(struct held_scales *h, uint64_t step, const double *scales, int n)
{
    titan_assert(n > 0 && n <= HELD_SCALES_MAX);
    h->step = step;
    h->n = n;
    for (int i = 0; i < n; i++) {
        int exponent = 0; /* a power of two is 1/2 times 2^exponent */
        if (scales[i] > 0 && isfinite(scales[i]))
            (void)frexp(scales[i], &exponent);
        else
            exponent = INT_MIN + 1;
        exponent--;
        h->power[i] = exponent > HELD_SCALES_NONE && exponent <= INT8_MAX ? (int8_t)exponent : HELD_SCALES_NONE;
    }
}

float held_scales_value(const struct held_scales *h, int64_t i)
{
    titan_assert(i >= 0 && i < h->n);
    return h->power[i] == HELD_SCALES_NONE ? 0.0f : ldexpf(1.0f, h->power[i]);
}

const struct held_scales *held_scales_for(const struct held_scales *h, uint64_t committed, int n, int64_t every)
{
    titan_assert(every >= 1);
    return committed % (uint64_t)every != 0 && h->n == n && h->step == committed ? h : NULL;
}
