/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/cleanup.h"

static void test_alloc(void **state)
{
    (void)state;
    _cleanup_(arena_free) struct arena a = {0};
    char *small[300];
    for (size_t i = 0; i < ARRAY_SIZE(small); i++) {
        small[i] = arena_alloc(&a, i + 1);
        assert_int_equal((uintptr_t)small[i] % 16, 0);
        for (size_t k = 0; k <= i; k++)
            assert_int_equal(small[i][k], 0);
        memset(small[i], (int)i, i + 1);
    }
    char *large = arena_alloc(&a, 1 << 20); /* a chunk of its own */
    memset(large, 0xff, 1 << 20);
    for (size_t i = 0; i < ARRAY_SIZE(small); i++)
        for (size_t k = 0; k <= i; k++)
            assert_int_equal((unsigned char)small[i][k], i & 0xff);
    assert_non_null(arena_alloc(&a, 0));
    arena_free(&a);
    assert_null(a.chunks);
    char *again = arena_alloc(&a, 8);
    assert_int_equal(again[0], 0);
}

static void test_text(void **state)
{
    (void)state;
    _cleanup_(arena_free) struct arena a = {0};
    char text[] = "node-7";
    char *copy = arena_strdup(&a, text);
    text[0] = 'x';
    assert_string_equal(copy, "node-7");
    assert_string_equal(arena_strdup(&a, NULL), "");
    assert_string_equal(arena_printf(&a, "%s:%d", "uid", 1000), "uid:1000");
    char longer[5000];
    memset(longer, 'y', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    const char *whole = arena_printf(&a, "<%s>", longer);
    assert_int_equal(strlen(whole), sizeof(longer) + 1);
    assert_string_equal(whole + sizeof(longer), ">");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alloc), cmocka_unit_test(test_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
