/* SPDX-License-Identifier: Apache-2.0 */
/* passes.h: whatever a pass does, the checker accepts it, the same is computed and the same bytes travel; buckets are
 * as many as the transfers that are left; a pass gives way to a memory limit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/plans.h"
#include "worker/plan/check.h"
#include "worker/plan/fuse.h"
#include "worker/plan/passes.h"
#include "worker/plan/simulate.h"

#define SETS_MAX 16

struct setting {
    const char *bucketing, *reorder, *async;
    bool fuse;
};

static const struct setting off = {"block", "false", "false", false};

/* Sets of a case with a setting of the passes behind them. */
static void open_plan(struct planned *p, int world, const char *machine, const char *const *sets,
                      const struct setting *s)
{
    char bucketing[64], reorder[64], async[64];
    const char *all[SETS_MAX] = {bucketing, reorder, async, s->fuse ? "compile.fuse=true" : "compile.fuse=false"};
    struct titan_error err = {0};

    (void)snprintf(bucketing, sizeof bucketing, "parallelism.fsdp_bucketing=%s", s->bucketing);
    (void)snprintf(reorder, sizeof reorder, "parallelism.fsdp_reorder=%s", s->reorder);
    (void)snprintf(async, sizeof async, "parallelism.enable_async_tensor_parallel=%s", s->async);
    for (size_t i = 0, n = 4; sets[i]; i++) {
        assert_true(n < ARRAY_SIZE(all) - 1);
        all[n++] = sets[i];
    }
    if (planned_open(p, world, machine, all, &err) != TITAN_OK)
        fail_msg("world %d, bucketing %s, reorder %s, async %s: %s", world, s->bucketing, s->reorder, s->async,
                 err.msg);
}

/* --- what is computed --------------------------------------------------------------------------------------------- */

/* One kind of computation of one microbatch, with all its pieces. */
struct computed {
    int op, phase, unit, stage, microbatch;
    int64_t cols, inner; /* of a product, with rows that may be cut; flags of others */
    double amount;       /* rows of a product, 1 of others */
};

static int by_identity(const void *x, const void *y)
{
    const struct computed *a = x, *b = y;
    const int64_t d[] = {a->op - b->op,       a->phase - b->phase,           a->unit - b->unit,
                         a->stage - b->stage, a->microbatch - b->microbatch, a->cols - b->cols,
                         a->inner - b->inner};
    for (size_t i = 0; i < ARRAY_SIZE(d); i++)
        if (d[i] != 0)
            return d[i] < 0 ? -1 : 1;
    return 0;
}

/* Everything but transfers and releases, sorted, equal ones together; a fused action is what it stands for. */
static struct computed *computed_of(const struct program *p, int *ret_n)
{
    struct computed *all = calloc(FUSE_ACTIONS * (size_t)p->n_actions + OP_WORDS + (size_t)p->n_buffers, sizeof *all);
    int n = 0, kept = 0;

    assert_non_null(all);
    for (int i = 0; i < p->n_actions; i++) {
        struct plain plain;
        fuse_undo(p, &p->actions[i], &plain);
        for (int k = 0; k < plain.n; k++) {
            const struct action *a = &plain.actions[k].action;
            const struct op_params *q = plain.actions[k].params;
            const bool product = a->op == OP_MATMUL;
            if (op_is_transfer((enum op)a->op) || a->op == OP_RELEASE)
                continue;
            if (a->op == OP_OPTIMISE) {
                for (int j = 0; j < a->n_operands; j += UPDATE_OPERANDS)
                    all[n++] = (struct computed){.op = OP_OPTIMISE,
                                                 .phase = a->phase,
                                                 .unit = p->buffers[plain.actions[k].operands[j].buffer].unit,
                                                 .inner = q->part[j / UPDATE_OPERANDS],
                                                 .amount = 1};
                continue;
            }
            all[n++] = (struct computed){a->op,
                                         a->phase,
                                         a->unit,
                                         a->stage,
                                         a->microbatch,
                                         q->word[1],
                                         product ? q->matmul.K : q->word[0],
                                         product ? (double)q->matmul.M : 1};
        }
    }
    qsort(all, (size_t)n, sizeof *all, by_identity);
    for (int i = 0; i < n; i++) {
        if (kept > 0 && by_identity(&all[kept - 1], &all[i]) == 0)
            all[kept - 1].amount += all[i].amount;
        else
            all[kept++] = all[i];
    }
    *ret_n = kept;
    return all;
}

static void same_computations(const struct program *a, const struct program *b, const char *what)
{
    int n_a, n_b;
    struct computed *x = computed_of(a, &n_a), *y = computed_of(b, &n_b);

    if (n_a != n_b)
        fail_msg("%s: %d kinds of computation instead of %d", what, n_b, n_a);
    for (int i = 0; i < n_a; i++)
        if (by_identity(&x[i], &y[i]) != 0 || x[i].amount != y[i].amount)
            fail_msg("%s: %s of unit %d, microbatch %d: %g instead of %g", what, op_name((enum op)y[i].op), y[i].unit,
                     y[i].microbatch, y[i].amount, x[i].amount);
    free(x);
    free(y);
}

static void same_bytes(const struct program *a, const struct program *b, const char *what)
{
    double bytes[2][CHANNEL_COUNT] = {{0}};

    for (int k = 0; k < 2; k++)
        for (int i = 0; i < (k ? b : a)->n_actions; i++) {
            const struct action *x = &(k ? b : a)->actions[i];
            if (op_is_transfer((enum op)x->op))
                bytes[k][x->channel] += action_wire_bytes(k ? b : a, x);
        }
    for (int c = 0; c < CHANNEL_COUNT; c++)
        if (bytes[0][c] != bytes[1][c])
            fail_msg("%s: %.0f bytes over %s instead of %.0f", what, bytes[1][c], channel_name((enum channel)c),
                     bytes[0][c]);
}

/* planned_open has the checker look at every program and at all of them together. */
static void every_setting_computes_the_same(void **state)
{
    static const struct {
        int world;
        const char *sets[SETS_MAX - 5];
    } cases[] = {
        {4, {NULL}},
        {4, {"parallelism.fsdp_reshard_after_forward=always", "activation_checkpoint.mode=full", NULL}},
        {2, {"parallelism.tensor_parallel_degree=2", "activation_checkpoint.mode=none", NULL}},
        {8, {"parallelism.tensor_parallel_degree=2", "parallelism.data_parallel_replicate_degree=2", NULL}},
        {4, {"parallelism.pipeline_parallel_degree=2", "training.global_batch_size=4", NULL}},
        {8,
         {"parallelism.pipeline_parallel_degree=2", "parallelism.tensor_parallel_degree=2",
          "training.global_batch_size=8", "parallelism.pipeline_parallel_schedule=ZBVZeroBubble", NULL}},
        {4, {"numerics.canonical=true", "training.global_batch_size=8", NULL}},
        {4, {"training.enable_cpu_offload=true", NULL}},
        {4,
         {"model.float8=true", "float8.enable_fsdp_float8_all_gather=true",
          "parallelism.fsdp_reshard_after_forward=always", "activation_checkpoint.mode=full", NULL}},
    };
    static const struct setting settings[] = {
        {"greedy", "false", "false", false}, {"block", "true", "false", false}, {"greedy", "true", "false", false},
        {"block", "false", "true", false},   {"greedy", "true", "true", false}, {"off", "true", "false", false},
        {"off", "false", "false", false},    {"block", "false", "false", true}, {"greedy", "true", "true", true},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct planned plain;
        open_plan(&plain, cases[i].world, "h100", cases[i].sets, &off);
        for (size_t k = 0; k < ARRAY_SIZE(settings); k++) {
            char what[128];
            struct planned p;
            (void)snprintf(what, sizeof what, "case %zu, bucketing %s, reorder %s, async %s, fuse %d", i,
                           settings[k].bucketing, settings[k].reorder, settings[k].async, settings[k].fuse);
            open_plan(&p, cases[i].world, "h100", cases[i].sets, &settings[k]);
            assert_int_equal(p.plan->classes, plain.plan->classes);
            for (int kind = 0; kind < p.plan->classes; kind++) {
                same_computations(plain.programs[kind], p.programs[kind], what);
                same_bytes(plain.programs[kind], p.programs[kind], what);
            }
            planned_close(&p);
        }
        planned_close(&plain);
    }
}

/* --- one pass at a time ------------------------------------------------------------------------------------------- */

static struct program *draft_of(const struct planned *p)
{
    struct titan_error err = {0};
    struct program *draft = NULL;

    if (planned_draft(p, 0, &draft, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return draft;
}

/* Whether the checker accepts the program once it is finished. */
static void accepted(struct program *p)
{
    struct titan_error err = {0};

    if (program_finish(p, &err) != TITAN_OK || program_check(p, 0, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

struct transfers {
    int actions, pairs, most; /* launches, tensors in them, in the largest */
    double bytes, largest;
};

static struct transfers count(const struct program *p, enum op op, enum channel channel)
{
    struct transfers t = {0};

    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        if (a->op != op || a->channel != (int)channel)
            continue;
        const double bytes = (double)action_sent_bytes(p, a);
        t.actions++;
        t.pairs += a->n_operands / 2;
        t.most = MAX(t.most, a->n_operands / 2);
        t.bytes += bytes;
        t.largest = MAX(t.largest, bytes);
    }
    return t;
}

/* Many thin layers between which much is computed: what buckets are for. */
static const char *const deep[] = {"model.n_layers=24", "training.seq_len=512", "training.local_batch_size=4",
                                   "parallelism.fsdp_reshard_after_forward=always", NULL};

static void buckets_hold_all_and_no_more(void **state)
{
    static const struct {
        enum op op;
        enum channel channel;
    } kinds[] = {{OP_ALL_GATHER, CHANNEL_GATHER}, {OP_REDUCE_SCATTER, CHANNEL_REDUCE}};
    struct titan_error err = {0};
    struct planned p;

    (void)state;
    open_plan(&p, 4, "h100", deep, &off);
    struct program *plain = draft_of(&p), *joined = draft_of(&p);
    const struct pass_options options = {.cost = &p.cost};
    if (pass_bucket(joined, &options, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
        const struct transfers a = count(plain, kinds[k].op, kinds[k].channel),
                               b = count(joined, kinds[k].op, kinds[k].channel);
        assert_int_equal(a.actions, a.pairs); /* as built each is alone */
        assert_int_equal(b.pairs, a.pairs);
        assert_true(b.bytes == a.bytes);
        if (b.actions >= a.actions)
            fail_msg("%s: %d launches, %d without buckets", op_name(kinds[k].op), b.actions, a.actions);
        assert_true(b.largest <= a.bytes / 5 || b.largest == a.largest);
    }
    accepted(joined);
    same_computations(plain, joined, "buckets");
    program_close(plain);
    program_close(joined);
    planned_close(&p);
}

static int find(const struct program *p, enum op op, int unit, int from)
{
    for (int i = from; i < p->n_actions; i++)
        if (p->actions[i].op == op && p->actions[i].unit == unit)
            return i;
    fail_msg("no %s of unit %d behind action %d", op_name(op), unit, from);
    return -1;
}

/* Codes are made where their gather goes: at once before it, not before the scales. */
static void codes_go_with_their_gather(void **state)
{
    static const struct setting both = {"greedy", "true", "false", false};
    const char *sets[SETS_MAX] = {"model.float8=true", "float8.enable_fsdp_float8_all_gather=true"};
    struct planned p, q;

    (void)state;
    for (int i = 0; deep[i]; i++)
        sets[2 + i] = deep[i];
    open_plan(&p, 4, "h100", sets, &off);
    open_plan(&q, 4, "h100", sets, &both);
    const struct transfers a = count(p.programs[0], OP_ALL_GATHER, CHANNEL_GATHER),
                           b = count(q.programs[0], OP_ALL_GATHER, CHANNEL_GATHER);
    assert_int_equal(b.pairs, a.pairs);
    assert_true(b.bytes == a.bytes && b.actions < a.actions);
    same_computations(p.programs[0], q.programs[0], "codes");
    /* Each as late as it may be: right before its transfer but for those of the same one. */
    const struct program *r = q.programs[0];
    for (int i = 0; i < r->n_actions; i++) {
        if (r->actions[i].op != OP_FLOAT8_PACK)
            continue;
        int to = i;
        while (r->actions[to].op == OP_FLOAT8_PACK)
            to++;
        assert_int_equal(r->actions[to].op, OP_ALL_GATHER);
        assert_true(i > find(r, OP_FLOAT8_SCALES, r->actions[i].unit, 0));
    }
    planned_close(&p);
    planned_close(&q);
}

/* Half the bytes, and the plan says so: of layers with codes a byte an element, and little else. */
static void codes_are_half_the_bytes(void **state)
{
    const char *sets[SETS_MAX] = {"model.flavor=8B", "training.seq_len=512", "model.n_layers=4", "model.float8=true"};
    struct planned plain, codes;

    (void)state;
    open_plan(&plain, 8, "h100", sets, &off);
    sets[4] = "float8.enable_fsdp_float8_all_gather=true";
    open_plan(&codes, 8, "h100", sets, &off);
    const struct program *p = plain.programs[0], *q = codes.programs[0];
    for (int unit = 1; unit <= 4; unit++) {
        const struct action *a = &p->actions[find(p, OP_ALL_GATHER, unit, 0)],
                            *b = &q->actions[find(q, OP_ALL_GATHER, unit, 0)];
        const double ratio = action_wire_bytes(q, b) / action_wire_bytes(p, a);
        assert_true(ratio > 0.5 && ratio < 0.502);
        assert_true(cost_action(&codes.cost, q, b) < 0.55 * cost_action(&plain.cost, p, a));
    }
    planned_close(&plain);
    planned_close(&codes);
}

/* Weights in few bits: what a rank sends of a layer is the formula's bytes and two norms in bf16, which lie on one
 * rank; codes are made right before their transfers, where those go, and parameters of them at once before the first
 * use. */
static void few_bits_are_their_formula(void **state)
{
    static const struct setting both = {"greedy", "true", "false", false};
    static const char *const keys[] = {NULL, "parallelism.fsdp_gather_codec=int8", "parallelism.fsdp_gather_codec=int6",
                                       "parallelism.fsdp_gather_codec=int4"};
    const char *sets[SETS_MAX] = {"model.flavor=8B", "training.seq_len=512", "model.n_layers=4"};
    const enum op encode[] = {OP_WEIGHT_ENCODE, OP_WEIGHT_ENCODE_BY},
                  decode[] = {OP_WEIGHT_DECODE, OP_WEIGHT_DECODE_BY};

    (void)state;
    for (int turn = 0; turn < 5; turn++) { /* int8, int6, int4; then int6 and int4 with learned levels */
        const enum weight_codec codec = (enum weight_codec)(turn < 3 ? turn + 1 : turn - 1);
        const bool learns = turn >= 3;
        struct planned p, q;
        sets[3] = keys[codec];
        sets[4] = learns ? "parallelism.fsdp_gather_levels=learned" : NULL;
        open_plan(&p, 8, "h100", sets, &off);
        open_plan(&q, 8, "h100", sets, &both);
        const struct program *const r = p.programs[0], *const s = q.programs[0];
        for (int unit = 1; unit <= 4; unit++) {
            const struct action *a = &r->actions[find(r, OP_ALL_GATHER, unit, 0)];
            const int64_t shard = r->layout->units[unit].shard;
            assert_int_equal(action_sent_bytes(r, a),
                             weight_codes_bytes(codec, shard, WEIGHT_BUCKET) + 4 * r->layout->model->dims.dim);
            assert_true(fabs((double)action_sent_bytes(r, a) * 8 / (double)shard - weight_bits(codec) - 0.0625) < 0.01);
        }
        same_computations(r, s, "few bits");
        int encodes = 0, decodes = 0;
        for (int i = 0; i < s->n_actions; i++) {
            int to = i;
            decodes += s->actions[i].op == decode[learns];
            if (s->actions[i].op != encode[learns])
                continue;
            encodes++;
            assert_true(!learns || i > find(s, OP_WEIGHT_LEARN, s->actions[i].unit, 0));
            while (s->actions[to].op == encode[learns])
                to++;
            assert_int_equal(s->actions[to].op, OP_ALL_GATHER);
        }
        assert_true(encodes > 0 && encodes == decodes);
        planned_close(&p);
        planned_close(&q);
    }
}

/* Ranks with fewer microbatches than others have less to hide transfers under, but launch the same buckets; opening the
 * plan proves it. */
static void unequal_shares_bucket_alike(void **state)
{
    static const struct setting greedy = {"greedy", "true", "false", true};
    static const char *const cases[][4] = {
        {"training.global_batch_size=5", "parallelism.fsdp_reduce=microbatch"},
        {"training.global_batch_size=7", "parallelism.fsdp_reshard_after_forward=always"},
        {"training.global_batch_size=5", "numerics.canonical=true"},
        {"training.global_batch_size=5", "model.float8=true", "float8.enable_fsdp_float8_all_gather=true"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *sets[SETS_MAX] = {"model.n_layers=24", "training.seq_len=512"};
        struct planned p;
        for (int k = 0; cases[i][k]; k++)
            sets[2 + k] = cases[i][k];
        open_plan(&p, 3, "h100", sets, &greedy);
        assert_true(p.plan->classes > 1);
        for (int k = 1; k < p.plan->classes; k++) {
            const struct transfers a = count(p.programs[0], OP_ALL_GATHER, CHANNEL_GATHER),
                                   b = count(p.programs[k], OP_ALL_GATHER, CHANNEL_GATHER);
            assert_int_equal(a.actions, b.actions);
            assert_int_equal(a.pairs, b.pairs);
            assert_true(a.actions < a.pairs);
        }
        planned_close(&p);
    }
}

/* Codes that are made far ahead of a rank's last microbatch, which others do not have, hold no one's compute up;
 * opening the plan proves it. */
static void unequal_shares_make_codes_ahead(void **state)
{
    static const struct setting reordered = {"block", "true", "false", true};

    (void)state;
    for (int world = 2; world <= 4; world++)
        for (int microbatches = world + 1; microbatches <= 3 * world; microbatches++)
            for (int layers = 1; layers <= 4; layers++) {
                char batch[48], depth[32];
                const char *const sets[] = {"model.float8=true", "float8.enable_fsdp_float8_all_gather=true", batch,
                                            depth, NULL};
                struct planned p;
                (void)snprintf(batch, sizeof batch, "training.global_batch_size=%d", microbatches);
                (void)snprintf(depth, sizeof depth, "model.n_layers=%d", layers);
                open_plan(&p, world, "cpu", sets, &reordered);
                planned_close(&p);
            }
}

static double time_of(void *arg, const struct program *p, const struct action *a)
{
    return cost_action(arg, p, a);
}

/* Sum over gathers of the compute actions between issue and first use. */
static int64_t lead(const struct program *p)
{
    int64_t sum = 0;

    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        if (a->op != OP_ALL_GATHER || a->channel != CHANNEL_GATHER)
            continue;
        const int full = action_operands(p, a)[0].buffer;
        for (int k = i + 1; k < p->n_actions; k++) {
            bool used = false;
            for (int j = 0; j < p->actions[k].n_operands; j++)
                used |= action_operands(p, &p->actions[k])[j].buffer == full;
            if (used)
                break;
            sum += p->actions[k].stream == STREAM_COMPUTE;
        }
    }
    return sum;
}

static void reordering_asks_earlier(void **state)
{
    static const char *const late[] = {"parallelism.fsdp_prefetch=0", "training.seq_len=64",
                                       "parallelism.fsdp_reshard_after_forward=always", NULL};
    struct titan_error err = {0};
    struct planned p;

    (void)state;
    open_plan(&p, 4, "h100", late, &off);
    struct program *plain = draft_of(&p), *moved = draft_of(&p);
    const struct pass_options options = {.cost = &p.cost};
    if (pass_reorder(moved, &options, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(moved->n_actions, plain->n_actions);
    assert_true(lead(moved) > lead(plain));
    accepted(moved);
    same_computations(plain, moved, "reordering");
    program_close(plain);
    program_close(moved);
    planned_close(&p);
}

static size_t need(struct program *p)
{
    size_t external = 0;

    for (int i = 0; i < p->n_buffers; i++)
        if (buffer_is_external(p->buffers[i].kind) && buffer_memory(p->buffers[i].kind) != MEMORY_HOST)
            external += p->buffers[i].bytes;
    return program_peak(p, NULL, NULL) + external;
}

static bool same_order(const struct program *a, const struct program *b)
{
    if (a->n_actions != b->n_actions)
        return false;
    for (int i = 0; i < a->n_actions; i++)
        if (a->actions[i].op != b->actions[i].op || a->actions[i].unit != b->actions[i].unit ||
            a->actions[i].n_operands != b->actions[i].n_operands)
            return false;
    return true;
}

typedef titan_status (*pass_fn)(struct program *p, const struct pass_options *options, struct titan_error *err);

static void give_way(pass_fn pass, const char *const *sets)
{
    struct titan_error err = {0};
    struct planned p;

    open_plan(&p, 4, "h100", sets, &off);
    struct program *plain = draft_of(&p), *free_of_it = draft_of(&p), *limited = draft_of(&p);
    const size_t least = need(plain);
    const struct pass_options none = {.cost = &p.cost}, tight = {.cost = &p.cost, .memory_bytes = least};
    assert_int_equal(pass(free_of_it, &none, &err), TITAN_OK);
    assert_false(same_order(plain, free_of_it));
    assert_true(need(free_of_it) > least); /* it costs memory: otherwise this tests nothing */
    assert_int_equal(pass(limited, &tight, &err), TITAN_OK);
    assert_true(need(limited) <= least);
    accepted(limited);
    program_close(plain);
    program_close(free_of_it);
    program_close(limited);
    planned_close(&p);
}

static void passes_give_way_to_a_memory_limit(void **state)
{
    static const char *const late[] = {"parallelism.fsdp_prefetch=0", "parallelism.fsdp_reshard_after_forward=always",
                                       NULL};

    (void)state;
    give_way(pass_bucket, deep);
    give_way(pass_reorder, late);
    give_way(pass_hold, deep);
}

/* Seconds that compute waits for reductions, or of the whole step. */
static double simulated(const struct program *p, const struct cost *cost, bool whole)
{
    const struct program *const all[] = {p};
    const struct simulation_options options = {
        .programs = all, .n = 1, .issue = cost->machine->issue, .time = time_of, .arg = (void *)cost};
    struct titan_error err = {0};
    struct simulation *s = NULL;

    if (simulate(&options, &s, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    const double seconds = whole ? s->step : s->ranks[0].exposed[CHANNEL_REDUCE];
    simulation_close(s);
    return seconds;
}

/* With memory of their own, reductions hide behind the layer that follows, in buckets too. */
static void held_gradients_hide_their_reduction(void **state)
{
    struct titan_error err = {0};
    struct planned p;
    double exposed[2][2];

    (void)state;
    open_plan(&p, 4, "h100", deep, &off);
    for (int buckets = 0; buckets < 2; buckets++)
        for (int held = 0; held < 2; held++) {
            struct program *plain = draft_of(&p), *q = draft_of(&p);
            const struct pass_options options = {.cost = &p.cost};
            assert_int_equal(buckets ? pass_bucket(q, &options, &err) : TITAN_OK, TITAN_OK);
            assert_int_equal(held ? pass_hold(q, &options, &err) : TITAN_OK, TITAN_OK);
            accepted(q);
            same_computations(plain, q, "held gradients");
            same_bytes(plain, q, "held gradients");
            exposed[buckets][held] = simulated(q, &p.cost, false);
            program_close(plain);
            program_close(q);
        }
    assert_true(exposed[0][1] <= exposed[0][0]);
    assert_true(exposed[1][1] < exposed[1][0]);
    assert_true(exposed[1][1] <= exposed[0][0]); /* buckets do not lose */
    planned_close(&p);
}

/* Compute gets no memory of a sum as codes while that is under way: the step is shorter, with the same work. */
static void held_codes_hide_their_way(void **state)
{
    static const char *const axes[][4] = {
        {"parallelism.data_parallel_replicate_degree=2", "parallelism.replicate_codec=loco"},
        {"parallelism.data_parallel_replicate_degree=2", "parallelism.replicate_codec=int8",
         "parallelism.fsdp_reduce_codec=int4"},
    };
    struct titan_error err = {0};
    struct planned p;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(axes); i++) {
        const char *sets[ARRAY_SIZE(deep) + ARRAY_SIZE(axes[0]) + 1] = {0};
        int n = 0;
        for (; deep[n]; n++)
            sets[n] = deep[n];
        memcpy(sets + n, axes[i], sizeof axes[i]);
        open_plan(&p, 4, "h100", sets, &off);
        struct program *plain = draft_of(&p), *held = draft_of(&p);
        assert_int_equal(pass_hold(held, &(struct pass_options){.cost = &p.cost}, &err), TITAN_OK);
        accepted(held);
        same_computations(plain, held, "held codes");
        same_bytes(plain, held, "held codes");
        assert_int_equal(program_finish(plain, &err), TITAN_OK);
        assert_true(simulated(held, &p.cost, true) < 0.99 * simulated(plain, &p.cost, true));
        program_close(plain);
        program_close(held);
        planned_close(&p);
        give_way(pass_hold, sets);
    }
}

static void pieces_are_as_many_as_asked(void **state)
{
    static const char *const sets[] = {"parallelism.tensor_parallel_degree=2", "activation_checkpoint.mode=none", NULL};
    struct titan_error err = {0};
    struct planned p;

    (void)state;
    open_plan(&p, 2, "h100", sets, &off);
    for (int pieces = 2; pieces <= 8; pieces *= 2) {
        struct program *plain = draft_of(&p), *cut = draft_of(&p);
        assert_int_equal(pass_async_tensor(cut, pieces, &err), TITAN_OK);
        const struct transfers a = count(plain, OP_REDUCE_SCATTER, CHANNEL_TP),
                               b = count(cut, OP_REDUCE_SCATTER, CHANNEL_TP);
        assert_int_equal(b.actions, pieces * a.actions);
        assert_true(b.bytes == a.bytes);
        accepted(cut);
        same_computations(plain, cut, "pieces");
        same_bytes(plain, cut, "pieces");
        program_close(plain);
        program_close(cut);
    }
    struct program *plain = draft_of(&p), *cut = draft_of(&p);
    assert_int_equal(pass_async_tensor(cut, 7, &err), TITAN_OK); /* 32 rows of a rank do not divide */
    assert_true(same_order(plain, cut));
    program_close(plain);
    program_close(cut);
    planned_close(&p);
}

/* The order of sums of every attention of a step, forward and backward; -1: they differ. */
static int order_of(const char *const *sets)
{
    struct planned p;
    int order = -2;

    open_plan(&p, 2, "h100", sets, &off);
    for (int i = 0; i < p.programs[0]->n_actions; i++) {
        const struct action *a = &p.programs[0]->actions[i];
        if (a->op == OP_ATTENTION || a->op == OP_ATTENTION_DGRAD) {
            const int found = (int)op_attention_order(action_params(p.programs[0], a)->flags);
            order = order == -2 || order == found ? found : -1;
        }
    }
    planned_close(&p);
    return order;
}

static void sums_have_the_order_that_the_recipe_says(void **state)
{
    static const char *const free_order[] = {"numerics.deterministic=false", NULL};
    static const char *const canonical[] = {"numerics.deterministic=false", "numerics.canonical=true",
                                            "training.global_batch_size=8", NULL};
    static const char *const documents[] = {"numerics.deterministic=false", "training.block_causal=true", NULL};
    static const char *const plain[] = {NULL};

    (void)state;
    assert_int_equal(order_of(plain), ATTENTION_REPEATABLE);
    assert_int_equal(order_of(free_order), ATTENTION_ANY);
    assert_int_equal(order_of(canonical), ATTENTION_FIXED);
    assert_int_equal(order_of(documents), ATTENTION_FIXED);
}

static int updates_of(const char *offload, bool fuse)
{
    const char *const sets[] = {"model.n_layers=20", offload, NULL};
    const struct setting s = {"block", "false", "false", fuse};
    struct planned p;
    int n = 0;

    open_plan(&p, 2, "h100", sets, &s);
    for (int i = 0; i < p.programs[0]->n_actions; i++)
        n += p.programs[0]->actions[i].op == OP_OPTIMISE;
    planned_close(&p);
    return n;
}

/* 22 units, 16 in an action; not where each one's state comes from the host while the one before it is updated. */
static void updates_are_together_where_none_is_waited_for(void **state)
{
    (void)state;
    assert_int_equal(updates_of("training.enable_cpu_offload=false", true), 2);
    assert_int_equal(updates_of("training.enable_cpu_offload=false", false), 22);
    assert_int_equal(updates_of("training.enable_cpu_offload=true", true), 22);
}

static int reductions(int world, const char *pipeline, const char *reduce)
{
    char degree[64], when[64];
    const char *sets[] = {"training.local_batch_size=1", "training.global_batch_size=4", degree, when, NULL};
    struct planned p;

    (void)snprintf(degree, sizeof degree, "parallelism.pipeline_parallel_degree=%s", pipeline);
    (void)snprintf(when, sizeof when, "parallelism.fsdp_reduce=%s", reduce);
    open_plan(&p, world, "h100", sets, &off);
    const int n = count(p.programs[0], OP_REDUCE_SCATTER, CHANNEL_REDUCE).pairs;
    planned_close(&p);
    return n;
}

/* Of two microbatches a rank each, or both at once: "default" is the first, but not in a pipeline. */
static void reductions_are_when_the_recipe_says(void **state)
{
    (void)state;
    const int once = reductions(2, "1", "step"), once_in_pipeline = reductions(4, "2", "step");
    assert_true(once > 0 && once_in_pipeline > 0);
    assert_int_equal(reductions(2, "1", "microbatch"), 2 * once);
    assert_int_equal(reductions(2, "1", "default"), 2 * once);
    assert_int_equal(reductions(4, "2", "microbatch"), 2 * once_in_pipeline);
    assert_int_equal(reductions(4, "2", "default"), once_in_pipeline);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_setting_computes_the_same),
        cmocka_unit_test(buckets_hold_all_and_no_more),
        cmocka_unit_test(codes_go_with_their_gather),
        cmocka_unit_test(codes_are_half_the_bytes),
        cmocka_unit_test(few_bits_are_their_formula),
        cmocka_unit_test(unequal_shares_bucket_alike),
        cmocka_unit_test(unequal_shares_make_codes_ahead),
        cmocka_unit_test(reordering_asks_earlier),
        cmocka_unit_test(passes_give_way_to_a_memory_limit),
        cmocka_unit_test(updates_are_together_where_none_is_waited_for),
        cmocka_unit_test(held_gradients_hide_their_reduction),
        cmocka_unit_test(held_codes_hide_their_way),
        cmocka_unit_test(pieces_are_as_many_as_asked),
        cmocka_unit_test(sums_have_the_order_that_the_recipe_says),
        cmocka_unit_test(reductions_are_when_the_recipe_says),
    };
    return cmocka_run_group_tests_name("passes", tests, NULL, NULL);
}
