/* SPDX-License-Identifier: Apache-2.0 */
/* buf.h */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"

static void test_append(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf b = BUF_INIT;
    assert_null(b.data);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(buf_append(&b, "abc", 3), TITAN_OK);
    assert_int_equal(b.len, 3000);
    assert_int_equal(b.data[3000], '\0');
    assert_int_equal(strlen(b.data), 3000);
    buf_consume(&b, 2998);
    assert_string_equal(b.data, "bc");
    buf_consume(&b, 99);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    assert_int_equal(buf_append(&b, NULL, 0), TITAN_OK);
    buf_put(&b, NULL, 0);
    assert_string_equal(b.data, "");
    buf_free(&b);
    assert_null(b.data);
    buf_puts(&b, "again");
    assert_string_equal(b.data, "again");
}

static void test_limit(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf b = {.limit = 10};
    assert_int_equal(buf_append(&b, "12345678", 8), TITAN_OK);
    assert_int_equal(buf_append(&b, "abc", 3), TITAN_ELIMIT);
    assert_string_equal(b.data, "12345678");
    assert_int_equal(buf_reserve(&b, SIZE_MAX), TITAN_ELIMIT);
    assert_false(buf_failed(&b));
    buf_puts(&b, "abc"); /* keeps what fits, then the failure sticks */
    assert_string_equal(b.data, "12345678ab");
    assert_true(buf_failed(&b));
    buf_puts(&b, "x");
    buf_printf(&b, "%d", 7);
    assert_string_equal(b.data, "12345678ab");
}

static void test_printf(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf b = BUF_INIT;
    char longer[2000];
    memset(longer, 'y', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    buf_printf(&b, "%s-%d;", "a", 1);
    buf_printf(&b, "%s", longer);
    assert_int_equal(b.len, 4 + 1999);
    assert_false(buf_failed(&b));
    buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_true(b.cap > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_printf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
