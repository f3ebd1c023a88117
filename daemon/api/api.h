/* api.h - the handlers of titan.v1.Titan, one file per group: submit.c, requests.c, jobs.c, watch.c, logs.c.
 * data is the
 * coordinator. */
#ifndef TITAN_DAEMON_API_API_H
#define TITAN_DAEMON_API_API_H

#include "daemon/coordinator/shell.h"
#include "titan/v1/titan.pb-c.h"

#define API_NAME_MAX 128
#define API_KEY_MAX 128
#define API_USER_MAX 64
#define API_REASON_MAX 256
#define API_NODE_MAX 253
#define API_PAGE_MAX 1000
#define API_PAGE_DEFAULT 100
#define API_WATCHERS_MAX 1024
#define API_LOG_REQUESTS_MAX 64

/* What a method needs of its caller (rpc_method.needs). */
enum api_needs {
    API_ANYBODY,
    API_NODE,  /* an agent: a Unix socket, or TCP where agents come in */
    API_LOCAL, /* a Unix socket */
};

void api_submit(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_submit_closed(struct rpc_call *call, bool cancelled, void *data);

void api_cancel_job(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_resize_job(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_checkpoint_job(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_drain_node(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_undrain_node(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_forget_node(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_request_closed(struct rpc_call *call, bool cancelled, void *data);

void api_get_job(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_list_jobs(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_list_checkpoints(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_list_nodes(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_backup(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_backup_drain(struct rpc_call *call, void *data);
void api_backup_closed(struct rpc_call *call, bool cancelled, void *data);
void api_counters(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_version(struct rpc_call *call, const ProtobufCMessage *request, void *data);

void api_watch_events(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_metrics(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_watch_drain(struct rpc_call *call, void *data);
void api_watch_closed(struct rpc_call *call, bool cancelled, void *data);

void api_logs(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_logs_drain(struct rpc_call *call, void *data);
void api_logs_closed(struct rpc_call *call, bool cancelled, void *data);
/* Something happened to the job: its followers ask nodes it is new on, and end soon when it has ended. */
void api_logs_job_moved(struct coordinator *c, uint64_t job_id);

Titan__V1__Node *api_node_message(struct batch *memory, const struct core_node *n);
/* Has the job ended, as far as the store knows? TITAN_ENOTFOUND. */
titan_status api_job_ended(struct coordinator *c, uint64_t job_id, bool *ret, struct titan_error *err) TITAN_MUST_USE;
/* A text of a request: at most max bytes and no control characters. TITAN_EINVAL names the field. */
titan_status api_check_text(const char *field, const char *text, size_t max, struct titan_error *err) TITAN_MUST_USE;

#endif
