/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers converters.h turns to eight bits, and that the written programs have the flags in the right products. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "worker/model/converters.h"
#include "worker/plan/cost.h"
#include "worker/plan/plan.h"

static void open_recipe(struct recipe *r, const char *const *sets)
{
    struct titan_error err = {0};
    recipe_init(r);
    for (; *sets; sets++)
        if (recipe_set(r, *sets, &err) != TITAN_OK)
            fail_msg("%s: %s", *sets, err.msg);
    if (recipe_resolve(r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

/* Names of what is converted in layer 1, without "layers.1." and ".weight". */
static void names_of(const char *const *sets, char ret[512])
{
    struct recipe r;
    struct model *model = NULL;
    struct converters *c = NULL;
    struct titan_error err = {0};
    open_recipe(&r, sets);
    ret[0] = '\0';
    assert_int_equal(model_open(&r.model.dims, &model, &err), TITAN_OK);
    assert_int_equal(converters_open(&r, model, &c, &err), TITAN_OK);
    for (int i = 0; c && i < model->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (strncmp(t->name, "layers.1.", 9) != 0) {
            assert_true(!c->converted[i] || strncmp(t->name, "layers.", 7) == 0); /* neither embedding nor head */
            continue;
        }
        if (c->converted[i])
            (void)snprintf(ret + strlen(ret), 512 - strlen(ret), "%s%.*s", ret[0] ? " " : "",
                           (int)strlen(t->name) - 9 - 7, t->name + 9);
    }
    free(c);
    model_close(model);
}

#define NAMES(want, ...)                                                                                               \
    do {                                                                                                               \
        char names_[512];                                                                                              \
        names_of((const char *const[]){__VA_ARGS__, NULL}, names_);                                                    \
        assert_string_equal(names_, want);                                                                             \
    } while (0)

static void test_layers(void **state)
{
    (void)state;
    NAMES("", "model.flavor=tiny");
    NAMES("attention.wq attention.wk attention.wv attention.wo feed_forward.w1 feed_forward.w3 feed_forward.w2",
          "model.flavor=tiny", "model.converters=float8");
    NAMES("attention.wq attention.wo feed_forward.w1 feed_forward.w3", "model.flavor=tiny", "model.converters=float8",
          "quantize.linear.float8.filter_fqns=[\"attention.wk\", \"wv\", \"w2\", \"output\"]");
    NAMES("", "model.flavor=tiny", "model.converters=float8", "float8.filter_fqns=layers.1.,nothing");
    /* A side that is no multiple of 16. */
    NAMES("attention.wq attention.wk attention.wv attention.wo", "model.flavor=tiny", "model.converters=float8",
          "model.ffn_hidden=120");
    NAMES("attention.wq attention.wo feed_forward.w1 feed_forward.w3 feed_forward.w2", "model.flavor=tiny",
          "model.converters=float8", "model.n_kv_heads=1", "model.n_heads=8");
    /* Latent attention; neither the router nor what is routed, but the shared experts. */
    NAMES("attention.wq_a attention.wq_b attention.wkv_b attention.wo moe.shared_experts.w1 moe.shared_experts.w3 "
          "moe.shared_experts.w2",
          "model.name=deepseek_v3", "model.flavor=tiny", "model.converters=float8");
    /* torchao's bounds: outputs to 4096 by inputs to 1024; by rows, other ones. */
    NAMES("", "model.flavor=tiny", "model.converters=float8", "float8.filter_fqns=auto_filter_small_kn");
    NAMES("attention.wq attention.wk attention.wv attention.wo feed_forward.w1 feed_forward.w3 feed_forward.w2",
          "model.flavor=8B", "model.converters=float8", "float8.filter_fqns=auto_filter_small_kn");
    NAMES("attention.wq attention.wo feed_forward.w1 feed_forward.w3 feed_forward.w2", "model.flavor=8B",
          "model.converters=float8", "float8.filter_fqns=auto_filter_small_kn", "float8.recipe_name=rowwise");
    NAMES("attention.wq attention.wo feed_forward.w1 feed_forward.w3", "model.flavor=8B", "model.converters=float8",
          "float8.filter_fqns=auto_filter_small_kn,w2", "float8.recipe_name=rowwise");
    NAMES("", "model.flavor=tiny", "model.converters=float8", "float8.filter_fqns=auto_filter_small_kn",
          "float8.recipe_name=scalify"); /* tensorwise's bounds */
    NAMES("attention.wq attention.wk attention.wv attention.wo feed_forward.w1 feed_forward.w3 feed_forward.w2",
          "model.flavor=8B", "model.converters=float8", "float8.filter_fqns=auto_filter_small_kn",
          "float8.recipe_name=scalify");
    NAMES("", "model.flavor=tiny", "model.converters=quantize.grouped_mm.float8");
    /* MXFP8: its own filter, a side that is no multiple of 32. */
    NAMES("attention.wq attention.wk attention.wv attention.wo feed_forward.w1 feed_forward.w3 feed_forward.w2",
          "model.flavor=tiny", "model.converters=quantize.linear.mx", "float8.filter_fqns=w1,auto_filter_small_kn");
    NAMES("attention.wq attention.wo feed_forward.w1 feed_forward.w3", "model.flavor=tiny", "model.converters=mx",
          "quantize.linear.mx.filter_fqns=[\"attention.wk\", \"wv\", \"w2\"]");
    NAMES("attention.wq attention.wk attention.wv attention.wo", "model.flavor=tiny", "model.mxfp8=true",
          "model.ffn_hidden=112");
    NAMES("", "model.flavor=tiny", "model.converters=quantize.grouped_mm.mx");
    /* SwitchBack: its own filter. */
    NAMES("attention.wq attention.wk attention.wv attention.wo feed_forward.w1 feed_forward.w3 feed_forward.w2",
          "model.flavor=tiny", "model.converters=switchback", "float8.filter_fqns=w1,auto_filter_small_kn");
    NAMES("attention.wq attention.wo feed_forward.w1 feed_forward.w3", "model.flavor=tiny", "model.switchback=true",
          "switchback.filter_fqns=[\"attention.wk\", \"wv\", \"w2\"]", "switchback.variant=vectorwise");
    NAMES("attention.wq attention.wk attention.wv attention.wo", "model.flavor=tiny", "model.converters=switchback",
          "model.ffn_hidden=120");
}

/* Products of a step by their flags; those of one layer and phase are told apart by their places. */
static int count(const struct program *p, uint32_t mask, uint32_t flags)
{
    int n = 0;
    for (int i = 0; i < p->n_actions; i++)
        n += p->actions[i].op == OP_MATMUL && (action_params(p, &p->actions[i])->flags & mask) == flags;
    return n;
}

static struct program *program_of(const struct recipe *r, bool no_float8, struct model **model, struct plan **plan)
{
    struct titan_error err = {0};
    struct program *p = NULL;
    assert_int_equal(model_open(&r->model.dims, model, &err), TITAN_OK);
    const struct plan_options options = {
        .recipe = r, .model = *model, .world = 1, .dt = DTYPE_BF16, .no_float8 = no_float8};
    if (plan_open(&options, plan, &err) != TITAN_OK || plan_program(*plan, 0, &p, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return p;
}

static void test_programs(void **state)
{
    (void)state;
    static const struct {
        const char *recipe;
        int converted, lines, e5m2, given, others;
    } of[] = {{"tensorwise", 21, 0, 14, 0, 0},
              {"rowwise", 21, 21, 0, 0, 0},
              {"rowwise_with_gw_hp", 14, 14, 0, 0, 4},
              {"scalify", 21, 0, 14, 21, 0}};
    const uint32_t ways = OP_TA | OP_TB;
    for (size_t i = 0; i < ARRAY_SIZE(of); i++)
        for (int without = 0; without < 2; without++) {
            struct recipe r;
            struct model *model;
            struct plan *plan = NULL;
            char name[64];
            (void)snprintf(name, sizeof(name), "float8.recipe_name=%s", of[i].recipe);
            open_recipe(&r, (const char *const[]){"model.flavor=tiny", "model.n_layers=1", "model.converters=float8",
                                                  "training.loss_chunks=1", "training.local_batch_size=1",
                                                  "training.global_batch_size=1", "activation_checkpoint.mode=none",
                                                  name, NULL});
            struct program *p = program_of(&r, without, &model, &plan);
            if (without) {
                assert_int_equal(count(p, OP_F8, OP_F8), 0);
                assert_int_equal(count(p, 0, 0), 4 * 3 + 3);
            } else {
                /* Seven layers apart where they are converted; the head's three products are not. */
                assert_int_equal(count(p, OP_F8, OP_F8), of[i].converted);
                assert_int_equal(count(p, OP_F8, 0), 3 + of[i].others);
                assert_int_equal(count(p, OP_F8 | OP_F8_A_E5M2, OP_F8 | OP_F8_A_E5M2), of[i].e5m2);
                assert_int_equal(count(p, OP_F8_GIVEN, OP_F8_GIVEN), of[i].given);
                assert_int_equal(count(p, OP_F8_A_LINES | OP_F8_POWER, OP_F8_A_LINES | OP_F8_POWER), of[i].lines);
                assert_int_equal(count(p, ways | OP_F8, OP_TB | OP_F8), 7);
                assert_int_equal(count(p, ways | OP_F8, OP_F8), 7);
            }
            program_close(p);
            plan_close(plan);
            model_close(model);
        }
}

/* All three products by blocks; a machine that has none is refused, unlike one without float8. */
static void test_mxfp8(void **state)
{
    static const char *const sets[] = {"model.flavor=tiny",
                                       "model.n_layers=1",
                                       "model.converters=mx",
                                       "training.loss_chunks=1",
                                       "training.local_batch_size=1",
                                       "training.global_batch_size=1",
                                       "activation_checkpoint.mode=none",
                                       NULL};
    struct recipe r;
    struct model *model;
    struct plan *plan = NULL;
    struct titan_error err = {0};
    (void)state;
    open_recipe(&r, sets);
    struct program *p = program_of(&r, false, &model, &plan);
    const uint32_t flags = OP_F8 | OP_F8_BLOCKS | OP_F8_A_E5M2 | OP_F8_A_LINES | OP_F8_B_LINES | OP_F8_POWER;
    assert_int_equal(count(p, flags, OP_F8 | OP_F8_BLOCKS), 21);
    assert_int_equal(count(p, OP_F8, 0), 3);
    program_close(p);
    plan_close(plan);
    struct plan_options options = {.recipe = &r, .model = model, .world = 1, .dt = DTYPE_BF16};
    static const char *const machines[] = {"h100", "h200", "b200", "cpu"};
    for (size_t i = 0; i < ARRAY_SIZE(machines); i++) {
        options.machine = cost_machine_find(machines[i]);
        const titan_status status = plan_open(&options, &plan, &err);
        if (machines[i][0] != 'h') {
            assert_int_equal(status, TITAN_OK);
            plan_close(plan);
            continue;
        }
        assert_int_equal(status, TITAN_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, "has no products in MXFP8, they need compute capability 10.0 (Blackwell)"));
    }
    /* What the device at hand is counts, not what its name says. */
    options.dev = (struct device *)&options;
    options.no_mxfp8 = true;
    assert_int_equal(plan_open(&options, &plan, &err), TITAN_EUNSUPPORTED);
    model_close(model);
}

/* Output and input gradient in int8; the weights' gradients are products as in a program without converter. */
static void test_switchback(void **state)
{
    static const char *const sets[] = {"model.flavor=tiny",
                                       "model.n_layers=1",
                                       "training.loss_chunks=1",
                                       "training.local_batch_size=1",
                                       "training.global_batch_size=1",
                                       "activation_checkpoint.mode=none",
                                       "model.converters=switchback",
                                       NULL,
                                       NULL};
    struct recipe r;
    struct model *model;
    struct plan *plan = NULL;
    (void)state;
    for (int vectorwise = 0; vectorwise < 2; vectorwise++) {
        const char *all[ARRAY_SIZE(sets)];
        memcpy(all, sets, sizeof all);
        all[7] = vectorwise ? "switchback.variant=vectorwise" : NULL;
        open_recipe(&r, all);
        struct program *p = program_of(&r, true, &model, &plan);
        const uint32_t ways = OP_TA | OP_TB, lines = vectorwise ? OP_I8_B_LINES : 0;
        assert_int_equal(count(p, ways | OP_I8 | OP_I8_B_LINES, OP_TB | OP_I8 | lines), 7);
        assert_int_equal(count(p, ways | OP_I8 | OP_I8_B_LINES, OP_I8 | lines), 7);
        assert_int_equal(count(p, OP_I8, OP_I8), 14);
        assert_int_equal(count(p, ways | OP_I8, OP_TA), 4 + 1); /* q, k, v and gate, up are glued: as without it */
        assert_int_equal(count(p, OP_F8, OP_F8), 0);
        program_close(p);
        plan_close(plan);
        model_close(model);
    }
}

static int operations(const struct program *p, enum op op)
{
    int n = 0;
    for (int i = 0; i < p->n_actions; i++)
        n += p->actions[i].op == (uint8_t)op;
    return n;
}

/* mem_efficient: the inputs of q, k, v, of gate and up, and of w2 are codes between forward and weight gradient. An
 * input that a layer without int8 reads, wo's, which attention's gradient reads, and a router's are kept as they are.
 */
static void test_kept_codes(void **state)
{
    static const struct {
        const char *sets[6];
        int codes;
    } cases[] = {
        {{"model.flavor=tiny"}, 3},
        {{"model.flavor=tiny", "switchback.variant=vectorwise"}, 3},
        {{"model.flavor=tiny", "switchback.mem_efficient=false"}, 0},
        {{"model.flavor=tiny", "switchback.filter_fqns=wv"}, 2},
        {{"model.flavor=tiny", "switchback.filter_fqns=w2,w3"}, 1},
        {{"model.flavor=tiny", "model.qk_norm=true"}, 3},
        {{"model.name=deepseek_v3", "model.flavor=tiny", "model.n_dense_layers=1"}, 4},
        {{"model.name=deepseek_v3", "model.flavor=tiny", "model.n_dense_layers=1", "model.qk_rope_head_dim=16"}, 5},
        {{"model.name=deepseek_v3", "model.flavor=tiny", "model.n_dense_layers=1", "switchback.filter_fqns=wkv_a"}, 4},
        {{"model.name=deepseek_v3", "model.flavor=tiny", "model.n_dense_layers=0"}, 3}};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *all[16] = {"model.converters=switchback", "switchback.mem_efficient=true",
                               "activation_checkpoint.mode=none", "training.local_batch_size=1",
                               "training.global_batch_size=1"};
        struct recipe r;
        struct model *model;
        struct plan *plan = NULL;
        int at = 5;
        for (int k = 0; cases[i].sets[k]; k++)
            all[at++] = cases[i].sets[k];
        all[at++] = "model.n_layers=1";
        open_recipe(&r, all);
        struct program *p = program_of(&r, true, &model, &plan);
        if (operations(p, OP_ROWS_ENCODE) != cases[i].codes || operations(p, OP_ROWS_DECODE) != cases[i].codes)
            fail_msg("case %zu: %d codes, %d values", i, operations(p, OP_ROWS_ENCODE), operations(p, OP_ROWS_DECODE));
        program_close(p);
        plan_close(plan);
        model_close(model);
    }
}

/* One of two converters alone has a layer. */
static void test_one_converter(void **state)
{
    static const char *const both[][3] = {{"model.converters=float8,mx", "model.float8", "model.mxfp8"},
                                          {"model.converters=float8,switchback", "model.float8", "model.switchback"},
                                          {"model.converters=mx,switchback", "model.mxfp8", "model.switchback"}};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(both); i++) {
        struct recipe r;
        struct titan_error err = {0};
        recipe_init(&r);
        assert_int_equal(recipe_set(&r, "model.flavor=tiny", &err), TITAN_OK);
        assert_int_equal(recipe_set(&r, both[i][0], &err), TITAN_OK);
        assert_int_equal(recipe_resolve(&r, &err), TITAN_EINVAL);
        assert_true(strstr(err.msg, both[i][1]) && strstr(err.msg, both[i][2]) && !strchr(err.msg, '\n'));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),     cmocka_unit_test(test_programs),   cmocka_unit_test(test_mxfp8),
        cmocka_unit_test(test_switchback), cmocka_unit_test(test_kept_codes), cmocka_unit_test(test_one_converter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
