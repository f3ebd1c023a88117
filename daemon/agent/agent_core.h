/* SPDX-License-Identifier: Apache-2.0 */
/* agent_core.h - the decisions of a node's agent, without clock, socket, file, process or thread.
 *
 * Every input carries the time (milliseconds of one machine's monotonic clock, as all times here) and appends actions
 * to a list. The caller carries out the actions in order; the actions of an earlier input come first. An AGENT_RECORD_*
 * ends when the record is on disk. The actions after it wait until then. So a command is obeyed, or a message answered,
 * only when the state that this needs would survive a crash. If the process dies before, the next agent restores the
 * state on disk. Nothing newer was visible outside the process. A failed record is retried; meanwhile the agent sends
 * no heartbeats, and the coordinator counts its node as lost.
 *
 * Rules (docs/membership.md):
 *  - The agent obeys no coordinator of a lower term than the highest seen, and no epoch below the highest accepted. An
 *    epoch number belongs to one communicator id, whether the agent accepted or promised the epoch.
 *  - A worker reports only about itself, and a node only about itself.
 *  - The agent does not obey a message with a value out of range (proto/ranges.h). The session with its sender, the
 *    coordinator or a worker, ends. A datagram with such a value is dropped.
 *  - Reports that must arrive are kept while there is no session, and resent if a session breaks soon after. Receivers
 *    ignore repeats.
 *  - A revoked worker that has not left its epoch in time is killed.
 *  - Without a coordinator, the agents of a job's members can shrink it by majority (failover/). */
#ifndef TITAN_DAEMON_AGENT_AGENT_CORE_H
#define TITAN_DAEMON_AGENT_AGENT_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"
#include "daemon/common/proof.h"
#include "titan/internal/agent.pb-c.h"
#include "titan/internal/worker.pb-c.h"

#define INSTALLATION_BYTES 16 /* size of the state directory's id */

/* --- what is to be done ------------------------------------------------------------------------------------------- */
enum agent_action_kind {
    AGENT_RECORD_TERM, /* durable: writes `seen` to run/term */
    AGENT_RECORD_JOB,  /* durable: writes the job's record */
    AGENT_FORGET_JOB,  /* the job's record may be deleted */
    AGENT_SEND,        /* to the coordinator, if the session still exists */
    AGENT_END_SESSION, /* text = the reason; agent_core_session_down follows */
    AGENT_COMMAND, /* to a worker, now or when it connects; a FORM command also hands over the members' shared memory */
    AGENT_START_WORKER, /* start->worker_ids has one id; agent_core_started or agent_core_exited follows */
    AGENT_STOP_WORKER,  /* asks it to stop, SIGKILL after grace_ms (0 = now) */
    AGENT_PEER,         /* datagram to text (host:port) */
    AGENT_REQUEST,      /* a coordinator's request for the shell: logs, checks of the node, release of GPUs */
    AGENT_RANK,         /* the worker's new rank */
    AGENT_LOG,          /* a line for the log */
};
enum agent_level { AGENT_INFO, AGENT_WARN, AGENT_ERROR };

struct agent_action {
    struct agent_action *next;
    enum agent_action_kind kind;
    uint64_t job_id, worker_id;
    uint32_t rank, grace_ms;
    /* STOP_WORKER: write a checkpoint within the grace, even if the recipe sets no checkpoints */
    bool must_checkpoint;
    enum agent_level level;
    const char *text;  /* END_SESSION, STOP_WORKER: the reason; PEER: the address; LOG: a sentence */
    const char *pairs; /* LOG: key=value pairs after the sentence */
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
/* The arena owns all actions. */
struct agent_actions {
    struct agent_action *first, **tail;
    struct arena memory; /* holds the actions and all that they point to */
};
void agent_actions_init(struct agent_actions *a);
void agent_actions_free(struct agent_actions *a); /* call init before the next use */

/* --- the core ----------------------------------------------------------------------------------------------------- */
struct agent_core;

struct agent_core_options { /* texts are copied */
    const char *node, *device, *address, *version;
    uint32_t slots;
    uint64_t memory_bytes;
    bool checks;                              /* this agent answers CheckNode */
    uint64_t incarnation;                     /* number of this start */
    uint8_t installation[INSTALLATION_BYTES]; /* id of the state directory; zeros = unknown */
    bool ephemeral;                           /* the coordinator may delete the node's record when it is gone */
    uint64_t seed;            /* seeds the ids of datagrams and of acting leaders' communicators; never used twice */
    uint32_t peer_port;       /* 0 = other agents cannot reach this agent: no probes, no acting leader */
    const char *coordinator;  /* host:port for heartbeats as datagrams; NULL = by stream only */
    uint32_t hang_floor_ms;   /* 0 = 300 */
    uint32_t hang_unknown_ms; /* least hang limit while a worker's own step time is unknown; 0 = 10000 */
    uint32_t revoke_ms;       /* least time from a revoke to the kill; 0 = 1000 */
    uint32_t away_ms, leader_lease_ms; /* valid until a coordinator gives its own values; 0 = 1000 and no lease */
};

titan_status agent_core_new(const struct agent_core_options *options, struct agent_core **ret,
                            struct titan_error *err) TITAN_MUST_USE;
void agent_core_free(struct agent_core *c);

/* Restores an earlier agent's state on this node. Call it before the first input. */
void agent_core_restore_term(struct agent_core *c, const struct seen_term *seen);
/* Restores the last contact with the coordinator and the end of the epochs' lease (agent_core_contact). Without this
 * call, the core assumes that there was no contact. */
void agent_core_restore_contact(struct agent_core *c, int64_t at, int64_t epoch_until);
void agent_core_restore_job(struct agent_core *c, const Titan__Internal__AgentJobRecord *record);

/* A sample of a worker: its page (proto/worker_page.h) and process. */
struct agent_sample {
    uint64_t epoch, step, actions, busy_ns;
    uint32_t phase, waiting;
    char process_state; /* as in /proc/PID/stat; 0 = unknown */
    bool runnable;      /* a thread runs or waits for a processor; set only if the page stands still */
    uint64_t cpu_ms;    /* processor time of all its threads */
};
void agent_core_adopted(struct agent_core *c, uint64_t job_id, uint64_t worker_id, const struct agent_sample *sample,
                        int64_t now);

/* --- inputs ------------------------------------------------------------------------------------------------------- */
/* A stream to the coordinator is open: sends a registration. Sample all workers before this call, because the
 * registration reports them. */
void agent_core_session_up(struct agent_core *c, int64_t now, struct agent_actions *out);
void agent_core_session_down(struct agent_core *c, int64_t now, struct agent_actions *out);
/* Sets the address for heartbeats as datagrams, if the options name an address. Call it before the session is up. */
void agent_core_coordinator_at(struct agent_core *c, const char *address);
void agent_core_coordinator(struct agent_core *c, const Titan__Internal__CoordinatorMessage *m, int64_t now,
                            struct agent_actions *out);
/* An answer to AGENT_START_WORKER. */
void agent_core_started(struct agent_core *c, uint64_t worker_id, int64_t pid, int64_t now, struct agent_actions *out);
/* The worker proved its identity by its token. Also called after a reconnect. */
void agent_core_connected(struct agent_core *c, const Titan__Internal__WorkerRegistration *registration, int64_t now,
                          struct agent_actions *out);
void agent_core_worker(struct agent_core *c, uint64_t worker_id, const Titan__Internal__WorkerToAgent *m, int64_t now,
                       struct agent_actions *out);
struct agent_exit {
    int code, signal;   /* code -1: a signal ended the worker; then signal 0 = unknown */
    const char *reason; /* the worker's last message, or the reason why it did not start */
    uint64_t last_step;
    bool out_of_memory; /* killed for its memory; reason has limit and peak */
    bool not_started;
    /* not started because the node lacks descriptors, memory or a responsive folder: not the worker's fault */
    bool node_short;
    bool refused; /* not started because this node does not start workers of the job */
};
/* Called once per worker; no other input for the worker follows. */
void agent_core_exited(struct agent_core *c, uint64_t worker_id, const struct agent_exit *how, int64_t now,
                       struct agent_actions *out);
/* Call agent_core_sample() every AGENT_SAMPLE_MS while agent_core_watches() returns true. */
#define AGENT_SAMPLE_MS 25
#define AGENT_LEASE_MS 250
bool agent_core_watches(const struct agent_core *c);
void agent_core_sample(struct agent_core *c, uint64_t worker_id, const struct agent_sample *sample, int64_t now,
                       struct agent_actions *out);
/* Handles a datagram from another agent or the coordinator; the core checks its proof. from: the sender (host:port),
 * for the answer. */
void agent_core_peer(struct agent_core *c, const Titan__Internal__PeerMessage *m, const char *from, int64_t now,
                     struct agent_actions *out);
/* Gives the present GPUs of the slots and the workers in them. The coordinator gets changes only. */
void agent_core_gpus(struct agent_core *c, const Titan__Internal__NodeGpus *gpus, int64_t now,
                     struct agent_actions *out);
/* Call agent_core_tick() at agent_core_deadline(). */
void agent_core_tick(struct agent_core *c, int64_t now, struct agent_actions *out);
int64_t agent_core_deadline(const struct agent_core *c); /* INT64_MAX = none */
/* From now on no worker starts. If quiet is set, the core reports only the checkpoints of ending workers, because the
 * coordinator stops with this agent, and its jobs resume from these checkpoints. Otherwise the core reports ends as
 * usual. */
void agent_core_drain(struct agent_core *c, bool quiet);
/* Asks this coordinator, and each later coordinator, to move the workers elsewhere within deadline_ms. */
void agent_core_leave(struct agent_core *c, uint32_t deadline_ms, int64_t now, struct agent_actions *out);

/* --- what can be asked -------------------------------------------------------------------------------------------- */
/* Asserts the invariants between two inputs. Returns true; a broken invariant ends the process. */
bool agent_core_check(const struct agent_core *c);
uint64_t agent_core_term(const struct agent_core *c); /* highest term seen */
/* Send time of the newest message that a coordinator answered; INT64_MIN = never. */
int64_t agent_core_contact(const struct agent_core *c);
/* End of the epochs' lease without a coordinator; 0 = no lease. The caller stores contact and lease for the next agent
 * of this boot, before it carries out an input's actions. The caller also sends the lease to the workers, at least
 * every AGENT_LEASE_MS. When the lease's end moved by AGENT_LEASE_MS, the caller does so before all other actions. */
int64_t agent_core_epoch_until(const struct agent_core *c);
bool agent_core_registered(const struct agent_core *c); /* the session is acknowledged and will not end now */
uint64_t agent_core_epoch(const struct agent_core *c, uint64_t job_id); /* highest accepted epoch; 0 = none */
struct agent_counters {
    uint64_t fenced_terms;  /* messages from an older coordinator */
    uint64_t fenced_epochs; /* messages about an older epoch */
    uint64_t refused;       /* messages with another communicator id for an epoch accepted or promised */
    uint64_t forged;        /* workers that claimed to be another worker, nodes that claimed to be this node */
    uint64_t out_of_range;  /* messages and worker pages with an impossible value (proto/ranges.h) */
    uint64_t unproved;      /* datagrams without the right proof */
    uint64_t stalls, kills; /* workers found hanging; workers killed because they did not leave an epoch */
    uint64_t promises, leader_epochs;
};
const struct agent_counters *agent_core_counters(const struct agent_core *c);

#endif
