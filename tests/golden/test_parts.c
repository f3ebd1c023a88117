/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of directions that replicas send each other, on the CPU (TITAN_TEST_DEVICE names another device), against their
 * references: what each of three ranks sends and keeps, and the direction of all. Values:
 * tests/golden/parts_reference.py. The bits for any number of threads, and what a NaN does. */
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
#include "base/rng.h"
#include "worker/device/device.h"
#include "worker/device/parts.h"

enum { N_MOST = 1 << 16, RANKS = 3 };

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

/* A device with memory for the ranks of one case. */
struct bench {
    struct device_handle d;
    struct stream *s;
    float *x, *residual, *out;
    char *sent; /* of all ranks */
};

static void bench_open(struct bench *b, int threads)
{
    const char *const name = getenv("TITAN_TEST_DEVICE");
    struct titan_error err = {0};

    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    must(device_open(name ? name : "cpu", &(struct device_options){.threads = threads}, &b->d, &err), &err);
    must(b->d.ops->stream_open(b->d.dev, "compute", true, &b->s, &err), &err);
    must(b->d.ops->alloc(b->d.dev, N_MOST * sizeof(float), (void **)&b->x, &err), &err);
    must(b->d.ops->alloc(b->d.dev, N_MOST * sizeof(float), (void **)&b->residual, &err), &err);
    must(b->d.ops->alloc(b->d.dev, N_MOST * sizeof(float), (void **)&b->out, &err), &err);
    must(b->d.ops->alloc(b->d.dev, RANKS * N_MOST * 5, (void **)&b->sent, &err), &err);
}

static void bench_close(struct bench *b)
{
    b->d.ops->release(b->d.dev, b->x);
    b->d.ops->release(b->d.dev, b->residual);
    b->d.ops->release(b->d.dev, b->out);
    b->d.ops->release(b->d.dev, b->sent);
    b->d.ops->stream_close(b->s);
    device_close(&b->d);
}

static void move(const struct bench *b, void *dst, const void *src, size_t bytes)
{
    struct titan_error err = {0};

    must(b->d.ops->copy(b->s, dst, src, bytes), &err);
    must(b->d.ops->stream_sync(b->s, &err), &err);
}

/* What a rank sends goes to its place among all ranks'; x becomes what it keeps. */
static void extract(const struct bench *b, const struct parts_shape *z, int rank, float *x, const float *residual,
                    float scale, float beta, int64_t n)
{
    struct titan_error err = {0};

    move(b, b->x, x, (size_t)n * sizeof *x);
    move(b, b->residual, residual, (size_t)n * sizeof *x);
    must(b->d.ops->parts_extract(b->s, ARGS(parts_extract, .x = b->x, .residual = b->residual,
                                            .sent = b->sent + rank * parts_bytes(z, n), .shape = *z, .scale = scale,
                                            .beta = beta, .n = (size_t)n)),
         &err);
    move(b, x, b->x, (size_t)n * sizeof *x);
}

static void combine(const struct bench *b, const struct parts_shape *z, bool sign, float *out, int64_t n)
{
    struct titan_error err = {0};

    must(b->d.ops->parts_combine(b->s, ARGS(parts_combine, .out = b->out, .received = b->sent, .shape = *z,
                                            .ranks = RANKS, .sign = sign, .n = (size_t)n)),
         &err);
    move(b, out, b->out, (size_t)n * sizeof *out);
}

static int64_t read_numbers(const struct json *list, float *ret)
{
    int64_t n = 0;

    for (const struct json *v = list->first; v; v = v->next) {
        assert_true(n < N_MOST);
        ret[n++] = (float)(v->type == JSON_INT ? (double)v->integer : v->real);
    }
    return n;
}

static void near(const char *what, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 2e-6f))
            fail_msg("%s: element %ld is %.9g, should be %.9g", what, (long)i, (double)got[i], (double)want[i]);
}

static enum parts_method method_of(const char *name)
{
    static const char *const names[] = {"demo", "random", "striding", "full"};

    for (int i = 0; i < (int)ARRAY_SIZE(names); i++)
        if (strcmp(names[i], name) == 0)
            return (enum parts_method)i;
    fail_msg("no method %s", name);
    return PARTS_ALL;
}

static void test_references(void **state)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct titan_error err = {0};
    struct json *file = NULL;
    struct bench b;
    static float x[N_MOST], residual[N_MOST], want[N_MOST], got[N_MOST];
    static char sent[5 * N_MOST];
    int cases = 0;

    (void)state;
    bench_open(&b, 2);
    must(file_read(TITAN_SOURCE_DIR "/tests/golden/parts.json", 4 << 20, &text, &err), &err);
    must(json_parse(text.data, text.len, &file, &err), &err);
    const float beta = (float)json_get(file, "beta")->real, scale = (float)json_get(file, "scale")->real;
    for (const struct json *c = json_get(file, "cases")->first; c; c = c->next, cases++) {
        struct parts_shape z = {.method = method_of(json_string(c, "method", "")),
                                .kept = (int)json_int(c, "kept", 0),
                                .dt = strcmp(json_string(c, "dtype", ""), "bfloat16") == 0 ? DTYPE_BF16 : DTYPE_F32,
                                .first = json_int(file, "first", 0),
                                .word = (uint64_t)json_int(file, "word", 0)};
        int rank = 0;
        int64_t n = 0;
        for (const struct json *r = json_get(c, "ranks")->first; r; r = r->next, rank++) {
            n = read_numbers(json_get(r, "gradient"), x);
            assert_int_equal(read_numbers(json_get(r, "residual"), residual), n);
            assert_int_equal(read_numbers(json_get(r, "after"), want), n);
            extract(&b, &z, rank, x, residual, scale, beta, n);
            near("residual", x, want, n);
            move(&b, sent, b.sent + rank * parts_bytes(&z, n), (size_t)parts_bytes(&z, n));
            const struct json *numbers = json_get(r, "numbers")->first, *values = json_get(r, "values")->first;
            for (int64_t at = 0; numbers; numbers = numbers->next, values = values->next, at += z.kept) {
                for (int i = 0; i < z.kept; i++)
                    got[i] = z.dt == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)(const void *)sent)[at + i])
                                                : ((const float *)(const void *)sent)[at + i];
                assert_int_equal(read_numbers(values, want), z.kept);
                near("values", got, want, z.kept);
                assert_int_equal(read_numbers(numbers, want), z.kept);
                for (int i = 0; i < z.kept; i++)
                    assert_int_equal((int)want[i], z.method == PARTS_DCT ? sent[parts_numbers(&z, n) + at + i]
                                                                         : parts_place(&z, at / z.kept, i));
            }
        }
        assert_int_equal(rank, RANKS);
        assert_int_equal(read_numbers(json_get(c, "direction"), want), n);
        combine(&b, &z, false, got, n);
        near("direction", got, want, n);
        combine(&b, &z, true, got, n);
        for (int64_t i = 0; i < n; i++)
            if (fabsf(want[i]) > 2e-6f || want[i] == 0)
                assert_true(got[i] == (float)((want[i] > 0) - (want[i] < 0)) || (want[i] == 0 && fabsf(got[i]) == 1));
    }
    assert_true(cases >= 8);
    json_free(file);
    bench_close(&b);
}

/* Fills with numbers of a seed. */
static void draw(float *x, int64_t n, uint64_t seed)
{
    rng_normals(rng_key(seed, "parts"), 0, (uint64_t)n, x);
}

static void test_threads(void **state)
{
    static float x[2][N_MOST], residual[N_MOST], out[2][N_MOST];
    static char sent[2][RANKS * N_MOST * 5];

    (void)state;
    if (getenv("TITAN_TEST_DEVICE")) /* a GPU's threads are not counted by this option */
        return;
    for (int method = PARTS_DCT; method <= PARTS_STRIDING; method++) {
        const struct parts_shape z = {.method = (enum parts_method)method, .kept = 4, .dt = DTYPE_BF16, .word = 3};
        for (int turn = 0; turn < 2; turn++) {
            struct bench b;
            bench_open(&b, turn ? 4 : 1);
            for (int r = 0; r < RANKS; r++) {
                draw(x[turn], N_MOST, (uint64_t)r);
                draw(residual, N_MOST, 100 + (uint64_t)r);
                extract(&b, &z, r, x[turn], residual, 0.25f, 0.999f, N_MOST);
            }
            combine(&b, &z, false, out[turn], N_MOST);
            move(&b, sent[turn], b.sent, (size_t)(RANKS * parts_bytes(&z, N_MOST)));
            bench_close(&b);
        }
        assert_true(memcmp(x[0], x[1], sizeof x[0]) == 0);
        assert_true(memcmp(out[0], out[1], sizeof out[0]) == 0);
        assert_true(memcmp(sent[0], sent[1], (size_t)(RANKS * parts_bytes(&z, N_MOST))) == 0);
    }
}

/* All values of a chunk are sent: the residual is what the DCT and back loses, and the direction the mean. */
static void test_all_values(void **state)
{
    static float x[N_MOST], residual[N_MOST], got[N_MOST], mean[N_MOST];
    const struct parts_shape z = {.method = PARTS_DCT, .kept = PARTS_CHUNK, .dt = DTYPE_F32};
    const int64_t n = 6400;
    struct bench b;

    (void)state;
    bench_open(&b, 2);
    memset(mean, 0, sizeof mean);
    memset(residual, 0, sizeof residual);
    for (int r = 0; r < RANKS; r++) {
        draw(x, n, (uint64_t)r);
        for (int64_t i = 0; i < n; i++)
            mean[i] += x[i] / RANKS;
        extract(&b, &z, r, x, residual, 1, 0.999f, n);
        for (int64_t i = 0; i < n; i++)
            assert_true(fabsf(x[i]) < 2e-6f);
    }
    combine(&b, &z, false, got, n);
    near("mean", got, mean, n);
    bench_close(&b);
}

/* A gradient with a NaN shows in the residual, in what is sent, and in the direction, with sign, too. */
static void test_not_finite(void **state)
{
    static float x[PARTS_CHUNK], residual[PARTS_CHUNK], out[PARTS_CHUNK];
    struct bench b;

    (void)state;
    bench_open(&b, 1);
    for (int method = PARTS_DCT; method <= PARTS_ALL; method++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const struct parts_shape z = {.method = (enum parts_method)method,
                                          .kept = method == PARTS_ALL ? PARTS_CHUNK : 4,
                                          .dt = bf16 ? DTYPE_BF16 : DTYPE_F32};
            for (int r = 0; r < RANKS; r++) {
                draw(x, PARTS_CHUNK, (uint64_t)r);
                x[0] = r == 1 ? NAN : x[0];
                extract(&b, &z, r, x, residual, 1, 1, PARTS_CHUNK);
                assert_int_equal(isnan(x[0]), r == 1);
            }
            combine(&b, &z, true, out, PARTS_CHUNK);
            assert_true(isnan(out[0]) || method == PARTS_RANDOM || method == PARTS_STRIDING);
        }
    bench_close(&b);
}

/* Each weight's turn comes: with striding once in 64 / kept steps, at random about so often. */
static void test_turns(void **state)
{
    (void)state;
    for (int kept = 1; kept <= PARTS_CHUNK; kept *= 2) {
        const int stride = PARTS_CHUNK / kept, steps = 400 * stride;
        int strided[PARTS_CHUNK] = {0}, random[PARTS_CHUNK] = {0};
        for (int step = 0; step < steps; step++) {
            struct parts_shape z = {.method = PARTS_STRIDING, .kept = kept, .word = (uint64_t)step};
            for (int i = 0; i < kept; i++)
                strided[parts_place(&z, 5, i)]++;
            uint32_t words[4];
            rng_philox(rng_key(1, "parts"), (uint64_t)step, 0, words);
            z.method = PARTS_RANDOM;
            z.word = (uint64_t)words[0] << 32 | words[1];
            for (int i = 0; i < kept; i++)
                random[parts_place(&z, 5, i)]++;
        }
        for (int i = 0; i < PARTS_CHUNK; i++) {
            assert_int_equal(strided[i], 400);
            assert_true(stride == 1 ? random[i] == 400 : random[i] >= 300 && random[i] <= 500);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_references), cmocka_unit_test(test_threads), cmocka_unit_test(test_all_values),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
