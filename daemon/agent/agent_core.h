/* SPDX-License-Identifier: Apache-2.0 */
/* agent_core.h - what a node's agent decides: without clock, socket, file, process or thread.
 *
 * Every input carries the time (milliseconds of one machine's monotonic clock, as all times here) and appends actions
 * to a list. The caller carries them out in order, those of an earlier input first. An AGENT_RECORD_* is carried out
 * when it is on disk, and what is behind it waits until then: no command is obeyed and no message answered before what
 * it rests on would survive a crash. Should the process die in between, the next one restores what is on disk, and
 * nothing else has been seen outside. A record that cannot be written is tried again; meanwhile the agent sends no
 * heartbeats, and its node is lost to the coordinator.
 *
 * Rules (docs/membership.md):
 *  - A coordinator of a lower term than the highest that this node has seen is not obeyed, nor an epoch lower than the
 *    highest that it has accepted. An epoch's number has one communicator id, accepted or promised.
 *  - A worker speaks for itself only, a node too.
 *  - A message with a value out of range (proto/ranges.h) is not obeyed: it ends the session with the coordinator or
 *    the worker that sent it; a datagram is dropped.
 *  - Reports that must arrive are kept while there is no session and sent again when one breaks soon after; receivers
 *    take a repeated report as one.
 *  - A revoked worker that has not left its epoch in time is killed.
 *  - While no coordinator is heard, the agents of a job's members can shrink it by majority (failover/). */
#ifndef TITAN_DAEMON_AGENT_AGENT_CORE_H
#define TITAN_DAEMON_AGENT_AGENT_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"
#include "daemon/common/proof.h"
#include "titan/internal/agent.pb-c.h"
#include "titan/internal/worker.pb-c.h"

#define INSTALLATION_BYTES 16 /* of the number that the agent's state directory is known by */

/* --- what is to be done ------------------------------------------------------------------------------------------- */
enum agent_action_kind {
    AGENT_RECORD_TERM,  /* durable: run/term holds seen */
    AGENT_RECORD_JOB,   /* durable: the job's record is this one */
    AGENT_FORGET_JOB,   /* its record can go */
    AGENT_SEND,         /* to the coordinator, if the session is still there */
    AGENT_END_SESSION,  /* text says why; agent_core_session_down follows */
    AGENT_COMMAND,      /* to a worker, now or when it connects; a command to form brings the members' shared memory */
    AGENT_START_WORKER, /* start->worker_ids has one; agent_core_started or agent_core_exited follows */
    AGENT_STOP_WORKER,  /* ask it to stop, SIGKILL after grace_ms (0: now) */
    AGENT_PEER,         /* datagram to text (host:port) */
    AGENT_REQUEST,      /* of the coordinator, for the shell: logs, checks of the node, GPUs to be released */
    AGENT_RANK,         /* the worker has this rank now */
    AGENT_LOG,          /* a line for the log */
};
enum agent_level { AGENT_INFO, AGENT_WARN, AGENT_ERROR };

struct agent_action {
    struct agent_action *next;
    enum agent_action_kind kind;
    uint64_t job_id, worker_id;
    uint32_t rank, grace_ms;
    bool must_checkpoint; /* STOP_WORKER: within the grace, also when the recipe writes none */
    enum agent_level level;
    const char *text;  /* END_SESSION and STOP_WORKER: why; PEER: where to; LOG: a sentence */
    const char *pairs; /* LOG: key=value pairs behind it */
    union {
        Titan__Internal__AgentMessage *send;
        Titan__Internal__AgentToWorker *command;
        Titan__Internal__StartWorkers *start;
        Titan__Internal__PeerMessage *peer;
        Titan__Internal__CoordinatorMessage *request;
        Titan__Internal__AgentJobRecord *record;
        struct seen_term seen;
    };
};
/* Everything in it lives in its arena and dies with it. */
struct agent_actions {
    struct agent_action *first, **tail;
    struct arena memory; /* of them and all that they point to */
};
void agent_actions_init(struct agent_actions *a);
void agent_actions_free(struct agent_actions *a); /* ready for use again after init */

/* --- the core ----------------------------------------------------------------------------------------------------- */
struct agent_core;

struct agent_core_options { /* texts are copied */
    const char *node, *device, *address, *version;
    uint32_t slots;
    uint64_t memory_bytes;
    bool checks;                              /* it answers CheckNode */
    uint64_t incarnation;                     /* of this start */
    uint8_t installation[INSTALLATION_BYTES]; /* of the state directory; zeros = not known */
    bool ephemeral;                           /* the coordinator may forget the node when it is gone */
    uint64_t seed;      /* ids of datagrams and of acting leaders' epochs' communicators are drawn from it: not twice */
    uint32_t peer_port; /* 0 = other agents cannot reach this one: no probes, no acting leader */
    const char *coordinator;           /* host:port that takes heartbeats as datagrams; NULL = they go by stream only */
    uint32_t hang_floor_ms;            /* 0 = 300 */
    uint32_t hang_unknown_ms;          /* while a worker's own step time is not known; 0 = 10000 */
    uint32_t revoke_ms;                /* revoked to quiet; 0 = 1000 */
    uint32_t away_ms, leader_lease_ms; /* until a coordinator says; 0 = 1000, none */
};

titan_status agent_core_new(const struct agent_core_options *options, struct agent_core **ret,
                            struct titan_error *err) TITAN_MUST_USE;
void agent_core_free(struct agent_core *c);

/* What an earlier agent of this node left; before the first input. */
void agent_core_restore_term(struct agent_core *c, const struct seen_term *seen);
/* When the coordinator was heard last, and until when epochs have a lease; see agent_core_contact. Without this call it
 * counts as never heard. */
void agent_core_restore_contact(struct agent_core *c, int64_t at, int64_t epoch_until);
void agent_core_restore_job(struct agent_core *c, const Titan__Internal__AgentJobRecord *record);

/* A look at a worker: its page (proto/worker_page.h) and its process. */
struct agent_sample {
    uint64_t epoch, step, actions, busy_ns;
    uint32_t phase, waiting;
    char process_state; /* as in /proc/PID/stat; 0 = not known */
    bool runnable;      /* a thread of it runs or would, if it had a processor; known where its page stands still */
    uint64_t cpu_ms;    /* of all its threads */
};
void agent_core_adopted(struct agent_core *c, uint64_t job_id, uint64_t worker_id, const struct agent_sample *sample,
                        int64_t now);

/* --- inputs ------------------------------------------------------------------------------------------------------- */
/* A stream to the coordinator is open: a registration goes out. Take samples of all workers first, it tells of them. */
void agent_core_session_up(struct agent_core *c, int64_t now, struct agent_actions *out);
void agent_core_session_down(struct agent_core *c, int64_t now, struct agent_actions *out);
/* Where the coordinator takes heartbeats as datagrams, if it is told in the options that it does. Before the session is
 * up. */
void agent_core_coordinator_at(struct agent_core *c, const char *address);
void agent_core_coordinator(struct agent_core *c, const Titan__Internal__CoordinatorMessage *m, int64_t now,
                            struct agent_actions *out);
/* Of the answer to AGENT_START_WORKER. */
void agent_core_started(struct agent_core *c, uint64_t worker_id, int64_t pid, int64_t now, struct agent_actions *out);
/* The worker has proved its identity (token); also when it connects again. */
void agent_core_connected(struct agent_core *c, const Titan__Internal__WorkerRegistration *registration, int64_t now,
                          struct agent_actions *out);
void agent_core_worker(struct agent_core *c, uint64_t worker_id, const Titan__Internal__WorkerToAgent *m, int64_t now,
                       struct agent_actions *out);
struct agent_exit {
    int code, signal;   /* code -1: by a signal, or unknown when signal is 0 */
    const char *reason; /* its last words, or why it was not started */
    uint64_t last_step;
    bool out_of_memory; /* killed for it; reason says limit and peak */
    bool not_started;
    bool node_short; /* ... as the node lacks descriptors, memory or a folder that answers: not the worker's fault */
    bool refused;    /* ... as this node does not start workers of that job */
};
/* Once, and nothing of that worker after it. */
void agent_core_exited(struct agent_core *c, uint64_t worker_id, const struct agent_exit *how, int64_t now,
                       struct agent_actions *out);
/* Every AGENT_SAMPLE_MS while agent_core_watches(). */
#define AGENT_SAMPLE_MS 25
#define AGENT_LEASE_MS 250
bool agent_core_watches(const struct agent_core *c);
void agent_core_sample(struct agent_core *c, uint64_t worker_id, const struct agent_sample *sample, int64_t now,
                       struct agent_actions *out);
/* A datagram, of another agent or the coordinator if it is proved. from: where it came from (host:port), for the
 * answer. */
void agent_core_peer(struct agent_core *c, const Titan__Internal__PeerMessage *m, const char *from, int64_t now,
                     struct agent_actions *out);
/* The GPUs of the slots as they are now, and the workers in them: the coordinator hears of it where it has changed. */
void agent_core_gpus(struct agent_core *c, const Titan__Internal__NodeGpus *gpus, int64_t now,
                     struct agent_actions *out);
/* Due at agent_core_deadline(). */
void agent_core_tick(struct agent_core *c, int64_t now, struct agent_actions *out);
int64_t agent_core_deadline(const struct agent_core *c); /* INT64_MAX = none */
/* From now on nothing is started, and of workers that leave only checkpoints are reported: the coordinator goes down
 * with this agent and its jobs go on from there. quiet false: they are reported as ever. */
void agent_core_drain(struct agent_core *c, bool quiet);
/* Ask the coordinator, and each one after it, to take the workers elsewhere within that time. */
void agent_core_leave(struct agent_core *c, uint32_t deadline_ms, int64_t now, struct agent_actions *out);

/* --- what can be asked -------------------------------------------------------------------------------------------- */
/* Asserts what holds between two inputs. True, or the process ends. */
bool agent_core_check(const struct agent_core *c);
uint64_t agent_core_term(const struct agent_core *c); /* highest seen */
/* When what a coordinator has answered last was sent; INT64_MIN = never. */
int64_t agent_core_contact(const struct agent_core *c);
/* When the lease that epochs have without a coordinator is over; 0 = they have none. Both are to be kept, before what
 * an input led to is carried out, for the next agent of this boot. Workers are told at least every AGENT_LEASE_MS, and
 * before all else when it has moved by that much. */
int64_t agent_core_epoch_until(const struct agent_core *c);
bool agent_core_registered(const struct agent_core *c); /* in a session, acknowledged, and it is not to end */
uint64_t agent_core_epoch(const struct agent_core *c, uint64_t job_id); /* highest accepted; 0 = none */
struct agent_counters {
    uint64_t fenced_terms;  /* messages of an older coordinator */
    uint64_t fenced_epochs; /* ... about an older epoch */
    uint64_t refused;       /* another communicator id for an epoch accepted or promised */
    uint64_t forged;        /* workers that spoke for others, nodes that claimed to be this one */
    uint64_t out_of_range;  /* messages and pages of workers with a value that can never be (proto/ranges.h) */
    uint64_t unproved;      /* datagrams without the right proof */
    uint64_t stalls, kills; /* workers found hanging; killed because they did not leave an epoch */
    uint64_t promises, leader_epochs;
};
const struct agent_counters *agent_core_counters(const struct agent_core *c);

#endif
