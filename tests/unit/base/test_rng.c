/* SPDX-License-Identifier: Apache-2.0 */
/* rng.h: published Philox vectors, a reference computed by make_rng_reference.py, and properties. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"

/* Known answers of the authors' Random123 distribution. */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint32_t key[2];
        uint64_t lo, hi;
        uint32_t words[4];
    } cases[] = {
        {{0, 0}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff}, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0xa4093822, 0x299f31d0},
         UINT64_C(0x85a308d3243f6a88),
         UINT64_C(0x0370734413198a2e),
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct rng_key key = {{cases[i].key[0], cases[i].key[1]}};
        uint32_t words[4];
        rng_philox(key, cases[i].lo, cases[i].hi, words);
        assert_memory_equal(words, cases[i].words, sizeof(words));
    }
}

/* Any part of a stream is what its counters give, one by one. */
static void test_words(void **state)
{
    (void)state;
    const struct rng_key key = rng_key(42, "words");
    uint32_t got[151], want[4];
    for (uint64_t start = 0; start < 9; start++)
        for (uint64_t count = 0; count < 150; count++) {
            /* in the middle of these the counter's lower half ends */
            const uint64_t first = start + (start & 1 ? UINT64_C(1) << 40 : start & 2 ? (UINT64_C(1) << 34) - 60 : 0);
            const uint64_t high = start & 4 ? UINT64_C(0x900000005) : 3;
            memset(got, 0x5a, sizeof got);
            rng_words(key, first, high, count, got);
            for (uint64_t i = 0; i < count; i++) {
                rng_philox(key, (first + i) / 4, high, want);
                assert_int_equal(got[i], want[(first + i) % 4]);
            }
            assert_int_equal(got[count], 0x5a5a5a5a);
        }
}

/* Over all 65,536 random numbers the mean of what a number is rounded to is the number. */
static void test_rounding(void **state)
{
    (void)state;
    const float cases[] = {1.0f, 1.00390625f, 1.001f, -0.3333333f, 3.0e38f, -7.1e-39f, 0.0f, -0.0f, 65535.0f};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        double sum = 0;
        for (uint32_t random = 0; random < 65536; random++) {
            const float rounded = bf16_to_f32(bf16_from_f32_at_random(cases[i], random | 0xabcd0000));
            assert_true(fabs((double)rounded - (double)cases[i]) <= fmax(ldexp(fabs((double)cases[i]), -7), 1e-40));
            sum += (double)rounded;
        }
        if (sum / 65536 != (double)cases[i])
            fail_msg("%a is rounded to %a", (double)cases[i], sum / 65536);
    }
    assert_true(isnan(bf16_to_f32(bf16_from_f32_at_random(NAN, 0xffff))));
    assert_true(isnan(bf16_to_f32(bf16_from_f32_at_random(-NAN, 0xffff))));
    assert_true(bf16_to_f32(bf16_from_f32_at_random(INFINITY, 0xffff)) == INFINITY);
    assert_true(bf16_to_f32(bf16_from_f32_at_random(-INFINITY, 1)) == -INFINITY);
}

static uint64_t number(const struct json *j)
{
    return j->type == JSON_STRING ? strtoull(j->string, NULL, 10) : (uint64_t)j->integer;
}

static void test_reference(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json *root = NULL;
    assert_int_equal(file_read(TITAN_SOURCE_DIR "/tests/unit/base/rng_reference.json", 1 << 20, &text, NULL), TITAN_OK);
    assert_int_equal(json_parse(text.data, text.len, &root, NULL), TITAN_OK);
    int compared = 0;
    for (const struct json *c = root->first; c; c = c->next) {
        struct rng_key key = rng_key(number(json_get(c, "seed")), json_string(c, "name", NULL));
        assert_int_equal(key.k[0], json_int(c, "k0", -1));
        assert_int_equal(key.k[1], json_int(c, "k1", -1));
        const struct json *u = json_get(c, "uniform")->first, *n = json_get(c, "normal")->first;
        for (const struct json *i = json_get(c, "index")->first; i; i = i->next, u = u->next, n = n->next) {
            assert_true(rng_uniform(key, number(i)) == (float)u->real);
            float expected = (float)n->real, got = rng_normal(key, number(i));
            /* libm's last bit in double can move the rounding to float by one step at most */
            assert_true(got == expected || got == nextafterf(expected, INFINITY) ||
                        got == nextafterf(expected, -INFINITY));
            compared++;
        }
        const struct json *p = json_get(c, "permute")->first;
        for (const struct json *m = json_get(c, "permute_n")->first; m; m = m->next, p = p->next)
            assert_int_equal(rng_permute(key, number(m) / 3, number(m)), number(p));
    }
    assert_int_equal(compared, 32);
    json_free(root);
}

static void test_keys_differ(void **state)
{
    (void)state;
    struct rng_key a = rng_key(1, "layers.0"), b = rng_key(1, "layers.1"), c = rng_key(2, "layers.0");
    assert_memory_not_equal(&a, &b, sizeof(a));
    assert_memory_not_equal(&a, &c, sizeof(a));
    assert_true(rng_normal(a, 0) != rng_normal(a, 1));
}

static void test_moments(void **state)
{
    (void)state;
    struct rng_key key = rng_key(3, "moments");
    enum { N = 200000 };
    double sum = 0, square = 0, fourth = 0, uniform = 0, pair = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(key, i), u = rng_uniform(key, i);
        assert_true(isfinite(x) && fabs(x) < 6.67 && u >= 0 && u < 1);
        sum += x;
        square += x * x;
        fourth += x * x * x * x;
        uniform += u;
        if (i & 1)
            pair += x * (double)rng_normal(key, i - 1);
    }
    /* five standard errors: 1/sqrt(N), sqrt(2/N), sqrt(96/N), sqrt(1/12/N), 1/sqrt(N/2) */
    assert_true(fabs(sum / N) < 5 / sqrt(N));
    assert_true(fabs(square / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(fourth / N - 3) < 5 * sqrt(96.0 / N));
    assert_true(fabs(uniform / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(pair / (N / 2)) < 5 / sqrt(N / 2));
}

/* A range holds what the elements are one by one, wherever it begins and ends. */
static void test_normals(void **state)
{
    (void)state;
    struct rng_key key = rng_key(4, "range");
    for (uint64_t start = 0; start < 4; start++)
        for (uint64_t count = 0; count < 7; count++) {
            float out[8] = {[7] = 77};
            out[count] = 99;
            rng_normals(key, start, count, out);
            for (uint64_t i = 0; i < count; i++)
                assert_true(out[i] == rng_normal(key, start + i));
            assert_true(out[count] == 99);
        }
}

static void test_permute(void **state)
{
    (void)state;
    struct rng_key key = rng_key(4, "permute");
    for (uint64_t n = 1; n <= 5000; n = n < 70 ? n + 1 : n * 3 / 2) {
        _cleanup_free_ unsigned char *seen = calloc(1, n);
        assert_non_null(seen);
        uint64_t fixed = 0;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = rng_permute(key, i, n);
            assert_true(p < n);
            assert_false(seen[p]);
            seen[p] = 1;
            fixed += p == i;
        }
        /* a random permutation has one fixed point on average; twelve have a chance of 1e-9 */
        assert_true(n < 20 || fixed < 12);
    }
    assert_true(rng_permute(key, UINT64_MAX - 1, UINT64_MAX) < UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),  cmocka_unit_test(test_reference), cmocka_unit_test(test_keys_differ),
        cmocka_unit_test(test_moments), cmocka_unit_test(test_normals),   cmocka_unit_test(test_permute),
        cmocka_unit_test(test_words),   cmocka_unit_test(test_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
