/* SPDX-License-Identifier: Apache-2.0 */
/* Outcomes of a command on several names: each is tried, the worst counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/cleanup.h"
#include "ctl/outcomes.h"

struct plan {
    titan_status of[8];
    size_t tried;
};

static titan_status one(void *data, size_t i, struct titan_error *err)
{
    struct plan *p = data;
    assert_int_equal(i, p->tried++);
    return p->of[i] == TITAN_OK ? TITAN_OK : titan_fail(err, p->of[i], "number %zu", i);
}

static titan_status ends(size_t n, struct plan p, const char *msg, size_t tried)
{
    struct titan_error err = {.status = TITAN_OK};
    const titan_status status = outcomes(n, one, &p, "are bad", &err);
    assert_string_equal(err.msg, msg);
    assert_int_equal(err.status, status);
    assert_int_equal(p.tried, tried);
    return status;
}

static void test_each_is_tried(void **state)
{
    (void)state;
    assert_int_equal(ends(0, (struct plan){.tried = 0}, "", 0), TITAN_OK);
    assert_int_equal(ends(2, (struct plan){.tried = 0}, "", 2), TITAN_OK);
    assert_int_equal(ends(1, (struct plan){{TITAN_EPERM}, 0}, "number 0", 1), TITAN_EPERM);
    assert_int_equal(ends(3, (struct plan){{TITAN_ECONFLICT, TITAN_OK, TITAN_ENOTFOUND}, 0}, "2 of 3 are bad", 3),
                     TITAN_ENOTFOUND);
    assert_int_equal(ends(3, (struct plan){{TITAN_ENOTFOUND, TITAN_ECONFLICT, TITAN_OK}, 0}, "2 of 3 are bad", 3),
                     TITAN_ENOTFOUND);
}

/* What would end the others in the same way. */
static void test_none_is_tried_behind(void **state)
{
    (void)state;
    assert_int_equal(ends(4, (struct plan){{TITAN_OK, TITAN_EUNREACHABLE}, 0}, "3 of 4 are bad", 2),
                     TITAN_EUNREACHABLE);
    assert_int_equal(ends(3, (struct plan){{TITAN_EPERM, TITAN_ECANCELLED}, 0}, "3 of 3 are bad", 2), TITAN_ECANCELLED);
}

/* docs/operations.md has it. */
static void test_order(void **state)
{
    (void)state;
    static const titan_status order[] = {TITAN_ECANCELLED, TITAN_EUNREACHABLE, TITAN_EPERM, TITAN_EINVAL,
                                         TITAN_ENOTFOUND,  TITAN_EDEVICE,      TITAN_EJOB,  TITAN_EUNPLACEABLE,
                                         TITAN_ECONFLICT,  TITAN_ETIMEDOUT,    TITAN_OK};
    for (size_t i = 0; i < ARRAY_SIZE(order); i++)
        for (size_t k = 0; k < ARRAY_SIZE(order); k++)
            assert_int_equal(outcome_worse(order[i], order[k]), i < k);
#define X(name, value, text, grpc, code) assert_int_equal(outcome_worse(TITAN_##name, TITAN_OK), (value) != 0);
    TITAN_STATUS_MAP(X)
#undef X
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_is_tried),
        cmocka_unit_test(test_none_is_tried_behind),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
