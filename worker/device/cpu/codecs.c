/* SPDX-License-Identifier: Apache-2.0 */
/* codecs.c - codes of gradients that travel (base/codecs.h). A bucket stays in the first-level cache while it is coded:
 * memory is read and written once. A value of fp32 costs 4 bytes read and its code written, with LoCo's error 2 more;
 * 8 and 4 bits take some 6 vector instructions for 16 values, LoCo some 35. */
#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "base/float8.h"
#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

enum { GRAIN = 16 }; /* buckets */

/* Bytes of a whole bucket's codes. */
CPU_INLINE int64_t code_bytes(enum codec c)
{
    return c == CODEC_F32 ? 4096 : c == CODEC_BF16 ? 2048 : c == CODEC_FP8 || c == CODEC_INT8 ? 1024 : 512;
}

CPU_INLINE uint32_t largest_of(const float *restrict x, int64_t n)
{
    uint32_t largest = 0;

    for (int64_t i = 0; i < n; i++) {
        const uint32_t magnitude = codec_magnitude(x[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* --- encode ------------------------------------------------------------------------------------------------------- */

struct encode_run {
    struct encode_args args;
    struct codec_places at;
};
static_assert(sizeof(struct encode_run) <= CPU_ARGS_MAX, "arguments fit a queue slot");

/* One bucket of values, and where its codes and scales go. */
struct bucket {
    const float *x;
    uint8_t *codes;
    float *scale, *error_scale;
    int8_t *error;
    const float *largest; /* NULL: the values' own */
    uint64_t first;       /* the first value's place in x */
};

/* Codes of 4 bits, one a byte; a pair of them goes into a byte. */
union half_bytes {
    int8_t one[CODEC_BUCKET];
    uint16_t pairs[CODEC_BUCKET / 2];
};

/* The first one of a pair in the lower half. */
CPU_INLINE void pack(uint8_t *restrict codes, const uint16_t *restrict pairs)
{
    for (int i = 0; i < CODEC_BUCKET / 2; i++)
        codes[i] = (uint8_t)((pairs[i] & 15) | (pairs[i] >> 4 & 240));
}

/* Codes of 8 or 4 bits. */
CPU_INLINE void encode_integers(const struct encode_args *a, const struct bucket *b, float inverse, enum codec c,
                                bool stochastic)
{
    const float least = c == CODEC_INT8 ? 128.0f : 8.0f, most = least - 1.0f;
    const float *restrict const x = b->x;
    union half_bytes halves;
    int8_t *restrict const codes = c == CODEC_INT8 ? (int8_t *)b->codes : halves.one;

    if (stochastic) {
        union {
            uint32_t words[CODEC_BUCKET / 2 + 1];
            uint16_t halves[CODEC_BUCKET + 2];
        } random;
        rng_words(a->key, b->first / 2, a->step, CODEC_BUCKET / 2 + b->first % 2, random.words);
        const uint16_t *const r = random.halves + b->first % 2;
        for (int i = 0; i < CODEC_BUCKET; i++)
            codes[i] = codec_code(codec_round_at_random(x[i], inverse, codec_offset(r[i]), least, most));
    } else {
        for (int i = 0; i < CODEC_BUCKET; i++)
            codes[i] = codec_code(codec_round(x[i], inverse, least, most));
    }
    if (c != CODEC_INT8)
        pack(b->codes, halves.pairs);
}

/* LoCo: the values and the error that was kept, coded, and the error that is kept. */
CPU_INLINE void encode_with_error(const struct encode_args *a, const struct bucket *b)
{
    const float *restrict const x = b->x;
    int8_t *restrict const error = b->error;
    titan_assert(error && b->error_scale);
    const float was = *b->error_scale, kept = a->decay * was, rest = 1.0f - a->decay;
    float h[CODEC_BUCKET];
    union half_bytes codes;
    uint32_t largest = 0;

    for (int i = 0; i < CODEC_BUCKET; i++) {
        h[i] = fmaf(error[i], was, x[i]);
        const uint32_t magnitude = codec_magnitude(h[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    const float scale = codec_scale(CODEC_LOCO, false, b->largest ? codec_magnitude(*b->largest) : largest);
    *b->scale = scale;
    *b->error_scale = 0.0f;
    if (scale != scale) {
        memset(b->codes, 0, CODEC_BUCKET / 2);
        memset(error, 0, CODEC_BUCKET);
        return;
    }
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    largest = 0;
    for (int i = 0; i < CODEC_BUCKET; i++) {
        const float shifted = codec_round(h[i], inverse, 8.0f, 7.0f);
        codes.one[i] = codec_code(shifted);
        h[i] = fmaf(error[i], kept, rest * fmaf(-codec_value(shifted), scale, h[i]));
        const uint32_t magnitude = codec_magnitude(h[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    pack(b->codes, codes.pairs);
    const float error_scale = codec_error_scale(largest);
    *b->error_scale = error_scale;
    if (error_scale > 0.0f) {
        const float by = 1.0f / error_scale;
        for (int i = 0; i < CODEC_BUCKET; i++)
            error[i] = codec_code(codec_round(h[i], by, 127.0f, 127.0f));
    } else {
        memset(error, 0, CODEC_BUCKET);
    }
}

/* float8_encode() of a finite value, in half the instructions: both ways to round, by whole numbers and by a sum with
 * 2^14, whose last place is the least subnormal, give the code at once. */
CPU_INLINE uint8_t e4m3_of(float x)
{
    const float magnitude = codec_float(codec_magnitude(x)), a = magnitude < 448.0f ? magnitude : 448.0f;
    const uint32_t bits = f32_bits(a), sign = f32_bits(x) >> 24 & 128u;
    const uint32_t normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    const uint32_t small = f32_bits(a + 0x1p14f) - f32_bits(0x1p14f);

    return (uint8_t)(sign | (a < 0x1p-6f ? small : normal));
}

CPU_INLINE void encode_bucket(const struct encode_args *a, const struct bucket *b, enum codec c, bool stochastic)
{
    const float *restrict const x = b->x;
    uint8_t *restrict const codes = b->codes;

    if (c == CODEC_BF16) {
        uint16_t *restrict const halves = (uint16_t *)codes;
        for (int i = 0; i < CODEC_BUCKET; i++)
            halves[i] = bf16_from_f32(x[i]);
        return;
    }
    if (c == CODEC_LOCO) {
        encode_with_error(a, b);
        return;
    }
    const uint32_t largest = b->largest ? codec_magnitude(*b->largest) : largest_of(x, CODEC_BUCKET);
    const float scale = codec_scale(c, stochastic, largest);
    *b->scale = scale;
    if (!(scale > 0.0f)) {
        memset(codes, 0, (size_t)code_bytes(c));
        return;
    }
    const float inverse = 1.0f / scale;
    if (c == CODEC_FP8)
        for (int i = 0; i < CODEC_BUCKET; i++)
            codes[i] = e4m3_of(x[i] * inverse);
    else
        encode_integers(a, b, inverse, c, stochastic);
}

/* Buckets [begin, end) of all pieces. A piece's last one is coded in memory of its own, with zeros behind its values.
 */
CPU_INLINE void encode_buckets(const struct encode_run *r, int64_t begin, int64_t end, enum codec c, bool stochastic)
{
    const struct encode_args *const a = &r->args;
    struct {
        float x[CODEC_BUCKET];
        uint32_t codes[CODEC_BUCKET];
        int8_t error[CODEC_BUCKET];
    } spare;

    for (int64_t i = begin; i < end; i++) {
        const int64_t piece = i / r->at.buckets, k = i % r->at.buckets, at = k * CODEC_BUCKET;
        const int64_t n = MIN(CODEC_BUCKET, a->n - at);
        uint8_t *const of = a->codes + piece * r->at.bytes, *const codes = of + r->at.codes + k * code_bytes(c);
        uint8_t *const kept = c == CODEC_LOCO ? a->error + piece * r->at.error_bytes : NULL;
        int8_t *const error = kept ? (int8_t *)kept + r->at.error_codes + at : NULL;
        struct bucket b = {.x = a->x + piece * a->n + at,
                           .codes = codes,
                           .scale = (float *)of + k,
                           .error_scale = kept ? (float *)kept + k : NULL,
                           .error = error,
                           .largest = a->largest ? a->largest + i : NULL,
                           .first = (uint64_t)(piece * a->n + at)};
        if (k == r->at.buckets - 1) { /* behind the last scale */
            memset((float *)of + r->at.buckets, 0, (size_t)(r->at.codes ? r->at.codes - 4 * r->at.buckets : 0));
            if (kept)
                memset((float *)kept + r->at.buckets, 0, (size_t)(r->at.error_codes - 4 * r->at.buckets));
        }
        if (n == CODEC_BUCKET) {
            encode_bucket(a, &b, c, stochastic);
            continue;
        }
        memset(&spare, 0, sizeof spare);
        memcpy(spare.x, b.x, (size_t)n * sizeof *b.x);
        b.x = spare.x;
        b.codes = (uint8_t *)spare.codes;
        if (error) {
            memcpy(spare.error, error, (size_t)n);
            b.error = spare.error;
        }
        encode_bucket(a, &b, c, stochastic);
        memcpy(codes, spare.codes, (size_t)(of + r->at.bytes - codes));
        if (error)
            memcpy(error, spare.error, (size_t)(kept + r->at.error_bytes - (uint8_t *)error));
    }
}

#define ENCODE(name, c, stochastic)                                                                                    \
    CPU_KERNEL static void name(const void *p, int64_t begin, int64_t end, int thread)                                 \
    {                                                                                                                  \
        (void)thread;                                                                                                  \
        encode_buckets(p, begin, end, c, stochastic);                                                                  \
    }
ENCODE(encode_bf16, CODEC_BF16, false)
ENCODE(encode_fp8, CODEC_FP8, false)
ENCODE(encode_int8, CODEC_INT8, false)
ENCODE(encode_int8_at_random, CODEC_INT8, true)
ENCODE(encode_int4, CODEC_INT4, false)
ENCODE(encode_int4_at_random, CODEC_INT4, true)
ENCODE(encode_loco, CODEC_LOCO, false)

/* A copy of as much as there is at a time: a long one passes the caches by. */
static void encode_f32(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct encode_run *const r = p;
    const struct encode_args *const a = &r->args;

    (void)thread;
    for (int64_t i = begin; i < end;) {
        const int64_t piece = i / r->at.buckets, k = i % r->at.buckets, at = k * CODEC_BUCKET;
        const int64_t last = MIN(end, (piece + 1) * r->at.buckets), n = MIN((last - i) * CODEC_BUCKET, a->n - at);
        uint8_t *const of = a->codes + piece * r->at.bytes;
        memcpy(of + 4 * at, a->x + piece * a->n + at, (size_t)n * sizeof *a->x);
        if (at + n == a->n)
            memset(of + 4 * a->n, 0, (size_t)(r->at.bytes - 4 * a->n));
        i = last;
    }
}

titan_status cpu_encode(struct stream *s, const struct encode_args *a)
{
    static const cpu_range kernels[CODECS][2] = {[CODEC_F32] = {encode_f32},
                                                 [CODEC_BF16] = {encode_bf16},
                                                 [CODEC_FP8] = {encode_fp8},
                                                 [CODEC_INT8] = {encode_int8, encode_int8_at_random},
                                                 [CODEC_INT4] = {encode_int4, encode_int4_at_random},
                                                 [CODEC_LOCO] = {encode_loco}};

    if (!encode_valid(a))
        return TITAN_EINVAL;
    const struct encode_run r = {*a, codec_places(a->codec, a->n)};
    return cpu_enqueue_range(s, kernels[a->codec][a->stochastic], a->pieces * r.at.buckets, GRAIN, &r, sizeof r);
}

/* --- decode and sum ----------------------------------------------------------------------------------------------- */

struct decode_run {
    struct decode_sum_args args;
    struct codec_places at;
};

/* One code's value; codes of 4 bits lie one a byte. */
CPU_INLINE float value_of(const uint8_t *restrict codes, int i, enum codec c)
{
    if (c == CODEC_F32) {
        float x;
        memcpy(&x, codes + 4 * (size_t)i, sizeof x);
        return x;
    }
    if (c == CODEC_BF16)
        return bf16_to_f32(((const uint16_t *)codes)[i]);
    if (c == CODEC_FP8)
        return float8_decode(codes[i]);
    if (c == CODEC_INT8)
        return (float)(int8_t)codes[i];
    return (float)((int8_t)(codes[i] ^ 8) - 8);
}

/* out = or += the values of a bucket's codes. */
CPU_INLINE void decode_bucket(float *restrict out, const uint8_t *restrict codes, float scale, bool add, enum codec c)
{
    const bool scaled = c != CODEC_F32 && c != CODEC_BF16;
    union half_bytes halves;
    const uint8_t *restrict const from = c == CODEC_INT4 ? (const uint8_t *)halves.one : codes;

    if (c == CODEC_INT4)
        for (int i = 0; i < CODEC_BUCKET / 2; i++)
            halves.pairs[i] = (uint16_t)((codes[i] & 15) | (codes[i] & 240) << 4);
    for (int i = 0; i < CODEC_BUCKET; i++) {
        const float value = value_of(from, i, c);
        if (!scaled)
            out[i] = add ? out[i] + value : value;
        else
            out[i] = add ? fmaf(value, scale, out[i]) : value * scale;
    }
}

/* Buckets [begin, end) of the sum; the last one is decoded in memory of its own. */
CPU_INLINE void decode_buckets(const struct decode_run *r, int64_t begin, int64_t end, enum codec c)
{
    const struct decode_sum_args *const a = &r->args;
    float sums[CODEC_BUCKET] = {0};
    uint32_t spare[CODEC_BUCKET];

    if (c == CODEC_F32 && a->pieces == 1) {
        const int64_t from = begin * CODEC_BUCKET, to = MIN(end * CODEC_BUCKET, a->n);
        memcpy(a->out + from, a->codes + 4 * from, (size_t)(to - from) * sizeof *a->out);
        return;
    }
    for (int64_t k = begin; k < end; k++) {
        const int64_t at = k * CODEC_BUCKET, n = MIN(CODEC_BUCKET, a->n - at);
        const bool whole = n == CODEC_BUCKET;
        float *const out = whole ? a->out + at : sums;
        for (int64_t piece = 0; piece < a->pieces; piece++) {
            const uint8_t *const of = a->codes + piece * r->at.bytes, *codes = of + r->at.codes + k * code_bytes(c);
            const float scale = r->at.codes ? ((const float *)of)[k] : 0.0f;
            if (!whole) {
                memset(spare, 0, sizeof spare);
                memcpy(spare, codes, (size_t)(of + r->at.bytes - codes));
                codes = (const uint8_t *)spare;
            }
            if (piece == 0)
                decode_bucket(out, codes, scale, false, c);
            else
                decode_bucket(out, codes, scale, true, c);
        }
        if (!whole)
            memcpy(a->out + at, sums, (size_t)n * sizeof *sums);
    }
}

#define DECODE(name, c)                                                                                                \
    CPU_KERNEL static void name(const void *p, int64_t begin, int64_t end, int thread)                                 \
    {                                                                                                                  \
        (void)thread;                                                                                                  \
        decode_buckets(p, begin, end, c);                                                                              \
    }
DECODE(decode_f32, CODEC_F32)
DECODE(decode_bf16, CODEC_BF16)
DECODE(decode_fp8, CODEC_FP8)
DECODE(decode_int8, CODEC_INT8)
DECODE(decode_int4, CODEC_INT4)

titan_status cpu_decode_sum(struct stream *s, const struct decode_sum_args *a)
{
    static const cpu_range kernels[CODECS] = {
        [CODEC_F32] = decode_f32,   [CODEC_BF16] = decode_bf16, [CODEC_FP8] = decode_fp8,
        [CODEC_INT8] = decode_int8, [CODEC_INT4] = decode_int4, [CODEC_LOCO] = decode_int4};

    if (!decode_sum_valid(a))
        return TITAN_EINVAL;
    const struct decode_run r = {*a, codec_places(a->codec, a->n)};
    return cpu_enqueue_range(s, kernels[a->codec], r.at.buckets, 1 + (GRAIN - 1) / a->pieces, &r, sizeof r);
}

/* --- one scale a tensor ------------------------------------------------------------------------------------------- */

/* Buckets [first, end). One tensor's: most gets the largest magnitude of all. Otherwise most is NULL, and each bucket
 * has its own. */
struct largest_run {
    struct bucket_largest_args args;
    struct codec_places at;
    int64_t first, end, tensor;
    _Atomic uint32_t *most;
};
static_assert(sizeof(struct largest_run) <= CPU_ARGS_MAX, "arguments fit a queue slot");

CPU_KERNEL static void largest_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct largest_run *const r = p;
    const struct bucket_largest_args *const a = &r->args;
    uint32_t most = 0;

    (void)thread;
    for (int64_t i = r->first + begin; i < r->first + end; i++) {
        const int64_t piece = i / r->at.buckets, k = i % r->at.buckets, at = k * CODEC_BUCKET;
        const int64_t n = MIN(CODEC_BUCKET, a->n - at);
        const float *restrict x = a->x + piece * a->n + at;
        float h[CODEC_BUCKET];
        if (a->error) {
            const uint8_t *const kept = a->error + piece * r->at.error_bytes;
            const int8_t *restrict const error = (const int8_t *)kept + r->at.error_codes + at;
            const float scale = ((const float *)kept)[k];
            for (int64_t e = 0; e < n; e++)
                h[e] = fmaf(error[e], scale, x[e]);
            x = h;
        }
        const uint32_t largest = largest_of(x, n);
        most = MAX(most, largest);
        if (!r->most)
            a->largest[i] = codec_float(largest);
    }
    uint32_t seen = r->most ? atomic_load(r->most) : most;
    while (seen < most && !atomic_compare_exchange_weak(r->most, &seen, most))
        ;
}

static titan_status run_largest(const struct cpu_context *ctx, const void *p)
{
    struct largest_run r = *(const struct largest_run *)p;
    _Atomic uint32_t most = 0;

    r.most = r.tensor >= 0 ? &most : NULL;
    cpu_for(ctx, r.end - r.first, GRAIN, largest_range, &r);
    if (r.tensor < 0)
        return TITAN_OK;
    r.args.of_tensor[r.tensor] = codec_float(most);
    for (int64_t i = r.first; i < r.end; i++)
        r.args.largest[i] = codec_float(most);
    return TITAN_OK;
}

titan_status cpu_bucket_largest(struct stream *s, const struct bucket_largest_args *a)
{
    if (!bucket_largest_valid(a))
        return TITAN_EINVAL;
    const struct codec_places at = codec_places(CODEC_LOCO, a->n);
    struct largest_run r = {.args = *a, .at = at};
    TRY(cpu_zero(s, a->of_tensor, (size_t)a->tensors * sizeof *a->of_tensor));
    for (int64_t t = 0; t < a->tensors && a->n > 0; t++) {
        const int64_t first = codec_bucket_from(&at, a->n, a->begins[t]);
        const int64_t end = codec_bucket_of(&at, a->n, a->begins[t + 1]);
        if (first >= end)
            continue;
        r.first = r.end;
        r.end = first;
        r.tensor = -1;
        TRY(cpu_enqueue(s, run_largest, &r, sizeof r));
        r.first = first;
        r.end = end;
        r.tensor = t;
        TRY(cpu_enqueue(s, run_largest, &r, sizeof r));
    }
    r.first = r.end;
    r.end = a->pieces * at.buckets;
    r.tensor = -1;
    return cpu_enqueue(s, run_largest, &r, sizeof r);
}
