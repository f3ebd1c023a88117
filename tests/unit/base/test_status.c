/* SPDX-License-Identifier: Apache-2.0 */
/* status.h and error.h */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/error.h"

static void test_table(void **state)
{
    (void)state;
    int value = 0; /* the rows stand in order, with no gap: look-ups index the table */
#define X(name, number, text, grpc, code)                                                                              \
    assert_int_equal(number, value);                                                                                   \
    assert_string_equal(titan_status_name(TITAN_##name), #name);                                                       \
    assert_string_equal(titan_status_text(TITAN_##name), text);                                                        \
    assert_int_equal(titan_status_grpc(TITAN_##name), grpc);                                                           \
    assert_int_equal(titan_status_exit(TITAN_##name), code);                                                           \
    value--;
    TITAN_STATUS_MAP(X)
#undef X
    assert_string_equal(titan_status_name((titan_status)1), "EBUG");
    assert_string_equal(titan_status_name((titan_status)-999), "EBUG");
}

static void test_from_grpc(void **state)
{
    (void)state;
    assert_int_equal(titan_status_from_grpc(0), TITAN_OK);
    assert_int_equal(titan_status_from_grpc(3), TITAN_EINVAL);
    assert_int_equal(titan_status_from_grpc(5), TITAN_ENOTFOUND);
    assert_int_equal(titan_status_from_grpc(14), TITAN_EUNREACHABLE);
    assert_int_equal(titan_status_from_grpc(9), TITAN_ECONFLICT);
    assert_int_equal(titan_status_from_grpc(2), TITAN_EBUG);
}

static void test_from_errno(void **state)
{
    (void)state;
    assert_int_equal(titan_status_from_errno(0), TITAN_OK);
    assert_int_equal(titan_status_from_errno(ENOENT), TITAN_ENOTFOUND);
    assert_int_equal(titan_status_from_errno(ENOSPC), TITAN_ENOSPC);
    assert_int_equal(titan_status_from_errno(EACCES), TITAN_EPERM);
    assert_int_equal(titan_status_from_errno(ECONNREFUSED), TITAN_EUNREACHABLE);
    assert_int_equal(titan_status_from_errno(ECONNRESET), TITAN_EPEER);
    assert_int_equal(titan_status_from_errno(EIO), TITAN_EIO);
    assert_int_equal(titan_status_from_errno(12345), TITAN_EIO);
}

static titan_status open_missing(struct titan_error *err)
{
    errno = ENOENT;
    return titan_fail_errno(err, "cannot open '%s'", "/nowhere");
}

static titan_status middle(struct titan_error *err)
{
    TRY(open_missing(err));
    return TITAN_OK;
}

static void test_error(void **state)
{
    (void)state;
    struct titan_error err = {0};
    assert_int_equal(middle(&err), TITAN_ENOTFOUND);
    assert_int_equal(err.status, TITAN_ENOTFOUND);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_non_null(strstr(err.file, "test_status.c"));
    assert_string_equal(err.msg, "cannot open '/nowhere': No such file or directory");
    assert_int_equal(titan_error_wrap(&err, "job %d", 12), TITAN_ENOTFOUND);
    assert_string_equal(err.msg, "job 12: cannot open '/nowhere': No such file or directory");
    titan_error_hint(&err, "make it with %s", "touch");
    assert_string_equal(err.hint, "make it with touch");
    /* a new fault leaves nothing of the old one */
    titan_fail(&err, TITAN_EINVAL, "again: %s", err.msg);
    assert_string_equal(err.msg, "again: job 12: cannot open '/nowhere': No such file or directory");
    assert_string_equal(err.hint, "");
    assert_int_equal(err.sys_errno, 0);
}

static void test_error_null(void **state)
{
    (void)state;
    assert_int_equal(middle(NULL), TITAN_ENOTFOUND);
    assert_int_equal(titan_fail(NULL, TITAN_EINVAL, "x"), TITAN_EINVAL);
    titan_error_hint(NULL, "x");
    titan_error_wrap(NULL, "x");
}

static void test_error_cut(void **state)
{
    (void)state;
    char longer[1000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    struct titan_error err = {0};
    titan_fail(&err, TITAN_EIO, "%s", longer);
    assert_int_equal(strlen(err.msg), sizeof(err.msg) - 1);
    assert_string_equal(err.msg + sizeof(err.msg) - 4, "...");
    titan_error_wrap(&err, "front");
    assert_int_equal(strncmp(err.msg, "front: xxx", 10), 0);
    assert_string_equal(err.msg + sizeof(err.msg) - 4, "...");
    titan_fail(&err, TITAN_EIO, "one\nline\x1b[0m");
    assert_string_equal(err.msg, "one line [0m");
}

/* By the errno first, whatever status a caller has put over it. */
static void test_error_short(void **state)
{
    (void)state;
    const int of_the_machine[] = {EMFILE, ENFILE, ENOMEM, ENOSPC, EDQUOT}, others[] = {0, EIO, EACCES, EFBIG, EAGAIN};
    struct titan_error err = {0};
    assert_false(titan_error_short(&err));
    for (size_t i = 0; i < 5; i++) {
        errno = of_the_machine[i];
        titan_fail_errno(&err, "x");
        err.status = TITAN_EINVAL;
        assert_true(titan_error_short(&err));
        errno = others[i];
        titan_fail_errno(&err, "x");
        assert_false(titan_error_short(&err));
    }
    titan_fail(&err, TITAN_ENOSPC, "x");
    assert_true(titan_error_short(&err));
    titan_fail(&err, TITAN_ENOMEM, "a model that does not fit");
    assert_false(titan_error_short(&err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),       cmocka_unit_test(test_from_grpc),  cmocka_unit_test(test_from_errno),
        cmocka_unit_test(test_error),       cmocka_unit_test(test_error_null), cmocka_unit_test(test_error_cut),
        cmocka_unit_test(test_error_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
