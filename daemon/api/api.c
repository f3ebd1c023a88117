#include "daemon/api/api.h"

#include <string.h>

#include "daemon/auth/enrol.h"
#include "titan/internal/enrol.pb-c.h"

static const struct rpc_method methods[] = {
    {.path = "/titan.v1.Titan/Submit",
     .request = &titan__v1__submit_request__descriptor,
     .on_request = api_submit,
     .on_close = api_submit_closed,
     .costly = true},
    {.path = "/titan.v1.Titan/GetJob", .request = &titan__v1__get_job_request__descriptor, .on_request = api_get_job},
    {.path = "/titan.v1.Titan/ListJobs",
     .request = &titan__v1__list_jobs_request__descriptor,
     .on_request = api_list_jobs},
    {.path = "/titan.v1.Titan/CancelJob",
     .request = &titan__v1__cancel_job_request__descriptor,
     .on_request = api_cancel_job,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/ResizeJob",
     .request = &titan__v1__resize_job_request__descriptor,
     .on_request = api_resize_job,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/CheckpointJob",
     .request = &titan__v1__checkpoint_job_request__descriptor,
     .on_request = api_checkpoint_job,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/DrainNode",
     .request = &titan__v1__drain_node_request__descriptor,
     .on_request = api_drain_node,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/UndrainNode",
     .request = &titan__v1__undrain_node_request__descriptor,
     .on_request = api_undrain_node,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/ForgetNode",
     .request = &titan__v1__forget_node_request__descriptor,
     .on_request = api_forget_node,
     .on_close = api_request_closed},
    {.path = "/titan.v1.Titan/WatchEvents",
     .request = &titan__v1__watch_events_request__descriptor,
     .on_request = api_watch_events,
     .on_drain = api_watch_drain,
     .on_close = api_watch_closed},
    {.path = "/titan.v1.Titan/Logs",
     .request = &titan__v1__logs_request__descriptor,
     .on_request = api_logs,
     .on_drain = api_logs_drain,
     .on_close = api_logs_closed},
    {.path = "/titan.v1.Titan/Metrics",
     .request = &titan__v1__metrics_request__descriptor,
     .on_request = api_metrics,
     .on_drain = api_watch_drain,
     .on_close = api_watch_closed},
    {.path = "/titan.v1.Titan/ListCheckpoints",
     .request = &titan__v1__list_checkpoints_request__descriptor,
     .on_request = api_list_checkpoints},
    {.path = "/titan.v1.Titan/ListNodes",
     .request = &titan__v1__list_nodes_request__descriptor,
     .on_request = api_list_nodes},
    {.path = "/titan.v1.Titan/Backup",
     .request = &titan__v1__backup_request__descriptor,
     .on_request = api_backup,
     .on_drain = api_backup_drain,
     .on_close = api_backup_closed,
     .needs = API_LOCAL},
    {.path = "/titan.v1.Titan/JoinNode",
     .request = &titan__v1__join_node_request__descriptor,
     .on_request = api_join_node,
     .on_close = enrol_call_closed,
     .needs = API_LOCAL},
    {.path = "/titan.v1.Titan/RevokeCertificate",
     .request = &titan__v1__revoke_certificate_request__descriptor,
     .on_request = api_revoke_certificate,
     .on_close = enrol_call_closed,
     .needs = API_LOCAL},
    {.path = "/titan.v1.Titan/Counters",
     .request = &titan__v1__counters_request__descriptor,
     .on_request = api_counters},
    {.path = "/titan.v1.Titan/Version", .request = &titan__v1__version_request__descriptor, .on_request = api_version},
    {.path = "/titan.internal.Coordinator/Session",
     .request = &titan__internal__agent_message__descriptor,
     .on_message = session_on_message,
     .on_close = session_on_close,
     .needs = API_NODE},
    {.path = "/titan.internal.Enrolment/Enroll",
     .request = &titan__internal__enroll_request__descriptor,
     .on_request = api_enroll,
     .on_close = enrol_call_closed},
    {.path = "/titan.internal.Enrolment/Renew",
     .request = &titan__internal__renew_request__descriptor,
     .on_request = api_renew,
     .needs = API_NODE},
};

const struct rpc_method *api_methods(size_t *ret_n)
{
    *ret_n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

titan_status api_authorize(struct rpc_call *call, const struct rpc_method *method, void *data, struct titan_error *err)
{
    const struct coordinator *c = data;
    const struct rpc_identity *identity = rpc_call_identity(call);
    bool local = identity->kind == RPC_ID_UID, certified = identity->kind == RPC_ID_CERT;
    TRY(enrol_admits(c->enrol, call, err));
    if (method->needs == API_LOCAL && !local)
        return titan_fail(err, TITAN_EPERM, "%s is served over a Unix socket only", method->path);
    if (method->needs == API_NODE && !local && !certified && (identity->sealed || !c->options.agents_over_tcp))
        return titan_fail(err, TITAN_EPERM, "this listener does not serve agents without a certificate");
    return TITAN_OK;
}

titan_status api_check_text(const char *field, const char *text, size_t max, struct titan_error *err)
{
    size_t n = strlen(text);
    if (n > max)
        return titan_fail(err, TITAN_EINVAL, "%s has %zu bytes; at most %zu are possible", field, n, max);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return titan_fail(err, TITAN_EINVAL, "%s has a control character at byte %zu", field, i);
    return TITAN_OK;
}
