/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/worker_reports.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/cluster/fencing.h"
#include "daemon/coordinator/cluster/quarantine.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/run/checkpoints.h"
#include "daemon/coordinator/run/epoch_forming.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/job_end.h"
#include "daemon/coordinator/run/plausible.h"
#include "daemon/coordinator/run/job_progress.h"
#include "daemon/coordinator/run/recovery.h"
#include "daemon/coordinator/run/recovery_source.h"
#include "daemon/coordinator/run/worker_end.h"

static enum loss_cause cause_from_report(const Titan__Internal__WorkerExited *x)
{
    switch (x->cause) {
    case TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NONE: /* an orderly exit without a request: the agent was silent for its
                                                     lease */
        return x->exit_code == 0 && x->signal == 0 ? LOSS_NODE : LOSS_CRASH;
    case TITAN__INTERNAL__EXIT_CAUSE__CAUSE_OUT_OF_MEMORY:
        return LOSS_OOM;
    case TITAN__INTERNAL__EXIT_CAUSE__CAUSE_HANG:
        return LOSS_HANG;
    case TITAN__INTERNAL__EXIT_CAUSE__CAUSE_FAULTY:
        return MUTANT(FAULTY_CHARGED) ? LOSS_CRASH : LOSS_FAULTY;
    default:
        return LOSS_CRASH;
    }
}

static void worker_ready(struct core *c, struct workrec *w, const char *address)
{
    w->started = true;
    /* The worker's address may have changed. The store keeps no addresses, because the agent sends them with each
     * registration. */
    if (w->state == WORKER_STARTING || (w->state == WORKER_READY && *address))
        core_set_string(&w->address, address);
    if (w->state != WORKER_STARTING)
        return;
    free(TAKE(w->job->short_why));
    move_worker(c, w, WORKER_READY, NULL, false, NULL);
}

/* Is the report about the current epoch, and has the worker a place in it? */
static bool speaks_of_epoch(struct core *c, struct jobrec *j, const struct workrec *w, uint64_t epoch)
{
    if (epoch < j->status.epoch)
        c->counters.old_epoch++;
    else if (epoch > j->status.epoch || !job_member(j, w))
        c->counters.unknown_rank++;
    return epoch == j->status.epoch && job_member(j, w);
}

/* Can the job have reached the step that the worker reports? */
static bool step_can_be(struct core *c, const struct jobrec *j, const struct workrec *w, uint64_t step)
{
    if (plausible_reached(c, j, step))
        return true;
    fence_implausible(c, w->node, j->id,
                      batch_printf(c->out, "worker %" PRIu64 " cannot have come to step %" PRIu64, w->id, step));
    return false;
}

/* A member or departing rank has left its epoch. */
static void worker_quiesced(struct core *c, struct jobrec *j, struct workrec *w,
                            const Titan__Internal__WorkerQuiesced *q)
{
    struct rank_slot *rank_slot = job_rank_slot(j, w);
    bool member = job_member(j, w);
    source_held(w, q);
    if (member && q->paused && q->epoch == j->status.epoch && !w->installed)
        w->installed = q->epoch; /* a paused member has trained in the epoch */
    if (w->state != WORKER_READY)
        return;
    w->quiesced = true;
    if (!rank_slot)
        return;
    bool asked = epoch_leaving(j);
    if (!asked && epoch_live(j) && !member) {
        rank_slot->finished = true;
        source_left(c, j);
    } else if (!asked && epoch_live(j) && !rank_slot->finished) {
        epoch_failed(j, false);
    }
}

static void worker_finished(struct core *c, struct jobrec *j, struct workrec *w, uint64_t epoch, uint64_t step)
{
    struct rank_slot *rank_slot = job_rank_slot(j, w);
    if (!speaks_of_epoch(c, j, w, epoch) || !epoch_live(j) || j->state == JOB_CANCELLING || job_final(j))
        return;
    if (step < j->spec.steps && !MUTANT(FINISHED_EARLY)) {
        fence_implausible(c, w->node, j->id,
                          batch_printf(c->out, "worker %" PRIu64 " has finished at step %" PRIu64 " of %" PRIu64, w->id,
                                       step, j->spec.steps));
        return;
    }
    if (rank_slot->finished)
        c->counters.duplicate++;
    job_progress_reaches(j, step);
    rank_slot->finished = true;
    epoch_formed(c, j);
}

void worker_adopt(struct core *c, struct workrec *w, const Titan__Internal__LiveWorker *live)
{
    struct jobrec *j = w->job;
    worker_missing(w, 0);
    w->unseen = false;
    w->started = true;
    worker_knows(w, live->epoch);
    Titan__Internal__WorkerQuiesced reported = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    reported.epoch = live->epoch;
    reported.last_step = live->step;
    reported.paused = j->state == JOB_RESIZING;
    if (live->address[0])
        worker_ready(c, w, live->address);
    if (live->epoch == j->status.epoch && job_rank_slot(j, w)) {
        /* live->step belongs to the named epoch, except while the worker forms that epoch and after a revoke. After a
         * revoke no other worker may have finished the step. */
        const bool paused = live->quiesced && live->quiesced->paused && live->quiesced->installed_epoch == live->epoch;
        if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED
                ? paused
                : live->state != TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING)
            job_progress_reaches(j, live->step);
        if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED)
            worker_quiesced(c, j, w, live->quiesced ? live->quiesced : &reported);
        else if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE)
            worker_finished(c, j, w, live->epoch, live->step);
        else
            w->quiesced = false;
        /* The worker has made a step, so the epoch counts as formed. Its repeated StateReady adds nothing. */
        if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING && j->state != JOB_CANCELLING &&
            !job_final(j))
            epoch_formed(c, j);
    } else if (j->epoch_state == EPOCH_REVOKED && (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED ||
                                                   live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE)) {
        w->quiesced = true; /* the worker never learnt of the epoch, which is over already */
        source_held(w, live->quiesced ? live->quiesced : &reported);
    } else if (live->quiesced || live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE) {
        w->quiesced |= !job_rank_slot(j, w);
        if (live->quiesced)
            source_held(w, live->quiesced);
    }
}

static void worker_progress(struct core *c, struct jobrec *j, struct workrec *w,
                            const Titan__Internal__WorkerProgress *p)
{
    const struct rank_slot *rank_slot = job_rank_slot(j, w);
    /* A job that ends or is queued again counts the steps that its workers make before they stop. */
    const bool counts = !job_final(j) && j->epoch_state != EPOCH_ENDED &&
                        (w->state == WORKER_READY || j->phase == PHASE_REQUEUEING || j->phase == PHASE_CANCELLING);
    if (!speaks_of_epoch(c, j, w, p->epoch) || !counts || !step_can_be(c, j, w, p->step))
        return;
    j->progress.step_ms = p->step_ms > 0 && p->step_ms < 1e7 ? p->step_ms : j->progress.step_ms;
    if (!w->quiesced) /* otherwise the worker's own report of its state is newer */
        w->last_step = p->step;
    if (j->phase != PHASE_CANCELLING) {
        if (j->epoch_state == EPOCH_FORMING && !j->source.origin_known && p->step < j->status.step)
            job_progress_falls_back(j, p->step - 1); /* not reported yet: the state is older than the status */
        epoch_formed(c, j);
    }
    const uint64_t before = j->status.step;
    job_progress_metric(c, j, rank_slot, p);
    if (j->status.step > before)
        job_clock_moved_on(c, j);
}

/* How long the core waits for a hanging worker that alone holds the state. Ending this worker costs the steps since the
 * last checkpoint. */
#define STALL_ALONE_MS 10000

static void worker_stalled(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__WorkerStalled *m)
{
    const struct rank_slot *rank_slot = job_rank_slot(j, w);
    if (m->epoch != j->status.epoch) {
        c->counters.old_epoch++;
        return;
    }
    if (!rank_slot || rank_slot->finished || !epoch_live(j) || w->state != WORKER_READY || w->quiesced)
        return;
    if (j->n_members == 1 && m->for_ms < STALL_ALONE_MS)
        return; /* the agent repeats the report every second */
    const char *words = batch_printf(c->out, "it has made no progress for %u ms%s", m->for_ms,
                                     m->stopped ? ": its process is stopped" : " though it waits for no peer");
    emit_event(c, j,
               (struct emit){.type = "worker.stalled",
                             .message = batch_printf(c->out, "worker %llu: %s", (unsigned long long)w->id, words),
                             .worker = w,
                             .detail = batch_printf(c->out,
                                                    "{\"worker\":%llu,\"step\":%llu,\"actions\":%llu,\"for_ms\":%u,"
                                                    "\"stopped\":%s}",
                                                    (unsigned long long)w->id, (unsigned long long)m->step,
                                                    (unsigned long long)m->actions, m->for_ms,
                                                    m->stopped ? "true" : "false")});
    c->counters.workers_hung++;
    recovery_begin(c, j);
    recovery_detected(j, (int64_t)m->for_ms);
    worker_set_exit_cause(w, LOSS_HANG);
    worker_stop(c, w, 0, words);
}

static void worker_straggles(struct core *c, struct jobrec *j, struct workrec *w,
                             const Titan__Internal__WorkerStraggles *m)
{
    if (!job_member(j, w) || m->epoch != j->status.epoch || !epoch_live(j))
        return;
    emit_event(c, j,
               (struct emit){
                   .type = "worker.straggler",
                   .message = batch_printf(c->out, "worker %llu works for %.1f ms of each step, the others for %.1f",
                                           (unsigned long long)w->id, m->busy_ms, m->median_ms),
                   .worker = w,
                   .detail = batch_printf(c->out, "{\"worker\":%llu,\"busy_ms\":%.3f,\"median_ms\":%.3f,\"steps\":%u}",
                                          (unsigned long long)w->id, m->busy_ms, m->median_ms, m->steps)});
}

bool worker_subject(const Titan__Internal__AgentMessage *m, struct subject *ret)
{
#define ABOUT(CASE, member)                                                                                            \
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_##CASE:                                                                  \
        *ret = (struct subject){m->member->job_id, m->member->worker_id};                                              \
        return true;
    switch (m->kind_case) {
        ABOUT(WORKER_STARTED, worker_started)
        ABOUT(WORKER_READY, worker_ready)
        ABOUT(WORKER_QUIESCED, worker_quiesced)
        ABOUT(PROGRESS, progress)
        ABOUT(WORKER_EXITED, worker_exited)
        ABOUT(CHECKPOINT, checkpoint)
        ABOUT(CHECKPOINT_FAILED, checkpoint_failed)
        ABOUT(EVALUATED, evaluated)
        ABOUT(FINISHED, finished)
        ABOUT(STATE_READY, state_ready)
        ABOUT(STALLED, stalled)
        ABOUT(STRAGGLES, straggles)
    default:
        return false;
    }
#undef ABOUT
}

void worker_report(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__AgentMessage *m)
{
    switch (m->kind_case) {
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_STARTED:
        if (!w->pid)
            store_pid(c, w, m->worker_started->pid);
        w->started = true;
        w->pid = m->worker_started->pid;
        quarantine_answered(c, w->node);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_READY:
        worker_ready(c, w, m->worker_ready->address);
        quarantine_answered(c, w->node);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_QUIESCED:
        if (!plausible_step(j, m->worker_quiesced->last_step))
            (void)step_can_be(c, j, w, m->worker_quiesced->last_step);
        else if (m->worker_quiesced->epoch == w->epoch || m->worker_quiesced->epoch == j->status.epoch)
            worker_quiesced(c, j, w, m->worker_quiesced);
        else
            c->counters.old_epoch++;
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS:
        worker_progress(c, j, w, m->progress);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED: {
        const Titan__Internal__WorkerExited *x = m->worker_exited;
        /* The node lacked resources at the start, or the worker reports so. */
        const bool node_short =
            x->cause == TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NODE_SHORT ||
            (x->cause == TITAN__INTERNAL__EXIT_CAUSE__CAUSE_EXIT && x->exit_code == TITAN_EXIT_SHORT);
        quarantine_answered(c, w->node);
        worker_ended(c, w,
                     &(struct exit_report){.exit_code = x->exit_code,
                                           .signal = x->signal,
                                           .cause = cause_from_report(x),
                                           .node_short = node_short,
                                           .refused = x->cause == TITAN__INTERNAL__EXIT_CAUSE__CAUSE_REFUSED,
                                           .reason = x->reason},
                     NULL);
        break;
    }
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKPOINT:
        if ((speaks_of_epoch(c, j, w, m->checkpoint->epoch) || MUTANT(OLD_CHECKPOINT)) && !job_final(j) &&
            m->checkpoint->path[0] && step_can_be(c, j, w, m->checkpoint->step)) {
            if (plausible_path(j, m->checkpoint->step, m->checkpoint->path))
                checkpoints_committed(c, j, m->checkpoint);
            else
                fence_implausible(c, w->node, j->id,
                                  batch_printf(c->out, "'%s' is not where it keeps its checkpoint of step %" PRIu64,
                                               m->checkpoint->path, m->checkpoint->step));
        }
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKPOINT_FAILED:
        if (speaks_of_epoch(c, j, w, m->checkpoint_failed->epoch) && epoch_live(j) && !job_final(j))
            checkpoints_failed(c, j, w, m->checkpoint_failed);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_EVALUATED:
        if (speaks_of_epoch(c, j, w, m->evaluated->epoch) && !job_final(j) && step_can_be(c, j, w, m->evaluated->step))
            job_progress_evaluated(c, j, m->evaluated);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_FINISHED:
        if (step_can_be(c, j, w, m->finished->step))
            worker_finished(c, j, w, m->finished->epoch, m->finished->step);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_STATE_READY:
        if (plausible_step(j, m->state_ready->step) || step_can_be(c, j, w, m->state_ready->step))
            source_ready(c, j, w, m->state_ready);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_STALLED:
        worker_stalled(c, j, w, m->stalled);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_STRAGGLES:
        worker_straggles(c, j, w, m->straggles);
        break;
    default:
        break;
    }
}
