/* SPDX-License-Identifier: Apache-2.0 */
/* float8.h - the eight-bit types of training (Micikevicius et al. 2022, arXiv:2209.05433): e4m3fn, four bits of
 * exponent and three of mantissa, without infinities, up to 448; e5m2, up to 57344.
 *
 * Values of both are values of bf16. Expressions without branches, which loops can be vectorised across. */
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

/* The nearest value of the type, ties to even; beyond the largest one it is that one. NaN stays NaN. */
static inline float float8_round(float x, enum float8 type)
{
    const float most = float8_max(type), least_normal = type == FLOAT8_E4M3 ? 0x1p-6f : 0x1p-14f;
    const float shift = type == FLOAT8_E4M3 ? 0x1p14f : 0x1p7f; /* adding it rounds to the least subnormal */
    const int dropped = type == FLOAT8_E4M3 ? 20 : 21;          /* bits of the mantissa */
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

#endif
