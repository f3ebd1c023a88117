/* SPDX-License-Identifier: Apache-2.0 */
/* Agents' streams: registration, reports in; commands out. */
#include "daemon/coordinator/shell/sessions.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "daemon/coordinator/shell/commits.h"
#include "daemon/coordinator/shell/enrol.h"
#include "proto/ranges.h"

/* Gives the core the job's checkpoint folder (worker/train.c). The folder is in the recipe, which the core does not
 * know. */
static void know_folder(struct coordinator *c, uint64_t job_id)
{
    _cleanup_free_ char *text = NULL;
    _cleanup_free_ struct recipe *r = NULL;
    char folder[PATH_MAX], directory[PATH_MAX + 32];
    if (!core_wants_folder(c->core, job_id) || !(r = calloc(1, sizeof(*r))))
        return;
    recipe_init(r);
    if (job_recipe(store_reader(c->store), job_id, &text, NULL) != TITAN_OK ||
        recipe_parse(r, text, "<recipe>", NULL) != TITAN_OK)
        return;
    (void)snprintf(directory, sizeof(directory), "%s/%llu", c->jobs_dir, (unsigned long long)job_id);
    if (recipe_checkpoint_folder(r, directory, folder, NULL) == TITAN_OK)
        core_set_folder(c->core, job_id, folder);
}

/* know_folder() for all jobs with checkpoints in the message. */
static void know_folders(struct coordinator *c, const Titan__Internal__AgentMessage *m)
{
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKPOINT)
        know_folder(c, m->checkpoint->job_id);
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_LEADER_EPOCH && m->leader_epoch->epoch)
        know_folder(c, m->leader_epoch->epoch->job_id);
    if (m->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION)
        return;
    for (size_t i = 0; i < m->registration->n_leader_epochs; i++)
        if (m->registration->leader_epochs[i]->epoch)
            know_folder(c, m->registration->leader_epochs[i]->epoch->job_id);
    for (size_t i = 0; i < m->registration->n_known; i++)
        know_folder(c, m->registration->known[i]->job_id);
}

/* Most messages are heartbeats. A heartbeat needs only its answer. A heartbeat without a promise makes a
 * deadline earlier. */
static bool was_heartbeat(struct coordinator *c, struct agent_session *s, struct batch *batch)
{
    if (!batch->answers || batch->changes || batch->messages || batch->metrics || batch->drops)
        return false;
    for (const struct batch_message *m = batch->answers; m; m = m->next)
        if (m->session != s->id || m->message->kind_case != TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_HEARTBEAT_ANSWER)
            return false;
    const bool answers = shell_may_answer(c);
    for (const struct batch_message *m = batch->answers; m && s->call && answers; m = m->next)
        sessions_send(c, s, &m->message->base);
    batch_free(batch);
    shell_set_timer(c);
    return true;
}

void session_on_message(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    struct coordinator *c = data;
    struct agent_session *s = rpc_call_data(call);
    struct titan_error err = {0};
    if (c->closing || (!s && request && !(s = sessions_begin(c, call)))) {
        rpc_call_finish(call, TITAN_EUNREACHABLE, "the coordinator is stopping");
        return;
    }
    if (!s || !s->call || s->revoked)
        return;
    if (!request) {
        sessions_end(c, s, NULL);
        return;
    }
    const Titan__Internal__AgentMessage *m = (const Titan__Internal__AgentMessage *)request;
    if (!s->begun && m->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION) {
        titan_fail(&err, TITAN_EINVAL, "the first message of a session is no registration");
        sessions_end(c, s, &err);
        return;
    }
    s->begun = true;
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_LOG) {
        if (range_check(&m->base, &err) == TITAN_OK)
            c->options.observer->log_chunk(c, s->id, m->log);
        else
            sessions_end(c, s, &err);
        return;
    }
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION &&
        enrol_speaks_for(c->enrol, call, m->registration->node, &err) != TITAN_OK) {
        c->options.observer->session_refused(c, call, &err);
        sessions_end(c, s, &err);
        return;
    }
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKED && range_check(&m->base, NULL) == TITAN_OK &&
        c->options.observer->node_checked(c, s->id, m->checked))
        return;
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROBE_RESULT &&
        (m->probe_result->probe_id & CORE_PROBE_OTHERS) && range_check(&m->base, NULL) == TITAN_OK) {
        c->options.observer->probed(c, s->id, m->probe_result);
        return;
    }
    struct batch batch;
    batch_init(&batch);
    know_folders(c, m);
    titan_status status = core_agent(c->core, s->id, m, shell_now(c), &batch, &err);
    if (was_heartbeat(c, s, &batch))
        return;
    /* Every member reports every step, and one report is enough. The other reports make no deadline earlier. */
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS && status == TITAN_OK && batch_empty(&batch)) {
        batch_free(&batch);
        return;
    }
    shell_commit(c, &batch, NULL, NULL);
    if (status != TITAN_OK)
        sessions_end(c, s, &err);
}

void session_on_close(struct rpc_call *call, bool cancelled, void *data)
{
    struct coordinator *c = data;
    struct agent_session *s = rpc_call_data(call);
    (void)cancelled;
    if (!s)
        return;
    struct agent_session **at = &c->sessions[s->id % SESSION_BUCKETS];
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    if (!c->closing) {
        struct batch batch;
        batch_init(&batch);
        core_session_closed(c->core, s->id, shell_now(c), &batch);
        shell_commit(c, &batch, NULL, NULL);
        c->options.observer->session_gone(c, s->id);
    }
    free(s);
}
