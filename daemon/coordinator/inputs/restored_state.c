/* SPDX-License-Identifier: Apache-2.0 */
/* Restores the core's records from the store. */
#include "daemon/coordinator/records/core_record.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/cluster/quarantine.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/epoch_forming.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/job_end.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/job_progress.h"
#include "daemon/coordinator/run/recovery.h"
#include "daemon/coordinator/run/recovery_source.h"
#include "daemon/coordinator/run/requeue.h"
#include "daemon/coordinator/run/restart_budget.h"
#include "daemon/coordinator/sched/maintenance.h"

void core_restore_node(struct core *c, const struct node *saved, struct core_time now)
{
    struct noderec *n = core_add_node(c, saved->name, saved->state);
    node_is(n, saved);
    n->seen_wall = saved->last_seen_ms;
    node_awaited(c, n, now);
}

void core_restore_policy(struct core *c, const struct node_policy *saved, struct core_time now)
{
    struct noderec *n = core_find_node(c, saved->name);
    c->now = now;
    if (!n)
        return;
    maintenance_restore(c, n, saved);
    quarantine_restore(c, n);
}

static void restore_epoch(struct core *c, struct jobrec *j, const struct core_saved_job *saved)
{
    const struct epoch *e = saved->epoch;
    j->epoch_state = MUTANT(EPOCH_REUSED) && e->state == EPOCH_FORMING ? EPOCH_REVOKED : e->state;
    j->status.epoch = e->number - (MUTANT(EPOCH_REUSED) && e->state == EPOCH_FORMING);
    source_restore(j, saved);
    uint8_t comm_id[sizeof(j->epoch_id.comm_id)];
    memcpy(comm_id, e->comm_id, sizeof(comm_id));
    comm_id[0] ^= MUTANT(EPOCH_REDRAWN);
    epoch_set_id(j, comm_id, e->keyed ? e->key : NULL);
    job_new_rank_slots(j, e->world_size, e->state == EPOCH_RUNNING ? 0 : e->departing);
    for (uint32_t i = 0; i < j->n_members + j->n_departing; i++)
        job_set_rank_slot(j, i, e->workers[i], job_worker(j, e->workers[i]));
    if (saved->n_bases == 0)
        kept_formed(j);
    for (size_t b = 0; b < saved->n_bases; b++) {
        const struct core_saved_base *base = &saved->bases[b];
        struct kept_member *members = kept_add(j, base->epoch, base->source, base->n);
        /* the stored epochs come in the order of their numbers */
        titan_assert(j->n_kept == b + 1 && j->kept[b].epoch == base->epoch);
        j->kept[b].complete = base->complete;
        for (uint32_t i = 0; i < base->n; i++) {
            const struct workrec *w = job_worker(j, base->workers[i]);
            members[i] =
                (struct kept_member){.worker_id = base->workers[i], .node = w ? w->node : NULL, .released = !w};
            for (size_t k = 0; k < saved->n_lost; k++)
                if (saved->lost[k].id == base->workers[i])
                    members[i] = (struct kept_member){.worker_id = base->workers[i],
                                                      .node = core_find_node(c, saved->lost[k].node)};
        }
    }
    if (e->state == EPOCH_FORMING)
        job_clock_limit(j, c->now.mono_ms + c->options.adopt_ms + c->options.form_ms);
    else if (e->state == EPOCH_REVOKED)
        job_clock_limit(j, c->now.mono_ms + c->options.adopt_ms + c->options.quiesce_ms);
    else if (j->state == JOB_RESIZING)
        job_clock_limit(j, c->now.mono_ms + c->options.adopt_ms + c->options.pause_ms);
    else if (e->state == EPOCH_RUNNING)
        job_clock_moved_on(c, j);
}

void core_restore_job(struct core *c, const struct core_saved_job *saved, struct core_time now)
{
    c->now = now;
    struct jobrec *j = core_add_job(c, &saved->job);
    j->run = saved->run;
    j->run_active = saved->run_active;
    size_claim(j, j->spec.min_workers);
    for (size_t i = 0; i < saved->n_workers; i++) {
        const struct worker *is = &saved->workers[i];
        struct noderec *node = core_expect_node(c, is->node);
        const int64_t more = is->state == WORKER_STARTING ? c->options.start_ms : c->options.stop_ms;
        job_new_worker(j,
                       (struct workrec){.id = is->id,
                                        .node = node,
                                        .state = is->state,
                                        .pid = is->pid,
                                        .away = node->state == NODE_LOST,
                                        .unseen = c->stale,
                                        .started = is->pid != 0 || is->state == WORKER_READY,
                                        .deadline = c->now.mono_ms + c->options.adopt_ms + more},
                       is->address);
    }
    if (saved->n_workers)
        strncpy(j->device, j->workers[0]->node->device, sizeof(j->device) - 1);
    if (saved->epoch)
        restore_epoch(c, j, saved);
    if (j->phase != PHASE_QUEUED) {
        move_phase(j, j->state == JOB_CANCELLING      ? PHASE_CANCELLING
                      : j->epoch_state == EPOCH_ENDED ? PHASE_FINISHING
                                                      : phase_by_epoch(j));
        if (j->epoch_state != EPOCH_NONE)
            requeue_restored(j);
    }
    /* While the job was being queued again, an earlier coordinator knew acting leaders' epoch numbers that the store
     * lacks. */
    j->quorum.above_leaders =
        c->options.leader_lease_ms && j->status.epoch && (j->phase == PHASE_QUEUED || j->phase == PHASE_REQUEUEING);
    /* The store lacks the grace of the job's workers, which may be writing their last checkpoint. So they are not
     * hurried: the grace that their agents know holds. */
    if (phase_ends(j))
        job_end_because(j, LAST_CHECKPOINT_MS, NULL);
    for (size_t i = 0; i < j->n_workers; i++)
        if (j->workers[i]->state == WORKER_STOPPING)
            worker_grant(j->workers[i], j->stop.grace_ms);
    size_claim(j, MAX(j->size.claim, MAX(j->n_members, (uint32_t)saved->n_workers)));
    j->ckpts = core_alloc((saved->n_checkpoints + 1) * sizeof(*j->ckpts));
    j->n_ckpts = j->cap_ckpts = saved->n_checkpoints;
    for (size_t i = 0; i < saved->n_checkpoints; i++)
        j->ckpts[i] = (struct ckptrec){.step = saved->checkpoints[i].step,
                                       .epoch = saved->checkpoints[i].epoch,
                                       .path = core_strdup(saved->checkpoints[i].path),
                                       .at_ms = saved->checkpoints[i].committed_at_ms};
    if (j->state == JOB_PENDING && saved->job.reason && strncmp(saved->job.reason, "waiting", 7) != 0)
        job_end_because(j, j->stop.grace_ms, saved->job.reason);
    for (size_t i = 0; i < saved->n_losses; i++)
        budget_restore(c, j, &saved->losses[i]);
    if (j->state == JOB_RECOVERING)
        recovery_restored(c, j);
    job_progress_restored(j);
    c->slots_changed = true;
}
