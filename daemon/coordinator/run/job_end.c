/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/job_end.h"

#include "base/mutant.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_queue.h"

void worker_stop(struct core *c, struct workrec *w, uint32_t grace_ms, const char *reason)
{
    titan_assert(w->job && w->node && reason);
    if (w->state != WORKER_STOPPING) {
        move_worker(c, w, WORKER_STOPPING, NULL, false, reason);
        /* the returning slots, together with slots of other jobs, may suffice for the first job in the queue */
        c->slots_changed = true;
    }
    w->deadline = c->now.mono_ms + grace_ms + c->options.stop_ms;
    titan_assert(w->state == WORKER_STOPPING);
    send_stop(c, w->node->session, w->job->id, w->id, grace_ms, reason);
}

void job_stop_all(struct core *c, struct jobrec *j, uint32_t grace_ms, const char *reason)
{
    for (size_t i = 0; i < j->n_workers; i++)
        if (j->workers[i]->state != WORKER_STOPPING && !(MUTANT(CANCEL_LEAVES) && i == 0))
            worker_stop(c, j->workers[i], grace_ms, reason);
}

void job_end(struct core *c, struct jobrec *j, enum job_state to, const char *reason)
{
    titan_assert(sm_final(&job_sm, (int)to) && (to == JOB_FAILED || j->n_workers == 0));
    if (epoch_live(j))
        move_epoch(c, j, to == JOB_FAILED ? EPOCH_REVOKED : EPOCH_ENDED, NULL);
    end_run(c, j, to == JOB_COMPLETED ? RUN_COMPLETED : to == JOB_CANCELLED ? RUN_CANCELLED : RUN_FAILED, reason);
    j->status.finished_at_ms = c->now.wall_ms;
    if (j->state == JOB_PENDING) {
        queue_remove(c, j);
        core_list_append(&c->active, &c->active_last, j);
    }
    move_job(c, j, to, reason);
    c->slots_changed = true;
}

void job_fail(struct core *c, struct jobrec *j, const char *reason)
{
    bool live = epoch_live(j);
    job_end(c, j, JOB_FAILED, reason);
    if (live)
        send_to_members(c, j, send_revoke);
    job_stop_all(c, j, 0, "the job has failed");
}

void job_cancel(struct core *c, struct jobrec *j, const char *reason, uint32_t grace_ms)
{
    titan_assert(!job_final(j));
    const char *why = reason && *reason ? reason : "asked for";
    if (j->state == JOB_CANCELLING)
        return;
    if (j->state == JOB_PENDING) {
        job_end(c, j, JOB_CANCELLED, why);
        return;
    }
    job_end_because(j, grace_ms, why);
    move_job(c, j, JOB_CANCELLING, why);
    job_stop_all(c, j, grace_ms, why);
}

void job_end_because(struct jobrec *j, uint32_t grace_ms, const char *why)
{
    j->stop.grace_ms = grace_ms;
    if (why)
        core_set_string(&j->stop.why, why);
}

void worker_set_exit_cause(struct workrec *w, enum loss_cause cause)
{
    titan_assert((unsigned)cause < LOSS_CAUSES);
    w->exit_cause = cause;
}

void worker_grant(struct workrec *w, int64_t ms)
{
    w->deadline += ms;
}
