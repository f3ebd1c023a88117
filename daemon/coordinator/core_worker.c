/* Workers: what agents report of them, how they end, and their time limits. */
#include "daemon/coordinator/core_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"

/* --- ends ------------------------------------------------------------------------------------------------------ */

void worker_stop(struct core *c, struct workrec *w, uint32_t grace_ms, const char *reason)
{
    if (w->state != WORKER_STOPPING)
        move_worker(c, w, WORKER_STOPPING, NULL, false, reason);
    w->deadline = c->now.mono_ms + grace_ms + c->options.stop_ms;
    tell_stop(c, w->node->session, w->job->id, w->id, grace_ms, reason);
}

static const char *exit_words(struct core *c, const struct exit_report *r, const char *why)
{
    if (!r)
        return why;
    if (r->reason && *r->reason)
        return batch_strdup(c->out, r->reason);
    if (r->signal)
        return batch_printf(c->out, "ended by signal %d (%s)", r->signal, strsignal(r->signal));
    return batch_printf(c->out, "exited with status %d", r->exit_code);
}

void worker_forget(struct core *c, struct workrec *w)
{
    job_remove_worker(w->job, w);
    w->node->used--;
    c->slots_changed = true;
    free(w->address);
    free(w);
}

static enum loss_cause cause_told(Titan__Internal__ExitCause cause)
{
    switch (cause) {
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

/* What the end of a worker that nobody asked for counts as. */
static enum loss_cause cause_of(const struct workrec *w, const struct exit_report *report)
{
    if (w->blame)
        return w->blame;
    return report ? report->cause : LOSS_NODE;
}

void worker_ended(struct core *c, struct workrec *w, const struct exit_report *report, const char *why)
{
    struct jobrec *j = w->job;
    struct seat *seat = job_seat(j, w);
    bool over = phase_ends(j);
    bool asked = (w->state == WORKER_STOPPING && !w->blame) || (seat && seat->finished);
    bool node_short = report && report->node_short;
    bool permanent = !over && !asked && !node_short && report && report->exit_code == 2 && !report->signal;
    bool lost = !over && !asked && !permanent && !node_short && (w->started || report) && !w->unseen;
    bool drained = node_leaves(w->node);
    enum loss_cause cause = lost ? cause_of(w, report) : LOSS_NONE;
    bool paid = lost && budget_paid(j, w, cause, report ? report->reason : NULL);
    bool counted = lost && !paid && !drained;
    struct noderec *node = w->node;
    const char *words = exit_words(c, report, why);
    move_worker(c, w, report ? WORKER_EXITED : WORKER_LOST, report, counted, why);
    if (seat)
        seat->worker = NULL;
    if (report || w->missing)
        quorum_told(j, node, w->id);
    worker_forget(c, w);
    if (permanent)
        job_fail(c, j, batch_printf(c->out, "%s (on node %s)", words, node->name));
    if (node_short && !over) {
        core_set_string(&j->short_why,
                        batch_printf(c->out, "node %s cannot start a worker: %s; trying again", node->name, words));
        budget_wait(c, j);
    }
    if (lost && seat)
        job_begin_recovery(c, j);
    if (!counted)
        return;
    budget_fault(c, j, cause, report ? report->reason : NULL);
    budget_charge(c, j, cause, node, words);
}

/* --- reports -------------------------------------------------------------------------------------------------- */

static void worker_ready(struct core *c, struct workrec *w, const char *address)
{
    w->started = true;
    if (w->state != WORKER_STARTING)
        return;
    free(TAKE(w->job->short_why));
    core_set_string(&w->address, address);
    move_worker(c, w, WORKER_READY, NULL, false, NULL);
}

/* Is it about the current epoch, in which the worker has a place? */
static bool speaks_of_epoch(struct core *c, struct jobrec *j, const struct workrec *w, uint64_t epoch)
{
    if (epoch < j->status.epoch)
        c->counters.old_epoch++;
    else if (epoch > j->status.epoch || !job_member(j, w))
        c->counters.unknown_rank++;
    return epoch == j->status.epoch && job_member(j, w);
}

#define STEPS_PER_MS 50    /* more than any step is so short */
#define STEPS_AT_ONCE 1000 /* what clocks, and a first step that was under way, may add */

bool worker_step_exists(const struct jobrec *j, uint64_t step)
{
    return step <= MAX(j->spec.steps, MAX(j->status.step, j->resume_step)) || MUTANT(STEP_UNBOUNDED);
}

bool worker_step_reached(const struct core *c, const struct jobrec *j, uint64_t step)
{
    const uint64_t from = MAX(j->resume_step, j->origin_known ? j->origin.step : 0);
    if (!worker_step_exists(j, step))
        return false;
    if (!j->formed_mono || step <= from || MUTANT(STEP_UNBOUNDED))
        return true;
    const uint64_t ms = (uint64_t)MAX(c->now.mono_ms - j->formed_mono, 0);
    return step - from <= STEPS_AT_ONCE + STEPS_PER_MS * ms;
}

/* A step that a worker tells of. */
static bool step_can_be(struct core *c, const struct jobrec *j, const struct workrec *w, uint64_t step)
{
    if (worker_step_reached(c, j, step))
        return true;
    fence_implausible(c, w->node, j->id,
                      batch_printf(c->out, "worker %" PRIu64 " cannot have come to step %" PRIu64, w->id, step));
    return false;
}

/* A member or leaver is out of its epoch. */
static void worker_quiesced(struct jobrec *j, struct workrec *w, const Titan__Internal__WorkerQuiesced *q)
{
    struct seat *seat = job_seat(j, w);
    bool member = job_member(j, w);
    source_held(w, q);
    if (member && q->paused && q->epoch == j->status.epoch && !w->sealed)
        w->sealed = q->epoch; /* who was paused has trained in it */
    if (w->state != WORKER_READY)
        return;
    w->quiesced = true;
    if (!seat)
        return;
    bool asked = epoch_leaving(j);
    if (!asked && epoch_live(j) && !member)
        seat->finished = true;
    else if (!asked && epoch_live(j) && !seat->finished)
        j->broken = true;
}

static void worker_finished(struct core *c, struct jobrec *j, struct workrec *w, uint64_t epoch, uint64_t step)
{
    struct seat *seat = job_seat(j, w);
    if (!speaks_of_epoch(c, j, w, epoch) || !epoch_live(j) || j->state == JOB_CANCELLING || job_final(j))
        return;
    if (step < j->spec.steps && !MUTANT(FINISHED_EARLY)) {
        fence_implausible(c, w->node, j->id,
                          batch_printf(c->out, "worker %" PRIu64 " has finished at step %" PRIu64 " of %" PRIu64, w->id,
                                       step, j->spec.steps));
        return;
    }
    if (seat->finished)
        c->counters.duplicate++;
    j->status.step = MAX(j->status.step, step);
    seat->finished = true;
    epoch_formed(c, j);
}

/* Is its step one that the epoch it is in has made? Not while it still holds the state of an older one; and who was
 * revoked in the middle of a step may be the only one that has it. */
static bool step_of_epoch(const Titan__Internal__LiveWorker *live)
{
    if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED)
        return live->quiesced && live->quiesced->paused && live->quiesced->sealed_epoch == live->epoch;
    return live->state != TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING;
}

void worker_adopt(struct core *c, struct workrec *w, const Titan__Internal__LiveWorker *live)
{
    struct jobrec *j = w->job;
    w->missing = 0;
    w->unseen = false;
    w->started = true;
    w->epoch = live->epoch;
    Titan__Internal__WorkerQuiesced said = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    said.epoch = live->epoch;
    said.last_step = live->step;
    said.paused = j->state == JOB_RESIZING;
    if (live->address[0] && (w->state == WORKER_STARTING))
        worker_ready(c, w, live->address);
    if (live->epoch == j->status.epoch && job_seat(j, w)) {
        if (step_of_epoch(live))
            j->status.step = MAX(j->status.step, live->step);
        if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED)
            worker_quiesced(j, w, live->quiesced ? live->quiesced : &said);
        else if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE)
            worker_finished(c, j, w, live->epoch, live->step);
        else
            w->quiesced = false;
        /* It has made a step: a StateReady that is said once more is of the past. */
        if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING && j->state != JOB_CANCELLING &&
            !job_final(j))
            epoch_formed(c, j);
    } else if (j->epoch_state == EPOCH_REVOKED && (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED ||
                                                   live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE)) {
        w->quiesced = true; /* it never heard of the epoch that is over already */
        source_held(w, live->quiesced ? live->quiesced : &said);
    } else if (live->quiesced || live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE) {
        w->quiesced |= !job_seat(j, w);
        if (live->quiesced)
            source_held(w, live->quiesced);
    }
}

static struct metric metric_of(const struct core *c, const struct jobrec *j, const Titan__Internal__WorkerProgress *p)
{
    return (struct metric){
        .job_id = j->id,
        .step = p->step,
        .at_ms = p->at_ms ? p->at_ms : c->now.wall_ms,
        .loss = p->loss,
        .grad_norm = p->grad_norm,
        .learning_rate = p->learning_rate,
        .tokens_per_second = p->tokens_per_second,
        .mfu = p->mfu,
        .step_ms = p->step_ms,
        .tokens = p->tokens,
        .epoch = p->epoch,
        .world_size = p->world_size,
        .memory_bytes = p->memory_bytes,
        .skipped_steps = p->skipped_steps,
    };
}

static void take_metric(struct core *c, struct jobrec *j, const struct metric *metric)
{
    j->metric_step = metric->step;
    j->status.loss = metric->loss;
    j->status.tokens_per_second = metric->tokens_per_second;
    j->status.mfu = metric->mfu;
    *batch_metric(c->out) = *metric;
}

void worker_spare_metrics(struct core *c, struct jobrec *j)
{
    for (uint64_t step = j->metric_step + 1; step <= j->metric_step + METRICS_SPARE; step++) {
        const struct metric *spare = &j->spare[step % METRICS_SPARE];
        if (spare->step == step && spare->epoch == j->status.epoch)
            take_metric(c, j, spare);
    }
}

/* Rank 0 speaks for all. What it was the last to do may never be heard of: others' words are kept for that. */
static void worker_metric(struct core *c, struct jobrec *j, const struct seat *seat,
                          const Titan__Internal__WorkerProgress *p)
{
    struct metric metric = metric_of(c, j, p);
    if (seat == j->seats && epoch_live(j))
        take_metric(c, j, &metric);
    else
        j->spare[p->step % METRICS_SPARE] = metric;
    if (!epoch_live(j))
        worker_spare_metrics(c, j);
}

static void worker_progress(struct core *c, struct jobrec *j, struct workrec *w,
                            const Titan__Internal__WorkerProgress *p)
{
    const struct seat *seat = job_seat(j, w);
    if (!speaks_of_epoch(c, j, w, p->epoch) || j->state == JOB_CANCELLING || job_final(j) ||
        j->epoch_state == EPOCH_ENDED || !(w->state == WORKER_READY || j->phase == PHASE_REQUEUEING) ||
        !step_can_be(c, j, w, p->step))
        return;
    j->step_ms = p->step_ms > 0 && p->step_ms < 1e7 ? p->step_ms : j->step_ms;
    if (!w->quiesced) /* what it holds it has said itself, and later */
        w->last_step = p->step;
    if (j->epoch_state == EPOCH_FORMING && !j->origin_known && p->step < j->status.step)
        job_falls_back(j, p->step - 1); /* nobody has said so yet, but the state is an older one */
    epoch_formed(c, j);
    if (p->step > j->status.step) {
        j->status.step = p->step;
        j->unsaved = true;
        epoch_moves_on(c, j);
    }
    worker_metric(c, j, seat, p);
}

static void worker_checkpoint(struct core *c, struct jobrec *j, struct workrec *w,
                              const Titan__Internal__CheckpointWritten *m)
{
    if (!step_can_be(c, j, w, m->step))
        return;
    if (fence_path(j, m->step, m->path))
        job_checkpoint(c, j, m);
    else
        fence_implausible(
            c, w->node, j->id,
            batch_printf(c->out, "'%s' is not where it keeps its checkpoint of step %" PRIu64, m->path, m->step));
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
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_READY:
        worker_ready(c, w, m->worker_ready->address);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_QUIESCED:
        if (!worker_step_exists(j, m->worker_quiesced->last_step))
            (void)step_can_be(c, j, w, m->worker_quiesced->last_step);
        else if (m->worker_quiesced->epoch == w->epoch || m->worker_quiesced->epoch == j->status.epoch)
            worker_quiesced(j, w, m->worker_quiesced);
        else
            c->counters.old_epoch++;
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS:
        worker_progress(c, j, w, m->progress);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED: {
        const Titan__Internal__WorkerExited *x = m->worker_exited;
        worker_ended(c, w,
                     &(struct exit_report){.exit_code = x->exit_code,
                                           .signal = x->signal,
                                           .cause = cause_told(x->cause),
                                           .node_short = x->cause == TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NODE_SHORT,
                                           .reason = x->reason},
                     NULL);
        break;
    }
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKPOINT:
        if ((speaks_of_epoch(c, j, w, m->checkpoint->epoch) || MUTANT(OLD_CHECKPOINT)) && !job_final(j) &&
            m->checkpoint->path[0])
            worker_checkpoint(c, j, w, m->checkpoint);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKPOINT_FAILED:
        if (speaks_of_epoch(c, j, w, m->checkpoint_failed->epoch) && epoch_live(j) && !job_final(j))
            job_checkpoint_failed(c, j, w, m->checkpoint_failed);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_FINISHED:
        if (step_can_be(c, j, w, m->finished->step))
            worker_finished(c, j, w, m->finished->epoch, m->finished->step);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_STATE_READY:
        if (worker_step_exists(j, m->state_ready->step) || step_can_be(c, j, w, m->state_ready->step))
            source_ready(c, j, w, m->state_ready);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_STALLED:
        detect_stalled(c, j, w, m->stalled);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_STRAGGLES:
        detect_straggler(c, j, w, m->straggles);
        break;
    default:
        break;
    }
}

/* --- time limits ---------------------------------------------------------------------------------------------- */

void worker_deadlines(struct core *c, struct jobrec *j)
{
    for (size_t i = j->n_workers; i-- > 0;) {
        struct workrec *w = j->workers[i];
        if (!w->missing || c->now.mono_ms < w->missing)
            continue;
        if (w->node->session) /* should an order to start it have come late after all */
            tell_stop(c, w->node->session, j->id, w->id, 0, "its agent did not list it");
        worker_ended(c, w, NULL,
                     w->started ? "it ended while its agent was away" : "its start never reached the agent");
    }
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        if (w->missing || c->now.mono_ms < w->deadline)
            continue;
        if (w->state == WORKER_STARTING) {
            w->blame = LOSS_HANG;
            worker_stop(c, w, 0, "it was not ready in time");
        } else if (w->state == WORKER_STOPPING) {
            worker_stop(c, w, 0, "it is still there");
        }
    }
}
