/* SPDX-License-Identifier: Apache-2.0 */
/* The table of codecs, the sizes of what they send, and the arithmetic of one value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/codecs.h"
#include "base/float8.h"

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(codec_names(), "none|f32|bf16|fp8|int8|int4|loco");
    assert_int_equal(codec_find("none"), CODEC_NONE);
    assert_int_equal(codec_find("loco"), CODEC_LOCO);
    assert_int_equal(codec_find("int"), CODECS);
    assert_int_equal(codec_find(""), CODECS);
    for (int c = 0; c < CODECS; c++)
        assert_int_equal(codec_find(codec_row((enum codec)c)->name), c);
    assert_true(codec_row(CODEC_LOCO)->error);
    assert_false(codec_row(CODEC_INT4)->error);
    assert_int_equal(codec_row(CODEC_INT4)->bits, 4);
}

static void test_sizes(void **state)
{
    static const struct {
        enum codec c;
        int64_t n;
        size_t want;
    } cases[] = {
        {CODEC_NONE, 5, 0},
        {CODEC_F32, 0, 0},
        {CODEC_F32, 3, 16},
        {CODEC_F32, 5, 32},
        {CODEC_BF16, 9, 32},
        {CODEC_FP8, 1, 32},
        {CODEC_INT8, 0, 0},
        {CODEC_INT8, 1024, 16 + 1024},
        {CODEC_INT8, 1025, 16 + 1040},
        {CODEC_INT8, 4 * 1024, 16 + 4096},
        {CODEC_INT8, 4 * 1024 + 1, 32 + 4096 + 16},
        {CODEC_INT4, 1, 32},
        {CODEC_INT4, 33, 16 + 32},
        {CODEC_LOCO, 1 << 20, 4096 + (1 << 19)},
        {CODEC_LOCO, 0x100000001LL, 16777216 + 16 + 0x80000000LL + 16}, /* more than 2^32 values */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        if (codec_bytes(cases[i].c, cases[i].n) != cases[i].want)
            fail_msg("%s of %lld values: %zu bytes, not %zu", codec_row(cases[i].c)->name, (long long)cases[i].n,
                     codec_bytes(cases[i].c, cases[i].n), cases[i].want);
    assert_int_equal(codec_error_bytes(0), 0);
    assert_int_equal(codec_error_bytes(1), 32);
    assert_int_equal(codec_error_bytes(1025), 16 + 1040);
    assert_int_equal(codec_buckets(1024), 1);
    assert_int_equal(codec_buckets(1025), 2);
}

static float scale_of(enum codec c, bool stochastic, float largest)
{
    return codec_scale(c, stochastic, codec_magnitude(largest));
}

static void test_scales(void **state)
{
    (void)state;
    assert_true(scale_of(CODEC_INT8, false, -3.0f) == 3.0f / 128);
    assert_true(scale_of(CODEC_INT8, true, 3.0f) == 3.0f / 127);
    assert_true(scale_of(CODEC_INT4, false, 3.0f) == 3.0f / 8);
    assert_true(scale_of(CODEC_INT4, true, 3.0f) == 3.0f / 7);
    assert_true(scale_of(CODEC_LOCO, false, 3.0f) == 3.0f / 8);
    assert_true(codec_error_scale(codec_magnitude(3.0f)) == 3.0f / 127);
    /* a power of two, as small as 448 allows */
    assert_true(scale_of(CODEC_FP8, false, 448.0f) == 1.0f);
    assert_true(scale_of(CODEC_FP8, false, nextafterf(448.0f, 500.0f)) == 2.0f);
    assert_true(scale_of(CODEC_FP8, false, 256.0f) == 1.0f);
    assert_true(scale_of(CODEC_FP8, false, nextafterf(256.0f, 0.0f)) == 1.0f);
    assert_true(scale_of(CODEC_FP8, false, 224.0f) == 0.5f);
    for (int c = CODEC_FP8; c < CODECS; c++) {
        assert_true(scale_of((enum codec)c, false, 0.0f) == 0.0f);
        assert_true(scale_of((enum codec)c, false, nextafterf(0x1p-100f, 0.0f)) == 0.0f);
        assert_true(scale_of((enum codec)c, false, 0x1p-100f) > 0.0f);
        assert_true(isfinite(1.0f / scale_of((enum codec)c, false, 0x1p-100f)));
        const float most = nextafterf(0x1p126f, 0.0f), s = scale_of((enum codec)c, false, most);
        assert_true(isnormal(s) && isnormal(1.0f / s));
        assert_true(isnan(scale_of((enum codec)c, false, 0x1p126f)));
        assert_true(isnan(scale_of((enum codec)c, false, INFINITY)));
        assert_true(isnan(scale_of((enum codec)c, false, -NAN)));
    }
    assert_true(isfinite(float8_round(255.9f, FLOAT8_E4M3) * scale_of(CODEC_FP8, false, nextafterf(0x1p126f, 0.0f))));
    assert_true(codec_error_scale(codec_magnitude(NAN)) == 0.0f);
    assert_true(codec_error_scale(codec_magnitude(0x1p-101f)) == 0.0f);
}

static int rounded(float x, float inverse, float least, float most)
{
    const float t = codec_round(x, inverse, least, most);
    assert_true((float)codec_code(t) == codec_value(t));
    return codec_code(t);
}

static void test_rounding(void **state)
{
    (void)state;
    static const float ties[] = {-2.5f, -1.5f, -0.5f, 0.5f, 1.5f, 2.5f};
    static const int even[] = {-2, -2, 0, 0, 2, 2};
    for (size_t i = 0; i < ARRAY_SIZE(ties); i++)
        assert_int_equal(rounded(ties[i] * 4.0f, 0.25f, 8, 7), even[i]);
    assert_int_equal(rounded(8.0f, 1.0f, 8, 7), 7);
    assert_int_equal(rounded(-8.0f, 1.0f, 8, 7), -8);
    assert_int_equal(rounded(-9.0f, 1.0f, 8, 7), -8);
    assert_int_equal(rounded(1e30f, 1e30f, 128, 127), 127);
    assert_int_equal(rounded(-1e30f, 1e30f, 128, 127), -128);
    assert_int_equal(rounded(NAN, 1.0f, 128, 127), -128);
    assert_int_equal(rounded(0.0f, 1.0f, 128, 127), 0);

    /* every one of the 65,536 offsets: up in a share equal to the fraction */
    static const float values[] = {0.0f, 0.25f, 0.5f, 1.75f, -0.25f, -3.625f, 7.0f, -7.0f, 6.9f};
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        double sum = 0;
        for (uint32_t r = 0; r < 65536; r++)
            sum += (double)codec_value(codec_round_at_random(values[i], 1.0f, codec_offset(r), 8, 7));
        assert_true(fabs(sum / 65536 - (double)values[i]) < 0x1p-16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
