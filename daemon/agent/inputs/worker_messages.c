/* SPDX-License-Identifier: Apache-2.0 */
/* worker_messages.c - handles workers' messages, and passes parts of them to the coordinator. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"
#include "daemon/agent/failover/failover.h"

void agent_core_started(struct agent_core *c, uint64_t worker_id, int64_t pid, int64_t now, struct agent_actions *out)
{
    struct agent_worker *w = agent_worker_find(c, worker_id);
    if (!w)
        return;
    Titan__Internal__WorkerStarted started = TITAN__INTERNAL__WORKER_STARTED__INIT;
    started.job_id = w->job_id;
    started.worker_id = worker_id;
    started.pid = pid;
    MESSAGE(m, WORKER_STARTED, worker_started, &started);
    agent_report(c, &m, now, out);
}

void agent_core_connected(struct agent_core *c, const Titan__Internal__WorkerRegistration *registration, int64_t now,
                          struct agent_actions *out)
{
    (void)now;
    struct agent_worker *w = agent_worker_find(c, registration->worker_id);
    struct titan_error why;
    if (!w)
        return;
    if (!agent_fence_range(c, &registration->base, &why)) {
        agent_worker_faulty(w, why.msg, out);
        return;
    }
    w->rank = registration->rank;
    w->commanded_epoch = MAX(w->commanded_epoch, registration->epoch);
    (void)snprintf(w->address, sizeof(w->address), "%s", registration->address);
}

/* A worker speaks for itself only. */
#define OWN(w, part) ((part)->job_id == (w)->job_id && (part)->worker_id == (w)->id)

#define PASS(KIND, field, part)                                                                                        \
    own = OWN(w, part);                                                                                                \
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##KIND;                                                         \
    m.field = (part)

/* Extracts the message for the coordinator, if any. Returns false if the message is about another worker. */
static bool forwarded(const struct agent_worker *w, const Titan__Internal__WorkerToAgent *in,
                      agent_message *out_message)
{
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    bool own = true;
    switch (in->kind_case) {
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_READY:
        PASS(WORKER_READY, worker_ready, in->ready);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED:
        PASS(WORKER_QUIESCED, worker_quiesced, in->quiesced);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS:
        PASS(PROGRESS, progress, in->progress);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT:
        PASS(CHECKPOINT, checkpoint, in->checkpoint);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_EVALUATED:
        PASS(EVALUATED, evaluated, in->evaluated);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT_FAILED:
        PASS(CHECKPOINT_FAILED, checkpoint_failed, in->checkpoint_failed);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FINISHED:
        PASS(FINISHED, finished, in->finished);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_STATE_READY:
        PASS(STATE_READY, state_ready, in->state_ready);
        break;
    default:
        break;
    }
    *out_message = m;
    return own;
}

void agent_core_worker(struct agent_core *c, uint64_t worker_id, const Titan__Internal__WorkerToAgent *in, int64_t now,
                       struct agent_actions *out)
{
    struct agent_worker *w = agent_worker_find(c, worker_id);
    struct titan_error why;
    agent_message m;
    bool keep = true;
    if (!w || w->fault)
        return;
    if (!agent_fence_range(c, &in->base, &why)) {
        agent_worker_faulty(w, why.msg, out);
        return;
    }
    if (!forwarded(w, in, &m)) {
        c->counters.forged++;
        if (!w->forged) /* log once */
            agent_log(out, AGENT_WARN, "worker sent a message of another worker, dropped", "worker=%" PRIu64, w->id);
        w->forged = true;
        return;
    }
    switch (in->kind_case) {
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_READY:
        (void)snprintf(w->address, sizeof(w->address), "%s", in->ready->address);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED:
        if (w->quiesced)
            titan__internal__worker_quiesced__free_unpacked(w->quiesced, NULL);
        w->quiesced = agent_message_copy(&in->quiesced->base);
        if (!agent_in_epoch(w, w->revoked_epoch))
            w->revoked_epoch = 0;
        agent_job_note_complete(c, w->job_id, in->quiesced->installed_epoch);
        failover_on_quiesced(c, in->quiesced, now, out);
        if (c->draining && c->quiet)
            return; /* the membership does not change, so the coordinator gets only the last checkpoint */
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS:
        in->progress->busy_ms = w->step_time.busy_ms;
        agent_progress(c, w, &m, out);
        return;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FINISHED:
        agent_job_make(c, w->job_id)->finished = true;
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_STATE_READY:
        agent_job_note_complete(c, w->job_id, in->state_ready->epoch);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT:
        agent_job_note_checkpoint(c, in->checkpoint);
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_CHECKPOINT_FAILED:
        keep = false; /* the worker retries */
        break;
    case TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FAILING: /* the page repeats it after the exit */
        agent_log(out, AGENT_WARN, "worker fails", "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", w->job_id, w->id,
                  in->failing->reason);
        return;
    default:
        break;
    }
    if (m.kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND__NOT_SET)
        return;
    agent_progress_keep(c, w, now, out);
    if (keep)
        agent_report_keep(c, &m, now, out);
    agent_send(c, &m, out);
}
