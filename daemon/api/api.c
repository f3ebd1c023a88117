/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/api/api.h"
#include "daemon/api/quota.h"

#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/shell/enrol.h"
#include "titan/internal/enrol.pb-c.h"

#define SESSION_FIRST_MS 10000 /* time for an agent to register */

#define METHOD(name_, NAME, message, handler, ...)                                                                     \
    {                                                                                                                  \
        .path = "/titan.v1.Titan/" #name_, .needs = POLICY_##NAME,                                                     \
        .request = &titan__v1__##message##_request__descriptor, .on_request = handler, __VA_ARGS__                     \
    }

static const struct rpc_method methods[] = {
    METHOD(Submit, SUBMIT, submit, api_submit, .on_close = api_submit_closed, .costly = true),
    METHOD(GetJob, GET_JOB, get_job, api_get_job),
    METHOD(GetRecipe, GET_RECIPE, get_recipe, api_get_recipe),
    METHOD(ListJobs, LIST_JOBS, list_jobs, api_list_jobs),
    METHOD(CancelJob, CANCEL_JOB, cancel_job, api_cancel_job, .on_close = api_request_closed),
    METHOD(RemoveJob, REMOVE_JOB, remove_job, api_remove_job, .on_close = api_remove_job_closed),
    METHOD(ResizeJob, RESIZE_JOB, resize_job, api_resize_job, .on_close = api_request_closed),
    METHOD(CheckpointJob, CHECKPOINT_JOB, checkpoint_job, api_checkpoint_job, .on_close = api_request_closed),
    METHOD(DrainNode, DRAIN_NODE, drain_node, api_drain_node, .on_close = api_request_closed),
    METHOD(UndrainNode, UNDRAIN_NODE, undrain_node, api_undrain_node, .on_close = api_request_closed),
    METHOD(RemoveNode, REMOVE_NODE, remove_node, api_remove_node, .on_close = api_request_closed),
    METHOD(ForgetNode, FORGET_NODE, forget_node, api_forget_node, .on_close = api_request_closed),
    METHOD(WatchEvents, WATCH_EVENTS, watch_events, api_watch_events, .on_drain = api_watch_drain,
           .on_close = api_watch_closed),
    /* Further bytes wait in logs.c, which counts them. */
    METHOD(Logs, LOGS, logs, api_logs, .max_queue_bytes = 256 << 10, .on_drain = api_logs_drain,
           .on_close = api_logs_closed),
    METHOD(Metrics, METRICS, metrics, api_metrics, .on_drain = api_watch_drain, .on_close = api_watch_closed),
    METHOD(ListCheckpoints, LIST_CHECKPOINTS, list_checkpoints, api_list_checkpoints),
    METHOD(ListNodes, LIST_NODES, list_nodes, api_list_nodes),
    METHOD(CheckNodes, CHECK_NODES, check_nodes, api_check_nodes, .on_close = api_check_nodes_closed),
    /* Queued bytes still go out after the caller has gone. */
    METHOD(Backup, BACKUP, backup, api_backup, .max_queue_bytes = 256 << 10, .on_drain = api_backup_drain,
           .on_close = api_backup_closed),
    METHOD(JoinNode, JOIN_NODE, join_node, api_join_node, .on_close = api_request_closed),
    METHOD(ListJoins, LIST_JOINS, list_joins, api_list_joins),
    METHOD(RevokeJoin, REVOKE_JOIN, revoke_join, api_revoke_join, .on_close = api_request_closed),
    METHOD(RevokeCertificate, REVOKE_CERTIFICATE, revoke_certificate, api_revoke_certificate,
           .on_close = api_request_closed),
    METHOD(Audit, AUDIT, audit, api_audit_trail, .on_drain = api_watch_drain, .on_close = api_watch_closed),
    METHOD(CreateToken, CREATE_TOKEN, create_token, api_create_token, .on_close = api_request_closed),
    METHOD(ListTokens, LIST_TOKENS, list_tokens, api_list_tokens),
    METHOD(RevokeToken, REVOKE_TOKEN, revoke_token, api_revoke_token, .on_close = api_request_closed),
    METHOD(Counters, COUNTERS, counters, api_counters),
    METHOD(Version, VERSION, version, api_version),
    METHOD(ListCoordinators, LIST_COORDINATORS, list_coordinators, api_list_coordinators),
    METHOD(HandOver, HAND_OVER, hand_over, api_hand_over),
    {.path = "/titan.internal.Enrolment/Enroll",
     .needs = POLICY_ENROLL,
     .request = &titan__internal__enroll_request__descriptor,
     .on_request = api_enroll,
     .on_close = api_request_closed},
    /* Methods of agents from here on. */
    {.path = "/titan.internal.Coordinator/Session",
     .needs = POLICY_SESSION,
     .request = &titan__internal__agent_message__descriptor,
     .on_message = session_on_message,
     .on_close = session_on_close,
     .first_ms = SESSION_FIRST_MS},
    {.path = "/titan.internal.Enrolment/Renew",
     .needs = POLICY_RENEW,
     .request = &titan__internal__renew_request__descriptor,
     .on_request = api_renew},
};

static void flush_all(struct coordinator *c)
{
    api_audit_flush(c, true);
    quota_free(c);
}

const struct coordinator_observer api_observer = {
    .stopping = flush_all,
    .job_changed = api_watch_poke,
    .metrics_stored = api_watch_metrics_stored,
    .log_chunk = api_log_chunk,
    .node_checked = api_node_checked,
    .probed = api_probed,
    .session_refused = api_session_refused,
    .session_gone = api_session_gone,
    .rights_changed = api_review,
};

const struct rpc_method *api_agent_methods(size_t *ret_n)
{
    const struct rpc_method *session = methods;
    while (session->needs != POLICY_SESSION)
        session++;
    *ret_n = (size_t)(methods + ARRAY_SIZE(methods) - session);
    return session;
}

const struct rpc_method *api_methods(size_t *ret_n)
{
    *ret_n = ARRAY_SIZE(methods);
    return methods;
}
