/* SPDX-License-Identifier: Apache-2.0 */
/* arith.h - scalar arithmetic that the compiler can vectorise: bf16 by bit operations, exp by a polynomial.
 *
 * Loops that call libm's expf cannot be vectorised. These functions are plain expressions without branches. */
#ifndef TITAN_WORKER_DEVICE_CPU_ARITH_H
#define TITAN_WORKER_DEVICE_CPU_ARITH_H

#include <string.h>

#include "base/bf16.h"
#include "worker/device/cpu/cpu.h"

CPU_INLINE uint32_t f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
CPU_INLINE float f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
/* Element i of a tensor of dtype dt (bf16 or fp32); every caller passes dt as a constant. */
CPU_INLINE float load_as_f32(const void *p, int64_t i, enum dtype dt)
{
    return dt == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
CPU_INLINE void store_f32_as(void *p, int64_t i, enum dtype dt, float x)
{
    if (dt == DTYPE_BF16)
        ((uint16_t *)p)[i] = bf16_from_f32(x);
    else
        ((float *)p)[i] = x;
}
/* Address of element i. */
CPU_INLINE const void *at(const void *p, int64_t i, enum dtype dt)
{
    return (const char *)p + i * (int64_t)dtype_bytes(dt);
}
CPU_INLINE void *at_mut(void *p, int64_t i, enum dtype dt)
{
    return (char *)p + i * (int64_t)dtype_bytes(dt);
}

/* Defines NAME_range for cpu_for. It calls NAME_items(a, begin, end, dt) with the type as a constant. */
#define TYPED_RANGE(name, type)                                                                                        \
    CPU_KERNEL static void name##_range(const void *p, int64_t begin, int64_t end, int thread)                         \
    {                                                                                                                  \
        const struct type *a = p;                                                                                      \
        (void)thread;                                                                                                  \
        if (a->dt == DTYPE_BF16)                                                                                       \
            name##_items(a, begin, end, DTYPE_BF16);                                                                   \
        else                                                                                                           \
            name##_items(a, begin, end, DTYPE_F32);                                                                    \
    }

/* e^x for x <= 0 (also correct up to x = 88, undefined beyond). x = n ln2 + r, |r| <= ln2/2. e^r = 1 + r + r^2 q(r),
 * where q is the cubic of least relative error (1.05e-7, by Lawson's iteration). 2^n is added to the exponent. Below
 * -87.33 the result would be subnormal and is 0; NaN stays NaN. The error is under 2 ulp (tested). */
CPU_INLINE float exp_neg_f32(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float c = x < -87.33f ? -87.33f : x;
    float t = c * 1.44269504f + shift;
    float n = t - shift;
    float r = c - n * 0.693145752f; /* upper bits of ln2, so that their product with n is exact */
    r = r - n * 1.42860677e-6f;
    float q = 8.312521461e-3f;
    q = q * r + 4.189015927e-2f;
    q = q * r + 1.666711465e-1f;
    q = q * r + 4.999923148e-1f;
    q = q * r + 1.0f;
    q = q * r + 1.0f;
    float y = f32_from_bits(f32_bits(q) + ((f32_bits(t) - f32_bits(shift)) << 23));
    return x < -87.33f ? 0.0f : y;
}
/* 1 / (1 + e^-x), computed from e^-|x|, which cannot overflow. */
CPU_INLINE float sigmoid_f32(float x)
{
    float e = exp_neg_f32(x < 0.0f ? x : -x);
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* tanh. Near 0 it is the continued fraction x / (1 + x^2 / (3 + x^2 / (5 + x^2 / (7 + x^2 / 9)))). Elsewhere it uses
 * e^-2|x|, which does not subtract nearly equal numbers there. */
CPU_INLINE float tanh_f32(float x)
{
    const float size = x < 0.0f ? -x : x, z = x * x;
    const float near = x * (945.0f + z * (105.0f + z)) / (945.0f + z * (420.0f + z * 15.0f));
    const float e = exp_neg_f32(-2.0f * size), far = (1.0f - e) / (1.0f + e);
    return size < 0.75f ? near : x < 0.0f ? -far : far;
}

/* Sums and maxima over a row have LANES partial results; element j belongs to lane j % LANES. The lanes are then folded
 * in a tree. So vector registers hold the lanes, and the order is the same on every instruction set. LANES is 32: one
 * vector of bf16 holds 32 elements. */
enum { LANES = 32 };
CPU_INLINE float lanes_sum(float lanes[LANES])
{
#pragma GCC unroll 5
    for (int width = LANES / 2; width > 0; width /= 2)
#pragma GCC unroll 16
        for (int l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
}
CPU_INLINE float lanes_max(float lanes[LANES])
{
#pragma GCC unroll 5
    for (int width = LANES / 2; width > 0; width /= 2)
#pragma GCC unroll 16
        for (int l = 0; l < width; l++)
            lanes[l] = lanes[l + width] > lanes[l] ? lanes[l + width] : lanes[l];
    return lanes[0];
}

#endif
