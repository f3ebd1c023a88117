/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks send in a step, counted at their communicators, is what a plan says, channel by channel and to buddies;
 * and after the steps each buddy's copy has the owner's bits, and all replicas have the same. Ranks are processes, with
 * programs, executors and communicators of a run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"
#include "tests/support/sets.h"
#include "worker/data/batch.h"
#include "worker/elastic/buddy.h"
#include "worker/elastic/verify.h"
#include "worker/exec/exec.h"
#include "worker/optim/outcome.h"
#include "worker/plan/forecast.h"
#include "worker/tensor/weight_gather.h"

#define STEPS 2
#define COMMS_MAX 64

/* --- a communicator that counts ----------------------------------------------------------------------------------- */

enum { BUDDY = CHANNEL_COUNT, OTHER, WAYS };

static const struct comm_ops *real;
static double sent[WAYS]; /* bytes that left this rank */
static struct {
    const struct comm *comm;
    int way, members;
} known[COMMS_MAX];
static int n_known;

static void know(const struct comm *comm, int way, int members)
{
    titan_assert(n_known < COMMS_MAX);
    known[n_known].comm = comm;
    known[n_known].way = way;
    known[n_known++].members = members;
}

/* Communicators that nobody has told of are the edges to and from buddies. */
static double *way_of(const struct comm *comm, double *ret_members)
{
    for (int i = 0; i < n_known; i++)
        if (known[i].comm == comm) {
            *ret_members = known[i].members;
            return &sent[known[i].way];
        }
    *ret_members = 2;
    return &sent[BUDDY];
}

static titan_status count_all_gather(struct comm *c, void *recv, const void *data, size_t count, enum dtype dt,
                                     struct stream *s)
{
    double n, *const to = way_of(c, &n);
    *to += (n - 1) * (double)(count * dtype_bytes(dt));
    return real->all_gather(c, recv, data, count, dt, s);
}

static titan_status count_reduce_scatter(struct comm *c, void *recv, const void *data, size_t count, enum dtype dt,
                                         struct stream *s)
{
    double n, *const to = way_of(c, &n);
    *to += (n - 1) * (double)(count * dtype_bytes(dt));
    return real->reduce_scatter(c, recv, data, count, dt, s);
}

static titan_status count_all_reduce(struct comm *c, void *data, size_t count, enum dtype dt, struct stream *s)
{
    double n, *const to = way_of(c, &n);
    *to += 2 * (n - 1) / n * (double)(count * dtype_bytes(dt));
    return real->all_reduce(c, data, count, dt, s);
}

static titan_status count_all_to_all(struct comm *c, void *recv, const void *data, size_t bytes, struct stream *s)
{
    double n, *const to = way_of(c, &n);
    *to += (n - 1) * (double)bytes;
    return real->all_to_all(c, recv, data, bytes, s);
}

static titan_status count_send(struct comm *c, const void *data, size_t bytes, int to_rank, struct stream *s)
{
    double n, *const to = way_of(c, &n);
    *to += (double)bytes;
    return real->send(c, data, bytes, to_rank, s);
}

/* --- a rank ------------------------------------------------------------------------------------------------------- */

struct layout_case {
    const char *name;
    int world;
    const char *sets[10];
    int weight_bits;    /* of codes of gathered weights; 0: none */
    int part_bytes;     /* that replicas send of 64 values; 0: gradients are summed */
    int bits;           /* of scaled codes of gradients; 0: no codec */
    int replicate_bits; /* the same of codes between replicas */
    bool shards_only;   /* buddies get no codes: more happens to gradients than their sum */
    bool longer;        /* left to make test-slow */
};

struct trainee {
    struct rank_context *ctx;
    struct planned p;
    struct plan *plan;
    struct program *program;
    struct device_handle device;
    struct comm_ops counted;
    struct exec_options options;
    struct exec *exec;
    struct train_state *own, *copy;
    struct buddy *buddy;
    int32_t *tokens;
    double *counts;
};

#define MUST(t, call)                                                                                                  \
    do {                                                                                                               \
        struct titan_error err = {0};                                                                                  \
        if ((call) != TITAN_OK)                                                                                        \
            fprintf(stderr, "# %s\n", err.msg);                                                                        \
        RANK_CHECK((t)->ctx, err.msg[0] == '\0');                                                                      \
    } while (0)

static void *bind(void *arg, const struct buffer *buffer)
{
    return state_bind(((struct trainee *)arg)->own, buffer);
}

static titan_status reduced(void *arg, const struct exec_reduced *r, struct stream *s, struct titan_error *err)
{
    const struct trainee *t = arg;
    return t->buddy ? buddy_send(t->buddy, r, s, err) : TITAN_OK;
}

static titan_status directed(void *arg, const float *next, int64_t n, struct titan_error *err)
{
    const struct trainee *t = arg;
    if (!t->buddy)
        return TITAN_OK;
    TRY(buddy_send_owned(t->buddy, next, n, err));
    return buddy_settle(t->buddy, true, err);
}

static struct train_state *open_state(struct trainee *t, int rank)
{
    struct layout *layout = NULL;
    struct train_state *ret = NULL;
    MUST(t, layout_of_recipe(&t->p.recipe, t->p.model, &t->plan->mesh, &layout, &err));
    const struct state_options options = {.device = &t->device,
                                          .layout = layout,
                                          .rank = rank,
                                          .types = state_types_of_recipe(&t->p.recipe, DTYPE_F32),
                                          .copy = rank != t->ctx->rank,
                                          .errors = rank == t->ctx->rank && t->plan->build.codec == CODEC_LOCO,
                                          .replica_errors =
                                              rank == t->ctx->rank && t->plan->build.replicate_codec == CODEC_LOCO};
    MUST(t, state_open(&options, &ret, &err));
    ret->epoch = 1;
    return ret;
}

/* Every channel's communicators, split as in an epoch (worker/epoch/groups.c). */
static void split_channels(struct trainee *t)
{
    const struct mesh *const mesh = &t->plan->mesh;
    int members[RANKS_MAX];

    know(t->ctx->comm, CHANNEL_WORLD, t->ctx->world);
    t->options.comms[CHANNEL_WORLD] = t->ctx->comm;
    for (int c = 0; c < CHANNEL_COUNT; c++) {
        const enum group group = channel_group((enum channel)c);
        const int n = mesh_group_size(mesh, group);
        if (c == CHANNEL_WORLD || n == 1)
            continue;
        mesh_group_members(mesh, group, t->ctx->rank, members);
        if (group != GROUP_PP) {
            MUST(t, real->split(t->ctx->comm, members, n, NULL, &t->options.comms[c], &err));
            know(t->options.comms[c], c, n);
        }
        for (int colour = 0; colour < mesh_edge_colours(mesh) && group == GROUP_PP; colour++) {
            struct comm *edge = NULL;
            const enum edge_side side = mesh_edge(mesh, (enum channel)c, colour, t->ctx->rank, members);
            MUST(t, real->split(t->ctx->comm, members, side == EDGE_NONE ? 1 : 2, NULL, &edge, &err));
            if (side == EDGE_NONE) {
                real->close(edge);
                continue;
            }
            *(side == EDGE_SENDS ? &t->options.comms[c] : &t->options.inbound[c]) = edge;
            know(edge, c, 2);
        }
    }
}

static void fill_batch(struct trainee *t)
{
    const struct sequence_cut *const cut = &t->plan->cut;
    const struct program *const p = t->program;
    const int64_t n = cut->b * cut->t;
    int32_t *inputs = calloc((size_t)n, sizeof *inputs), *targets = calloc((size_t)n, sizeof *targets);

    RANK_CHECK(t->ctx, cut->cp == 1);
    t->tokens = calloc((size_t)(p->share * n * BATCH_ROWS), sizeof *t->tokens);
    t->counts = calloc((size_t)p->share, sizeof *t->counts);
    RANK_CHECK(t->ctx, t->tokens && t->counts && inputs && targets);
    for (int64_t m = 0; m < p->share; m++) {
        for (int64_t i = 0; i < n; i++) {
            inputs[i] = (int32_t)((mesh_batch_rank(&p->mesh, t->ctx->rank) * 131 + m * 31 + i * 7) % 512);
            targets[i] = (int32_t)((inputs[i] * 5 + 3) % 512);
        }
        t->counts[m] = (double)batch_fill(cut, 0, inputs, targets, NULL, t->tokens + m * n * BATCH_ROWS);
    }
    free(inputs);
    free(targets);
}

static void open_trainee(struct trainee *t, const struct layout_case *c)
{
    const struct device_options of_device = {.threads = 1};
    const int world = t->ctx->world, rank = t->ctx->rank;

    MUST(t, device_open("cpu", &of_device, &t->device, &err));
    MUST(t, planned_open(&t->p, world, "cpu", c->sets, &err));
    struct plan_options with = t->p.plan->opt;
    with.ops = t->device.ops;
    with.dev = t->device.dev;
    MUST(t, plan_open(&with, &t->plan, &err));
    MUST(t, plan_program(t->plan, rank, &t->program, &err));
    t->own = open_state(t, rank);

    real = t->ctx->ops;
    t->counted = *real;
    t->counted.all_gather = count_all_gather;
    t->counted.reduce_scatter = count_reduce_scatter;
    t->counted.all_reduce = count_all_reduce;
    t->counted.all_to_all = count_all_to_all;
    t->counted.send = count_send;
    struct comm_config config = t->ctx->config;
    config.device = &t->device;
    MUST(t, real->open(&config, NULL, &t->ctx->comm, &err));
    t->options = (struct exec_options){.program = t->program,
                                       .rank = rank,
                                       .cut = t->plan->cut,
                                       .device = &t->device,
                                       .comm_ops = &t->counted,
                                       .bind = bind,
                                       .reduced = reduced,
                                       .directed = directed,
                                       .arg = t};
    split_channels(t);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (s == STREAM_COMPUTE || t->program->streams >> s & 1)
            MUST(t, t->device.ops->stream_open(t->device.dev, program_stream_name((enum stream_id)s),
                                               s == STREAM_COMPUTE, &t->options.streams[s], &err));
    MUST(t, state_init(t->own, 5, t->options.streams[STREAM_COMPUTE], &err));
    MUST(t, exec_open(&t->options, &t->exec, &err));
    fill_batch(t);
    if (plan_has_buddies(t->plan)) {
        const int shift = buddy_shift(NULL, world), owner = (rank - shift + world) % world;
        struct program *of_owner = NULL;
        t->copy = open_state(t, owner);
        MUST(t, plan_program(t->plan, owner, &of_owner, &err));
        const struct buddy_options options = {.device = &t->device,
                                              .rank = rank,
                                              .world = world,
                                              .shift = shift,
                                              .ops = &t->counted,
                                              .comm = t->ctx->comm,
                                              .owners = of_owner,
                                              .copy = t->copy};
        MUST(t, buddy_open(&options, &t->buddy, &err));
        program_close(of_owner);
        MUST(t, buddy_seed(t->buddy, t->own, &err));
    }
}

static void one_step(struct trainee *t, uint64_t number)
{
    const struct exec_batch batch = {.tokens = t->tokens, .counts = t->counts};
    const double *statistics = NULL;
    struct step_outcome outcome;

    MUST(t, exec_gradients(t->exec, &batch, &err));
    if (t->buddy)
        MUST(t, buddy_settle(t->buddy, false, &err));
    MUST(t, exec_agree(t->exec, &statistics, &err));
    MUST(t, outcome_read(t->program, t->own->layout, statistics, &outcome, &err));
    RANK_CHECK(t->ctx, outcome.finite);
    const struct update_step step = {.rate = 1,
                                     .number = number,
                                     .tokens = outcome.tokens,
                                     .clip = optim_clip_factor(outcome.grad_norm, t->p.recipe.training.max_norm)};
    struct update update = update_of_recipe(&t->p.recipe, &step);
    MUST(t, exec_commit(t->exec, &update, &err));
    update.sums = t->program->statistics.sums > 0 ? statistics + t->program->statistics.size : NULL;
    if (t->buddy)
        MUST(t, buddy_update(t->buddy, &update, statistics, &err));
    MUST(t, exec_update(t->exec, &update, &err));
    MUST(t, exec_wait_for_update(t->exec, &err));
}

/* Each rank's state and its copy of its owner's, as hashes of all ranks. Replicas have the same state, but for what
 * each has of its own. */
static void compare_copies(struct trainee *t)
{
    struct stream *const s = t->options.streams[STREAM_COMPUTE];
    const struct train_state *const held[] = {t->own, t->copy};
    const int replicas = mesh_group_size(&t->plan->mesh, GROUP_REPLICATE);
    uint64_t mine[2] = {0}, all[RANKS_MAX][2];
    int members[RANKS_MAX];

    if (t->buddy)
        MUST(t, buddy_sync(t->buddy, &err));
    for (int i = 0; i < (t->buddy ? 2 : 1); i++) {
        struct shard_hash hash;
        MUST(t, shard_hash(held[i], s, &hash, &err));
        mine[i] = hash.whole;
    }
    RANK_CHECK(t->ctx, real->all_gather(t->ctx->comm, all, mine, sizeof mine, DTYPE_U8, s) == TITAN_OK);
    MUST(t, t->device.ops->stream_sync(s, &err));
    mesh_group_members(&t->plan->mesh, GROUP_REPLICATE, t->ctx->rank, members);
    for (int i = 0; i < replicas; i++)
        RANK_CHECK(t->ctx, all[members[i]][0] == mine[0]);
    for (int r = 0; t->buddy && r < t->ctx->world; r++)
        RANK_CHECK(t->ctx, all[(r + buddy_shift(NULL, t->ctx->world)) % t->ctx->world][1] == all[r][0]);
}

static void close_trainee(struct trainee *t)
{
    buddy_leave(t->buddy);
    for (int c = 0; c < CHANNEL_COUNT; c++) {
        if (c != CHANNEL_WORLD && t->options.comms[c])
            real->close(t->options.comms[c]);
        if (t->options.inbound[c])
            real->close(t->options.inbound[c]);
    }
    real->close(TAKE(t->ctx->comm));
    buddy_close(t->buddy);
    exec_close(t->exec);
    state_close(t->own);
    if (t->copy)
        state_close(t->copy);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (t->options.streams[s])
            t->device.ops->stream_close(t->options.streams[s]);
    program_close(t->program);
    plan_close(t->plan);
    planned_close(&t->p);
    device_close(&t->device);
    free(t->tokens);
    free(t->counts);
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

/* To the buddy goes this rank's part of the gradients of all units, 4 bytes each, or the codes of all ranks' parts
 * where they are fewer bytes, and what owners keep. */
static double buddy_formula(const struct trainee *t)
{
    const struct layout *const l = t->plan->layout;
    const struct layout_case *const c = t->ctx->arg;
    double bytes = 4 * (double)layout_owned(l, t->ctx->rank);

    for (int u = 0; u < t->p.model->n_units; u++) {
        const double n = (double)l->units[u].shard, scales = 16 * ceil(ceil(n / 1024) / 4);
        const double codes = mesh_group_size(&l->mesh, l->units[u].group) * (scales + 16 * ceil(n * c->bits / 8 / 16));
        if (l->units[u].pp_rank == t->program->pp_rank)
            bytes += c->bits > 0 && !c->shards_only ? MIN(codes, 4 * n) : 4 * n;
    }
    return t->buddy ? bytes : 0;
}

/* To each other replica goes a piece of this rank's range of each unit as codes, and a piece of the sum. */
static double replicas_formula(const struct trainee *t, int bits)
{
    const struct layout *const l = t->plan->layout;
    const double replicas = mesh_group_size(&l->mesh, GROUP_REPLICATE);
    double bytes = 0;

    for (int u = 0; u < t->p.model->n_units; u++) {
        const double n = (double)l->units[u].shard / replicas, scales = bits <= 8 ? 16 * ceil(ceil(n / 1024) / 4) : 0;
        if (l->units[u].pp_rank == t->program->pp_rank)
            bytes += 2 * (replicas - 1) * (scales + 16 * ceil(n * bits / 8 / 16));
    }
    return bytes;
}

/* To each other replica go the values taken of each 64 of this rank's range of each unit, up to a multiple of 64
 * bytes. */
static double parts_formula(const struct trainee *t, int part_bytes)
{
    const struct layout *const l = t->plan->layout;
    double bytes = 0;

    for (int u = 0; u < t->p.model->n_units; u++)
        if (l->units[u].pp_rank == t->program->pp_rank)
            bytes += 64 * ceil(ceil((double)l->units[u].shard / 64) * part_bytes / 64);
    return bytes * (mesh_group_size(&l->mesh, GROUP_REPLICATE) - 1);
}

/* To each other rank of the group goes, for each gather, this rank's range: two numbers for 1024 values, codes, and
 * what has none in fp32; or all in fp32 where codes save nothing. */
static double gather_formula(const struct trainee *t, int bits)
{
    const struct layout *const l = t->plan->layout;
    double bytes = 0;
    int coded = 0;

    for (int i = 0; i < t->program->n_actions; i++) {
        const struct action *const a = &t->program->actions[i];
        if (a->unit < 0 || (a->op != OP_WEIGHT_ENCODE && (a->op != OP_ALL_GATHER || a->channel != CHANNEL_GATHER)))
            continue;
        struct weight_gather g;
        const double n = (double)l->units[a->unit].shard;
        weight_gather_init(l, a->unit, t->plan->build.gather_codec, sizeof(float), &g);
        const double codes = 16 * ceil(8 * ceil(n / 1024) / 16) + 16 * ceil(n * bits / 8 / 16);
        if (a->op == OP_WEIGHT_ENCODE)
            bytes += codes + (double)g.others * 4;
        else if (g.codec == WEIGHTS_WHOLE)
            bytes += 4 * n;
        coded += a->op == OP_WEIGHT_ENCODE;
    }
    RANK_CHECK(t->ctx, coded > 0);
    return bytes * (mesh_group_size(&l->mesh, GROUP_FSDP) - 1);
}

static void near(const struct rank_context *ctx, double got, double expected, const char *what)
{
    if (fabs(got - expected) <= 1e-6 * MAX(1, fabs(expected)))
        return;
    fprintf(stderr, "# rank %d: %s: %.9g bytes, expected %.9g\n", ctx->rank, what, got, expected);
    _exit(1);
}

static void train(struct rank_context *ctx)
{
    struct trainee t = {.ctx = ctx};
    struct simulation *s = NULL;
    struct forecast f = {0};

    open_trainee(&t, ctx->arg);
    MUST(&t, forecast_make(t.p.plan, t.p.programs, &t.p.cost, &f, &s, &err));
    memset(sent, 0, sizeof sent);
    for (uint64_t i = 1; i <= STEPS; i++)
        one_step(&t, i);
    const struct simulated_rank *const planned = &s->ranks[t.program->pp_rank];
    for (int c = 0; c < CHANNEL_COUNT; c++)
        if (c != CHANNEL_OWNERS) /* plans have the mean over ranks */
            near(ctx, sent[c] / STEPS, planned->bytes[c], channel_name((enum channel)c));
    const struct layout_case *const c = ctx->arg;
    if (c->replicate_bits > 0)
        near(ctx, sent[CHANNEL_REPLICATE] / STEPS, replicas_formula(&t, c->replicate_bits), "to replicas, by formula");
    if (c->part_bytes > 0)
        near(ctx, sent[CHANNEL_REPLICATE] / STEPS, parts_formula(&t, c->part_bytes), "parts, by formula");
    if (c->weight_bits > 0)
        near(ctx, sent[CHANNEL_GATHER] / STEPS, gather_formula(&t, c->weight_bits), "weights, by formula");
    near(ctx, sent[BUDDY] / STEPS, buddy_formula(&t), "to the buddy, by formula");
    near(ctx, sent[BUDDY] / STEPS, f.bytes[t.program->pp_rank][TRAFFIC_BUDDY], "to the buddy, by the plan");
    compare_copies(&t);
    forecast_clear(&f);
    simulation_close(s);
    close_trainee(&t);
}

#define CODEC "parallelism.fsdp_reduce_codec="
#define REPLICAS(codec) "parallelism.replicate_codec=" codec
#define PARTS(method)                                                                                                  \
    "parallelism.data_parallel_replicate_degree=2", "parallelism.replicate_method=" method, "optimizer.name=SGD"
#define WEIGHTS "parallelism.fsdp_gather_codec="
#define PIPELINE "parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_microbatch_size=1"

static void test_counted(void **state)
{
    static const struct layout_case cases[] = {
        {.name = "shards", .world = 2, .sets = {NULL}},
        {.name = "three shards", .world = 3, .sets = {NULL}},
        {.name = "no copies", .world = 2, .sets = {"fault_tolerance.redundancy=checkpoint", NULL}},
        {.name = "replicas", .world = 2, .sets = {"parallelism.data_parallel_replicate_degree=2", NULL}},
        {.name = "replicas with buddies",
         .world = 4,
         .sets = {"parallelism.data_parallel_replicate_degree=2", "fault_tolerance.redundancy=buddy", NULL}},
        {.name = "shards and tp", .world = 4, .sets = {"parallelism.tensor_parallel_degree=2", NULL}},
        {.name = "shards and pp", .world = 4, .sets = {PIPELINE, "training.global_batch_size=4", NULL}},
        {.name = "owners", .world = 2, .sets = {"optimizer.name=Muon", NULL}},
        {.name = "canonical", .world = 2, .sets = {"numerics.canonical=true", "training.global_batch_size=4", NULL}},
        {.name = "loco", .world = 2, .sets = {CODEC "loco", NULL}, .bits = 4},
        {.name = "int8", .world = 3, .sets = {CODEC "int8", NULL}, .bits = 8},
        {.name = "int4 at random",
         .world = 4,
         .sets = {CODEC "int4", "parallelism.fsdp_reduce_rounding=stochastic", NULL},
         .bits = 4},
        {.name = "loco, shards and tp",
         .world = 4,
         .sets = {CODEC "loco", "parallelism.tensor_parallel_degree=2", NULL},
         .bits = 4},
        {.name = "loco, shards and pp",
         .world = 4,
         .sets = {CODEC "loco", PIPELINE, "training.global_batch_size=4", NULL},
         .bits = 4},
        {.name = "loco and replicas",
         .world = 4,
         .sets = {CODEC "loco", "parallelism.data_parallel_replicate_degree=2", "fault_tolerance.redundancy=buddy",
                  NULL},
         .bits = 4,
         .shards_only = true},
        {.name = "codes between replicas",
         .world = 2,
         .sets = {REPLICAS("int8"), "parallelism.data_parallel_replicate_degree=2", NULL},
         .replicate_bits = 8},
        {.name = "three replicas, bf16",
         .world = 3,
         .sets = {REPLICAS("bf16"), "parallelism.data_parallel_replicate_degree=3", NULL},
         .replicate_bits = 16},
        {.name = "loco within shards and between replicas",
         .world = 4,
         .sets = {CODEC "loco", REPLICAS("loco"), "parallelism.data_parallel_replicate_degree=2",
                  "fault_tolerance.redundancy=buddy", NULL},
         .bits = 4,
         .replicate_bits = 4,
         .shards_only = true},
        {.name = "fp8 between replicas of stages",
         .world = 4,
         .sets = {REPLICAS("fp8"), PIPELINE, "parallelism.data_parallel_replicate_degree=2",
                  "training.global_batch_size=4", NULL},
         .replicate_bits = 8},
        {.name = "parts by a DCT", .world = 4, .sets = {PARTS("demo"), NULL}, .part_bytes = 4 * (2 + 1)},
        {.name = "parts by a DCT in fp32, of stages",
         .longer = true,
         .world = 4,
         .sets = {PARTS("demo"), "parallelism.replicate_dtype=float32", PIPELINE, "training.global_batch_size=4", NULL},
         .part_bytes = 4 * (4 + 1)},
        {.name = "parts at random", .world = 2, .sets = {PARTS("random"), NULL}, .part_bytes = 4 * 2},
        {.name = "parts in turn, loco",
         .longer = true,
         .world = 4,
         .sets = {PARTS("striding"), CODEC "loco", NULL},
         .part_bytes = 4 * 2,
         .bits = 4},
        {.name = "weights in 8 bits, loco",
         .world = 2,
         .sets = {WEIGHTS "int8", CODEC "loco", NULL},
         .weight_bits = 8,
         .bits = 4},
        {.name = "weights in 6 bits, three shards", .world = 3, .sets = {WEIGHTS "int6", NULL}, .weight_bits = 6},
        {.name = "weights in 4 bits, tp",
         .longer = true,
         .world = 4,
         .sets = {WEIGHTS "int4", "parallelism.tensor_parallel_degree=2", NULL},
         .weight_bits = 4},
        {.name = "weights in 8 bits, pp",
         .longer = true,
         .world = 4,
         .sets = {WEIGHTS "int8", PIPELINE, "training.global_batch_size=4", NULL},
         .weight_bits = 8},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct ranks r;
        if (cases[i].longer && in_fast_set())
            continue;
        ranks_init(&r, &comm_shm, cases[i].world, RANKS_THREAD);
        ranks_start(&r, false, train, (void *)&cases[i]);
        if (ranks_join(&r) != 0)
            fail_msg("%s", cases[i].name);
        ranks_free(&r);
    }
}

int main(void)
{
    (void)setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    const struct CMUnitTest tests[] = {longer(test_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
