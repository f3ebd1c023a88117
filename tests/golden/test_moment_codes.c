/* SPDX-License-Identifier: Apache-2.0 */
/* Moments in 8 bits against NumPy, bit for bit: what codes stand for, the codes of blocks, five steps of AdamW. Values:
 * tests/golden/moment_codes_reference.py. Every code of every scale is the code of what it decodes to. */
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
#include "base/json.h"
#include "base/moment_codes.h"
#include "tests/support/seeded.h"
#include "worker/optim/update.h"

static void must(titan_status status, const struct titan_error *err)
{
    if (status != TITAN_OK)
        fail_msg("%s: %s", titan_status_name(status), err->msg);
}

static struct json *reference(void)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct titan_error err = {0};
    struct json *file = NULL;

    must(file_read(TITAN_SOURCE_DIR "/tests/golden/moment_codes.json", 4 << 20, &text, &err), &err);
    must(json_parse(text.data, text.len, &file, &err), &err);
    return file;
}

/* Reads a list of numbers: bits of fp32. Returns how many there are. */
static int read_bits(const struct json *list, float *ret, int most)
{
    int n = 0;

    for (const struct json *v = list->first; v; v = v->next) {
        const uint32_t bits = (uint32_t)v->integer;
        assert_true(n < most && v->type == JSON_INT);
        memcpy(&ret[n++], &bits, sizeof bits);
    }
    return n;
}

static bool same_float(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* Holds a block's scale and codes against the reference's. */
static void check_block(const struct moment_block *b, const struct json *want, int n)
{
    const uint32_t bits = (uint32_t)json_get(want, "scale")->integer;
    const char *const codes = json_string(want, "codes", "");
    float scale;

    memcpy(&scale, &bits, sizeof scale);
    assert_true(same_float(b->scale, scale));
    assert_int_equal(strlen(codes), 2 * n);
    for (int i = 0; i < n; i++) {
        char hex[3];
        (void)snprintf(hex, sizeof hex, "%02x", b->codes[i]);
        if (memcmp(hex, codes + 2 * (ptrdiff_t)i, 2) != 0)
            fail_msg("code %d is %s, should be %.2s", i, hex, codes + 2 * (ptrdiff_t)i);
    }
}

static void test_parts(void **state)
{
    struct json *const file = reference();
    float want[256];

    (void)state;
    for (int square = 0; square < 2; square++) {
        const int n = read_bits(json_get(json_get(file, "parts"), square ? "square" : "signed"), want, 256);
        assert_int_equal(n, square ? 256 : 128);
        for (int i = 0; i < n; i++)
            assert_true(same_float(moment_part((uint32_t)i, square), want[i]));
    }
    json_free(file);
}

static void test_blocks(void **state)
{
    struct json *const file = reference();
    int cases = 0;

    (void)state;
    for (const struct json *c = json_get(file, "blocks")->first; c; c = c->next, cases++) {
        const bool square = json_get(c, "square")->boolean;
        struct moment_block b, whole = {0};
        float values[MOMENT_BLOCK] = {0}, want[MOMENT_BLOCK], got[MOMENT_BLOCK];
        const int n = read_bits(json_get(c, "values"), values, MOMENT_BLOCK);
        memset(&b, 0xa5, sizeof b);
        moment_block_encode(&b, n, square, values);
        check_block(&b, c, n);
        for (int i = n; i < MOMENT_BLOCK; i++)
            assert_int_equal(b.codes[i], 0xa5);
        moment_blocks_encode(&whole, 1, square, values);
        assert_memory_equal(whole.codes, b.codes, (size_t)n);
        assert_int_equal(read_bits(json_get(c, "decoded"), want, MOMENT_BLOCK), n);
        moment_block_decode(&b, n, square, got);
        for (int i = 0; i < n; i++)
            assert_true(same_float(got[i], want[i]));
        moment_blocks_decode(&whole, 1, square, got);
        for (int i = 0; i < n; i++)
            assert_true(same_float(got[i], want[i]));
    }
    assert_true(cases >= 30);
    json_free(file);
}

static void test_codes_of_codes(void **state)
{
    uint64_t seed = seeded_seed(0);
    unsigned draw = (unsigned)seed;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct moment_block b, again;
        float values[MOMENT_BLOCK], scale;
        const uint32_t bits = (27u + (uint32_t)rand_r(&draw) % 226u) << 23 | ((uint32_t)rand_r(&draw) & 0x7fffffu);
        const bool square = round % 2;
        memcpy(&scale, &bits, sizeof scale);
        b.scale = scale;
        for (int i = 0; i < MOMENT_BLOCK; i++) /* a zero has no sign */
            b.codes[i] = (uint8_t)(!square && i == 128 ? 0 : i);
        moment_blocks_decode(&b, 1, square, values);
        moment_blocks_encode(&again, 1, square, values);
        if (memcmp(&b, &again, sizeof b) != 0)
            fail_msg("scale %g, %s: other codes", (double)scale, square ? "squares" : "signed");
        for (int i = 1; i < (square ? 256 : 128); i++)
            assert_true(values[i] > values[i - 1]);
        assert_true(square || values[255] == -scale);
    }
}

/* The code of a value above 0 whose bits these are, of a block with scale 1. */
static int code_of(uint32_t bits, bool square)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return moment_encode(value, 1.0f, square);
}

/* Whole blocks are encoded by instructions of their own: around each cell's bound, and all over the values, their codes
 * are those of one value at a time. */
static void test_bounds_of_cells(void **state)
{
    enum { AROUND = 40, ONE = 0x3f800000 };
    const uint32_t stride = 60013;

    (void)state;
    for (int square = 0; square < 2; square++) {
        uint32_t first[256 + ONE / 60013 + 1];
        int n = 0;
        for (int code = 1; code < (square ? 256 : 128); code++) {
            uint32_t below = 0, at = ONE;
            while (at - below > 1) {
                const uint32_t middle = below + (at - below) / 2;
                *(code_of(middle, square) < code ? &below : &at) = middle;
            }
            first[n++] = at > AROUND ? at - AROUND : 1;
        }
        for (uint32_t at = 1; at < ONE - stride; at += stride)
            first[n++] = at;
        for (int f = 0; f < n; f++) {
            float values[MOMENT_BLOCK] = {1.0f};
            struct moment_block b;
            for (int i = 1; i < MOMENT_BLOCK; i++) {
                const uint32_t bits = MIN(first[f] + (uint32_t)(i / 2), ONE) | (!square && i % 2 ? 1u << 31 : 0);
                memcpy(&values[i], &bits, sizeof bits);
            }
            moment_blocks_encode(&b, 1, square, values);
            for (int i = 0; i < MOMENT_BLOCK; i++)
                if (b.codes[i] != moment_encode(values[i], 1.0f, square))
                    fail_msg("%s %a: code %d, should be %d", square ? "square" : "value", (double)values[i], b.codes[i],
                             moment_encode(values[i], 1.0f, square));
        }
    }
}

/* Five steps, in one unit of two blocks and a part of a third. */
static void test_adamw(void **state)
{
    enum { N = 2 * MOMENT_BLOCK + 100, BLOCKS = 3 };
    struct json *const file = reference();
    struct titan_error err = {0};
    struct device_handle d;
    struct stream *s = NULL;
    struct recipe r;
    struct {
        float w[N];
        struct moment_block m[BLOCKS], v[BLOCKS];
    } values = {0};
    float grad[N];
    uint64_t number = 0;

    (void)state;
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    must(device_open("cpu", &(struct device_options){.threads = 1}, &d, &err), &err);
    must(d.ops->stream_open(d.dev, "compute", true, &s, &err), &err);
    recipe_init(&r);
    (void)snprintf(r.optimizer.state_dtype, sizeof r.optimizer.state_dtype, "int8");
    for (const struct json *key = json_get(file, "keys")->first; key; key = key->next)
        must(recipe_set(&r, key->string, &err), &err);
    assert_int_equal(read_bits(json_get(file, "w"), values.w, N), N);
    for (const struct json *step = json_get(file, "steps")->first; step; step = step->next) {
        const struct update_step numbers = {.rate = 1, .number = ++number, .tokens = 1, .clip = 1};
        const struct update update = update_of_recipe(&r, &numbers);
        const struct update_args *const a = &update.args[0];
        struct update_piece piece = {.master = values.w, .state = {values.m, values.v}, .grad = grad, .n = N};
        assert_int_equal(a->moment, DTYPE_U8);
        assert_int_equal(read_bits(json_get(step, "gradient"), grad, N), N);
        must(d.ops->update(s, &piece, 1, a), &err);
        must(d.ops->stream_sync(s, &err), &err);
        const struct json *m = json_get(step, "m")->first, *v = json_get(step, "v")->first;
        for (int b = 0; b < BLOCKS; b++, m = m->next, v = v->next) {
            check_block(&values.m[b], m, MIN(N - b * MOMENT_BLOCK, MOMENT_BLOCK));
            check_block(&values.v[b], v, MIN(N - b * MOMENT_BLOCK, MOMENT_BLOCK));
        }
        const struct json *w = json_get(step, "w")->first;
        for (int i = 0; i < N; i++, w = w->next)
            assert_true(fabs((double)values.w[i] - w->real) < 2e-6);
    }
    assert_int_equal(number, 5);
    d.ops->stream_close(s);
    device_close(&d);
    json_free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts), cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_codes_of_codes), cmocka_unit_test(test_bounds_of_cells),
                                       cmocka_unit_test(test_adamw)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
