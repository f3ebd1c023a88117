/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that do not go together: refused in one line with the table's reason, and little else is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/optimizers.h"
#include "base/recipe_conflicts.h"

/* Keys of a recipe, with what a refusal says in front of the reason, and how the row's reason begins; NULL: it is
 * taken. */
static const struct {
    const char *keys[6], *pair, *row;
} cases[] = {
#define STOCHASTIC "optimizer.state_rounding=stochastic"
#define BF16 "optimizer.state_dtype=bfloat16"
    {{"optimizer.name=Lion", STOCHASTIC, BF16},
     "optimizer.name = \"Lion\" does not go with optimizer.state_rounding = \"stochastic\"",
     "the random words"},
    {{"optimizer.rest=SGD", STOCHASTIC, BF16},
     "optimizer.rest = \"SGD\" does not go with optimizer.state_rounding = \"stochastic\"",
     "the random words"},
    {{"optimizer.rest=StableAdamW", STOCHASTIC, BF16}, NULL, NULL},
    {{STOCHASTIC, "training.dtype=bfloat16"}, NULL, NULL},
    {{STOCHASTIC},
     "optimizer.state_rounding = \"stochastic\" does not go with moments in float32 or int8",
     "no others"},
    {{"optimizer.rest=Muon"},
     "optimizer.rest = \"Muon\" does not go with embedding, head, norms, biases and routers",
     "it updates matrices"},
    {{"optimizer.name=Muon", "optimizer.rest=Muon"},
     "optimizer.rest = \"Muon\" does not go with embedding, head, norms, biases and routers",
     "it updates matrices"},
    {{"optimizer.name=Muon", "optimizer.rest=AdamW"}, NULL, NULL},
    {{"optimizer.name=Ranger21", "optimizer.state_dtype=int8"},
     "optimizer.name = \"Ranger21\" does not go with optimizer.ranger21.lookahead = true with moments in bfloat16 or "
     "int8",
     "the slow weights"},
    {{"optimizer.name=Ranger21", "optimizer.ranger21.lookahead=false", "training.dtype=bfloat16"},
     "optimizer.name = \"Ranger21\" does not go with training.dtype = \"bfloat16\"",
     "owners"},
    {{"optimizer.name=Ranger21", BF16, "optimizer.ranger21.lookahead=false"}, NULL, NULL},
    {{"optimizer.name=SGD", "optimizer.sgd.nesterov=true"},
     "optimizer.name = \"SGD\" does not go with optimizer.sgd.nesterov = true with optimizer.sgd.momentum = 0",
     "there is nothing"},
    {{"optimizer.rest=SGD", "optimizer.sgd.nesterov=true"},
     "optimizer.rest = \"SGD\" does not go with optimizer.sgd.nesterov = true with optimizer.sgd.momentum = 0",
     "there is nothing"},
    {{"optimizer.name=SGD", "optimizer.sgd.nesterov=true", "optimizer.sgd.momentum=0.9"}, NULL, NULL},
    {{"optimizer.sgd.nesterov=true"}, NULL, NULL}, /* AdamW does not read it */

    {{"float8.enable_fsdp_float8_all_gather=true", "parallelism.fsdp_gather_codec=int8"}, NULL, NULL}, /* no float8 */
    {{"model.float8=true", "float8.enable_fsdp_float8_all_gather=true", "float8.recipe_name=scalify"}, NULL, NULL},
    {{"model.float8=true", "float8.enable_fsdp_float8_all_gather=true", "float8.recipe_name=rowwise"},
     "float8.enable_fsdp_float8_all_gather = true with model.float8 = true does not go with float8.recipe_name = "
     "\"rowwise\"",
     "a scale per row"},
    {{"parallelism.fsdp_reduce_codec=int8", "numerics.canonical=true"},
     "parallelism.fsdp_reduce_codec = \"int8\" does not go with numerics.canonical = true",
     "what codes lose"},
    {{"parallelism.fsdp_reduce_codec=f32", "numerics.canonical=true"}, NULL, NULL},
    {{"parallelism.fsdp_reduce_codec=f32", "parallelism.fsdp_reduce_scale=tensor"},
     "parallelism.fsdp_reduce_scale = \"tensor\" does not go with parallelism.fsdp_reduce_codec = \"f32\"",
     "only codes"},
    {{"parallelism.replicate_method=demo"},
     "parallelism.replicate_method = \"demo\" does not go with parallelism.data_parallel_replicate_degree = 1",
     "there is nobody"},
#define TWO "parallelism.data_parallel_replicate_degree=2"
    {{"parallelism.replicate_method=random", TWO, "optimizer.name=SGD", "parallelism.replicate_values=6"},
     "parallelism.replicate_method = \"random\" does not go with parallelism.replicate_values = 6",
     "the 64 weights"},
    {{"parallelism.replicate_method=demo", TWO, "optimizer.name=SGD", "parallelism.replicate_values=6"}, NULL, NULL},
    {{"parallelism.replicate_method=demo", TWO, "optimizer.name=StableAdamW"},
     "optimizer.name = \"StableAdamW\" does not go with parallelism.replicate_method = \"demo\" with "
     "optimizer.stable_adamw.threshold > 0",
     "its bounds"},
    {{"parallelism.replicate_method=demo", TWO, "optimizer.name=StableAdamW", "optimizer.stable_adamw.threshold=0"},
     NULL,
     NULL},
    {{"parallelism.rotate=in_place", "parallelism.tensor_parallel_degree=2"},
     "parallelism.rotate = \"in_place\" does not go with parallelism.tensor_parallel_degree = 2",
     "both cut"},
    {{"parallelism.rotate=in_place", "optimizer.name=GaLore2"},
     "optimizer.name = \"GaLore2\" does not go with parallelism.rotate = \"in_place\"",
     "matrices go"},
    {{"parallelism.rotate=in_place", "model.switchback=true"},
     "parallelism.rotate = \"in_place\" does not go with a converter of the model",
     "scales are"},
    {{"model.name=llama3_moe", "parallelism.tensor_parallel_degree=4", "parallelism.expert_tensor_parallel_degree=2"},
     "parallelism.expert_tensor_parallel_degree = 2 does not go with parallelism.tensor_parallel_degree = 4",
     "an expert is cut"},
    {{"model.name=llama3_moe", "parallelism.tensor_parallel_degree=2", "parallelism.expert_tensor_parallel_degree=2"},
     NULL,
     NULL},
    {{"model.name=llama3_moe", "parallelism.tensor_parallel_degree=2", "parallelism.expert_tensor_parallel_degree=2",
      "numerics.canonical=true"},
     "parallelism.expert_tensor_parallel_degree = 2 does not go with numerics.canonical = true",
     "sums are of"},
};

/* A recipe of these keys, resolved. */
static titan_status resolve(const char *const *keys, struct recipe *r, struct titan_error *err)
{
    recipe_init(r);
    for (; *keys; keys++)
        assert_int_equal(recipe_set(r, *keys, err), TITAN_OK);
    return recipe_resolve(r, err);
}

static void test_pairs_are_refused(void **state)
{
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r;
        struct titan_error err = {0};
        char line[400] = "no row has this reason";
        if (resolve(cases[i].keys, &r, &err) != (cases[i].row ? TITAN_EINVAL : TITAN_OK))
            fail_msg("case %zu: %s", i, cases[i].row ? "taken" : err.msg);
        for (int c = 0; c < recipe_conflicts_count && cases[i].row; c++)
            if (strncmp(recipe_conflicts[c].reason, cases[i].row, strlen(cases[i].row)) == 0) {
                (void)snprintf(line, sizeof line, "%s: %s", cases[i].pair, recipe_conflicts[c].reason);
                if (strcmp(line, err.msg) == 0)
                    break;
            }
        if (cases[i].row)
            assert_string_equal(err.msg, line);
    }
}

/* What a list's values are refused for. */
static int has_other_rule(const char *name)
{
    return optimizer_find(name)->rule != RULE_ADAMW;
}

static int has_matrices_alone(const char *name)
{
    return optimizer_find(name)->rule == RULE_DIRECTION;
}

static int has_direction_or_sums(const char *name)
{
    return has_matrices_alone(name) || optimizer_find(name)->sums;
}

static int has_no_scale(const char *name)
{
    return !codec_row(codec_find(name))->scaled;
}

static int is_not_random(const char *name)
{
    return !codec_row(codec_find(name))->stochastic;
}

/* A list in a row names exactly the values that codecs and rules refuse. */
static void test_rows_list_all_values(void **state)
{
    (void)state;
    static const struct {
        const char *names, *key, *keys[4];
        int (*refused)(const char *name);
    } lists[] = {
        {NULL, "optimizer.name", {STOCHASTIC, BF16}, has_other_rule},
        {NULL, "optimizer.rest", {NULL}, has_matrices_alone},
        {NULL, "optimizer.name", {"parallelism.rotate=in_place"}, has_matrices_alone},
        {NULL, "optimizer.name", {TWO, "parallelism.replicate_method=demo"}, has_direction_or_sums},
        {"f32|bf16|fp8|int8|int4|loco",
         "parallelism.fsdp_reduce_codec",
         {"parallelism.fsdp_reduce_scale=tensor"},
         has_no_scale},
        {"f32|bf16|fp8|int8|int4|loco",
         "parallelism.fsdp_reduce_codec",
         {"parallelism.fsdp_reduce_rounding=stochastic"},
         is_not_random},
    };

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        char names[200], *rest = names, *name;
        (void)snprintf(names, sizeof names, "%s", lists[i].names ? lists[i].names : optimizer_names());
        while ((name = strsep(&rest, "|"))) {
            struct recipe r;
            struct titan_error err = {0};
            char set[80];
            const char *keys[6] = {set};
            (void)snprintf(set, sizeof set, "%s=%s", lists[i].key, name);
            for (size_t k = 0; k < ARRAY_SIZE(lists[i].keys) && lists[i].keys[k]; k++)
                keys[k + 1] = lists[i].keys[k];
            const bool refused = resolve(keys, &r, &err) != TITAN_OK;
            if (refused != lists[i].refused(name))
                fail_msg("list %zu, %s: %s", i, set, refused ? err.msg : "taken");
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
        assert_int_equal(recipe_continues_state(&r[0], &r[1], &why), states[i].why == NULL);
        if (states[i].why)
            assert_string_equal(why.data, states[i].why);
        assert_int_equal(recipe_set(&r[0], "checkpoint.accept_changed=optimizer", NULL), TITAN_OK);
        assert_true(recipe_continues_state(&r[0], &r[1], &why));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs_are_refused),
                                       cmocka_unit_test(test_rows_list_all_values),
                                       cmocka_unit_test(test_states_of_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
