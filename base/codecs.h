/* SPDX-License-Identifier: Apache-2.0 */
/* codecs.h - how gradients are coded while they travel between ranks.
 *
 * A rank codes its gradient once, each rank gets its piece from all others, decodes the pieces and adds them up in fp32
 * in the order of ranks: so no value is rounded twice. "bf16" is what Megatron-LM calls a reduce-scatter with fp32
 * accumulation. "int8" and "int4" are QSDP's (Markov et al. 2023, arXiv:2302.02390) with scales, not minima. "loco" is
 * int4 that keeps what the codes lost, in 8 bits, for the next step (LoCo, Xie et al. 2024, arXiv:2407.04480).
 *
 * A piece of n values is cut into buckets of CODEC_BUCKET, the last one shorter. A scaled codec has a scale s for each:
 *     int8         s = M / 128, with stochastic rounding M / 127
 *     int4, loco   s = M / 8,   with stochastic rounding M / 7
 *     fp8          s = the least power of two with M / s <= 448
 * M is the bucket's largest magnitude, or a magnitude that the caller gives for all buckets of a tensor. s is 0 if
 * M is below 2^-100: the bucket decodes to zeros. s is NaN if M is not finite or is 2^126 or more: the whole bucket
 * decodes to NaN. Codes are those of 0 in both cases.
 *
 * With i = 1/s rounded to fp32, fma() rounded once, and round() to the nearest even integer:
 *     f32, bf16    the value itself, rounded to the type
 *     fp8          the e4m3 code of x i (base/float8.h)
 *     int8         round(x i), at least -128 and at most 127: the largest positive value loses 1/128 of itself
 *     int4, loco   the same, at least -8 and at most 7: rms errors are 10 % below those of M / 7
 *     stochastic   int8 and int4: round(fma(x, i, (r - 32767.5) / 65536)), with 16 random bits r (codec_offset): up
 * with a probability equal to the fraction, to 2^-17, and no value is cut off Decoded, a code q of bucket scale s is q
 * s. A sum over pieces p is q_0 s_0, then fma(q_p, s_p, sum): the rounding is the same on every device, and whatever
 * the number of threads.
 *
 * LoCo, for an error e that is stored as codes c of scale t, and decay a:
 *     h  = fma(c, t, x)                                what is coded
 *     e' = fma(c, a t, (1-a) fma(-q, s, h))            what is kept; t' = max|e'| / 127, c' = round(e' / t')
 * So sum of decoded = sum of x - (e_T - e_0) / (1-a), but for the rounding of e to 8 bits. A bucket whose s is NaN
 * keeps no error: t' = 0.
 *
 * Decoding trusts no bytes: any scale and any code give a float. C and CUDA C++ include this file.
 * tests/golden/codecs_reference.py has the same in NumPy. */
#ifndef TITAN_BASE_CODECS_H
#define TITAN_BASE_CODECS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define CODEC_INLINE __host__ __device__ static inline
#else
#define CODEC_INLINE static inline __attribute__((always_inline))
#endif

enum codec { CODEC_NONE, CODEC_F32, CODEC_BF16, CODEC_FP8, CODEC_INT8, CODEC_INT4, CODEC_LOCO, CODECS };

#define CODEC_BUCKET 1024 /* values with one scale; they are counted from the piece's begin */

struct codec_row {
    const char *name;
    int bits;        /* of a code; CODEC_NONE: 0 */
    bool scaled;     /* each bucket has a scale */
    bool error;      /* keeps what the codes lost: codec_error_bytes() of a rank's memory */
    bool stochastic; /* may round at random */
};
const struct codec_row *codec_row(enum codec c);
/* All names, "none|f32|..."; static. */
const char *codec_names(void);
/* The codec of a name; CODECS: there is none. */
enum codec codec_find(const char *name);

static inline int64_t codec_buckets(int64_t n)
{
    return (n + CODEC_BUCKET - 1) / CODEC_BUCKET;
}
/* Bytes of a piece of n values: fp32 scales, rounded up to 16 bytes, then codes, rounded up to 16 bytes. Two codes of 4
 * bits share a byte, the first one in its lower half. Bytes behind the last scale and the last code are 0. CODEC_NONE:
 * 0. */
size_t codec_bytes(enum codec c, int64_t n);
/* Bytes of LoCo's error of a piece of n values: scales as above, then 8 bits a value, rounded up to 16 bytes. Zeroed
 * bytes are no error. */
size_t codec_error_bytes(int64_t n);
/* The same in parts: bytes of a piece and of its error, and at which byte of them codes begin. */
struct codec_places {
    int64_t buckets, bytes, codes, error_bytes, error_codes;
};
struct codec_places codec_places(enum codec c, int64_t n);

/* Of pieces of n values one after the other: the bucket that has a value (for the value behind the last one, the number
 * of buckets), and the first bucket that begins there or later. */
static inline int64_t codec_bucket_of(const struct codec_places *at, int64_t n, int64_t value)
{
    return value / n * at->buckets + value % n / CODEC_BUCKET;
}
static inline int64_t codec_bucket_from(const struct codec_places *at, int64_t n, int64_t value)
{
    return value == 0 ? 0 : codec_bucket_of(at, n, value - 1) + 1;
}

/* --- arithmetic of one value -------------------------------------------------------------------------------------- */

/* The bits of a magnitude: they grow with it, and a value that is not finite has the largest. */
CODEC_INLINE uint32_t codec_magnitude(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

/* The float of these bits. */
CODEC_INLINE float codec_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The scale of a bucket, from the bits of its largest magnitude. */
CODEC_INLINE float codec_scale(enum codec c, bool stochastic, uint32_t largest)
{
    const float levels = c == CODEC_INT8 ? (stochastic ? 127.0f : 128.0f) : (stochastic ? 7.0f : 8.0f);

    if (largest >= 253u << 23)
        return codec_float(0x7fc00000u);
    if (largest < 27u << 23)
        return 0.0f;
    /* 448 = 1.75 * 2^8: mantissas above 1.75 need the next power of two */
    if (c == CODEC_FP8)
        return codec_float((((largest + 0x1fffffu) >> 23) - 8) << 23);
    return codec_float(largest) / levels;
}

/* The scale of a bucket of errors, from the bits of their largest magnitude. */
CODEC_INLINE float codec_error_scale(uint32_t largest)
{
    return largest >= 253u << 23 || largest < 27u << 23 ? 0.0f : codec_float(largest) / 127.0f;
}

/* 1.5 * 2^23: a sum with it is an integer, to nearest even, in the lower bits of its mantissa. */
#define CODEC_SHIFT 12582912.0f

/* An integer code of x, at least -least and at most `most`, as a float plus CODEC_SHIFT.
 * inverse: 1 / scale. A NaN becomes -least. */
CODEC_INLINE float codec_round(float x, float inverse, float least, float most)
{
    const float t = fmaf(x, inverse, CODEC_SHIFT), low = CODEC_SHIFT - least, high = CODEC_SHIFT + most;
    const float up = t > low ? t : low;

    return up < high ? up : high;
}
CODEC_INLINE float codec_round_at_random(float x, float inverse, float offset, float least, float most)
{
    const float t = fmaf(x, inverse, offset) + CODEC_SHIFT, low = CODEC_SHIFT - least, high = CODEC_SHIFT + most;
    const float up = t > low ? t : low;

    return up < high ? up : high;
}
/* The code in what codec_round() gave, and its value. */
CODEC_INLINE int8_t codec_code(float shifted)
{
    uint32_t bits;

    memcpy(&bits, &shifted, sizeof bits);
    return (int8_t)(uint8_t)bits;
}
CODEC_INLINE float codec_value(float shifted)
{
    return shifted - CODEC_SHIFT;
}

/* The offset of a value from 16 random bits. Value i of a call's x takes them from word i/2 of the random stream (key,
 * step) (rng_words), the lower ones for an even i. */
CODEC_INLINE float codec_offset(uint32_t r)
{
    return ((float)(int32_t)r - 32767.5f) * 0x1p-16f;
}

#endif
