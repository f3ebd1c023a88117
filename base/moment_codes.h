/* SPDX-License-Identifier: Apache-2.0 */
/* moment_codes.h - moments in 8 bits: blocks of 256 values with one scale (Dettmers et al. 2021, arXiv:2110.02861).
 *
 * A block's scale is its largest magnitude. A value divided by the scale is in [-1, 1] and lies in one of seven
 * decades, the intervals 10^(i-6) * (0.1, 1] for i = 0..6. Decade i has 2^i equal cells, with a sign, or for squares,
 * which have no sign, 2^(i+1) cells. A code is the number of a cell, counted from the smallest magnitudes on, and
 * stands for the cell's middle. Two codes differ: 0 stands for 0, the largest code for 1. These are the values of
 * bitsandbytes, but with -1 beside 1: so each block has its largest magnitude among its values, and
 * encode(decode(codes)) = codes. A square above 0 has a code above 0: an update divides by its root.
 *
 * A block without a magnitude of 2^-100 or more has scale 0 and decodes to zeros. With a value that is not finite, or
 * is 2^126 or more in magnitude (its inverse is no normal number), all values are NaN. All arithmetic is fp32 with
 * explicit fused products, so every device has the same bits. tests/golden/moment_codes_reference.py has the same in
 * NumPy. C and CUDA C++ include this file. */
#ifndef TITAN_BASE_MOMENT_CODES_H
#define TITAN_BASE_MOMENT_CODES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef MOMENT_INLINE
#define MOMENT_INLINE static inline __attribute__((always_inline))
#endif
/* One instruction each: no operand is a NaN. */
#ifdef __CUDACC__
#define MOMENT_LARGER(a, b) fmaxf(a, b)
#define MOMENT_SMALLER(a, b) fminf(a, b)
#else
#define MOMENT_LARGER(a, b) ((a) > (b) ? (a) : (b))
#define MOMENT_SMALLER(a, b) ((a) < (b) ? (a) : (b))
#endif

#define MOMENT_BLOCK 256 /* values; they begin at multiples of it in a unit's buffer */

/* Signed: bit 7 is the sign, the others number the cell of the magnitude. */
struct moment_block {
    float scale;
    uint8_t codes[MOMENT_BLOCK];
};

/* Decade i is a line: a value is SLOPE(i) * x - 0.8 * 10^(i-6), where x = 2^i + (place in the decade) * 2^i. The lines
 * of neighbours meet at the decades' bounds and get steeper. So a value is the largest of all lines at x, and x is the
 * smallest of all inverse lines at a value. */
#define MOMENT_DECADES(X) X(1e-6, 1.0) X(1e-5, 2.0) X(1e-4, 4.0) X(1e-3, 8.0) X(1e-2, 16.0) X(1e-1, 32.0) X(1.0, 64.0)

/* The value of a code, as a part of its block's scale, without its sign. */
MOMENT_INLINE float moment_part(uint32_t cell, bool square)
{
    const float x = square ? 0.5f * (float)cell + 0.75f : (float)cell + 0.5f;
    float y = 0.0f;

#define MOMENT_LINE(top, cells)                                                                                        \
    {                                                                                                                  \
        const float line = fmaf((float)(0.9 * (top) / (cells)), x, (float)(-0.8 * (top)));                             \
        y = MOMENT_LARGER(line, y);                                                                                    \
    }
    MOMENT_DECADES(MOMENT_LINE)
#undef MOMENT_LINE
    return cell == (square ? 255u : 127u) ? 1.0f : y;
}

MOMENT_INLINE float moment_decode(uint8_t code, float scale, bool square)
{
    const float magnitude = moment_part(square ? code : code & 127u, square) * scale;
    uint32_t bits;

    memcpy(&bits, &magnitude, sizeof bits);
    bits |= square ? 0u : (uint32_t)(code & 128u) << 24;
    float ret;
    memcpy(&ret, &bits, sizeof ret);
    return ret;
}

/* inverse: 1 / the block's scale, which is not 0. */
MOMENT_INLINE uint8_t moment_encode(float value, float inverse, bool square)
{
    const float z = fabsf(value) * inverse;
    float x = 256.0f;

#define MOMENT_LINE(top, cells)                                                                                        \
    {                                                                                                                  \
        const float line = fmaf(z, (float)((cells) / (0.9 * (top))), (float)((cells)*8 / 9));                          \
        x = MOMENT_SMALLER(line, x);                                                                                   \
    }
    MOMENT_DECADES(MOMENT_LINE)
#undef MOMENT_LINE
    if (square) {
        const int32_t cell = (int32_t)(2.0f * x) - 1, least = z > 0.0f;
        return (uint8_t)(cell > 255 ? 255 : cell < least ? least : cell);
    }
    const int32_t cell = (int32_t)x;
    return (uint8_t)((cell > 127 ? 127 : cell) | (value < 0.0f && cell > 0 ? 128 : 0));
}

/* The bits of a magnitude: they grow with it, and a value that is not finite has the largest. */
MOMENT_INLINE uint32_t moment_magnitude(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu;
}

/* The scale of a block, whose largest magnitude has these bits. */
MOMENT_INLINE float moment_scale(uint32_t largest)
{
    const uint32_t bits = largest >= 253u << 23 ? 0x7fc00000u : largest < 27u << 23 ? 0 : largest;
    float ret;

    memcpy(&ret, &bits, sizeof ret);
    return ret;
}

/* Bytes of n values; n is a multiple of MOMENT_BLOCK. */
MOMENT_INLINE uint64_t moment_codes_bytes(int64_t n)
{
    return (uint64_t)n / MOMENT_BLOCK * sizeof(struct moment_block);
}

#ifndef __cplusplus
/* One block from and to n values, at most MOMENT_BLOCK: the codes behind them stay as they are. */
MOMENT_INLINE void moment_block_decode(const struct moment_block *restrict b, int n, bool square, float *restrict ret)
{
    const float scale = b->scale;

    for (int i = 0; i < n; i++)
        ret[i] = moment_decode(b->codes[i], scale, square);
}

MOMENT_INLINE void moment_block_encode(struct moment_block *restrict b, int n, bool square,
                                       const float *restrict values)
{
    uint32_t largest = 0;

    for (int i = 0; i < n; i++) {
        const uint32_t magnitude = moment_magnitude(values[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    const float scale = moment_scale(largest);
    b->scale = scale;
    if (!(scale > 0.0f)) {
        memset(b->codes, 0, (size_t)n);
        return;
    }
    const float inverse = 1.0f / scale;
    for (int i = 0; i < n; i++)
        b->codes[i] = moment_encode(values[i], inverse, square);
}

/* Whole blocks from and to values (blocks * MOMENT_BLOCK). */
void moment_blocks_decode(const struct moment_block *from, int64_t blocks, bool square, float *ret);
void moment_blocks_encode(struct moment_block *to, int64_t blocks, bool square, const float *values);
#endif

#endif
