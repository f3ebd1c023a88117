/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/recovery_source.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/vec.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/job_progress.h"
#include "daemon/coordinator/run/recovery.h"
#include "daemon/coordinator/run/resize.h"

static bool source_holds(const struct workrec *w, uint64_t epoch)
{
    return w->state == WORKER_READY && !w->away && epoch && (w->installed == epoch || w->pending == epoch);
}

void source_held(struct workrec *w, const Titan__Internal__WorkerQuiesced *q)
{
    titan_assert(w->job);
    w->last_step = q->last_step;
    w->installed = q->installed_epoch;
    w->pending = q->pending_epoch;
    w->prepared = q->prepared;
}

/* The newest epoch that a worker holds installed; 0 = none. No counted worker can still hold an epoch of unknown
 * members. */
static uint64_t newest_installed(const struct jobrec *j)
{
    uint64_t newest = 0;
    for (size_t i = 0; i < j->n_workers; i++) {
        const struct workrec *w = j->workers[i];
        bool known = w->installed == j->status.epoch || w->installed == j->source.epoch || kept_find(j, w->installed);
        if (w->state == WORKER_READY && !w->away && known && w->installed > newest)
            newest = w->installed;
    }
    return newest;
}

/* Do all members of that epoch hold their state shards of it, installed or pending? */
static bool all_hold(const struct jobrec *j, const struct kept_epoch *base)
{
    for (uint32_t i = 0; i < base->n; i++) {
        const struct workrec *w = job_worker(j, base->members[i].worker_id);
        if (!w || !source_holds(w, base->epoch))
            return false;
    }
    return true;
}

/* Have all holders of that epoch kept it because the next one was not installed for them? Then no member has made a
 * step in the next one, and both epochs are at the same step. */
static bool all_kept(const struct jobrec *j, const struct kept_epoch *base)
{
    for (uint32_t i = 0; i < base->n; i++) {
        const struct workrec *w = job_worker(j, base->members[i].worker_id);
        if (!w || w->state != WORKER_READY || w->away || w->installed != base->epoch)
            return false;
    }
    return base->n > 0;
}

/* The furthest step among the epoch's holders; *ret_reach: the furthest step reachable without a peer's data. */
static uint64_t furthest(const struct jobrec *j, uint64_t epoch, uint64_t *ret_reach)
{
    uint64_t step = 0, reach = 0;
    for (size_t i = 0; i < j->n_workers; i++) {
        const struct workrec *w = j->workers[i];
        if (!source_holds(w, epoch))
            continue;
        uint64_t at = w->installed == epoch ? w->last_step : 0; /* pending: the step where the epoch began */
        step = MAX(step, at);
        reach = MAX(reach, at + (w->installed == epoch && w->prepared));
    }
    titan_assert(reach >= step && reach <= step + 1); /* a prepared step adds one */
    *ret_reach = reach;
    return step;
}

/* Sets the members of the source, in its rank order, including those that are gone. */
static void set_holders(struct jobrec *j, uint64_t epoch)
{
    if (epoch && epoch == j->source.epoch)
        return; /* the previous epoch had the same source and was never installed */
    const struct kept_epoch *base = epoch == j->status.epoch ? NULL : kept_find(j, epoch);
    j->source.n_holders = !epoch ? 0 : base ? base->n : j->n_members;
    VEC_MUST_RESERVE(j->source.holders, j->source.cap_holders, j->source.n_holders + 1);
    for (size_t i = 0; i < j->source.n_holders; i++)
        j->source.holders[i] = base ? base->members[i].worker_id : j->rank_slots[i].worker_id;
}

void source_choose(struct jobrec *j)
{
    uint64_t reach = 0, epoch = newest_installed(j);
    /* A shard of the newest epoch may be lost with its holder, while the epoch before is whole. */
    const struct kept_epoch *base = kept_find(j, epoch), *before = base ? kept_find(j, base->source) : NULL;
    if (before && !all_hold(j, base) && all_kept(j, before))
        epoch = before->epoch;
    uint64_t step = furthest(j, epoch, &reach);
    const struct ckptrec *newest = j->n_ckpts ? &j->ckpts[0] : NULL;
    if (newest && newest->step > reach)
        epoch = 0; /* the epoch's holders have long been out of the run */
    titan_assert(epoch <= j->status.epoch);
    set_holders(j, epoch);
    j->source.epoch = epoch;
    core_set_string(&j->source.checkpoint, newest ? newest->path : "");
    if (epoch) {
        j->source.kind = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
        j->source.resume_step = step;
    } else {
        j->source.kind =
            newest ? TITAN__INTERNAL__STATE_SOURCE__STATE_CHECKPOINT : TITAN__INTERNAL__STATE_SOURCE__STATE_INIT;
        titan_assert(j->source.n_holders == 0);
        j->source.resume_step = newest ? newest->step : 0;
    }
}

uint32_t source_departing(const struct jobrec *j, struct workrec *const *members, uint32_t n, struct workrec **ret)
{
    uint32_t found = 0;
    for (uint32_t k = 0; k < n; k++)
        members[k]->chosen = true;
    for (size_t i = 0; i < j->source.n_holders; i++) {
        struct workrec *w = job_worker(j, j->source.holders[i]);
        if (w && !w->chosen && source_holds(w, j->source.epoch) && !MUTANT(DEPARTING_DROPPED))
            ret[found++] = w;
    }
    for (uint32_t k = 0; k < n; k++)
        members[k]->chosen = false;
    return found;
}

void source_installed(struct core *c, struct jobrec *j)
{
    j->n_departing = 0;
    kept_complete(j);
    resize_release(c, j);
    for (size_t i = 0; i < j->n_workers; i++)
        if (!job_rank_slot(j, j->workers[i]))
            j->workers[i]->installed = j->workers[i]->pending = 0;
}

static void count_recovery_source(struct core_counters *n, Titan__Internal__RecoverySource recovery_source)
{
    n->state_init += recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_INIT;
    n->state_checkpoint += recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_CHECKPOINT;
    n->state_memory += recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_MEMORY;
    n->state_replica += recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_REPLICA;
    n->state_buddy += recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_BUDDY;
}

static bool epoch_state_in_memory(int32_t recovery_source)
{
    return recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_MEMORY ||
           recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_REPLICA ||
           recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_BUDDY;
}

void source_ready(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__StateReady *m)
{
    if (j->state == JOB_CANCELLING) /* a repeated report: the progress is known */
        return;
    if (m->epoch != j->status.epoch || !job_member(j, w)) {
        c->counters.old_epoch += m->epoch < j->status.epoch;
        c->counters.unknown_rank += m->epoch >= j->status.epoch;
        return;
    }
    c->counters.duplicate += j->source.origin_known;
    if (!epoch_live(j) || j->source.origin_known)
        return;
    j->source.origin_known = true;
    j->source.origin = (struct epoch_origin){
        .recovery_source = (int32_t)m->recovery_source, .step = m->step, .params_hash = m->params_hash};
    count_recovery_source(&c->counters, m->recovery_source);
    recovery_ready(c, j);
    job_clock_state_ready(c, j);
    if (epoch_state_in_memory(m->recovery_source) && !MUTANT(STEP_FORGOTTEN))
        job_progress_reaches(j, m->step); /* a step that only lost ranks have committed is redone */
    else if (j->epoch_state == EPOCH_FORMING)
        job_progress_falls_back(j, m->step);
    if (!j->source.origin_reported) /* a worker repeats the report to each coordinator */
        emit_origin(c, j, m);
    j->source.origin_reported = true;
    store_status(c, j);
    source_installed(c, j);
    recovery_finish(c, j);
}

static void take(struct jobrec *j, uint32_t source, uint64_t epoch, uint64_t step, const char *checkpoint)
{
    j->source.kind = source;
    j->source.epoch = epoch;
    j->source.resume_step = step;
    core_set_string(&j->source.checkpoint, checkpoint);
}

static void take_holders(struct jobrec *j, const uint64_t *holders, size_t n)
{
    j->source.n_holders = n;
    VEC_MUST_RESERVE(j->source.holders, j->source.cap_holders, n + 1);
    if (n)
        memcpy(j->source.holders, holders, n * sizeof(*j->source.holders));
}

void source_take(struct jobrec *j, const Titan__Internal__FormEpoch *f)
{
    take_holders(j, f->state_holders, f->n_state_holders);
    take(j, f->source, f->source_epoch, f->resume_step, f->checkpoint_path);
}

void source_restore(struct jobrec *j, const struct core_saved_job *saved)
{
    const struct epoch *e = saved->epoch;
    take_holders(j, saved->holders, saved->n_holders);
    take(j, e->source, e->source_epoch, e->resume_step, e->checkpoint);
    j->source.origin_reported = e->has_origin;
}
