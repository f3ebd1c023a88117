/* train.c - the training loop, top to bottom.
 *
 *   train            epochs until the last step
 *     run_epoch      world, plan, groups, state, steps
 *       plan         recipe -> mesh -> layout -> programs of all kinds -> check
 *       open_groups  a communicator for every channel the programs use
 *       load_state   init | checkpoint | the memory of the previous epoch
 *       run_steps    batch, program, commit, report, checkpoint
 *
 * A step is committed when its update has been issued: everything that can fail because of a peer comes before. An
 * epoch that is revoked in the middle of a step leaves the state of the last committed one. */
#include "worker/train.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "worker/checkpoint/writer.h"
#include "worker/comm/comm.h"
#include "worker/data/batch.h"
#include "worker/data/dataset.h"
#include "worker/elastic/transfer.h"
#include "worker/exec/exec.h"
#include "worker/metrics/metrics.h"
#include "worker/optim/adamw.h"
#include "worker/optim/outcome.h"
#include "worker/optim/schedule.h"
#include "worker/plan/plan.h"
#include "worker/plan/tree.h"

/* What lives as long as the process. */
struct trainer {
    const struct recipe *recipe;
    struct membership *members;
    struct log log;
    struct device_handle device;
    struct stream *streams[STREAM_COUNT]; /* opened when a program first uses them */
    struct model *model;
    struct dataset *data;
    struct metrics metrics;
    struct train_state *state; /* NULL until the first epoch has one */
    enum dtype dt;
    struct buf recipe_text;
    uint64_t recipe_hash;
    char checkpoint_dir[PATH_MAX];
};

/* What lives as long as an epoch. */
struct epoch {
    struct trainer *t;
    struct epoch_view view;
    const struct comm_ops *comm_ops; /* NULL when alone */
    _Atomic(struct comm *) comm;     /* of all ranks; the control thread revokes it, and so its parts */
    struct comm *comms[CHANNEL_COUNT], *inbound[CHANNEL_COUNT];
    struct plan *plan;
    struct program *program; /* this rank's */
    uint32_t channels;       /* bits: those that any rank's program uses */
    size_t memory_bytes;     /* of the device */
    struct exec *exec;
    _Atomic(struct checkpoint_writer *) writer; /* the control thread stops its waiting */
    uint64_t writer_step;                       /* newest step handed to the writer */
    int64_t first_microbatch;                   /* of this rank's share */
    int32_t *tokens;                            /* [slot][BATCH_ROWS][N]: what the program loads */
    int32_t *inputs, *targets, *starts;         /* of one microbatch, whole sequences; starts NULL: one document each */
    double *counts;                             /* [slot] */
    struct update update;                       /* of the step under way */
    struct step_outcome outcome;                /* of the step under way */
    double learning_rate;
    uint64_t skipped_in_a_row;
};

enum verdict { VERDICT_FINISHED, VERDICT_STOPPED, VERDICT_PAUSED };

/* --- process set-up
 * ----------------------------------------------------------------------------------------------------- */

static enum dtype compute_dtype(const struct recipe *r, const struct device_info *info)
{
    if (strcmp(r->training.mixed_precision_param, "float32") == 0)
        return DTYPE_F32;
    if (strcmp(r->training.mixed_precision_param, "bfloat16") == 0)
        return DTYPE_BF16;
    return info->bf16_fast ? DTYPE_BF16 : DTYPE_F32;
}

static titan_status open_data(struct trainer *t, struct titan_error *err)
{
    const struct recipe *r = t->recipe;
    const struct dataset_options options = {.path = r->training.dataset_path,
                                            .tokenizer = r->model.tokenizer,
                                            .seq_len = r->training.seq_len,
                                            .seed = (uint64_t)r->training.seed};

    TRY(dataset_open(&options, &t->data, err));
    if (dataset_vocabulary(t->data) > r->model.dims.vocab_size)
        return titan_fail(err, TITAN_EINVAL, "tokenizer '%s' has %ld tokens, model.vocab_size is %ld",
                          r->model.tokenizer, (long)dataset_vocabulary(t->data), (long)r->model.dims.vocab_size);
    return TITAN_OK;
}

static titan_status checkpoint_folder(struct trainer *t, struct titan_error *err)
{
    const struct recipe *r = t->recipe;
    const char *base = r->job.dump_folder[0] ? r->job.dump_folder : t->members->job_dir;
    int n;

    if (r->checkpoint.folder[0] == '/')
        n = snprintf(t->checkpoint_dir, sizeof t->checkpoint_dir, "%s", r->checkpoint.folder);
    else
        n = snprintf(t->checkpoint_dir, sizeof t->checkpoint_dir, "%s/%s", base, r->checkpoint.folder);
    if (n >= (int)sizeof t->checkpoint_dir)
        return titan_fail(err, TITAN_EINVAL, "checkpoint.folder: the path is too long");
    return TITAN_OK;
}

static titan_status open_trainer(struct trainer *t, const struct train_options *o, struct titan_error *err)
{
    const struct recipe *r = o->recipe;
    const struct device_options device = {.index = o->device_index,
                                          .threads = r->device.threads > 0 ? (int)r->device.threads : o->threads};

    log_init(&t->log, "worker", "%s", "");
    recipe_print(r, &t->recipe_text);
    if (buf_failed(&t->recipe_text))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    t->recipe_hash = recipe_hash(r);
    TRY(checkpoint_folder(t, err));
    TRY(open_data(t, err)); /* before the device: bad input shows at once */
    TRY(model_open(&r->model.dims, &t->model, err));
    TRY(device_open(r->device.name, &device, &t->device, err));
    t->dt = compute_dtype(r, &t->device.info);
    return t->device.ops->stream_open(t->device.dev, "compute", true, &t->streams[STREAM_COMPUTE], err);
}

static void close_trainer(struct trainer *t)
{
    state_close(t->state);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (t->streams[s])
            t->device.ops->stream_close(t->streams[s]);
    if (t->device.dev)
        device_close(&t->device);
    model_close(t->model);
    dataset_close(t->data);
    metrics_close(&t->metrics);
    buf_free(&t->recipe_text);
}

/* --- an epoch: communicator
 * ------------------------------------------------------------------------------------------------ */

/* On the control thread: nothing of this epoch waits for a peer any more. */
static void revoke_epoch(void *arg)
{
    struct epoch *e = arg;
    struct comm *comm = atomic_load(&e->comm);
    struct checkpoint_writer *writer = atomic_load(&e->writer);
    if (comm)
        e->comm_ops->revoke(comm);
    if (writer)
        checkpoint_writer_cancel(writer);
}

static titan_status open_comm(struct epoch *e, struct titan_error *err)
{
    struct membership *m = e->t->members;
    const struct device_plugin *plugin = e->t->device.plugin;
    struct comm_config config = {.epoch = e->view.epoch,
                                 .rank = e->view.rank,
                                 .world = e->view.world,
                                 .addresses = e->view.addresses,
                                 .listener = m->listener,
                                 .memfd = e->view.memfd,
                                 .device = &e->t->device};
    struct comm *comm = NULL;

    if (e->view.world == 1)
        return TITAN_OK;
    memcpy(config.id, e->view.comm_id, sizeof config.id);
    e->comm_ops = plugin->comm ? plugin->comm : e->view.memfd >= 0 ? &comm_shm : &comm_tcp;
    m->ops->on_revoke(m, revoke_epoch, e);
    TRY(e->comm_ops->open(&config, m->ops->revoked(m), &comm, err));
    atomic_store(&e->comm, comm);
    /* Between open and store the callback found nothing to revoke. */
    if (atomic_load(m->ops->revoked(m)))
        return titan_fail(err, TITAN_EREVOKED, "epoch %lu is revoked", (unsigned long)e->view.epoch);
    return TITAN_OK;
}

/* --- an epoch: plan
 * -------------------------------------------------------------------------------------------------------- */

/* External memory counts, except what lies in the host's. */
static size_t device_bytes(const struct program *p)
{
    size_t bytes = p->arena_bytes;

    for (int i = 0; i < p->n_buffers; i++)
        if (buffer_is_external(p->buffers[i].kind) && buffer_memory(p->buffers[i].kind) != MEMORY_HOST)
            bytes += p->buffers[i].bytes;
    return bytes;
}

/* Programs of all kinds are built and checked together on every rank; its own stays. */
static titan_status plan(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const struct plan_options options = {.recipe = t->recipe,
                                         .model = t->model,
                                         .world = e->view.world,
                                         .dt = t->dt,
                                         .ops = t->device.ops,
                                         .dev = t->device.dev,
                                         .memory_bytes = t->device.info.memory_bytes};
    struct program **programs = NULL;
    int64_t to;

    TRY(plan_open(&options, &e->plan, err));
    TRY(plan_programs(e->plan, &programs, err));
    for (int k = 0; k < e->plan->kinds; k++)
        e->channels |= programs[k]->channels;
    e->program = TAKE(programs[program_kind(&e->plan->build, e->view.rank)]);
    plan_free_programs(e->plan, programs);
    e->memory_bytes = device_bytes(e->program);
    tree_share(e->plan->build.microbatches, mesh_batch_size(&e->plan->mesh),
               mesh_batch_rank(&e->plan->mesh, e->view.rank), &e->first_microbatch, &to);
    return TITAN_OK;
}

static titan_status open_streams(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;

    for (int s = 0; s < STREAM_COUNT; s++)
        if ((e->program->streams >> s & 1) && !t->streams[s])
            TRY(t->device.ops->stream_open(t->device.dev, stream_name((enum stream_id)s), false, &t->streams[s], err));
    return TITAN_OK;
}

/* --- an epoch: communicators of the mesh's groups
 * -------------------------------------------------------------------------- */

static titan_status split(struct epoch *e, enum channel channel, const int *members, int n, struct comm **ret,
                          struct titan_error *err)
{
    struct membership *m = e->t->members;
    struct comm *const world = atomic_load(&e->comm);

    if (e->comm_ops->split(world, members, n, m->ops->revoked(m), ret, err) == TITAN_OK)
        return TITAN_OK;
    return titan_error_wrap(err, "communicator %s", channel_name(channel));
}

/* One communicator for each edge of a pipeline's ring. */
static titan_status open_edges(struct epoch *e, enum channel channel, struct titan_error *err)
{
    const struct mesh *mesh = &e->plan->mesh;

    for (int colour = 0; colour < mesh_edge_colours(mesh); colour++) {
        int members[2];
        const enum edge_side side = mesh_edge(mesh, channel, colour, e->view.rank, members);
        struct comm *edge = NULL;
        TRY(split(e, channel, members, side == EDGE_NONE ? 1 : 2, &edge, err));
        if (side == EDGE_NONE)
            e->comm_ops->close(edge);
        else
            *(side == EDGE_SENDS ? &e->comms[channel] : &e->inbound[channel]) = edge;
    }
    return TITAN_OK;
}

/* All ranks split in the same order, also for channels that their own program does not use. */
static titan_status open_groups(struct epoch *e, struct titan_error *err)
{
    const struct mesh *mesh = &e->plan->mesh;
    _cleanup_free_ int *members = calloc((size_t)e->view.world, sizeof *members);

    if (!members)
        return titan_fail(err, TITAN_ENOMEM, "communicators: out of memory");
    e->comms[CHANNEL_WORLD] = atomic_load(&e->comm);
    for (int c = 0; c < CHANNEL_COUNT; c++) {
        const enum group group = channel_group((enum channel)c);
        const int n = mesh_group_size(mesh, group);
        if (c == CHANNEL_WORLD || n == 1 || !(e->channels >> c & 1))
            continue;
        mesh_group_members(mesh, group, e->view.rank, members);
        if (group == GROUP_PP)
            TRY(open_edges(e, (enum channel)c, err));
        else
            TRY(split(e, (enum channel)c, members, n, &e->comms[c], err));
    }
    return TITAN_OK;
}

static void close_comms(struct epoch *e)
{
    for (int c = 0; c < CHANNEL_COUNT; c++)
        for (int side = 0; side < 2; side++) {
            struct comm *const child = side == 0 ? e->comms[c] : e->inbound[c];
            if (c != CHANNEL_WORLD && child)
                e->comm_ops->close(child);
        }
    e->comm_ops->close(atomic_load(&e->comm));
}

/* --- an epoch: state
 * ------------------------------------------------------------------------------------------------------- */

static titan_status fill_state(struct epoch *e, struct train_state *fresh, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct stream *const s = t->streams[STREAM_COMPUTE];
    titan_status status;

    switch (e->view.source) {
    case STATE_FROM_INIT:
        return state_init(fresh, (uint64_t)t->recipe->training.seed, s, err);
    case STATE_FROM_CHECKPOINT:
        return state_load(fresh, e->view.checkpoint_path, t->recipe_hash, s, err);
    case STATE_FROM_MEMORY:
        status = state_transfer(&e->view, t->recipe, t->state, fresh, e->comm_ops, atomic_load(&e->comm), s, err);
        if (status != TITAN_ECONFLICT || !e->view.checkpoint_path[0])
            return status;
        tlog_warn(&t->log, "state not in memory, taking the checkpoint", "reason=\"%s\"", err ? err->msg : "");
        return state_load(fresh, e->view.checkpoint_path, t->recipe_hash, s, err);
    }
    return titan_fail(err, TITAN_EBUG, "unknown source of state %d", (int)e->view.source);
}

/* The old state stays until the new one is complete. */
static titan_status load_state(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct train_state *fresh = NULL;
    struct layout *layout = NULL; /* the state outlives the plan */

    TRY(layout_of_recipe(t->recipe, t->model, &e->plan->mesh, &layout, err));
    const titan_status opened =
        state_open(&t->device, layout, e->view.rank, t->dt, t->recipe->training.enable_cpu_offload, &fresh, err);
    if (opened != TITAN_OK) {
        layout_close(layout);
        return opened;
    }
    const titan_status status = fill_state(e, fresh, err);
    if (status != TITAN_OK) {
        state_close(fresh);
        return status;
    }
    fresh->epoch = e->view.epoch;
    state_close(t->state);
    t->state = fresh;
    return TITAN_OK;
}

/* --- a step
 * ---------------------------------------------------------------------------------------------------------------- */

/* Tokens of this rank's microbatches: a function of step and position only. */
static void load_batch(struct epoch *e, uint64_t step)
{
    const struct sequence_cut *cut = &e->plan->cut;
    const uint64_t first = (step - 1) * (uint64_t)e->t->recipe->training.global_batch_size;
    const int cp_rank = mesh_group_rank(&e->plan->mesh, GROUP_CP, e->view.rank);
    const int64_t each = BATCH_ROWS * batch_tokens(cut);

    for (int64_t slot = 0; slot < e->program->share; slot++) {
        const int64_t sample = (e->first_microbatch + slot) * cut->b;
        for (int64_t i = 0; i < cut->b; i++)
            dataset_sample(e->t->data, first + (uint64_t)(sample + i), e->inputs + i * cut->t, e->targets + i * cut->t);
        if (e->starts)
            batch_starts(cut, e->inputs, dataset_separator(e->t->data), e->starts);
        e->counts[slot] = (double)batch_fill(cut, cp_rank, e->inputs, e->targets, e->starts, e->tokens + slot * each);
    }
}

/* Called by the executor between reduction and update, on every rank with the same report. */
static titan_status decide(void *arg, const double *report, bool *ret_skip, struct titan_error *err)
{
    struct epoch *e = arg;
    const struct recipe *r = e->t->recipe;
    const struct train_state *st = e->t->state;
    const uint64_t step = st->step + 1;

    TRY(outcome_read(e->program, e->plan->layout, report, &e->outcome, err));
    e->learning_rate = schedule_rate(r, (int64_t)step);
    *ret_skip = !e->outcome.finite;
    e->update.sgd = strcmp(r->optimizer.name, "SGD") == 0;
    e->update.args = adamw_arguments(r, e->learning_rate, step - st->skipped,
                                     clip_factor(e->outcome.grad_norm, r->training.max_norm) / e->outcome.tokens);
    return TITAN_OK;
}

static titan_status optimise(void *arg, int unit, float *staged, void *shard, const float *grad, int64_t n,
                             struct stream *s)
{
    const struct epoch *e = arg;
    return state_update(e->t->state, &e->update, unit, staged, shard, grad, n, s);
}

static void *bind_state(void *arg, const struct buffer *buffer)
{
    const struct epoch *e = arg;
    return state_bind(e->t->state, buffer);
}

/* A step without an update: fine now and then, a sign of a sick run when they come in a row. */
static titan_status note_skip(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const char *where = e->outcome.bad_unit >= 0 ? t->model->units[e->outcome.bad_unit].name : "loss";

    if (e->outcome.finite) {
        e->skipped_in_a_row = 0;
        return TITAN_OK;
    }
    t->state->skipped++;
    e->skipped_in_a_row++;
    tlog_warn(&t->log, "step skipped, not finite", "step=%lu loss=%g grad_norm=%g first_unit=%s",
              (unsigned long)t->state->step, e->outcome.loss, e->outcome.grad_norm, where);
    if (e->skipped_in_a_row > (uint64_t)t->recipe->fault_tolerance.max_skipped_steps)
        return titan_fail(err, TITAN_EJOB,
                          "step %lu: loss %g, gradient norm %g; first unit at fault: %s; %lu steps in a row skipped",
                          (unsigned long)t->state->step, e->outcome.loss, e->outcome.grad_norm, where,
                          (unsigned long)e->skipped_in_a_row);
    return TITAN_OK;
}

static double mfu_of(const struct trainer *t, double tokens_per_second, int world)
{
    const double peak = t->dt == DTYPE_BF16 ? t->device.info.peak_flops_bf16 : t->device.info.peak_flops_f32;
    return peak > 0 ? recipe_flops_per_token(t->recipe) * tokens_per_second / (peak * world) : 0;
}

static void report_step(struct epoch *e, int64_t started_ns)
{
    struct trainer *t = e->t;
    const double seconds = (double)(clock_mono_ns() - started_ns) * 1e-9;
    const double tps = e->outcome.tokens / seconds;
    const struct step_report report = {.step = t->state->step,
                                       .tokens = t->state->tokens,
                                       .epoch = e->view.epoch,
                                       .loss = e->outcome.loss,
                                       .grad_norm = e->outcome.grad_norm,
                                       .learning_rate = e->learning_rate,
                                       .tokens_per_second = tps,
                                       .mfu = mfu_of(t, tps, e->view.world),
                                       .step_ms = seconds * 1e3,
                                       .world = e->view.world,
                                       .memory_bytes = e->memory_bytes,
                                       .skipped_steps = (uint32_t)t->state->skipped};
    metrics_step(&t->metrics, &t->log, &report);
    t->members->ops->progress(t->members, &report);
}

static titan_status run_step(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const int64_t started = clock_mono_ns();
    const struct exec_step step = {.tokens = e->tokens,
                                   .counts = e->counts,
                                   .orders = t->members->ops->orders(t->members),
                                   .decide = decide,
                                   .arg = e};

    load_batch(e, t->state->step + 1);
    TRY(exec_run(e->exec, &step, err));
    t->state->step++;
    t->state->tokens += (uint64_t)e->outcome.tokens;
    const titan_status status = note_skip(e, err);
    report_step(e, started);
    return status;
}

/* --- checkpoints
 * ------------------------------------------------------------------------------------------------------------ */

/* Tell what the writer has finished. A failed background write costs a checkpoint, not the run; a final one is an
 * error. */
static titan_status collect_checkpoint(struct epoch *e, bool must, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct written_checkpoint w;
    struct titan_error fault = {0};
    const titan_status status = checkpoint_writer_collect(atomic_load(&e->writer), must, &w, &fault);

    if (status == TITAN_EAGAIN || status == TITAN_ENOTFOUND)
        return TITAN_OK;
    if (status == TITAN_OK) {
        if (w.step > 0)
            t->members->ops->checkpoint_written(t->members, w.step, w.path, w.bytes, w.world);
        return TITAN_OK;
    }
    if (!must || !err)
        tlog_error(&t->log, "checkpoint not written", "reason=\"%s\"", fault.msg);
    else
        *err = fault;
    return must ? status : TITAN_OK;
}

static titan_status start_checkpoint(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const struct train_state *st = t->state;
    const struct checkpoint_info info = {.step = st->step,
                                         .epoch = e->view.epoch,
                                         .tokens = st->tokens,
                                         .world = e->view.world,
                                         .recipe_hash = t->recipe_hash,
                                         .skipped_steps = st->skipped,
                                         .recipe = t->recipe_text.data};

    if (e->writer_step == st->step)
        return TITAN_OK;
    TRY(collect_checkpoint(e, false, err));
    TRY(checkpoint_writer_start(atomic_load(&e->writer), st, &info, t->streams[STREAM_COMPUTE], err));
    e->writer_step = st->step;
    return TITAN_OK;
}

/* Every rank takes the same decision from the same numbers. */
static titan_status checkpoint_if_due(struct epoch *e, bool last, struct titan_error *err)
{
    const struct recipe *r = e->t->recipe;
    const bool ordered = e->outcome.orders & ORDER_CHECKPOINT;
    const bool due = e->t->state->step % (uint64_t)r->checkpoint.interval == 0;
    const bool wait = last || ordered || strcmp(r->checkpoint.async_mode, "disabled") == 0;

    if (!r->checkpoint.enable)
        return TITAN_OK;
    if (due || last || ordered) {
        TRY(start_checkpoint(e, err));
        if (wait)
            return collect_checkpoint(e, true, err);
    }
    return collect_checkpoint(e, false, err);
}

/* --- an epoch
 * ----------------------------------------------------------------------------------------------------------------- */

static titan_status alloc_batch(struct epoch *e, struct titan_error *err)
{
    const struct sequence_cut *cut = &e->plan->cut;
    const size_t share = (size_t)MAX(e->program->share, 1), n = (size_t)(cut->b * cut->t);

    e->tokens = calloc(share * BATCH_ROWS * (size_t)batch_tokens(cut), sizeof *e->tokens);
    e->inputs = calloc(n, sizeof *e->inputs);
    e->targets = calloc(n, sizeof *e->targets);
    e->counts = calloc(share, sizeof *e->counts);
    if (e->t->recipe->training.block_causal)
        e->starts = calloc(n, sizeof *e->starts);
    if (!e->tokens || !e->inputs || !e->targets || !e->counts || (e->t->recipe->training.block_causal && !e->starts))
        return titan_fail(err, TITAN_ENOMEM, "batch: out of memory");
    return TITAN_OK;
}

static titan_status prepare_steps(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct exec_options exec = {.program = e->program,
                                .rank = e->view.rank,
                                .cut = e->plan->cut,
                                .device = &t->device,
                                .comm_ops = e->comm_ops,
                                .bind = bind_state,
                                .optimise = optimise,
                                .arg = e};
    const struct writer_options writer = {.dir = t->checkpoint_dir,
                                          .rank = e->view.rank,
                                          .world = e->view.world,
                                          .keep = t->members->solo_world > 0 /* otherwise the coordinator knows */
                                                      ? (int)t->recipe->checkpoint.keep_latest_k
                                                      : 0,
                                          .layout = t->state->layout};

    memcpy(exec.streams, t->streams, sizeof exec.streams);
    memcpy(exec.comms, e->comms, sizeof exec.comms);
    memcpy(exec.inbound, e->inbound, sizeof exec.inbound);
    TRY(alloc_batch(e, err));
    TRY(exec_open(&exec, &e->exec, err));
    if (t->recipe->checkpoint.enable) {
        if (e->view.rank == 0) /* nothing of this epoch can be there yet: no step has been agreed on */
            checkpoint_sweep(t->checkpoint_dir, e->view.epoch + 1);
        struct checkpoint_writer *opened = NULL;
        TRY(checkpoint_writer_open(&writer, &opened, err));
        atomic_store(&e->writer, opened);
    }
    return metrics_open(&t->metrics, t->members->job_dir, e->view.rank, t->recipe->metrics.log_freq,
                        t->recipe->training.steps, err);
}

static titan_status run_steps(struct epoch *e, enum verdict *ret, struct titan_error *err)
{
    struct trainer *t = e->t;
    const uint64_t steps = (uint64_t)t->recipe->training.steps;

    while (t->state->step < steps) {
        TRY(run_step(e, err));
        const bool last = t->state->step == steps;
        TRY(checkpoint_if_due(e, last, err));
        if (last)
            break;
        if (e->outcome.orders & (ORDER_STOP | ORDER_PAUSE)) {
            *ret = e->outcome.orders & ORDER_STOP ? VERDICT_STOPPED : VERDICT_PAUSED;
            return TITAN_OK;
        }
    }
    *ret = VERDICT_FINISHED;
    return TITAN_OK;
}

/* No rank leaves a finished run before rank 0 has committed the last checkpoint: should it die at that, the others are
 * still there to go on. */
static titan_status leave_together(struct epoch *e, struct titan_error *err)
{
    struct stream *const s = e->t->streams[STREAM_COMPUTE];

    if (e->view.world == 1)
        return TITAN_OK;
    TRY(e->comm_ops->barrier(atomic_load(&e->comm), s));
    return e->t->device.ops->stream_sync(s, err);
}

/* "pp=2 dp_shard=2": the axes with more than one rank. */
#define MESH_TEXT 128
static const char *mesh_text(const struct mesh *mesh, char text[MESH_TEXT])
{
    size_t n = 0;

    (void)snprintf(text, MESH_TEXT, "1");
    for (int a = 0; a < AXIS_COUNT; a++)
        if (mesh->size[a] > 1)
            n += (size_t)snprintf(text + n, MESH_TEXT - n, "%s%s=%d", n > 0 ? " " : "",
                                  mesh_axis_name((enum mesh_axis)a), mesh->size[a]);
    return text;
}

static double ms(int64_t from_ns, int64_t to_ns)
{
    return (double)(to_ns - from_ns) * 1e-6;
}

static titan_status open_and_run(struct epoch *e, enum verdict *ret, struct titan_error *err)
{
    struct trainer *t = e->t;
    int64_t at[6] = {clock_mono_ns()};

    TRY(open_comm(e, err));
    at[1] = clock_mono_ns();
    TRY(plan(e, err));
    TRY(open_streams(e, err));
    at[2] = clock_mono_ns();
    if (e->view.world > 1)
        TRY(open_groups(e, err));
    at[3] = clock_mono_ns();
    TRY(load_state(e, err));
    at[4] = clock_mono_ns();
    TRY(prepare_steps(e, err));
    at[5] = clock_mono_ns();
    tlog_info(&t->log, "epoch begins",
              "epoch=%lu workers=%d mesh=\"%s\" step=%lu device=\"%s\" dtype=%s connect_ms=%.1f plan_ms=%.1f "
              "groups_ms=%.1f state_ms=%.1f memory_ms=%.1f",
              (unsigned long)e->view.epoch, e->view.world, mesh_text(&e->plan->mesh, (char[MESH_TEXT]){0}),
              (unsigned long)t->state->step, t->device.info.name, t->dt == DTYPE_BF16 ? "bfloat16" : "float32",
              ms(at[0], at[1]), ms(at[1], at[2]), ms(at[2], at[3]), ms(at[3], at[4]), ms(at[4], at[5]));
    TRY(run_steps(e, ret, err));
    return *ret == VERDICT_FINISHED ? leave_together(e, err) : TITAN_OK;
}

/* Leave no operation behind that touches what is freed here. After a failure never wait for a peer; after an agreed end
 * revoke nothing: a peer may still be inside the last collective. */
static void close_epoch(struct epoch *e, bool failed)
{
    struct trainer *t = e->t;
    struct membership *m = t->members;

    struct comm *comm = atomic_load(&e->comm);
    if (comm && failed)
        e->comm_ops->revoke(comm);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (t->streams[s] && t->device.ops->stream_sync(t->streams[s], NULL) != TITAN_OK)
            t->device.ops->stream_clear(t->streams[s]);
    if (e->comm_ops) {
        m->ops->on_revoke(m, NULL, NULL); /* until here an order to revoke ends the wait above */
        if (comm)
            close_comms(e);
    }
    exec_close(e->exec);
    checkpoint_writer_close(atomic_load(&e->writer));
    program_close(e->program);
    plan_close(e->plan);
    free(e->tokens);
    free(e->inputs);
    free(e->starts);
    free(e->targets);
    free(e->counts);
}

static titan_status run_epoch(struct trainer *t, const struct epoch_view *view, enum verdict *ret,
                              struct titan_error *err)
{
    struct epoch e = {.t = t, .view = *view};

    const titan_status status = open_and_run(&e, ret, err);
    struct checkpoint_writer *const writer = atomic_load(&e.writer);
    if (writer && status != TITAN_OK) /* a part that is not written yet may never come */
        checkpoint_writer_cancel(writer);
    if (writer) /* what is complete is told of, also at a bad end */
        (void)!collect_checkpoint(&e, true, NULL);
    close_epoch(&e, status != TITAN_OK);
    return status;
}

/* --- epochs
 * --------------------------------------------------------------------------------------------------------------------
 */

static bool epoch_is_over(titan_status status)
{
    return status == TITAN_EREVOKED || status == TITAN_EPEER;
}

/* Without an agent nobody says where to go on: at the newest checkpoint in this run's folder, if there is one. */
static void find_checkpoint(const struct trainer *t, struct epoch_view *view)
{
    uint64_t step = 0;

    if (checkpoint_latest(t->checkpoint_dir, view->checkpoint_path, &step, NULL) != TITAN_OK)
        return;
    view->source = STATE_FROM_CHECKPOINT;
    view->resume_step = step;
}

static titan_status train_epochs(struct trainer *t, struct titan_error *err)
{
    struct membership *m = t->members;

    for (;;) {
        struct epoch_view view;
        enum verdict verdict = VERDICT_FINISHED;
        titan_status status = m->ops->next(m, &view, err);
        if (status == TITAN_ECANCELLED)
            return TITAN_OK;
        if (status != TITAN_OK)
            return status;

        if (m->solo_world > 0)
            find_checkpoint(t, &view);
        log_init(&t->log, "worker", "rank=%d", view.rank);
        status = run_epoch(t, &view, &verdict, err);
        const uint64_t held = t->state ? t->state->step : 0;
        const struct quiesced quiesced = {.epoch = view.epoch,
                                          .last_step = held,
                                          .paused = status == TITAN_OK,
                                          .sealed_epoch = t->state ? t->state->epoch : 0};
        if (epoch_is_over(status)) {
            tlog_info(&t->log, "epoch is over", "epoch=%lu step=%lu reason=\"%s\"", (unsigned long)view.epoch,
                      (unsigned long)held, err->msg);
            m->ops->quiesced(m, &quiesced);
        } else if (status != TITAN_OK) {
            return status;
        } else if (verdict == VERDICT_FINISHED) {
            m->ops->finished(m, held);
            return TITAN_OK;
        } else {
            m->ops->quiesced(m, &quiesced);
        }
    }
}

titan_status train(const struct train_options *options, struct titan_error *err)
{
    struct titan_error local = {0};
    struct titan_error *const e = err ? err : &local;
    struct trainer t = {.recipe = options->recipe, .members = options->membership, .metrics = {.fd = -1}};

    titan_status status = open_trainer(&t, options, e);
    if (status == TITAN_OK)
        status = train_epochs(&t, e);
    if (status != TITAN_OK)
        t.members->ops->failing(t.members, e);
    close_trainer(&t);
    return status;
}

/* --- without a device
 * ------------------------------------------------------------------------------------------------------- */

static void close_model(struct model **model)
{
    model_close(*model);
}

static void close_plan(struct plan **plan)
{
    plan_close(*plan);
}

titan_status train_check(const struct recipe *recipe, int world, struct buf *out, struct titan_error *err)
{
    const bool f32 = strcmp(recipe->training.mixed_precision_param, "float32") == 0;
    struct plan_options options = {.recipe = recipe, .world = world, .dt = f32 ? DTYPE_F32 : DTYPE_BF16};
    _cleanup_(close_model) struct model *model = NULL;
    _cleanup_(close_plan) struct plan *plan = NULL;
    struct program **programs = NULL;

    TRY(recipe_check_world(recipe, world, err));
    TRY(model_open(&recipe->model.dims, &model, err));
    options.model = model;
    TRY(plan_open(&options, &plan, err));
    TRY(plan_programs(plan, &programs, err));
    for (int k = 0; out && k < plan->kinds; k++)
        program_print(programs[k], out);
    plan_free_programs(plan, programs);
    return TITAN_OK;
}
