/* SPDX-License-Identifier: Apache-2.0 */
/* recover.c - agrees on a state, fills it in, installs it, and keeps the old state in case that fails. */
#include "worker/epoch/recover.h"

#include <limits.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "worker/epoch/epoch.h"

/* --- what is held ------------------------------------------------------------------------------------------------- */

/* Makes `shards` the installed state, and frees all older state. shards: the trainer's pending shards, or an epoch's
 * shards. */
static void install(struct trainer *t, struct held_shards *shards)
{
    const struct held_shards fresh = *shards;

    titan_assert(!fresh.own || !t->held.installed.own || fresh.own->epoch > t->held.installed.own->epoch);
    *shards = (struct held_shards){0};
    epoch_free(TAKE(t->held.last));
    held_shards_close(&t->held.installed);
    held_shards_close(&t->held.pending);
    t->held.installed = fresh;
}

struct brought recover_held(const struct trainer *t)
{
    const struct epoch *last = t->held.last;
    struct brought b = {.shards = t->held.installed};

    if (!last)
        return b;
    titan_assert(last->exec && b.shards.own && b.shards.own->epoch == last->view.epoch);
    b.published = last->view.rank == 0 && !publish_is_pending(last);
    b.prepared = exec_prepared(last->exec);
    b.statistics = exec_statistics(last->exec);
    b.statistics_size = b.statistics ? statistics_all(&last->plan.program->statistics) : 0;
    return b;
}

struct quiesced recover_quiesced(const struct trainer *t, const struct epoch_view *view, bool paused)
{
    const struct brought held = recover_held(t);
    const struct train_state *own = held.shards.own, *pending = t->held.pending.own;

    titan_assert(!pending || !own || pending->epoch > own->epoch);
    return (struct quiesced){.epoch = view->epoch,
                             .last_step = own ? own->step : 0,
                             .paused = paused,
                             .prepared = held.prepared,
                             .installed_epoch = own ? own->epoch : 0,
                             .pending_epoch = pending ? pending->epoch : 0};
}

void recover_keep(struct trainer *t, struct epoch *e)
{
    if (!e->state.installed || !e->exec) {
        epoch_free(e);
        return;
    }
    titan_assert(!t->held.last && t->held.installed.own == e->state.shards.own);
    t->held.last = e;
}

void recover_close(struct trainer *t)
{
    epoch_free(TAKE(t->held.last));
    held_shards_close(&t->held.installed);
    held_shards_close(&t->held.pending);
}

void recover_free(struct epoch *e)
{
    buddy_close(e->state.buddy);
    if (!e->state.installed)
        held_shards_close(&e->state.shards);
}

/* --- agreement ---------------------------------------------------------------------------------------------------- */

static void report_unreadable(void *arg, const char *path, const char *why)
{
    const struct epoch *e = arg;
    struct membership *m = e->t->members;
    m->ops->checkpoint_failed(m, 0, path, why, true);
}

static titan_status finish_prepared(void *arg, const double *statistics, int64_t size, struct titan_error *err)
{
    const struct epoch *e = arg;
    struct epoch *const last = e->t->held.last;

    if (!last || !exec_prepared(last->exec))
        return titan_fail(err, TITAN_EBUG, "there is no prepared step to finish");
    const int64_t all = statistics_all(&last->plan.program->statistics);
    if (size != all)
        return titan_fail(err, TITAN_ECONFLICT, "state in memory: rank %d says statistics_size %lld, a step has %lld",
                          e->state.restore.holdings.statistics_from, (long long)size, (long long)all);
    return e->state.finish(last, statistics, err);
}

/* Called before the new state's memory is allocated. Afterwards no unfinished step needs memory any more. */
titan_status recover_agree(struct epoch *e, finish_step_fn finish, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct restore *const r = &e->state.restore;
    struct held_state *const held = &t->held;
    const uint64_t source = e->view.source_epoch;

    titan_assert(!e->state.installed && !r->view);
    /* This member brings its part of the source epoch. At least one member has installed the source epoch. So this
     * member's part is good, even if this member did not pass the barrier. */
    if (held->pending.own && held->pending.own->epoch == source)
        install(t, &held->pending);
    struct brought brought = {0};
    if (held->installed.own && (source == 0 || held->installed.own->epoch == source))
        brought = recover_held(t);
    e->state.finish = finish;
    *r = (struct restore){.view = &e->view,
                          .recipe = t->recipe,
                          .identity = &t->identity,
                          .model = t->model,
                          .ranks = {.device = &t->device,
                                    .ops = e->groups.ops,
                                    .comm = atomic_load(&e->groups.comm),
                                    .n = groups_ranks(&e->view),
                                    .s = t->streams[STREAM_COMPUTE]},
                          .stop = t->members->ops->revoked(t->members),
                          .log = &t->log,
                          .brought = brought,
                          .folder = t->recipe->checkpoint.enable ? t->folder.path : NULL,
                          .retry_ms = t->members->solo_world > 0 ? 0 : checkpoints_retry_ms(t->recipe),
                          .still_ms = run_folder_stall_ms(t->recipe),
                          .unreadable = report_unreadable,
                          .finish = finish_prepared,
                          .arg = e};
    TRY(restore_agree(r, err));
    if (r->covered && !r->holdings.published && e->view.rank == 0 && t->held.last &&
        exec_statistics(t->held.last->exec))
        publish_keep(t, t->held.last);
    return TITAN_OK;
}

/* --- filling ------------------------------------------------------------------------------------------------------ */

static titan_status open_shard(struct epoch *e, int rank, struct train_state **ret, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct layout *layout = NULL; /* an own layout, because the state outlives the plan */

    titan_assert(!*ret && rank >= 0 && rank < e->view.world);
    TRY(layout_of_recipe(t->recipe, t->model, &e->plan.plan->mesh, &layout, err));
    const struct state_options options = {
        .device = &t->device,
        .layout = layout,
        .rank = rank,
        .types = state_types_of_recipe(t->recipe, t->dt),
        .offload = t->recipe->training.enable_cpu_offload,
        .copy = rank != e->view.rank,
        .errors = rank == e->view.rank && codec_row(recipe_reduce_codec(t->recipe))->error,
        .replica_errors = rank == e->view.rank && codec_row(recipe_replicate_codec(t->recipe))->error};
    const titan_status status = state_open(&options, ret, err);
    if (status != TITAN_OK)
        layout_close(layout);
    else
        (*ret)->epoch = e->view.epoch;
    return status;
}

/* Opens and fills the copy of the owner's shard, with the buddy that keeps the copy up to date. */
static titan_status fill_replica(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    const int world = e->view.world, shift = buddy_shift(e->view.nodes, world);
    const int owner = (e->view.rank - shift + world) % world;

    if (!recipe_keeps_copies(t->recipe, world, mesh_group_size(&e->plan.plan->mesh, GROUP_REPLICATE)))
        return TITAN_OK;
    if (!e->state.buddy) {
        TRY(open_shard(e, owner, &e->state.shards.copy, err));
        const struct program *owners = e->plan.programs[program_class(&e->plan.plan->build, owner)];
        const struct buddy_options options = {.device = &t->device,
                                              .rank = e->view.rank,
                                              .world = world,
                                              .shift = shift,
                                              .ops = e->groups.ops,
                                              .comm = e->groups.comms[CHANNEL_WORLD],
                                              .abort_flag = t->members->ops->revoked(t->members),
                                              .owners = owners ? owners : e->plan.program,
                                              .copy = e->state.shards.copy};
        TRY(buddy_open(&options, &e->state.buddy, err));
    }
    return buddy_seed(e->state.buddy, e->state.shards.own, err);
}

/* Installs the new state. The old state stays until every member has its new state. */
titan_status recover_install(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct epoch_state *const s = &e->state;
    const struct run_identity *const found = &s->restore.found;
    bool moved;

    titan_assert(!s->installed && s->restore.view);
    titan_status status = open_shard(e, e->view.rank, &s->shards.own, err);
    if (status == TITAN_ENOMEM && t->held.last) {
        /* No rank here has committed the last epoch's unfinished step. So the last epoch is freed first, which makes
         * memory free. */
        epoch_free(TAKE(t->held.last));
        status = open_shard(e, e->view.rank, &s->shards.own, err);
    }
    TRY(status);
    for (bool again = true; again;) {
        status = restore_fill(&s->restore, e->plan.plan->layout, s->shards.own, err);
        if (status == TITAN_ECONFLICT && t->members->solo_world == 0 && !s->restore.covered) {
            /* The checkpoint belongs to another run. TITAN_EINVAL keeps the agent from starting a new worker, because
             * it would fail again. */
            status = TITAN_EINVAL;
            if (err)
                err->status = status;
        }
        TRY(status);

        /* Data and checkpoints go on from the course of the state's source. */
        dataset_go_on(t->data, &found->data, found->samples, &moved);
        if (moved && e->view.rank == 0)
            tlog_warn(&t->log,
                      "the mixture or the length of samples is another, the data is drawn anew behind what was read",
                      "step=%lu sample=%lu", (unsigned long)found->step + 1, (unsigned long)found->samples);
        dataset_identify(t->data, &t->identity.data);
        t->identity.samples = found->samples;
        t->identity.step = found->step;
        t->identity.line = found->line;
        t->identity.scales = found->scales;
        t->identity.from_step = found->from_step;
        memcpy(t->identity.from_run, found->from_run, sizeof t->identity.from_run);

        TRY(failpoint("state.filled", err));
        TRY(fill_replica(e, err));
        TRY(failpoint("state.kept", err));
        TRY(restore_verify(&s->restore, &e->plan.plan->mesh, &s->shards, &s->verified, &again, err));
    }
    status = groups_wait_for_all(e, err);
    if (status == TITAN_OK)
        status = failpoint("state.passed", err);
    if (status == TITAN_OK) {
        install(t, &s->shards);
        s->shards = t->held.installed;
        s->installed = true;
        return TITAN_OK;
    }
    held_shards_close(&t->held.pending);
    t->held.pending = s->shards;
    s->shards = (struct held_shards){0};
    return status;
}

titan_status recover_hand_over(struct epoch *e, struct titan_error *err)
{
    struct trainer *t = e->t;
    struct layout *cut = NULL;
    struct mesh mesh;

    titan_assert(e->view.rank >= e->view.world && e->state.restore.view);
    TRY(mesh_build(t->recipe, e->view.world, &mesh, err));
    TRY(layout_of_recipe(t->recipe, t->model, &mesh, &cut, err));
    titan_status status = TITAN_OK;
    for (bool again = true; again && status == TITAN_OK;) {
        status = restore_fill(&e->state.restore, cut, NULL, err);
        if (status == TITAN_OK)
            status =
                restore_verify(&e->state.restore, &mesh, &(struct held_shards){0}, &e->state.verified, &again, err);
    }
    layout_close(cut);
    if (status == TITAN_OK)
        status = groups_wait_for_all(e, err);
    if (status == TITAN_OK)
        install(t, &(struct held_shards){0});
    return status;
}
