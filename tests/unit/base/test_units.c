/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h, units.h, utf8.h */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "base/utf8.h"

static void test_clock(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(clock_format(0, text), "1970-01-01T00:00:00.000Z");
    assert_string_equal(clock_format(INT64_C(1795204800123), text), "2026-11-20T20:00:00.123Z");
    assert_string_equal(clock_format(-1, text), "1969-12-31T23:59:59.999Z");
    assert_true(strlen(clock_format(INT64_MAX, text)) < 32);
    assert_string_equal(clock_format(INT64_MIN, text), "(time out of range)");
    assert_string_equal(clock_format(INT64_C(-62167219200001), text), "(time out of range)"); /* before the year 0 */
    int64_t a = clock_mono_ns(), b = clock_mono_ns();
    assert_true(b >= a && a > 0);
    assert_true(clock_wall_ms() > INT64_C(1700000000000));
}

static void test_bytes(void **state)
{
    (void)state;
    char t[UNITS_TEXT];
    assert_string_equal(format_bytes(0, t), "0 B");
    assert_string_equal(format_bytes(1023, t), "1023 B");
    assert_string_equal(format_bytes(1024, t), "1.0 KiB");
    assert_string_equal(format_bytes(1288490189, t), "1.2 GiB");
    assert_string_equal(format_bytes((UINT64_C(1) << 30) - 1, t), "1.0 GiB");
    assert_string_equal(format_bytes(UINT64_MAX, t), "16.0 EiB");
}

static void test_exact_bytes(void **state)
{
    (void)state;
    char t[UNITS_TEXT];
    static const struct {
        const char *text, *again;
        uint64_t bytes;
    } good[] = {{"0B", "0B", 0},
                {"17B", "17B", 17},
                {"16GiB", "16GiB", UINT64_C(16) << 30},
                {"16 GiB", "16GiB", UINT64_C(16) << 30},
                {"1.5GiB", "1536MiB", UINT64_C(1536) << 20},
                {"2048KiB", "2MiB", UINT64_C(2) << 20},
                {"1537B", "1537B", 1537},
                {"7EiB", "7EiB", UINT64_C(7) << 60},
                {"9223372036854775807B", "9223372036854775807B", INT64_MAX}};
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        uint64_t bytes = 1;
        assert_true(units_parse_bytes(good[i].text, &bytes));
        assert_true(bytes == good[i].bytes);
        assert_string_equal(format_exact_bytes(bytes, t), good[i].again);
    }
    static const char *const bad[] = {"",
                                      "16",
                                      "16G",
                                      "16gib",
                                      "16GB",
                                      "GiB",
                                      "-1GiB",
                                      "+1GiB",
                                      " 1GiB",
                                      "1GiB ",
                                      "1..5GiB",
                                      "1.5.5GiB",
                                      ".5GiB",
                                      "1e3GiB",
                                      "0x1GiB",
                                      "8EiB",
                                      "nanGiB",
                                      "1\tGiB",
                                      "99999999999999999999999999999999999B"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        uint64_t bytes;
        if (units_parse_bytes(bad[i], &bytes))
            fail_msg("%s", bad[i]);
    }
}

static void test_duration(void **state)
{
    (void)state;
    char t[UNITS_TEXT];
    assert_string_equal(format_duration(0.0000123, t), "12 us");
    assert_string_equal(format_duration(0.0012, t), "1.2 ms");
    assert_string_equal(format_duration(0.0123, t), "12 ms");
    assert_string_equal(format_duration(0.99999, t), "1.0s");
    assert_string_equal(format_duration(7.25, t), "7.2s");
    assert_string_equal(format_duration(59.6, t), "1m 00s");
    assert_string_equal(format_duration(200.4, t), "3m 20s");
    assert_string_equal(format_duration(7260, t), "2h 01m");
    assert_string_equal(format_duration(93784, t), "1d 2h");
    assert_string_equal(format_duration(-1, t), "-");
    assert_string_equal(format_duration(NAN, t), "-");
}

static void test_count(void **state)
{
    (void)state;
    char t[UNITS_TEXT];
    assert_string_equal(format_count(0, t), "0");
    assert_string_equal(format_count(999, t), "999");
    assert_string_equal(format_count(12345, t), "12.3k");
    assert_string_equal(format_count(999999, t), "1.00M");
    assert_string_equal(format_count(8030261248.0, t), "8.03B");
    assert_string_equal(format_count(-1500, t), "-1.50k");
    assert_string_equal(format_count(0.5, t), "0.50");
}

static void test_real(void **state)
{
    (void)state;
    char t[UNITS_TEXT];
    assert_string_equal(format_real(3, t), "3.0");
    assert_string_equal(format_real(0.1, t), "0.1");
    assert_string_equal(format_real(1e-8, t), "1e-08");
    assert_string_equal(format_real(-0.0, t), "-0.0");
    assert_string_equal(format_real(1e22, t), "1e+22");
    unsigned seed = 7;
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = (uint64_t)rand_r(&seed) << 42 ^ (uint64_t)rand_r(&seed) << 21 ^ (uint64_t)rand_r(&seed);
        double value;
        memcpy(&value, &bits, sizeof(value));
        if (!isfinite(value))
            continue;
        assert_true(strtod(format_real(value, t), NULL) == value);
        assert_true(strlen(t) < UNITS_TEXT - 2);
    }
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bad; /* offset; (size_t)-1 = valid */
    } cases[] = {
        {"", (size_t)-1},
        {"plain", (size_t)-1},
        {"\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80", (size_t)-1},
        {"a\xc0\x80", 1},          /* overlong */
        {"a\xe0\x80\x80", 1},      /* overlong */
        {"ab\xf0\x80\x80\x80", 2}, /* overlong */
        {"\xed\xa0\x80", 0},       /* surrogate */
        {"\xf4\x90\x80\x80", 0},   /* above U+10FFFF */
        {"\xf5\x80\x80\x80", 0},
        {"\x80", 0},
        {"x\xe6\x97", 1}, /* cut */
        {"\xff", 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        size_t len = strlen(cases[i].text);
        assert_int_equal(utf8_check(cases[i].text, len), cases[i].bad == (size_t)-1 ? len : cases[i].bad);
    }
    for (uint32_t code = 1; code <= 0x10ffff; code += code < 0x900 ? 1 : 61) {
        if (code >= 0xd800 && code <= 0xdfff)
            continue;
        char out[4];
        size_t n = utf8_encode(code, out);
        assert_int_equal(utf8_check(out, n), n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clock),    cmocka_unit_test(test_bytes), cmocka_unit_test(test_exact_bytes),
        cmocka_unit_test(test_duration), cmocka_unit_test(test_count), cmocka_unit_test(test_real),
        cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
