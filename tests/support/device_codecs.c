/* SPDX-License-Identifier: Apache-2.0 */
/* device_codecs.c - codes of gradients that travel, to the bit: base/codecs.h value by value. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/float8.h"
#include "support/device_checker.h"
#include "support/device_ops.h"

/* --- the same, one value after the other -------------------------------------------------------------------------- */

static uint32_t largest_of(const float *x, int64_t n)
{
    uint32_t most = 0;

    for (int64_t i = 0; i < n; i++)
        most = codec_magnitude(x[i]) > most ? codec_magnitude(x[i]) : most;
    return most;
}

/* Value i of x (n), in a bucket with this scale; first: the place of x[0] in all of the call's. */
static void encode_value(const struct encode_args *a, const float *x, int64_t i, float scale, int64_t first,
                         uint8_t *codes)
{
    const float least = a->codec == CODEC_INT8 ? 128 : 8;
    const bool coded = scale > 0;
    uint32_t word = 0;
    float shifted = CODEC_SHIFT;

    if (a->codec == CODEC_F32) {
        memcpy(codes + 4 * i, x + i, 4);
    } else if (a->codec == CODEC_BF16) {
        const uint16_t half = bf16_from_f32(x[i]);
        memcpy(codes + 2 * i, &half, 2);
    } else if (a->codec == CODEC_FP8) {
        codes[i] = coded ? float8_encode(x[i] * (1.0f / scale), FLOAT8_E4M3) : 0;
    } else {
        if (a->stochastic)
            rng_words(a->key, (uint64_t)(first + i) / 2, a->step, 1, &word);
        word = (first + i) % 2 ? word >> 16 : word & 0xffff;
        if (coded && a->stochastic)
            shifted = codec_round_at_random(x[i], 1.0f / scale, codec_offset(word), least, least - 1);
        else if (coded)
            shifted = codec_round(x[i], 1.0f / scale, least, least - 1);
        if (a->codec == CODEC_INT8)
            codes[i] = (uint8_t)codec_code(shifted);
        else
            codes[i / 2] |= (uint8_t)((codec_code(shifted) & 15) << (i % 2 ? 4 : 0));
    }
}

/* Codes (zeroed) and error, both the host's, of all pieces. */
static void encode_here(const struct encode_args *a, uint8_t *codes, uint8_t *error)
{
    const struct codec_places at = codec_places(a->codec, a->n);

    for (int64_t b = 0; b < a->pieces * at.buckets; b++) {
        const int64_t p = b / at.buckets, k = b % at.buckets, begin = k * CODEC_BUCKET;
        const int64_t n = a->n - begin < CODEC_BUCKET ? a->n - begin : CODEC_BUCKET;
        uint8_t *const of = codes + p * at.bytes, *const kept = error ? error + p * at.error_bytes : NULL;
        int8_t *const c = kept ? (int8_t *)kept + at.error_codes + begin : NULL;
        float h[CODEC_BUCKET], was = 0, next = 0;
        if (kept)
            was = ((float *)kept)[k];
        for (int64_t i = 0; i < n; i++)
            h[i] = kept ? fmaf(c[i], was, a->x[p * a->n + begin + i]) : a->x[p * a->n + begin + i];
        const float scale =
            codec_scale(a->codec, a->stochastic, a->largest ? codec_magnitude(a->largest[b]) : largest_of(h, n));
        if (at.codes)
            ((float *)of)[k] = scale;
        for (int64_t i = 0; i < n; i++)
            encode_value(a, h - begin, begin + i, scale, p * a->n, of + at.codes);
        if (!kept)
            continue;
        for (int64_t i = 0; i < n && scale == scale; i++) {
            const uint8_t byte = of[at.codes + (begin + i) / 2];
            const float q = (float)((int)((i % 2 ? byte >> 4 : byte & 15) ^ 8) - 8);
            h[i] = fmaf(c[i], a->decay * was, (1.0f - a->decay) * fmaf(-q, scale, h[i]));
        }
        if (scale == scale)
            next = codec_error_scale(largest_of(h, n));
        ((float *)kept)[k] = next;
        for (int64_t i = 0; i < n; i++)
            c[i] = next > 0 ? codec_code(codec_round(h[i], 1.0f / next, 127, 127)) : 0;
    }
    for (int64_t p = 0; p < a->pieces && error; p++) /* what lies behind the last scale and the last code */
        for (int64_t i = at.buckets * 4; i < at.error_bytes; i++)
            if (i < at.error_codes || i >= at.error_codes + a->n)
                error[p * at.error_bytes + i] = 0;
}

static void decode_here(const struct decode_sum_args *a, float *out)
{
    const struct codec_places at = codec_places(a->codec, a->n);

    for (int64_t i = 0; i < a->n; i++)
        for (int64_t p = 0; p < a->pieces; p++) {
            const uint8_t *const of = a->codes + p * at.bytes, *const c = of + at.codes;
            const float scale = at.codes ? ((const float *)of)[i / CODEC_BUCKET] : 1;
            float v;
            uint16_t half;
            memcpy(&v, c + 4 * (a->codec == CODEC_F32 ? i : 0), 4);
            memcpy(&half, c + 2 * (a->codec == CODEC_BF16 ? i : 0), 2);
            v = a->codec == CODEC_F32    ? v
                : a->codec == CODEC_BF16 ? bf16_to_f32(half)
                : a->codec == CODEC_FP8  ? float8_decode(c[i])
                : a->codec == CODEC_INT8 ? (float)(int8_t)c[i]
                                         : (float)((int)((i % 2 ? c[i / 2] >> 4 : c[i / 2] & 15) ^ 8) - 8);
            if (a->codec == CODEC_F32 || a->codec == CODEC_BF16)
                out[i] = p == 0 ? v : out[i] + v;
            else
                out[i] = p == 0 ? v * scale : fmaf(v, scale, out[i]);
        }
}

/* --- against the device ------------------------------------------------------------------------------------------- */

static void *bytes(struct checker *c, size_t n)
{
    return values(c, (int64_t)(n / sizeof(double)) + 1);
}

static void *to_device(struct checker *c, const void *from, size_t n)
{
    void *const p = device_memory(c, n + 64); /* a guard behind */

    transfer(c, p, from, n, true);
    return p;
}

/* Gradients over seven decades. Buckets of zeros, of tiny, of huge values, and what is not finite (but no NaN where the
 * codec keeps its bits). */
static float *gradients(struct checker *c, int64_t n, bool odd)
{
    float *const x = bytes(c, (size_t)n * sizeof *x);

    for (int64_t i = 0; i < n; i++) {
        const int64_t bucket = i / CODEC_BUCKET;
        x[i] = (float)(uniform(c, -1, 1) * pow(10, uniform(c, -7, 1)));
        if (odd && bucket % 7 == 1)
            x[i] = 0;
        if (odd && bucket % 7 == 2)
            x[i] *= 0x1p-100f;
        if (odd && bucket % 7 == 3)
            x[i] *= 0x1p123f;
        if (odd && bucket % 7 == 4 && i % 997 == 5)
            x[i] = -INFINITY;
    }
    return x;
}

static bool same_floats(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0 && !(a[i] != a[i] && b[i] != b[i]))
            return false;
    return true;
}

static void codec_case(struct checker *c, enum codec codec, bool stochastic, bool given, int64_t pieces, int64_t n,
                       bool odd)
{
    const struct codec_places at = codec_places(codec, n);
    const size_t size = (size_t)(pieces * at.bytes), kept = (size_t)(pieces * at.error_bytes);
    float *const x = gradients(c, pieces * n, odd), *const largest = bytes(c, (size_t)(pieces * at.buckets) * 4);
    uint8_t *const want = bytes(c, size), *const got = bytes(c, size + 16), *const error = bytes(c, kept);
    uint8_t *const error_got = bytes(c, kept);
    float *const sum = bytes(c, (size_t)n * 4), *const sum_got = bytes(c, (size_t)n * 4);
    struct encode_args a = {.codec = codec,
                            .pieces = pieces,
                            .n = n,
                            .stochastic = stochastic,
                            .key = {{(uint32_t)next_random(c), 7}},
                            .step = next_random(c),
                            .decay = codec == CODEC_LOCO ? 0.8f : 0};
    bool codes_ok = true, errors_ok = true;

    for (int64_t b = 0; b < pieces * at.buckets; b++)
        largest[b] = (float)uniform(c, 0.001, 20);
    for (int64_t p = 0; p < pieces && codec == CODEC_LOCO; p++) { /* some error, and bytes behind it */
        for (int64_t k = 0; k < at.buckets; k++)
            ((float *)(void *)(error + p * at.error_bytes))[k] = (float)uniform(c, 0, 0.01);
        for (int64_t i = at.buckets * 4; i < at.error_bytes; i++)
            error[p * at.error_bytes + i] = (uint8_t)next_random(c);
    }
    uint8_t *const codes = device_memory(c, size + 16);
    memset(got, 0xa5, size + 16);
    transfer(c, codes, got, size + 16, true);
    a.codes = codes;
    a.error = codec == CODEC_LOCO ? to_device(c, error, kept) : NULL;
    struct encode_args here = a;
    here.x = x;
    a.x = to_device(c, x, (size_t)(pieces * n) * 4);
    here.largest = given ? largest : NULL;
    a.largest = given ? to_device(c, largest, (size_t)(pieces * at.buckets) * 4) : NULL;
    for (int step = 0; step < (codec == CODEC_LOCO ? 3 : 1); step++) {
        need(c, c->ops->encode(c->s, &a), "encode");
        transfer(c, got, codes, size + 16, false);
        memset(want, 0, size);
        encode_here(&here, want, codec == CODEC_LOCO ? error : NULL);
        codes_ok = codes_ok && memcmp(got, want, size) == 0 && got[size] == 0xa5 && got[size + 15] == 0xa5;
        if (codec == CODEC_LOCO) {
            transfer(c, error_got, a.error, kept, false);
            errors_ok = errors_ok && memcmp(error_got, error, kept) == 0;
        }
    }
    struct decode_sum_args d = {.codec = codec, .codes = codes, .pieces = pieces, .n = n};
    d.out = to_device(c, sum, (size_t)n * 4);
    need(c, c->ops->decode_sum(c->s, &d), "decode_sum");
    transfer(c, sum_got, d.out, (size_t)n * 4, false);
    d.codes = want;
    decode_here(&d, sum);
    const bool sums_ok = same_floats(sum, sum_got, n);
    result(c, codes_ok && errors_ok && sums_ok, "codes %s%s%s, %lld pieces of %lld%s%s%s", codec_row(codec)->name,
           stochastic ? " at random" : "", given ? ", largest given" : "", (long long)pieces, (long long)n,
           codes_ok ? "" : ": other codes", errors_ok ? "" : ": other errors", sums_ok ? "" : ": other sums");
    sweep(c);
}

/* Sums of any bytes. */
static void any_bytes_case(struct checker *c, enum codec codec, int64_t pieces, int64_t n)
{
    const struct codec_places at = codec_places(codec, n);
    const size_t size = (size_t)(pieces * at.bytes);
    uint8_t *const codes = bytes(c, size);
    float *const want = bytes(c, (size_t)n * 4), *const got = bytes(c, (size_t)n * 4);
    bool ok = true;

    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < size; i++)
            codes[i] = (uint8_t)next_random(c);
        for (int64_t p = 0; p < pieces && at.codes; p++)
            for (int64_t k = 0; k < at.buckets; k++)
                if (round > 0)
                    ((float *)(void *)(codes + p * at.bytes))[k] = round == 1 ? NAN : k % 2 ? INFINITY : -0x1p-149f;
        struct decode_sum_args d = {.codec = codec, .codes = to_device(c, codes, size), .pieces = pieces, .n = n};
        d.out = to_device(c, got, (size_t)n * 4);
        need(c, c->ops->decode_sum(c->s, &d), "decode_sum");
        transfer(c, got, d.out, (size_t)n * 4, false);
        d.codes = codes;
        decode_here(&d, want);
        ok = ok && same_floats(want, got, n);
    }
    result(c, ok, "any bytes as codes %s, %lld pieces of %lld", codec_row(codec)->name, (long long)pieces,
           (long long)n);
    sweep(c);
}

static void bucket_largest_case(struct checker *c, int64_t pieces, int64_t n, int64_t tensors, bool with_error)
{
    const struct codec_places at = codec_places(CODEC_LOCO, n);
    const int64_t all = pieces * n, buckets = pieces * at.buckets;
    float *const x = gradients(c, all, tensors % 2), *const want = bytes(c, (size_t)buckets * 4);
    float *const got = bytes(c, (size_t)buckets * 4), *const of_want = bytes(c, (size_t)tensors * 4);
    float *const of_got = bytes(c, (size_t)tensors * 4);
    int64_t *const begins = bytes(c, (size_t)(tensors + 1) * sizeof *begins);
    const size_t kept = (size_t)(pieces * at.error_bytes);
    uint8_t *const error = bytes(c, kept);

    for (size_t i = 0; i < kept; i++)
        error[i] = (uint8_t)(next_random(c) % 256);
    for (int64_t b = 0; b < buckets; b++)
        ((float *)(void *)(error + b / at.buckets * at.error_bytes))[b % at.buckets] = b % 5 ? 0.25f : 0;
    begins[0] = all > 100 ? 17 : 0;
    for (int64_t t = 0; t < tensors; t++) { /* every fifth is empty */
        const int64_t left = all - begins[t], most = 2 * left / (tensors - t);
        begins[t + 1] = begins[t] + (t % 5 == 4 ? 0 : (int64_t)uniform(c, 0, (double)(most < left ? most : left)));
    }
    for (int turn = 0; turn < 2; turn++) /* tensors' magnitudes, then those of buckets */
        for (int64_t b = 0; b < buckets; b++) {
            const int64_t p = b / at.buckets, k = b % at.buckets, begin = k * CODEC_BUCKET;
            const int64_t count = n - begin < CODEC_BUCKET ? n - begin : CODEC_BUCKET, from = p * n + begin;
            const uint8_t *const of = error + p * at.error_bytes;
            float h[CODEC_BUCKET];
            int64_t t = 0;
            while (t < tensors && !(begins[t] <= from && from + count <= begins[t + 1]))
                t++;
            for (int64_t e = 0; e < count; e++)
                h[e] = with_error ? fmaf((int8_t)of[at.error_codes + begin + e], ((const float *)(const void *)of)[k],
                                         x[from + e])
                                  : x[from + e];
            const float most = codec_float(largest_of(h, count));
            if (t < tensors && codec_magnitude(most) > codec_magnitude(of_want[t]))
                of_want[t] = most;
            want[b] = t < tensors ? of_want[t] : most;
        }
    struct bucket_largest_args a = {.x = to_device(c, x, (size_t)all * 4),
                                    .error = with_error ? to_device(c, error, kept) : NULL,
                                    .pieces = pieces,
                                    .n = n,
                                    .begins = begins,
                                    .tensors = tensors,
                                    .largest = device_memory(c, (size_t)buckets * 4),
                                    .of_tensor = device_memory(c, (size_t)tensors * 4)};
    need(c, c->ops->bucket_largest(c->s, &a), "bucket_largest");
    need(c, c->ops->bucket_largest(c->s, &a), "bucket_largest"); /* what was there does not count */
    transfer(c, got, a.largest, (size_t)buckets * 4, false);
    transfer(c, of_got, a.of_tensor, (size_t)tensors * 4, false);
    result(c, memcmp(got, want, (size_t)buckets * 4) == 0 && memcmp(of_got, of_want, (size_t)tensors * 4) == 0,
           "largest of %lld tensors%s, %lld pieces of %lld", (long long)tensors, with_error ? ", with errors" : "",
           (long long)pieces, (long long)n);
    sweep(c);
}

static void refused_case(struct checker *c)
{
    float *const x = device_memory(c, 4096), *const out = device_memory(c, 4096);
    uint8_t *const codes = device_memory(c, 8192), *const error = device_memory(c, 8192);
    int64_t begins[] = {0, 600, 500};
    const struct encode_args wrong[] = {
        {.codec = CODEC_NONE},
        {.codec = CODECS},
        {.codec = CODEC_INT8, .error = error},
        {.codec = CODEC_LOCO},
        {.codec = CODEC_LOCO, .error = error, .decay = 1},
        {.codec = CODEC_LOCO, .error = error, .decay = -0.1f},
        {.codec = CODEC_LOCO, .error = error, .decay = NAN},
        {.codec = CODEC_LOCO, .error = error + 4},
        {.codec = CODEC_LOCO, .error = error, .stochastic = true},
        {.codec = CODEC_FP8, .stochastic = true},
        {.codec = CODEC_INT4, .n = -1},
        {.codec = CODEC_INT4, .pieces = -1},
    };
    bool ok = true;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct encode_args a = wrong[i];
        a.x = x;
        a.codes = codes;
        a.n = a.n ? a.n : 8;
        a.pieces = a.pieces ? a.pieces : 1;
        ok = ok && c->ops->encode(c->s, &a) == TITAN_EINVAL;
    }
    struct encode_args apart = {.codec = CODEC_INT8, .x = x, .codes = codes + 8, .pieces = 1, .n = 8};
    ok = ok && c->ops->encode(c->s, &apart) == TITAN_EINVAL;
    const struct decode_sum_args sums[] = {{.codec = CODEC_NONE, .pieces = 1, .n = 8},
                                           {.codec = CODEC_INT8, .pieces = 0, .n = 8},
                                           {.codec = CODEC_INT8, .pieces = 1, .n = -8}};
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        struct decode_sum_args d = sums[i];
        d.codes = codes;
        d.out = out;
        ok = ok && c->ops->decode_sum(c->s, &d) == TITAN_EINVAL;
    }
    struct bucket_largest_args l = {.x = x, .pieces = 1, .n = 1024, .begins = begins, .tensors = 2};
    l.largest = out;
    l.of_tensor = out + 8;
    ok = ok && c->ops->bucket_largest(c->s, &l) == TITAN_EINVAL;
    begins[2] = 1025; /* more than x has */
    ok = ok && c->ops->bucket_largest(c->s, &l) == TITAN_EINVAL;
    struct encode_args empty_one = {.codec = CODEC_INT8, .x = x, .codes = codes, .pieces = 1, .n = 0};
    need(c, c->ops->encode(c->s, &empty_one), "encode of nothing");
    need(c, c->ops->decode_sum(c->s, ARGS(decode_sum, .codec = CODEC_INT8, .codes = codes, .out = out, .pieces = 1)),
         "decode_sum of nothing");
    result(c, ok, "codes that are refused");
    sweep(c);
}

void device_codecs_check(struct checker *c)
{
    static const struct {
        int64_t pieces, n;
    } sizes[] = {{1, 1}, {2, 7}, {3, 1023}, {2, 1024}, {2, 7 * 1024}, {3, 1032}, {2, 5 * 1024 + 1}, {1, 40000}};

    for (int codec = CODEC_F32; codec < CODECS; codec++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            const bool scaled = codec_row((enum codec)codec)->scaled, random = codec_row((enum codec)codec)->stochastic;
            codec_case(c, (enum codec)codec, false, false, sizes[i].pieces, sizes[i].n, i >= 4);
            if (random)
                codec_case(c, (enum codec)codec, true, false, sizes[i].pieces, sizes[i].n, i >= 4);
            if (scaled && i % 2)
                codec_case(c, (enum codec)codec, random && i % 4 == 1, true, sizes[i].pieces, sizes[i].n, false);
        }
    for (int codec = CODEC_F32; codec < CODECS; codec++) {
        any_bytes_case(c, (enum codec)codec, 5, 1 + (int64_t)(next_random(c) % 3000));
        any_bytes_case(c, (enum codec)codec, 1, 2048);
    }
    bucket_largest_case(c, 1, 1, 1, false);
    bucket_largest_case(c, 2, 5000, 3, false);
    bucket_largest_case(c, 2, 5000, 3, true);
    bucket_largest_case(c, 4, 3001, 7, true);
    bucket_largest_case(c, 3, 20000, 0, false);
    bucket_largest_case(c, 3, 200000, 300, false);
    bucket_largest_case(c, 3, 20000, 300, false);
    bucket_largest_case(c, 3, 20000, 300, true);
    refused_case(c);
}
