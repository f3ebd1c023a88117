/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs of gradients, on the CPU (TITAN_TEST_DEVICE names another device): the bits of NumPy
 * (tests/golden/codecs_reference.py), and what each codec promises. The seed is printed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "worker/device/device.h"

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

/* --- a device and its memory -------------------------------------------------------------------------------------- */

#define BLOCKS 32

/* Memory of the device is copied in and out, whatever it is. */
struct bench {
    struct device_handle d;
    struct stream *s;
    void *block[BLOCKS];
    int blocks;
    uint64_t random;
};

static struct bench bench_open(int threads)
{
    const char *const name = getenv("TITAN_TEST_DEVICE"), *const seed = getenv("TITAN_TEST_SEED");
    struct titan_error err = {0};
    struct bench b = {.random = seed ? strtoull(seed, NULL, 0) : 20261130};

    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    must(device_open(name ? name : "cpu", &(struct device_options){.threads = threads}, &b.d, &err), &err);
    must(b.d.ops->stream_open(b.d.dev, "compute", true, &b.s, &err), &err);
    return b;
}

static void bench_close(struct bench *b)
{
    for (int i = 0; i < b->blocks; i++)
        b->d.ops->release(b->d.dev, b->block[i]);
    b->d.ops->stream_close(b->s);
    device_close(&b->d);
}

/* Zeroed memory of the device. */
static void *memory(struct bench *b, size_t bytes)
{
    struct titan_error err = {0};

    assert_true(b->blocks < BLOCKS);
    must(b->d.ops->alloc(b->d.dev, bytes, &b->block[b->blocks], &err), &err);
    return b->block[b->blocks++];
}

static void copy(struct bench *b, void *to, const void *from, size_t bytes)
{
    struct titan_error err = {0};

    must(b->d.ops->copy(b->s, to, from, bytes), &err);
    must(b->d.ops->stream_sync(b->s, &err), &err);
}

/* The emulator of a GPU is slow. */
static int steps_of(int steps)
{
    return getenv("TITAN_TEST_DEVICE") ? steps / 20 : steps;
}

/* Uniform between -1 and 1. */
static float draw(struct bench *b)
{
    return (float)((double)(hash_draw(&b->random) >> 11) * 0x1p-52 - 1);
}

/* One codec at work: x, codes, error and sum lie on the device. */
struct wire {
    struct bench *b;
    struct encode_args e;
    struct decode_sum_args d;
    struct codec_places at;
    float *x;
    int64_t n, pieces;
};

static struct wire wire_of(struct bench *b, enum codec codec, int64_t pieces, int64_t n)
{
    struct wire w = {.b = b, .at = codec_places(codec, n), .n = n, .pieces = pieces};

    w.x = memory(b, (size_t)(pieces * n) * sizeof *w.x);
    w.e = (struct encode_args){.codec = codec, .x = w.x, .pieces = pieces, .n = n};
    w.e.codes = memory(b, (size_t)(pieces * w.at.bytes));
    if (codec == CODEC_LOCO) {
        w.e.error = memory(b, (size_t)(pieces * w.at.error_bytes));
        w.e.decay = 0.8f;
    }
    w.d = (struct decode_sum_args){.codec = codec, .codes = w.e.codes, .pieces = pieces, .n = n};
    w.d.out = memory(b, (size_t)n * sizeof *w.d.out);
    return w;
}

/* Codes of x (pieces,n), and their sum over pieces. */
static void send(struct wire *w, const float *x, float *sum)
{
    struct titan_error err = {0};

    copy(w->b, w->x, x, (size_t)(w->pieces * w->n) * sizeof *x);
    must(w->b->d.ops->encode(w->b->s, &w->e), &err);
    must(w->b->d.ops->decode_sum(w->b->s, &w->d), &err);
    copy(w->b, sum, w->d.out, (size_t)w->n * sizeof *sum);
}

/* Error of one piece, decoded. */
static void read_error(const struct wire *w, int64_t piece, float *ret)
{
    uint8_t *const bytes = malloc((size_t)w->at.error_bytes);

    assert_non_null(bytes);
    copy(w->b, bytes, w->e.error + piece * w->at.error_bytes, (size_t)w->at.error_bytes);
    for (int64_t i = 0; i < w->n; i++)
        ret[i] = (float)(int8_t)bytes[w->at.error_codes + i] * ((const float *)(const void *)bytes)[i / CODEC_BUCKET];
    free(bytes);
}

/* --- NumPy's bits ------------------------------------------------------------------------------------------------- */

/* Reads bytes in hex. Returns their number. */
static size_t read_hex(const struct json *object, const char *key, void *ret, size_t most)
{
    const char *const text = json_string(object, key, "");
    const size_t n = strlen(text) / 2;
    uint8_t *const bytes = ret;

    assert_true(n <= most);
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(text + 2 * i, "%2x", &byte), 1);
        bytes[i] = (uint8_t)byte;
    }
    return n;
}

static void check_hex(const struct bench *b, const struct json *object, const char *key, const void *got, size_t bytes,
                      const char *what)
{
    static uint8_t want[1 << 16], have[1 << 16];

    assert_int_equal(read_hex(object, key, want, sizeof want), bytes);
    copy((struct bench *)b, have, got, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (want[i] != have[i])
            fail_msg("%s: byte %zu of %s is %02x, should be %02x", what, i, key, have[i], want[i]);
}

/* NaN is NaN, whatever its bits. */
static void check_sum(const struct wire *w, const struct json *object, const float *sum)
{
    static float want[4096];

    assert_int_equal(read_hex(object, "sum", want, sizeof want), (size_t)w->n * sizeof *want);
    for (int64_t i = 0; i < w->n; i++)
        if (memcmp(want + i, sum + i, sizeof *sum) != 0 && !(isnan(want[i]) && isnan(sum[i])))
            fail_msg("%s: sum %lld is %a, should be %a", codec_row(w->e.codec)->name, (long long)i, (double)sum[i],
                     (double)want[i]);
}

static void test_numpy(void **state)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    static float x[8192], sum[4096];
    struct titan_error err = {0};
    struct json *file = NULL;
    int cases = 0, steps = 0;

    (void)state;
    must(file_read(TITAN_SOURCE_DIR "/tests/golden/codecs.json", 4 << 20, &text, &err), &err);
    must(json_parse(text.data, text.len, &file, &err), &err);
    const int64_t n = json_int(file, "n", 0), pieces = json_int(file, "pieces", 0);
    const struct json *const key = json_get(file, "key")->first;
    for (const struct json *c = json_get(file, "cases")->first; c; c = c->next, cases++) {
        struct bench b = bench_open(1);
        struct wire w = wire_of(&b, codec_find(json_string(c, "codec", "")), pieces, n);
        float largest[16];
        w.e.stochastic = json_get(c, "stochastic")->boolean;
        w.e.key = (struct rng_key){{(uint32_t)key->integer, (uint32_t)key->next->integer}};
        w.e.step = (uint64_t)json_int(file, "step", 0);
        if (json_get(c, "largest")) {
            float *const given = memory(&b, sizeof largest);
            copy(&b, given, largest, read_hex(c, "largest", largest, sizeof largest));
            w.e.largest = given;
        }
        assert_int_equal(read_hex(json_get(file, "values"), json_string(c, "values", ""), x, sizeof x),
                         (size_t)(pieces * n) * sizeof *x);
        send(&w, x, sum);
        check_hex(&b, c, "codes", w.e.codes, (size_t)(pieces * w.at.bytes), json_string(c, "codec", ""));
        check_sum(&w, c, sum);
        bench_close(&b);
    }
    struct bench b = bench_open(1);
    struct wire w = wire_of(&b, CODEC_LOCO, pieces, n);
    w.e.decay = (float)json_real(file, "decay", 0);
    for (const struct json *s = json_get(file, "steps")->first; s; s = s->next, steps++) {
        assert_int_equal(read_hex(s, "values", x, sizeof x), (size_t)(pieces * n) * sizeof *x);
        send(&w, x, sum);
        check_hex(&b, s, "codes", w.e.codes, (size_t)(pieces * w.at.bytes), "loco");
        check_hex(&b, s, "error", w.e.error, (size_t)(pieces * w.at.error_bytes), "loco");
        check_sum(&w, s, sum);
    }
    bench_close(&b);
    assert_true(cases >= 17 && steps == 5);
    json_free(file);
}

/* What replicas have of their sum: each codes its range, in a piece for each; pieces are summed, and coded again. */
static void test_replicas(void **state)
{
    enum { REPLICAS = 3 };
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    static float x[8192], want[4096], got[4096];
    struct titan_error err = {0};
    struct json *file = NULL;
    int steps = 0;

    (void)state;
    must(file_read(TITAN_SOURCE_DIR "/tests/golden/codecs.json", 4 << 20, &text, &err), &err);
    must(json_parse(text.data, text.len, &file, &err), &err);
    const int64_t n = json_int(file, "replica_n", 0);
    const size_t range = (size_t)(REPLICAS * n) * sizeof *x;
    struct bench b = {0};
    struct wire own[REPLICAS], second[REPLICAS];
    enum codec of = CODEC_NONE;
    uint8_t *received = NULL;
    for (const struct json *s = json_get(file, "replica_steps")->first; s; s = s->next, steps++) {
        const enum codec codec = codec_find(json_string(s, "replicas", ""));
        if (codec != of) { /* with errors of zero */
            if (of != CODEC_NONE)
                bench_close(&b);
            b = bench_open(1);
            for (int r = 0; r < REPLICAS; r++) {
                own[r] = wire_of(&b, codec, REPLICAS, n);
                second[r] = wire_of(&b, codec, 1, n);
                own[r].e.decay = second[r].e.decay = codec == CODEC_LOCO ? (float)json_real(file, "decay", 0) : 0;
            }
            received = memory(&b, (size_t)(REPLICAS * own[0].at.bytes));
            of = codec;
        }
        assert_int_equal(read_hex(s, "values", x, sizeof x), REPLICAS * range);
        assert_int_equal(read_hex(s, "sum", want, sizeof want), range);
        for (int r = 0; r < REPLICAS; r++) {
            copy(&b, own[r].x, x + (int64_t)r * REPLICAS * n, range);
            must(b.d.ops->encode(b.s, &own[r].e), &err);
        }
        for (int p = 0; p < REPLICAS; p++) {
            for (int r = 0; r < REPLICAS; r++)
                copy(&b, received + r * own[r].at.bytes, own[r].e.codes + p * own[r].at.bytes, (size_t)own[r].at.bytes);
            struct decode_sum_args sum = own[p].d;
            sum.codes = received;
            sum.out = second[p].x;
            must(b.d.ops->decode_sum(b.s, &sum), &err);
            must(b.d.ops->encode(b.s, &second[p].e), &err);
            must(b.d.ops->decode_sum(b.s, &second[p].d), &err);
            copy(&b, got + p * n, second[p].d.out, (size_t)n * sizeof *got);
        }
        for (int64_t i = 0; i < REPLICAS * n; i++)
            if (memcmp(want + i, got + i, sizeof *got) != 0)
                fail_msg("%s: value %lld is %a, should be %a", codec_row(codec)->name, (long long)i, (double)got[i],
                         (double)want[i]);
    }
    bench_close(&b);
    assert_int_equal(steps, 8);
    json_free(file);
}

/* --- what codecs promise ------------------------------------------------------------------------------------------ */

/* LoCo sends the sum of all gradients but for e / (1-a), which is kept, and the rounding of e to 8 bits: at most half a
 * code in each step. */
static void test_loco_conserves(void **state)
{
    enum { N = 2500, STEPS = 60 };
    static const float decays[] = {0, 0.5f, 0.8f, 0.95f};
    static float x[N], sum[N], before[N], kept[N];

    (void)state;
    for (size_t d = 0; d < ARRAY_SIZE(decays); d++) {
        static double sent[N], given[N], rounding[N];
        struct bench b = bench_open(1);
        struct wire w = wire_of(&b, CODEC_LOCO, 1, N);
        double least = INFINITY;
        w.e.decay = decays[d];
        memset(sent, 0, sizeof sent);
        memset(given, 0, sizeof given);
        memset(rounding, 0, sizeof rounding);
        for (int step = 0; step < STEPS + 1; step++) {
            for (int i = 0; i < N; i++)
                x[i] = draw(&b) * powf(10, 2 * draw(&b));
            send(&w, x, sum);
            read_error(&w, 0, kept);
            float most[N / CODEC_BUCKET + 1] = {0};
            for (int i = 0; i < N; i++)
                most[i / CODEC_BUCKET] = fmaxf(most[i / CODEC_BUCKET], fabsf(kept[i]));
            if (step == 0) /* the identity holds from any error on */
                memcpy(before, kept, sizeof before);
            for (int i = 0; i < N && step > 0; i++) {
                sent[i] += (double)sum[i];
                given[i] += (double)x[i];
                rounding[i] += (double)most[i / CODEC_BUCKET] / 254;
            }
        }
        for (int i = 0; i < N; i++) {
            const double rest = 1 - (double)decays[d];
            const double off = fabs(sent[i] - given[i] + ((double)kept[i] - (double)before[i]) / rest);
            if (off > rounding[i] / rest * 1.001 + 1e-3)
                fail_msg("a = %g, value %d: %g is lost", (double)decays[d], i, off);
            least = fmin(least, rounding[i] / rest);
        }
        assert_true(least > 0);
        bench_close(&b);
    }
}

/* The mean of what is sent of a constant gradient. */
static double bias_of(enum codec codec, const float *x, int n, int steps)
{
    struct bench b = bench_open(1);
    struct wire w = wire_of(&b, codec, 1, n);
    double *const mean = calloc((size_t)n, sizeof *mean), off = 0, size = 0;
    float *const sum = malloc((size_t)n * sizeof *sum);

    assert_true(mean && sum);
    for (int step = 0; step < steps; step++) {
        send(&w, x, sum);
        for (int i = 0; i < n; i++)
            mean[i] += (double)sum[i] / steps;
    }
    for (int i = 0; i < n; i++) {
        off += (mean[i] - (double)x[i]) * (mean[i] - (double)x[i]);
        size += (double)x[i] * (double)x[i];
    }
    free(mean);
    free(sum);
    bench_close(&b);
    return sqrt(off / size);
}

static void test_constant_gradient(void **state)
{
    enum { N = 2048 };
    static float x[N];
    struct bench b = bench_open(1);
    const int steps = steps_of(400);

    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = draw(&b) * draw(&b) * draw(&b);
    bench_close(&b);
    const double plain = bias_of(CODEC_INT4, x, N, steps), kept = bias_of(CODEC_LOCO, x, N, steps);
    printf("# bias of the mean of a constant gradient: int4 %.4f, loco %.4f\n", plain, kept);
    assert_true(plain > 0.1);
    assert_true(kept < plain / (steps < 400 ? 2 : 20));
}

static void test_f32_is_the_plain_sum(void **state)
{
    enum { N = 3001, PIECES = 5 };
    static float x[PIECES * N], sum[N];
    struct bench b = bench_open(1);
    struct wire w = wire_of(&b, CODEC_F32, PIECES, N);

    (void)state;
    for (int i = 0; i < PIECES * N; i++)
        x[i] = draw(&b) * powf(10, 6 * draw(&b));
    send(&w, x, sum);
    for (int i = 0; i < N; i++) {
        float want = x[i];
        for (int p = 1; p < PIECES; p++)
            want += x[p * N + i];
        assert_true(memcmp(&want, &sum[i], sizeof want) == 0);
    }
    bench_close(&b);
}

/* An outlier, or what is not finite, changes its own bucket alone. */
static void test_outlier(void **state)
{
    enum { N = 5 * CODEC_BUCKET + 100, AT = 2 * CODEC_BUCKET + 17 };
    static const float outliers[] = {1e6f, INFINITY, -NAN, 0x1p126f};
    static float x[N], clean[N], dirty[N], error[N];

    (void)state;
    for (int codec = CODEC_FP8; codec < CODECS; codec++)
        for (size_t o = 0; o < ARRAY_SIZE(outliers); o++) {
            struct bench b = bench_open(1);
            struct wire w = wire_of(&b, (enum codec)codec, 1, N), again = wire_of(&b, (enum codec)codec, 1, N);
            for (int i = 0; i < N; i++)
                x[i] = draw(&b);
            send(&w, x, clean);
            x[AT] = outliers[o];
            send(&again, x, dirty);
            for (int i = 0; i < N; i++) {
                const bool within = i / CODEC_BUCKET == AT / CODEC_BUCKET;
                if (within && o > 0)
                    assert_true(isnan(dirty[i]));
                else if (within && i != AT)
                    assert_true(fabsf(dirty[i]) <= (codec == CODEC_FP8 ? 2 : 1e6f / (codec == CODEC_INT8 ? 128 : 8)));
                else if (!within)
                    assert_true(clean[i] == dirty[i]);
            }
            if (codec == CODEC_LOCO && o > 0) { /* and is forgotten */
                read_error(&again, 0, error);
                for (int i = 0; i < N; i++)
                    assert_true(isfinite(error[i]) && (i / CODEC_BUCKET != AT / CODEC_BUCKET || error[i] == 0));
                x[AT] = 0;
                send(&again, x, dirty);
                for (int i = 0; i < N; i++)
                    assert_true(isfinite(dirty[i]));
            }
            bench_close(&b);
        }
}

/* Rounding at random: the mean over steps is the value, the same call gives the same codes, another step others. */
static void test_at_random(void **state)
{
    enum { N = 1500 };
    static float x[N], sum[N], again[N];
    static double mean[N];
    const int steps = steps_of(2000);

    (void)state;
    for (int codec = CODEC_INT8; codec <= CODEC_INT4; codec++) {
        struct bench b = bench_open(1);
        struct wire w = wire_of(&b, (enum codec)codec, 1, N);
        double worst = 0, all = 0, spread = 0;
        memset(mean, 0, sizeof mean);
        w.e.stochastic = true;
        w.e.key = (struct rng_key){{(uint32_t)hash_draw(&b.random), (uint32_t)hash_draw(&b.random)}};
        for (int i = 0; i < N; i++)
            x[i] = draw(&b);
        x[0] = 1;
        x[CODEC_BUCKET] = -1;
        const double scale = 1.0 / (codec == CODEC_INT8 ? 127 : 7);
        for (int step = 0; step < steps; step++) {
            w.e.step = (uint64_t)step;
            send(&w, x, sum);
            for (int i = 0; i < N; i++) {
                mean[i] += (double)sum[i] / steps;
                assert_true(fabs((double)sum[i] - (double)x[i]) < scale * 1.0001);
            }
            if (step == 7) {
                send(&w, x, again);
                assert_true(memcmp(sum, again, sizeof sum) == 0);
            }
            if (step == 8)
                assert_true(memcmp(sum, again, sizeof sum) != 0);
        }
        /* Bernstein's bound, which one mean of 10^9 exceeds: few of the steps round up where the fraction is small */
        for (int i = 0; i < N; i++) {
            const double place = fabs((double)x[i]) / scale, part = place - floor(place);
            const double off = (mean[i] - (double)x[i]) / scale, variance = part * (1 - part) / steps;
            worst = fmax(worst, fabs(off) / (6.5 * sqrt(variance) + 14.5 / steps));
            all += off;
            spread += variance;
        }
        printf("# %s at random: the worst of %d means lies at %.2f of its bound, all together %.1f deviations off\n",
               codec_row((enum codec)codec)->name, N, worst, all / sqrt(spread));
        assert_true(worst < 1 && fabs(all / sqrt(spread)) < 6);
        bench_close(&b);
    }
}

/* One scale a tensor: all buckets that lie within a tensor have its scale, also with what LoCo kept. */
static void test_scale_of_tensor(void **state)
{
    enum { N = 4 * CODEC_BUCKET, PIECES = 3, BUCKETS = 12 };
    static const int64_t begins[] = {0, 1500, 1500, 9000, 12 * 1024};
    static float x[PIECES * N], sum[N], largest[BUCKETS];
    struct bench b = bench_open(1);
    struct titan_error err = {0};
    struct wire w = wire_of(&b, CODEC_LOCO, PIECES, N);
    struct bucket_largest_args l = {.x = w.x, .error = w.e.error, .pieces = PIECES, .n = N, .begins = begins};

    (void)state;
    l.tensors = ARRAY_SIZE(begins) - 1;
    l.largest = memory(&b, sizeof largest);
    l.of_tensor = memory(&b, ARRAY_SIZE(begins) * sizeof(float));
    w.e.largest = l.largest;
    for (int step = 0; step < 20; step++) {
        float most = 0;
        for (int i = 0; i < PIECES * N; i++) {
            x[i] = draw(&b) * (i < 1500 ? 1e-3f : i < 9000 ? 1.0f : 30.0f);
            most = fmaxf(most, fabsf(x[i]));
        }
        copy(&b, w.x, x, sizeof x);
        must(b.d.ops->bucket_largest(b.s, &l), &err);
        copy(&b, largest, l.largest, sizeof largest);
        /* buckets 1 and 8 have values of two tensors */
        assert_true(largest[0] < 2e-3f && largest[1] > 0.5f && largest[8] > 20);
        for (int k = 2; k < 8; k++)
            assert_true(largest[k] == largest[2] && largest[k] > 0.9f && largest[k] < 2);
        for (int k = 9; k < BUCKETS; k++)
            assert_true(largest[k] == largest[9] && largest[k] > 27);
        send(&w, x, sum);
        for (int i = 0; i < N; i++)
            assert_true(fabsf(sum[i]) < 100);
    }
    bench_close(&b);
}

/* One thread or more: the same bytes. */
static void test_threads(void **state)
{
    enum { PIECES = 3, N = 40 * CODEC_BUCKET + 77 };
    (void)state;
    if (getenv("TITAN_TEST_DEVICE")) /* a GPU's threads are not counted by this option */
        return;
    float *const x = malloc((size_t)PIECES * N * sizeof *x), *const sums = malloc((size_t)2 * N * sizeof *sums);
    assert_true(x && sums);
    for (int codec = CODEC_F32; codec < CODECS; codec++) {
        const int ways = codec_row((enum codec)codec)->stochastic ? 2 : 1;
        for (int stochastic = 0; stochastic < ways; stochastic++) {
            const size_t size = (size_t)PIECES * codec_bytes((enum codec)codec, N);
            uint8_t *const codes = malloc(2 * size);
            assert_non_null(codes);
            for (int turn = 0; turn < 2; turn++) {
                struct bench b = bench_open(turn ? 4 : 1);
                struct wire w = wire_of(&b, (enum codec)codec, PIECES, N);
                w.e.stochastic = stochastic;
                for (int i = 0; i < PIECES * N; i++)
                    x[i] = draw(&b);
                for (int step = 0; step < (codec == CODEC_LOCO ? 3 : 1); step++)
                    send(&w, x, sums + (ptrdiff_t)turn * N);
                copy(&b, codes + (size_t)turn * size, w.e.codes, size);
                bench_close(&b);
            }
            assert_true(memcmp(codes, codes + size, size) == 0);
            assert_true(memcmp(sums, sums + N, N * sizeof *sums) == 0);
            free(codes);
        }
    }
    free(x);
    free(sums);
}

int main(void)
{
    const char *const seed = getenv("TITAN_TEST_SEED");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numpy),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_loco_conserves),
        cmocka_unit_test(test_constant_gradient),
        cmocka_unit_test(test_f32_is_the_plain_sum),
        cmocka_unit_test(test_outlier),
        cmocka_unit_test(test_at_random),
        cmocka_unit_test(test_scale_of_tensor),
        cmocka_unit_test(test_threads),
    };

    printf("# seed %s\n", seed ? seed : "20261130");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
