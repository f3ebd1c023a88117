/* SPDX-License-Identifier: Apache-2.0 */
/* step.c - a training step in four calls: gradients, the agreement, the direction section with COMMIT, the update. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/progress.h"
#include "worker/exec/executor.h"

/* --- one action --------------------------------------------------------------------------------------------------- */

static titan_status take_time(const struct call *c, int which, int index)
{
    return c->ops->timestamp(c->e->timestamps, which * c->e->p->n_actions + index, c->s, c->err);
}

static titan_status wait_for_others(const struct call *c)
{
    const struct exec *e = c->e;

    for (int i = 0; i < c->a->n_waits; i++) {
        const int other = e->p->waits[c->a->wait + i];
        titan_debug_assert(other < c->a - e->p->actions);
        if (other > e->done)
            TRY(c->ops->event_wait(e->events[other], c->s, c->err));
    }
    return TITAN_OK;
}

static titan_status issue(const struct call *c, int index)
{
    struct exec *const e = c->e;
    const enum op op = (enum op)c->a->op;
    const bool takes_time = op_class(op) != OP_CLASS_NO_TIME;
    const bool timed = e->timed && takes_time, recorded = e->recorded && takes_time;
    const bool measured = index < e->agree && e->batch->waits && c->a->stream == STREAM_COMPUTE;
    const bool transfers = measured && op_is_transfer(op), waits = measured && c->a->n_waits > 0;

    if (transfers || waits)
        TRY(take_time(c, TIME_WAIT_BEGAN, index));
    TRY(wait_for_others(c));
    if (waits && !transfers)
        TRY(take_time(c, TIME_WAIT_ENDED, index));
    if (timed)
        TRY(take_time(c, TIME_BEGAN, index));
    if (recorded)
        recorder_begin(c, index);
    const titan_status status = exec_dispatch(c);
    if (recorded)
        recorder_end(c, index);
    TRY(status);
    if (transfers)
        TRY(take_time(c, TIME_WAIT_ENDED, index));
    if (timed)
        TRY(take_time(c, TIME_ENDED, index));
    if (index == e->sync_point && e->opt.met)
        TRY(c->ops->stream_call(c->s, e->opt.met, e->opt.arg, c->err));
    return c->a->signal ? c->ops->event_record(e->events[index], c->s, c->err) : TITAN_OK;
}

static titan_status action_failed(const struct exec *e, int index, titan_status status, const struct titan_error *fault,
                                  struct titan_error *err)
{
    if (err && fault->status == status)
        *err = *fault;
    else
        (void)titan_fail(err, status, "%s", titan_status_text(status));
    return titan_error_wrap(err, "action %d (%s)", index, op_name((enum op)e->p->actions[index].op));
}

static titan_status run_action(struct exec *e, int index, struct titan_error *err)
{
    struct titan_error fault = {0};
    const struct call c = exec_call(e, index, &fault);

    progress_action();
    titan_status status = failpoint("exec.action", &fault);
    if (status == TITAN_OK)
        status = issue(&c, index);
    /* Passes on the gradient shards for which this action was the last writer. */
    struct stream *const s = e->opt.streams[e->p->actions[index].stream];
    for (; e->next_final < e->n_finals && e->finals[e->next_final].writer == index && status == TITAN_OK;
         e->next_final++) {
        const struct action *norm = &e->p->actions[e->finals[e->next_final].norm];
        const struct operand *o = &action_operands(e->p, norm)[OPERAND_OF(norm, gradient)];
        const int codes = e->finals[e->next_final].codes;
        const struct exec_reduced reduced = {
            .unit = norm->unit,
            .grad = (const float *)(const void *)((char *)e->address[o->buffer] + o->offset),
            .n = action_params(e->p, norm)->norm.n,
            .codes = codes >= 0 ? e->address[codes] : NULL,
            .bytes = codes >= 0 ? e->p->buffers[codes].bytes : 0};
        titan_assert(e->stage == EXEC_REDUCING || e->stage == EXEC_DECIDED);
        if (e->opt.reduced)
            status = e->opt.reduced(e->opt.arg, &reduced, s, &fault);
    }
    return status == TITAN_OK ? TITAN_OK : action_failed(e, index, status, &fault, err);
}

/* Enqueues the run as one. *ret_done false: nothing is enqueued, and segments are off from now on. */
static titan_status launch_run(struct exec *e, struct run *r, bool *ret_done, struct titan_error *err)
{
    struct titan_error fault = {0};
    const struct call c = exec_call(e, r->first, &fault);
    /* The run has the waits of its first action and the signal of its last action. */
    const bool waits = e->batch->waits && c.a->n_waits > 0;

    *ret_done = false;
    progress_action();
    titan_status status = failpoint("exec.action", &fault);
    if (status == TITAN_OK && waits)
        status = take_time(&c, TIME_WAIT_BEGAN, r->first);
    if (status == TITAN_OK)
        status = wait_for_others(&c);
    if (status == TITAN_OK && waits)
        status = take_time(&c, TIME_WAIT_ENDED, r->first);
    if (status == TITAN_OK)
        status = segments_launch(e, r, ret_done, &fault);
    if (status == TITAN_OK && *ret_done && e->p->actions[r->last].signal)
        status = c.ops->event_record(e->events[r->last], c.s, &fault);
    return status == TITAN_OK ? TITAN_OK : action_failed(e, r->first, status, &fault, err);
}

/* Makes the next step begin after all streams have ended this step, because a program has no waits for the previous
 * step's last accesses. */
static titan_status join_streams(const struct exec *e, struct titan_error *err)
{
    struct stream *const compute = e->opt.streams[STREAM_COMPUTE];

    for (int s = STREAM_COMPUTE + 1; s < STREAM_COUNT; s++)
        if (e->joined[s]) {
            TRY(e->ops->event_record(e->joined[s], e->opt.streams[s], err));
            TRY(e->ops->event_wait(e->joined[s], compute, err));
        }
    TRY(e->ops->event_record(e->joined[STREAM_COMPUTE], compute, err));
    for (int s = STREAM_COMPUTE + 1; s < STREAM_COUNT; s++)
        if (e->joined[s])
            TRY(e->ops->event_wait(e->joined[STREAM_COMPUTE], e->opt.streams[s], err));
    return TITAN_OK;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static titan_status begin(struct exec *e, const struct exec_batch *batch, struct titan_error *err)
{
    titan_assert(batch && batch->tokens);
    e->stage = EXEC_REDUCING;
    e->batch = batch;
    e->update = NULL;
    e->next_final = 0;
    e->done = -1;
    lookahead_begin(&e->lookahead);
    return e->timed || batch->waits ? e->ops->timestamps_begin(e->timestamps, err) : TITAN_OK;
}

titan_status exec_gradients(struct exec *e, const struct exec_batch *batch, struct titan_error *err)
{
    titan_assert(e->agree < e->p->n_actions && batch->counts);
    TRY(begin(e, batch, err));
    TRY(segments_begin(e, err));
    for (int i = 0; i < e->agree; i++) {
        if (e->opt.revoked && atomic_load(e->opt.revoked))
            return titan_fail(err, TITAN_EREVOKED, "action %d: the epoch was revoked", i);
        struct run *const r = segments_run_of(e, i);
        bool launched = false;
        if (r && r->first != i) /* the action's run is already enqueued */
            continue;
        if (r)
            TRY(launch_run(e, r, &launched, err));
        if (!launched) /* segments are now off, so the run's other actions are enqueued one by one */
            TRY(run_action(e, i, err));
        TRY(lookahead_bound(e, launched ? r->n : 1, err));
    }
    titan_assert(e->next_final == e->n_finals || e->finals[e->next_final].writer > e->agree);
    TRY(e->ops->stream_sync(e->opt.streams[STREAM_COMPUTE], err));
    const int64_t computed_ns = clock_mono_ns();
    for (int s = STREAM_COMPUTE + 1; s < STREAM_COUNT; s++)
        if (e->joined[s])
            TRY(e->ops->stream_sync(e->opt.streams[s], err));
    e->waited_ns = clock_mono_ns() - computed_ns;
    e->stage = EXEC_REDUCED;
    if (batch->waits) {
        /* Adds the time that the compute stream waited for other streams. */
        const int64_t *const began = e->times + TIME_WAIT_BEGAN * (size_t)e->p->n_actions;
        const int64_t *const ended = e->times + TIME_WAIT_ENDED * (size_t)e->p->n_actions;
        TRY(e->ops->timestamps_read(e->timestamps, e->times, err));
        for (int i = 0; i < e->agree; i++)
            e->waited_ns += ended[i] - began[i];
    }
    return TITAN_OK;
}

static void take_statistics(struct exec *e)
{
    titan_assert(e->stage == EXEC_PREPARED);
    e->newest = 1 - e->newest;
    e->has_statistics = true;
    e->stage = EXEC_AGREED;
}

titan_status exec_agree(struct exec *e, const double **ret_statistics, struct titan_error *err)
{
    titan_assert(e->stage == EXEC_REDUCED);
    TRY(failpoint("exec.reduced", err));
    if (e->commit == e->agree) {
        e->stage = EXEC_PREPARED;
        TRY(failpoint("exec.prepared", err));
    }
    TRY(run_action(e, e->agree, err));     /* AGREE: the sum over all ranks is enqueued */
    TRY(run_action(e, e->agree + 1, err)); /* DECIDE: the host has it */
    *ret_statistics = e->statistics[1 - e->newest];
    if (e->commit == e->agree)
        take_statistics(e);
    else
        e->stage = EXEC_DECIDED;
    e->batch = NULL;
    return TITAN_OK;
}

titan_status exec_commit(struct exec *e, const struct update *update, struct titan_error *err)
{
    if (e->stage == EXEC_AGREED) /* AGREE was the commit point */
        return TITAN_OK;
    titan_assert(e->stage == EXEC_DECIDED);
    e->update = update;
    for (int i = e->agree + 2; i < e->commit; i++) {
        if (e->opt.revoked && atomic_load(e->opt.revoked))
            return titan_fail(err, TITAN_EREVOKED, "action %d: the epoch was revoked", i);
        TRY(run_action(e, i, err));
    }
    TRY(e->ops->stream_sync(e->opt.streams[STREAM_COMPUTE], err));
    for (int s = STREAM_COMPUTE + 1; s < STREAM_COUNT; s++)
        if (e->joined[s])
            TRY(e->ops->stream_sync(e->opt.streams[s], err));
    titan_assert(e->next_final == e->n_finals);
    if (e->opt.directed && e->whole < e->p->n_actions) {
        const struct action *const whole = &e->p->actions[e->whole];
        const struct operand *const o = &action_operands(e->p, whole)[OPERAND_OF(whole, after)];
        const float *const next = (const float *)(const void *)((char *)e->address[o->buffer] + o->offset);
        TRY(e->opt.directed(e->opt.arg, next, action_params(e->p, whole)->whole.kept, err));
    }
    TRY(failpoint("exec.directed", err));
    e->stage = EXEC_PREPARED;
    TRY(failpoint("exec.committing", err));
    TRY(run_action(e, e->commit, err));
    take_statistics(e);
    return TITAN_OK;
}

void exec_resume(struct exec *e, const double *statistics)
{
    titan_assert(e->stage == EXEC_PREPARED);
    titan_assert(statistics != e->statistics[1 - e->newest]);
    memcpy(e->statistics[1 - e->newest], statistics, (size_t)statistics_all(&e->p->statistics) * sizeof *statistics);
    e->done = MAX(e->commit, e->agree + 1); /* all actions that had begun have ended with their epoch */
    take_statistics(e);
}

titan_status exec_update(struct exec *e, const struct update *update, struct titan_error *err)
{
    titan_assert(e->stage == EXEC_AGREED);
    e->update = update;
    for (int i = MAX(e->commit + 1, e->agree + 2); i < e->p->n_actions; i++)
        TRY(run_action(e, i, err));
    TRY(join_streams(e, err));
    e->update = NULL;
    e->stage = EXEC_IDLE;
    return TITAN_OK;
}

int64_t exec_waited_ns(const struct exec *e)
{
    titan_assert(e->stage == EXEC_REDUCED);
    return e->batch->waits ? e->waited_ns : -1;
}

titan_status exec_wait_for_update(const struct exec *e, struct titan_error *err)
{
    titan_assert(e->stage == EXEC_IDLE);
    return e->ops->stream_sync(e->opt.streams[STREAM_COMPUTE], err); /* this stream has joined all others */
}

void exec_take_times(struct exec *e, bool on)
{
    titan_assert(e->stage == EXEC_IDLE);
    e->timed = on;
}

titan_status exec_times(struct exec *e, struct exec_times *ret, struct titan_error *err)
{
    titan_assert(e->stage == EXEC_IDLE && e->timed);
    *ret = (struct exec_times){e->times + TIME_BEGAN * (size_t)e->p->n_actions,
                               e->times + TIME_ENDED * (size_t)e->p->n_actions};
    return e->ops->timestamps_read(e->timestamps, e->times, err);
}

bool exec_prepared(const struct exec *e)
{
    return e->stage == EXEC_PREPARED;
}

const double *exec_statistics(const struct exec *e)
{
    return e->has_statistics ? e->statistics[e->newest] : NULL;
}

titan_status exec_evaluate(struct exec *e, const struct exec_batch *batch, const double **ret_statistics,
                           struct titan_error *err)
{
    titan_assert(e->p->forward_only);
    TRY(exec_gradients(e, batch, err));
    TRY(exec_agree(e, ret_statistics, err));
    return exec_update(e, NULL, err);
}

titan_status exec_run(struct exec *e, const struct exec_batch *batch, struct titan_error *err)
{
    titan_assert(e->agree == e->p->n_actions);
    TRY(begin(e, batch, err));
    for (int i = 0; i < e->p->n_actions; i++) {
        TRY(run_action(e, i, err));
        TRY(lookahead_bound(e, 1, err));
    }
    TRY(join_streams(e, err));
    e->stage = EXEC_IDLE;
    return TITAN_OK;
}
