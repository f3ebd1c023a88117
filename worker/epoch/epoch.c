/* SPDX-License-Identifier: Apache-2.0 */
/* epoch.c - an epoch's beginning and end: its programs, the objects that steps need, and the release of everything. */
#include "worker/epoch/epoch.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/device/shared_peak.h"
#include "worker/tensor/tree.h"

#define GIB 1073741824.0

titan_status epoch_open(struct trainer *t, const struct epoch_view *view, struct epoch **ret, struct titan_error *err)
{
    struct epoch *e = calloc(1, sizeof *e);

    titan_assert(view->epoch >= 1 && view->rank >= 0);
    if (!e)
        return titan_fail(err, TITAN_ENOMEM, "epoch: out of memory");
    e->t = t;
    e->view = *view;
    *ret = e;
    return TITAN_OK;
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

/* Device memory of a program: its arena, and its external buffers that are not in host memory. */
size_t epoch_device_bytes(const struct program *p)
{
    size_t bytes = p->arena_bytes;

    for (int i = 0; i < p->n_buffers; i++)
        if (buffer_is_external(p->buffers[i].kind) && buffer_memory(p->buffers[i].kind) != MEMORY_HOST)
            bytes += p->buffers[i].bytes;
    return bytes;
}

titan_status epoch_make_plan(struct epoch *e, struct titan_error *err)
{
    struct epoch_plan *const p = &e->plan;
    int64_t to;

    titan_assert(e->view.rank < e->view.world && !p->plan);
    const titan_status status = plan_ahead_take(e->t->ahead, e->view.world, &p->plan, &p->programs, err);
    if (status == TITAN_EUNPLACEABLE) {
        const struct device_info *const info = &e->t->device.info;
        const double memory = e->t->recipe->device.memory;
        if (memory > 0)
            return titan_error_wrap(err, "%s, device.memory = %.2f GiB", info->name, memory);
        if (info->memory_free > 0)
            return titan_error_wrap(err, "%s, %.2f of %.2f GiB free when it was opened", info->name,
                                    (double)info->memory_free / GIB, (double)info->memory_bytes / GIB);
    }
    TRY(status);
    titan_assert(p->plan->mesh.world == e->view.world);
    for (int k = 0; k < p->plan->classes; k++)
        p->channels |= p->programs[k]->channels;
    p->hash = plan_hash(p->plan, p->programs);
    p->program = TAKE(p->programs[program_class(&p->plan->build, e->view.rank)]);
    p->streams = p->program->streams;
    p->memory_bytes = epoch_device_bytes(p->program);
    tree_share(p->plan->build.microbatches, mesh_batch_size(&p->plan->mesh),
               mesh_batch_rank(&p->plan->mesh, e->view.rank), &p->first_microbatch, &to);
    titan_assert(to - p->first_microbatch == p->program->share);
    return evaluation_make_plan(e, err);
}

void epoch_plan_for_loss(struct epoch *e)
{
    struct trainer *const t = e->t;

    titan_assert(e->plan.plan);
    if (e->plan.for_loss || !t->members->ops->on_next_world)
        return;
    e->plan.for_loss = true;
    const int left = (int)recipe_fit_world(t->recipe, e->view.world - 1);
    if (left == 0)
        return;
    (void)plan_ahead_expect(t->ahead, left);
    if (t->evaluator.ahead)
        (void)plan_ahead_expect(t->evaluator.ahead, left);
}

/* --- what ranks say of themselves --------------------------------------------------------------------------------- */

struct data_reported {
    double hash_low, hash_high, tokens;
};
struct introduction {
    struct data_reported training, validation, tokenizer;
    struct peak_claim claim;
};

static const char *node_of(const struct epoch_view *view, int rank)
{
    return view->node_names ? view->node_names[rank] : "this machine";
}

static struct data_reported describe(uint64_t hash, uint64_t tokens)
{
    return (struct data_reported){
        .hash_low = (uint32_t)hash, .hash_high = (double)(hash >> 32), .tokens = (double)tokens};
}

static struct data_reported describe_data(const struct dataset *data)
{
    return describe(dataset_hash(data), dataset_tokens(data));
}

static bool same(const struct data_reported *a, const struct data_reported *b)
{
    return a->hash_low == b->hash_low && a->hash_high == b->hash_high && a->tokens == b->tokens;
}

/* Checks that all members read the same training and validation data with the same tokenizer. Otherwise one sample
 * could be trained on twice, and another sample never. */
titan_status epoch_introduce(struct epoch *e, struct titan_error *err)
{
    const struct trainer *t = e->t;
    const int world = e->view.world;
    struct introduction mine = {.training = describe_data(t->data),
                                .tokenizer = describe(t->identity.tokenizer, 0),
                                .claim = peak_claim_of(&t->device.info, t->dt)};
    _cleanup_free_ struct introduction *all = calloc((size_t)world, sizeof *all);
    _cleanup_free_ struct peak_claim *claims = calloc((size_t)world, sizeof *claims);

    if (!all || !claims)
        return titan_fail(err, TITAN_ENOMEM, "what ranks say of themselves: out of memory");
    if (t->evaluator.held_out.data)
        mine.validation = describe_data(t->evaluator.held_out.data);
    const struct peer_ranks members = epoch_members(e);
    TRY(peer_values_gather(&members, &mine, sizeof mine, all, err));
    for (int r = 0; r < world; r++) {
        if (!same(&all[0].tokenizer, &all[r].tokenizer))
            return titan_fail(err, TITAN_EINVAL,
                              "rank 0 on node %s and rank %d on node %s have tokenizers that give other ids at "
                              "model.tokenizer = '%.200s'",
                              node_of(&e->view, 0), r, node_of(&e->view, r), t->recipe->model.tokenizer);
        const struct {
            const char *key, *path;
            const struct data_reported *of_rank_0, *of_rank;
        } data[] = {{"training", t->recipe->training.dataset_path, &all[0].training, &all[r].training},
                    {"validation", t->recipe->validation.dataset_path, &all[0].validation, &all[r].validation}};
        for (size_t i = 0; i < ARRAY_SIZE(data); i++)
            if (!same(data[i].of_rank_0, data[i].of_rank))
                return titan_fail(
                    err, TITAN_EINVAL,
                    "rank 0 on node %s and rank %d on node %s read different data at %s.dataset_path = '%s': "
                    "%.0f and %.0f tokens; names and contents of the files must be the same everywhere",
                    node_of(&e->view, 0), r, node_of(&e->view, r), data[i].key, data[i].path, data[i].of_rank_0->tokens,
                    data[i].of_rank->tokens);
        claims[r] = all[r].claim;
    }
    e->peak = peak_together(claims, world);
    return TITAN_OK;
}

/* --- what steps need ---------------------------------------------------------------------------------------------- */

static void *bind_state(void *arg, const struct buffer *buffer)
{
    const struct epoch *e = arg;
    return state_bind(e->state.shards.own, buffer);
}

static titan_status send_to_replica(void *arg, const struct exec_reduced *r, struct stream *s, struct titan_error *err)
{
    const struct epoch *e = arg;
    return e->state.buddy ? buddy_send(e->state.buddy, r, s, err) : TITAN_OK;
}

/* The buddy gets what owners have made before COMMIT, so that it can make the same update behind it. */
static titan_status send_directions(void *arg, const float *next, int64_t n, struct titan_error *err)
{
    const struct epoch *e = arg;

    if (!e->state.buddy)
        return TITAN_OK;
    TRY(buddy_send_owned(e->state.buddy, next, n, err));
    return buddy_settle(e->state.buddy, true, err);
}

/* Publishes the previous step, because every rank has begun the current step. Runs on a stream's thread. */
static titan_status publish_previous(void *arg, struct titan_error *err)
{
    (void)err;
    publish_step(arg);
    return TITAN_OK;
}

titan_status epoch_open_executor(struct epoch *e, const struct program *program, const struct sequence_cut *cut,
                                 struct exec *lender, struct exec **ret, struct titan_error *err)
{
    struct trainer *t = e->t;
    const struct program *evaluation = e->evaluation.program;
    struct exec_options exec = {.program = program,
                                .rank = e->view.rank,
                                .cut = *cut,
                                .device = &t->device,
                                .comm_ops = e->groups.ops,
                                .bind = bind_state,
                                .reduced = send_to_replica,
                                .directed = send_directions,
                                .met = program->forward_only ? NULL : publish_previous,
                                .arg = e,
                                .lender = lender,
                                .segments = t->recipe->compile.graph_segments,
                                .seed = (uint64_t)t->recipe->training.seed,
                                .window_arena = t->recipe->nccl.windows && !t->without_windows,
                                .arena_least = evaluation && !lender ? evaluation->arena_bytes : 0,
                                .revoked = t->members->ops->revoked(t->members)};

    memcpy(exec.streams, t->streams, sizeof exec.streams);
    memcpy(exec.comms, e->groups.comms, sizeof exec.comms);
    memcpy(exec.inbound, e->groups.inbound, sizeof exec.inbound);
    return exec_open(&exec, ret, err);
}

static titan_status gather_doubles(void *arg, const double *mine, int n, double *all, struct titan_error *err)
{
    const struct epoch *e = arg;
    const struct peer_ranks members = epoch_members(e);
    return peer_values_gather(&members, mine, (size_t)n * sizeof *mine, all, err);
}

/* Opens a step's arena as a window of its collectives' communicators. First the ranks gather their keys, because every
 * member of a communicator must take part. After a refusal, later epochs open no windows. */
static titan_status open_windows(struct epoch *e, struct titan_error *err)
{
    struct trainer *const t = e->t;
    struct titan_error why = {0};
    size_t bytes;
    void *const base = exec_window(e->exec, &bytes);
    double mine = 0;
    if (base && !t->without_windows) {
        /* The key hashes the window's size and the collectives' places in it, because NCCL reads a peer's data at the
         * caller's own offset. The key is more than 0, and exact as a double. */
        uint64_t hash = hash_word(hash_word(HASH_INIT, bytes), program_collectives_hash(e->plan.program));
        if (e->evaluation.program)
            hash = hash_word(hash, program_collectives_hash(e->evaluation.program));
        mine = (double)(hash_mix(hash) >> 12) + 1;
    }
    _cleanup_free_ double *all = calloc((size_t)e->view.world, sizeof *all);
    bool refused = !base;

    if (!t->recipe->nccl.windows || e->view.world == 1 || !e->groups.ops->window_open)
        return TITAN_OK;
    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "windows: out of memory");
    TRY(gather_doubles(e, &mine, 1, all, err));
    const titan_status status = base && mine > 0 ? groups_open_windows(e, base, bytes, all, &refused, &why) : TITAN_OK;
    if (status != TITAN_OK) {
        t->without_windows = t->without_windows || (status != TITAN_EREVOKED && status != TITAN_EPEER);
        if (err)
            *err = why;
        return status;
    }
    /* NCCL chooses its kernels by the windows that it knows, and all members must choose the same kernels. So if one
     * rank's window was refused, all ranks close their windows. */
    mine = refused;
    TRY(gather_doubles(e, &mine, 1, all, err));
    for (int i = 0; i < e->view.world; i++)
        refused = refused || all[i] != 0;
    if (refused)
        groups_close_windows(e);
    if (refused && !t->without_windows)
        tlog_warn(&t->log, "transfers go without windows", "reason=\"%s\"",
                  !base        ? "NCCL has no memory for them"
                  : why.msg[0] ? why.msg
                               : "another rank was refused one");
    t->without_windows = t->without_windows || refused;
    return TITAN_OK;
}

titan_status epoch_prepare_steps(struct epoch *e, struct titan_error *err)
{
    const struct trainer *t = e->t;
    const struct loader_options loader = {.data = t->data,
                                          .cut = e->plan.plan->cut,
                                          .cp_rank = mesh_group_rank(&e->plan.plan->mesh, GROUP_CP, e->view.rank),
                                          .share = e->plan.program->share,
                                          .first = e->plan.first_microbatch,
                                          .global_batch = t->recipe->training.global_batch_size,
                                          .steps_read = t->identity.step,
                                          .samples_read = t->identity.samples,
                                          .documents = t->recipe->training.block_causal,
                                          .log = t->samples};

    titan_assert(e->state.installed && !e->exec);
    TRY(loader_open(&loader, &e->loader, err));
    groups_settle(e);
    TRY(epoch_open_executor(e, e->plan.program, &e->plan.plan->cut, NULL, &e->exec, err));
    TRY(open_windows(e, err));
    if (e->plan.plan->build.order == ATTENTION_ANY) {
        /* Implementations of a product differ in bits, and their measured times, which decide the choice, differ from
         * run to run. So all ranks must share one choice. */
        struct exec_products found;
        TRY(exec_choose_products(e->exec, e->view.world > 1 ? gather_doubles : NULL, e, &found, err));
        if (found.refused > 0)
            tlog_warn(&t->log,
                      "this device cannot carry products out as the other ranks do, they differ in the last bits",
                      "products=%d device=\"%s\"", found.refused, t->device.info.name);
        if (found.timed > 0)
            tlog_info(&t->log, "products timed", "products=%d timed=%d", found.all, found.timed);
    }
    TRY(checkpoints_open(e, err));
    publish_open(e);
    TRY(layers_open(e, err));
    (void)t->device.ops->memory_peak(t->device.dev, true);
    plan_free_programs(e->plan.plan, TAKE(e->plan.programs));
    return TITAN_OK;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

titan_status epoch_leave(struct epoch *e, bool failed, struct titan_error *err)
{
    checkpoints_finish(e, failed);
    /* After a failure, no rank waits for a peer. After an agreed end, no rank revokes, because a peer may still be
     * inside the last collective. */
    if (failed)
        groups_revoke(e);
    titan_status status = trainer_drain_streams(e->t, err);
    groups_unwatch(e); /* up to here a command to revoke ends the drain */
    buddy_leave(e->state.buddy);
    groups_close(e);
    if (status == TITAN_OK)
        status = trainer_drain_streams(e->t, err); /* closing may have made a stream fail */
    checkpoints_close(e);
    restore_clear(&e->state.restore);
    publish_close(e); /* closes the metrics file, because the next epoch's rank 0 may be another process */
    return status;
}

void epoch_free(struct epoch *e)
{
    if (!e)
        return;
    titan_assert(!atomic_load(&e->groups.comm));
    profile_close(e);
    layers_close(e);
    evaluation_close(e); /* before the executor of steps, because evaluations use this executor's arena */
    exec_close(e->exec);
    recover_free(e);
    program_close(e->plan.program);
    if (e->plan.programs)
        plan_free_programs(e->plan.plan, e->plan.programs);
    plan_close(e->plan.plan);
    loader_close(&e->loader);
    free(e);
}
