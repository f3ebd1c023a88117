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

void source_choose(struct jobrec *j)
{
    /* The newest epoch that a worker holds installed; 0 = none. No counted worker can still hold an epoch of unknown
     * members. */
    uint64_t epoch = 0;
    for (size_t i = 0; i < j->n_workers; i++) {
        const struct workrec *w = j->workers[i];
        const bool known =
            w->installed == j->status.epoch || w->installed == j->source.epoch || kept_find(j, w->installed);
        if (w->state == WORKER_READY && !w->away && known)
            epoch = MAX(epoch, w->installed);
    }
    /* The newest epoch may have lost a shard with its holder. All holders of the previous epoch may still have their
     * shards, because the newest epoch was not installed for them. Then no member has made a step in the newest epoch,
     * and both epochs are at the same step. */
    const struct kept_epoch *newest = kept_find(j, epoch), *before = newest ? kept_find(j, newest->source) : NULL;
    bool whole = true, before_whole = before && before->n > 0;
    for (uint32_t i = 0; newest && i < newest->n; i++) {
        const struct workrec *w = job_worker(j, newest->members[i].worker_id);
        whole &= w && source_holds(w, epoch);
    }
    for (uint32_t i = 0; before && i < before->n; i++) {
        const struct workrec *w = job_worker(j, before->members[i].worker_id);
        before_whole &= w && w->state == WORKER_READY && !w->away && w->installed == before->epoch;
    }
    if (!whole && before_whole)
        epoch = before->epoch;

    /* The furthest step among the epoch's holders; reach: the furthest step reachable without a peer's data. */
    uint64_t reach = 0, step = 0;
    for (size_t i = 0; i < j->n_workers; i++) {
        const struct workrec *w = j->workers[i];
        if (!source_holds(w, epoch))
            continue;
        const uint64_t at = w->installed == epoch ? w->last_step : 0; /* pending: the step where the epoch began */
        step = MAX(step, at);
        reach = MAX(reach, at + (w->installed == epoch && w->prepared));
    }
    titan_assert(reach >= step && reach <= step + 1); /* a prepared step adds one */
    const struct ckptrec *ckpt = j->n_ckpts ? &j->ckpts[0] : NULL;
    if (ckpt && ckpt->step > reach)
        epoch = 0; /* the epoch's holders have long been out of the run */
    titan_assert(epoch <= j->status.epoch);
    /* The holders are the members of the source, in its rank order; some may be gone. The holders do not change if the
     * previous epoch had the same source and was never installed. */
    if (!epoch || epoch != j->source.epoch) {
        const struct kept_epoch *base = epoch == j->status.epoch ? NULL : kept_find(j, epoch);
        j->source.n_holders = !epoch ? 0 : base ? base->n : j->n_members;
        VEC_MUST_RESERVE(j->source.holders, j->source.cap_holders, j->source.n_holders + 1);
        for (size_t i = 0; i < j->source.n_holders; i++)
            j->source.holders[i] = base ? base->members[i].worker_id : j->rank_slots[i].worker_id;
    }
    titan_assert(epoch || j->source.n_holders == 0);
    j->source.epoch = epoch;
    core_set_string(&j->source.checkpoint, ckpt ? ckpt->path : "");
    j->source.kind = epoch  ? TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY
                     : ckpt ? TITAN__INTERNAL__STATE_SOURCE__STATE_CHECKPOINT
                            : TITAN__INTERNAL__STATE_SOURCE__STATE_INIT;
    j->source.resume_step = epoch ? step : ckpt ? ckpt->step : 0;
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

void source_left(struct core *c, struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_departing; i++)
        if (!j->rank_slots[j->n_members + i].finished)
            return;
    if (j->source.origin_known)
        source_installed(c, j);
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
    const bool memory = m->recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_MEMORY,
               replica = m->recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_REPLICA,
               buddy = m->recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_BUDDY;
    c->counters.state_init += m->recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_INIT;
    c->counters.state_checkpoint += m->recovery_source == TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_CHECKPOINT;
    c->counters.state_memory += memory;
    c->counters.state_replica += replica;
    c->counters.state_buddy += buddy;
    recovery_ready(c, j);
    job_clock_state_ready(c, j);
    if ((memory || replica || buddy) && !MUTANT(STEP_FORGOTTEN))
        job_progress_reaches(j, m->step); /* a step that only lost ranks have committed is redone */
    else if (j->epoch_state == EPOCH_FORMING)
        job_progress_falls_back(j, m->step);
    if (!j->source.origin_reported) /* a worker repeats the report to each coordinator */
        emit_origin(c, j, m);
    j->source.origin_reported = true;
    store_status(c, j);
    kept_complete(j);
    source_left(c, j);
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
