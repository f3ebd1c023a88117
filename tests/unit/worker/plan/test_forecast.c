/* SPDX-License-Identifier: Apache-2.0 */
/* forecast.h: bytes an axis carries are the published formulas', memory by kind sums up to what the programs need, time
 * to the step. */
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
#include "base/json.h"
#include "tests/support/plans.h"
#include "worker/plan/forecast.h"

struct forecasted {
    struct planned p;
    struct forecast f;
    struct simulation *s;
};

static void open_forecast_on(const char *machine, struct forecasted *x, int world, const char *const *sets)
{
    struct titan_error err = {0};

    titan_status status = planned_open(&x->p, world, machine, sets, &err);
    if (status == TITAN_OK)
        status = forecast_make(x->p.plan, x->p.programs, &x->p.cost, &x->f, &x->s, &err);
    if (status != TITAN_OK)
        fail_msg("%s", err.msg);
}

static void open_forecast(struct forecasted *x, int world, const char *const *sets)
{
    open_forecast_on("h100", x, world, sets);
}

static void close_forecast(struct forecasted *x)
{
    forecast_clear(&x->f);
    simulation_close(x->s);
    planned_close(&x->p);
}

/* The debug model's units: width 256, 6 layers, feed-forward 768, vocabulary 2048. */
#define LAYER (4 * 256 * 256 + 3 * 256 * 768 + 2 * 256)
#define EMBEDDING (2048 * 256)
#define HEAD (2048 * 256 + 256)

/* Elements of a unit cut in s ranges, each of whole 64. */
static double cut(double unit, int s)
{
    return s * 64 * ceil(unit / s / 64);
}

static double model(int s)
{
    return 6 * cut(LAYER, s) + cut(EMBEDDING, s) + cut(HEAD, s);
}

static void near(double got, double expected, const char *what)
{
    if (fabs(got - expected) > 1e-6 * MAX(1, fabs(expected)))
        fail_msg("%s: %.9g instead of %.9g", what, got, expected);
}

/* Zhao et al. 2023, arXiv:2304.11277: (S-1)/S of the parameters in bf16 for each gather and in fp32 for the reduction;
 * one gather fewer where they stay. */
static void sharding_sends_what_the_formula_says(void **state)
{
    static const char *const resharded[] = {"parallelism.fsdp_reshard_after_forward=always",
                                            "activation_checkpoint.mode=none", NULL};
    static const char *const kept[] = {"parallelism.fsdp_reshard_after_forward=never",
                                       "activation_checkpoint.mode=none", NULL};
    struct forecasted x;

    (void)state;
    for (int s = 2; s <= 8; s *= 2) {
        const double part = (double)(s - 1) / s;
        open_forecast(&x, s, kept);
        near(x.f.bytes[0][AXIS_DP_SHARD], part * (2 + 4) * model(s), "kept after forward");
        near(x.f.bytes[0][AXIS_TP] + x.f.bytes[0][AXIS_PP] + x.f.bytes[0][AXIS_CP] + x.f.bytes[0][AXIS_DP_REPLICATE], 0,
             "other axes");
        close_forecast(&x);
        open_forecast(&x, s, resharded);
        /* the embedding is not needed backward, and the head's backward follows its forward: gathered once */
        near(x.f.bytes[0][AXIS_DP_SHARD], part * ((2 + 4) * model(s) + 2 * 6 * cut(LAYER, s)), "resharded");
        close_forecast(&x);
    }
}

/* Plain replication: an all-reduce of the gradient, twice (R-1)/R of it; hybrid: of a rank's shard only. */
static void replication_sends_what_the_formula_says(void **state)
{
    static const char *const plain[] = {"parallelism.data_parallel_replicate_degree=4",
                                        "parallelism.data_parallel_shard_degree=1", NULL};
    static const char *const hybrid[] = {"parallelism.data_parallel_replicate_degree=4",
                                         "parallelism.data_parallel_shard_degree=2",
                                         "parallelism.fsdp_reshard_after_forward=never", NULL};
    struct forecasted x;

    (void)state;
    open_forecast(&x, 4, plain);
    near(x.f.bytes[0][AXIS_DP_REPLICATE], 2 * 0.75 * 4 * model(1), "four replicas");
    near(x.f.bytes[0][AXIS_DP_SHARD], 0, "nothing is sharded");
    close_forecast(&x);
    open_forecast(&x, 8, hybrid);
    near(x.f.bytes[0][AXIS_DP_REPLICATE], 2 * 0.75 * 4 * model(2) / 2, "four replicas of halves");
    near(x.f.bytes[0][AXIS_DP_SHARD], 0.5 * (2 + 4) * model(2), "halves");
    close_forecast(&x);
}

/* Tensor with sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198): two gathers and two scatters a layer
 * forward and as many backward where what was gathered is kept; each b*s*d*(t-1)/t elements. Outside of the layers: a
 * scatter after the embedding, a gather before the head, and the same backward; besides, three numbers in fp32 a token
 * and rank for the loss, and sums of the norms' gradients. */
static void tensor_parallelism_sends_what_the_formula_says(void **state)
{
    static const char *const sets[] = {"parallelism.tensor_parallel_degree=2", "training.seq_len=128",
                                       "training.local_batch_size=2", "activation_checkpoint.mode=none", NULL};
    struct forecasted x;

    (void)state;
    open_forecast(&x, 2, sets);
    const double tokens = 256, each = tokens * 256 * 2 / 2, norms = 13 * 256 * 4.0 * 2 / 2;
    const double loss = tokens * 3 * 4;
    near(x.f.bytes[0][AXIS_TP], 6 * 8 * each + 4 * each + loss + norms, "bytes over tp");
    close_forecast(&x);
}

static void memory_by_kind_sums_up(void **state)
{
    static const char *const sets[] = {"parallelism.pipeline_parallel_degree=2",
                                       "parallelism.pipeline_parallel_microbatch_size=1",
                                       "training.global_batch_size=8", "activation_checkpoint.mode=selective", NULL};
    struct forecasted x;

    (void)state;
    open_forecast(&x, 4, sets);
    assert_int_equal(x.f.n, 2);
    for (int r = 0; r < x.f.n; r++) {
        const struct forecast_memory *m = &x.f.memory[r];
        const struct program *p = x.s->ranks[r].program;
        size_t sum = 0, needed = p->arena_bytes, state_bytes = 0;
        for (int k = 0; k < MEMORY_COUNT; k++)
            sum += k == MEMORY_HOST ? 0 : m->bytes[k];
        for (int i = 0; i < p->n_buffers; i++) {
            const struct buffer *b = &p->buffers[i];
            if (buffer_is_external(b->kind) && b->kind != BUF_STATE_HOST)
                needed += b->bytes;
            if (b->kind == BUF_STATE)
                state_bytes += b->bytes;
        }
        assert_int_equal(m->total, sum);
        assert_int_equal(m->total, needed);
        assert_int_equal(m->bytes[MEMORY_OPTIMIZER], state_bytes);
        assert_true(m->bytes[MEMORY_ACTIVATIONS] > 0 && m->bytes[MEMORY_GRADIENTS] > 0);
        const struct machine *h = x.p.cost.machine;
        assert_true(h->memory_fixed > 0 && h->memory_peers > 0);
        /* what passes to and from the copy: gradient, master and moments of a rank's part of the largest unit */
        const double room = 16 * cut(MAX(LAYER, HEAD), 2) / 2;
        near(m->predicted, (double)(m->total + h->memory_fixed + h->memory_peers) + room, "predicted");
        assert_true(m->total <= x.f.memory[x.f.fullest].total);
    }
    close_forecast(&x);
}

static size_t much_work(struct device *dev, const struct attention_shape *shape)
{
    (void)dev;
    return (size_t)shape->tq << 16;
}

static uint64_t hash_with(const struct plan_options *options, size_t *ret_arena)
{
    struct titan_error err = {0};
    struct program **programs = NULL;
    struct plan *plan = NULL;

    assert_int_equal(plan_open(options, &plan, &err), TITAN_OK);
    if (plan_programs(plan, &programs, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    const uint64_t hash = plan_hash(plan, programs);
    *ret_arena = programs[0]->arena_bytes;
    plan_free_programs(plan, programs);
    plan_close(plan);
    return hash;
}

/* A plan is the program of a run though kernels of the run's device take other scratch; what passes do is another. */
static void hash_is_of_what_is_done(void **state)
{
    static const char *const sets[] = {"activation_checkpoint.mode=none", NULL};
    static const struct device_ops other = {.attention_work_bytes = much_work};
    struct forecasted x;
    size_t arena, larger, smaller;

    (void)state;
    open_forecast(&x, 2, sets);
    struct plan_options o = x.p.plan->opt;
    const uint64_t hash = hash_with(&o, &arena);
    assert_true(hash == x.f.hash);
    o.ops = &other;
    assert_true(hash_with(&o, &larger) == hash && larger > arena);
    o.memory_bytes = 1;
    o.memory_free = UINT64_MAX;
    assert_true(hash_with(&o, &smaller) != hash);
    close_forecast(&x);
}

/* Where devices compute in the host's memory a process has the host's part in it, too, and segments of those it talks
 * to: of two members three slots each of 1 MiB that are gathered through and, by half, reduced through, rings of eight
 * slots for messages, those of copies among them. */
static void host_memory_is_counted(void **state)
{
#define PLAIN "training.mixed_precision_param=float32", "fault_tolerance.redundancy=checkpoint"
    static const char *const alone[] = {PLAIN, NULL};
    static const char *const saved[] = {PLAIN, "checkpoint.enable=true", NULL};
    static const char *const edge[] = {PLAIN, "parallelism.pipeline_parallel_degree=2", "training.global_batch_size=2",
                                       NULL};
    static const char *const copied[] = {PLAIN, "fault_tolerance.redundancy=buddy", NULL};
    const struct case_of {
        int world;
        const char *const *sets;
    } cases[] = {{1, alone}, {1, saved}, {2, alone}, {2, edge}, {2, copied}};
    const double mib = 1 << 20, message = 64 * 256 * 4;
    double host[ARRAY_SIZE(cases)], peers[ARRAY_SIZE(cases)];

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct forecasted x;
        open_forecast_on("cpu", &x, cases[i].world, cases[i].sets);
        const struct forecast_memory *m = &x.f.memory[0];
        host[i] = (double)m->bytes[MEMORY_HOST];
        peers[i] = (double)m->peers;
        assert_true(m->process == x.p.cost.machine->memory_fixed && m->process > 0);
        near(m->predicted, (double)(m->total + m->process + m->peers) + host[i], "predicted");
        if (i == 1) /* masters and moments */
            near(host[i], 12.0 * (double)recipe_params(&x.p.recipe), "a checkpoint's copy");
        close_forecast(&x);
    }
    assert_true(host[0] == 0 && host[2] == 0 && peers[0] == 0 && peers[1] == 0);
    assert_true(peers[2] > 9 * mib && peers[2] < 9.25 * mib);
    assert_true(peers[3] > 2 * 8 * message && peers[3] < 2 * 8 * message + 0.25 * mib);
    assert_true(host[4] > 0 && peers[4] - peers[2] > 4 * mib && peers[4] - peers[2] < 4.25 * mib);
#undef PLAIN
}

/* Master, m and v in fp32: 12 bytes a parameter, the gathered type's shard beside it; and in host memory 16 for the
 * copy of another rank's and its gradients, unless replicas or checkpoints have to do. */
static void state_is_the_formulas(void **state)
{
    static const char *const sets[] = {"parallelism.fsdp_reshard_after_forward=always", NULL};
    static const char *const offloaded[] = {"training.enable_cpu_offload=true", NULL};
    static const char *const replicated[] = {"parallelism.data_parallel_replicate_degree=2", NULL};
    static const char *const checkpoint[] = {"fault_tolerance.redundancy=checkpoint", NULL};
    static const char *const moments[] = {"optimizer.state_dtype=bfloat16", NULL};
    static const char *const all[] = {"training.dtype=bfloat16", NULL};
    static const char *const moved[] = {"training.dtype=bfloat16", "training.enable_cpu_offload=true", NULL};
    struct forecasted x;

    (void)state;
    open_forecast(&x, 8, sets);
    near((double)x.f.memory[0].bytes[MEMORY_OPTIMIZER], 12 * model(8) / 8, "optimizer");
    near((double)x.f.memory[0].bytes[MEMORY_HOST], 16 * model(8) / 8, "copy");
    close_forecast(&x);
    open_forecast(&x, 8, offloaded);
    near((double)x.f.memory[0].bytes[MEMORY_HOST], 28 * model(8) / 8, "optimizer and copy in host memory");
    close_forecast(&x);
    open_forecast(&x, 8, moments);
    near((double)x.f.memory[0].bytes[MEMORY_OPTIMIZER], 8 * model(8) / 8, "optimizer, moments in bf16");
    near((double)x.f.memory[0].bytes[MEMORY_HOST], 12 * model(8) / 8, "copy, moments in bf16");
    close_forecast(&x);
    open_forecast(&x, 8, all); /* the masters are what is gathered */
    near((double)x.f.memory[0].bytes[MEMORY_OPTIMIZER], 4 * model(8) / 8, "optimizer in bf16");
    near((double)x.f.memory[0].bytes[MEMORY_HOST], 10 * model(8) / 8, "copy in bf16");
    close_forecast(&x);
    open_forecast(&x, 8, moved);
    near((double)x.f.memory[0].bytes[MEMORY_HOST], 16 * model(8) / 8, "optimizer and copy in bf16, in host memory");
    close_forecast(&x);
    open_forecast(&x, 8, replicated);
    assert_int_equal(x.f.memory[0].bytes[MEMORY_HOST], 0);
    assert_true(x.f.bytes[0][TRAFFIC_BUDDY] == 0 && x.f.time[0].buddy == 0);
    close_forecast(&x);
    open_forecast(&x, 8, checkpoint);
    assert_int_equal(x.f.memory[0].bytes[MEMORY_HOST], 0);
    assert_true(x.f.bytes[0][TRAFFIC_BUDDY] == 0 && x.f.time[0].buddy == 0);
    close_forecast(&x);
}

/* A buddy gets the gradient of a rank's part in fp32, and the momentum that owners of matrices have made. */
static void buddies_get_what_the_formula_says(void **state)
{
    static const char *const adam[] = {NULL};
    static const char *const muon[] = {"optimizer.name=Muon", NULL};
    struct forecasted x;

    (void)state;
    for (int k = 0; k < 2; k++)
        for (int s = 2; s <= 16; s *= 2) {
            open_forecast(&x, s, k == 0 ? adam : muon);
            const struct machine *m = x.p.cost.machine;
            const double owned = k == 0 ? 0 : (double)x.p.plan->layout->owners->kept[0];
            near(x.f.bytes[0][TRAFFIC_BUDDY], 4 * (model(s) / s + owned), "to the buddy");
            assert_true(k == 0 || owned * s >= 6.0 * (4 * 256 * 256 + 3 * 256 * 768)); /* a momentum for each element */
            /* buddies are on the next machine where there are several */
            near(1e3 * cost_to_buddy(&x.p.cost, &x.p.plan->mesh, 1e9),
                 1e3 * (m->start + (s > m->node ? m->net_latency + 1e9 / m->net_bandwidth
                                                : m->link_latency + 1e9 / m->link_bandwidth)),
                 "a message");
            close_forecast(&x);
        }
}

static double modelled(void *arg, const struct program *p, const struct action *a)
{
    return cost_action(arg, p, a);
}

#define SLOW 1e6 /* bytes/s */

static double slowly(void *arg, const struct program *p, double bytes)
{
    (void)arg;
    (void)p;
    return 1e-3 + bytes / SLOW;
}

/* Messages to a buddy go one after the other, each once its gradient is final. AGREE waits for those before it, COMMIT
 * for the directions and the owners' state. Nothing before AGREE waits. */
static void buddies_are_waited_for(void **state)
{
    static const char *const sets[] = {"optimizer.name=Muon", NULL};
    struct forecasted x;
    struct simulation *with = NULL, *without = NULL;
    struct final *finals = NULL;
    struct titan_error err = {0};
    int n, agree = -1, commit = -1, whole = -1;

    (void)state;
    open_forecast(&x, 2, sets);
    const struct program *const p = x.p.programs[0];
    const struct simulation_options none = {
        .programs = &p, .n = 1, .issue = 1e-9, .time = modelled, .arg = (void *)&x.p.cost};
    struct simulation_options slow = none;
    slow.to_buddy = slowly;
    assert_int_equal(simulate(&none, &without, &err), TITAN_OK);
    assert_int_equal(simulate(&slow, &with, &err), TITAN_OK);
    assert_int_equal(program_finals(p, &finals, &n, &err), TITAN_OK);
    for (int i = 0; i < p->n_actions; i++) {
        agree = p->actions[i].op == OP_AGREE ? i : agree;
        commit = p->actions[i].op == OP_COMMIT ? i : commit;
        whole = p->actions[i].op == OP_WHOLE ? i : whole;
    }
    assert_true(n == 8 && agree > 0 && whole > agree && commit > whole);
    const struct simulated_rank *const k = &with->ranks[0], *const before = &without->ranks[0];
    double end = 0, waited = 0;
    for (int i = 0; i < n; i++) {
        const double bytes = 4.0 * (double)action_params(p, &p->actions[finals[i].norm])->norm.n;
        if (finals[i].writer > agree && end > 0 && waited == 0) {
            near(k->start[agree], end, "AGREE begins");
            waited = end - before->start[agree];
        }
        end = MAX(end, k->end[finals[i].writer]) + 1e-3 + bytes / SLOW;
    }
    end += 1e-3 + 4.0 * (double)action_params(p, &p->actions[whole])->whole.kept / SLOW;
    near(k->start[commit], end, "COMMIT begins");
    assert_true(waited > 0 && before->buddy == 0 && k->buddy > waited);
    const double longer = k->finish - before->finish; /* a wait of the host, to issue actions, can end in it */
    assert_true(longer <= k->buddy * (1 + 1e-9) && longer > k->buddy * 0.999);
    for (int i = 0; i < agree; i++)
        assert_true(k->start[i] == before->start[i]);
    free(finals);
    simulation_close(with);
    simulation_close(without);
    close_forecast(&x);
}

static void time_adds_up_to_the_step(void **state)
{
    static const char *const sets[] = {"parallelism.tensor_parallel_degree=2", "training.seq_len=256", NULL};
    struct forecasted x;

    (void)state;
    open_forecast(&x, 8, sets);
    const struct forecast_time *t = &x.f.time[0];
    double sum = t->matmul + t->attention + t->memory_bound + t->idle;
    for (int c = 0; c < CHANNEL_COUNT; c++)
        sum += t->exposed[c];
    near(sum, x.f.step, "parts of the step");
    near(x.f.tokens, 4 * 256, "tokens");
    near(x.f.tokens_per_second, x.f.tokens / x.f.step / 8, "tokens/s of a device");
    near(x.f.mfu, recipe_flops_per_token(&x.p.recipe) * x.f.tokens_per_second / 989e12, "MFU");
    close_forecast(&x);
}

/* A table with the model's times, operations' spreads as a part of them, and for transfers as much processor time. */
static void fill_table(const struct forecasted *x, int cores, double spread, struct cost_table *ret)
{
    *ret = (struct cost_table){.host = {.device = "cpu", .cores = cores}};
    for (int r = 0; r < x->s->n; r++) {
        const struct program *p = x->s->ranks[r].program;
        for (int i = 0; i < p->n_actions; i++) {
            const struct action *a = &p->actions[i];
            const bool transfer = op_is_transfer((enum op)a->op);
            struct cost_row row = {
                .kind = transfer ? COST_TRANSFER : COST_OPERATION, .size = 1, .bytes = cost_bytes(p, a)};
            row.seconds = cost_action(&x->p.cost, p, a);
            if (row.seconds <= 0)
                continue;
            cost_key(p, a, row.key);
            row.size = transfer ? cost_members(p, a) : 1;
            row.processor = transfer ? row.seconds : 0;
            row.spread = transfer ? 0 : spread * row.seconds;
            assert_int_equal(cost_table_put(ret, &row, NULL), TITAN_OK);
        }
    }
}

/* Actions that run at a time, of all ranks. */
static double asked_at(const struct simulation *s, double at, double ranks)
{
    double asked = 0;
    for (int r = 0; r < s->n; r++)
        for (int i = 0; i < s->ranks[r].program->n_actions; i++)
            asked += s->ranks[r].start[i] <= at && at < s->ranks[r].end[i] ? ranks : 0;
    return asked;
}

/* Ranks with few cores between them: enough for all that ever runs at once, and the step is the simulation's; with
 * fewer, each moment takes longer by what is asked for then, counted here moment by moment. */
static void cores_are_shared(void **state)
{
    static const char *const sets[] = {"activation_checkpoint.mode=none", "model.n_layers=2", "training.seq_len=64",
                                       NULL};
    static const int cores[] = {64, 3, 2, 1};
    double last = 0;

    (void)state;
    for (size_t c = 0; c < ARRAY_SIZE(cores); c++) {
        enum { MOMENTS = 20000 };
        struct titan_error err = {0};
        struct forecasted x;
        struct cost_table table;
        struct forecast f;
        struct simulation *s = NULL;
        double expected = 0, work = 0;

        open_forecast_on("cpu", &x, 2, sets);
        fill_table(&x, cores[c], 0, &table);
        struct cost cost = x.p.cost;
        cost.table = &table, cost.threads = 1;
        if (forecast_make(x.p.plan, x.p.programs, &cost, &f, &s, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        for (int i = 0; i < MOMENTS; i++) {
            const double asked = asked_at(s, (i + 0.5) / MOMENTS * s->step, 2.0 / s->n);
            expected += s->step / MOMENTS * MAX(1, asked / cores[c]);
            work += s->step / MOMENTS * asked / cores[c];
        }
        if (fabs(f.step - expected) > 0.005 * expected)
            fail_msg("%d cores: a step takes %.6g, not %.6g", cores[c], f.step, expected);
        assert_true(f.step >= s->step && f.step > 0.995 * work && f.step >= last);
        if (cores[c] == 64)
            near(f.step, s->step, "with cores for all");
        near(f.time[0].crowded, f.step - s->step, "waiting for a core");
        last = f.step;
        forecast_clear(&f);
        simulation_close(s);
        cost_table_clear(&table);
        close_forecast(&x);
    }
}

/* Two ranks that meet in every layer: the wait is 0.564 deviations of what they compute before they meet, which is all
 * but what hides transfers, and lies with the group. */
static void spreads_are_waited_for(void **state)
{
    static const char *const sets[] = {"parallelism.tensor_parallel_degree=2", NULL};
    double steps[2], computed = 0, waited[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct titan_error err = {0};
        struct forecasted x;
        struct cost_table table;
        struct forecast f;

        open_forecast_on("cpu", &x, 2, sets);
        fill_table(&x, 64, 0.1 * i, &table);
        struct cost cost = x.p.cost;
        cost.table = &table, cost.threads = 1;
        if (forecast_make(x.p.plan, x.p.programs, &cost, &f, NULL, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        steps[i] = f.step;
        computed = f.time[0].matmul + f.time[0].attention + f.time[0].memory_bound;
        waited[i] = f.time[0].exposed[CHANNEL_TP];
        forecast_clear(&f);
        cost_table_clear(&table);
        close_forecast(&x);
    }
    const double more = steps[1] - steps[0], expected = 0.0564 * computed;
    if (more < 0.7 * expected || more > expected || waited[1] - waited[0] < 0.6 * expected)
        fail_msg("%g of computing: %g more of the step, %g more waits, not %g", computed, more, waited[1] - waited[0],
                 expected);
}

/* What no machine of this bandwidth and peak can do faster: below the prediction of every operation, and by hand for
 * the sum of two tensors, which reads two and writes one where no norm is fused with it, and for a gather. */
static void floors_are_below_predictions(void **state)
{
    static const char *const sets[] = {"parallelism.tensor_parallel_degree=2", "activation_checkpoint.mode=none",
                                       "compile.fuse=false", NULL};
    _cleanup_(buf_free) struct buf text = {0};
    struct titan_error err = {0};
    struct forecasted x;
    int adds = 0, gathers = 0;

    (void)state;
    open_forecast(&x, 2, sets);
    const struct simulated_rank *k = &x.s->ranks[0];
    double floor = 0;
    for (int i = 0; i < k->program->n_actions; i++) {
        const struct action *a = &k->program->actions[i];
        const double least = cost_floor(&x.p.cost, k->program, a);
        assert_true(least <= k->end[i] - k->start[i]);
        floor += a->stream == STREAM_COMPUTE ? least : 0;
        if (a->op == OP_ADD && a->stream == STREAM_COMPUTE) {
            near(least * 1e9, 3.0 * (double)action_params(k->program, a)->add.n * 2 / 3.35e12 * 1e9, "a sum, ns");
            adds++;
        }
        if (a->op == OP_ALL_GATHER) { /* its own part to one other rank */
            near(least * 1e9, (double)action_sent_bytes(k->program, a) / x.p.cost.machine->link_bandwidth * 1e9,
                 "a gather, ns");
            gathers++;
        }
    }
    const struct forecast_time *t = &x.f.time[0];
    near(floor * 1e9, (t->matmul_floor + t->attention_floor + t->memory_floor) * 1e9, "all floors, ns");
    assert_true(adds > 0 && gathers > 0 && t->matmul_floor > 0 && t->attention_floor > 0);
    if (forecast_print_operations(&x.f, x.s, &x.p.cost, &text, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_non_null(strstr(text.data, "MATMUL M="));
    assert_non_null(strstr(text.data, "ALL_GATHER n="));
    assert_null(strstr(text.data, " on compute"));
    close_forecast(&x);
}

/* What the head says of the mesh, without what it has not. */
static void the_mesh_is_named(void **state)
{
    static const struct {
        int world;
        const char *sets[5], *line;
    } cases[] = {
        {1, {NULL}, "\nmesh        one rank\n"},
        {8, {"parallelism.tensor_parallel_degree=2"}, "\nmesh        dp_shard 4 x tp 2\n"},
        {4,
         {"model.name=llama3_moe", "parallelism.tensor_parallel_degree=2", "parallelism.expert_parallel_degree=2"},
         "\nmesh        dp_shard 2 x tp 2, ep 2\n"},
        {4,
         {"model.name=llama3_moe", "parallelism.tensor_parallel_degree=2", "parallelism.expert_parallel_degree=2",
          "parallelism.expert_tensor_parallel_degree=2"},
         "\nmesh        dp_shard 2 x tp 2, ep 2, experts cut over tp\n"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_(buf_free) struct buf words = {0};
        struct forecasted x;
        open_forecast(&x, cases[i].world, cases[i].sets);
        forecast_print(&x.f, &words);
        if (!strstr(words.data, cases[i].line))
            fail_msg("no '%s' in '%s'", cases[i].line, words.data);
        close_forecast(&x);
    }
}

static void json_has_the_same_numbers(void **state)
{
    static const char *const sets[] = {"parallelism.tensor_parallel_degree=2", NULL};
    _cleanup_(buf_free) struct buf text = {0}, words = {0};
    struct titan_error err = {0};
    struct json *doc = NULL;
    struct forecasted x;
    double seconds = 0, floor = 0;

    (void)state;
    open_forecast(&x, 8, sets);
    assert_int_equal(forecast_json(&x.f, x.s, &x.p.cost, &text, &err), TITAN_OK);
    forecast_print(&x.f, &words);
    if (json_parse(text.data, text.len, &doc, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(json_int(doc, "world", 0), 8);
    assert_int_equal(json_int(json_get(doc, "mesh"), "tp", 0), 2);
    assert_true(fabs(json_real(doc, "step_seconds", -1) - x.f.step) < 1e-6);
    const struct json *rank = json_get(doc, "ranks")->first;
    near(json_real(json_get(rank, "sent_bytes"), "tp", -1), round(x.f.bytes[0][AXIS_TP]), "sent over tp");
    near(json_real(json_get(rank, "memory"), "planned", -1), (double)x.f.memory[0].total, "planned");
    for (const struct json *op = json_get(doc, "operations")->first; op; op = op->next) {
        if (strcmp(json_string(op, "operation", ""), "MATMUL") == 0) {
            assert_memory_equal(json_string(op, "parameters", ""), "M=", 2);
            assert_string_equal(json_string(op, "stream", ""), "compute");
            seconds += json_real(op, "seconds", 0);
            floor += json_real(op, "floor_seconds", 0);
        }
    }
    near(seconds, x.f.time[0].matmul, "products, s");
    assert_true(floor > 0 && floor <= seconds);
    assert_non_null(strstr(words.data, "dp_shard 4 x tp 2"));
    assert_non_null(strstr(words.data, "slowest"));
    json_free(doc);
    close_forecast(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharding_sends_what_the_formula_says),
        cmocka_unit_test(replication_sends_what_the_formula_says),
        cmocka_unit_test(tensor_parallelism_sends_what_the_formula_says),
        cmocka_unit_test(memory_by_kind_sums_up),
        cmocka_unit_test(host_memory_is_counted),
        cmocka_unit_test(hash_is_of_what_is_done),
        cmocka_unit_test(state_is_the_formulas),
        cmocka_unit_test(buddies_get_what_the_formula_says),
        cmocka_unit_test(buddies_are_waited_for),
        cmocka_unit_test(time_adds_up_to_the_step),
        cmocka_unit_test(cores_are_shared),
        cmocka_unit_test(spreads_are_waited_for),
        cmocka_unit_test(floors_are_below_predictions),
        cmocka_unit_test(the_mesh_is_named),
        cmocka_unit_test(json_has_the_same_numbers),
    };
    return cmocka_run_group_tests_name("forecast", tests, NULL, NULL);
}
