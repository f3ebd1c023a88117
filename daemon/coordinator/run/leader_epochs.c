/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/leader_epochs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/cluster/fencing.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/epoch_forming.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/plausible.h"
#include "daemon/coordinator/run/recovery.h"
#include "daemon/coordinator/run/recovery_source.h"
#include "daemon/coordinator/run/resize.h"
#include "daemon/common/epochs.h"

#define KEPT_MAX 64 /* most kept epochs of a job, including leaders' epochs below the current epoch */

static bool all_known(const struct core *c, struct jobrec *j, Titan__Internal__Member *const *list, size_t n,
                      leader_epochs_knows *knows)
{
    for (size_t i = 0; i < n; i++)
        if (!knows(c, j, list[i]))
            return false;
    return true;
}

bool leader_epochs_sound(const struct core *c, struct jobrec *j, const Titan__Internal__FormEpoch *f,
                         leader_epochs_knows *knows)
{
    return f->job_id == j->id && f->comm_id.len == sizeof(j->epoch_id.comm_id) &&
           (f->key.len == 0 || f->key.len == sizeof(j->epoch_id.key)) && f->n_members > 0 &&
           f->n_members <= JOB_WORKERS_MAX && f->n_departing <= JOB_WORKERS_MAX &&
           f->n_state_holders <= JOB_WORKERS_MAX && f->source_epoch < f->epoch && epoch_workers_distinct(f) &&
           epoch_holders_distinct(f) && world_set_has(&j->spec.worlds, (uint32_t)f->n_members) &&
           f->n_departing <= j->spec.max_workers && all_known(c, j, f->members, f->n_members, knows) &&
           all_known(c, j, f->departing, f->n_departing, knows);
}

/* Does the store know the worker, as a present worker or as a member of a kept epoch? */
static bool knows(const struct core *c, struct jobrec *j, const Titan__Internal__Member *m)
{
    (void)c;
    return job_worker(j, m->worker_id) || kept_lists(j, m->worker_id);
}

/* The workers that hold the state of epoch f may be members of an older epoch. */
static bool sound(const struct core *c, struct jobrec *j, const Titan__Internal__FormEpoch *f)
{
    bool holders_known = true;
    for (size_t i = 0; i < f->n_state_holders && holders_known; i++) {
        const uint64_t id = f->state_holders[i];
        holders_known = job_worker(j, id) || kept_lists(j, id);
        for (size_t k = 0; k < j->source.n_holders && !holders_known; k++)
            holders_known = j->source.holders[k] == id;
    }
    return (leader_epochs_sound(c, j, f, knows) && holders_known) || MUTANT(LEADER_EPOCH_UNSOUND);
}

void leader_epochs_take(struct core *c, struct jobrec *j, const Titan__Internal__FormEpoch *f, const char *leader)
{
    titan_assert(f->job_id == j->id && f->n_members > 0 && f->epoch > j->status.epoch);
    const char *why = leader ? "its members went on without the coordinator" : "its members are further than the store";
    if (j->state == JOB_RUNNING || j->state == JOB_RESIZING)
        move_job(c, j, JOB_RECOVERING, why);
    resize_over(j);
    if (leader)
        recovery_begin(c, j);
    else
        recovery_clear(j); /* losses from before the restore no longer matter */
    if (epoch_live(j)) {
        send_to_members(c, j, send_revoke);
        move_epoch(c, j, EPOCH_REVOKED, why);
    }
    enter_epoch(j, f->epoch, (uint32_t)f->n_members);
    job_new_rank_slots(j, (uint32_t)f->n_members, (uint32_t)f->n_departing);
    for (uint32_t i = 0; i < j->n_members + j->n_departing; i++) {
        const uint64_t id = i < f->n_members ? f->members[i]->worker_id : f->departing[i - f->n_members]->worker_id;
        job_set_rank_slot(j, i, id, job_worker(j, id));
    }
    source_take(j, f);
    epoch_set_id(j, f->comm_id.data, f->key.len == sizeof(j->epoch_id.key) ? f->key.data : NULL);
    kept_formed(j);
    job_clock_taken(c, j);
    /* the other members' agents are registering too */
    j->quorum.adopt_until = c->now.mono_ms + c->options.reachable_ms;
    recovery_formed(c, j);
    emit_job_waits(c, j, 0);
    emit_job_decided(c, j);
    store_epoch(c, j, leader);
    store_status(c, j);
}

/* Returns the job if it is in the reported epoch now. */
static struct jobrec *take_report(struct core *c, struct noderec *n, const Titan__Internal__LeaderEpoch *d)
{
    const Titan__Internal__FormEpoch *f = d->epoch;
    struct jobrec *j = f ? core_find_job(c, f->job_id) : NULL;
    if (!j || job_final(j))
        return NULL;
    if (!plausible_epoch(c, j, f->epoch) || !plausible_member(j, n, f) || !plausible_step(j, f->resume_step) ||
        (*f->checkpoint_path && !plausible_path(j, UINT64_MAX, f->checkpoint_path))) {
        fence_implausible(c, n, j->id, batch_printf(c->out, "it cannot have been told of epoch %" PRIu64, f->epoch));
        return NULL;
    }
    if (j->phase == PHASE_QUEUED || phase_stops(j)) {
        if (f->epoch > j->status.epoch && sound(c, j, f)) /* the epoch is of no use, but its number is used up */
            j->quorum.refused_epoch = MAX(j->quorum.refused_epoch, f->epoch);
        return NULL;
    }
    bool same = f->epoch == j->status.epoch && f->comm_id.len == sizeof(j->epoch_id.comm_id) &&
                memcmp(f->comm_id.data, j->epoch_id.comm_id, sizeof(j->epoch_id.comm_id)) == 0;
    if (same || MUTANT(LEADER_EPOCH_UNHEARD)) {
        c->counters.duplicate++;
        return same ? j : NULL;
    }
    const bool between = f->epoch < j->status.epoch && j->n_kept > 0 && f->epoch > j->kept[kept_first(j)].epoch;
    if (f->epoch <= j->status.epoch && (!between || j->n_kept >= KEPT_MAX || kept_find(j, f->epoch))) {
        c->counters.old_epoch++; /* the run has gone on without this epoch */
        return NULL;
    }
    if (!sound(c, j, f) || !j->run_active) {
        c->counters.unknown_rank++;
        return NULL;
    }
    if (between) {
        /* This epoch was formed after the current epoch was stored and before the current one reached a member. So it
         * may hold newer state than the current epoch starts from. With a restored store the current number is above
         * all numbers of leaders. */
        struct kept_member *members = kept_add(j, f->epoch, f->source_epoch, (uint32_t)f->n_members);
        for (size_t i = 0; i < f->n_members; i++) {
            const struct workrec *w = job_worker(j, f->members[i]->worker_id);
            members[i] =
                (struct kept_member){.worker_id = f->members[i]->worker_id, .node = w ? w->node : NULL, .released = !w};
        }
        if (epoch_live(j))
            epoch_revoke(c, j, "its members went on without the coordinator");
        return NULL;
    }
    leader_epochs_take(c, j, f, d->leader && *d->leader ? d->leader : "?");
    return j;
}

/* The leader's workers have been sent the epoch. Their reports about earlier epochs, which may arrive later, are
 * outdated. */
void leader_epochs_report(struct core *c, struct noderec *n, const Titan__Internal__LeaderEpoch *d)
{
    struct jobrec *j = take_report(c, n, d);
    for (uint32_t i = 0; j && i < j->n_members + j->n_departing; i++) {
        struct workrec *w = j->rank_slots[i].worker;
        if (!w || w->node != n || w->epoch >= j->status.epoch)
            continue;
        worker_enters(w, j->status.epoch);
    }
}

/* Takes the reported epochs in the order of their numbers. */
void leader_epochs_register(struct core *c, struct noderec *n, const Titan__Internal__AgentRegistration *m)
{
    uint64_t done = 0;
    for (size_t round = 0; round < m->n_leader_epochs; round++) {
        const Titan__Internal__LeaderEpoch *next = NULL;
        for (size_t i = 0; i < m->n_leader_epochs; i++) {
            const Titan__Internal__LeaderEpoch *d = m->leader_epochs[i];
            if (d->epoch && d->epoch->epoch > done && (!next || d->epoch->epoch < next->epoch->epoch))
                next = d;
        }
        if (!next)
            return;
        done = next->epoch->epoch;
        for (size_t i = 0; i < m->n_leader_epochs; i++)
            if (m->leader_epochs[i]->epoch && m->leader_epochs[i]->epoch->epoch == done)
                (void)take_report(c, n, m->leader_epochs[i]);
    }
}

struct jobrec *leader_epochs_refused(struct core *c, struct noderec *n, const Titan__Internal__EpochRefused *m)
{
    struct jobrec *j = core_find_job(c, m->job_id);
    c->counters.epoch_refused++;
    if (!j || m->epoch != j->status.epoch || !epoch_live(j) || m->seen_epoch < m->epoch)
        return NULL;
    if (m->seen_epoch <= j->quorum.refused_epoch)
        return NULL;
    if (!plausible_epoch(c, j, m->seen_epoch) || !plausible_part(j, n)) {
        fence_implausible(c, n, j->id, batch_printf(c->out, "it cannot have seen epoch %" PRIu64, m->seen_epoch));
        return NULL;
    }
    j->quorum.refused_epoch = m->seen_epoch;
    emit_event(
        c, j,
        (struct emit){.type = "epoch.refused",
                      .message = batch_printf(c->out, "node %s has promised or accepted epoch %llu: not epoch %llu",
                                              n->name, (unsigned long long)m->seen_epoch, (unsigned long long)m->epoch),
                      .node = n,
                      .detail = batch_printf(c->out, "{\"seen_epoch\":%llu}", (unsigned long long)m->seen_epoch)});
    epoch_failed(j, true); /* no worker's fault */
    return j;
}
