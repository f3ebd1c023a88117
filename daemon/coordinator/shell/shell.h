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
    int64_t review_at_ms;          /* of the wall clock: a right of an open call ends; 0 = none is known to */
    struct rpc_server *servers[2]; /* that serve it; NULL = none */
    struct auth *auth;             /* NULL: every caller may everything */
    struct audit *audit;
    struct log_head *head;   /* NULL until the store is open */
    struct disk_usage *disk; /* NULL = it is not limited */
    struct quota *quotas;    /* of users that submit; daemon/api/quota.h */
    int open_handles;
    bool closing;

    /* Batches on their way into the store, in order. Each carries its sequence number; the store takes them in
     * sequence only, so one that fails (full disk) holds up those behind it until it goes in. */
    struct commit *commits, **commits_tail;
    uint64_t next_sequence;
    size_t in_flight;
    bool stalled; /* the store refused a commit; new work is refused until that one is stored */
    bool again;   /* a commit was changed: it goes in once more, and so do those behind it */
    struct titan_error stall;

    uint64_t next_job_id;    /* the store's writer thread's, once it writes submits */
    size_t submitting;       /* not durable yet */
    struct file_pool *files; /* for what may be on a file server: paths of recipes, folders of jobs */

    struct metric metrics[METRICS_BUFFER]; /* not handed to the store yet */
    size_t n_metrics;
    uint64_t metrics_taken, metrics_stored; /* counts since the start; what is taken gets stored in order */
    bool metrics_failed;                    /* said once */
    struct backfill *backfills;             /* of jobs that have ended or have gaps, until they are stored */

    struct agent_session *sessions[SESSION_BUCKETS];
    uint64_t next_session;
    uint64_t refusal_said; /* the hash of why a session ended, as logged last */
    int64_t refusal_said_ms;
    struct heartbeat_socket *heartbeat_sockets; /* sockets that take them */
    struct enrol *enrol;                        /* enrol.h */
    struct backup *backup;                      /* that is sent; NULL = none */
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
void shell_part_closed(struct coordinator *c); /* one of open_handles is closed; the last one ends the shell */
void shell_free_parts(struct coordinator *c);  /* of one that has not opened */
/* Hand the metrics that were collected to the store now. */
void shell_flush_metrics(struct coordinator *c);
/* What the job's workers wrote down is being read, or on its way into the store. */
bool shell_fills_metrics(const struct coordinator *c, uint64_t job_id);
/* Called with the outcome once the batch is durable, or with the error while it is not (it will be tried again). */
typedef void (*shell_done)(void *arg, const struct titan_error *err);
/* Take over what the core has put into batch (left empty). done may be NULL. */
void shell_commit(struct coordinator *c, struct batch *batch, shell_done done, void *arg);
/* TITAN_OK, or why nothing that changes the store can be taken now. */
titan_status shell_accepts(const struct coordinator *c, struct titan_error *err) TITAN_MUST_USE;

/* --- agent_streams.c ---------------------------------------------------------------------------------------------- */
void session_on_message(struct rpc_call *call, const ProtobufCMessage *request, void *data);
void session_on_close(struct rpc_call *call, bool cancelled, void *data);
/* --- sessions.c --------------------------------------------------------------------------------------------------- */
/* Send to a session; nothing happens when it is over. */
void session_post(struct coordinator *c, uint64_t session, const Titan__Internal__CoordinatorMessage *m);
/* It came over a Unix socket: from this machine. */
bool session_is_local(const struct coordinator *c, uint64_t session);
void session_post_packed(struct coordinator *c, uint64_t session, const struct rpc_packed *packed);
void session_drop(struct coordinator *c, uint64_t session);
/* A certificate is revoked: ends all sessions that were opened with its name and takes no more messages from them.
 * The session `except` (0 = none) stays open until session_drop(), so that last commands still reach it. Returns how
 * many sessions there are of that name. */
uint32_t session_revoked(struct coordinator *c, const char *uri, uint64_t except);

/* It is revoked and stays open for the last commands to its agent only; session_drop() ends it. */
bool session_takes_last_words(const struct rpc_call *call);

/* --- heartbeat_sockets.c ------------------------------------------------------------------------------------------ */
void heartbeat_sockets_close(struct coordinator *c); /* each socket is one of open_handles */

#endif
