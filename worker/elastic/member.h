/* SPDX-License-Identifier: Apache-2.0 */
/* member.h - a worker's part in the membership protocol (docs/membership.md) as a pure state machine.
 *
 * Inputs are calls: what the agent says, its connection, the time, and what the training thread asks and reports.
 * Outputs are the calls of struct member_host, made from inside an input, and what the queries answer. There is no
 * socket, clock, thread, lock or file in here: agent_connection.c drives one per process, the simulator thousands. One
 * caller at a time.
 *
 * It is out of every epoch, or *in* one: from member_next until member_quiesced, member_finished or the next
 * member_next. At most one later epoch is *on offer*.
 *
 * What it refuses has no effect, is counted, and reported once per connection:
 *   - a command of a lower term than it has seen (leases are the agent's own word and have none);
 *   - an epoch that is not above every one it was offered, has formed or was told to leave;
 *   - another communicator id for an epoch it knows: that is reported as EpochRefused as well;
 *   - a command to form that makes no sense (no member in it, not this worker, too many, no id).
 * When the lease of its epoch is over it is out of every epoch, as if it had been revoked.
 * The same command again is counted as a duplicate and has no effect either.
 *
 * What the agent may have kept to itself before it died is state here, not a queue: member_connected registers and all
 * that still holds, so everything said may be lost with a connection, and may be heard twice. */
#ifndef TITAN_WORKER_ELASTIC_MEMBER_H
#define TITAN_WORKER_ELASTIC_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "titan/internal/worker.pb-c.h"
#include "worker/elastic/membership.h"

#define MEMBER_LEASE_MS 30000       /* until an agent says otherwise */
#define MEMBER_LEASE_GRACE_MS 10000 /* from the end of the lease to the end of the process */
#define MEMBER_QUIESCE_MS 1000      /* from a revoke to the end of the process, for a worker that stands still */
#define MEMBER_QUIESCE_MOVING 10    /* as many times that for one that moves, but does not leave */
#define MEMBER_UNCONFIRMED_MAX 8    /* checkpoints that are said again */

struct member_options {
    uint64_t job_id, worker_id;
    int64_t pid;
    unsigned char token[16];
    const char *address;                           /* where peers reach it; copied */
    uint32_t lease_ms, lease_grace_ms, quiesce_ms; /* 0 = the numbers above */
};

/* Why the process is to end at once. */
enum member_end {
    MEMBER_END_LEASE,     /* exit: no agent for the whole lease, and still running after the grace */
    MEMBER_END_UNQUIESCED /* SIGKILL itself: the revoked epoch is not left */
};

struct member_host {
    void *arg;
    /* To the agent; called while connected only. Borrowed until it returns. */
    void (*send)(void *arg, const Titan__Internal__WorkerToAgent *message);
    /* Its next epoch is to have so many members. A hint. NULL = not wanted. */
    void (*expect)(void *arg, int world);
    /* The epoch it is in is over: every wait on its communicators ends. Once an epoch. */
    void (*revoke)(void *arg, uint64_t epoch);
    /* End the process now; words are for the page. Called once. */
    void (*end)(void *arg, enum member_end why, const char *words);
    /* For the log; pairs are key=value. NULL = not wanted. */
    void (*note)(void *arg, const char *sentence, const char *pairs);
};

struct member_counters {
    uint64_t fenced;     /* commands of a lower term */
    uint64_t stale;      /* commands about an epoch that is over */
    uint64_t conflicts;  /* another membership under a number that is taken */
    uint64_t nonsense;   /* commands that cannot be followed */
    uint64_t duplicates; /* commands that were known */
};

/* Where it stands; for the page, registrations and invariants. */
struct member_state {
    uint64_t term;    /* highest heard */
    uint64_t seen;    /* highest epoch it was offered, formed or was told to leave */
    uint64_t epoch;   /* the one it is in or was in last; 0 = none yet */
    uint64_t revoked; /* epochs up to here never form */
    uint64_t offered; /* 0 = none */
    bool opened;      /* its data and device are open: it is ready */
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

/* The connection is up: registration and what holds is said. */
void member_connected(struct member *m, int64_t now_ms);
/* It is down; nothing is said until it is up again. */
void member_disconnected(struct member *m);
/* True when this was a command to form an epoch and is on offer now (a descriptor that came with it is wanted). */
bool member_hear(struct member *m, const Titan__Internal__AgentToWorker *message, int64_t now_ms);
/* Peers reach it at another address from now on: it is ready once more, with that one. */
void member_moved(struct member *m, const char *address);
/* At member_deadline at the latest. actions: the page's count, to tell a worker that moves from one that does not. */
void member_tick(struct member *m, int64_t now_ms, uint64_t actions);
/* INT64_MAX: nothing is due. */
int64_t member_deadline(const struct member *m);

/* --- the training thread ------------------------------------------------------------------------------------------ */

enum member_answer { MEMBER_WAIT, MEMBER_FORM, MEMBER_STOPPED };
/* It can enter an epoch: the agent is told that it is ready, now or when it is connected. Once, before member_next. */
void member_opened(struct member *m);
/* Enter the epoch on offer: *ret is valid until the next one is entered (memfd is -1: the host has it).
 * MEMBER_WAIT: none is on offer; ask again after the next input. MEMBER_STOPPED: member_stop_reason says why. */
enum member_answer member_next(struct member *m, struct epoch_view *ret);
const char *member_stop_reason(const struct member *m);
/* Bits of COMMAND_*, for the next step boundary. A checkpoint without a pause is given once. */
unsigned member_commands(struct member *m);
void member_quiesced(struct member *m, const struct quiesced *q);
void member_state_ready(struct member *m, const struct state_ready *ready);
/* wall_ms: when, for people. */
void member_progress(struct member *m, const struct step_report *report, int64_t wall_ms);
void member_evaluated(struct member *m, const struct evaluation_report *report);
void member_checkpoint_written(struct member *m, const struct checkpoint_report *report);
void member_checkpoint_failed(struct member *m, uint64_t step, const char *path, const char *reason, bool reading);
void member_finished(struct member *m, uint64_t step);
void member_failing(struct member *m, int exit_code, const char *reason);

const struct member_state *member_state(const struct member *m);

#endif
