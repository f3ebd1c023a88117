/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/requeue.h"

#include <string.h>

#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/checkpoints.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/job_end.h"
#include "daemon/coordinator/run/recovery.h"
#include "daemon/coordinator/run/resize.h"
#include "daemon/coordinator/run/restart_budget.h"

bool requeue_begin(struct jobrec *j, const char *why)
{
    if (j->phase == PHASE_QUEUED || phase_ends(j) || j->requeue)
        return false;
    j->requeue = true;
    job_end_because(j, j->stop.grace_ms, why);
    return true;
}

void requeue_advance(struct core *c, struct jobrec *j)
{
    if (!j->requeue || phase_ends(j))
        return;
    if ((epoch_live(j) && epoch_done(j)) || (j->n_workers == 0 && j->n_ckpts && j->ckpts[0].step >= j->spec.steps)) {
        j->requeue = false; /* the job has made its last step */
        if (j->phase == PHASE_REQUEUEING)
            move_phase(j, phase_by_epoch(j));
        return;
    }
    /* Between two epochs the newest steps may be only in memory. So the next epoch has to write the checkpoint. */
    bool may_stop = j->epoch_state != EPOCH_RUNNING && j->source.kind != TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    for (size_t i = 0; i < j->n_workers; i++)
        may_stop &= !j->workers[i]->installed && !j->workers[i]->pending;
    may_stop |= j->state == JOB_RUNNING || j->n_workers == 0;
    if (j->phase != PHASE_REQUEUEING && may_stop) {
        const char *why = batch_strdup(c->out, j->stop.why);
        move_phase(j, PHASE_REQUEUEING);
        j->must_checkpoint = true;
        /* Without a running epoch there is nothing new to write. */
        job_end_because(j, j->epoch_state == EPOCH_RUNNING ? LAST_CHECKPOINT_MS : 0, NULL);
        job_clock_limit(j, INT64_MAX);
        job_clock_starves(j, INT64_MAX);
        emit_job_blocked(c, j, batch_printf(c->out, "stops for now: %s", why));
        job_stop_all(c, j, j->stop.grace_ms, why);
        titan_assert(size_staying(j) == 0);
    }
    if (j->phase != PHASE_REQUEUEING || j->n_workers > 0)
        return;

    const char *lost = checkpoints_lost(c, j, j->must_checkpoint);
    if (lost)
        job_end_because(j, j->stop.grace_ms, batch_printf(c->out, "%s; %s", j->stop.why, lost));
    const char *why = batch_strdup(c->out, j->stop.why);
    checkpoints_well(j); /* the next run starts afresh */
    if (epoch_live(j))
        move_epoch(c, j, EPOCH_REVOKED, why);
    end_run(c, j, RUN_CANCELLED, why);
    j->requeue = j->must_checkpoint = false;
    recovery_clear(j);
    job_clock_limit(j, INT64_MAX);
    job_clock_starves(j, INT64_MAX);
    budget_requeued(j);
    resize_over(j);
    size_limit(j, 0, 0);
    j->status.preemptions++;
    core_list_remove(&c->active, &c->active_last, j);
    queue_add(c, j);
    move_job(c, j, JOB_PENDING, why);
    titan_assert(j->phase == PHASE_QUEUED && !j->run_active);
    c->slots_changed = true;
}

void requeue_restored(struct jobrec *j)
{
    if (j->phase == PHASE_QUEUED || phase_ends(j) || j->n_workers == 0 || size_staying(j) > 0)
        return;
    move_phase(j, PHASE_REQUEUEING);
    j->requeue = j->must_checkpoint = true;
    job_end_because(j, LAST_CHECKPOINT_MS, "its workers were being stopped when the coordinator restarted");
}
