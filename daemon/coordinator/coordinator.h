/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator.h - the coordinator's shell. It ties the pure core (core.h), the job store (state/store.h) and the
 * agents' sessions to a loop.
 *
 * Input (a request, an agent's message, a timer) -> core -> a batch of store writes and messages. The store's writer
 * thread commits the writes of one loop tick in one transaction. The batch's messages and replies leave only after that
 * commit is durable. */
#ifndef TITAN_DAEMON_COORDINATOR_COORDINATOR_H
#define TITAN_DAEMON_COORDINATOR_COORDINATOR_H

#include <uv.h>

#include "base/error.h"
#include "daemon/auth/paths.h"
#include "daemon/common/ha_members.h"
#include "daemon/coordinator/webhook_options.h"
#include "proto/rpc/server.h"
#include "state/group.h"
#include "titan/internal/agent.pb-c.h"

struct coordinator;

/* Exit code of the process after a failed fsync of the store, because only a new process knows what is on the disk. */
#define COORDINATOR_EXIT_STORE 74 /* EX_IOERR of sysexits.h */

#define COORDINATOR_NO_QUARANTINE UINT32_MAX

/* Callbacks of the request server on top of the coordinator (daemon/api/methods.h). All run on the loop. */
struct coordinator_observer {
    void (*stopping)(struct coordinator *c); /* last chance to store something */
    /* The job has new events or metrics for its watchers. */
    void (*job_changed)(struct coordinator *c, uint64_t job_id);
    /* metrics_stored has grown. For callers that wait until earlier reports are stored. */
    void (*metrics_stored)(struct coordinator *c);
    void (*log_chunk)(struct coordinator *c, uint64_t session, const Titan__Internal__AgentLogChunk *chunk);
    /* A node answers a check. True: the check was an operator's; false: the answer is for the core. */
    bool (*node_checked)(struct coordinator *c, uint64_t session, const Titan__Internal__NodeChecked *m);
    /* A node's answer to a probe with CORE_PROBE_OTHERS. */
    void (*probed)(struct coordinator *c, uint64_t session, const Titan__Internal__ProbeResult *m);
    /* An agent registered with the certificate of another node. For the audit record. */
    void (*session_refused)(struct coordinator *c, const struct rpc_call *call, const struct titan_error *why);
    void (*session_gone)(struct coordinator *c, uint64_t session);
    void (*rights_changed)(struct coordinator *c); /* rights changed; open calls may have lost their rights */
};

/* Limits on the jobs of one owner; 0 = no limit. */
struct user_limits {
    uint32_t pending_jobs, slots, submits_per_minute;
    uint64_t disk_bytes; /* disk usage below jobs_dir */
};

/* One of several coordinators, as the leader sees it. */
struct coordinator_member {
    char name[HA_NAME_MAX];
    bool leads, reached, votes;
    uint64_t lag; /* entries of the log that it has not confirmed */
};

/* The right to lead, of a coordinator that is one of several. */
struct coordinator_lead {
    struct group_log log; /* each transaction of the store goes there first */
    uint64_t term;
    /* False: another coordinator may lead meanwhile. No call but Version is answered, and no heartbeat. */
    bool (*may_answer)(void *data);
    int (*members)(void *data, struct coordinator_member ret[HA_MEMBERS_MAX]); /* returns their number */
    /* Closes this coordinator in order, soon, and makes this member the next one, -1: any. */
    void (*hand_over)(void *data, int to);
    /* The store cannot go on, because the leadership is lost or the disk has failed. Ends the process. */
    void (*lost)(void *data, const struct titan_error *err);
    void *data;
};

struct coordinator_options {
    const struct coordinator_observer *observer; /* outlives the coordinator */
    const char *state_dir;                       /* folder of titan.db; the caller holds its lock */
    const char *jobs_dir;  /* exists already, and all nodes share it; NULL = jobs/ in state_dir, created here */
    const char *head_file; /* file for the heads of the event log; NULL = none; outlives the coordinator */
    bool one_machine;      /* workers run on this machine: Submit checks the paths that a recipe names */
    /* Times as in core_options; 0 = the default there. */
    uint32_t heartbeat_ms, idle_heartbeat_ms, suspect_ms, confirm_ms, node_timeout_ms, reachable_ms, away_ms;
    uint32_t leader_lease_ms;    /* how long agents may go on without a coordinator; 0 = they may not */
    uint32_t quarantine_crashes; /* crashes of workers within 10 minutes that put a node in quarantine; 0 = 3 */
    bool adopt_state;            /* accept a store copied from another directory */
    /* paths for users' run files; NULL = whatever the user may open; outlives the coordinator */
    const struct paths_options *paths;
    const struct auth_options *auth; /* NULL = every caller may call everything (tests) */
    uint32_t node_life_s;            /* lifetime of nodes' certificates; 0 = 7 days */
    /* time limit to open files that may be on a file server, also at the start; 0 = 10 s */
    uint32_t check_ms;
    uint32_t max_pending_jobs; /* further submits fail with TITAN_ELIMIT; 0 = 100000 */
    struct user_limits user;   /* limits on the jobs of one user */
    /* Looks at the daemon's own settings for an operator's check (daemon/config_look.h); NULL = none. */
    void (*look)(const void *settings, void (*found)(void *data, const char *what, bool wrong, const char *text),
                 void *data);
    const void *settings;
    const struct webhooks_options *webhooks; /* endpoints that get events; NULL = none */
    const struct coordinator_lead *lead;     /* outlives the coordinator; NULL = it is the only one */
};

/* Opens (creates, migrates) the store and restores its state. TITAN_EVERSION: the store is from a newer Titan;
 * TITAN_ECORRUPT: it is damaged. Neither store is touched. */
titan_status coordinator_open(uv_loop_t *loop, const struct coordinator_options *options, struct coordinator **ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* Receives agents' heartbeats as datagrams at HOST:PORT, where their sessions connect too. */
titan_status coordinator_listen(struct coordinator *c, const char *address, struct titan_error *err) TITAN_MUST_USE;
/* Sets the coordinator's TLS identity, and renews it in time if the coordinator has the CA's key. Copies `files`, which
 * must match each other and be valid. Call it before the server listens. */
titan_status coordinator_identity(struct coordinator *c, const struct rpc_tls *files,
                                  struct titan_error *err) TITAN_MUST_USE;
/* Adds one of at most two servers of the coordinator's methods. The server must outlive every call of these methods. */
void coordinator_served_by(struct coordinator *c, struct rpc_server *server);
/* Replaces the lists of users with roles, and the endpoints for events. A user that loses a role loses the open calls
 * that need it. On failure the endpoints stay as they are. */
titan_status coordinator_reload(struct coordinator *c, const struct auth_options *auth,
                                const struct webhooks_options *webhooks, struct titan_error *err) TITAN_MUST_USE;
/* The coordinator serves TLS at HOST:PORT; agents: to agents only. */
void coordinator_serves_tls(struct coordinator *c, const char *address, bool agents);
/* Stops taking input, commits accepted input, closes the store, then calls done on the loop. Jobs go on. */
void coordinator_close(struct coordinator *c, void (*done)(void *), void *data);

/* Is the writer alive, and is the loop's last commit recent enough? For the watchdog. */
bool coordinator_healthy(const struct coordinator *c);
/* Does the coordinator take changes now? Otherwise err has the reason: it stops, is fenced, or its store is stuck. */
titan_status coordinator_ready(const struct coordinator *c, struct titan_error *err) TITAN_MUST_USE;

#endif
