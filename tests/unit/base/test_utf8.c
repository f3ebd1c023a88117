/* SPDX-License-Identifier: Apache-2.0 */
/* test_utf8.c - which characters a name may have, and how others are shown. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

#define FIT(text) (text_unfit(text, strlen(text)) == strlen(text))

static void test_fit(void **state)
{
    (void)state;
    static const char *const good[] = {"",
                                       "run 7",
                                       "gr\u00f6\u00dfer",
                                       "\u540d\u524d",
                                       "\u05e9\u05dc\u05d5\u05dd",
                                       "\u00a0",
                                       "\u20ac",
                                       "\U0001f600",
                                       "\u0301e",
                                       "\xff\xfe not UTF-8",
                                       "\xe2\x80",
                                       "\u2027\u202f",
                                       "\ufffd",
                                       "\U0001f469\u200d\U0001f4bb",
                                       "\U0001f3f3\ufe0f\u200d\U0001f308 \u2764\ufe0f\u200d\U0001f525"};
    for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
        char text[64];
        assert_true(FIT(good[i]));
        (void)snprintf(text, sizeof(text), "%s", good[i]);
        text_fit(text, '?');
        assert_string_equal(text, good[i]);
    }
}

/* A joiner shows where it joins two pictures only. */
static void test_joiner(void **state)
{
    (void)state;
    static const char *const bad[] = {"a\u200db",
                                      "\u200d\U0001f4bb",
                                      "\U0001f469\u200d",
                                      "\U0001f469\u200dx",
                                      "\U0001f469\u200d\u200d\U0001f4bb",
                                      "a\ufe0f\u200d\U0001f4bb"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_false(FIT(bad[i]));
}

static void test_blank(void **state)
{
    (void)state;
    assert_true(text_blank(" ") && text_blank("  \u00a0\u3000\u2003"));
    assert_false(text_blank("") || text_blank(" x") || text_blank("\xff") || text_blank("\u0301"));
}

static void test_unfit(void **state)
{
    (void)state;
    static const char *const bad[] = {"\n",     "\x1b",   "\x7f",   "\xc2\x80", "\xc2\x9b", "\u00ad",     "\u061c",
                                      "\u180e", "\u200b", "\u200d", "\u200f",   "\u2028",   "\u202a",     "\u202e",
                                      "\u2060", "\u2066", "\u2069", "\ufeff",   "\ufff9",   "\U000e0041", "\U0001d173"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char text[32];
        (void)snprintf(text, sizeof(text), "ab%scd", bad[i]);
        assert_int_equal(text_unfit(text, strlen(text)), 2);
        text_fit(text, '?');
        assert_string_equal(text, "ab?cd");
        assert_true(FIT(text));
    }
    char all[] = "\u202e\u202ex\n\xff\xc2";
    text_fit(all, ' ');
    assert_string_equal(all, "  x \xff\xc2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fit), cmocka_unit_test(test_joiner),
                                       cmocka_unit_test(test_blank), cmocka_unit_test(test_unfit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
