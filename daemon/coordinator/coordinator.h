/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator.h - the coordinator's shell: the pure core (core.h), the job store (state/store.h) and the agents'
 * sessions, tied to a loop.
 *
 * Input (a request, an agent's message, a timer) -> core -> a batch of store writes and messages. The writes of
 * one loop tick are committed as one transaction by the store's writer thread; the messages and replies of the batch
 * leave only after it is durable. */
#ifndef TITAN_DAEMON_COORDINATOR_COORDINATOR_H
#define TITAN_DAEMON_COORDINATOR_COORDINATOR_H

#include <uv.h>

#include "base/error.h"
#include "daemon/auth/paths.h"
#include "proto/rpc/server.h"
#include "titan/internal/agent.pb-c.h"

struct coordinator;

/* Exit code of the process when an fsync of the store has failed: only a new process knows again what is on the disk.
 */
#define COORDINATOR_EXIT_STORE 74 /* EX_IOERR of sysexits.h */

#define COORDINATOR_NO_QUARANTINE UINT32_MAX

/* What serves requests on top of the coordinator, and gets what it has to pass on (daemon/api/methods.h). All on
 * the loop. */
struct coordinator_observer {
    void (*stopping)(struct coordinator *c); /* the last time that something can be stored */
    /* Something new for the watchers of this job: events, metrics. */
    void (*job_changed)(struct coordinator *c, uint64_t job_id);
    /* metrics_stored has moved: for callers that wait for earlier reports only. */
    void (*metrics_stored)(struct coordinator *c);
    void (*log_chunk)(struct coordinator *c, uint64_t session, const Titan__Internal__AgentLogChunk *chunk);
    /* An answer to an operator's check; false: it is for the core. */
    bool (*node_checked)(struct coordinator *c, uint64_t session, const Titan__Internal__NodeChecked *m);
    /* A node's answer to a probe with CORE_PROBE_OTHERS. */
    void (*probed)(struct coordinator *c, uint64_t session, const Titan__Internal__ProbeResult *m);
    /* A registration with the certificate of another node: for the record. */
    void (*session_refused)(struct coordinator *c, const struct rpc_call *call, const struct titan_error *why);
    void (*session_gone)(struct coordinator *c, uint64_t session);
    void (*rights_changed)(struct coordinator *c); /* of callers that may have calls open */
};

/* Of jobs, by owner; 0 = no limit. */
struct user_limits {
    uint32_t pending_jobs, slots, submits_per_minute;
    uint64_t disk_bytes; /* below jobs_dir */
};

struct coordinator_options {
    const struct coordinator_observer *observer; /* outlives all */
    const char *state_dir;                       /* titan.db lives here; the caller holds its lock */
    const char *jobs_dir;  /* is there already, and all nodes see it; NULL = jobs/ in state_dir, which is made */
    const char *head_file; /* gets the heads of the event log; NULL = none does; outlives all */
    bool one_machine;      /* workers run where the coordinator does: what a recipe names is looked at on submit */
    /* As in core_options; 0 = what core.h says. */
    uint32_t heartbeat_ms, suspect_ms, confirm_ms, node_timeout_ms, reachable_ms, away_ms;
    uint32_t leader_lease_ms;          /* agents may go on without a coordinator for so long; 0 = they may not */
    uint32_t quarantine_crashes;       /* of workers within 10 minutes put a node in quarantine; 0 = 3 */
    bool adopt_state;                  /* the store may be a copy of another directory's */
    const struct paths_options *paths; /* that users' run files may name; NULL = what they may open; outlives all */
    const struct auth_options *auth;   /* NULL: every caller may everything (tests) */
    uint32_t node_life_s;              /* of certificates that nodes get; 0 = 7 days */
    uint32_t check_ms;                 /* to open what may be on a file server, at the start too; 0 = 10 s */
    uint32_t max_pending_jobs;         /* submits beyond it fail with TITAN_ELIMIT; 0 = 100000 */
    struct user_limits user;           /* the same */
};

/* Opens (creates, migrates) the store and continues where it says. TITAN_EVERSION for a store from a newer Titan,
 * TITAN_ECORRUPT for a damaged one; neither is touched then. */
titan_status coordinator_open(uv_loop_t *loop, const struct coordinator_options *options, struct coordinator **ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* Takes agents' heartbeats as datagrams at HOST:PORT, where their sessions come in too. */
titan_status coordinator_listen(struct coordinator *c, const char *address, struct titan_error *err) TITAN_MUST_USE;
/* Its TLS identity: renewed when it is time, where it has the CA's key. files are copied; they must fit each
 * other and be valid. Before the server listens. */
titan_status coordinator_identity(struct coordinator *c, const struct rpc_tls *files,
                                  struct titan_error *err) TITAN_MUST_USE;
/* One of the two servers of its methods at most; it outlives every call of them. */
void coordinator_served_by(struct coordinator *c, struct rpc_server *server);
/* Other lists of users with roles: a user without a role that it had loses the calls that go on by it. */
void coordinator_reload(struct coordinator *c, const struct auth_options *auth);
/* It is served over TLS at HOST:PORT; agents: to agents only. */
void coordinator_serves_tls(struct coordinator *c, const char *address, bool agents);
/* Stops taking input, commits what was accepted, closes the store, then calls done on the loop. Jobs go on. */
void coordinator_close(struct coordinator *c, void (*done)(void *), void *data);

/* Is the writer alive and the loop's last commit younger than this? For the watchdog. */
bool coordinator_healthy(const struct coordinator *c);

#endif
