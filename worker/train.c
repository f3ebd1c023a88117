/* train.c - the training loop, top to bottom.
 *
 *   train            epochs until the last step
 *     run_epoch      world, plan, groups, state, steps
 *       plan         recipe -> mesh -> layout -> programs of all kinds -> check
 *       open_groups  a communicator for every channel the programs use
 *       recover      who holds what; a step that somebody has committed is finished by all
 *       load_state   memory of the members | checkpoint | init; a barrier seals it
 *       run_steps    batch, program, commit, checkpoint
 *
 * A step is committed when any rank has the sum of AGREE: everything that can fail because of a peer comes before. An
 * epoch that is revoked in the middle of a step leaves the state of the last committed one, and, where that step was
 * prepared, what it takes to finish it (docs/membership.md, "What a worker holds"). The world hears of a step when all
 * ranks have the sum: then nobody's end takes it back ("What the world is told"). */
#include "worker/train.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/progress.h"
#include "worker/checkpoint/due.h"
#include "worker/checkpoint/folder.h"
#include "worker/checkpoint/writer.h"
#include "worker/comm/comm.h"
#include "worker/data/batch.h"
#include "worker/data/dataset.h"
#include "worker/elastic/buddy.h"
#include "worker/elastic/restore.h"
#include "worker/exec/exec.h"
#include "worker/metrics/metrics.h"
#include "worker/optim/outcome.h"
#include "worker/optim/schedule.h"
#include "worker/optim/update.h"
#include "worker/plan/ahead.h"
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
    struct plan_ahead *ahead;
    struct metrics metrics;
    struct parts sealed;          /* nothing until the first epoch has passed its barrier */
    struct parts unsealed;        /* of a later epoch whose barrier failed; nothing: there is none */
    struct epoch *last;           /* of `sealed`, over: what finishing its last step takes; NULL: it has run none */
    struct step_report untold[2]; /* committed steps that the world may not know of; step 0: none */
    enum dtype dt;
    struct buf recipe_text;
    uint64_t recipe_hash;
    char checkpoint_dir[PATH_MAX];
    struct folder folder;
    struct titan_error folder_fault; /* why it was not taken; status TITAN_OK: it was, or was not asked for */
};

/* What lives as long as an epoch. */
struct epoch {
    struct trainer *t;
    struct epoch_view view;
    const struct comm_ops *comm_ops; /* NULL when alone */
    _Atomic(struct comm *) comm;     /* members and leavers; the control thread revokes it, and so its parts */
    struct comm *comms[CHANNEL_COUNT], *inbound[CHANNEL_COUNT];
    struct restore restore;
    struct verified verified; /* the state it began with */
    struct parts parts;       /* of this epoch; the trainer's when they are sealed */
    bool sealed;
    struct buddy *buddy; /* NULL: no copies are kept */
    struct plan *plan;
    struct program *program;   /* this rank's */
    struct program **programs; /* of all kinds but this rank's, until the epoch is open */
    uint32_t channels;         /* bits: those that any rank's program uses */
    size_t memory_bytes;       /* of the device */
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
    int64_t step_began_ns;
    struct step_report reports[2]; /* of the last two steps committed here; step 0: none */
    atomic_bool untold;            /* the world is yet to hear of the newer one */
    uint64_t skipped_in_a_row;
};

enum verdict { VERDICT_FINISHED, VERDICT_STOPPED, VERDICT_PAUSED, VERDICT_LEFT };

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

#define FOLDER_WAIT_MS 2000 /* for processes of the run before that are about to end */

static int still_ms(const struct recipe *r)
{
    return (int)(r->fault_tolerance.checkpoint_stall_s * 1000);
}

/* Where that fails, the first epoch of a run ends it; a later one goes on, and says so. */
static void take_folder(struct trainer *t)
{
    struct folder_owner owner = {.recipe = t->recipe, .text = t->recipe_text.data, .recipe_hash = t->recipe_hash};

    (void)snprintf(owner.id, sizeof owner.id, "%s", t->members->run_id);
    (void)snprintf(owner.name, sizeof owner.name, "%s", t->members->run_name);
    struct titan_error fault = {0};
    if (folder_take(t->checkpoint_dir, &owner, FOLDER_WAIT_MS, still_ms(t->recipe), &t->log, &t->folder, &fault) !=
        TITAN_OK)
        t->folder_fault = fault;
}

/* On the control thread. */
static void expect_world(void *arg, int world)
{
    struct trainer *t = arg;
    plan_ahead_want(t->ahead, world);
}

static titan_status open_planning(struct trainer *t, struct titan_error *err)
{
    struct membership *m = t->members;
    const struct plan_options options = {.recipe = t->recipe,
                                         .model = t->model,
                                         .dt = t->dt,
                                         .ops = t->device.ops,
                                         .dev = t->device.dev,
                                         .memory_bytes = t->device.info.memory_bytes};

    TRY(plan_ahead_open(&options, &t->ahead, err));
    if (m->ops->on_next_world)
        m->ops->on_next_world(m, expect_world, t);
    return TITAN_OK;
}

static titan_status open_trainer(struct trainer *t, const struct train_options *o, struct titan_error *err)
{
    const struct recipe *r = o->recipe;
    if (!r->job.follow_links)
        file_refuse_links();
    const struct device_options device = {.index = o->device_index,
                                          .threads = r->device.threads > 0 ? (int)r->device.threads : o->threads};

    log_init(&t->log, "worker", "%s", "");
    recipe_print(r, &t->recipe_text);
    if (buf_failed(&t->recipe_text))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    t->recipe_hash = recipe_hash(r);
    TRY(recipe_checkpoint_folder(r, t->members->job_dir, t->checkpoint_dir, err));
    if (r->checkpoint.enable)
        take_folder(t);
    TRY(open_data(t, err)); /* before the device: bad input shows at once */
    TRY(model_open(&r->model.dims, &t->model, err));
    TRY(device_open(r->device.name, &device, &t->device, err));
    t->dt = compute_dtype(r, &t->device.info);
    TRY(open_planning(t, err));
    return t->device.ops->stream_open(t->device.dev, "compute", true, &t->streams[STREAM_COMPUTE], err);
}

static void free_epoch(struct epoch *e);

static void close_trainer(struct trainer *t)
{
    const struct membership *m = t->members;

    if (t->ahead && m->ops->on_next_world)
        m->ops->on_next_world(t->members, NULL, NULL);
    plan_ahead_close(t->ahead);
    folder_leave(&t->folder);
    free_epoch(TAKE(t->last));
    parts_close(&t->sealed);
    parts_close(&t->unsealed);
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

static int ranks_of(const struct epoch_view *view)
{
    return view->world + view->leavers;
}

static titan_status open_comm(struct epoch *e, struct titan_error *err)
{
    struct membership *m = e->t->members;
    const struct device_plugin *plugin = e->t->device.plugin;
    struct comm_config config = {.epoch = e->view.epoch,
                                 .rank = e->view.rank,
                                 .world = ranks_of(&e->view),
                                 .addresses = e->view.addresses,
                                 .listener = m->listener,
                                 .memfd = e->view.memfd,
                                 .device = &e->t->device};
    struct comm *comm = NULL;

    if (ranks_of(&e->view) == 1)
        return TITAN_OK;
    memcpy(config.id, e->view.comm_id, sizeof config.id);
    config.key = e->view.keyed ? e->view.key : NULL;
    e->comm_ops = plugin->comm ? plugin->comm : e->view.memfd >= 0 ? &comm_shm : &comm_tcp;
    m->ops->on_revoke(m, revoke_epoch, e);
    TRY(e->comm_ops->open(&config, m->ops->revoked(m), &comm, err));
    atomic_store(&e->comm, comm);
    TRY(failpoint("comm.opened", err));
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

/* Programs of all kinds are built and checked together on every rank, ahead of time where the epoch was expected; its
 * own stays. */
static titan_status plan(struct epoch *e, struct titan_error *err)
{
    int64_t to;

    TRY(plan_ahead_take(e->t->ahead, e->view.world, &e->plan, &e->programs, err));
    for (int k = 0; k < e->plan->kinds; k++)
        e->channels |= e->programs[k]->channels;
    e->program = TAKE(e->programs[program_kind(&e->plan->build, e->view.rank)]);
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
    struct comm *const parent = channel == CHANNEL_WORLD ? atomic_load(&e->comm) : e->comms[CHANNEL_WORLD];

    if (e->comm_ops->split(parent, members, n, m->ops->revoked(m), ret, err) == TITAN_OK)
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

/* The members without the leavers, who split off alone. */
static titan_status open_world(struct epoch *e, struct titan_error *err)
{
    const bool leaves = e->view.rank >= e->view.world;
    _cleanup_free_ int *members = calloc((size_t)e->view.world, sizeof *members);

    if (e->view.leavers == 0 || e->view.world == 1) {
        e->comms[CHANNEL_WORLD] = atomic_load(&e->comm);
        return TITAN_OK;
    }
    if (!members)
        return titan_fail(err, TITAN_ENOMEM, "communicators: out of memory");
    for (int r = 0; r < e->view.world; r++)
        members[r] = r;
    return split(e, CHANNEL_WORLD, leaves ? &e->view.rank : members, leaves ? 1 : e->view.world,
                 &e->comms[CHANNEL_WORLD], err);
}

/* All ranks split in the same order, also for channels that their own program does not use. */
static titan_status open_groups(struct epoch *e, struct titan_error *err)
{
    const struct mesh *mesh = &e->plan->mesh;
    _cleanup_free_ int *members = calloc((size_t)e->view.world, sizeof *members);

    if (!members)
        return titan_fail(err, TITAN_ENOMEM, "communicators: out of memory");
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
    if (e->comms[CHANNEL_WORLD] != atomic_load(&e->comm))
        e->comm_ops->close(e->comms[CHANNEL_WORLD]);
    e->comm_ops->close(atomic_load(&e->comm));
    memset(e->comms, 0, sizeof e->comms);
    memset(e->inbound, 0, sizeof e->inbound);
    atomic_store(&e->comm, NULL);
}

/* --- an epoch: state
 * ------------------------------------------------------------------------------------------------------- */

static titan_status finish_step(void *arg, const double *report, struct titan_error *err);

/* Everything older goes. parts: the trainer's own, or an epoch's. */
static void seal(struct trainer *t, struct parts *parts)
{
    const struct parts fresh = *parts;

    *parts = (struct parts){0};
    free_epoch(TAKE(t->last));
    parts_close(&t->sealed);
    parts_close(&t->unsealed);
    t->sealed = fresh;
}

/* What this worker has, and what it takes to finish a step of it. */
static struct brought bring(struct trainer *t)
{
    const struct epoch *last = t->last;
    struct brought b = {.parts = t->sealed};

    if (!last)
        return b;
    b.told = last->view.rank == 0 && !atomic_load(&last->untold);
    b.prepared = last->exec && exec_prepared(last->exec);
    b.report = last->exec ? exec_report(last->exec) : NULL;
    b.report_size = b.report ? last->program->report.size : 0;
    return b;
}

/* Some member has the source epoch sealed, so what this one has of it is good, whether it passed the barrier or not. */
static struct brought bring_source(struct epoch *e)
{
    struct trainer *t = e->t;
    const uint64_t source = e->view.source_epoch;

    if (t->unsealed.own && t->unsealed.own->epoch == source)
        seal(t, &t->unsealed);
    if (t->sealed.own && (source == 0 || t->sealed.own->epoch == source))
        return bring(t);
    return (struct brought){0};
}

static int retry_ms(const struct recipe *r)
{
    return (int)MIN(r->fault_tolerance.checkpoint_retry_s * 1000, (int64_t)INT_MAX);
}

static void tell_unreadable(void *arg, const char *path, const char *why)
{
    struct trainer *t = arg;
    t->members->ops->checkpoint_failed(t->members, 0, path, why, true);
}

/* Before room for the new state is asked for: what the unfinished step has is given back then. */
static titan_status recover(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;

    e->restore = (struct restore){.view = &e->view,
                                  .recipe = t->recipe,
                                  .recipe_hash = t->recipe_hash,
                                  .model = t->model,
                                  .device = &t->device,
                                  .ops = e->comm_ops,
                                  .comm = atomic_load(&e->comm),
                                  .s = t->streams[STREAM_COMPUTE],
                                  .stop = t->members->ops->revoked(t->members),
                                  .log = &t->log,
                                  .brought = bring_source(e),
                                  .folder = t->recipe->checkpoint.enable ? t->checkpoint_dir : NULL,
                                  .retry_ms = t->members->solo_world > 0 ? 0 : retry_ms(t->recipe),
                                  .still_ms = still_ms(t->recipe),
                                  .unreadable = tell_unreadable,
                                  .finish = finish_step,
                                  .arg = t};
    TRY(restore_agree(&e->restore, err));
    if (e->restore.covered && !e->restore.holdings.told && e->view.rank == 0 && t->last && exec_report(t->last->exec))
        memcpy(t->untold, t->last->reports, sizeof t->untold);
    return TITAN_OK;
}

static titan_status open_part(struct epoch *e, int rank, struct train_state **ret, struct titan_error *err)
{
    struct trainer *t = e->t;
    const bool offload = t->recipe->training.enable_cpu_offload;
    struct layout *layout = NULL; /* the state outlives the plan */

    TRY(layout_of_recipe(t->recipe, t->model, &e->plan->mesh, &layout, err));
    const titan_status status = rank == e->view.rank ? state_open(&t->device, layout, rank, t->dt, offload, ret, err)
                                                     : state_open_copy(&t->device, layout, rank, offload, ret, err);
    if (status != TITAN_OK)
        layout_close(layout);
    else
        (*ret)->epoch = e->view.epoch;
    return status;
}

/* A copy of the ward's part, and what keeps it up to date. */
static titan_status open_copy(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const int world = e->view.world, shift = buddy_shift(e->view.nodes, world);
    const int ward = (e->view.rank - shift + world) % world;

    TRY(open_part(e, ward, &e->parts.ward, err));
    const struct program *wards = e->programs[program_kind(&e->plan->build, ward)];
    const struct buddy_options options = {.device = &t->device,
                                          .rank = e->view.rank,
                                          .world = world,
                                          .shift = shift,
                                          .ops = e->comm_ops,
                                          .comm = e->comms[CHANNEL_WORLD],
                                          .abort_flag = t->members->ops->revoked(t->members),
                                          .wards = wards ? wards : e->program,
                                          .copy = e->parts.ward};
    return buddy_open(&options, &e->buddy, err);
}

static titan_status keep_copy(struct epoch *e, struct titan_error *err)
{
    const int replicas = mesh_group_size(&e->plan->mesh, GROUP_REPLICATE);

    if (!recipe_keeps_copies(e->t->recipe, e->view.world, replicas))
        return TITAN_OK;
    if (!e->buddy)
        TRY(open_copy(e, err));
    return buddy_seed(e->buddy, e->parts.own, err);
}

/* The room of a step that nobody here has committed is the first that can be spared. */
static titan_status open_parts(struct epoch *e, struct titan_error *err)
{
    const titan_status status = open_part(e, e->view.rank, &e->parts.own, err);

    if (status != TITAN_ENOMEM || !e->t->last)
        return status;
    free_epoch(TAKE(e->t->last));
    return open_part(e, e->view.rank, &e->parts.own, err);
}

/* All members have come here with their parts, or nobody passes. */
static titan_status wait_together(struct epoch *e, struct comm *comm, int ranks, struct titan_error *err)
{
    struct stream *const s = e->t->streams[STREAM_COMPUTE];

    if (ranks == 1)
        return TITAN_OK;
    TRY(e->comm_ops->barrier(comm, s));
    return e->t->device.ops->stream_sync(s, err);
}

/* Of members and leavers. */
static titan_status pass_barrier(struct epoch *e, struct titan_error *err)
{
    return wait_together(e, atomic_load(&e->comm), ranks_of(&e->view), err);
}

/* The old state stays until every member has its new one. */
static titan_status load_state(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;

    TRY(open_parts(e, err));
    for (bool again = true; again;) {
        TRY(restore_fill(&e->restore, e->plan->layout, e->parts.own, err));
        TRY(failpoint("state.filled", err));
        TRY(keep_copy(e, err));
        TRY(failpoint("state.kept", err));
        TRY(restore_verify(&e->restore, &e->plan->mesh, &e->parts, &e->verified, &again, err));
    }
    titan_status status = pass_barrier(e, err);
    if (status == TITAN_OK)
        status = failpoint("state.passed", err);
    if (status == TITAN_OK) {
        seal(t, &e->parts);
        e->parts = t->sealed;
        e->sealed = true;
        return TITAN_OK;
    }
    parts_close(&t->unsealed);
    t->unsealed = e->parts;
    e->parts = (struct parts){0};
    return status;
}

/* A leaver gives what it has, and is out. */
static titan_status hand_over(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct layout *cut = NULL;
    struct mesh mesh;

    TRY(open_world(e, err));
    TRY(recover(e, err));
    TRY(mesh_build(t->recipe, e->view.world, &mesh, err));
    TRY(layout_of_recipe(t->recipe, t->model, &mesh, &cut, err));
    titan_status status = TITAN_OK;
    for (bool again = true; again && status == TITAN_OK;) {
        status = restore_fill(&e->restore, cut, NULL, err);
        if (status == TITAN_OK)
            status = restore_verify(&e->restore, &mesh, &(struct parts){0}, &e->verified, &again, err);
    }
    layout_close(cut);
    if (status == TITAN_OK)
        status = pass_barrier(e, err);
    if (status == TITAN_OK)
        seal(t, &(struct parts){0});
    return status;
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

/* Every rank has the same report and decides the same. *ret: NULL, the step is skipped. */
static titan_status decide(struct epoch *e, const double *report, const struct update **ret, struct titan_error *err)
{
    const struct recipe *r = e->t->recipe;
    const struct train_state *st = e->parts.own;
    const uint64_t step = st->step + 1;

    TRY(outcome_read(e->program, e->plan->layout, report, &e->outcome, err));
    e->learning_rate = schedule_rate(r, (int64_t)step);
    e->update = update_of_recipe(r, e->learning_rate, step - st->skipped,
                                 clip_factor(e->outcome.grad_norm, r->training.max_norm) / e->outcome.tokens);
    *ret = e->outcome.finite ? &e->update : NULL;
    return e->buddy && *ret ? buddy_update(e->buddy, *ret, report, err) : TITAN_OK;
}

static titan_status reduced(void *arg, int unit, const float *grad, int64_t n, struct stream *s,
                            struct titan_error *err)
{
    const struct epoch *e = arg;
    (void)unit;
    return e->buddy ? buddy_send(e->buddy, grad, n, s, err) : TITAN_OK;
}

static void *bind_state(void *arg, const struct buffer *buffer)
{
    const struct epoch *e = arg;
    return state_bind(e->parts.own, buffer);
}

/* A step without an update: fine now and then, a sign of a sick run when they come in a row. */
static titan_status note_skip(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const unsigned long step = e->parts.own->step;
    const char *where = e->outcome.bad_unit >= 0 ? t->model->units[e->outcome.bad_unit].name : "loss";

    if (e->outcome.finite) {
        e->skipped_in_a_row = 0;
        return TITAN_OK;
    }
    e->skipped_in_a_row++;
    tlog_warn(&t->log, "step skipped, not finite", "step=%lu loss=%g grad_norm=%g first_unit=%s", step, e->outcome.loss,
              e->outcome.grad_norm, where);
    if (e->skipped_in_a_row > (uint64_t)t->recipe->fault_tolerance.max_skipped_steps)
        return titan_fail(err, TITAN_EINVAL, /* it would be so again */
                          "step %lu: loss %g, gradient norm %g; first unit at fault: %s; %lu steps in a row skipped",
                          step, e->outcome.loss, e->outcome.grad_norm, where, (unsigned long)e->skipped_in_a_row);
    return TITAN_OK;
}

static void count_step(struct train_state *part, const struct step_outcome *outcome)
{
    part->step++;
    part->tokens += (uint64_t)outcome->tokens;
    part->skipped += !outcome->finite;
}

static double mfu_of(const struct trainer *t, double tokens_per_second, int world)
{
    const double peak = t->dt == DTYPE_BF16 ? t->device.info.peak_flops_bf16 : t->device.info.peak_flops_f32;
    return peak > 0 ? recipe_flops_per_token(t->recipe) * tokens_per_second / (peak * world) : 0;
}

static struct step_report describe_step(const struct epoch *e)
{
    const struct train_state *st = e->parts.own;
    const double seconds = (double)(clock_mono_ns() - e->step_began_ns) * 1e-9;
    const double tps = e->outcome.tokens / seconds;

    return (struct step_report){.step = st->step,
                                .tokens = st->tokens,
                                .epoch = e->view.epoch,
                                .loss = e->outcome.loss,
                                .grad_norm = e->outcome.grad_norm,
                                .learning_rate = e->learning_rate,
                                .tokens_per_second = tps,
                                .mfu = mfu_of(e->t, tps, e->view.world),
                                .step_ms = seconds * 1e3,
                                .world = e->view.world,
                                .memory_bytes = e->memory_bytes,
                                .skipped_steps = (uint32_t)st->skipped,
                                .at_ms = clock_wall_ms()};
}

/* The step is decided and its update issued. */
static titan_status commit_step(struct epoch *e, struct titan_error *err)
{
    count_step(e->parts.own, &e->outcome);
    if (e->parts.ward)
        count_step(e->parts.ward, &e->outcome);
    e->reports[0] = e->reports[1];
    e->reports[1] = describe_step(e);
    atomic_store(&e->untold, true);
    return note_skip(e, err);
}

/* Every rank has the last step's sum. */
static void tell_step(struct epoch *e)
{
    struct trainer *t = e->t;

    if (!atomic_exchange(&e->untold, false))
        return;
    metrics_step(&t->metrics, &t->log, &e->reports[1]);
    t->members->ops->progress(t->members, &e->reports[1]);
}

/* On a stream's thread, in the step after. */
static titan_status all_have_met(void *arg, struct titan_error *err)
{
    (void)err;
    tell_step(arg);
    return TITAN_OK;
}

static titan_status run_step(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const unsigned orders = checkpoint_heed(t->recipe, t->members->ops->orders(t->members));
    const struct exec_batch batch = {.tokens = e->tokens, .counts = e->counts, .orders = orders};
    const struct update *update = NULL;
    const double *report = NULL;

    const int64_t idle_ns = progress_idle_ns();
    e->step_began_ns = clock_mono_ns();
    if (e->buddy)
        TRY(buddy_expect(e->buddy, err));
    load_batch(e, e->parts.own->step + 1);
    TRY(exec_gradients(e->exec, &batch, err)); /* forward, backward, reductions */
    if (e->buddy)
        TRY(buddy_settle(e->buddy, err));
    TRY(exec_agree(e->exec, &report, err)); /* the commit point: behind it nothing needs a peer */
    TRY(decide(e, report, &update, err));
    TRY(exec_update(e->exec, update, err)); /* the optimizer */
    const titan_status status = commit_step(e, err);
    progress_busy(clock_mono_ns() - e->step_began_ns - (progress_idle_ns() - idle_ns));
    if (e->view.world == 1 || status != TITAN_OK) /* nobody else, or no other step */
        tell_step(e);
    return status;
}

/* In a later epoch, with the report that another rank has got. */
static titan_status finish_step(void *arg, const double *report, struct titan_error *err)
{
    struct trainer *t = arg;
    struct epoch *e = t->last;
    const struct update *update = NULL;

    exec_resume(e->exec, report);
    TRY(decide(e, report, &update, err));
    TRY(exec_update(e->exec, update, err));
    TRY(t->device.ops->stream_sync(t->streams[STREAM_COMPUTE], err));
    if (e->buddy)
        TRY(buddy_sync(e->buddy, err));
    return commit_step(e, err);
}

/* What the rank that died may have kept to itself: of the last step all have the sum now; of the one before they had it
 * when they agreed on the last, and others than rank 0 have said so. The world counts the last to the epoch that is
 * now. */
static void tell_untold(struct epoch *e)
{
    struct trainer *t = e->t;
    struct step_report *const newest = &t->untold[1];

    for (int i = 0; i < 2; i++)
        if (t->untold[i].step > t->metrics.written)
            metrics_step(&t->metrics, &t->log, &t->untold[i]);
    if (newest->step > 0) {
        newest->epoch = e->view.epoch;
        t->members->ops->progress(t->members, newest);
    }
    memset(t->untold, 0, sizeof t->untold);
}

/* --- checkpoints
 * ------------------------------------------------------------------------------------------------------------ */

/* Tell what the writer has finished, and return how that has gone: a checkpoint that was not written costs no more than
 * itself, unless somebody has to have it. */
static titan_status collect_checkpoint(struct epoch *e, bool wait, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct written_checkpoint w;
    bool fresh;

    const titan_status status = checkpoint_writer_collect(atomic_load(&e->writer), wait, &fresh, &w, err);
    if (!fresh)
        return TITAN_OK;
    if (status == TITAN_OK) {
        if (w.step >= e->reports[1].step) /* all have written their parts of it */
            tell_step(e);
        if (w.step > 0)
            t->members->ops->checkpoint_written(t->members, w.step, w.path, w.bytes, w.world);
        return TITAN_OK;
    }
    tlog_error(&t->log, "checkpoint not written", "step=%lu reason=\"%s\"", (unsigned long)w.step, err->msg);
    if (status != TITAN_EREVOKED) /* that one had no time */
        t->members->ops->checkpoint_failed(t->members, w.step, t->checkpoint_dir, err->msg, false);
    return status;
}

static titan_status open_writer(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const struct writer_options options = {.dir = t->checkpoint_dir,
                                           .device = t->folder.device,
                                           .rank = e->view.rank,
                                           .world = e->view.world,
                                           .keep = (int)t->recipe->checkpoint.keep_latest_k,
                                           .layout = e->parts.own->layout};
    struct checkpoint_writer *opened = NULL;

    TRY(checkpoint_writer_open(&options, &opened, err));
    atomic_store(&e->writer, opened);
    return TITAN_OK;
}

/* A checkpoint is the time to look whether what is held twice is still the same. A copy that is not is made again;
 * replicas that are not can only be told of. Every rank does the same. */
static titan_status verify_copies(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct titan_error fault = {0};
    struct verified v;

    if (!e->buddy && mesh_group_size(&e->plan->mesh, GROUP_REPLICATE) == 1)
        return TITAN_OK;
    if (e->buddy)
        TRY(buddy_sync(e->buddy, err));
    const titan_status status =
        verify_parts(&e->plan->mesh, &e->parts, 0, &t->device, e->comm_ops, e->comms[CHANNEL_WORLD], e->view.world,
                     t->streams[STREAM_COMPUTE], &v, &fault);
    if (status == TITAN_ECORRUPT) {
        tlog_error(&t->log, "replicas have drifted apart", "step=%lu reason=\"%s\"", (unsigned long)e->parts.own->step,
                   fault.msg);
        return TITAN_OK;
    }
    if (status != TITAN_OK && err)
        *err = fault;
    TRY(status);
    if (!v.copies_differ)
        return TITAN_OK;
    tlog_error(&t->log, "a keeper's copy is damaged, all are made again", "step=%lu reason=\"%s\"",
               (unsigned long)e->parts.own->step, v.why.msg);
    return buddy_seed(e->buddy, e->parts.own, err);
}

static titan_status start_checkpoint(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const struct train_state *st = e->parts.own;
    const struct checkpoint_info info = {.step = st->step,
                                         .epoch = e->view.epoch,
                                         .tokens = st->tokens,
                                         .world = e->view.world,
                                         .recipe_hash = t->recipe_hash,
                                         .skipped_steps = st->skipped,
                                         .recipe = t->recipe_text.data};

    struct titan_error fault = {0};

    if (e->writer_step == st->step)
        return TITAN_OK;
    if (!atomic_load(&e->writer)) /* the recipe writes none: this one was ordered */
        TRY(open_writer(e, err));
    if (collect_checkpoint(e, true, &fault) == TITAN_EREVOKED) { /* of the one before: starting waits for it anyway */
        if (err)
            *err = fault;
        return TITAN_EREVOKED;
    }
    TRY(verify_copies(e, err));
    TRY(checkpoint_writer_start(atomic_load(&e->writer), st, &info, t->streams[STREAM_COMPUTE], err));
    e->writer_step = st->step;
    return TITAN_OK;
}

#define RETRY_MS 500 /* until a checkpoint that must be is tried again, first and at most */
#define RETRY_MOST_MS 5000
#define WHY_WORDS 48 /* doubles that carry words */

/* What a rank says after an attempt. */
struct attempt {
    double failed, stop, must; /* told to stop as it is; told to stop with a checkpoint */
    char why[WHY_WORDS * sizeof(double)];
};

/* Of all ranks: the first that has failed, or else rank 0's; stop, must: any rank was told to. */
static titan_status agree_on_attempt(struct epoch *e, struct attempt *mine, struct titan_error *err)
{
    struct trainer *t = e->t;
    _cleanup_free_ struct attempt *all = calloc((size_t)e->view.world, sizeof *all);

    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "checkpoint: out of memory");
    TRY(gather_doubles(&t->device, e->comm_ops, e->comms[CHANNEL_WORLD], e->view.world, &mine->failed,
                       sizeof *mine / sizeof(double), &all[0].failed, t->streams[STREAM_COMPUTE], err));
    *mine = all[0];
    for (int r = e->view.world - 1; r >= 0; r--) {
        const double stop = mine->stop + all[r].stop, must = mine->must + all[r].must;
        if (all[r].failed != 0)
            *mine = all[r];
        mine->stop = stop;
        mine->must = must;
    }
    return TITAN_OK;
}

static titan_status wait_to_retry(const struct epoch *e, int ms, struct titan_error *err)
{
    const atomic_int *const revoked = e->t->members->ops->revoked(e->t->members);

    progress_wait_begin();
    for (int waited = 0; waited < ms && !atomic_load(revoked); waited += 20)
        (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000}, NULL);
    progress_wait_end();
    return atomic_load(revoked) ? titan_fail(err, TITAN_EREVOKED, "epoch %lu is revoked", (unsigned long)e->view.epoch)
                                : TITAN_OK;
}

/* A checkpoint without which this run is not to end, or not to give its slots back. The state stays in memory, and all
 * ranks try again together until it is there; *ret_stopped: one of them was told to stop first, or it took too long and
 * they had been told to stop with it. */
static titan_status write_surely(struct epoch *e, bool *ret_stopped, struct titan_error *err)
{
    struct membership *m = e->t->members;
    const int most_ms = retry_ms(e->t->recipe);
    int spent_ms = 0;

    *ret_stopped = false;
    for (;;) {
        struct titan_error fault = {0};
        const unsigned told = m->ops->orders(m) & (ORDER_STOP | ORDER_MUST);
        struct attempt a = {.stop = told == ORDER_STOP, .must = told == (ORDER_STOP | ORDER_MUST)};
        TRY(start_checkpoint(e, err));
        const titan_status status = collect_checkpoint(e, true, &fault);
        if (status == TITAN_EREVOKED) {
            if (err)
                *err = fault;
            return status;
        }
        a.failed = status != TITAN_OK;
        (void)snprintf(a.why, sizeof a.why, "%s", fault.msg);
        TRY(agree_on_attempt(e, &a, err));
        tell_step(e); /* all have it, or they would not be here */
        if (a.failed == 0)
            return TITAN_OK;
        e->writer_step = 0;
        const int wait = MIN(MAX(spent_ms, RETRY_MS), RETRY_MOST_MS);
        *ret_stopped = a.must != 0 ? spent_ms + wait > most_ms : a.stop != 0;
        if (*ret_stopped)
            return TITAN_OK;
        if (spent_ms + wait > most_ms)
            return titan_fail(err, TITAN_EINVAL, "the last checkpoint, of step %lu, could not be written in %d s: %s",
                              (unsigned long)e->parts.own->step, spent_ms / 1000, a.why);
        spent_ms += wait;
        TRY(wait_to_retry(e, wait, err));
    }
}

/* *ret_stopped: the run's last one is missing, and there is no time for it. */
static titan_status checkpoint_if_due(struct epoch *e, bool last, bool *ret_stopped, struct titan_error *err)
{
    const unsigned orders = e->outcome.orders;
    const enum checkpoint_due due = checkpoint_due(e->t->recipe, e->parts.own->step, last, orders);
    struct titan_error fault = {0};

    *ret_stopped = false;
    const bool leaves = (orders & (ORDER_STOP | ORDER_CHECKPOINT)) == (ORDER_STOP | ORDER_CHECKPOINT);
    if ((last || leaves) && due != CHECKPOINT_NOT_DUE)
        return write_surely(e, ret_stopped, err);
    if (due != CHECKPOINT_NOT_DUE)
        TRY(start_checkpoint(e, err));
    if (!atomic_load(&e->writer) || collect_checkpoint(e, due == CHECKPOINT_WAITED, &fault) != TITAN_EREVOKED)
        return TITAN_OK;
    if (err)
        *err = fault;
    return TITAN_EREVOKED;
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
                                .reduced = reduced,
                                .met = all_have_met,
                                .arg = e,
                                .revoked = t->members->ops->revoked(t->members)};

    memcpy(exec.streams, t->streams, sizeof exec.streams);
    memcpy(exec.comms, e->comms, sizeof exec.comms);
    memcpy(exec.inbound, e->inbound, sizeof exec.inbound);
    TRY(alloc_batch(e, err));
    TRY(exec_open(&exec, &e->exec, err));
    if (t->recipe->checkpoint.enable) {
        if (e->view.rank == 0) /* nothing of this epoch can be there yet: no step has been agreed on */
            checkpoint_sweep(t->checkpoint_dir, e->view.epoch + 1);
        TRY(open_writer(e, err));
    }
    return metrics_open(&t->metrics, t->members->job_dir, e->view.rank, t->recipe->metrics.log_freq,
                        t->recipe->training.steps, err);
}

static titan_status run_steps(struct epoch *e, enum verdict *ret, struct titan_error *err)
{
    struct trainer *t = e->t;
    const uint64_t steps = (uint64_t)t->recipe->training.steps;

    bool stopped = false;

    *ret = VERDICT_FINISHED;
    /* A worker was lost after the last step: whether its checkpoint is there is not known. */
    if (e->parts.own->step == steps && t->recipe->checkpoint.enable && e->restore.rung != STATE_RUNG_CHECKPOINT)
        TRY(write_surely(e, &stopped, err));
    while (e->parts.own->step < steps) {
        TRY(run_step(e, err));
        const bool last = e->parts.own->step == steps;
        TRY(checkpoint_if_due(e, last, &stopped, err));
        if (last)
            break;
        if (e->outcome.orders & (ORDER_STOP | ORDER_PAUSE)) {
            *ret = e->outcome.orders & ORDER_STOP ? VERDICT_STOPPED : VERDICT_PAUSED;
            return TITAN_OK;
        }
    }
    if (stopped)
        *ret = VERDICT_STOPPED;
    return TITAN_OK;
}

/* At an agreed end. All have the last step then; and no rank leaves a finished run before rank 0 has committed the last
 * checkpoint: should it die at that, the others are still there to go on. */
static titan_status leave_together(struct epoch *e, struct titan_error *err)
{
    TRY(wait_together(e, e->comms[CHANNEL_WORLD], e->view.world, err)); /* leavers are gone by now */
    tell_step(e);
    return TITAN_OK;
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

/* When each phase of the opening ended. */
enum opening { OPENING_BEGAN, OPENING_CONNECTED, OPENING_PLANNED, OPENING_GROUPED, OPENING_FILLED, OPENING_PREPARED };

/* The checkpoint that was loaded, where nobody had been told that it is there. */
static void tell_found(const struct epoch *e)
{
    struct membership *m = e->t->members;
    const struct epoch_view *v = &e->view;
    const char *path = e->restore.loaded;
    _cleanup_(checkpoint_info_clear) struct checkpoint_info info = {0};

    bool known = !path[0] || strcmp(path, v->checkpoint_path) == 0;
    for (int i = 0; i < v->n_older; i++)
        known |= strcmp(path, v->older_checkpoints[i]) == 0;
    if (known || checkpoint_read_info(path, &info, NULL) != TITAN_OK)
        return;
    tlog_info(&e->t->log, "goes on from a checkpoint that lay there", "path=\"%s\"", path);
    m->ops->checkpoint_written(m, info.step, path, info.bytes, info.world);
}

static void tell_ready(struct epoch *e, const int64_t at[])
{
    struct trainer *t = e->t;
    const struct restore *r = &e->restore;
    const struct state_ready ready = {.epoch = e->view.epoch,
                                      .step = e->parts.own->step,
                                      .rung = r->rung,
                                      .bytes_moved = e->verified.bytes,
                                      .params_hash = e->verified.parameters,
                                      .rolled_forward = r->rolled_forward,
                                      .connect_ms = ms(at[OPENING_BEGAN], at[OPENING_CONNECTED]),
                                      .plan_ms = ms(at[OPENING_CONNECTED], at[OPENING_PLANNED]),
                                      .state_ms = ms(at[OPENING_GROUPED], at[OPENING_FILLED]),
                                      .prepare_ms = ms(at[OPENING_FILLED], at[OPENING_PREPARED]),
                                      .damaged_checkpoint = r->damaged};

    tlog_info(&t->log, "epoch begins",
              "epoch=%lu workers=%d mesh=\"%s\" step=%lu state=%s device=\"%s\" dtype=%s connect_ms=%.1f plan_ms=%.1f "
              "groups_ms=%.1f state_ms=%.1f memory_ms=%.1f",
              (unsigned long)e->view.epoch, e->view.world, mesh_text(&e->plan->mesh, (char[MESH_TEXT]){0}),
              (unsigned long)ready.step, state_rung_name(ready.rung), t->device.info.name,
              t->dt == DTYPE_BF16 ? "bfloat16" : "float32", ready.connect_ms, ready.plan_ms,
              ms(at[OPENING_PLANNED], at[OPENING_GROUPED]), ready.state_ms, ready.prepare_ms);
    if (e->view.rank != 0)
        return;
    t->members->ops->state_ready(t->members, &ready);
    tell_found(e);
}

/* What will not be different next time: the code says to whoever starts workers that another attempt is no use. */
static titan_status settled(const struct trainer *t, titan_status status, struct titan_error *err)
{
    if (t->members->solo_world > 0)
        return status;
    if (err)
        err->status = TITAN_EINVAL;
    return TITAN_EINVAL;
}

/* Was the folder of checkpoints taken? If not, a run that has nothing to lose ends at once; one that trains already
 * goes on, as the next checkpoint may work. Where the state came from other members' memory, the folder is theirs. */
static titan_status judge_folder(struct epoch *e, bool filled, struct titan_error *err)
{
    struct trainer *t = e->t;
    const struct titan_error *const fault = &t->folder_fault;
    const enum state_rung rung = e->restore.rung;
    const bool conflict = fault->status == TITAN_ECONFLICT, from_memory = e->restore.covered;

    if (fault->status == TITAN_OK)
        return TITAN_OK;
    if (e->view.epoch == 1 || (filled && (rung == STATE_RUNG_INIT || (conflict && !from_memory)))) {
        if (err)
            *err = *fault;
        return settled(t, fault->status, err);
    }
    if (filled) {
        tlog_error(&t->log, "checkpoint folder not taken", "reason=\"%s\"", fault->msg);
        if (!conflict)
            t->members->ops->checkpoint_failed(t->members, e->parts.own->step, t->checkpoint_dir, fault->msg, false);
        t->folder_fault = (struct titan_error){0}; /* said */
    }
    return TITAN_OK;
}

static titan_status open_and_run(struct epoch *e, enum verdict *ret, struct titan_error *err)
{
    int64_t at[OPENING_PREPARED + 1] = {clock_mono_ns()};

    TRY(open_comm(e, err));
    at[OPENING_CONNECTED] = clock_mono_ns();
    if (e->view.rank >= e->view.world) {
        *ret = VERDICT_LEFT;
        return hand_over(e, err);
    }
    TRY(plan(e, err));
    TRY(open_streams(e, err));
    at[OPENING_PLANNED] = clock_mono_ns();
    TRY(open_world(e, err));
    if (e->view.world > 1)
        TRY(open_groups(e, err));
    at[OPENING_GROUPED] = clock_mono_ns();
    TRY(judge_folder(e, false, err));
    TRY(recover(e, err));
    TRY(load_state(e, err));
    TRY(judge_folder(e, true, err));
    at[OPENING_FILLED] = clock_mono_ns();
    TRY(prepare_steps(e, err));
    plan_free_programs(e->plan, TAKE(e->programs));
    at[OPENING_PREPARED] = clock_mono_ns();
    tell_ready(e, at);
    tell_untold(e);
    TRY(run_steps(e, ret, err));
    return leave_together(e, err);
}

/* Leave no operation behind that touches what is freed. After a failure never wait for a peer; after an agreed end
 * revoke nothing: a peer may still be inside the last collective. */
static void leave_epoch(struct epoch *e, bool failed)
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
        buddy_leave(e->buddy);
        if (comm)
            close_comms(e);
    }
    checkpoint_writer_close(atomic_load(&e->writer));
    atomic_store(&e->writer, NULL);
    restore_clear(&e->restore);
}

static void free_epoch(struct epoch *e)
{
    if (!e)
        return;
    exec_close(e->exec);
    buddy_close(e->buddy);
    program_close(e->program);
    if (e->programs)
        plan_free_programs(e->plan, e->programs);
    plan_close(e->plan);
    if (!e->sealed)
        parts_close(&e->parts);
    free(e->tokens);
    free(e->inputs);
    free(e->starts);
    free(e->targets);
    free(e->counts);
    free(e);
}

static titan_status run_epoch(struct trainer *t, const struct epoch_view *view, enum verdict *ret,
                              struct titan_error *err)
{
    struct epoch *e = calloc(1, sizeof *e);

    if (!e)
        return titan_fail(err, TITAN_ENOMEM, "epoch: out of memory");
    e->t = t;
    e->view = *view;
    const titan_status status = open_and_run(e, ret, err);
    struct checkpoint_writer *const writer = atomic_load(&e->writer);
    if (writer && status != TITAN_OK) /* a part that is not written yet may never come */
        checkpoint_writer_cancel(writer);
    if (writer) /* what is complete is told of, also at a bad end */
        (void)!collect_checkpoint(e, true, &(struct titan_error){0});
    leave_epoch(e, status != TITAN_OK);
    if (e->sealed && e->exec)
        t->last = TAKE(e);
    free_epoch(e);
    return status;
}

/* --- epochs
 * --------------------------------------------------------------------------------------------------------------------
 */

static bool epoch_is_over(titan_status status)
{
    return status == TITAN_EREVOKED || status == TITAN_EPEER;
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

        log_init(&t->log, "worker", "rank=%d", view.rank);
        atomic_store(&failpoint_rank, view.rank);
        progress_work_begin(); /* between epochs it is idle */
        status = run_epoch(t, &view, &verdict, err);
        if (status != TITAN_OK)
            (void)!failpoint("epoch.over", NULL);
        progress_work_end();
        const struct brought held = bring(t);
        const uint64_t step = held.parts.own ? held.parts.own->step : 0;
        const struct quiesced quiesced = {.epoch = view.epoch,
                                          .last_step = step,
                                          .paused = status == TITAN_OK,
                                          .prepared = held.prepared,
                                          .sealed_epoch = held.parts.own ? held.parts.own->epoch : 0,
                                          .unsealed_epoch = t->unsealed.own ? t->unsealed.own->epoch : 0};
        if (epoch_is_over(status)) {
            tlog_info(&t->log, "epoch is over", "epoch=%lu step=%lu reason=\"%s\"", (unsigned long)view.epoch,
                      (unsigned long)step, err->msg);
            m->ops->quiesced(m, &quiesced);
        } else if (status != TITAN_OK) {
            return status;
        } else if (verdict == VERDICT_FINISHED) {
            m->ops->finished(m, step);
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
    struct trainer t = {
        .recipe = options->recipe, .members = options->membership, .metrics = {.fd = -1}, .folder = FOLDER_NONE};

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
