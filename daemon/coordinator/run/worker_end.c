/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/worker_end.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/cluster/quarantine.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/records/refusals.h"
#include "daemon/coordinator/run/job_end.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/recovery.h"
#include "daemon/coordinator/run/requeue.h"
#include "daemon/coordinator/run/restart_budget.h"
#include "daemon/coordinator/run/slots.h"

void worker_forget(struct core *c, struct workrec *w)
{
    titan_assert(job_worker(w->job, w->id) == w);
    job_remove_worker(w->job, w);
    c->slots_changed = true;
    free(w->address);
    free(w);
}

void worker_ended(struct core *c, struct workrec *w, struct exit_report *report, const char *why)
{
    struct jobrec *j = w->job;
    struct rank_slot *rank_slot = job_rank_slot(j, w);
    titan_assert(job_worker(j, w->id) == w);
    bool over = phase_ends(j);
    bool asked = (w->state == WORKER_STOPPING && !w->exit_cause) || (rank_slot && rank_slot->finished);
    bool node_short = report && report->node_short;
    bool refused = report && report->refused && !w->started;
    bool permanent = !over && !asked && !node_short && !refused && report && report->exit_code == 2 && !report->signal;
    bool lost = !over && !asked && !permanent && !refused && (w->started || report) && !w->unseen;
    bool starting = w->state == WORKER_STARTING;
    bool drained = node_leaves(w->node);
    enum loss_cause cause = LOSS_NONE;
    if (lost)
        cause = w->exit_cause ? w->exit_cause : report ? report->cause : LOSS_NODE;
    bool paid = lost && !node_short && budget_paid(j, w, cause, report ? report->reason : NULL);
    bool counted = lost && !paid && !drained && !node_short;
    struct noderec *node = w->node;
    const char *words = why;
    if (report) {
        words = report->reason && *report->reason ? batch_strdup(c->out, report->reason)
                : report->signal
                    ? batch_printf(c->out, "ended by signal %d (%s)", report->signal, strsignal(report->signal))
                    : batch_printf(c->out, "exited with status %d", report->exit_code);
        /* Any other exit code or signal is the worker's own failure, although it was told to leave. */
        report->asked =
            asked && (report->signal ? report->signal == SIGKILL && report->cause != LOSS_OOM : report->exit_code == 0);
    }
    move_worker(c, w, report ? WORKER_EXITED : WORKER_LOST, report, counted, why);
    if (report && !report->signal && report->exit_code == titan_status_exit(TITAN_EDEVICE))
        emit_device_failed(c, w, words);
    if (rank_slot)
        rank_slot->worker = NULL;
    if (report || w->missing)
        kept_release(j, node, w->id);
    worker_forget(c, w);
    if (permanent)
        job_fail(c, j, batch_printf(c->out, "%s (on node %s)", words, node->name));
    if (refused && !over) {
        /* The node and the job do not fit together. This is no fault of the run, which goes on elsewhere. */
        const char *said = batch_printf(c->out, "node %s refuses its workers: %s", node->name, words);
        if (refusal_add(c, j, node))
            emit_event(c, j, (struct emit){.type = "job.refused", .message = said, .node = node});
        const uint32_t least = size_least(j), could = size_kept(j) + slots_free(c, j->device, j, NULL);
        if (refusals_room(c, j) < least)
            job_fail(c, j, said);
        else if (MAX(could, size_staying(j)) < least)
            (void)requeue_begin(j, said);
        else
            size_claim(j, MIN(j->size.claim, could));
    }
    if (node_short && !over) {
        core_set_string(&j->short_why,
                        batch_printf(c->out, "node %s %s: %s; trying again", node->name,
                                     starting ? "cannot start a worker" : "cannot keep a worker", words));
        budget_wait(c, j);
        if (rank_slot)
            epoch_charged(j); /* the end costs no restart */
    }
    if (lost && rank_slot)
        recovery_begin(c, j);
    if (!counted)
        return;
    titan_assert(cause != LOSS_NONE && !phase_ends(j));
    budget_fault(c, j, cause, report ? report->reason : NULL);
    budget_charge(c, j, cause, node, words);
}

void worker_missing(struct workrec *w, int64_t from)
{
    w->missing = from;
}

void worker_reports_complete(struct core *c, const struct noderec *n)
{
    for (struct jobrec *j = c->active; j && !c->stale; j = j->next)
        for (size_t i = 0; i < j->n_workers; i++)
            if (j->workers[i]->node == n && j->workers[i]->missing)
                worker_missing(j->workers[i], c->now.mono_ms);
}

void worker_deadlines(struct core *c, struct jobrec *j)
{
    for (size_t i = j->n_workers; i-- > 0;) {
        struct workrec *w = j->workers[i];
        if (!w->missing || c->now.mono_ms < w->missing)
            continue;
        if (w->node->session) /* in case a start command arrived late */
            send_stop(c, w->node->session, j->id, w->id, 0, "its agent did not list it");
        worker_ended(c, w, NULL,
                     w->started ? "it ended while its agent was away" : "its start never reached the agent");
    }
    for (size_t i = 0; i < j->n_workers; i++) {
        struct workrec *w = j->workers[i];
        /* The start command has no answer, although the agent has sent other messages since the answer was due. */
        const int64_t due = w->deadline - c->options.start_ms + c->options.answer_ms;
        if (w->state == WORKER_STARTING && !w->started && !w->missing && !w->away && w->node->seen_mono >= due) {
            quarantine_silent(c, w->node);
            worker_stop(c, w, 0, "its node does not answer that it starts");
        }
        if (w->missing || c->now.mono_ms < w->deadline)
            continue;
        if (w->state == WORKER_STARTING) {
            worker_set_exit_cause(w, LOSS_HANG);
            worker_stop(c, w, 0, "it was not ready in time");
        } else if (w->state == WORKER_STOPPING) {
            worker_stop(c, w, 0, "it is still there");
        }
    }
}
