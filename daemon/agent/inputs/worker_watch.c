/* SPDX-License-Identifier: Apache-2.0 */
/* worker_watch.c - samples of workers: which hang, and which stay in a revoked epoch. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/agent/inputs/inputs.h"

#define REVOKE_LIMIT_MS 10000 /* deadline to leave an epoch, even for a worker that moves */

bool agent_core_watches(const struct agent_core *c)
{
    return c->workers != NULL;
}

void agent_core_sample(struct agent_core *c, uint64_t worker_id, const struct agent_sample *sample, int64_t now,
                       struct agent_actions *out)
{
    struct agent_worker *w = agent_worker_find(c, worker_id);
    if (!w)
        return;
    const struct watch_limits limits = {c->options.hang_floor_ms, c->options.hang_unknown_ms};
    uint32_t ms = 0;
    if (!agent_sample_legal(sample)) {
        c->counters.out_of_range += !w->fault;
        agent_worker_faulty(w,
                            agent_action_text(out, "its page has epoch %" PRIu64 ", step %" PRIu64 ", phase %u",
                                              sample->epoch, sample->step, sample->phase),
                            out);
        return;
    }
    w->sample = *sample;
    bool out_of_it = sample->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE ||
                     sample->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED;
    if (w->quiesced && !out_of_it && sample->epoch > w->quiesced->epoch) {
        titan__internal__worker_quiesced__free_unpacked(w->quiesced, NULL);
        w->quiesced = NULL;
    }
    if (sample->epoch > w->revoked_epoch)
        w->revoked_epoch = 0;
    if (sample->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING)
        agent_job_note_complete(c, w->job_id, sample->epoch);
    if (sample->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE)
        agent_job_make(c, w->job_id)->finished = true;
    enum watch_verdict verdict = watch_sample(&w->watch, sample, &limits, now, &ms);
    if (verdict != WATCH_WELL && !w->killed) {
        bool is_stopped = verdict == WATCH_STOPPED;
        Titan__Internal__WorkerStalled s = TITAN__INTERNAL__WORKER_STALLED__INIT;
        s.job_id = w->job_id;
        s.worker_id = w->id;
        s.epoch = w->sample.epoch;
        s.step = w->sample.step;
        s.actions = w->sample.actions;
        s.for_ms = ms;
        s.stopped = is_stopped;
        c->counters.stalls++;
        agent_log(out, AGENT_WARN, is_stopped ? "worker is stopped" : "worker hangs",
                  "job=%" PRIu64 " worker=%" PRIu64 " step=%" PRIu64 " for_ms=%u", w->job_id, w->id, s.step, ms);
        MESSAGE(m, STALLED, stalled, &s);
        agent_send(c, &m, out);
    }
    agent_straggler_sample(c, w, now, out);
}

/* To leave its epoch, a revoked worker has revoke_ms, or the time that one of its actions may take if that is longer.
 * Each movement starts this time again, up to a limit. */
static int64_t revoke_due(const struct agent_core *c, const struct agent_worker *w)
{
    titan_assert(w->revoked_epoch > 0);
    const struct watch_limits limits = {c->options.hang_floor_ms, c->options.hang_unknown_ms};
    uint64_t patience = w->watch.steps.total >= TAIL_TRUSTED ? watch_patience(&w->watch, &limits) : 0;
    int64_t wait = (int64_t)MAX(patience, (uint64_t)c->options.revoke_ms);
    int64_t from = w->watch.seen ? MAX(w->revoked_at, w->watch.moved_at) : w->revoked_at;
    return MIN(from + wait, w->revoked_at + REVOKE_LIMIT_MS);
}

void agent_revoke_tick(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    for (struct agent_worker *w = c->workers; w; w = w->next) {
        if (!w->revoked_epoch || w->killed || now < revoke_due(c, w))
            continue;
        agent_log(out, AGENT_WARN, "worker does not leave its epoch, killing it",
                  "job=%" PRIu64 " worker=%" PRIu64 " epoch=%" PRIu64 " after_ms=%" PRId64, w->job_id, w->id,
                  w->revoked_epoch, now - w->revoked_at);
        c->counters.kills++;
        w->end = END_HUNG;
        agent_command_stop(w, 0, false, "does not leave a revoked epoch", END_HUNG, out);
    }
}

void agent_revoke_shift(struct agent_core *c, int64_t ms)
{
    titan_assert(ms > 0);
    for (struct agent_worker *w = c->workers; w; w = w->next)
        if (w->revoked_epoch)
            w->revoked_at += ms;
}

int64_t agent_revoke_deadline(const struct agent_core *c)
{
    int64_t due = INT64_MAX;
    for (const struct agent_worker *w = c->workers; w; w = w->next)
        if (w->revoked_epoch && !w->killed)
            due = MIN(due, revoke_due(c, w));
    return due;
}
