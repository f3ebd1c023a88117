/* SPDX-License-Identifier: Apache-2.0 */
/* shell.h - the coordinator's shell, as seen by its files: coordinator.c (open, close), commits.c (store, time),
 * sessions.c and agent_streams.c (agents), daemon/api (requests). Loop thread only. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_SHELL_H
#define TITAN_DAEMON_COORDINATOR_SHELL_SHELL_H

#include <limits.h>

#include "base/log.h"
#include "daemon/auth/audit.h"
#include "daemon/auth/identity.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/core.h"
#include "daemon/coordinator/shell/job_cache.h"
#include "daemon/common/file_pool.h"
#include "daemon/common/jobs_dir.h"
#include "state/store.h"

struct agent_session;
struct backfill;
struct disk_usage;
struct quota;
struct heartbeat_socket;
struct enrol;
struct commit;
struct watcher;
struct log_request;
struct webhooks;
struct check_request;
struct backup;

#define METRICS_BUFFER METRICS_UNSTORED
#define SESSION_BUCKETS 1024

struct coordinator {
    uv_loop_t *loop;
    struct log log;
    struct coordinator_options options;
    char state_dir[PATH_MAX], jobs_dir[PATH_MAX], jobs_token[JOBS_TOKEN_MAX];
    int64_t started_wall_ms;
    struct store *store;
    struct core *core;
    struct job_cache *jobs; /* may be NULL */
    uv_timer_t timer, retry_timer, metrics_timer, audit_timer, review_timer, disk_timer, head_timer;
    int64_t review_at_ms;          /* wall clock: when a right of an open call ends; 0 = no such time is known */
    struct rpc_server *servers[2]; /* servers of its methods; NULL = none */
    struct auth *auth;             /* NULL = every caller may call everything */
    struct audit *audit;
    struct log_head *head;   /* NULL until the store is open */
    struct disk_usage *disk; /* NULL = disk usage is not limited */
    struct webhooks *webhooks;
    struct quota *quotas; /* quotas of submitting users; daemon/api/quota.h */
    int open_handles;
    bool closing;

    /* Batches on their way into the store, in order of their sequence numbers. The store takes batches in this order
     * only. A failed batch (full disk) holds up the later batches until it is stored. */
    struct commit *commits, **commits_tail;
    uint64_t next_sequence;
    size_t in_flight;
    bool stalled; /* the store refused a commit; new work is refused until it is stored */
    bool again;   /* a commit was changed: this commit and the later commits are handed over again */
    struct titan_error stall;

    uint64_t next_job_id;    /* owned by the store's writer thread once it writes submits */
    size_t submitting;       /* submits that are not durable yet */
    struct file_pool *files; /* for files that may be on a file server: paths of recipes, folders of jobs */

    struct metric metrics[METRICS_BUFFER]; /* metrics not yet handed to the store */
    size_t n_metrics;
    uint64_t metrics_taken, metrics_stored; /* counts since the start; metrics are stored in the order taken */
    bool metrics_failed;                    /* the failure was logged */
    struct backfill *backfills;             /* metrics of ended jobs, or of jobs with gaps, until they are stored */

    struct agent_session *sessions[SESSION_BUCKETS];
    uint64_t next_session;
    uint64_t refusal_reported; /* hash of the reason for which a session ended, as last logged */
    int64_t refusal_reported_ms;
    struct heartbeat_socket *heartbeat_sockets; /* receive heartbeats as datagrams */
    struct enrol *enrol;
    struct backup *backup; /* backup being sent; NULL = none */
    int64_t backup_at_ms;  /* wall clock: end of the last complete backup; 0 = none */
    struct watcher *watchers;
    size_t n_watchers;
    struct check_request *check_requests;
    uint64_t next_check_request, next_check_probe;
    struct log_request *log_requests;
    uint64_t next_log_request;

    void (*closed)(void *);
    void *closed_data;
};

struct core_time shell_now(const struct coordinator *c);
void shell_part_closed(void *coordinator);    /* one of open_handles is closed; the last one ends the shell */
void shell_free_parts(struct coordinator *c); /* frees the parts of a shell that has not opened */
/* Hands the collected metrics to the store now. */
void shell_flush_metrics(struct coordinator *c);
/* Are metrics from the file of the job's workers being read or stored? */
bool shell_fills_metrics(const struct coordinator *c, uint64_t job_id);
/* Called with err NULL once the batch is durable. Called with the error while the batch is not durable (the store tries
 * again). */
typedef void (*shell_done)(void *arg, const struct titan_error *err);
/* Takes over the core's batch and leaves it empty. done may be NULL. */
void shell_commit(struct coordinator *c, struct batch *batch, shell_done done, void *arg);
/* TITAN_OK, or why the store can take no change now. */
/* False: this coordinator is one of several, and another may lead by now. */
bool shell_may_answer(const struct coordinator *c);
titan_status shell_accepts(const struct coordinator *c, struct titan_error *err) TITAN_MUST_USE;

/* --- agent_streams.c ---------------------------------------------------------------------------------------------- */
void session_on_message(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void session_on_close(struct rpc_call *call, bool cancelled, void *data);
/* --- sessions.c --------------------------------------------------------------------------------------------------- */
/* Sends to a session; no-op when it is over. */
void session_post(struct coordinator *c, uint64_t session, const Titan__Internal__CoordinatorMessage *m);
/* Did the session connect over a Unix socket, that is from this machine? */
bool session_is_local(const struct coordinator *c, uint64_t session);
void session_post_packed(struct coordinator *c, uint64_t session, const struct rpc_packed *packed);
void session_drop(struct coordinator *c, uint64_t session);
/* A certificate is revoked: ends all sessions opened with its name and takes no more messages from them. Session
 * `except` (0 = none) stays open until session_drop(), so that last commands still reach it. Returns the number of
 * sessions of that name. */
uint32_t session_revoked(struct coordinator *c, const char *uri, uint64_t except);

/* The session is revoked and stays open only for the last commands to its agent; session_drop() ends it. */
bool session_takes_last_words(const struct rpc_call *call);

/* --- heartbeat_sockets.c ------------------------------------------------------------------------------------------ */
void heartbeat_sockets_close(struct coordinator *c); /* each socket is one of open_handles */

#endif
