/* SPDX-License-Identifier: Apache-2.0 */
/* f16.h - IEEE 754 half precision: a sign, 5 bits of exponent, 10 of fraction. */
#ifndef TITAN_BASE_F16_H
#define TITAN_BASE_F16_H

#include <stdint.h>
#include <string.h>

static inline float f16_to_f32(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 0x1f, fraction = x & 0x3ff;
    uint32_t bits = sign;
    float f;

    if (exponent == 0x1f) {
        bits |= 0x7f800000 | fraction << 13; /* infinities and NaNs */
    } else if (exponent > 0) {
        bits |= (exponent + 112) << 23 | fraction << 13;
    } else {
        f = (float)fraction * 0x1p-24f; /* exact: zero and subnormals */
        return sign ? -f : f;
    }
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Rounds to nearest, ties to even; a value too large becomes infinity; a NaN stays a NaN. */
static inline uint16_t f16_from_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;

    if (magnitude > 0x7f800000)
        return sign | 0x7e00;
    if (magnitude >= 0x477ff000) /* 65520 and more round to infinity */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) { /* below 2^-14: the addition rounds to a multiple of 2^-24 */
        float scaled;
        memcpy(&scaled, &magnitude, sizeof(scaled));
        scaled += 0.5f; /* the last bit of the sum is worth 2^-24 */
        memcpy(&bits, &scaled, sizeof(bits));
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    return sign | (uint16_t)((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

#endif
