/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in few bits against NumPy, bit for bit, by the CPU's operations. Values:
 * tests/golden/weight_codes_reference.py. Besides, with buckets as large as a run's: the bound of the error, an outlier
 * that touches its own bucket alone, means over shifts, and pieces of any bytes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "tests/support/seeded.h"
#include "worker/device/device.h"

#define N (3 * WEIGHT_BUCKET + 64)

static struct device_handle device;
static struct stream *stream;

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err ? err->msg : "");
}

static int open_device(void **state)
{
    struct titan_error err = {0};

    (void)state;
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    must(device_open("cpu", &(struct device_options){.threads = 2}, &device, &err), &err);
    must(device.ops->stream_open(device.dev, "compute", true, &stream, &err), &err);
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    device.ops->stream_close(stream);
    device_close(&device);
    return 0;
}

/* Codes of x, and what they decode to; both in memory of the caller. */
static void there_and_back(const struct weight_encode_args *a, float *ret)
{
    must(device.ops->weight_encode(stream, a), NULL);
    must(device.ops->weight_decode(stream, ARGS(weight_decode, .out = ret, .codes = a->codes, .dt = DTYPE_F32,
                                                .codec = a->codec, .pieces = 1, .n = a->n, .bucket = a->bucket)),
         NULL);
    must(device.ops->stream_sync(stream, NULL), NULL);
}

static uint8_t *piece_of(enum weight_codec codec, int64_t n, int64_t bucket, size_t *ret_bytes)
{
    uint8_t *p = NULL;

    *ret_bytes = (size_t)weight_codes_bytes(codec, n, bucket);
    assert_int_equal(posix_memalign((void **)&p, 64, *ret_bytes + 64), 0);
    memset(p, 0xa5, *ret_bytes + 64);
    return p;
}

static struct json *reference(void)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct titan_error err = {0};
    struct json *file = NULL;

    must(file_read(TITAN_SOURCE_DIR "/tests/golden/weight_codes.json", 4 << 20, &text, &err), &err);
    must(json_parse(text.data, text.len, &file, &err), &err);
    return file;
}

static float bits_of(const struct json *v)
{
    const uint32_t bits = (uint32_t)v->integer;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static void test_pieces(void **state)
{
    struct json *const file = reference();
    int cases = 0;

    (void)state;
    for (const struct json *c = json_get(file, "pieces")->first; c; c = c->next, cases++) {
        float x[512], decoded[512];
        struct weight_encode_args a = {.x = x,
                                       .dt = DTYPE_F32,
                                       .codec = weight_codec_find(json_string(c, "codec", "")),
                                       .bucket = json_get(c, "bucket")->integer,
                                       .shift = bits_of(json_get(c, "shift"))};
        for (const struct json *v = json_get(c, "values")->first; v; v = v->next)
            x[a.n++] = bits_of(v);
        for (const struct json *r = json_get(c, "runs")->first; r; r = r->next)
            a.run[a.runs++] = (struct weight_run){r->first->integer, r->first->next->integer};
        size_t bytes;
        _cleanup_free_ uint8_t *codes = a.codes = piece_of(a.codec, a.n, a.bucket, &bytes);
        there_and_back(&a, decoded);
        const char *const want = json_string(c, "piece", ""), *const kind = json_string(c, "kind", "");
        assert_int_equal(strlen(want), 2 * bytes);
        for (size_t i = 0; i < bytes; i++) {
            char hex[3];
            (void)snprintf(hex, sizeof hex, "%02x", codes[i]);
            /* NaN has many bits */
            if (memcmp(hex, want + 2 * i, 2) != 0 && strcmp(kind, "nan") != 0 && strcmp(kind, "infinite") != 0 &&
                strcmp(kind, "wide") != 0)
                fail_msg("case %d, %s: byte %zu is %s, should be %.2s", cases, kind, i, hex, want + 2 * i);
        }
        for (int i = 0; i < 64; i++)
            assert_int_equal(codes[bytes + (size_t)i], 0xa5);
        int i = 0;
        for (const struct json *v = json_get(c, "decoded")->first; v; v = v->next, i++) {
            const float y = bits_of(v);
            if (!(isnan(y) && isnan(decoded[i])) && memcmp(&y, &decoded[i], sizeof y) != 0)
                fail_msg("case %d, %s: value %d is %a, should be %a", cases, kind, i, (double)decoded[i], (double)y);
        }
    }
    assert_true(cases >= 27);
    json_free(file);
}

static void test_shifts(void **state)
{
    struct json *const file = reference();
    double sum = 0;

    (void)state;
    for (const struct json *c = json_get(file, "shifts")->first; c; c = c->next) {
        const float got = weight_shift((uint64_t)json_get(c, "seed")->integer, (uint64_t)json_get(c, "step")->integer,
                                       (int)json_get(c, "unit")->integer);
        assert_true(got == bits_of(json_get(c, "shift")));
    }
    for (uint64_t step = 0; step < 100000; step++) {
        const float shift = weight_shift(1, step, 3);
        assert_true(shift > 0 && shift < 1);
        sum += (double)shift;
    }
    assert_true(fabs(sum / 100000 - 0.5) < 5 * 0.2887 / 316); /* five standard errors */
    json_free(file);
}

static void fill(float *x, uint64_t seed)
{
    unsigned draw = (unsigned)seed;

    for (int i = 0; i < N; i++)
        x[i] = (float)(rand_r(&draw) % 20001 - 10000) * 3e-6f * (float)(1 + i / WEIGHT_BUCKET);
}

/* No value is further away than half a unit, and an outlier makes only its own bucket coarse. */
static void test_error(void **state)
{
    static float x[N] __attribute__((aligned(64))), y[N] __attribute__((aligned(64))),
        z[N] __attribute__((aligned(64)));
    const uint64_t seed = seeded_seed(0);

    (void)state;
    fill(x, seed);
    for (enum weight_codec codec = WEIGHTS_INT8; codec < WEIGHT_CODECS; codec++) {
        size_t bytes;
        _cleanup_free_ uint8_t *codes = piece_of(codec, N, WEIGHT_BUCKET, &bytes);
        const struct weight_encode_args a = {.codes = codes,
                                             .x = x,
                                             .dt = DTYPE_F32,
                                             .codec = codec,
                                             .n = N,
                                             .bucket = WEIGHT_BUCKET,
                                             .shift = weight_shift(seed, 1, (int)codec)};
        const struct weight_bucket *const numbers = (const void *)codes;
        there_and_back(&a, y);
        /* 8 numbers of 8 bytes, and the codes: N is a multiple of 32 values */
        assert_int_equal(bytes, 4 * 8 + (size_t)(N * weight_bits(codec) / 8));
        for (int i = 0; i < N; i++)
            assert_true(fabsf(y[i] - x[i]) <= 0.5001f * numbers[i / WEIGHT_BUCKET].unit);
        x[WEIGHT_BUCKET + 7] = 5;
        there_and_back(&a, z);
        x[WEIGHT_BUCKET + 7] = 0;
        int others = 0;
        for (int i = 0; i < N; i++)
            others += i / WEIGHT_BUCKET != 1 ? memcmp(&y[i], &z[i], sizeof y[i]) != 0 : 0;
        assert_int_equal(others, 0);
        assert_true(numbers[1].unit > 50 * numbers[0].unit && fabsf(z[WEIGHT_BUCKET + 7] - 5) <= numbers[1].unit);
    }
}

/* The mean over shifts is the value. */
static void test_unbiased(void **state)
{
    enum { SHIFTS = 4000 };
    static float x[N] __attribute__((aligned(64))), y[N] __attribute__((aligned(64)));
    const uint64_t seed = seeded_seed(0);

    (void)state;
    fill(x, seed);
    for (enum weight_codec codec = WEIGHTS_INT8; codec < WEIGHT_CODECS; codec++) {
        size_t bytes;
        _cleanup_free_ uint8_t *codes = piece_of(codec, N, WEIGHT_BUCKET, &bytes);
        _cleanup_free_ double *mean = calloc(N, sizeof *mean);
        const struct weight_bucket *const numbers = (const void *)codes;
        struct weight_encode_args a = {
            .codes = codes, .x = x, .dt = DTYPE_F32, .codec = codec, .n = N, .bucket = WEIGHT_BUCKET};
        for (uint64_t step = 0; step < SHIFTS; step++) {
            a.shift = weight_shift(seed, step, 0);
            there_and_back(&a, y);
            for (int i = 0; i < N; i++)
                mean[i] += (double)(y[i] - x[i]) / SHIFTS;
        }
        /* An error is uniform over a unit. All values have the same shifts, so few means are independent: six standard
         * errors. */
        for (int i = 0; i < N; i++)
            if (fabs(mean[i]) > 6 * 0.2887 / sqrt(SHIFTS) * (double)numbers[i / WEIGHT_BUCKET].unit)
                fail_msg("%d bits: value %d is off by %g units", weight_bits(codec), i,
                         mean[i] / (double)numbers[i / WEIGHT_BUCKET].unit);
    }
}

/* Any bytes decode, to fp32 and bf16, and nothing is written behind the values. */
static void test_any_bytes(void **state)
{
    unsigned draw = (unsigned)seeded_seed(0);

    (void)state;
    for (int round = 0; round < 300; round++) {
        const enum weight_codec codec = (enum weight_codec)(1 + round % 3);
        const int64_t n = 1 + rand_r(&draw) % N, bucket = WEIGHT_BUCKET_MIN * (1 + rand_r(&draw) % 16);
        const enum dtype dt = rand_r(&draw) % 2 ? DTYPE_BF16 : DTYPE_F32;
        size_t bytes;
        _cleanup_free_ uint8_t *codes = piece_of(codec, n, bucket, &bytes);
        _cleanup_free_ uint8_t *out = malloc((size_t)n * dtype_bytes(dt) + 8);
        for (size_t i = 0; i < bytes; i++)
            codes[i] = (uint8_t)rand_r(&draw);
        memset(out, 0x5a, (size_t)n * dtype_bytes(dt) + 8);
        must(device.ops->weight_decode(stream, ARGS(weight_decode, .out = out, .codes = codes, .dt = dt, .codec = codec,
                                                    .pieces = 1, .n = n, .bucket = bucket)),
             NULL);
        must(device.ops->stream_sync(stream, NULL), NULL);
        for (int i = 0; i < 8; i++)
            assert_int_equal(out[(size_t)n * dtype_bytes(dt) + (size_t)i], 0x5a);
    }
}

/* Learned levels: the reference's counts, table, codes and values. The second rank's counts lie behind a gap. */
static void test_learned(void **state)
{
    enum { LD = WEIGHT_BINS + 7 };
    struct json *const file = reference();
    int cases = 0;

    (void)state;
    for (const struct json *c = json_get(file, "learned")->first; c; c = c->next, cases++) {
        static float x[N] __attribute__((aligned(64))), y[N] __attribute__((aligned(64)));
        static int32_t counts[LD + WEIGHT_BINS], own[WEIGHT_BINS];
        float table[2 * WEIGHT_LEVELS];
        struct weight_encode_args a = {.x = x,
                                       .dt = DTYPE_F32,
                                       .codec = weight_codec_find(json_string(c, "codec", "")),
                                       .bucket = json_get(c, "bucket")->integer,
                                       .table = table};
        int rank = 0, entry = 0, at = 0;
        size_t bytes;
        for (const struct json *v = json_get(c, "values")->first; v; v = v->next)
            x[a.n++] = bits_of(v);
        for (const struct json *r = json_get(c, "counts")->first; r; r = r->next, rank++, at = 0)
            for (const struct json *v = r->first; v; v = v->next)
                counts[rank * LD + at++] = (int32_t)v->integer;
        memset(own, 0, sizeof own);
        must(device.ops->weight_count(stream, own, &a), NULL);
        must(device.ops->weight_learn(stream, ARGS(weight_learn, .table = table, .counts = counts, .ranks = 2, .ld = LD,
                                                   .codec = a.codec, .shift = bits_of(json_get(c, "shift")))),
             NULL);
        _cleanup_free_ uint8_t *codes = a.codes = piece_of(a.codec, a.n, a.bucket, &bytes);
        must(device.ops->weight_encode(stream, &a), NULL);
        must(device.ops->weight_decode(stream,
                                       ARGS(weight_decode, .out = y, .codes = codes, .dt = DTYPE_F32, .codec = a.codec,
                                            .table = table, .pieces = 1, .n = a.n, .bucket = a.bucket)),
             NULL);
        must(device.ops->stream_sync(stream, NULL), NULL);
        assert_memory_equal(own, counts, sizeof own);
        for (const struct json *v = json_get(c, "table")->first; v; v = v->next, entry++) {
            const float want = bits_of(v);
            if (memcmp(&want, &table[entry], sizeof want) != 0)
                fail_msg("case %d: entry %d is %a, should be %a", cases, entry, (double)table[entry], (double)want);
        }
        assert_int_equal(entry, 2 << weight_bits(a.codec));
        const char *const want = json_string(c, "piece", "");
        assert_int_equal(strlen(want), 2 * bytes);
        for (size_t i = 0; i < bytes; i++) {
            char hex[3];
            (void)snprintf(hex, sizeof hex, "%02x", codes[i]);
            if (memcmp(hex, want + 2 * i, 2) != 0)
                fail_msg("case %d: byte %zu is %s, should be %.2s", cases, i, hex, want + 2 * i);
        }
        at = 0;
        for (const struct json *v = json_get(c, "decoded")->first; v; v = v->next, at++) {
            const float value = bits_of(v);
            assert_memory_equal(&value, &y[at], sizeof value);
        }
        assert_int_equal(at, a.n);
    }
    assert_int_equal(cases, 4);
    json_free(file);
}

/* Any counts of other ranks give finite levels in order, and any codes finite values by them. */
static void test_any_counts(void **state)
{
    unsigned draw = (unsigned)seeded_seed(0);

    (void)state;
    for (int round = 0; round < 100; round++) {
        static int32_t counts[3 * WEIGHT_BINS];
        const enum weight_codec codec = round % 2 ? WEIGHTS_INT6 : WEIGHTS_INT4;
        const int n = 1 << weight_bits(codec);
        float table[2 * WEIGHT_LEVELS], out[WEIGHT_BUCKET];
        struct weight_bucket *numbers;
        size_t bytes;
        for (int i = 0; i < 3 * WEIGHT_BINS; i++) /* none, few, many, and those of a rank that lies */
            counts[i] = round < 2 ? 0 : round < 40 && rand_r(&draw) % 50 ? 0 : (int32_t)((unsigned)rand_r(&draw) * 3u);
        must(device.ops->weight_learn(stream, ARGS(weight_learn, .table = table, .counts = counts, .ranks = 3,
                                                   .ld = WEIGHT_BINS, .codec = codec,
                                                   .shift = weight_shift(1, (uint64_t)round, 0))),
             NULL);
        _cleanup_free_ uint8_t *codes = piece_of(codec, WEIGHT_BUCKET, WEIGHT_BUCKET, &bytes);
        for (size_t i = 0; i < bytes; i++)
            codes[i] = (uint8_t)rand_r(&draw);
        numbers = (void *)codes;
        *numbers = (struct weight_bucket){-1.0f, 2.0f};
        must(device.ops->weight_decode(stream,
                                       ARGS(weight_decode, .out = out, .codes = codes, .dt = DTYPE_F32, .codec = codec,
                                            .table = table, .pieces = 1, .n = WEIGHT_BUCKET, .bucket = WEIGHT_BUCKET)),
             NULL);
        must(device.ops->stream_sync(stream, NULL), NULL);
        for (int j = 1; j < n; j++)
            assert_true(table[n + j] >= table[n + j - 1] && (j == 1 || table[j] >= table[j - 1]));
        assert_true(table[n] > -1 && table[2 * n - 1] < 2);
        for (int i = 0; i < WEIGHT_BUCKET; i++)
            assert_true(out[i] >= -3 && out[i] <= 3);
    }
    assert_int_equal(device.ops->weight_learn(stream, ARGS(weight_learn, .codec = WEIGHTS_INT8, .ld = WEIGHT_BINS)),
                     TITAN_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces),    cmocka_unit_test(test_shifts),
                                       cmocka_unit_test(test_error),     cmocka_unit_test(test_unbiased),
                                       cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_learned),
                                       cmocka_unit_test(test_any_counts)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
