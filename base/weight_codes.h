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
 * Learned levels (QSDP's too) lie where a unit's values are dense. With f = (x - lo) / (hi - lo), ranks count in which
 * of WEIGHT_BINS bins the values of all buckets lie: whole numbers, whose sum over ranks has no order. Of n = 2^b
 * levels the first are as dense as the 3/8th power of the counts of WEIGHT_GROUP bins each (best for large n is the
 * cube root: Panter and Dite 1951). Then each of WEIGHT_TURNS turns moves every level to the mean of its cell, what is
 * nearest to it, with a bin's values spread evenly: gradient descent on the sum of squares, with the step that ends in
 * the cell's least. The shift moves learned levels l_j as it moves even ones, by (1/2 - xi) of a gap: a code is at
 * least j where f >= bound_j = l_j-1 + (1 - xi) (l_j - l_j-1) value of a code = lo + (hi - lo) (l_j + (1/2 - xi) gap),
 * gap that to l_j+1 for xi < 1/2, that from l_j-1 else Within a gap the mean over xi is the value itself. Even levels
 * give the lattice above.
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

#define WEIGHT_BINS 1024
#define WEIGHT_LEVELS 64 /* most learned levels */
#define WEIGHT_GROUP 16  /* bins */
#define WEIGHT_TURNS 8

/* With learned levels: lo, and hi - lo. */
struct weight_bucket {
    float base, unit;
};
/* Of all bins before one: how many values lie in them, and the integral of 2 x over these. */
struct weight_sums {
    double count, twice;
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

/* --- learned levels ----------------------------------------------------------------------------------------------- */

/* As weight_bucket_of(). ret->inverse becomes 1 / (hi - lo). */
WEIGHT_INLINE struct weight_bucket weight_bucket_by(int32_t low, int32_t high, struct weight_scale *ret)
{
    struct weight_bucket b = weight_bucket_of(low, high, WEIGHTS_INT4, 0.5f, ret);

    if (ret->inverse > 0.0f) {
        b.unit = weight_ordered(high) - ret->lo;
        ret->inverse = 1.0f / b.unit;
    }
    return b;
}

/* The bin of a value; s->inverse is not 0. */
WEIGHT_INLINE int32_t weight_bin(float value, const struct weight_scale *s)
{
    const int32_t bin = (int32_t)((value - s->lo) * s->inverse * (float)WEIGHT_BINS);
    return bin < WEIGHT_BINS ? bin : WEIGHT_BINS - 1;
}

/* The sums before bin i + 1 from those before bin i, which has so many values. Products that are added are fused in
 * words, so that no compiler does more. */
WEIGHT_INLINE struct weight_sums weight_sums_next(struct weight_sums s, int i, double count)
{
    s.count += count;
    s.twice = fma(count, (double)(2 * i + 1), s.twice);
    return s;
}

/* Where the j-th of n levels begins, in bins. sums (WEIGHT_BINS + 1), from no bin on. */
WEIGHT_INLINE float weight_level_first(const struct weight_sums *sums, int j, int n)
{
    double all = 0, before = 0, to = 0;

    for (int look = 0; look < 2; look++, before = 0) /* finds the sum, then the place of its part */
        for (int i = 0; i < WEIGHT_BINS; i += WEIGHT_GROUP) {
            const double root = sqrt(sqrt(sqrt(sums[i + WEIGHT_GROUP].count - sums[i].count)));
            const double next = fma(root * root, root, before);
            if (look == 1 && next > to)
                return (float)fma((to - before) / (next - before), (double)WEIGHT_GROUP, (double)i);
            before = next;
            all = look == 0 ? next : all;
            to = (double)(2 * j + 1) * all / (double)(2 * n);
        }
    return (float)(j * WEIGHT_BINS) / (float)(n - 1); /* there are no values */
}

/* The count and integral up to a place in bins. */
WEIGHT_INLINE struct weight_sums weight_sums_to(const struct weight_sums *sums, float place)
{
    const int i = place < (float)WEIGHT_BINS ? (int)place : WEIGHT_BINS - 1;
    const double part = (double)place - (double)i, count = sums[i + 1].count - sums[i].count;
    struct weight_sums s = sums[i];

    s.count = fma(part, count, s.count);
    s.twice = fma(part * count, (double)(2 * i) + part, s.twice);
    return s;
}

/* Where the j-th level goes in a turn. A level without values stays. */
WEIGHT_INLINE float weight_level(const struct weight_sums *sums, const float *level, int j, int n)
{
    const struct weight_sums from = weight_sums_to(sums, j > 0 ? (level[j - 1] + level[j]) * 0.5f : 0.0f);
    const struct weight_sums to =
        weight_sums_to(sums, j < n - 1 ? (level[j] + level[j + 1]) * 0.5f : (float)WEIGHT_BINS);
    const double count = to.count - from.count;

    return count > 0 ? (float)((to.twice - from.twice) / (2 * count)) : level[j];
}

/* The j-th bound and value of a table: n bounds, of which the first is not used, and n values, in parts of the bucket's
 * range. */
WEIGHT_INLINE void weight_table(const float *level, int j, int n, float shift, float *table)
{
    const int up = j == n - 1 ? 0 : j == 0 ? 1 : shift < 0.5f;
    const float gap = up ? level[j + 1] - level[j] : level[j] - level[j - 1];

    table[j] = j > 0 ? fmaf(1.0f - shift, level[j] - level[j - 1], level[j - 1]) * (1.0f / (float)WEIGHT_BINS) : 0.0f;
    table[n + j] = fmaf(0.5f - shift, gap, level[j]) * (1.0f / (float)WEIGHT_BINS);
}

/* n: a power of two. */
WEIGHT_INLINE int32_t weight_encode_by(float value, const struct weight_scale *s, const float *table, int n)
{
    const float part = (value - s->lo) * s->inverse;
    int32_t code = 0;

    for (int step = n / 2; step > 0; step /= 2)
        code += part >= table[code + step] ? step : 0;
    return code;
}

WEIGHT_INLINE float weight_decode_by(uint32_t code, struct weight_bucket b, const float *table, int n)
{
    return fmaf(table[n + (int)code], b.unit, b.base);
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
