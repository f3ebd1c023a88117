/* SPDX-License-Identifier: Apache-2.0 */
/* pairs.h */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/pairs.h"
#include "tests/support/seeded.h"

__attribute__((format(printf, 2, 3))) static const char *pairs(size_t room, const char *fmt, ...)
{
    static char out[PAIRS_MAX];
    va_list args;
    memset(out, '#', sizeof out);
    va_start(args, fmt);
    pairs_format(out, room, fmt, args);
    va_end(args);
    assert_true(strlen(out) < room);
    return out;
}

#define ALL sizeof(char[PAIRS_MAX])

static void test_values(void **state)
{
    (void)state;
    assert_string_equal(pairs(ALL, "text=\"%s\" job=%d", "\"/x\" job=1 level=error text=\"", 7),
                        "text=\"\\\"/x\\\" job=1 level=error text=\\\"\" job=7");
    assert_string_equal(pairs(ALL, "text=\"%s\" job=%d", "a\\", 7), "text=\"a\\\\\" job=7");
    assert_string_equal(pairs(ALL, "node=%s up=%s", "n1", "10.0.0.1:7070"), "node=n1 up=10.0.0.1:7070");
    assert_string_equal(pairs(ALL, "node=%s", "n1 level=error"), "node=\"n1 level=error\"");
    assert_string_equal(pairs(ALL, "node=%s", "a=b"), "node=\"a=b\"");
    assert_string_equal(pairs(ALL, "node=%s", "\"n1"), "node=\"\\\"n1\"");
    assert_string_equal(pairs(ALL, "node=%s", "n1\nn2"), "node=\"n1\nn2\"");
    assert_string_equal(pairs(ALL, "node=%s end=%d", "", 1), "node=\"\" end=1");
    assert_string_equal(pairs(ALL, "a=\"%.3s\" b=%.3s c=\"%.*s\"", "12\"456", "123 456", 2, "xyz"),
                        "a=\"12\\\"\" b=123 c=\"xy\"");
    /* a key that is there or not, and pairs that were made before */
    assert_string_equal(pairs(ALL, "job=1%s%s", " node=", "n 1"), "job=1 node=\"n 1\"");
    assert_string_equal(pairs(ALL, "job=1%s%s", "", ""), "job=1");
    assert_string_equal(pairs(ALL, "%s", "a=\"x y\" b=1"), "a=\"x y\" b=1");
    assert_string_equal(pairs(ALL, "%s", ""), "");
}

static void test_numbers(void **state)
{
    (void)state;
    char as_printf[400];
#define FORMAT "d=%d u=%u ld=%ld lu=%lu lld=%lld llu=%llu zu=%zu x=%016lx f=%.2f g=%g e=%.3e c=%c half=100%% after=%5d"
#define VALUES                                                                                                         \
    -7, 4000000000u, -8L, ~0ul, (long long)INT64_MIN, ~0ull, sizeof(char[9]), 0xbeeful, 2.345, 1e-9, 12345.6, 'x', 42
    (void)snprintf(as_printf, sizeof as_printf, FORMAT, VALUES);
    assert_string_equal(pairs(ALL, FORMAT, VALUES), as_printf);
}

static void test_cut(void **state)
{
    (void)state;
    assert_string_equal(pairs(16, "text=\"%s\" a=1", "0123456789"), "text=\"01234...\"");
    assert_string_equal(pairs(16, "text=\"%s\" a=1", "0123\"56789"), "text=\"0123...\""); /* no half of a pair */
    assert_string_equal(pairs(16, "text=%s a=1", "0123456789"), "text=012345...");
    assert_string_equal(pairs(16, "n=%d m=%d a=1", 123456, 789), "n=123456 m=...");
}

/* Any text is one value, and comes back as it was. */
static void test_any_text(void **state)
{
    (void)state;
    seeded_open("pairs", 0);
    for (int round = 0; round < 20000; round++) {
        char text[24], again[24], wanted[64];
        const size_t len = seeded_draw(sizeof text - 1);
        for (size_t i = 0; i < len; i++)
            text[i] = "\"\\ =ax\n"[seeded_draw(7)];
        text[len] = '\0';
        const char *const line = pairs(ALL, "text=\"%s\" node=%s end=1", text, text);
        const size_t first = pairs_unquote(line + strlen("text=\""), again);
        assert_string_equal(again, text);
        const char *rest = line + strlen("text=\"") + first;
        assert_memory_equal(rest, "\" node=", strlen("\" node="));
        rest += strlen("\" node=");
        if (*rest == '"') {
            rest += 1 + pairs_unquote(rest + 1, again);
            assert_string_equal(again, text);
            assert_string_equal(rest, "\" end=1");
        } else {
            (void)snprintf(wanted, sizeof wanted, "%s end=1", text);
            assert_string_equal(rest, wanted);
            assert_true(len > 0 && strcspn(text, "\" =\\\n") == len);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_any_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
