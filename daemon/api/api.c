/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/api/api.h"
#include "daemon/api/quota.h"

#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/shell/enrol.h"
#include "titan/internal/enrol.pb-c.h"

#define SESSION_FIRST_MS 10000 /* time for an agent to register */

static const struct rpc_method methods[] = {
    {.path = "/titan.v1.Titan/Submit",
     .needs = POLICY_SUBMIT,
     .request = &titan__v1__submit_request__descriptor,
     .on_request = api_submit,
     .on_close = api_submit_closed,
     .costly = true},
    {.path = "/titan.v1.Titan/GetJob",
     .needs = POLICY_GET_JOB,
     .request = &titan__v1__get_job_request__descriptor,
     .on_request = api_get_job},
    {.path = "/titan.v1.Titan/GetRecipe",
     .needs = POLICY_GET_RECIPE,
     .request = &titan__v1__get_recipe_request__descriptor,
     .on_request = api_get_recipe},
    {.path = "/titan.v1.Titan/ListJobs",
     .needs = POLICY_LIST_JOBS,
     .request = &titan__v1__list_jobs_request__descriptor,
     .on_request = api_list_jobs},
    {.path = "/titan.v1.Titan/CancelJob",
     .needs = POLICY_CANCEL_JOB,
     .request = &titan__v1__cancel_job_request__descriptor,
     .on_request = api_cancel_job,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/RemoveJob",
     .needs = POLICY_REMOVE_JOB,
     .request = &titan__v1__remove_job_request__descriptor,
     .on_request = api_remove_job,
     .on_close = api_remove_job_closed},
    {.path = "/titan.v1.Titan/ResizeJob",
     .needs = POLICY_RESIZE_JOB,
     .request = &titan__v1__resize_job_request__descriptor,
     .on_request = api_resize_job,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/CheckpointJob",
     .needs = POLICY_CHECKPOINT_JOB,
     .request = &titan__v1__checkpoint_job_request__descriptor,
     .on_request = api_checkpoint_job,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/DrainNode",
     .needs = POLICY_DRAIN_NODE,
     .request = &titan__v1__drain_node_request__descriptor,
     .on_request = api_drain_node,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/UndrainNode",
     .needs = POLICY_UNDRAIN_NODE,
     .request = &titan__v1__undrain_node_request__descriptor,
     .on_request = api_undrain_node,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/RemoveNode",
     .needs = POLICY_REMOVE_NODE,
     .request = &titan__v1__remove_node_request__descriptor,
     .on_request = api_remove_node},
    {.path = "/titan.v1.Titan/ForgetNode",
     .needs = POLICY_FORGET_NODE,
     .request = &titan__v1__forget_node_request__descriptor,
     .on_request = api_forget_node,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/WatchEvents",
     .needs = POLICY_WATCH_EVENTS,
     .request = &titan__v1__watch_events_request__descriptor,
     .on_request = api_watch_events,
     .on_drain = api_watch_drain,
     .on_close = api_watch_closed},
    {.path = "/titan.v1.Titan/Logs",
     .needs = POLICY_LOGS,
     .request = &titan__v1__logs_request__descriptor,
     .on_request = api_logs,
     .max_queue_bytes = 256 << 10, /* further bytes wait in logs.c, which counts them */
     .on_drain = api_logs_drain,
     .on_close = api_logs_closed},
    {.path = "/titan.v1.Titan/Metrics",
     .needs = POLICY_METRICS,
     .request = &titan__v1__metrics_request__descriptor,
     .on_request = api_metrics,
     .on_drain = api_watch_drain,
     .on_close = api_watch_closed},
    {.path = "/titan.v1.Titan/ListCheckpoints",
     .needs = POLICY_LIST_CHECKPOINTS,
     .request = &titan__v1__list_checkpoints_request__descriptor,
     .on_request = api_list_checkpoints},
    {.path = "/titan.v1.Titan/ListNodes",
     .needs = POLICY_LIST_NODES,
     .request = &titan__v1__list_nodes_request__descriptor,
     .on_request = api_list_nodes},
    {.path = "/titan.v1.Titan/CheckNodes",
     .needs = POLICY_CHECK_NODES,
     .request = &titan__v1__check_nodes_request__descriptor,
     .on_request = api_check_nodes,
     .on_close = api_check_nodes_closed},
    {.path = "/titan.v1.Titan/Backup",
     .needs = POLICY_BACKUP,
     .request = &titan__v1__backup_request__descriptor,
     .on_request = api_backup,
     .max_queue_bytes = 256 << 10, /* queued bytes still go out after the caller has gone */
     .on_drain = api_backup_drain,
     .on_close = api_backup_closed},
    {.path = "/titan.v1.Titan/JoinNode",
     .needs = POLICY_JOIN_NODE,
     .request = &titan__v1__join_node_request__descriptor,
     .on_request = api_join_node,
     .on_close = api_certificate_closed},
    {.path = "/titan.v1.Titan/ListJoins",
     .needs = POLICY_LIST_JOINS,
     .request = &titan__v1__list_joins_request__descriptor,
     .on_request = api_list_joins},
    {.path = "/titan.v1.Titan/RevokeJoin",
     .needs = POLICY_REVOKE_JOIN,
     .request = &titan__v1__revoke_join_request__descriptor,
     .on_request = api_revoke_join,
     .on_close = api_certificate_closed},
    {.path = "/titan.v1.Titan/RevokeCertificate",
     .needs = POLICY_REVOKE_CERTIFICATE,
     .request = &titan__v1__revoke_certificate_request__descriptor,
     .on_request = api_revoke_certificate,
     .on_close = api_certificate_closed},
    {.path = "/titan.v1.Titan/Audit",
     .needs = POLICY_AUDIT,
     .request = &titan__v1__audit_request__descriptor,
     .on_request = api_audit_trail,
     .on_drain = api_watch_drain,
     .on_close = api_watch_closed},
    {.path = "/titan.v1.Titan/CreateToken",
     .needs = POLICY_CREATE_TOKEN,
     .request = &titan__v1__create_token_request__descriptor,
     .on_request = api_create_token,
     .on_close = api_token_closed},
    {.path = "/titan.v1.Titan/ListTokens",
     .needs = POLICY_LIST_TOKENS,
     .request = &titan__v1__list_tokens_request__descriptor,
     .on_request = api_list_tokens},
    {.path = "/titan.v1.Titan/RevokeToken",
     .needs = POLICY_REVOKE_TOKEN,
     .request = &titan__v1__revoke_token_request__descriptor,
     .on_request = api_revoke_token,
     .on_close = api_token_closed},
    {.path = "/titan.v1.Titan/Counters",
     .needs = POLICY_COUNTERS,
     .request = &titan__v1__counters_request__descriptor,
     .on_request = api_counters},
    {.path = "/titan.v1.Titan/Version",
     .needs = POLICY_VERSION,
     .request = &titan__v1__version_request__descriptor,
     .on_request = api_version},
    {.path = "/titan.internal.Enrolment/Enroll",
     .needs = POLICY_ENROLL,
     .request = &titan__internal__enroll_request__descriptor,
     .on_request = api_enroll,
     .on_close = api_certificate_closed},
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
    *ret_n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}
