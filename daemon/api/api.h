/* SPDX-License-Identifier: Apache-2.0 */
/* api.h - the handlers of titan.v1.Titan, one file per group: submit.c, requests.c, remove.c, jobs.c, watch.c, logs.c,
 * tokens.c, certificates.c, backup.c, check.c; scrape.c has the metrics over HTTP. api.c has the table of methods;
 * access.c decides what a caller may do. The handlers' data is the coordinator. docs/api.md, "Adding a method", has the
 * steps. */
#ifndef TITAN_DAEMON_API_API_H
#define TITAN_DAEMON_API_API_H

#include "daemon/api/methods.h"
#include "daemon/coordinator/shell/shell.h"
#include "titan/v1/titan.pb-c.h"

/* Text lengths, as in titan.proto. */
#define API_NAME_MAX 128
#define API_REASON_MAX 256
#define API_PAGE_MAX 1000
#define API_COUNT_MAX 20000 /* jobs counted for one answer, at most */
#define API_PAGE_DEFAULT 100
#define API_WATCHERS_MAX 1024
#define API_WATCHERS_OF_ONE_MAX 256 /* per identity */
#define API_LOG_REQUESTS_MAX 64
#define API_LOG_REQUESTS_OF_ONE_MAX 16

/* Messages of a reply under construction; memory owns them. */
struct reply {
    struct coordinator *c;
    struct arena memory;
    void **items;
    size_t n, cap;
};
void api_reply_add(struct reply *r, void *item);
void api_reply_free(struct reply *r);

/* Convert to the API's messages. Texts are borrowed; `memory` has the parts of a point. */
Titan__V1__Evaluation api_evaluation(const struct evaluation_report *e);
struct api_point {
    Titan__V1__MetricPoint point;
    Titan__V1__Evaluation evaluation;
    Titan__V1__StepSplit split;
    Titan__V1__ExpertLoad experts;
};
const Titan__V1__MetricPoint *api_metric_point(const struct metric *x, struct api_point *memory);

/* --- what the coordinator tells, see struct coordinator_observer -------------------------------------------------- */
void api_watch_poke(struct coordinator *c, uint64_t job_id);
void api_watch_metrics_stored(struct coordinator *c);
void api_log_chunk(struct coordinator *c, uint64_t session, const Titan__Internal__AgentLogChunk *chunk);
bool api_node_checked(struct coordinator *c, uint64_t session, const Titan__Internal__NodeChecked *m);
void api_probed(struct coordinator *c, uint64_t session, const Titan__Internal__ProbeResult *m);
void api_session_refused(struct coordinator *c, const struct rpc_call *call, const struct titan_error *why);
void api_session_gone(struct coordinator *c, uint64_t session);
/* Stores the audit's counts (audit.h) of minutes that are over, or with `all` of every minute. */
void api_audit_flush(struct coordinator *c, bool all);

/* --- access.c: rpc_method.needs is a row of daemon/auth/policy.h -------------------------------------------------- */
void api_user(const struct coordinator *c, const struct rpc_call *call, struct auth_user *ret);
/* Returns the user's key, by which requests are counted and idempotency keys of different users are kept apart:
 * "uid:N", "user:NAME", "user:" without a name. */
const char *api_user_key(struct arena *memory, const struct auth_user *u);
/* May this identity call the method on this job? TITAN_EPERM, TITAN_ENOTFOUND (also for a job that it may not know of).
 * A refusal goes on record. */
titan_status api_may(struct coordinator *c, const struct auth_user *u, unsigned method, uint64_t job_id,
                     struct titan_error *err) TITAN_MUST_USE;
/* The one decision on authority: may this identity, as it is now, call the method? Callers ask when a call begins and
 * when its message arrives. A handler that stores something in a later loop turn asks again. When rights change,
 * api_review() asks for all open calls. ret: the identity's user, always set. TITAN_EPERM has the reason. */
titan_status api_admit(struct coordinator *c, const struct rpc_identity *identity, unsigned method,
                       struct auth_user *ret, struct titan_error *err) TITAN_MUST_USE;
/* Call it when rights have ended or changed. Ends calls and connections that have lost their rights. */
void api_review(struct coordinator *c);
/* May the user see all jobs, or only its own jobs? */
bool api_sees_all(const struct coordinator *c, const struct auth_user *u, unsigned method);
/* Puts the call on record, in the batch of its changes. */
void api_audit(struct batch *out, const struct auth_user *u, unsigned method, uint64_t job_id);
/* api_audit() for a call without a batch: the record gets its own batch. */
void api_on_record(struct coordinator *c, const char *actor, unsigned method);
/* Returns the record of api_audit() as an event, for a handler that writes to the store itself. memory owns the texts
 * of the event. */
struct event api_audit_event(struct arena *memory, const struct auth_user *u, unsigned method, uint64_t job_id);
/* The call fails with err. A refusal, or a failed call that would have changed something, goes on record, at once or
 * counted. */
void api_failed(struct coordinator *c, const struct auth_user *u, unsigned method, uint64_t job_id,
                const struct titan_error *err);

void api_submit(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_submit_closed(struct rpc_call *call, bool cancelled, void *data);

void api_cancel_job(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_remove_job(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_remove_job_closed(struct rpc_call *call, bool cancelled, void *data);
void api_resize_job(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_checkpoint_job(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_drain_node(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_undrain_node(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_remove_node(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_forget_node(struct rpc_call *call, const ProtobufCMessage *request, void *data);
/* The on_close of calls that wait for the store. Such a call's data begins with the pointer to the call. The pointer
 * becomes NULL. */
void api_request_closed(struct rpc_call *call, bool cancelled, void *data);

void api_get_job(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_get_recipe(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_list_jobs(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_list_checkpoints(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_list_nodes(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_audit_trail(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_create_token(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_list_tokens(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_revoke_token(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_check_nodes(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_check_nodes_closed(struct rpc_call *call, bool cancelled, void *data);
void api_backup(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_backup_drain(struct rpc_call *call, void *data);
void api_backup_closed(struct rpc_call *call, bool cancelled, void *data);
void api_counters(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_version(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_list_coordinators(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_hand_over(struct rpc_call *call, const ProtobufCMessage *request, void *data);

void api_watch_events(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_metrics(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_watch_drain(struct rpc_call *call, void *data);
void api_watch_closed(struct rpc_call *call, bool cancelled, void *data);

void api_join_node(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_list_joins(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_revoke_join(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_revoke_certificate(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_enroll(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_renew(struct rpc_call *call, const ProtobufCMessage *request, void *data);

void api_logs(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void api_logs_drain(struct rpc_call *call, void *data);
void api_logs_closed(struct rpc_call *call, bool cancelled, void *data);
/* Call it when the job has changed. Streams that follow its logs ask its new nodes, and end soon after the job has
 * ended. */
void api_logs_job_moved(struct coordinator *c, uint64_t job_id);

Titan__V1__Node *api_node_message(struct arena *memory, const struct core_node *n);
/* The state of the stored job, and whether it has ended. TITAN_ENOTFOUND. */
titan_status api_job_state(struct coordinator *c, uint64_t job_id, enum job_state *ret,
                           struct titan_error *err) TITAN_MUST_USE;
titan_status api_job_ended(struct coordinator *c, uint64_t job_id, bool *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
