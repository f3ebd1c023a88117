/* SPDX-License-Identifier: Apache-2.0 */
/* Which optimizer a parameter has, and what it keeps of a matrix that is updated whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/optimizers.h"

static struct recipe recipe_of(const char *const *keys)
{
    struct recipe r;

    recipe_init(&r);
    for (; *keys; keys++)
        assert_int_equal(recipe_set(&r, *keys, NULL), TITAN_OK);
    return r;
}
#define RECIPE(...) recipe_of((const char *const[]){__VA_ARGS__, NULL})

static void test_rest(void **state)
{
    (void)state;
    struct recipe r = RECIPE("optimizer.name=Lion");
    assert_string_equal(optimizer_of_rest(&r)->name, "Lion");
    r = RECIPE("optimizer.name=Lion", "optimizer.rest=SGD");
    assert_string_equal(optimizer_of_rest(&r)->name, "SGD");
    r = RECIPE("optimizer.name=Muon");
    assert_string_equal(optimizer_of_matrices(&r)->name, "Muon");
    assert_string_equal(optimizer_of_rest(&r)->name, "AdamW");
    r = RECIPE("optimizer.name=Muon", "optimizer.rest=Lion");
    assert_string_equal(optimizer_of_rest(&r)->name, "Lion");
}

static void test_shapes(void **state)
{
    static const struct {
        const char *name, *rank;
        int64_t rows, cols;
        int states;
        int64_t want[OPTIMIZER_STATES][2];
    } cases[] = {
        {"Muon", "0", 30, 20, 1, {{30, 20}}},
        {"GaLore2", "0", 30, 20, 3, {{30, 5}, {30, 5}, {5, 20}}},
        {"GaLore2", "0", 20, 30, 3, {{5, 30}, {5, 30}, {5, 20}}},
        {"GaLore2", "0", 16, 16, 3, {{16, 4}, {16, 4}, {4, 16}}},
        {"GaLore2", "7", 20, 30, 3, {{7, 30}, {7, 30}, {7, 20}}},
        {"GaLore2", "20", 30, 20, 3, {{30, 20}, {30, 20}, {20, 20}}},
        {"GaLore2", "0", 3, 9, 3, {{1, 9}, {1, 9}, {1, 3}}}, /* at least one vector */
        {"Ranger21", "0", 30, 20, 5, {{30, 20}, {30, 20}, {30, 20}, {30, 20}, {30, 20}}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char name[64], rank[64];
        (void)snprintf(name, sizeof name, "optimizer.name=%s", cases[i].name);
        (void)snprintf(rank, sizeof rank, "optimizer.galore.rank=%s", cases[i].rank);
        const struct recipe r = RECIPE(name, rank);
        const struct optimizer *const o = optimizer_of_matrices(&r);
        assert_true(o->rule == RULE_DIRECTION);
        assert_int_equal(optimizer_states(o, &r), cases[i].states);
        for (int s = 0; s < cases[i].states; s++) {
            int64_t rows, cols;
            optimizer_state_shape(o, &r, s, cases[i].rows, cases[i].cols, &rows, &cols);
            assert_int_equal(rows, cases[i].want[s][0]);
            assert_int_equal(cols, cases[i].want[s][1]);
        }
    }
}

/* Ranger21 keeps what its components need. */
static void test_trimmed(void **state)
{
    (void)state;
    struct recipe r = RECIPE("optimizer.name=Ranger21", "optimizer.ranger21.lookahead=false");
    assert_int_equal(optimizer_states(optimizer_of_matrices(&r), &r), 4);
    r = RECIPE("optimizer.name=Ranger21", "optimizer.ranger21.lookahead=false", "optimizer.ranger21.momentum=false");
    assert_int_equal(optimizer_states(optimizer_of_matrices(&r), &r), 2);
    r = RECIPE("optimizer.name=Ranger21", "optimizer.ranger21.momentum=false");
    assert_int_equal(optimizer_states(optimizer_of_matrices(&r), &r), 5);
}

/* Replicas that send each other parts of their directions keep a residual of all parameters, behind all other state;
 * nobody has a copy of it. */
static void test_residual(void **state)
{
    static const char *const methods[] = {"", "all_reduce", "demo", "full"};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(methods); i++) {
        struct recipe r = RECIPE("optimizer.name=AdEMAMix", "optimizer.rest=SGD", "optimizer.sgd.momentum=0.9",
                                 "fault_tolerance.redundancy=buddy");
        (void)snprintf(r.parallelism.replicate_method, sizeof r.parallelism.replicate_method, "%s", methods[i]);
        const bool residual = i >= 2;
        const struct state_kinds k = optimizer_kinds(&r);
        assert_int_equal(optimizer_keeps_residual(&r), residual);
        assert_int_equal(optimizer_directs(&r), residual);
        assert_int_equal(recipe_keeps_copies(&r, 2, 1), !residual);
        assert_int_equal(k.n, residual ? 5 : 4);
        assert_int_equal(k.each, residual ? 16 : 0);
        assert_int_equal(k.matrices, residual ? 23 : 7);
        assert_int_equal(k.rest, residual ? 24 : 8);
        if (residual)
            assert_string_equal(k.name[4], "residual");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rest), cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_trimmed), cmocka_unit_test(test_residual)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
