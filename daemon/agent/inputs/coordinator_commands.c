/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator_commands.c - the coordinator's messages and their execution. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/agent/failover/failover.h"
#include "daemon/agent/inputs/inputs.h"
#include "daemon/common/epochs.h"

static void on_form(struct agent_core *c, const form_epoch *m, struct agent_actions *out)
{
    if (!epoch_workers_distinct(m)) {
        c->counters.out_of_range++;
        agent_log(out, AGENT_WARN, "an epoch with a worker in two places, dropped", "job=%" PRIu64 " epoch=%" PRIu64,
                  m->job_id, m->epoch);
        return;
    }
    struct agent_job *j = agent_job_make(c, m->job_id);
    switch (agent_fence_form(j, m)) {
    case FENCE_OLDER:
        agent_fenced_epoch(c, "command to form", m->job_id, m->epoch, agent_job_accepted(j), out);
        agent_refuse_form(c, j, m, out);
        return;
    case FENCE_OTHER:
        c->counters.refused++;
        agent_log(out, AGENT_WARN, "another epoch of this number is accepted or promised here",
                  "job=%" PRIu64 " epoch=%" PRIu64, m->job_id, m->epoch);
        agent_refuse_form(c, j, m, out);
        return;
    default:
        agent_job_accept(c, j, m, NULL, out);
        titan_assert(agent_job_accepted(j) == m->epoch);
        agent_command_form(c, m, out);
    }
}

/* A command to form may have waited in a stopped agent's socket while the job went on without its node. So the agent
 * holds the command until the coordinator answers a heartbeat sent after it came. */
static bool commands_stale(const struct agent_core *c, int64_t now)
{
    return c->answered && failover_coordinator_away(c, now);
}

/* Returns whether the command is about an epoch older than the accepted epoch. Counts such a command. */
static bool is_fenced(struct agent_core *c, const char *what, uint64_t job_id, uint64_t epoch,
                      struct agent_actions *out)
{
    const uint64_t accepted = agent_core_epoch(c, job_id);
    if (epoch < accepted)
        agent_fenced_epoch(c, what, job_id, epoch, accepted, out);
    return epoch < accepted;
}

void agent_core_coordinator(struct agent_core *c, const coordinator_message *m, int64_t now, struct agent_actions *out)
{
    struct titan_error why;
    if (!c->up || c->ending)
        return;
    if (!agent_fence_range(c, &m->base, &why)) {
        char *text = agent_action_text(out, "invalid message from the coordinator: %s", why.msg);
        agent_log(out, AGENT_WARN, "fenced", "reason=\"%s\"", text);
        agent_action_add(out, AGENT_END_SESSION)->text = text;
        c->ending = true;
        return;
    }
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK) {
        agent_on_registration_ack(c, m->ack, now, out);
        return;
    }
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LIST_EPOCHS) {
        agent_on_list_epochs(c, m->term, m->list_epochs->restored_term, now, out);
        return;
    }
    /* A message without a term has the term of the session's acknowledgement. */
    if (!c->registered || !agent_fence_term(c, m->term ? m->term : c->session_term, NULL, out))
        return;
    titan_assert((m->term ? m->term : c->session_term) == c->seen.term);
    switch (m->kind_case) {
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START: {
        const Titan__Internal__StartWorkers *start = m->start;
        for (size_t i = 0; i < start->n_worker_ids && !c->draining; i++) {
            if (agent_exit_repeat(c, start->worker_ids[i], out) || agent_worker_find(c, start->worker_ids[i]))
                continue;
            Titan__Internal__StartWorkers one = *start;
            uint64_t id = start->worker_ids[i];
            one.worker_ids = &id;
            one.n_worker_ids = 1;
            (void)agent_worker_add(c, start->job_id, id);
            struct agent_action *a = agent_action_add(out, AGENT_START_WORKER);
            a->job_id = start->job_id;
            a->worker_id = id;
            a->start = agent_action_copy(out, &one.base);
        }
        agent_heartbeat_resume(c, now, out);
        break;
    }
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM:
        if (commands_stale(c, now))
            agent_form_hold(c, m->form, now);
        else
            on_form(c, m->form, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE:
        if (!is_fenced(c, "revoke", m->revoke->job_id, m->revoke->epoch, out))
            agent_command_revoke(c, m->revoke->job_id, m->revoke->epoch, now, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE:
        if (!is_fenced(c, "pause", m->pause->job_id, m->pause->epoch, out)) {
            COMMAND(pause, PAUSE, pause, m->pause);
            agent_command_job(c, m->pause->job_id, &pause, out);
        }
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP: {
        const Titan__Internal__StopWorkers *stop = m->stop;
        for (size_t i = 0; i < stop->n_worker_ids; i++)
            (void)agent_exit_repeat(c, stop->worker_ids[i], out);
        for (struct agent_worker *w = c->workers; w; w = w->next) {
            bool named = stop->n_worker_ids == 0;
            for (size_t i = 0; i < stop->n_worker_ids && !named; i++)
                named = stop->worker_ids[i] == w->id;
            if (w->job_id == stop->job_id && named)
                agent_command_stop(w, stop->grace_ms, stop->must_checkpoint, stop->reason, END_ASKED, out);
        }
        break;
    }
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_HEARTBEAT_ANSWER:
        if (!agent_on_heartbeat_answer(c, m->heartbeat_answer) || commands_stale(c, now))
            break;
        for (size_t i = 0; i < c->n_held; i++)
            on_form(c, c->held[i], out);
        agent_forms_drop(c);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PROBE:
        agent_probe_start(c, m->probe, now, out);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED: {
        Titan__Internal__CheckpointCommitted committed = TITAN__INTERNAL__CHECKPOINT_COMMITTED__INIT;
        committed.job_id = m->checkpoint_committed->job_id;
        committed.step = m->checkpoint_committed->step;
        COMMAND(command, CHECKPOINT_COMMITTED, checkpoint_committed, &committed);
        agent_command_job(c, committed.job_id, &command, out);
        if (m->checkpoint_committed->n_expired_paths)
            agent_action_add(out, AGENT_REQUEST)->request = agent_action_copy(out, &m->base);
        break;
    }
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LOG:
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK:
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_RELEASE_GPUS:
        agent_action_add(out, AGENT_REQUEST)->request = agent_action_copy(out, &m->base);
        break;
    default: /* a newer coordinator's message of an unknown kind */
        break;
    }
}
