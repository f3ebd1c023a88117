/* SPDX-License-Identifier: Apache-2.0 */
/* core.h - placement and membership of all jobs: the coordinator without clock, socket, file or thread.
 *
 * Every input carries the time and adds its results to a batch (batch.h). The caller first commits the batch's changes,
 * then sends its messages, in the order of the batches. The core runs ahead of the store meanwhile. If the process dies
 * in between, the next process restores the stored state, and nothing unstored was visible outside.
 *
 * A submit is the exception: it is stored first and then handed to the core, so that a full disk refuses it.
 *
 * Rules (docs/architecture.md, "Membership"):
 *  - Epochs number a job's membership. A message with a lower number than the job's is dropped.
 *  - Commands are state, not events. So a returning node is sent again everything in force for its workers.
 *  - A worker ends once, by its agent's report or its node's loss. An end that was not requested counts against the
 *    job's restart budget, unless the worker had finished or was never started.
 *  - Queue: by priority, then the user with the fewest slots, then age. A job that needs more slots than all nodes in
 *    service have is left out. A job that passes the first job in the queue has its slots on loan from it. A job may
 *    pass only while the first job could not start even with all loaned slots, including the slots of the passing job.
 *    Running jobs get the slots that they await for replacements before the queue does. Running jobs grow beyond their
 *    start size only while no job waits. Jobs of lower priority give way to the head of the queue: they shrink, or stop
 *    and are queued again. */
#ifndef TITAN_DAEMON_COORDINATOR_CORE_H
#define TITAN_DAEMON_COORDINATOR_CORE_H

#include "base/histogram.h"
#include "base/mac.h"
#include "daemon/coordinator/batch.h"

struct core;
struct proof_keys;

struct core_time {
    int64_t mono_ms; /* for deadlines */
    int64_t wall_ms; /* for display */
    int64_t held_ms; /* how long the oldest unsent decision has waited for the store; 0 = none waits */
};

#define CORE_NO_QUARANTINE UINT32_MAX
struct core_options {
    uint64_t term;              /* this coordinator's term */
    uint64_t seed;              /* seed of the communicator ids */
    const uint8_t *secret;      /* MAC_BYTES random bytes, the root of all keys; NULL = no keys; copied */
    const uint8_t *term_secret; /* MAC_BYTES of the store, to prove terms; NULL = zeroes; copied */
    uint64_t next_worker_id;    /* above every id in the store */
    const char *jobs_dir;       /* folder of each job: JOBS_DIR/ID; copied */
    const char *jobs_token;     /* nodes must find this token in jobs_dir (daemon/common/jobs_dir.h); copied */
    uint32_t heartbeat_ms;      /* 0 = 50 */
    uint32_t idle_heartbeat_ms; /* interval that an agent without workers may promise; 0 = 60 heartbeats */
    uint32_t suspect_ms;        /* silence after which other nodes probe a node; 0 = 5 heartbeats */
    uint32_t confirm_ms;        /* how long the other nodes probe a silent node; 0 = 3 heartbeats */
    uint32_t node_timeout_ms;   /* silence after which a node without probing peers is lost; 0 = 20 heartbeats */
    uint32_t reachable_ms;      /* silence after which a node that others reach is lost; 0 = 100 heartbeats */
    uint32_t away_ms;           /* agents count us as away after so long without an answer; 0 = 2 * node_timeout_ms */
    uint32_t leader_lease_ms;   /* how long agents may go on without us; 0 = they may not */
    uint32_t adopt_ms;          /* how long a restored node may take to return; 0 = 3 * node_timeout_ms, at least 6 s */
    uint32_t start_ms;          /* time from a worker's spawn until it is ready; 0 = 180000 */
    uint32_t answer_ms;         /* time from the command to start a worker to the agent's answer; 0 = 30000 */
    uint32_t quiesce_ms;        /* time from a revoke until the epoch is quiet; 0 = 1200 */
    uint32_t pause_ms;          /* time from a pause until the epoch is quiet, plus 20 steps; 0 = 60000 */
    uint32_t form_ms;           /* time from the command to form to the first step, plus 20 steps; 0 = 180000 */
    uint32_t stall_ms;          /* longest time of a running epoch without a step, plus 50 steps; 0 = 300000 */
    uint32_t stop_ms;           /* time from the end of grace to the exit; then the worker is killed again; 0 = 5000 */
    uint32_t quarantine_crashes; /* crashes in 10 minutes that put a node in quarantine; 0 = 3; or CORE_NO_QUARANTINE */
    /* Above this number of workers (nodes, for placement) the core does not act on each message. It acts once, in the
     * next tick, which is then due at once. 0 = 64 */
    uint32_t at_once;
    uint32_t user_slots; /* slots that one user's jobs may have; 0 = all */
    /* how long a job may be below its minimum before it gives its slots back; 0 = 30000 */
    uint32_t starve_ms;
    uint64_t restored_term;              /* term of the backup that the store was restored from; 0 = not restored */
    uint64_t backup_worker, gone_worker; /* highest worker id in the backup; highest worker id possibly used since */
    bool settled;                        /* the store already has what agents knew beyond the backup */
};

titan_status core_new(const struct core_options *options, struct core **ret, struct titan_error *err) TITAN_MUST_USE;
void core_free(struct core *c);

/* --- what the store says, before the first input ------------------------------------------------------------------ */
void core_restore_node(struct core *c, const struct node *n, struct core_time now);
#define CORE_NODE_HISTORY_MS 600000 /* older losses do not count against their node */
void core_restore_policy(struct core *c, const struct node_policy *p, struct core_time now);
void core_restore_loss(struct core *c, const struct loss *l, struct core_time now); /* loss on a node; oldest first */
struct core_saved_job {
    struct job job;
    uint32_t run; /* number of the newest run; 0 = none */
    bool run_active;
    const struct worker *workers; /* live workers, in id order */
    size_t n_workers;
    const struct epoch *epoch; /* newest; NULL = none */
    const uint64_t *holders;   /* members of epoch->source_epoch in rank order */
    size_t n_holders;
    const struct core_saved_base { /* the newest epoch that made a step, and the epochs since */
        uint64_t epoch;
        uint32_t n;
        const uint64_t *workers;
        uint64_t source; /* the epoch whose members held its state in memory; 0 = none */
        bool complete;   /* all its members got their state */
    } * bases;
    size_t n_bases;
    const struct worker *lost; /* workers of these epochs that may still run */
    size_t n_lost;
    const struct checkpoint *checkpoints; /* newest first */
    size_t n_checkpoints;
    const struct loss *losses; /* within the job's window, oldest first */
    size_t n_losses;
};
void core_restore_job(struct core *c, const struct core_saved_job *saved, struct core_time now);
/* A worker above backup_worker is in the store. It is not added again when an agent reports it. */
void core_restore_taken(struct core *c, uint64_t worker_id);

/* --- inputs ------------------------------------------------------------------------------------------------------- */
/* The job is durable as PENDING. */
void core_submitted(struct core *c, const struct job *job, struct core_time now, struct batch *out);
#define LAST_CHECKPOINT_MS 120000 /* grace of workers that must write a checkpoint before they stop */
/* A cancel request and its answer. TITAN_ENOTFOUND: the core has no such job, because the job ended long ago or never
 * existed. TITAN_ECONFLICT: the job has ended, in that state. */
struct core_cancel {
    const char *reason;
    uint32_t grace_ms;
    enum job_state state; /* out: after the request */
};
titan_status core_cancel(struct core *c, uint64_t job_id, struct core_cancel *r, struct core_time now,
                         struct batch *out, struct titan_error *err) TITAN_MUST_USE;
/* A resize request and its answer. TITAN_ENOTFOUND and TITAN_ECONFLICT are as for core_cancel. */
struct core_resize {
    uint32_t workers;            /* exactly this many workers; 0 = see min and max */
    uint32_t min, max;           /* a range; all 0 = the recipe's range */
    struct desired_size desired; /* out: the size in force now */
    uint32_t least, most;        /* out: legal range */
    enum job_state state;        /* out */
    uint32_t world_size;         /* out */
};
/* TITAN_EINVAL names the nearest legal numbers. */
titan_status core_resize(struct core *c, uint64_t job_id, struct core_resize *r, struct core_time now,
                         struct batch *out, struct titan_error *err) TITAN_MUST_USE;
/* Orders a checkpoint. *ret_step: the step that is committed now. TITAN_ECONFLICT: the job does not train. */
titan_status core_checkpoint(struct core *c, uint64_t job_id, struct core_time now, struct batch *out,
                             uint64_t *ret_step, struct titan_error *err) TITAN_MUST_USE;
/* Call it before core_cancel. The job writes a last checkpoint even if its recipe writes none, and the job's reason
 * names the place of the checkpoint. */
void core_want_checkpoint(struct core *c, uint64_t job_id);
/* An operator declares the node gone: its workers have ended. TITAN_ECONFLICT: the node is connected. */
titan_status core_node_forget(struct core *c, const char *node, struct core_time now, struct batch *out,
                              struct titan_error *err) TITAN_MUST_USE;
/* Removes the node's record and policy. TITAN_ECONFLICT: the node is not lost, or a job may have workers on it. */
titan_status core_node_remove(struct core *c, const char *node, struct core_time now, struct batch *out,
                              struct titan_error *err) TITAN_MUST_USE;
/* The node's certificate is revoked. The node is lost at once, connected or not, and no session that `identity` has
 * opened may register. The node need not exist. */
void core_node_revoke(struct core *c, const char *node, const char *identity, struct core_time now, struct batch *out);
/* Takes a node out of service, at once or for a maintenance window. TITAN_ENOTFOUND, TITAN_EINVAL. */
struct core_drain {
    const char *reason;
    /* without a window: time from now, 0 = none; with a window: time before its start, 0 = 5 minutes */
    int64_t deadline_ms;
    int64_t from_ms, for_ms; /* the maintenance window; for_ms 0 = none */
};
titan_status core_drain(struct core *c, const char *node, const struct core_drain *d, struct core_time now,
                        struct batch *out, struct titan_error *err) TITAN_MUST_USE;
/* Returns a node to service, whatever took it out. */
titan_status core_undrain(struct core *c, const char *node, struct core_time now, struct batch *out,
                          struct titan_error *err) TITAN_MUST_USE;
/* Handles any agent message but log chunks. session: unique number of the stream; its first message is the
 * registration. On failure the caller ends the session with the error. */
titan_status core_agent(struct core *c, uint64_t session, const Titan__Internal__AgentMessage *m, struct core_time now,
                        struct batch *out, struct titan_error *err) TITAN_MUST_USE;
/* Call it before the session's first message. identity: the opener, as the transport has proved it. Another identity
 * cannot take over the name of a present node. Without a call, or with "", the identity is unknown, and any identity
 * may take the name over. */
void core_session_opened(struct core *c, uint64_t session, const char *identity);
void core_session_closed(struct core *c, uint64_t session, struct core_time now, struct batch *out);
/* The folder of the job's checkpoints, from its recipe. Once it is set, checkpoints elsewhere are not accepted as the
 * job's. */
bool core_wants_folder(const struct core *c, uint64_t job_id);
void core_set_folder(struct core *c, uint64_t job_id, const char *folder);
/* A heartbeat arrived as a datagram. True: answer it with its number, proved by the keys in *ret. Only a heartbeat that
 * ends a promise makes core_deadline() earlier. */
bool core_heartbeat(struct core *c, const Titan__Internal__PeerMessage *m, struct core_time now,
                    struct proof_keys *ret);
/* The store contradicts a decision about this job. The core ends the job without another change and stops its workers.
 * The caller ends the job in the store (state/job_quarantine.h). */
void core_quarantine(struct core *c, uint64_t job_id, struct core_time now, struct batch *out);
/* Call it at core_deadline() and at least every core_tick_ms(). */
void core_tick(struct core *c, struct core_time now, struct batch *out);
/* mono_ms of the next tick that can change something; INT64_MAX = none. */
int64_t core_deadline(struct core *c);
/* Longest time between two ticks. A longer one counts as a standstill of this process. */
uint32_t core_tick_ms(const struct core *c);

/* Asserts the core's invariants between two inputs. Debug builds call it after every input. */
void core_check(const struct core *c);

/* --- what can be asked -------------------------------------------------------------------------------------------- */
/* Has a node obeyed a coordinator of a higher term? Then this core decides nothing any more, and every request
 * fails. */
bool core_fenced(const struct core *c);
/* TITAN_OK, or TITAN_EUNREACHABLE with the reason and the remedy. */
titan_status core_accepts(const struct core *c, struct titan_error *err) TITAN_MUST_USE;
/* Counters since the start. The API's Counters publishes them by name, so a name keeps its meaning. Counters named *_ms
 * are sums. The recovery phases are the same as in recovery.finished (docs/api.md). */
#define CORE_COUNTERS(X)                                                                                               \
    X(silences, "times a node was silent, or its stream closed, and others were asked for it")                         \
    X(nodes_lost, "nodes given up: nothing heard, or their agent went")                                                \
    X(workers_hung, "workers killed because they made no progress")                                                    \
    X(recoveries, "times a run trained again after a loss")                                                            \
    X(recovery_ms, "sum: first report of a loss to the next step")                                                     \
    X(recovery_detect_ms, "sum: the fault itself to that report, where it is known")                                   \
    X(recovery_decide_ms, "sum: to the revocation")                                                                    \
    X(recovery_quiet_ms, "sum: until all that are left had stopped")                                                   \
    X(recovery_form_ms, "sum: until the new membership was decided")                                                   \
    X(recovery_state_ms, "sum: until all had their state")                                                             \
    X(recovery_step_ms, "sum: until the next step was finished")                                                       \
    X(state_init, "epochs that began from initial weights")                                                            \
    X(state_checkpoint, "epochs with state from a checkpoint")                                                         \
    X(state_memory, "epochs in which the members had it all")                                                          \
    X(state_replica, "epochs with missing state shards from replicas")                                                 \
    X(state_buddy, "epochs with missing state shards from buddy replicas")                                             \
    X(old_term, "reports refused: said to another coordinator")                                                        \
    X(old_epoch, "reports refused: about an epoch that is over")                                                       \
    X(unknown_node, "reports refused: of a session that has not registered, or of a node that was given up")           \
    X(name_taken, "registrations refused: in the name of a node that is alive")                                        \
    X(unknown_worker, "reports refused: about a worker that node does not have")                                       \
    X(unknown_rank, "reports refused: about an epoch the worker has no place in")                                      \
    X(out_of_range, "messages refused: a field is not what it can ever be")                                            \
    X(implausible, "reports refused: of an epoch, step or path that cannot be")                                        \
    X(term_unproved, "sessions refused: of a term above ours, without this store's proof of it")                       \
    X(quarantined, "jobs ended because the job store contradicted what was decided about them")                        \
    X(queue_looks, "times a job in the queue was looked at for slots")                                                 \
    X(duplicate, "reports that had been taken before")                                                                 \
    X(epoch_refused, "epochs that an agent did not take from us")                                                      \
    X(agents_old_term, "commands refused by agents, since they started: of an older coordinator")                      \
    X(agents_old_epoch, "commands refused by agents, since they started: about an epoch that is over")                 \
    X(agents_other_epoch, "commands refused by agents, since they started: a second communicator for an epoch")        \
    X(unproved, "heartbeats refused: datagrams without the right proof")                                               \
    X(agents_unproved, "datagrams refused by agents, since they started: without the right proof")                     \
    X(agents_imposter, "messages refused by agents, since they started: in the name of another worker or node")        \
    X(agents_out_of_range, "messages refused by agents, since they started: a field is not what it can ever be")
struct core_counters {
#define CORE_COUNTER(name, text) uint64_t name;
    CORE_COUNTERS(CORE_COUNTER)
#undef CORE_COUNTER
};
const struct core_counters *core_counters(const struct core *c);
/* How long recoveries took, in parts as in recovery.finished. */
#define CORE_RECOVERY_PHASES 6
struct core_recoveries {
    struct histogram whole, phases[CORE_RECOVERY_PHASES];
};
extern const char *const core_recovery_phases[CORE_RECOVERY_PHASES]; /* "detect_ms", ... */
const struct core_recoveries *core_recoveries(const struct core *c);
size_t core_pending(const struct core *c);
/* Why jobs wait, and since when. A job counts once. */
enum core_wait {
    CORE_WAITS_SLOTS,   /* first in the queue of its device */
    CORE_WAITS_BEHIND,  /* another job waits for slots before it */
    CORE_WAITS_NODES,   /* all nodes together have too few slots for it */
    CORE_WAITS_USER,    /* its user has as many slots as one user may have */
    CORE_WAITS_SETTLED, /* the store came from a backup, and has not settled */
    CORE_WAITS
};
#define CORE_QUEUE_PRIORITIES 16
struct core_queue {
    size_t waits[CORE_WAITS];
    /* The highest priorities with a waiting job, and when their oldest job was submitted (wall clock). */
    struct {
        int32_t priority;
        int64_t oldest_ms;
    } priorities[CORE_QUEUE_PRIORITIES];
    size_t n_priorities;
};
void core_queue(const struct core *c, struct core_queue *ret);
size_t core_user_pending(const struct core *c, const char *user); /* pending jobs of one user */
/* The job's progress since the last stored status. False: the job is not active. */
bool core_job_status(const struct core *c, uint64_t job_id, struct job_status *ret);
/* Why a queued job waits, or why a node cannot start its workers. False: neither holds, or the stored reason covers it.
 */
bool core_job_reason(const struct core *c, uint64_t job_id, char *buf, size_t size);
/* Why a queued job waits until nodes are added; false for other jobs. A lack of slots is known after the first
 * placement of the job (core_options.at_once). */
bool core_job_lacks_nodes(const struct core *c, uint64_t job_id, char *buf, size_t size);
/* Losses within the window, by cause. Returns the number of causes. */
#define CORE_LOSSES_MAX 5
struct core_losses {
    const char *cause;
    uint32_t count, budget, window_s;
};
size_t core_job_losses(const struct core *c, uint64_t job_id, struct core_losses ret[CORE_LOSSES_MAX]);
/* A job that runs, or has ended within CORE_ENDED_MS. */
#define CORE_ENDED_MS 900000
struct core_job {
    uint64_t id;
    const char *name, *user, *mesh;
    enum job_state state;
    uint64_t step, steps, epoch, tokens;
    double loss, grad_norm, tokens_per_second, mfu; /* as in struct job_status */
    uint32_t world_size, skipped_steps, checkpoint_failures;
    int64_t step_at_ms, checkpoint_at_ms; /* wall clock; 0 = unknown */
    struct core_losses losses[CORE_LOSSES_MAX];
    size_t n_losses;
};
void core_jobs(const struct core *c, struct core_time now, void (*each)(const struct core_job *j, void *data),
               void *data);
/* Session of a connected node; 0 = none. */
uint64_t core_node_session(const struct core *c, const char *node);
/* What another agent needs to probe this node: its UDP port, and the key of this one probe. False: the node has no
 * port, or nothing could prove the pong. CORE_PROBE_OTHERS is set in ids of probes that are not the core's own. */
#define CORE_PROBE_OTHERS (UINT64_C(1) << 63)
struct core_peer {
    uint32_t port;
    bool keyed;
    uint8_t key[MAC_BYTES];
};
bool core_node_peer(const struct core *c, const char *node, uint64_t probe_id, struct core_peer *ret);
struct core_node {
    const char *name, *device, *address, *version;
    bool connected, by_datagram; /* by_datagram: its heartbeats arrive as datagrams */
    enum node_state state;
    const char *state_text, *reason; /* for display */
    const struct node_policy *policy;
    bool quarantined, accepts; /* accepts: new workers may start there */
    uint32_t slots, slots_used;
    const Titan__Internal__NodeGpus *gpus; /* NULL = unknown */
    uint64_t memory_bytes;
    int64_t last_seen_ms; /* wall clock */
};
void core_nodes(const struct core *c, void (*each)(const struct core_node *n, void *data), void *data);
/* Calls each() once for each job and node with workers of the job. job_id 0 = all jobs. */
struct core_placement {
    uint64_t job_id;
    const char *node;
    uint32_t workers;
};
void core_placements(const struct core *c, uint64_t job_id, void (*each)(const struct core_placement *p, void *data),
                     void *data);

#endif
