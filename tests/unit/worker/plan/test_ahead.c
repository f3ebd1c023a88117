/* SPDX-License-Identifier: Apache-2.0 */
/* ahead.h: what was made ahead is what is made when it is asked for, whichever was wanted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/plans.h"
#include "worker/plan/ahead.h"

#define MOST 4 /* workers */

static struct planned base; /* for so many */

static int open_base(void **state)
{
    static const char *const sets[] = {"training.global_batch_size=12", NULL};
    struct titan_error err = {0};

    (void)state;
    if (planned_open(&base, MOST, "cpu", sets, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return 0;
}

static int close_base(void **state)
{
    (void)state;
    planned_close(&base);
    return 0;
}

static struct plan_ahead *open_ahead(void)
{
    const struct plan_options options = {
        .recipe = &base.recipe, .model = base.model, .dt = DTYPE_F32, .machine = base.cost.machine};
    struct plan_ahead *a = NULL;

    assert_int_equal(plan_ahead_open(&options, &a, NULL), TITAN_OK);
    return a;
}

static void print_all(const struct plan *plan, struct program *const *programs, struct buf *out)
{
    for (int k = 0; k < plan->kinds; k++)
        program_print(programs[k], out);
    assert_false(buf_failed(out));
}

/* Takes that world's plan: the same as one made for it. */
static void take(struct plan_ahead *a, int world)
{
    struct plan_options options = base.plan->opt;
    struct plan *taken = NULL, *made = NULL;
    struct program **taken_programs = NULL, **made_programs = NULL;
    _cleanup_(buf_free) struct buf is = BUF_INIT, should = BUF_INIT;

    options.world = world;
    assert_int_equal(plan_open(&options, &made, NULL), TITAN_OK);
    assert_int_equal(plan_programs(made, &made_programs, NULL), TITAN_OK);
    assert_int_equal(plan_ahead_take(a, world, &taken, &taken_programs, NULL), TITAN_OK);
    assert_int_equal(taken->mesh.world, world);
    print_all(made, made_programs, &should);
    print_all(taken, taken_programs, &is);
    assert_string_equal(is.data, should.data);
    plan_free_programs(taken, taken_programs);
    plan_free_programs(made, made_programs);
    plan_close(taken);
    plan_close(made);
}

static void test_taken_is_what_was_asked_for(void **state)
{
    struct plan_ahead *const a = open_ahead();

    (void)state;
    take(a, 2); /* it was not wanted */
    plan_ahead_want(a, 3);
    take(a, 3);
    plan_ahead_want(a, 3);
    plan_ahead_want(a, 3);
    take(a, 4); /* it came otherwise */
    take(a, 3);
    take(a, 3); /* once more */
    for (int world = 1; world <= MOST; world++)
        plan_ahead_want(a, world); /* the last counts */
    take(a, MOST);
    plan_ahead_want(a, 2);
    plan_ahead_close(a); /* with one under way */
}

static void test_failure_is_told_to_who_takes(void **state)
{
    struct plan_ahead *const a = open_ahead();
    struct titan_error err = {0};
    struct program **programs = NULL;
    struct plan *plan = NULL;

    (void)state;
    plan_ahead_want(a, MOST + 1); /* more than the recipe allows */
    assert_int_not_equal(plan_ahead_take(a, MOST + 1, &plan, &programs, &err), TITAN_OK);
    assert_true(err.msg[0] != '\0');
    assert_null(plan);
    take(a, 2);
    plan_ahead_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken_is_what_was_asked_for),
        cmocka_unit_test(test_failure_is_told_to_who_takes),
    };
    return cmocka_run_group_tests(tests, open_base, close_base);
}
