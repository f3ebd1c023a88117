/* arith.h - scalar arithmetic the vectoriser can widen: bf16 by bit operations, exp by a polynomial.
 *
 * libm's expf is a call the loops cannot be vectorised across; these are plain expressions without branches. */
#ifndef TITAN_WORKER_DEVICE_CPU_ARITH_H
#define TITAN_WORKER_DEVICE_CPU_ARITH_H

#include <string.h>

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
CPU_INLINE float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}
/* Round to nearest, ties to even; a NaN stays a (quiet) NaN. */
CPU_INLINE uint16_t bf16_from_f32(float x)
{
    uint32_t u = f32_bits(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
/* Element i of a tensor of dtype dt (bf16 or fp32); dt is a constant where this is used. */
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

/* e^x: x = n ln2 + r, |r| <= ln2/2, Taylor polynomial of degree 7 in r (remainder below 1e-8 relative), 2^n by the
 * exponent field. Below -87.33 the result is 0, above 88.72 infinity, NaN stays NaN. Error under 2 ulp (tested). */
CPU_INLINE float exp_f32(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float c = x > 88.8f ? 88.8f : x;
    c = c < -87.5f ? -87.5f : c;
    float t = c * 1.44269504f + shift;
    float n = t - shift;
    float r = c - n * 0.693145752f; /* ln2, upper bits: n * it is exact */
    r = r - n * 1.42860677e-6f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 5.0e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    /* 2^n in two factors: n = 128 is out of the range of one. */
    int32_t e = (int32_t)(f32_bits(t) - f32_bits(shift));
    int32_t half = e >> 1;
    float y = p * f32_from_bits((uint32_t)(half + 127) << 23) * f32_from_bits((uint32_t)(e - half + 127) << 23);
    return x < -87.33f ? 0.0f : y;
}
CPU_INLINE float sigmoid_f32(float x)
{
    return 1.0f / (1.0f + exp_f32(-x));
}

#endif
