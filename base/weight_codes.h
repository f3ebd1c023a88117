/* SPDX-License-Identifier: Apache-2.0 */
/* weight_codes.h - how weights are coded while they travel between ranks: QSDP's buckets with a lattice that one random
 * number shifts (Markov et al. 2023, arXiv:2302.02390, section 4).
 *
 * A bucket has up to WEIGHT_BUCKET values, two fp32 numbers and a code for each value. With lo and hi the bucket's
 * least and largest value, b bits, and a shift xi in (0,1) that all buckets of a unit share in a step: unit = (hi - lo)
 * / (2^b - 1) code = floor((x - lo) / unit + xi), at most 2^b - 1 base = lo + (1/2 - xi) unit value of a code = base +
 * code unit So values lie on a lattice with one random shift, no value is further than unit/2 from its own, and the
 * mean over xi is the value itself: with t = (x - lo) / unit, the mean of floor(t + xi) is t, and that of 1/2 - xi is
 * 0. The one who decodes needs no shift. The shift is a function of seed, step and unit: every rank, and a rank that
 * repeats the step, makes the same codes.
 *
 * A bucket whose values are equal, or closer than 2^-100, has unit 0 and all its values are lo. A bucket with a value
 * that is not finite decodes to NaN, so that the step is skipped. All arithmetic is fp32 with explicit fused products,
 * so every device makes the same bits. tests/golden/weight_codes_reference.py has the same in NumPy.
 *
 * A piece, what a rank sends of n values: the buckets' numbers, up to a multiple of 16 bytes, then the codes without
 * gaps, up to a multiple of 16 bytes. Value i has bits [i b, (i+1) b) of the codes, the lowest bits of a byte first: 6
 * bits pack 4 values in 3 bytes. With whole buckets that is b + 0.0625 bits a value. C and CUDA C++ include this file.
 */
#ifndef TITAN_BASE_WEIGHT_CODES_H
#define TITAN_BASE_WEIGHT_CODES_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef WEIGHT_INLINE
#ifdef __CUDACC__
#define WEIGHT_INLINE __host__ __device__ static inline
#else
#define WEIGHT_INLINE static inline __attribute__((always_inline))
#endif
#endif

enum weight_codec { WEIGHTS_WHOLE, WEIGHTS_INT8, WEIGHTS_INT6, WEIGHTS_INT4, WEIGHT_CODECS };

#define WEIGHT_BUCKET 1024 /* most values of a bucket; a smaller bucket is a multiple of WEIGHT_BUCKET_MIN values */
#define WEIGHT_BUCKET_MIN 64

struct weight_bucket {
    float base, unit;
};

/* Bits of a code; WEIGHTS_WHOLE has none. */
WEIGHT_INLINE int weight_bits(enum weight_codec codec)
{
    return codec == WEIGHTS_INT8 ? 8 : codec == WEIGHTS_INT6 ? 6 : codec == WEIGHTS_INT4 ? 4 : 0;
}
WEIGHT_INLINE int64_t weight_buckets(int64_t n, int64_t bucket)
{
    return (n + bucket - 1) / bucket;
}
/* Where the codes begin in a piece, and the bytes of the piece. */
WEIGHT_INLINE int64_t weight_codes_begin(int64_t n, int64_t bucket)
{
    return (weight_buckets(n, bucket) * (int64_t)sizeof(struct weight_bucket) + 15) / 16 * 16;
}
WEIGHT_INLINE int64_t weight_codes_bytes(enum weight_codec codec, int64_t n, int64_t bucket)
{
    return weight_codes_begin(n, bucket) + ((n * weight_bits(codec) + 7) / 8 + 15) / 16 * 16;
}

/* Numbers in the order of the values: those of -NaN are the lowest, those of NaN the highest. */
WEIGHT_INLINE int32_t weight_order(float value)
{
    int32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits ^ (bits < 0 ? INT32_MAX : 0);
}
WEIGHT_INLINE float weight_ordered(int32_t order)
{
    const int32_t bits = order ^ (order < 0 ? INT32_MAX : 0);
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What a bucket's values are coded by. inverse 0: all codes are 0. */
struct weight_scale {
    float lo, inverse, shift;
    int32_t most; /* the largest code */
};

/* The numbers of a bucket with these lowest and highest values (weight_order). low > high: it has no values. */
WEIGHT_INLINE struct weight_bucket weight_bucket_of(int32_t low, int32_t high, enum weight_codec codec, float shift,
                                                    struct weight_scale *ret)
{
    const int32_t most = (1 << weight_bits(codec)) - 1;
    const float lo = low > high ? 0.0f : weight_ordered(low), hi = low > high ? 0.0f : weight_ordered(high);
    const float range = hi - lo;
    struct weight_bucket b;

    ret->lo = lo;
    ret->inverse = 0.0f;
    ret->shift = shift;
    ret->most = most;
    b.base = lo;
    b.unit = 0.0f;
    if (!(range <= 3.4028234e38f)) { /* a value is not finite, or the values are too far apart */
        b.base = b.unit = NAN;
        return b;
    }
    if (range < 0x1p-100f)
        return b;
    b.unit = range * (1.0f / (float)most);
    ret->inverse = (float)most / range;
    b.base = fmaf(b.unit, 0.5f - shift, lo);
    return b;
}

/* s->inverse is not 0. */
WEIGHT_INLINE int32_t weight_encode(float value, const struct weight_scale *s)
{
    const int32_t code = (int32_t)fmaf(value - s->lo, s->inverse, s->shift);
    return code > s->most ? s->most : code;
}

WEIGHT_INLINE float weight_decode(uint32_t code, struct weight_bucket b)
{
    return fmaf((float)(int32_t)code, b.unit, b.base);
}

#ifndef __cplusplus
/* The codec of a name; WEIGHTS_WHOLE: another name. */
enum weight_codec weight_codec_find(const char *name);

/* The shift of a unit's buckets in a step, in (0,1): (word + 1/2) / 2^23, with the upper 23 bits of the first word of
 * Philox (base/rng.h) under the key (seed, "weight codes"), counter (unit, step). Its mean is 1/2. */
float weight_shift(uint64_t seed, uint64_t step, int unit);

/* Words at any address, in memory of any type. */
typedef uint16_t __attribute__((may_alias, aligned(1))) weight_two;
typedef uint64_t __attribute__((may_alias, aligned(1))) weight_eight;

/* The codes of one bucket of n values, a byte each, to and from their place in a piece. `codes` has room for
 * WEIGHT_BUCKET bytes and is aligned to 8; the packed codes' last bits, behind value n, become 0. n is at most
 * WEIGHT_BUCKET. Loops over words have no other work, so that compilers make vectors of them. */
WEIGHT_INLINE void weight_pack(uint8_t *restrict to, uint8_t *restrict codes, int n, enum weight_codec codec)
{
    if (codec == WEIGHTS_INT8) {
        memcpy(to, codes, (size_t)n);
        return;
    }
    for (int i = n; i % 8 != 0; i++)
        codes[i] = 0;
    if (codec == WEIGHTS_INT4) {
        const weight_two *const two = (const weight_two *)codes;
        for (int i = 0; i < (n + 1) / 2; i++)
            to[i] = (uint8_t)(two[i] | two[i] >> 4);
        return;
    }
    weight_eight *const w = (weight_eight *)codes;
    const int words = (n + 7) / 8, whole = n / 8;
    for (int i = 0; i < words; i++) {
        uint64_t x = w[i];
        x = (x & 0x003f003f003f003fu) | (x >> 2 & 0x0fc00fc00fc00fc0u);
        x = (x & 0x00000fff00000fffu) | (x >> 4 & 0x00fff00000fff000u);
        w[i] = (x & 0x0000000000ffffffu) | (x >> 8 & 0x0000ffffff000000u);
    }
    for (int i = 0; i + 1 < whole; i++) /* two bytes more, which the next word overwrites */
        *(weight_eight *)(to + 6 * i) = w[i];
    if (whole > 0)
        memcpy(to + 6 * (whole - 1), &w[whole - 1], 6);
    for (int i = 0; i < (n % 8 * 6 + 7) / 8; i++)
        to[6 * whole + i] = (uint8_t)(w[whole] >> 8 * i);
}

WEIGHT_INLINE void weight_unpack(uint8_t *restrict codes, const uint8_t *restrict from, int n, enum weight_codec codec)
{
    if (codec == WEIGHTS_INT8) {
        memcpy(codes, from, (size_t)n);
        return;
    }
    if (codec == WEIGHTS_INT4) {
        weight_two *const two = (weight_two *)codes;
        for (int i = 0; i < (n + 1) / 2; i++)
            two[i] = (uint16_t)((from[i] | from[i] << 4) & 0x0f0f);
        return;
    }
    weight_eight *const w = (weight_eight *)codes;
    const int words = (n + 7) / 8, whole = n / 8;
    for (int i = 0; i + 1 < whole; i++) /* two bytes more, which the masks drop */
        w[i] = *(const weight_eight *)(from + 6 * i);
    for (int i = whole > 0 ? whole - 1 : 0; i < words; i++) {
        uint64_t last = 0;
        memcpy(&last, from + 6 * i, i < whole ? 6 : (size_t)(n % 8 * 6 + 7) / 8);
        w[i] = last;
    }
    for (int i = 0; i < words; i++) {
        uint64_t x = w[i];
        x = (x & 0x0000000000ffffffu) | (x & 0x0000ffffff000000u) << 8;
        x = (x & 0x00000fff00000fffu) | (x & 0x00fff00000fff000u) << 4;
        w[i] = (x & 0x003f003f003f003fu) | (x & 0x0fc00fc00fc00fc0u) << 2;
    }
}
#endif

#endif
