/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h: transfers take what the ring's formulas give for the links their group has; operations what their FLOPs and
 * bytes give on the machine's data sheet. Expected numbers are worked out by hand beside each case. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/plans.h"

/* Round numbers, so that expectations can be read: 8 in a machine, 100 GB/s between them, 10 GB/s of network each. */
static const struct machine simple = {.name = "simple",
                                      .flops_bf16 = 100e12,
                                      .flops_f32 = 10e12,
                                      .memory_bandwidth = 1e12,
                                      .node = 8,
                                      .link_bandwidth = 100e9,
                                      .net_bandwidth = 10e9,
                                      .link_latency = 1e-6,
                                      .net_latency = 10e-6,
                                      .start = 2e-6,
                                      .matmul_efficiency = 0.5,
                                      .matmul_half = 1e6,
                                      .attention_efficiency = 0.25,
                                      .attention_dgrad_efficiency = 0.2,
                                      .attention_masked = 1.5,
                                      .memory_efficiency = 0.5};

static struct mesh mesh_of(int pp, int replicate, int shard, int cp, int tp)
{
    return (struct mesh){.world = pp * replicate * shard * cp * tp, .size = {pp, replicate, shard, cp, tp}, .ep = 1};
}

static void near(double got, double expected, const char *what)
{
    if (fabs(got - expected) > 1e-9 * fabs(expected))
        fail_msg("%s: %.12g instead of %.12g", what, got, expected);
}

static void transfers_take_the_rings_time(void **state)
{
    static const struct {
        const char *what;
        int pp, replicate, shard, cp, tp;
        enum op op;
        enum group group;
        double bytes, expected;
    } all[] = {
        /* 7 steps of 1 us; 7 parts of 1 GB at 100 GB/s */
        {"gather, 8 on one machine", 1, 1, 8, 1, 1, OP_ALL_GATHER, GROUP_FSDP, 1e9, 7e-6 + 0.07},
        /* 7/8 of 8 GB at 100 GB/s */
        {"scatter, 8 on one machine", 1, 1, 8, 1, 1, OP_REDUCE_SCATTER, GROUP_FSDP, 8e9, 7e-6 + 0.07},
        {"all-to-all, 8 on one machine", 1, 1, 8, 1, 1, OP_ALL_TO_ALL, GROUP_FSDP, 8e9, 7e-6 + 0.07},
        /* two machines of 8, with cards that carry 80 GB/s; 2 + log2 16 steps of 10 us */
        {"gather, 16 on two machines", 1, 1, 16, 1, 1, OP_ALL_GATHER, GROUP_FSDP, 1e9, 6 * 10e-6 + 15.0 / 80},
        {"scatter, 16 on two machines", 1, 1, 16, 1, 1, OP_REDUCE_SCATTER, GROUP_FSDP, 16e9, 6 * 10e-6 + 15.0 / 80},
        /* tp 8 fills a machine, so a sharding group has one rank on each of two: 10 GB/s */
        {"all-reduce, one on each of two", 1, 2, 1, 1, 8, OP_ALL_REDUCE, GROUP_REPLICATE, 1e9,
         2 * (10e-6 + 0.5 * 1e9 / 10e9)},
        /* tp 4: two of a sharding group of four on each machine, 20 GB/s; a ring's 3 steps, fewer than 2 + log2 4 */
        {"scatter, two on each of two", 1, 1, 4, 1, 4, OP_REDUCE_SCATTER, GROUP_FSDP, 4e9, 3 * 10e-6 + 3.0 / 20},
        {"scatter over tp on one machine", 1, 1, 4, 1, 4, OP_REDUCE_SCATTER, GROUP_TP, 4e9, 3 * 1e-6 + 3.0 / 100},
        {"message inside a machine", 2, 1, 4, 1, 1, OP_SEND, GROUP_PP, 1e8, 1e-6 + 1e-3},
        {"message between machines", 2, 1, 8, 1, 1, OP_SEND, GROUP_PP, 1e8, 10e-6 + 1e-2},
        {"shift of a ring in a machine", 1, 1, 1, 4, 2, OP_SHIFT, GROUP_CP, 1e8, 1e-6 + 1e-3},
        /* up and down a tree of 16 */
        {"report of 16", 1, 1, 16, 1, 1, OP_AGREE, GROUP_WORLD, 800, 2 * (4 * 10e-6 + 800 * 15.0 / 16 / 80e9)},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        const struct mesh mesh = mesh_of(all[i].pp, all[i].replicate, all[i].shard, all[i].cp, all[i].tp);
        near(cost_transfer(&simple, &mesh, all[i].op, all[i].group, all[i].bytes), all[i].expected, all[i].what);
    }
}

static void open_plan(struct planned *p, int world, const char *const *sets)
{
    struct titan_error err = {0};
    if (planned_open(p, world, "h100", sets, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

/* The debug model: width 256, 6 layers, 16 heads of 16, feed-forward 768, vocabulary 2048. */
#define MULTIPLIED (6 * (4 * 256 * 256 + 3 * 256 * 768) + 2048 * 256)

static void flops_are_the_models(void **state)
{
    static const char *const sets[] = {"training.seq_len=128", "training.local_batch_size=2",
                                       "activation_checkpoint.mode=none", NULL};
    struct planned p;
    double products = 0, forward = 0, backward = 0;

    (void)state;
    open_plan(&p, 1, sets);
    for (int i = 0; i < p.programs[0]->n_actions; i++) {
        const struct action *a = &p.programs[0]->actions[i];
        const double flops = cost_flops(p.programs[0], a);
        *(a->op == OP_ATTENTION ? &forward : a->op == OP_ATTENTION_DGRAD ? &backward : &products) += flops;
    }
    near(products, 6.0 * MULTIPLIED * 256, "products: 6 FLOPs a weight and token");
    /* 2 products over half of 128 x 128 pairs, 2 FLOPs each, 16 wide */
    near(forward, 2.0 * 6 * 16 * (128 * 128 / 2) * 2 * 2 * 16, "attention forward");
    near(backward, 2.5 * forward, "five products backward for two forward");
    planned_close(&p);
}

static const struct action *find(const struct program *p, enum op op)
{
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].op == op)
            return &p->actions[i];
    fail_msg("no %s in the program", op_name(op));
    return NULL;
}

static void operations_take_the_machines_time(void **state)
{
    static const char *const sets[] = {"training.seq_len=128", "training.local_batch_size=2",
                                       "activation_checkpoint.mode=none", NULL};
    const struct cost cost = {.machine = &simple};
    struct machine quick = simple;
    struct planned p;

    (void)state;
    open_plan(&p, 1, sets);
    const struct program *q = p.programs[0];

    /* memory-bound: out, gate and up, (256,768) bf16 the first, the columns of a (256,1536) the others, at 0.5 TB/s */
    const struct action *a = find(q, OP_SWIGLU);
    near(cost_action(&cost, q, a), 2e-6 + 3 * 256 * 768 * 2 / 0.5e12, "swiglu");

    /* of the embedding's 2048 rows those of 256 tokens: read and written in bf16; read twice, once to be added to, in
     * fp32 */
    a = find(q, OP_EMBED);
    near(cost_action(&cost, q, a), 2e-6 + (2 * 256 * 256 * 2 + 256 * 4) / 0.5e12, "embed");
    a = find(q, OP_EMBED_WGRAD);
    near(cost_action(&cost, q, a), 2e-6 + (256 * 256 * (2 * 4 + 2) + 256 * 4) / 0.5e12, "embed_wgrad");

    /* 16 heads, 256 queries of two sequences of 128, causal: a quarter of 100 TFLOP/s */
    a = find(q, OP_ATTENTION);
    const double flops = 2.0 * 16 * (128 * 128 / 2) * 2 * 2 * 16;
    near(cost_action(&cost, q, a), 2e-6 + flops / 25e12, "attention");

    /* a product is at half of its best rate where m*n*k is matmul_half, and never faster than memory */
    a = find(q, OP_MATMUL);
    const double mnk = cost_flops(q, a) / 2;
    quick.memory_bandwidth = 1e18;
    quick.matmul_half = mnk;
    near(cost_action(&(struct cost){.machine = &quick}, q, a), 2e-6 + 2 * mnk / (100e12 * 0.25), "a small product");
    quick.matmul_half = 0;
    near(cost_action(&(struct cost){.machine = &quick}, q, a), 2e-6 + 2 * mnk / (100e12 * 0.5), "a large product");
    quick.memory_bandwidth = 1; /* bytes/s: its operands alone count */
    double bytes = 0;
    for (int i = 0; i < a->n_operands; i++)
        bytes += (double)action_operands(q, a)[i].bytes;
    near(cost_action(&(struct cost){.machine = &quick}, q, a), 2e-6 + bytes / 0.5, "a product that waits for memory");

    near(cost_action(&cost, q, find(q, OP_DECIDE)), 0, "a word to the host");
    planned_close(&p);
}

/* Queries and keys have one input: in float8 it is made once, in MXFP8 with each of their products. Its blocks are read
 * once, 2 bytes, and written as codes and scales; emulated, as they were. */
/* Activations one way, gradients of equal size the other: a start, a latency, the bytes at 100 GB/s. */
static void both_ends_of_a_message_take_as_long(void **state)
{
    static const char *const sets[] = {"training.seq_len=128", "training.local_batch_size=2",
                                       "parallelism.pipeline_parallel_degree=2", NULL};
    const struct cost cost = {.machine = &simple};
    struct planned p;

    (void)state;
    open_plan(&p, 2, sets);
    const struct program *q = p.programs[0];
    const double expected = 2e-6 + 1e-6 + (double)cost_bytes(q, find(q, OP_SEND)) / 100e9;
    near(cost_action(&cost, q, find(q, OP_SEND)), expected, "send");
    near(cost_action(&cost, q, find(q, OP_RECV)), expected, "receive");
    planned_close(&p);
}

static void operands_of_eight_bits_are_made(void **state)
{
    static const char *const ways[][4] = {
        {"training.seq_len=128", "training.local_batch_size=2", "model.converters=float8", NULL},
        {"training.seq_len=128", "training.local_batch_size=2", "model.converters=mx", NULL}};
    static const double made[] = {3, 2 + 1 + 1.0 / 32}, emulated[] = {6, 4};
    struct machine m = simple;
    const struct cost cost = {.machine = &m};
    struct planned p;
    struct titan_error err = {0};

    (void)state;
    m.matmul_f8_efficiency = 0.5;
    m.matmul_half = 0;
    for (int i = 0; i < 2; i++) {
        if (planned_open(&p, 1, "b200", ways[i], &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        const struct program *const q = p.programs[0];
        const struct action *const queries = find(q, OP_MATMUL), *const keys = queries + 1;
        const double mnk = cost_flops(q, queries) / 2, operand = 256 * 256;
        assert_int_equal(keys->op, OP_MATMUL);
        near(mnk, 256.0 * 256 * 256, "256 tokens, 256 wide");
        m.flops_f8 = 2e12;
        near(cost_action(&cost, q, queries), 2e-6 + 2 * mnk / 1e12 + made[i] * 2 * operand / 0.5e12, "queries");
        near(cost_action(&cost, q, keys), 2e-6 + 2 * mnk / 1e12 + made[i] * (i ? 2 : 1) * operand / 0.5e12, "keys");
        m.flops_f8 = 0;
        m.flops_bf16 = 2e12;
        near(cost_action(&cost, q, queries), 2e-6 + 2 * mnk / 1e12 + emulated[i] * 2 * operand / 0.5e12, "emulated");
        planned_close(&p);
    }
}

/* Where scales are held for four steps, a step looks for a quarter of the largest magnitudes. */
static void held_scales_are_found_seldom(void **state)
{
    static const char *const each[] = {"model.converters=float8", "float8.recipe_name=scalify", NULL};
    static const char *const held[] = {"model.converters=float8", "float8.recipe_name=scalify",
                                       "float8.scalify_refresh=4", NULL};
    const struct cost cost = {.machine = &simple};
    struct planned a, b;

    (void)state;
    open_plan(&a, 1, each);
    open_plan(&b, 1, held);
    const struct program *const p = a.programs[0], *const q = b.programs[0];
    const struct action *const first = find(p, OP_FLOAT8_LARGEST), *const seldom = find(q, OP_FLOAT8_LARGEST);
    assert_true(p->scales_every == 1 && q->scales_every == 4 && program_hash(p) != program_hash(q));
    assert_true(p->n_actions == q->n_actions && find(q, OP_HELD_SCALES));
    assert_int_equal(q->statistics.size - q->statistics.scales, q->layout->model->n_tensors);
    assert_int_equal(p->statistics.size, p->statistics.scales);
    near(4 * cost_action(&cost, q, seldom), cost_action(&cost, p, first), "largest");
    near(4 * cost_floor(&cost, q, seldom), cost_floor(&cost, p, first), "its floor");
    planned_close(&a);
    planned_close(&b);
}

/* Products in int8 read their operands twice and write codes; their sums are written and read. */
static void operands_of_int8_are_made(void **state)
{
    static const char *const way[] = {"training.seq_len=128", "training.local_batch_size=2",
                                      "model.converters=switchback", NULL};
    struct machine m = simple;
    const struct cost cost = {.machine = &m};
    struct planned p;

    (void)state;
    m.matmul_f8_efficiency = 0.5;
    m.matmul_half = 0;
    m.flops_i8 = 2e12;
    open_plan(&p, 1, way);
    const struct program *const q = p.programs[0];
    const struct action *const queries = find(q, OP_MATMUL);
    const double mnk = cost_flops(q, queries) / 2, operand = 256 * 256;
    near(mnk, 256.0 * 256 * 256, "256 tokens, 256 wide");
    near(cost_action(&cost, q, queries), 2e-6 + 2 * mnk / 1e12 + (2 * 5 + 8) * operand / 0.5e12, "queries");
    planned_close(&p);
}

/* Moments in bf16 take half of the bytes, and longer where rounding them does. */
static void updates_are_bound_by_memory(void **state)
{
    static const char *const plain[] = {"training.seq_len=128", NULL};
    static const char *const rounded[] = {"training.seq_len=128", "optimizer.state_dtype=bfloat16", NULL};
    const struct cost cost = {.machine = &simple};
    struct planned p;

    (void)state;
    for (int i = 0; i < 2; i++) {
        open_plan(&p, 1, i ? rounded : plain);
        const struct program *const q = p.programs[0];
        const struct action *const a = find(q, OP_OPTIMISE);
        double parameters = 0;
        for (int k = OPERAND_OF(optimise, gradient); k < a->n_operands; k += UPDATE_OPERANDS)
            parameters += (double)action_operands(q, a)[k].bytes / 4;
        /* master and moments are read and written, the gradient read, bf16 parameters written */
        const double bytes = (i ? 2 * 8 + 4 + 2 : 2 * 12 + 4 + 2) * parameters;
        near(cost_action(&cost, q, a), 2e-6 + bytes / 0.5e12, "an update");
        planned_close(&p);
    }
}

static void masks_cost_more(void **state)
{
    static const char *const plain[] = {"training.seq_len=128", NULL};
    static const char *const packed[] = {"training.seq_len=128", "training.block_causal=true", NULL};
    const struct cost cost = {.machine = &simple};
    struct planned p;
    double t[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        open_plan(&p, 1, i ? packed : plain);
        t[i] = cost_action(&cost, p.programs[0], find(p.programs[0], OP_ATTENTION)) - simple.start;
        planned_close(&p);
    }
    near(t[1], 1.5 * t[0], "masked attention");
}

static void orders_have_their_price(void **state)
{
    static const char *const sets[][4] = {{"numerics.deterministic=false", NULL},
                                          {NULL},
                                          {"numerics.canonical=true", "training.global_batch_size=8", NULL}};
    struct machine m = simple;
    const struct cost cost = {.machine = &m};
    struct planned p;

    (void)state;
    m.attention_repeatable = 1.6;
    m.attention_own = 2e12;
    m.attention_own_dgrad = 1e12;
    const double rates[][2] = {{25e12, 20e12}, {25e12, 20e12 / 1.6}, {2e12, 1e12}};
    for (size_t i = 0; i < ARRAY_SIZE(sets); i++) {
        open_plan(&p, 1, sets[i]);
        const struct program *const q = p.programs[0];
        const struct action *const forward = find(q, OP_ATTENTION), *const backward = find(q, OP_ATTENTION_DGRAD);
        near(cost_action(&cost, q, forward), 2e-6 + cost_flops(q, forward) / rates[i][0], "attention");
        near(cost_action(&cost, q, backward), 2e-6 + cost_flops(q, backward) / rates[i][1], "its gradients");
        planned_close(&p);
    }
}

static void machines_are_found(void **state)
{
    char names[64];

    (void)state;
    (void)snprintf(names, sizeof names, "%s", cost_machine_names());
    for (char *save = NULL, *name = strtok_r(names, "|", &save); name; name = strtok_r(NULL, "|", &save)) {
        const struct machine *m = cost_machine_find(name);
        assert_non_null(m);
        assert_string_equal(m->name, name);
        assert_true(m->flops_bf16 > 0 && m->flops_f32 > 0 && m->memory_bandwidth > 0 && m->node > 0);
        assert_true(m->memory_bytes > 0 && m->link_bandwidth > 0 && m->net_bandwidth > 0 && m->host_bandwidth > 0);
        assert_true(m->attention_masked >= 1);
    }
    assert_ptr_equal(cost_machine_find("H100"), cost_machine_find("h100"));
    assert_ptr_equal(cost_machine_of("NVIDIA H100 80GB HBM3"), cost_machine_find("h100"));
    assert_ptr_equal(cost_machine_of("NVIDIA H200"), cost_machine_find("h200"));
    assert_non_null(cost_machine_find("torchtitan-h100"));
    assert_null(cost_machine_find("a100"));
    assert_null(cost_machine_find(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_take_the_rings_time),
        cmocka_unit_test(flops_are_the_models),
        cmocka_unit_test(operations_take_the_machines_time),
        cmocka_unit_test(both_ends_of_a_message_take_as_long),
        cmocka_unit_test(operands_of_eight_bits_are_made),
        cmocka_unit_test(operands_of_int8_are_made),
        cmocka_unit_test(held_scales_are_found_seldom),
        cmocka_unit_test(masks_cost_more),
        cmocka_unit_test(updates_are_bound_by_memory),
        cmocka_unit_test(orders_have_their_price),
        cmocka_unit_test(machines_are_found),
    };
    return cmocka_run_group_tests_name("cost", tests, NULL, NULL);
}
