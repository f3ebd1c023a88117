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
    for (int k = 0; k < plan->classes; k++)
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

static void test_expected(void **state)
{
    struct plan_ahead *const a = open_ahead();

    (void)state;
    assert_true(plan_ahead_expect(a, 2));
    assert_false(plan_ahead_expect(a, 3)); /* one is there or being made */
    take(a, 2);
    assert_true(plan_ahead_expect(a, 3));
    take(a, 3);
    plan_ahead_want(a, 3);
    assert_false(plan_ahead_expect(a, 2)); /* that is certain */
    take(a, 3);
    assert_true(plan_ahead_expect(a, 2)); /* it was taken */
    plan_ahead_close(a);
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

/* Device memory that the programs need, of the kind that needs most. */
static uint64_t needed(const struct plan_options *options)
{
    struct plan *plan = NULL;
    struct program **programs = NULL;
    uint64_t most = 0;

    assert_int_equal(plan_open(options, &plan, NULL), TITAN_OK);
    assert_int_equal(plan_programs(plan, &programs, NULL), TITAN_OK);
    for (int k = 0; k < plan->classes; k++) {
        const struct program *p = programs[k];
        uint64_t bytes = p->arena_bytes;
        for (int i = 0; i < p->n_buffers; i++)
            if (buffer_is_external(p->buffers[i].kind) && buffer_memory(p->buffers[i].kind) != MEMORY_HOST)
                bytes += p->buffers[i].bytes;
        most = MAX(most, bytes);
    }
    plan_free_programs(plan, programs);
    plan_close(plan);
    return most;
}

/* Of a key with the value 4; a refusal for want of memory names the largest value that is not refused; there may be
 * none. */
static void hints_at(struct recipe *recipe, int64_t *rows, int world, const char *key)
{
    struct plan_options options = {
        .recipe = recipe, .model = base.model, .dt = DTYPE_F32, .machine = base.cost.machine, .world = world};
    struct plan *plan = NULL;
    struct program **programs = NULL;
    uint64_t bytes[5];

    for (int b = 1; b <= 4; b *= 2) {
        *rows = b;
        bytes[b] = needed(&options);
    }
    assert_true(bytes[1] < bytes[2] && bytes[2] < bytes[4]);
    for (int b = 0; b <= 2; b++) { /* so that it is the largest; 0: none */
        struct titan_error err = {0};
        struct plan_ahead *a = NULL;
        options.memory_free = b ? bytes[b] : bytes[1] - 1;
        assert_int_equal(plan_ahead_open(&options, &a, NULL), TITAN_OK);
        assert_int_equal(plan_ahead_take(a, world, &plan, &programs, &err), TITAN_EUNPLACEABLE);
        char words[96];
        if (b > 0)
            (void)snprintf(words, sizeof words, "%s = %d would fit", key, b);
        else
            (void)snprintf(words, sizeof words, "a smaller %s", key);
        if (!strstr(err.hint, words))
            fail_msg("%d: %s", b, err.hint);
        plan_ahead_close(a);
    }
    assert_int_equal(*rows, 4);
}

static void test_what_would_fit(void **state)
{
    struct recipe recipe = base.recipe;

    (void)state;
    hints_at(&recipe, &recipe.training.local_batch_size, 1, "training.local_batch_size");
    recipe.parallelism.pipeline_parallel_degree = 2;
    hints_at(&recipe, &recipe.parallelism.pipeline_parallel_microbatch_size, 2,
             "parallelism.pipeline_parallel_microbatch_size");
}

/* An evaluation has keys of its own. */
static void test_evaluation_that_does_not_fit(void **state)
{
    struct recipe recipe = base.recipe;
    struct plan_options options = {.recipe = &recipe,
                                   .model = base.model,
                                   .dt = DTYPE_F32,
                                   .machine = base.cost.machine,
                                   .world = 1,
                                   .evaluation = true,
                                   .memory_free = 1};
    struct plan *plan = NULL;
    struct program **programs = NULL;
    struct titan_error err = {0};
    struct plan_ahead *a = NULL;

    (void)state;
    assert_int_equal(plan_ahead_open(&options, &a, NULL), TITAN_OK);
    assert_int_equal(plan_ahead_take(a, 1, &plan, &programs, &err), TITAN_EUNPLACEABLE);
    if (!strstr(err.hint, "validation.local_batch_size") || strstr(err.hint, "training"))
        fail_msg("%s", err.hint);
    plan_ahead_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken_is_what_was_asked_for),  cmocka_unit_test(test_expected),
        cmocka_unit_test(test_failure_is_told_to_who_takes), cmocka_unit_test(test_what_would_fit),
        cmocka_unit_test(test_evaluation_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, open_base, close_base);
}
