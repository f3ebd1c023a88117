/* SPDX-License-Identifier: Apache-2.0 */
/* core.h - placement and membership of all jobs: the coordinator without clock, socket, file or thread.
 *
 * Every input carries the time and adds what it wants done to a batch (batch.h). The caller commits the batch's changes
 * and only then lets its messages go, in the order of the batches. The core runs ahead of the store meanwhile; should
 * the process die in between, the next one restores what is stored, and nothing that was not stored has been seen
 * outside.
 *
 * A submit is the exception: it is stored first and then handed to the core, so that a full disk refuses it.
 *
 * Rules (docs/architecture.md, "Membership"):
 *  - A job's membership is numbered by epochs. What arrives with a number lower than the job's is dropped.
 *  - Commands are state, not events: whatever is in force for a worker is sent again when its node comes back.
 *  - A worker ends once, by its agent's report or its node's loss. Ends that were not requested are counted against
 *    the job's restart budget, unless the worker had finished or was never started.
 *  - Queue: by priority, then the user with the fewest slots, then age; jobs that need more slots than all nodes in
 *    service have together are left out. A job may pass the first one as long as that could not start with all that it
 *    and others have on loan from it. Slots of running jobs that wait for a replacement are theirs before they
 *    are the queue's; running jobs grow beyond what they started with only while no job waits. Jobs of lower priority
 *    give way to the head of the queue: they shrink, or are stopped and queued again. */
#ifndef TITAN_DAEMON_COORDINATOR_CORE_H
#define TITAN_DAEMON_COORDINATOR_CORE_H

#include "base/mac.h"
#include "daemon/coordinator/batch.h"

struct core;
struct proof_keys;

struct core_time {
    int64_t mono_ms; /* for deadlines */
    int64_t wall_ms; /* for people */
    int64_t held_ms; /* for so long the oldest decision has waited for the store, unsent; 0 = none waits */
};

#define CORE_NO_QUARANTINE UINT32_MAX
struct core_options {
    uint64_t term;              /* of this coordinator */
    uint64_t seed;              /* communicator ids are drawn from it */
    const uint8_t *secret;      /* MAC_BYTES at random: keys are derived from it; NULL = there are none; copied */
    const uint8_t *term_secret; /* MAC_BYTES of the store: terms are proved with it; NULL = with zeroes; copied */
    uint64_t next_worker_id;    /* above every id in the store */
    const char *jobs_dir;       /* jobs live in JOBS_DIR/ID; copied */
    const char *jobs_token;     /* nodes must find it there (daemon/common/jobs_dir.h); copied */
    uint32_t heartbeat_ms;      /* 0 = 50 */
    uint32_t suspect_ms;        /* silence after which others are asked for a node; 0 = 5 heartbeats */
    uint32_t confirm_ms;        /* how long they try; 0 = 3 heartbeats */
    uint32_t node_timeout_ms;   /* silence after which a node without probing peers is lost; 0 = 20 heartbeats */
    uint32_t reachable_ms;      /* ... that others reach; 0 = 100 heartbeats */
    uint32_t away_ms;           /* agents take us for away after so long without an answer; 0 = 2 * node_timeout_ms */
    uint32_t leader_lease_ms;   /* for which they may go on without us; 0 = they may not */
    uint32_t adopt_ms;   /* how long a restored node may take to come back; 0 = 3 * node_timeout_ms, at least 6 s */
    uint32_t start_ms;   /* spawn to ready; 0 = 180000 */
    uint32_t answer_ms;  /* command to start a worker to the agent's word that it has; 0 = 30000 */
    uint32_t quiesce_ms; /* revoke to quiet; 0 = 1200 */
    uint32_t pause_ms;   /* pause to quiet, and 20 steps more; 0 = 60000 */
    uint32_t form_ms;    /* form to first step, and 20 steps more; 0 = 180000 */
    uint32_t stall_ms;   /* a running epoch without a step, and 50 steps more; 0 = 300000 */
    uint32_t stop_ms;    /* end of grace to exit, then it is killed again; 0 = 5000 */
    uint32_t quarantine_crashes; /* within 10 minutes on one node put it in quarantine; 0 = 3, CORE_NO_QUARANTINE */
    /* Jobs of more workers, and places when there are more nodes, are not looked at for each message but in the next
     * tick, which is then due at once, for all that have come by then. 0 = 64 */
    uint32_t at_once;
    uint32_t user_slots;                 /* that one user's jobs may have; 0 = all */
    uint32_t starve_ms;                  /* a job below its minimum gives its slots back after; 0 = 30000 */
    uint64_t restored_term;              /* the store was put back from a backup with this term; 0 = it was not */
    uint64_t backup_worker, gone_worker; /* highest worker id in that backup; highest that can have been used since */
    bool settled;                        /* what agents knew beyond the backup has been stored */
};

titan_status core_new(const struct core_options *options, struct core **ret, struct titan_error *err) TITAN_MUST_USE;
void core_free(struct core *c);

/* --- what the store says, before the first input ------------------------------------------------------------------ */
void core_restore_node(struct core *c, const struct node *n, struct core_time now);
#define CORE_NODE_HISTORY_MS 600000 /* losses older than this say nothing about their node */
void core_restore_policy(struct core *c, const struct node_policy *p, struct core_time now);
void core_restore_loss(struct core *c, const struct loss *l, struct core_time now); /* of a node, oldest first */
struct core_saved_job {
    struct job job;
    uint32_t run; /* number of the newest run; 0 = none */
    bool run_active;
    const struct worker *workers; /* live ones, in id order */
    size_t n_workers;
    const struct epoch *epoch; /* newest; NULL = none */
    const uint64_t *holders;   /* members of epoch->source_epoch in rank order */
    size_t n_holders;
    const struct core_saved_base { /* the newest epoch that made a step, and those since */
        uint64_t epoch;
        uint32_t n;
        const uint64_t *workers;
        uint64_t source; /* epoch its state came from, in memory; 0 = none */
        bool complete;   /* its members have had their state */
    } * bases;
    size_t n_bases;
    const struct worker *lost; /* workers of these epochs that may still be running */
    size_t n_lost;
    const struct checkpoint *checkpoints; /* newest first */
    size_t n_checkpoints;
    const struct loss *losses; /* within the job's window, oldest first */
    size_t n_losses;
};
void core_restore_job(struct core *c, const struct core_saved_job *saved, struct core_time now);
/* A worker above backup_worker that is in the store: it is not added again when an agent tells of it. */
void core_restore_taken(struct core *c, uint64_t worker_id);

/* --- inputs ------------------------------------------------------------------------------------------------------- */
/* A job is durable as PENDING. */
void core_submitted(struct core *c, const struct job *job, struct core_time now, struct batch *out);
#define LAST_CHECKPOINT_MS 120000 /* of workers that are stopped and must write one first */
/* *ret_state: the state after the request. TITAN_ENOTFOUND: the core has no such job (it ended long ago, or never was);
 * TITAN_ECONFLICT: it has ended, *ret_state tells how. */
titan_status core_cancel(struct core *c, uint64_t job_id, const char *reason, uint32_t grace_ms, struct core_time now,
                         struct batch *out, enum job_state *ret_state, struct titan_error *err) TITAN_MUST_USE;
/* What can be asked of a job that is there. TITAN_ENOTFOUND, TITAN_ECONFLICT as above. */
struct core_resize {
    uint32_t workers;            /* this many; or */
    uint32_t min, max;           /* this range; all 0 = what the recipe says */
    struct desired_size desired; /* filled: what is in force now */
    uint32_t least, most;        /* filled */
    enum job_state state;        /* filled */
    uint32_t world_size;         /* filled */
};
/* TITAN_EINVAL with the nearest legal numbers. */
titan_status core_resize(struct core *c, uint64_t job_id, struct core_resize *r, struct core_time now,
                         struct batch *out, struct titan_error *err) TITAN_MUST_USE;
/* Order a checkpoint; *ret_step: what is committed now. TITAN_ECONFLICT: it does not train. */
titan_status core_checkpoint(struct core *c, uint64_t job_id, struct core_time now, struct batch *out,
                             uint64_t *ret_step, struct titan_error *err) TITAN_MUST_USE;
/* Before core_cancel: its last checkpoint is written even if its recipe writes none, and its reason says where. */
void core_want_checkpoint(struct core *c, uint64_t job_id);
/* The operator knows that the node is gone: its workers have ended. TITAN_ECONFLICT while it is connected. */
titan_status core_node_forget(struct core *c, const char *node, struct core_time now, struct batch *out,
                              struct titan_error *err) TITAN_MUST_USE;
/* Its record goes, with what was decided about it. TITAN_ECONFLICT while it is not lost, or a job may have workers on
 * it. */
titan_status core_node_remove(struct core *c, const char *node, struct core_time now, struct batch *out,
                              struct titan_error *err) TITAN_MUST_USE;
/* Its certificate does not count any more: the node is lost at once, connected or not, and no session that identity has
 * opened registers. There may be no such node. */
void core_node_revoke(struct core *c, const char *node, const char *identity, struct core_time now, struct batch *out);
/* Out of service, at once or for a maintenance window. TITAN_ENOTFOUND, TITAN_EINVAL. */
struct core_drain {
    const char *reason;
    int64_t deadline_ms;     /* from now, and with a window before it; 0 = none, and 5 minutes */
    int64_t from_ms, for_ms; /* the window; for_ms 0 = none */
};
titan_status core_drain(struct core *c, const char *node, const struct core_drain *d, struct core_time now,
                        struct batch *out, struct titan_error *err) TITAN_MUST_USE;
/* Into service again, whatever took it out. */
titan_status core_undrain(struct core *c, const char *node, struct core_time now, struct batch *out,
                          struct titan_error *err) TITAN_MUST_USE;
/* Anything an agent says but log chunks. session: a number unique to the stream; its first message is the registration.
 * An error means that the session is of no use and is to be ended with it. */
titan_status core_agent(struct core *c, uint64_t session, const Titan__Internal__AgentMessage *m, struct core_time now,
                        struct batch *out, struct titan_error *err) TITAN_MUST_USE;
/* Before the session's first message: the identity that opened it, as the transport has proved it. Another identity
 * cannot take over the name of a node that is there. Not said or "", it is not known, and any identity may take it
 * over. */
void core_session_opened(struct core *c, uint64_t session, const char *identity);
void core_session_closed(struct core *c, uint64_t session, struct core_time now, struct batch *out);
/* Where the job keeps its checkpoints, by its recipe: others are not taken for its own once this has been said. */
bool core_wants_folder(const struct core *c, uint64_t job_id);
void core_set_folder(struct core *c, uint64_t job_id, const char *folder);
/* A heartbeat that came as a datagram. Returns whether it is to be answered, with its number and under the keys that
 * are put into *ret. No deadline comes sooner. */
bool core_heartbeat(struct core *c, const Titan__Internal__PeerMessage *m, struct core_time now,
                    struct proof_keys *ret);
/* The store contradicts what was decided about this job: it ends here without another change, and its workers are
 * stopped. The caller ends it in the store (state/job_quarantine.h). */
void core_quarantine(struct core *c, uint64_t job_id, struct core_time now, struct batch *out);
/* Due at core_deadline() and at least every heartbeat_ms. */
void core_tick(struct core *c, struct core_time now, struct batch *out);
/* mono_ms of the next tick that can change something; INT64_MAX = none. */
int64_t core_deadline(struct core *c);

/* Asserts what has to be so of all it knows, between two inputs. Debug builds do this after every input. */
void core_check(const struct core *c);

/* --- what can be asked -------------------------------------------------------------------------------------------- */
/* A node has obeyed a coordinator of a higher term: nothing is decided here any more, every request fails. */
bool core_fenced(const struct core *c);
/* TITAN_OK, or TITAN_EUNREACHABLE with the reason and what to do. */
titan_status core_accepts(const struct core *c, struct titan_error *err) TITAN_MUST_USE;
/* What was counted since the start. Others read these by name (the API's Counters), so a name keeps its meaning; _ms
 * are sums. The phases of a recovery are those of recovery.finished (docs/api.md). */
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
size_t core_pending(const struct core *c);
size_t core_user_pending(const struct core *c, const char *user); /* of one user */
/* Progress since the last stored status; false when the job is not active. */
bool core_job_status(const struct core *c, uint64_t job_id, struct job_status *ret);
/* Why a job in the queue waits, or a node cannot start its workers; false when neither is so, or its stored reason says
 * it. */
bool core_job_reason(const struct core *c, uint64_t job_id, char *buf, size_t size);
/* The same of a job that stays in the queue until nodes are added; false for others. Too few slots are known once it
 * was placed for the first time (core_options.at_once). */
bool core_job_lacks_nodes(const struct core *c, uint64_t job_id, char *buf, size_t size);
/* Losses within the window, by cause; how many of them there are. */
#define CORE_LOSSES_MAX 5
struct core_losses {
    const char *cause;
    uint32_t count, budget, window_s;
};
size_t core_job_losses(const struct core *c, uint64_t job_id, struct core_losses ret[CORE_LOSSES_MAX]);
/* Session of a node that is connected; 0 = none. */
uint64_t core_node_session(const struct core *c, const char *node);
/* What another agent needs to ask this node's for a pong: its UDP port, and the key of that one probe. False: it has no
 * port, or nothing could prove the pong. Ids of probes that are not the core's own have this bit. */
#define CORE_PROBE_OTHERS (UINT64_C(1) << 63)
struct core_peer {
    uint32_t port;
    bool keyed;
    uint8_t key[MAC_BYTES];
};
bool core_node_peer(const struct core *c, const char *node, uint64_t probe_id, struct core_peer *ret);
struct core_node {
    const char *name, *device, *address, *version;
    bool connected, by_datagram; /* by_datagram: heartbeats come so */
    enum node_state state;
    const char *state_text, *reason; /* for people */
    const struct node_policy *policy;
    bool quarantined, accepts; /* accepts: new workers may start there */
    uint32_t slots, slots_used;
    const Titan__Internal__NodeGpus *gpus; /* NULL = nothing is known of them */
    uint64_t memory_bytes;
    int64_t last_seen_ms; /* wall */
};
void core_nodes(const struct core *c, void (*each)(const struct core_node *n, void *data), void *data);
/* Nodes with workers of this job (0: of each job), once for each job and node. */
struct core_placement {
    uint64_t job_id;
    const char *node;
    uint32_t workers;
};
void core_placements(const struct core *c, uint64_t job_id, void (*each)(const struct core_placement *p, void *data),
                     void *data);

#endif
