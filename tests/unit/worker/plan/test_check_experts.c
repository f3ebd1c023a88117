/* SPDX-License-Identifier: Apache-2.0 */
/* check.h on programs with experts: they pass on every mesh, and whatever is broken in the exchange of tokens or in the
 * balancing of loads is found: an operation left out, done twice, in another place, or with other numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "support/programs.h"
#include "worker/plan/check.h"

static const struct model_dims dims = {.dim = 64,
                                       .n_layers = 4,
                                       .n_heads = 4,
                                       .n_kv_heads = 4,
                                       .head_dim = 24,
                                       .ffn_hidden = 128,
                                       .vocab_size = 256,
                                       .rope_theta = 1e4,
                                       .norm_eps = 1e-5,
                                       .kv_lora_rank = 16,
                                       .qk_nope_head_dim = 16,
                                       .qk_rope_head_dim = 8,
                                       .v_head_dim = 16,
                                       .n_experts = 8,
                                       .top_k = 2,
                                       .n_shared_experts = 1,
                                       .moe_hidden = 32,
                                       .n_dense_layers = 1,
                                       .route_scale = 1,
                                       .balance_rate = 1e-3};

static void open_programs(const struct programs_case *c, struct programs *p)
{
    struct titan_error err = {0};
    if (programs_open(c, p, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

/* The first thing wrong with any of the programs; empty: nothing. */
static titan_status check_all(const struct programs *p, struct titan_error *err)
{
    for (int k = 0; k < p->n; k++)
        TRY(program_check(p->classes[k], 0, err));
    return programs_check((const struct program *const *)p->classes, p->n, err);
}

static void test_sound(void **state)
{
    static const struct programs_case cases[] = {
        {.pp = 1, .dp_replicate = 1, .dp_shard = 1, .cp = 1, .tp = 1, .microbatches = 2},
        {.pp = 1, .dp_replicate = 2, .dp_shard = 2, .cp = 1, .tp = 2, .ep = 4, .microbatches = 8},
        {.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 2, .tp = 2, .ep = 8, .microbatches = 4, .ring = true},
        {.pp = 2,
         .dp_replicate = 1,
         .dp_shard = 4,
         .cp = 1,
         .tp = 1,
         .ep = 2,
         .microbatches = 8,
         .schedule = "ZBVZeroBubble"},
        {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 4, .ep = 2, .microbatches = 3}, /* uneven shares */
        {.pp = 1,
         .dp_replicate = 1,
         .dp_shard = 2,
         .cp = 1,
         .tp = 1,
         .ep = 2,
         .microbatches = 4,
         .prefetch = 2,
         .checkpointing = CHECKPOINT_FULL,
         .reduce = REDUCE_MICROBATCH},
        {.pp = 1,
         .dp_replicate = 1,
         .dp_shard = 4,
         .cp = 1,
         .tp = 1,
         .ep = 4,
         .microbatches = 4,
         .checkpointing = CHECKPOINT_OPS,
         .offload = true,
         .dt = DTYPE_BF16},
        {.pp = 1, .dp_replicate = 1, .dp_shard = 4, .cp = 1, .tp = 2, .ep = 4, .microbatches = 12, .canonical = true},
        {.pp = 2,
         .dp_replicate = 2,
         .dp_shard = 2,
         .cp = 2,
         .tp = 1,
         .ep = 4,
         .microbatches = 12,
         .checkpointing = CHECKPOINT_FULL,
         .schedule = "ZBVZeroBubble",
         .canonical = true},
        {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 4, .ep = 2, .microbatches = 3, .canonical = true},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct programs_case c = cases[i];
        struct programs p;
        struct titan_error err = {0};
        char name[128];
        c.dims = &dims;
        open_programs(&c, &p);
        programs_name(&c, name, sizeof name);
        if (check_all(&p, &err) != TITAN_OK)
            fail_msg("%s ep%d: %s", name, c.ep, err.msg);
        programs_close(&p);
    }
}

/* --- broken ones -------------------------------------------------------------------------------------------------- */

enum way { DROP, DOUBLE, LATER, OTHER_NUMBER, SMALLER_OPERAND, OTHER_CHANNEL };
static const char *const way_names[] = {"left out",       "done twice",        "after the decision",
                                        "another number", "a smaller operand", "another channel"};

static int nth(const struct program *p, enum op op, int n)
{
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].op == op && n-- == 0)
            return i;
    fail_msg("there is no %s", op_name(op));
    return -1;
}

static void break_action(struct program *p, int i, enum way way)
{
    struct action *a = &p->actions[i];
    const struct action copy = *a;
    switch (way) {
    case DROP:
        memmove(a, a + 1, (size_t)(p->n_actions-- - i - 1) * sizeof *a);
        break;
    case DOUBLE:
        assert_true(p->n_actions < p->cap_actions);
        memmove(a + 1, a, (size_t)(p->n_actions++ - i) * sizeof *a);
        break;
    case LATER: { /* DECIDE is behind it and moves up */
        const int to = nth(p, OP_DECIDE, 0);
        assert_true(to > i);
        memmove(a, a + 1, (size_t)(to - i) * sizeof *a);
        p->actions[to] = copy;
        break;
    }
    case OTHER_NUMBER:
        p->params[a->params].word[1]++;
        break;
    case SMALLER_OPERAND:
        p->operands[a->operand].bytes -= 4;
        break;
    case OTHER_CHANNEL:
        a->channel = CHANNEL_TP;
        break;
    }
}

/* The second weight gradient of a rank's tokens: of another rank's. And the first sum of two gradients: of another
 * rank.
 */
static void break_parts(struct program *p, bool sum)
{
    if (!sum) {
        for (int i = 0, n = 0; i < p->n_actions; i++)
            if (p->actions[i].op == OP_MATMUL_GROUPED && action_params(p, &p->actions[i])->flags & OP_TA && n++ == 1) {
                struct operand *const c = &p->operands[p->actions[i].operand];
                c->buffer++;
                return;
            }
    }
    for (int i = 0; sum && i < p->n_actions; i++) {
        struct operand *const o = &p->operands[p->actions[i].operand];
        if (p->actions[i].op != OP_ACCUMULATE || p->layout->model->units[p->actions[i].unit].kind != UNIT_EXPERTS)
            continue;
        o[1].buffer++;
        return;
    }
    fail_msg("there is nothing to break");
}

/* Canonical: gradients of each rank's tokens stay apart. */
static void test_broken_parts(void **state)
{
    const struct programs_case c = {.dims = &dims,
                                    .pp = 1,
                                    .dp_replicate = 1,
                                    .dp_shard = 2,
                                    .cp = 1,
                                    .tp = 1,
                                    .ep = 2,
                                    .microbatches = 4,
                                    .canonical = true};
    (void)state;
    for (int sum = 0; sum < 2; sum++) {
        struct programs p;
        struct titan_error err = {0};
        open_programs(&c, &p);
        break_parts(p.classes[0], sum);
        titan_status status = program_finish(p.classes[0], &err);
        if (status == TITAN_OK)
            status = check_all(&p, &err);
        if (status != TITAN_EBUG)
            fail_msg("gradients of two ranks' tokens as one (%d): not found", sum);
        print_message("# %s\n", err.msg);
        assert_non_null(strstr(err.msg, sum ? "its own tree" : "overwrites GRAD"));
        programs_close(&p);
    }
}

static void check_broken(const struct programs_case *c, enum op op, int n, enum way way)
{
    struct programs p;
    struct titan_error err = {0};
    open_programs(c, &p);
    break_action(p.classes[0], nth(p.classes[0], op, n), way);
    titan_status status = program_finish(p.classes[0], &err);
    if (status == TITAN_OK)
        status = check_all(&p, &err);
    if (status != TITAN_EBUG)
        fail_msg("%s number %d, %s: not found", op_name(op), n, way_names[way]);
    print_message("# %s, %s: %s\n", op_name(op), way_names[way], err.msg);
    programs_close(&p);
}

static void test_broken(void **state)
{
    static const struct {
        enum op op;
        int n;
        enum way way;
    } breaks[] = {
        {OP_ROUTE, 1, DROP},
        {OP_ROUTE, 2, DOUBLE},
        {OP_ROUTE_DGRAD, 0, DROP},
        {OP_PERMUTE, 0, DROP},
        {OP_PERMUTE, 1, OTHER_NUMBER},
        {OP_PERMUTE_RECEIVED, 0, DROP},
        {OP_SCATTER_ROWS, 1, DROP},
        {OP_COMBINE_ROWS, 2, DROP},
        {OP_COMBINE_ROWS, 1, SMALLER_OPERAND},
        {OP_COMBINE_DWEIGHTS, 0, DROP},
        {OP_MATMUL_GROUPED, 3, DROP},
        {OP_MATMUL_GROUPED, 4, DOUBLE},
        {OP_MATMUL_GROUPED, 0, OTHER_NUMBER},
        {OP_ALL_TO_ALL_V, 0, DROP},
        {OP_ALL_TO_ALL_V, 1, DOUBLE},
        {OP_ALL_TO_ALL_V, 0, OTHER_CHANNEL},
        {OP_ALL_TO_ALL, 0, DROP},
        {OP_EXPERT_LOAD, 0, DROP},
        {OP_EXPERT_LOAD, 1, DOUBLE},
        {OP_EXPERT_LOAD, 0, LATER},
        {OP_BALANCE, 0, DROP},
        {OP_BALANCE, 2, DOUBLE},
    };
    const struct programs_case c = {
        .dims = &dims, .pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2, .ep = 2, .microbatches = 4};
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(breaks); i++)
        check_broken(&c, breaks[i].op, breaks[i].n, breaks[i].way);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_broken_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
