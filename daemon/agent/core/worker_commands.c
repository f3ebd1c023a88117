/* SPDX-License-Identifier: Apache-2.0 */
/* worker_commands.c - commands to workers: form, revoke, pause, stop. */
#include <inttypes.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"
#include "proto/ranges.h"

static void command_one(const struct agent_core *c, const struct agent_worker *w, command_to_worker *command,
                        struct agent_actions *out)
{
    titan_assert(command->kind_case != TITAN__INTERNAL__AGENT_TO_WORKER__KIND__NOT_SET);
    command->term = c->seen.term;
    struct agent_action *a = agent_action_add(out, AGENT_COMMAND);
    a->job_id = w->job_id;
    a->worker_id = w->id;
    a->command = agent_action_copy(out, &command->base);
}

void agent_command_job(const struct agent_core *c, uint64_t job_id, command_to_worker *command,
                       struct agent_actions *out)
{
    for (const struct agent_worker *w = c->workers; w; w = w->next)
        if (w->job_id == job_id)
            command_one(c, w, command, out);
}

/* rank < 0: the worker departs, and has no rank in the next epoch. */
static void command_member(struct agent_core *c, const form_epoch *form, uint64_t worker_id, int32_t rank,
                           struct agent_actions *out)
{
    struct agent_worker *w = agent_worker_find(c, worker_id);
    if (!w || w->job_id != form->job_id)
        return;
    titan_assert(form->epoch <= RANGE_EPOCH_MAX);
    w->commanded_epoch = MAX(w->commanded_epoch, form->epoch);
    if (rank >= 0) {
        w->rank = (uint32_t)rank;
        struct agent_action *a = agent_action_add(out, AGENT_RANK);
        a->job_id = w->job_id;
        a->worker_id = w->id;
        a->rank = w->rank;
    }
    COMMAND(command, FORM, form, (form_epoch *)form);
    command_one(c, w, &command, out);
}

/* Workers get the mesh key, derived from the agents' key. */
void agent_command_form(struct agent_core *c, const form_epoch *reported, struct agent_actions *out)
{
    uint8_t mesh[MAC_BYTES];
    form_epoch sent = *reported;
    const form_epoch *form = &sent;
    titan_assert(reported->n_members > 0);
    if (sent.key.len == MAC_BYTES)
        proof_mesh(reported, mesh);
    sent.key = (ProtobufCBinaryData){sent.key.len == MAC_BYTES ? MAC_BYTES : 0, mesh};
    for (size_t i = 0; i < form->n_members; i++)
        command_member(c, form, form->members[i]->worker_id, (int32_t)i, out);
    for (size_t i = 0; i < form->n_departing; i++)
        command_member(c, form, form->departing[i]->worker_id, -1, out);
}

void agent_command_revoke(struct agent_core *c, uint64_t job_id, uint64_t epoch, int64_t now, struct agent_actions *out)
{
    Titan__Internal__RevokeEpoch revoke = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    revoke.job_id = job_id;
    revoke.epoch = epoch;
    COMMAND(command, REVOKE, revoke, &revoke);
    agent_command_job(c, job_id, &command, out);
    for (struct agent_worker *w = c->workers; w; w = w->next) {
        /* A stopping worker keeps its grace. */
        if (w->job_id != job_id || w->end == END_ASKED || !agent_in_epoch(w, epoch) || w->revoked_epoch >= epoch)
            continue;
        if (w->revoked_epoch == 0) /* otherwise the time runs since the first revoke */
            w->revoked_at = now;
        w->revoked_epoch = epoch;
    }
}

void agent_command_pause(struct agent_core *c, uint64_t job_id, uint64_t epoch, struct agent_actions *out)
{
    Titan__Internal__PauseJob pause = TITAN__INTERNAL__PAUSE_JOB__INIT;
    pause.job_id = job_id;
    pause.epoch = epoch;
    COMMAND(command, PAUSE, pause, &pause);
    agent_command_job(c, job_id, &command, out);
}

void agent_command_stop(struct agent_worker *w, uint32_t grace_ms, bool must_checkpoint, const char *reason,
                        enum end_cause cause, struct agent_actions *out)
{
    titan_assert(cause != END_HUNG || grace_ms == 0);
    if (w->end == END_BY_ITSELF)
        w->end = cause;
    w->killed |= grace_ms == 0;
    struct agent_action *a = agent_action_add(out, AGENT_STOP_WORKER);
    a->job_id = w->job_id;
    a->worker_id = w->id;
    a->grace_ms = grace_ms;
    a->must_checkpoint = must_checkpoint;
    a->text = agent_action_text(out, "%s", reason ? reason : "");
}

void agent_worker_faulty(struct agent_worker *w, const char *what, struct agent_actions *out)
{
    if (w->fault)
        return;
    w->fault = agent_text_copy(what);
    agent_log(out, AGENT_WARN, "a worker breaks the protocol, killing it",
              "job=%" PRIu64 " worker=%" PRIu64 " reason=\"%s\"", w->job_id, w->id, what);
    agent_command_stop(w, 0, false, "it breaks the protocol", END_BY_ITSELF, out);
    titan_assert(w->killed);
}
