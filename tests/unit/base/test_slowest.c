/* SPDX-License-Identifier: Apache-2.0 */
/* slowest.h: which handler took longest, by a clock that only moves when told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <cmocka.h>

#include "base/slowest.h"

static int64_t now_ns = 1000;

/* In place of libc's. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    (void)id;
    *t = (struct timespec){now_ns / 1000000000, now_ns % 1000000000};
    return 0;
}

static void handle(const char *name, int64_t ns)
{
    HANDLER(name);
    now_ns += ns;
}

static void handle_around(int64_t before_ns, int64_t within_ns, int64_t after_ns)
{
    HANDLER("around");
    now_ns += before_ns;
    handle("within", within_ns);
    handle("within", within_ns);
    now_ns += after_ns;
}

static void check(const char *name, int64_t ns)
{
    const struct slowest s = slowest_take();
    assert_string_equal(s.name, name);
    assert_int_equal(s.ns, ns);
}

static void test_longest(void **state)
{
    (void)state;
    check("none", 0);
    handle("first", 10);
    handle("second", 50);
    now_ns += 500; /* in none */
    handle("third", 49);
    check("second", 50);
    check("none", 0);
    handle("quick", 0);
    check("quick", 0);
}

/* The time of one that has a name is not that of the one around it, nor of the next. */
static void test_within(void **state)
{
    (void)state;
    handle_around(3, 20, 2);
    check("within", 20);
    handle_around(20, 30, 20);
    check("around", 40);
    {
        HANDLER("outer");
        handle_around(3, 5, 3);
        now_ns += 8;
        handle("after", 4);
    }
    check("outer", 8);
    handle("next", 1);
    check("next", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_longest), cmocka_unit_test(test_within)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
