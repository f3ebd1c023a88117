/* SPDX-License-Identifier: Apache-2.0 */
/* test_distance.c - edit distance against values worked out by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/cleanup.h"
#include "base/distance.h"

static void test_distance(void **state)
{
    (void)state;
    assert_int_equal(text_distance("", ""), 0);
    assert_int_equal(text_distance("", "abc"), 3);
    assert_int_equal(text_distance("kitten", "sitting"), 3);
    assert_int_equal(text_distance("status", "statsu"), 2);
    assert_int_equal(text_distance("a", "a"), 0);
    char longer[200];
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(text_distance(longer, longer), DISTANCE_TEXT_MAX);
}

static void test_nearest(void **state)
{
    (void)state;
    static const char *const words[] = {"submit", "status", "list", "cancel"};
    assert_string_equal(text_nearest("statsu", words, ARRAY_SIZE(words)), "status");
    assert_string_equal(text_nearest("lst", words, ARRAY_SIZE(words)), "list");
    assert_null(text_nearest("frobnicate", words, ARRAY_SIZE(words)));
    assert_null(text_nearest("x", words, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_distance), cmocka_unit_test(test_nearest)};
    return cmocka_run_group_tests_name("distance", tests, NULL, NULL);
}
