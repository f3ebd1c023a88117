/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals on record: the first at once, a storm as one event a minute with its count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/auth/audit.h"

struct seen {
    int n;
    uint64_t total;
    struct audit_record last;
};

static void each(const struct audit_record *r, void *data)
{
    struct seen *s = data;
    s->n++;
    s->total += r->count;
    s->last = *r;
}

static struct audit_record record(const char *actor, unsigned method, uint64_t job)
{
    struct audit_record r = {.method = method, .outcome = TITAN_EPERM, .job_id = job};
    (void)snprintf(r.actor, sizeof(r.actor), "%s", actor);
    return r;
}

static void test_storm(void **state)
{
    (void)state;
    struct audit *a = audit_new();
    struct seen s = {0};
    struct audit_record r = record("mallory", 4, 7), other = record("mallory", 5, 7);
    assert_true(audit_failed(a, &r, 1000));
    for (int i = 0; i < 100000; i++)
        assert_false(audit_failed(a, &r, 1000 + i / 2));
    assert_true(audit_failed(a, &other, 1001)); /* another method is another matter */
    assert_int_equal(audit_flush(a, 60000, false, each, &s), 61000);
    assert_int_equal(s.n, 0);
    assert_int_equal(audit_flush(a, 61000, false, each, &s), 61001);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.last.count, 100000);
    assert_int_equal(s.last.job_id, 7);
    assert_string_equal(s.last.actor, "mallory");
    assert_true(audit_failed(a, &r, 61500));
    assert_int_equal(audit_flush(a, 62000, true, each, &s), 0);
    assert_int_equal(s.n, 1); /* nothing had followed */
    audit_free(a);
}

/* As many actors as one likes: what does not fit is counted, and none of it gets lost. */
static void test_many_actors(void **state)
{
    (void)state;
    struct audit *a = audit_new();
    struct seen s = {0};
    int at_once = 0;
    for (int i = 0; i < 10 * AUDIT_SLOTS; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "uid:%d", i);
        struct audit_record r = record(name, 4, (uint64_t)i);
        at_once += audit_failed(a, &r, 1000);
    }
    assert_int_equal(at_once, AUDIT_SLOTS + 1);
    assert_int_equal(audit_flush(a, 2000, true, each, &s), 0);
    assert_int_equal(s.total + (uint64_t)at_once, 10 * AUDIT_SLOTS);
    assert_string_equal(s.last.actor, "others");
    audit_free(a);
}

/* A clock that is set back must not keep a count for ever. */
static void test_clock_set_back(void **state)
{
    (void)state;
    struct audit *a = audit_new();
    struct seen s = {0};
    struct audit_record r = record("mallory", 4, 7);
    assert_true(audit_failed(a, &r, INT64_C(1) << 50));
    assert_false(audit_failed(a, &r, (INT64_C(1) << 50) + 1));
    (void)audit_flush(a, 1000, false, each, &s);
    assert_int_equal(s.n, 1);
    audit_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_storm),
        cmocka_unit_test(test_many_actors),
        cmocka_unit_test(test_clock_set_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
