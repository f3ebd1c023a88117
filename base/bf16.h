/* SPDX-License-Identifier: Apache-2.0 */
/* bf16.h - bfloat16, the upper half of a float. */
#ifndef TITAN_BASE_BF16_H
#define TITAN_BASE_BF16_H

#include <stdint.h>
#include <string.h>

static inline float bf16_to_f32(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Rounds to nearest, ties to even; a NaN stays a NaN. */
static inline uint16_t bf16_from_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet_nan = bits | 0x400000;
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded) >> 16);
}

/* Rounds away from zero with a probability equal to the dropped part, a fraction of the last kept place. So the mean of
 * the results over all values of the 16 random bits is f. A NaN stays a NaN. Gupta et al. 2015, arXiv:1502.02551. */
static inline uint16_t bf16_from_f32_at_random(float f, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint32_t rounded = bits + (random & 0xffff), quiet_nan = bits | 0x400000;
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded) >> 16);
}

#endif
