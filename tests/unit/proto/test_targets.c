/* SPDX-License-Identifier: Apache-2.0 */
/* One address or a list of them, as people write them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/rpc/targets.h"

static void test_lists(void **state)
{
    (void)state;
    struct rpc_targets t;
    assert_int_equal(rpc_targets_parse("unix:/run/a,b.sock", &t, NULL), TITAN_OK); /* a path may have one */
    assert_int_equal(t.n, 1);
    assert_string_equal(t.at[0], "unix:/run/a,b.sock");
    assert_int_equal(rpc_targets_parse("a.example:7071", &t, NULL), TITAN_OK);
    assert_int_equal(t.n, 1);
    assert_int_equal(rpc_targets_parse("a.example:7071, [2001:db8::1]:7071,10.0.0.3:1 ", &t, NULL), TITAN_OK);
    assert_int_equal(t.n, 3);
    assert_string_equal(t.at[0], "a.example:7071");
    assert_string_equal(t.at[1], "[2001:db8::1]:7071");
    assert_string_equal(t.at[2], "10.0.0.3:1");
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"a.example", "'a.example' is not an address"},
        {"a:x", "'a:x' is not an address"},
        {"", "'' is not an address"},
        {"a:7071,b", "address 2, 'b', is not HOST:PORT"},
        {"a:7071,", "address 2, '', is not HOST:PORT"},
        {",a:7071", "address 1, '', is not HOST:PORT"},
        {"a:7071,b:0", "address 2, 'b:0', is not HOST:PORT"},
        {"a:7071,b:70000", "address 2, 'b:70000', is not HOST:PORT"},
        {"a:7071,b c:7071", "address 2, 'b c:7071', is not HOST:PORT"},
        {"a:7071,unix:/run/x", "address 2, 'unix:/run/x', is not HOST:PORT"},
        {"a:7071,b:7071,A:7071", "address 3, 'A:7071', is address 1 once more"},
        {"a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9", "address 9, 'a:9', is one too many: at most 8"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct titan_error err = {0};
        struct rpc_targets t;
        assert_int_equal(rpc_targets_parse(bad[i].text, &t, &err), TITAN_EINVAL);
        if (!strstr(err.msg, bad[i].message))
            fail_msg("'%s': \"%s\"", bad[i].text, err.msg);
    }
    char longest[RPC_TARGETS_TEXT];
    struct rpc_targets t;
    for (int with = 0; with < 2; with++) {
        memset(longest, 'a', sizeof(longest));
        (void)snprintf(longest + 300, sizeof(longest) - 300, ":1%s", with ? ",b:1" : "");
        assert_int_equal(rpc_targets_parse(longest, &t, NULL), TITAN_EINVAL);
    }
}

static void test_said(void **state)
{
    (void)state;
    char reported[RPC_TARGETS_TEXT] = "";
    struct titan_error why = {0};
    (void)titan_fail(&why, TITAN_EUNREACHABLE, RPC_NO_ANSWER "a:1: Connection refused");
    rpc_targets_report(reported, "a:1", &why);
    (void)titan_fail(&why, TITAN_EEXIST, "the name is taken");
    rpc_targets_report(reported, "b:1", &why);
    assert_string_equal(reported, "a:1: Connection refused; b:1: the name is taken");
    for (int i = 0; i < 100; i++)
        rpc_targets_report(reported, "b:1", &why); /* stays in its bounds */
    assert_int_equal(strlen(reported), sizeof(reported) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
