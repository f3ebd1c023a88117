/* SPDX-License-Identifier: Apache-2.0 */
/* device_weights.c - weights in few bits: each device makes the bits of base/weight_codes.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device_checker.h"
#include "support/device_ops.h"

/* A piece by the header's functions, value by value. counts, if not NULL, gets where the values lie (weight_count). */
static void encode_simply(const struct weight_encode_args *a, const double *x, uint8_t *ret, int32_t *counts)
{
    const int bits = weight_bits(a->codec);

    memset(ret, 0, (size_t)weight_codes_bytes(a->codec, a->n, a->bucket));
    for (int64_t k = 0; k < weight_buckets(a->n, a->bucket); k++) {
        const int64_t from = k * a->bucket, to = from + a->bucket < a->n ? from + a->bucket : a->n;
        int32_t low = INT32_MAX, high = INT32_MIN;
        struct weight_scale scale;
        bool coded[WEIGHT_BUCKET];
        for (int64_t i = from; i < to; i++) {
            coded[i - from] = true;
            for (int r = 0; r < a->runs; r++)
                coded[i - from] = coded[i - from] && (i < a->run[r].from || i >= a->run[r].to);
            const int32_t order = weight_order((float)x[i]);
            low = coded[i - from] && order < low ? order : low;
            high = coded[i - from] && order > high ? order : high;
        }
        const struct weight_bucket b = a->table || counts ? weight_bucket_by(low, high, &scale)
                                                          : weight_bucket_of(low, high, a->codec, a->shift, &scale);
        memcpy(ret + k * (int64_t)sizeof b, &b, sizeof b);
        for (int64_t i = from; i < to; i++) {
            const bool has_code = coded[i - from] && scale.inverse > 0;
            const int32_t code = !has_code  ? 0
                                 : a->table ? weight_encode_by((float)x[i], &scale, a->table, 1 << bits)
                                            : weight_encode((float)x[i], &scale);
            if (has_code && counts)
                counts[weight_bin((float)x[i], &scale)]++;
            for (int bit = 0; bit < bits; bit++)
                ret[weight_codes_begin(a->n, a->bucket) + (i * bits + bit) / 8] |=
                    (uint8_t)((code >> bit & 1) << (i * bits + bit) % 8);
        }
    }
}

static void decode_simply(const struct weight_decode_args *a, const uint8_t *codes, double *ret)
{
    const int bits = weight_bits(a->codec);

    for (int64_t p = 0; p < a->pieces; p++) {
        const uint8_t *const piece = codes + p * weight_codes_bytes(a->codec, a->n, a->bucket);
        for (int64_t i = 0; i < a->n; i++) {
            struct weight_bucket b;
            uint32_t code = 0;
            memcpy(&b, piece + i / a->bucket * (int64_t)sizeof b, sizeof b);
            for (int bit = 0; bit < bits; bit++)
                code |= (uint32_t)(piece[weight_codes_begin(a->n, a->bucket) + (i * bits + bit) / 8] >>
                                       (i * bits + bit) % 8 &
                                   1)
                        << bit;
            const float y = a->table ? weight_decode_by(code, b, a->table, 1 << bits) : weight_decode(code, b);
            ret[p * a->n + i] = (double)(a->dt == DTYPE_BF16 ? from_bf16(to_bf16(y)) : y);
        }
    }
}

/* The table that counts of two ranks give, by the header's functions. */
static void learn_simply(const int32_t *counts, enum weight_codec codec, float shift, float *table)
{
    struct weight_sums sums[WEIGHT_BINS + 1] = {{0, 0}};
    float level[2][WEIGHT_LEVELS];
    const int n = 1 << weight_bits(codec);

    for (int b = 0; b < WEIGHT_BINS; b++)
        sums[b + 1] = weight_sums_next(sums[b], b, (double)counts[b] + (double)counts[WEIGHT_BINS + b]);
    for (int j = 0; j < n; j++)
        level[0][j] = weight_level_first(sums, j, n);
    for (int turn = 0; turn < WEIGHT_TURNS; turn++)
        for (int j = 0; j < n; j++)
            level[(turn + 1) % 2][j] = weight_level(sums, level[turn % 2], j, n);
    for (int j = 0; j < n; j++)
        weight_table(level[WEIGHT_TURNS % 2], j, n, shift, table);
}

static void learned_case(struct checker *c, enum dtype dt, enum weight_codec codec, int64_t n, int64_t bucket, int runs)
{
    const size_t bytes = (size_t)weight_codes_bytes(codec, n, bucket), counted = 2 * WEIGHT_BINS * sizeof(int32_t);
    struct tensor x = noise(c, n, dt, 0.02), out = empty(c, n, dt);
    uint8_t *const codes = device_memory(c, bytes), *const got = malloc(bytes), *const want = malloc(bytes);
    int32_t *const counts = device_memory(c, counted), seen[2 * WEIGHT_BINS] = {0}, right[2 * WEIGHT_BINS] = {0};
    float *const table = device_memory(c, 2 * WEIGHT_LEVELS * sizeof(float)), learned[2 * WEIGHT_LEVELS],
                 levels[2 * WEIGHT_LEVELS];
    const size_t entries = (2u << weight_bits(codec)) * sizeof(float);
    const float shift = (float)uniform(c, 0.001, 0.999);
    struct weight_encode_args a = {
        .codes = codes, .x = x.p, .dt = dt, .codec = codec, .n = n, .bucket = bucket, .runs = runs};

    for (int r = 0; r < runs; r++)
        a.run[r] = (struct weight_run){n * r / runs + (r % 2 ? 0 : 5), n * r / runs + n / (3 * runs) + 7};
    for (int b = 0; b < WEIGHT_BINS; b++)
        right[WEIGHT_BINS + b] = b % 5;
    transfer(c, counts, right, counted, true);
    need(c, c->ops->weight_count(c->s, counts, &a), "weight_count");
    encode_simply(&a, x.x, want, right);
    need(c,
         c->ops->weight_learn(
             c->s,
             &(struct weight_learn_args){
                 .table = table, .counts = counts, .ranks = 2, .ld = WEIGHT_BINS, .codec = codec, .shift = shift}),
         "weight_learn");
    learn_simply(right, codec, shift, levels);
    a.table = table;
    need(c, c->ops->weight_encode(c->s, &a), "weight_encode");
    struct weight_decode_args d = {
        .out = out.p, .codes = codes, .dt = dt, .codec = codec, .table = table, .pieces = 1, .n = n, .bucket = bucket};
    need(c, c->ops->weight_decode(c->s, &d), "weight_decode");
    sync_stream(c);
    transfer(c, got, codes, bytes, false);
    transfer(c, seen, counts, counted, false);
    transfer(c, learned, table, entries, false);
    a.table = d.table = levels;
    encode_simply(&a, x.x, want, NULL);
    double *const decoded = values(c, n);
    decode_simply(&d, want, decoded);
    const bool counts_alike = memcmp(seen, right, counted) == 0, levels_alike = memcmp(learned, levels, entries) == 0;
    const bool codes_alike = memcmp(got, want, bytes) == 0;
    const bool back = same(c, download(c, &out), decoded, n, "decoded weights");
    result(c, counts_alike && levels_alike && codes_alike && back,
           "learned levels in %d bits, %s, %lld by %lld, %d runs%s", weight_bits(codec), name_of(dt), (long long)n,
           (long long)bucket, runs,
           !counts_alike   ? ": other counts"
           : !levels_alike ? ": other levels"
           : !codes_alike  ? ": other codes"
                           : "");
    free(got);
    free(want);
    sweep(c);
}

static void piece_case(struct checker *c, enum dtype dt, enum weight_codec codec, int64_t n, int64_t bucket, int runs)
{
    enum { PIECES = 3 };
    const size_t bytes = (size_t)weight_codes_bytes(codec, n, bucket);
    struct tensor x = noise(c, n, dt, 0.02), out = empty(c, PIECES * n, dt);
    uint8_t *const codes = device_memory(c, PIECES * bytes + 16);
    uint8_t *const got = malloc(PIECES * bytes + 16), *const want = malloc(PIECES * bytes + 16);
    struct weight_encode_args a = {
        .x = x.p, .dt = dt, .codec = codec, .n = n, .bucket = bucket, .runs = runs, .shift = 0.25f};

    memset(want, 0xa5, PIECES * bytes + 16);
    transfer(c, codes, want, PIECES * bytes + 16, true);
    for (int r = 0; r < runs; r++)
        a.run[r] = (struct weight_run){n * r / runs + (r % 2 ? 0 : 5), n * r / runs + n / (3 * runs) + 7};
    for (int p = 0; p < PIECES; p++) {
        a.codes = codes + (size_t)p * bytes;
        a.shift = (float)uniform(c, 0.001, 0.999);
        need(c, c->ops->weight_encode(c->s, &a), "weight_encode");
        encode_simply(&a, x.x, want + (size_t)p * bytes, NULL);
    }
    const struct weight_decode_args d = {
        .out = out.p, .codes = codes, .dt = dt, .codec = codec, .pieces = PIECES, .n = n, .bucket = bucket};
    need(c, c->ops->weight_decode(c->s, &d), "weight_decode");
    sync_stream(c);
    transfer(c, got, codes, PIECES * bytes + 16, false);
    double *const decoded = values(c, PIECES * n);
    decode_simply(&d, want, decoded);
    const bool alike = memcmp(got, want, PIECES * bytes + 16) == 0;
    const bool back = same(c, download(c, &out), decoded, PIECES * n, "decoded weights");
    result(c, alike && back, "weights in %d bits, %s, %lld by %lld, %d runs%s", weight_bits(codec), name_of(dt),
           (long long)n, (long long)bucket, runs, alike ? "" : ": other codes");
    free(got);
    free(want);
    sweep(c);
}

void device_weights_check(struct checker *c)
{
    for (enum weight_codec codec = WEIGHTS_INT8; codec < WEIGHT_CODECS; codec++)
        for (int dt = 0; dt < 2; dt++) {
            piece_case(c, both[dt], codec, 1, WEIGHT_BUCKET, 0);
            piece_case(c, both[dt], codec, 64, 64, 0);
            piece_case(c, both[dt], codec, 4096, WEIGHT_BUCKET, 0);
            piece_case(c, both[dt], codec, 5003, WEIGHT_BUCKET, 3);
            piece_case(c, both[dt], codec, 3 * 128 + 5, 128, WEIGHT_RUNS);
            if (codec == WEIGHTS_INT8)
                continue;
            learned_case(c, both[dt], codec, 1, WEIGHT_BUCKET, 0);
            learned_case(c, both[dt], codec, 4096, WEIGHT_BUCKET, 0);
            learned_case(c, both[dt], codec, 5003, 128, 3);
        }
    const float some = 0;
    const struct weight_encode_args wrong[] = {{.dt = DTYPE_F32, .codec = WEIGHTS_WHOLE, .bucket = 64},
                                               {.dt = DTYPE_I32, .codec = WEIGHTS_INT8, .bucket = 64},
                                               {.dt = DTYPE_F32, .codec = WEIGHTS_INT8, .bucket = 100},
                                               {.dt = DTYPE_F32, .codec = WEIGHTS_INT8, .bucket = 2048},
                                               {.dt = DTYPE_F32, .codec = WEIGHTS_INT8, .bucket = 64, .table = &some},
                                               {.dt = DTYPE_F32, .codec = WEIGHTS_INT8, .bucket = 64, .runs = 13}};
    bool refused = true;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused = refused && c->ops->weight_encode(c->s, &wrong[i]) == TITAN_EINVAL;
    result(c, refused, "weights in forms that no codec has are refused");
}
