/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers beside what they do not go together with: each row of the table refuses, in one line, and little else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/optimizer_conflicts.h"

/* Keys of a recipe, of optimizer or with a section, with the row that refuses it, by how its reason begins; NULL: it is
 * taken. */
static const struct {
    const char *keys[4];
    const char *key, *row;
} cases[] = {
    {{"name=Lion", "state_rounding=stochastic", "state_dtype=bfloat16"}, "name = \"Lion\"", "the random words"},
    {{"rest=SGD", "state_rounding=stochastic", "state_dtype=bfloat16"}, "rest = \"SGD\"", "the random words"},
    {{"rest=StableAdamW", "state_rounding=stochastic", "state_dtype=bfloat16"}, NULL, NULL},
    {{"state_rounding=stochastic"}, "name = \"AdamW\"", "no others"},
    {{"rest=Muon"}, "rest = \"Muon\"", "it updates matrices"},
    {{"name=Muon", "rest=Muon"}, "rest = \"Muon\"", "it updates matrices"},
    {{"name=Muon", "rest=AdamW"}, NULL, NULL},
    {{"name=Ranger21", "state_dtype=int8"}, "name = \"Ranger21\"", "the slow weights"},
    {{"name=Ranger21", "ranger21.lookahead=false", "training.dtype=bfloat16"}, "name = \"Ranger21\"", "owners"},
    {{"name=Ranger21", "state_dtype=bfloat16", "ranger21.lookahead=false"}, NULL, NULL},
    {{"name=SGD", "sgd.nesterov=true"}, "name = \"SGD\"", "there is nothing"},
    {{"rest=SGD", "sgd.nesterov=true"}, "rest = \"SGD\"", "there is nothing"},
    {{"name=SGD", "sgd.nesterov=true", "sgd.momentum=0.9"}, NULL, NULL},
    {{"sgd.nesterov=true"}, NULL, NULL}, /* AdamW does not read it */
};

static void test_each_row_refuses(void **state)
{
    (void)state;
    unsigned seen = 0;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r;
        struct titan_error err = {0};
        char line[400] = "";
        recipe_init(&r);
        for (size_t k = 0; k < ARRAY_SIZE(cases[i].keys) && cases[i].keys[k]; k++) {
            char set[80];
            (void)snprintf(set, sizeof set, "%s%s", strncmp(cases[i].keys[k], "training", 8) == 0 ? "" : "optimizer.",
                           cases[i].keys[k]);
            assert_int_equal(recipe_set(&r, set, &err), TITAN_OK);
        }
        assert_int_equal(recipe_resolve(&r, &err), cases[i].row ? TITAN_EINVAL : TITAN_OK);
        for (int c = 0; c < optimizer_conflicts_count && cases[i].row; c++) {
            const struct optimizer_conflict *const row = &optimizer_conflicts[c];
            if (strncmp(row->reason, cases[i].row, strlen(cases[i].row)) != 0)
                continue;
            seen |= 1u << c;
            (void)snprintf(line, sizeof line, "optimizer.%s does not go with %s: %s", cases[i].key, row->with,
                           row->reason);
        }
        if (cases[i].row)
            assert_string_equal(err.msg, line);
    }
    assert_int_equal(seen, (1u << optimizer_conflicts_count) - 1); /* no row without a case */
}

/* The rows that are of some optimizers list them all: a name is listed if the keys refuse it, and only then. */
static void test_rows_list_their_optimizers(void **state)
{
    (void)state;
    static const struct {
        const char *sets[3], *with; /* %s: the name */
    } lists[] = {
        {{"name=%s", "state_rounding=stochastic", "state_dtype=bfloat16"}, "optimizer.state_rounding = \"stochastic\""},
        {{"rest=%s"}, "embedding, head, norms, biases and routers"}};

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        char names[200], *rest = names, *name;
        (void)snprintf(names, sizeof names, "%s", optimizer_names());
        while ((name = strsep(&rest, "|"))) {
            struct recipe r;
            bool listed = false;
            recipe_init(&r);
            for (size_t k = 0; k < ARRAY_SIZE(lists[i].sets) && lists[i].sets[k]; k++) {
                const char *const equals = strchr(lists[i].sets[k], '=');
                char set[80];
                (void)snprintf(set, sizeof set, "optimizer.%.*s%s", (int)(equals + 1 - lists[i].sets[k]),
                               lists[i].sets[k], strcmp(equals, "=%s") == 0 ? name : equals + 1);
                assert_int_equal(recipe_set(&r, set, NULL), TITAN_OK);
            }
            for (int c = 0; c < optimizer_conflicts_count; c++) {
                char all[200], word[40];
                const char *const of = optimizer_conflicts[c].optimizers;
                const bool but = strncmp(of, "all but ", 8) == 0;
                (void)snprintf(all, sizeof all, ", %s,", but ? of + 8 : of);
                (void)snprintf(word, sizeof word, ", %s,", name);
                if (strcmp(optimizer_conflicts[c].with, lists[i].with) == 0)
                    listed = (strstr(all, word) != NULL) != but;
            }
            if ((recipe_resolve(&r, NULL) != TITAN_OK) != listed)
                fail_msg("%s and %s: %s", name, lists[i].with,
                         listed ? "listed, but taken" : "refused, but not listed");
        }
    }
}

/* Another run's state: of the same rows alone, of both groups, or where the recipe accepts it. */
static void test_states_of_others(void **state)
{
    (void)state;
    static const struct {
        const char *here, *there, *why;
    } states[] = {{"name=Lion", "name=Lion", NULL},
                  {"lr=0.5", "beta2=0.9", NULL},
                  {"rest=AdamW", "rest=same", NULL},
                  {"name=Lion", "name=AdamW", "optimizer.name = \"Lion\", there \"AdamW\""},
                  {"name=Adam", "name=AdamW", "optimizer.name = \"Adam\", there \"AdamW\""},
                  {"rest=Lion", "rest=SGD", "optimizer.rest = \"Lion\", there \"SGD\""}};

    for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
        _cleanup_(buf_free) struct buf why = BUF_INIT;
        struct recipe r[2];
        const char *const key[] = {states[i].here, states[i].there};
        for (int k = 0; k < 2; k++) {
            char set[80];
            recipe_init(&r[k]);
            (void)snprintf(set, sizeof set, "optimizer.%s", key[k]);
            assert_int_equal(recipe_set(&r[k], set, NULL), TITAN_OK);
            assert_int_equal(recipe_resolve(&r[k], NULL), TITAN_OK);
        }
        assert_int_equal(optimizer_continues(&r[0], &r[1], &why), states[i].why == NULL);
        if (states[i].why)
            assert_string_equal(why.data, states[i].why);
        assert_int_equal(recipe_set(&r[0], "checkpoint.accept_changed=optimizer", NULL), TITAN_OK);
        assert_true(optimizer_continues(&r[0], &r[1], &why));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_row_refuses),
                                       cmocka_unit_test(test_rows_list_their_optimizers),
                                       cmocka_unit_test(test_states_of_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
