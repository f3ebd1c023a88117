/* SPDX-License-Identifier: Apache-2.0 */
/* exit_cause.c - the end of a worker: its cause, its report, and the reports of workers that ended lately. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"
#include "proto/ranges.h"

#define SIGNALS_MAX 64

/* Answers a command about an ended worker with its exit report. A coordinator that misses the answer repeats the
 * command, so the answer is not queued for the next session. */
bool agent_exit_repeat(struct agent_core *c, uint64_t worker_id, struct agent_actions *out)
{
    for (size_t i = 0; i < MIN(c->n_ended, (size_t)ENDED_KEPT); i++)
        if (c->ended[i].worker_id == worker_id) {
            agent_send(c, c->ended[i].report, out);
            return true;
        }
    return false;
}

void agent_core_exited(struct agent_core *c, uint64_t worker_id, const struct agent_exit *how, int64_t now,
                       struct agent_actions *out)
{
    struct agent_worker **at = &c->workers;
    while (*at && (*at)->id != worker_id)
        at = &(*at)->next;
    struct agent_worker *w = *at;
    if (!w)
        return;
    *at = w->next;
    titan_assert(!agent_worker_find(c, worker_id));
    Titan__Internal__WorkerExited exited = TITAN__INTERNAL__WORKER_EXITED__INIT;
    const char *reason = how->reason ? how->reason : "";
    bool hung = w->end == END_HUNG && !*reason;
    exited.job_id = w->job_id;
    exited.worker_id = worker_id;
    exited.exit_code = how->signal ? -1 : MIN(MAX(how->code, -1), 255);
    exited.signal = MIN(MAX(how->signal, 0), SIGNALS_MAX);
    exited.reason = w->fault ? agent_action_text(out, "it broke the protocol: %s", w->fault)
                    : hung   ? agent_action_text(out, "did not leave epoch %" PRIu64 " in time", w->revoked_epoch)
                             : agent_action_text(out, "%s", reason);
    range_fit_text(exited.reason, strlen(exited.reason) + 1);
    exited.last_step = MIN(how->last_step, RANGE_STEP_MAX);
    const struct {
        bool applies;
        Titan__Internal__ExitCause cause;
    } causes[] = {{how->node_short, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NODE_SHORT},
                  {how->refused, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_REFUSED},
                  {how->not_started, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NOT_STARTED},
                  {how->out_of_memory, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_OUT_OF_MEMORY},
                  {w->end == END_HUNG, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_HANG},
                  {w->fault, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_FAULTY},
                  {w->end == END_ASKED, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_STOPPED},
                  {how->code == 0, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NONE},
                  {how->code > 0, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_EXIT},
                  {true, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_SIGNAL}};
    size_t first = 0;
    while (!causes[first].applies)
        first++;
    exited.cause = causes[first].cause;
    MESSAGE(m, WORKER_EXITED, worker_exited, &exited);

    /* Keeps the report: a command about the worker may still be in flight. */
    size_t slot = c->n_ended++ % ENDED_KEPT;
    if (c->n_ended > ENDED_KEPT)
        titan__internal__agent_message__free_unpacked(c->ended[slot].report, NULL);
    c->ended[slot].job_id = w->job_id;
    c->ended[slot].worker_id = w->id;
    c->ended[slot].report = agent_message_copy(&m.base);

    if (!c->draining || !c->quiet) {
        agent_progress_keep(c, w, now, out);
        agent_report(c, &m, now, out);
    }
    agent_worker_free(w);
    agent_jobs_trim(c, out);
}
