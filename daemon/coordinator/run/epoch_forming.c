/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/epoch_forming.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rng.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/checkpoints.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/job_end.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/job_progress.h"
#include "daemon/coordinator/run/quorum.h"
#include "daemon/coordinator/run/recovery.h"
#include "daemon/coordinator/run/recovery_source.h"
#include "daemon/coordinator/run/resize.h"
#include "daemon/coordinator/run/restart_budget.h"

void epoch_revoke(struct core *c, struct jobrec *j, const char *why)
{
    titan_assert(epoch_live(j) && !phase_stops(j));
    if (j->state == JOB_RUNNING || j->state == JOB_RESIZING)
        move_job(c, j, JOB_RECOVERING, why);
    resize_over(j);
    recovery_revoked(c, j);
    job_progress_spare(c, j);
    move_epoch(c, j, EPOCH_REVOKED, why);
    store_status(c, j);
    job_clock_limit(j, c->now.mono_ms + job_clock_quiesce_ms(c, j));
    send_to_members(c, j, send_revoke);
    for (uint32_t i = 0; i < j->n_members; i++) {
        struct workrec *w = j->rank_slots[i].worker;
        if (w && j->rank_slots[i].finished && w->state != WORKER_STOPPING)
            worker_stop(c, w, 0, "the run goes on without it");
    }
}

/* Collects candidates in rank order: existing members, then joiners. Leaving workers are collected only if `leaving` is
 * set. */
static uint32_t collect_some(struct jobrec *j, bool leaving, struct workrec **ret, uint32_t *ret_survivors)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_members; i++) {
        struct workrec *w = j->rank_slots[i].worker;
        if (w && w->state == WORKER_READY && !w->away && w->quiesced && !j->rank_slots[i].finished &&
            worker_displaced(w) == leaving)
            ret[n++] = w;
    }
    *ret_survivors += n;
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        if (!job_member(j, w) && w->state == WORKER_READY && !w->away && worker_displaced(w) == leaving)
            ret[n++] = w;
    }
    return n;
}

struct place {
    struct workrec *worker;
    uint32_t at;
};

static int earlier_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    uint32_t m = x->worker->node->first, n = y->worker->node->first;
    return m != n ? (m > n) - (m < n) : (x->at > y->at) - (x->at < y->at);
}

void epoch_set_id(struct jobrec *j, const uint8_t comm_id[16], const uint8_t key[MAC_BYTES])
{
    memcpy(j->epoch_id.comm_id, comm_id, sizeof(j->epoch_id.comm_id));
    j->epoch_id.keyed = key != NULL;
    if (key)
        memcpy(j->epoch_id.key, key, sizeof(j->epoch_id.key));
}

static void form(struct core *c, struct jobrec *j, struct workrec **members, uint32_t n)
{
    const uint64_t number = quorum_number(c, j);
    titan_assert(j->phase == PHASE_ASSEMBLING || j->phase == PHASE_PAUSING);
    for (uint32_t i = 0; i < n; i++)
        titan_assert(members[i]->job == j && members[i]->state == WORKER_READY && !members[i]->away);
    if (!number) {
        job_fail(c, j, "the numbers of its epochs are used up");
        return;
    }
    /* Ranks of a node stand next to each other. Then one offset from owner to buddy replica puts most copies on another
     * node (worker/elastic/buddy.h). The innermost axes of the mesh stay within nodes. Otherwise the members keep their
     * order. */
    _cleanup_free_ struct place *places = core_alloc((n + 1) * sizeof(*places));
    for (uint32_t i = 0; i < n; i++)
        members[i]->node->first = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct noderec *node = members[i]->node;
        node->first = MIN(node->first, i);
        places[i] = (struct place){.worker = members[i], .at = i};
    }
    qsort(places, n, sizeof(*places), earlier_place);
    for (uint32_t i = 0; i < n; i++)
        members[i] = places[i].worker;

    if (j->epoch_state == EPOCH_RUNNING)
        move_epoch(c, j, EPOCH_ENDED, NULL);
    source_choose(j);
    /* No number is used twice, and no state is from the future. */
    titan_assert(number > j->status.epoch && number > j->source.epoch);
    if (j->source.epoch && !j->source.origin_known && j->source.resume_step + 1 < j->status.step) {
        /* the last epoch began from an older state, and no live worker could report this */
        job_progress_falls_back(j, j->source.resume_step);
        store_status(c, j);
    }
    _cleanup_free_ struct workrec **departing = core_alloc((j->source.n_holders + 1) * sizeof(struct workrec *));
    uint32_t n_departing = source_departing(j, members, n, departing);
    enter_epoch(j, number, n);
    titan_assert(world_set_has(&j->spec.worlds, n));
    job_new_rank_slots(j, n, n_departing);
    for (uint32_t i = 0; i < n + n_departing; i++) {
        struct workrec *w = i < n ? members[i] : departing[i - n];
        job_set_rank_slot(j, i, w->id, w);
        worker_enters(w, number);
    }
    kept_formed(j);

    /* The epoch's id and key are drawn anew. */
    const uint64_t about[] = {j->id, number};
    uint32_t words[4];
    uint8_t comm_id[sizeof(words)], key[MAC_BYTES];
    rng_philox(rng_key(c->options.seed, "communicator"), j->id, number, words);
    memcpy(comm_id, words, sizeof(words));
    if (c->secret_set)
        mac_derive(c->secret, "titan epoch", about, sizeof(about), key);
    epoch_set_id(j, comm_id, c->secret_set ? key : NULL);
    if (j->source.kind != TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY)
        job_progress_falls_back(j, j->source.resume_step);
    emit_job_waits(c, j, 0);
    job_clock_formed(c, j);
    recovery_formed(c, j);
    store_epoch(c, j, FORMED_HERE);
    store_status(c, j);
    send_to_members(c, j, send_form);
}

/* True: the worker belongs to a quorum configuration but not to the current epoch, and has not reported its state. For
 * example an acting leader went on without it. */
static bool holds_unheard(struct jobrec *j, const struct workrec *w)
{
    return w->state == WORKER_READY && !w->away && !w->quiesced && !job_rank_slot(j, w) && kept_counts(j, w->id);
}

/* Forming needs two things. Members have left the old epoch, and the other holders of its state have reported. If a
 * returned worker blocks either, the job waits for the worker no longer than it waited for the members. */
static bool all_have_left(struct core *c, struct jobrec *j)
{
    bool quiet = true, received = true, reachable = false; /* reachable: a silent holder is on a connected node */
    for (uint32_t i = 0; i < j->n_members + j->n_departing; i++) {
        const struct workrec *w = j->rank_slots[i].worker;
        /* absent members of an acting leader's epoch are on their way here */
        const bool away = w && w->away && j->epoch_state == EPOCH_REVOKED;
        if (w && w->missing) /* the worker has ended; whether it had finished is reported after the registration */
            quiet = false;
        if (w && w->state != WORKER_STOPPING && !away && !w->quiesced && !j->rank_slots[i].finished)
            quiet = false;
    }
    for (size_t i = 0; i < j->n_workers; i++)
        if (holds_unheard(j, j->workers[i])) {
            received = false;
            reachable |= j->workers[i]->node->session != 0;
        }
    if ((reachable || (!quiet && epoch_leaving(j))) && j->clock.epoch_deadline == INT64_MAX)
        job_clock_limit(j, c->now.mono_ms + job_clock_quiesce_ms(c, j));
    return quiet && received;
}

void epoch_try_form(struct core *c, struct jobrec *j)
{
    /* A registration may be old, because the agent may have formed an epoch without the coordinator while the
     * registration was under way. The agent reports such an epoch before its first heartbeat after the
     * acknowledgement. */
    for (size_t i = 0; i < j->n_workers && c->options.leader_lease_ms; i++)
        if (j->workers[i]->node->session && j->workers[i]->node->unconfirmed)
            return;
    if (c->stale || !all_have_left(c, j))
        return;
    job_clock_limit(j, INT64_MAX);
    recovery_quiet(c, j);
    _cleanup_free_ struct workrec **members = core_alloc((j->n_workers + 1) * sizeof(*members));
    uint32_t survivors = 0;
    const uint32_t kept = collect_some(j, false, members, &survivors);
    const uint32_t all = kept + collect_some(j, true, members + kept, &survivors);
    titan_assert(kept <= all && all <= j->n_workers && survivors <= all);
    /* A leaving worker stays if the job does not work without it. */
    const uint32_t without = size_world(j, kept), world = without ? without : size_world(j, all);
    if (!quorum_decides(c, j))
        return;
    uint32_t need = size_least(j), have = size_staying(j);
    if (need > have) /* remaining and starting workers make no legal world */
        emit_job_waits(c, j, need - have);
    if (survivors < size_min(j) && job_count_workers(j, WORKER_STARTING) > 0)
        return;
    if (world == 0) {
        if (j->n_workers == 0)
            end_run(c, j, RUN_LOST, "no worker is left");
        else if (j->clock.starve_at == INT64_MAX)
            job_clock_starves(j, c->now.mono_ms + c->options.starve_ms);
        return;
    }
    if (j->broken && !j->charged) {
        emit_event(c, j, (struct emit){.type = "epoch.failed", .message = "the members could not go on together"});
        budget_charge(c, j, LOSS_EPOCH, NULL, "the members could not go on together");
        if (job_final(j))
            return;
    }
    titan_assert(world <= j->n_workers && size_world(j, world) == world);
    form(c, j, members, world);
}

void epoch_formed(struct core *c, struct jobrec *j)
{
    if (j->epoch_state != EPOCH_FORMING)
        return;
    move_epoch(c, j, EPOCH_RUNNING, NULL);
    if (j->trouble.reading)
        checkpoints_well(j);
    recovery_stepped(c, j);
    job_clock_stepped(j);
    kept_trained(j);
    source_installed(c, j);
    if (!j->status.started_at_ms)
        j->status.started_at_ms = c->now.wall_ms - (int64_t)j->progress.step_ms;
    move_job(c, j, JOB_RUNNING, "");
    titan_assert(epoch_live(j) && j->n_departing == 0);
    job_clock_moved_on(c, j);
    if (j->recovery.lost)
        recovery_finish(c, j);
    else
        resize_finished(c, j);
    resize_over(j);
    if (j->n_members >= j->size.claim)
        budget_forgiven(j);
}

void epoch_exclude_laggards(struct core *c, struct jobrec *j)
{
    for (uint32_t i = 0; i < j->n_members + j->n_departing; i++) {
        struct workrec *w = j->rank_slots[i].worker;
        if (!w || w->away || w->quiesced || w->state == WORKER_STOPPING)
            continue;
        /* The node has not registered since our start, so the worker was never told to leave, and it may hold the only
         * state. The worker is kept until the node returns or is lost. */
        if (w->node->awaited && w->node->state == NODE_READY)
            continue;
        worker_set_exit_cause(w, j->rank_slots[i].finished ? LOSS_NONE : LOSS_HANG);
        if (w->exit_cause)
            epoch_charged(j); /* the worker's end will cost the restart */
        worker_stop(c, w, 0, "it did not leave the epoch in time");
    }
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        if (!holds_unheard(j, w) || !w->node->session)
            continue;
        worker_set_exit_cause(w, LOSS_HANG);
        worker_stop(c, w, 0, "it did not say in time what it holds");
    }
}
