/* SPDX-License-Identifier: Apache-2.0 */
/* train.c - the training loop, top to bottom.
 *
 *   train            epochs, until the last step
 *     run_epoch      one membership: connect, plan, take over the state, then steps
 *       run_steps
 *         run_step   gradients, the decision, the commit point, the optimizer
 *         evaluate   the loss on the validation data
 *
 * A step is committed when any rank has the sums of its commit point: of exec_commit if its program has a direction
 * section, otherwise of exec_agree. Everything that can fail because of a peer comes before this point. An epoch that
 * is revoked in the middle of a step leaves the state of the last committed step. If the revoked step was prepared, the
 * epoch also leaves the data with which finish_step can finish the step (docs/membership.md, "What a worker holds").
 *
 * epoch/ has the rest: the data of the process (trainer.h) and of an epoch (epoch.h), an epoch's communicators
 * (groups.h), state (recover.h) and checkpoints (checkpoints.h), and the reports (publish.h). */
#include "worker/train.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/flight.h"
#include "base/progress.h"
#include "worker/epoch/due.h"
#include "worker/epoch/epoch.h"
#include "base/learning_rate.h"

enum verdict { VERDICT_FINISHED, VERDICT_STOPPED, VERDICT_PAUSED, VERDICT_DEPARTED };

static titan_status train_epochs(struct trainer *t, struct titan_error *err);
static titan_status run_epoch(struct trainer *t, const struct epoch_view *view, enum verdict *ret,
                              struct titan_error *err);
static titan_status open_epoch(struct epoch *e, struct titan_error *err);
static titan_status run_steps(struct epoch *e, enum verdict *ret, struct titan_error *err);
static titan_status evaluate(struct epoch *e, bool *ret_stopped, struct titan_error *err);
static titan_status run_step(struct epoch *e, struct titan_error *err);
static titan_status decide(struct epoch *e, const double *statistics, const struct update **ret,
                           struct titan_error *err);
static titan_status follow(struct epoch *e, const double *statistics, const struct update **update,
                           struct titan_error *err);
static titan_status commit_step(struct epoch *e, struct titan_error *err);
static titan_status finish_step(struct epoch *last, const double *statistics, struct titan_error *err);

titan_status train(const struct train_options *options, struct titan_error *err)
{
    struct titan_error local = {0};
    struct titan_error *const e = err ? err : &local;
    struct trainer t = {0};

    titan_assert(options->recipe && options->membership && options->threads >= 0);
    titan_status status =
        trainer_open(options->recipe, options->membership, options->threads, options->device_index, &t, e);
    if (status == TITAN_OK)
        status = train_epochs(&t, e);
    if (status != TITAN_OK)
        t.members->ops->failing(t.members, e);
    trainer_close(&t);
    return status;
}

/* --- epochs ------------------------------------------------------------------------------------------------------- */

static titan_status train_epochs(struct trainer *t, struct titan_error *err)
{
    struct membership *m = t->members;
    uint64_t before = 0;

    for (;;) {
        struct epoch_view view;
        enum verdict verdict = VERDICT_FINISHED;
        titan_status status = m->ops->next(m, &view, err);
        if (status == TITAN_ECANCELLED)
            return TITAN_OK;
        if (status != TITAN_OK)
            return status;

        titan_assert(view.epoch > before);
        before = view.epoch;
        trainer_name_rank(t, view.rank);
        progress_work_begin(); /* an epoch counts as work; between epochs the worker is idle */
        status = run_epoch(t, &view, &verdict, err);
        if (status != TITAN_OK)
            (void)!failpoint("epoch.over", NULL);
        progress_work_end();

        const bool revoked = status == TITAN_EREVOKED || status == TITAN_EPEER;
        if (status != TITAN_OK && !revoked)
            return status;
        const struct quiesced q = recover_quiesced(t, &view, status == TITAN_OK);
        if (revoked)
            tlog_info(&t->log, "epoch is over", "epoch=%lu step=%lu reason=\"%s\"", (unsigned long)view.epoch,
                      (unsigned long)q.last_step, err->msg);
        if (!revoked && verdict == VERDICT_FINISHED) {
            m->ops->finished(m, q.last_step);
            return TITAN_OK;
        }
        m->ops->quiesced(m, &q);
    }
}

static titan_status run_epoch(struct trainer *t, const struct epoch_view *view, enum verdict *ret,
                              struct titan_error *err)
{
    const bool departs = view->rank >= view->world;
    struct epoch *e = NULL;

    TRY(epoch_open(t, view, &e, err));
    titan_status status = open_epoch(e, err);
    if (status == TITAN_OK && departs)
        *ret = VERDICT_DEPARTED;
    else if (status == TITAN_OK)
        status = run_steps(e, ret, err);
    struct titan_error fault = {0};
    const titan_status left = epoch_leave(e, status != TITAN_OK, &fault);
    recover_keep(t, e);
    if (left == TITAN_OK)
        return status;
    *err = fault;
    return left;
}

/* Opens the epoch. All ranks make these calls in this order, because most calls wait for all ranks. */
static titan_status open_epoch(struct epoch *e, struct titan_error *err)
{
    int64_t at[OPENING_COUNT] = {clock_mono_ns()};

    titan_assert(!e->state.installed && !e->exec);
    TRY(groups_connect(e, err));
    at[OPENING_CONNECTED] = clock_mono_ns();
    if (e->view.rank >= e->view.world) { /* departing */
        TRY(groups_split_members(e, err));
        TRY(recover_agree(e, finish_step, err));
        return recover_hand_over(e, err);
    }
    TRY(epoch_make_plan(e, err));
    TRY(trainer_open_streams(e->t, e->plan.streams, err));
    at[OPENING_PLANNED] = clock_mono_ns();
    TRY(groups_split_members(e, err));
    TRY(groups_split_channels(e, err));
    TRY(epoch_introduce(e, err));
    at[OPENING_GROUPED] = clock_mono_ns();
    TRY(run_folder_judge(e, false, err));
    TRY(recover_agree(e, finish_step, err));
    TRY(recover_install(e, err));
    TRY(run_folder_judge(e, true, err));
    at[OPENING_FILLED] = clock_mono_ns();
    TRY(epoch_prepare_steps(e, err));
    at[OPENING_PREPARED] = clock_mono_ns();
    publish_ready(e, at);
    publish_kept(e);
    return evaluation_open(e, err);
}

static titan_status run_steps(struct epoch *e, enum verdict *ret, struct titan_error *err)
{
    const struct recipe *r = e->t->recipe;
    const uint64_t steps = (uint64_t)r->training.steps;
    const struct train_state *const state = e->state.shards.own;
    unsigned commands = 0;
    bool stopped = false;

    titan_assert(e->state.installed && e->exec);
    if (r->checkpoint.create_seed_checkpoint) {
        TRY(checkpoints_write_surely(e, &stopped, err));
        *ret = stopped ? VERDICT_STOPPED : VERDICT_FINISHED;
        return groups_wait_for_members(e, err);
    }
    /* The previous epoch has done all steps, but perhaps has not written the last checkpoint. */
    if (state->step == steps && recipe_writes_checkpoints(r) &&
        e->state.restore.recovery_source != RECOVERY_SOURCE_CHECKPOINT)
        TRY(checkpoints_write_surely(e, &stopped, err));
    step_clock_begin(&e->step.clock);
    TRY(evaluate(e, &stopped, err)); /* the previous epoch may have ended before it evaluated its last step */
    commands = e->step.outcome.commands;
    while (state->step < steps && !(commands & (COMMAND_STOP | COMMAND_PAUSE))) {
        TRY(run_step(e, err));
        epoch_plan_for_loss(e);
        TRY(checkpoints_after_step(e, state->step == steps, &stopped, err));
        TRY(evaluate(e, &stopped, err));
        commands = e->step.outcome.commands;
    }
    if (state->step >= steps)
        *ret = stopped ? VERDICT_STOPPED : VERDICT_FINISHED;
    else
        *ret = commands & COMMAND_STOP ? VERDICT_STOPPED : VERDICT_PAUSED;
    /* All ranks stay until rank 0 has committed the last checkpoint. If rank 0 dies before this, the other ranks can
     * write the checkpoint. */
    TRY(groups_wait_for_members(e, err));
    if (*ret == VERDICT_PAUSED)
        state_settle(e->state.shards.own);
    publish_step_alone(e);
    return TITAN_OK;
}

/* Evaluates the model if an evaluation is due after this step. A command to stop or to pause breaks the evaluation off,
 * and the next epoch begins with it. After the run's last step no epoch follows, so a pause is ignored there. */
static titan_status evaluate(struct epoch *e, bool *ret_stopped, struct titan_error *err)
{
    const bool last = e->state.shards.own->step == (uint64_t)e->t->recipe->training.steps;
    const unsigned received = last ? COMMAND_STOP : COMMAND_STOP | COMMAND_PAUSE;
    unsigned commands = e->step.outcome.commands;

    titan_assert(e->state.installed);
    if (commands & received || !evaluation_due(e))
        return TITAN_OK;
    TRY(evaluation_run(e, received, &commands, err));
    if (!(commands & received))
        return TITAN_OK;
    e->step.outcome.commands = commands;
    return checkpoints_after_step(e, last, ret_stopped, err);
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static titan_status run_step(struct epoch *e, struct titan_error *err)
{
    struct step_clock *const clock = &e->step.clock;
    const uint64_t committed = e->state.shards.own->step;
    const struct exec_batch batch = {
        .tokens = e->loader.tokens,
        .counts = e->loader.counts,
        .step = committed + 1,
        .held = held_scales_for(&e->t->identity.scales, committed, e->t->model->n_tensors,
                                recipe_scales_every(e->t->recipe)),
        .commands = checkpoint_heed(e->t->recipe, e->t->members->ops->commands(e->t->members)) | checkpoints_outcome(e),
        .values = clock->values,
        .masters = layers_masters(e),
        .waits = publish_splits_step(e)};
    const struct update *update = NULL;
    const double *statistics = NULL;
    const int64_t idle_ns = progress_idle_ns();

    titan_assert(e->state.installed && e->state.shards.own->step < (uint64_t)e->t->recipe->training.steps);
    TRY(failpoint("train.step", err));
    e->step.began_ns = clock_mono_ns();
    flight_step(e->state.shards.own->step + 1);
    step_clock_lap(clock, STEP_COMPUTE);
    TRY(loader_load(&e->loader, e->state.shards.own->step + 1, err));
    step_clock_lap(clock, STEP_DATA);
    profile_begin_step(e);
    const int64_t reset = e->t->recipe->parallelism.error_reset;
    if (reset > 0 && (batch.step - 1) % (uint64_t)reset == 0)
        TRY(state_zero_errors(e->state.shards.own, e->t->streams[STREAM_COMPUTE]));
    TRY(exec_gradients(e->exec, &batch, err)); /* forward, backward and reduction of every microbatch */
    step_clock_lap(clock, STEP_COMPUTE);
    if (e->state.buddy)
        TRY(buddy_settle(e->state.buddy, false, err)); /* afterwards the buddy has the gradients, too */
    step_clock_arrive(clock, exec_waited_ns(e->exec), &e->t->device);
    TRY(exec_agree(e->exec, &statistics, err)); /* the commit point of a step without a direction section */
    step_clock_begin(clock);
    TRY(decide(e, statistics, &update, err));
    TRY(exec_commit(e->exec, update, err)); /* the commit point of a step with one; from here on no peer is needed */
    TRY(follow(e, statistics, &update, err));
    checkpoints_await_copy(e); /* afterwards a started checkpoint has copied the values that the update changes */
    TRY(exec_update(e->exec, update, err)); /* the optimizer, on this rank's shard */
    TRY(profile_end_step(e, err));
    const titan_status status = commit_step(e, err);
    step_clock_lap(clock, STEP_COMPUTE);
    progress_busy(clock_mono_ns() - e->step.began_ns - (progress_idle_ns() - idle_ns));
    if (status != TITAN_OK) /* the run ends with this step */
        publish_step_alone(e);
    else if (e->view.world == 1)
        publish_step(e);
    return status;
}

/* Computes the step's update from the summed statistics, so it is the same on every rank. *ret NULL: loss or gradients
 * are not finite, and the step is skipped. */
static titan_status decide(struct epoch *e, const double *statistics, const struct update **ret,
                           struct titan_error *err)
{
    const struct recipe *r = e->t->recipe;
    const struct train_state *state = e->state.shards.own;
    struct step *const s = &e->step;
    const uint64_t step = state->step + 1;

    titan_assert(statistics);
    TRY(outcome_read(e->plan.program, e->plan.plan->layout, statistics, &s->outcome, err));
    s->learning_rate = learning_rate_at(r, (int64_t)step);
    const struct update_step update = {.rate = learning_rate_factor(r, (int64_t)step),
                                       .number = step - state->skipped.total,
                                       .tokens = s->outcome.tokens,
                                       .clip = optim_clip_factor(s->outcome.grad_norm, r->training.max_norm)};
    s->update = update_of_recipe(r, &update);
    *ret = s->outcome.finite ? &s->update : NULL;
    return TITAN_OK;
}

/* Behind the commit point: gives the update the sums of tensors, and makes the same update at the buddy. A sum that is
 * not finite skips the step on every rank: *update becomes NULL. */
static titan_status follow(struct epoch *e, const double *statistics, const struct update **update,
                           struct titan_error *err)
{
    const struct step_statistics *const r = &e->plan.program->statistics;
    struct step *const s = &e->step;

    if (r->size > r->scales)
        held_scales_take(&e->t->identity.scales, e->state.shards.own->step + 1, statistics + r->scales,
                         (int)(r->size - r->scales));
    if (*update && r->sums > 0) {
        s->update.sums = statistics + r->size;
        outcome_add_sums(e->plan.program->layout->model, s->update.sums, &s->outcome);
        *update = s->outcome.finite ? *update : NULL;
    }
    return e->state.buddy && *update ? buddy_update(e->state.buddy, *update, statistics, err) : TITAN_OK;
}

/* Counts a step whose update is enqueued or was skipped. Too many skipped steps in a row end the run. */
static titan_status commit_step(struct epoch *e, struct titan_error *err)
{
    const struct held_shards *shards = &e->state.shards;
    const struct step_outcome *o = &e->step.outcome;

    state_count_step(shards->own, (uint64_t)o->tokens, !o->finite);
    if (shards->copy)
        state_count_step(shards->copy, (uint64_t)o->tokens, !o->finite);
    titan_assert(!shards->copy || shards->copy->step == shards->own->step);
    if (!o->finite) /* what codes have lost of a gradient that did not count is lost on every rank */
        TRY(state_zero_errors(shards->own, e->t->streams[STREAM_COMPUTE]));
    publish_note_step(e);
    return o->finite ? TITAN_OK : publish_skipped_step(e, err);
}

/* Finishes a prepared step of an ended epoch, from the commit point on, with another rank's statistics of that step. */
static titan_status finish_step(struct epoch *last, const double *statistics, struct titan_error *err)
{
    const struct update *update = NULL;

    titan_assert(statistics);
    titan_assert(exec_prepared(last->exec) && last->state.installed && !atomic_load(&last->checkpoints.writer));
    exec_resume(last->exec, statistics);
    TRY(decide(last, statistics, &update, err));
    TRY(follow(last, statistics, &update, err));
    TRY(exec_update(last->exec, update, err));
    TRY(last->t->device.ops->stream_sync(last->t->streams[STREAM_COMPUTE], err));
    if (last->state.buddy)
        TRY(buddy_sync(last->state.buddy, err));
    return commit_step(last, err);
}
