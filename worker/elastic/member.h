/* SPDX-License-Identifier: Apache-2.0 */
/* member.h - a worker's part in the membership protocol (docs/membership.md) as a pure state machine.
 *
 * Inputs are calls: the agent's messages, its connection, the time, and the training thread's questions and reports.
 * Outputs are the calls of struct member_host, which are made during an input, and the answers of queries. There is no
 * socket, clock, thread, lock or file: agent_connection.c drives one member per process, the simulator thousands. One
 * caller at a time.
 *
 * A member is *in* an epoch from member_next until member_quiesced, member_finished or the next member_next. Otherwise
 * it is out of every epoch. At most one later epoch is *on offer*.
 *
 * A refused command has no effect. It is counted, and reported once per connection:
 *   - a command of a lower term than the highest seen (leases come from the agent itself and have no term);
 *   - an epoch not above all epochs that were offered, formed or revoked;
 *   - another communicator id for a known epoch, which is also reported as EpochRefused;
 *   - an invalid command to form (no members, not this worker, too many members, no id).
 * When the lease of its epoch ends, the member leaves the epoch, as after a revoke. A repeated command is counted as a
 * duplicate and has no effect.
 *
 * Reports that a dead agent may not have passed on are kept as state, not in a queue. member_connected registers the
 * member and sends again every report that still holds. So a message may be lost with its connection, or may arrive
 * twice. */
#ifndef TITAN_WORKER_ELASTIC_MEMBER_H
#define TITAN_WORKER_ELASTIC_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "titan/internal/worker.pb-c.h"
#include "worker/elastic/membership.h"

#define MEMBER_LEASE_MS 30000       /* lease until an agent gives another lease */
#define MEMBER_LEASE_GRACE_MS 10000 /* from the end of the lease to the end of the process */
#define MEMBER_QUIESCE_MS 1000      /* from a revoke to the end of the process, for a worker without progress */
#define MEMBER_QUIESCE_MOVING 10    /* factor for a worker that makes progress but does not leave */
#define MEMBER_UNCONFIRMED_MAX 8    /* checkpoint reports kept for resending */

struct member_options {
    uint64_t job_id, worker_id;
    int64_t pid;
    unsigned char token[16];
    const char *address;                           /* for its peers; copied */
    uint32_t lease_ms, lease_grace_ms, quiesce_ms; /* 0 = the numbers above */
};

/* Why the process must end at once. */
enum member_end {
    MEMBER_END_LEASE,     /* exit: no agent was heard for the whole lease, and the worker still runs after the grace */
    MEMBER_END_UNQUIESCED /* SIGKILL to itself: the worker did not leave the revoked epoch */
};

struct member_host {
    void *arg;
    /* Sends to the agent; called only while connected. message is borrowed until the return. */
    void (*send)(void *arg, const Titan__Internal__WorkerToAgent *message);
    /* This worker's next epoch will have this many members. A hint. NULL = not wanted. */
    void (*expect)(void *arg, int world);
    /* The current epoch is over: every wait on its communicators must end. Once per epoch. */
    void (*revoke)(void *arg, uint64_t epoch);
    /* Ends the process now. The words go to the page. Called once. */
    void (*end)(void *arg, enum member_end why, const char *words);
    /* A log line; pairs are key=value. NULL = not wanted. */
    void (*note)(void *arg, const char *sentence, const char *pairs);
};

struct member_counters {
    uint64_t fenced;     /* commands of a lower term */
    uint64_t stale;      /* commands about an epoch that is over */
    uint64_t conflicts;  /* another membership under a known number */
    uint64_t nonsense;   /* invalid commands */
    uint64_t duplicates; /* repeated commands */
};

/* The member's current state, for the page, registrations and invariants. */
struct member_state {
    uint64_t term;    /* highest received */
    uint64_t seen;    /* highest epoch that was offered, formed or revoked */
    uint64_t epoch;   /* the member's current or last epoch; 0 = none yet */
    uint64_t revoked; /* epochs up to this number never form */
    uint64_t offered; /* 0 = none */
    bool opened;      /* the worker's data and device are open, so it can enter epochs */
    bool in, in_revoked, connected, stopped, lease_over;
    Titan__Internal__WorkerPhase phase;
    uint64_t step; /* last committed */
    int rank;
    struct member_counters counters;
};

struct member;

/* NULL when out of memory. */
struct member *member_open(const struct member_options *options, const struct member_host *host, int64_t now_ms);
void member_close(struct member *m); /* NULL is fine */

/* --- the agent and the time --------------------------------------------------------------------------------------- */

/* Call when the connection is up. Sends the registration and all reports that still hold. */
void member_connected(struct member *m, int64_t now_ms);
/* Call when the connection is down. Nothing is sent until member_connected. */
void member_disconnected(struct member *m);
/* True: message was a command to form an epoch, which is on offer now (keep the descriptor that came with it). */
bool member_hear(struct member *m, const Titan__Internal__AgentToWorker *message, int64_t now_ms);
/* Call when the worker's address for peers has changed. If it is ready, it reports this again with the new address. */
void member_moved(struct member *m, const char *address);
/* Call at member_deadline at the latest. actions: the page's count, which shows whether the worker makes progress. */
void member_tick(struct member *m, int64_t now_ms, uint64_t actions);
/* INT64_MAX = none. */
int64_t member_deadline(const struct member *m);

/* --- the training thread ------------------------------------------------------------------------------------------ */

enum member_answer { MEMBER_WAIT, MEMBER_FORM, MEMBER_STOPPED };
/* Tells the agent, now or on the next connection, that the worker can enter an epoch. Call once, before member_next. */
void member_opened(struct member *m);
/* Enters the epoch on offer: *ret is valid until the next epoch is entered. Its memfd is -1, because the host has the
 * descriptor. MEMBER_WAIT: no epoch is on offer; ask again after the next input. MEMBER_STOPPED: member_stop_reason has
 * the reason. */
enum member_answer member_next(struct member *m, struct epoch_view *ret);
const char *member_stop_reason(const struct member *m);
/* Bits of COMMAND_*, for the next step boundary. A checkpoint without a pause is returned once. */
unsigned member_commands(struct member *m);
void member_quiesced(struct member *m, const struct quiesced *q);
void member_state_ready(struct member *m, const struct state_ready *ready);
/* wall_ms: wall clock of the report, for people. */
void member_progress(struct member *m, const struct step_report *report, int64_t wall_ms);
void member_evaluated(struct member *m, const struct evaluation_report *report);
void member_checkpoint_written(struct member *m, const struct checkpoint_report *report);
void member_checkpoint_failed(struct member *m, uint64_t step, const char *path, const char *reason, bool reading);
void member_finished(struct member *m, uint64_t step);
void member_failing(struct member *m, int exit_code, const char *reason);

const struct member_state *member_state(const struct member *m);

#endif
