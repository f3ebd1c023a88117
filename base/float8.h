/* SPDX-License-Identifier: Apache-2.0 */
/* float8.h - the eight-bit types for training (Micikevicius et al. 2022, arXiv:2209.05433). e4m3fn has four exponent
 * and three mantissa bits, no infinities, and values up to 448; e5m2 has values up to 57344.
 *
 * MXFP8 (Open Compute Project 2023, Microscaling Formats 1.0): blocks of 32 e4m3 values share one scale, a power of
 * two. The scale is stored as a biased exponent of eight bits (e8m0); 255 is NaN.
 *
 * bf16 represents every value of both types, and every MXFP8 value except values below 2^-133, the least exponent of
 * bf16. Expressions have no branches, so that compilers can vectorise loops over them. */
#ifndef TITAN_BASE_FLOAT8_H
#define TITAN_BASE_FLOAT8_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum float8 { FLOAT8_E4M3, FLOAT8_E5M2 };

static inline float float8_max(enum float8 type)
{
    return type == FLOAT8_E4M3 ? 448.0f : 57344.0f;
}

/* The nearest value of the type, ties to even; larger values saturate. NaN stays NaN. */
static inline float float8_round(float x, enum float8 type)
{
    const float most = float8_max(type), least_normal = type == FLOAT8_E4M3 ? 0x1p-6f : 0x1p-14f;
    /* adding this number rounds to a multiple of the least subnormal */
    const float shift = type == FLOAT8_E4M3 ? 0x1p14f : 0x1p7f;
    const int dropped = type == FLOAT8_E4M3 ? 20 : 21; /* dropped mantissa bits */
    const float magnitude = fabsf(x), a = magnitude > most ? most : magnitude;
    uint32_t bits;
    float normal;

    memcpy(&bits, &a, sizeof(bits));
    bits += (1u << (dropped - 1)) - 1 + (bits >> dropped & 1);
    bits = bits >> dropped << dropped;
    memcpy(&normal, &bits, sizeof(normal));
    const float rounded = a < least_normal ? (a + shift) - shift : normal;
    return x != x ? x : copysignf(rounded, x);
}

/* The code of float8_round(x). */
static inline uint8_t float8_encode(float x, enum float8 type)
{
    const float value = float8_round(x, type), a = fabsf(value);
    const float least_normal = type == FLOAT8_E4M3 ? 0x1p-6f : 0x1p-14f, steps = type == FLOAT8_E4M3 ? 0x1p9f : 0x1p16f;
    const int mantissa = type == FLOAT8_E4M3 ? 3 : 2, bias = type == FLOAT8_E4M3 ? 7 : 15;
    uint32_t bits, sign;

    memcpy(&sign, &value, sizeof(sign));
    memcpy(&bits, &a, sizeof(bits));
    sign = sign >> 24 & 0x80;
    if (a != a)
        return (uint8_t)(sign | 0x7f);
    if (a < least_normal)
        return (uint8_t)(sign | (uint32_t)(a * steps));
    return (uint8_t)(sign | ((bits >> (23 - mantissa)) - ((uint32_t)(127 - bias) << mantissa)));
}

/* The value of a code of e4m3fn. */
static inline float float8_decode(uint8_t code)
{
    const uint32_t magnitude = code & 0x7f, bits = (magnitude << 20) + (120u << 23);
    float normal;

    memcpy(&normal, &bits, sizeof(normal));
    const float value = magnitude < 8 ? (float)magnitude * 0x1p-9f : normal;
    return copysignf(magnitude == 0x7f ? NAN : value, code & 0x80 ? -1.0f : 1.0f);
}

/* --- MXFP8 -------------------------------------------------------------------------------------------------------- */

#define MX_BLOCK 32

/* The scale of a block. largest: the bits of the largest magnitude in the block (fp32, no sign). The scale is the
 * largest power of two not above largest / 256, at least 2^-127. 256 is the largest power of two in e4m3, so elements
 * above 448 times the scale saturate. A block with a non-finite element gets NaN, which makes the whole block NaN. */
static inline uint8_t mx_scale(uint32_t largest)
{
    const uint32_t exponent = largest >> 23;
    return (uint8_t)(exponent == 255 ? 255 : exponent > 8 ? exponent - 8 : 0);
}

/* A power of two by its biased exponent, from 2^-127 on; 255: NaN. */
static inline float mx_power(uint32_t exponent)
{
    const uint32_t bits = exponent == 255 ? 0x7fc00000u : exponent == 0 ? 0x00400000u : exponent << 23;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The exact inverse of a block's scale: an element is multiplied by it and then rounded to e4m3. */
static inline float mx_inverse(uint8_t scale)
{
    return mx_power(scale == 255 ? 255 : 254u - scale);
}

#endif
