/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h - a cluster in one thread, as seen by its files.
 *
 *   plan.c         a schedule: how large, which jobs, which faults when; all drawn from the seed before it starts
 *   cluster.c      the clock, the queue of events, one run from start to end
 *   network.c      streams, datagrams and local sockets: delays, losses, cuts
 *   coordinator.c  the real core with what the shell does around it; store.c what it stores on
 *   image.c        what is committed, with the state tables checked at every change
 *   host.c         machines: clocks, the agent's process, processes of workers
 *   agent.c        the real core of an agent with what its shell does around it
 *   worker.c       a worker's control thread: its real core (worker/elastic/member.h)
 *   training.c     a worker's training thread: a model of docs/membership.md, parts with contents
 *   faults.c       how each fault strikes, and how it ends
 *   byzantine.c    agents and clients that lie
 *   invariants.c   what must hold; queue.c: between jobs
 *   shrink.c       the fewest faults that still show a violation
 *   scale/         `make sim-scale`: the same with thousands of nodes, one job on all of them
 *
 * A run is a function of its plan alone: no address, no real time, no order of a hash enters. Time is in microseconds
 * of a clock that no process in the cluster can read; each host has clocks of its own made from it. */
#ifndef TITAN_TESTS_SIM_SIM_H
#define TITAN_TESTS_SIM_SIM_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/common/proof.h"
#include "daemon/coordinator/core.h"
#include "state/backup.h"
#include "titan/internal/worker.pb-c.h"
#include "worker/elastic/member.h"

#ifdef SIM_SCALE /* a build of its own: few jobs and epochs, and very large ones */
#define SIM_NODES SIM_SCALE
#define SIM_JOBS 1
#define SIM_WORLD SIM_SCALE
#define SIM_WORKERS (2 * SIM_SCALE)
#define SIM_EPOCHS 16
#define SIM_STEPS 256
#define SIM_LOSSES SIM_SCALE
#define SIM_SESSIONS (8 * SIM_SCALE)
#define SIM_NOTICES 2
#define SIM_EVENT_BYTES (64 << 20)
#else
#define SIM_NODES 6
#define SIM_JOBS 4
#define SIM_WORLD 8     /* members of an epoch */
#define SIM_WORKERS 512 /* of one schedule */
#define SIM_EPOCHS 256  /* of one job */
#define SIM_STEPS 32    /* of one job */
#define SIM_LOSSES 512
#define SIM_SESSIONS 2048
#define SIM_NOTICES SIM_RANKS     /* ranks next to one that leaves that may notice by themselves */
#define SIM_EVENT_BYTES (1 << 20) /* unpacked in one event */
#endif
#define SIM_CKPTS 512
#define SIM_COMMS 512
#define SIM_FAULTS 64
#define SIM_COORD SIM_NODES /* the coordinator's end of a link */

#define MS INT64_C(1000)
#define SEC INT64_C(1000000)
#define LL(x) ((unsigned long long)(x))

typedef int64_t usec;
typedef Titan__Internal__AgentMessage agent_message;
typedef Titan__Internal__CoordinatorMessage coord_message;
typedef Titan__Internal__WorkerToAgent worker_message;
typedef Titan__Internal__AgentToWorker worker_command;

/* --- plan.c ------------------------------------------------------------------------------------------------------- */
enum fault_kind {
    FAULT_WORKER_KILL,
    FAULT_WORKER_EXIT,
    FAULT_WORKER_HANG,  /* its training thread stands still, its control thread answers */
    FAULT_WORKER_STOP,  /* SIGSTOP, and SIGCONT later */
    FAULT_WORKERS_KILL, /* two, some milliseconds apart */
    FAULT_LOSS_WHILE_AWAY,
    FAULT_KILL_AT_AGREE, /* while the members learn that a step is committed */
    FAULT_KILL_AT_SEAL,
    FAULT_COMM_BREAK,  /* an epoch's communicator fails though all its members live */
    FAULT_STARTS_FAIL, /* workers started meanwhile end at once */
    FAULT_REFUSED,     /* a node starts no workers of a job */
    FAULT_AGENT_KILL,
    FAULT_AGENT_STOP,
    FAULT_NODE_POWER,
    FAULT_COORD_KILL,
    FAULT_COORD_KILL_AT_COMMIT, /* durable, but not sent */
    FAULT_COORD_POWER,
    FAULT_COORD_STOP,
    FAULT_STREAM_BREAK,
    FAULT_CUT_COORD, /* a node and the coordinator do not reach each other */
    FAULT_CUT_NODE,  /* a node reaches no other one */
    FAULT_CUT_ONE_WAY,
    FAULT_CUT_SPLIT, /* the nodes fall into two halves, the coordinator in one of them */
    FAULT_LINK_SLOW,
    FAULT_LINK_LOSSY,
    FAULT_LINK_DOUBLES,
    FAULT_REPLAY_UP, /* an old message is heard again */
    FAULT_REPLAY_DOWN,
    FAULT_REPLAY_WORKER,
    FAULT_FALSE_NAME, /* a stranger registers in a node's name, or with nonsense */
    FAULT_ELSEWHERE,  /* a node comes back elsewhere, and the one that had its name lives on, cut off from all */
    FAULT_REVOKED,    /* a node's certificate is taken back, and its machine; a session opened before speaks after */
    FAULT_LYING_AGENT,
    FAULT_LYING_WORKER,
    FAULT_LYING_CLIENT,
    FAULT_DISK_SLOW,
    FAULT_DISK_FULL,
    FAULT_DISK_ERROR,
    FAULT_STORE_OLD,
    FAULT_STORE_RESTORED, /* as `titanctl admin restore` does it, and the coordinator starts on that */
    FAULT_WALL_STEP,
    REQUEST_CANCEL,
    REQUEST_RESIZE,
    REQUEST_DRAIN,
    REQUEST_UNDRAIN,
    REQUEST_CHECKPOINT,
    REQUEST_FORGET, /* of a node that has lost its power, by a person that has seen it */
    FAULT_KINDS,
};
extern const char *const fault_names[FAULT_KINDS];

struct fault {
    enum fault_kind kind;
    usec at, lasts;
    uint32_t pick, pick2; /* the victim; taken modulo those that are there */
};

enum store_kind { STORE_IMAGE, STORE_MEMORY, STORE_DISK };
enum redundancy { REDUNDANCY_CHECKPOINT, REDUNDANCY_BUDDY, REDUNDANCY_REPLICA };

struct plan {
    uint64_t seed;
    int nodes, jobs;
    uint32_t slots[SIM_NODES];
    int64_t mono_offset_ms[SIM_NODES + 1], wall_offset_ms[SIM_NODES + 1];
    int32_t drift_ppm[SIM_NODES + 1];
    struct job specs[SIM_JOBS + 1];
    enum redundancy redundancy[SIM_JOBS + 1];
    bool directed[SIM_JOBS + 1]; /* its steps have a direction section, and COMMIT commits them */
    usec submit_at[SIM_JOBS + 1];
    enum store_kind store;
    usec backup_at;
    bool quarantine;
    uint32_t lease_ms; /* of acting leaders; 0 = there are none */
    int pace;          /* of steps; the higher, the slower */
    bool scale;        /* times as the daemons have them by default, and the coordinator's costs are measured */
    bool late_cancel;  /* of a job that has just ended */
    usec quiet_at;     /* every fault is over */
    struct fault faults[SIM_FAULTS];
    int n_faults;
};
void plan_make(struct plan *p, uint64_t seed);
/* Only those of its faults with their bit set. */
void plan_keep(struct plan *p, uint64_t keep);
void plan_print_fault(FILE *out, int number, const struct fault *f);

/* --- cluster.c ---------------------------------------------------------------------------------------------------- */
struct ev;
enum target { TARGET_WORLD, TARGET_COORD, TARGET_AGENT, TARGET_WORKER, TARGET_TRAINING };
/* What an event does. Those for a process that is stopped wait for it; a: number of the host or worker. */
struct handler {
    const char *name;
    void (*run)(const struct ev *e);
    enum target target;
};
struct ev {
    usec at;
    uint64_t seq;
    const struct handler *handler;
    uint64_t a, b;
    void *bytes; /* a reference, see bytes_new() */
    uint32_t len;
};
/* The returned event is valid until the next call. */
struct ev *at(usec when, const struct handler *h, uint64_t a, uint64_t b);
/* Events that waited for this process go on. */
void cluster_continue(enum target target, uint64_t a);

enum stream_of_chance { CHANCE_NET, CHANCE_WORK, CHANCE_HOST, CHANCE_DISK, CHANCE_FORGER, CHANCE_STREAMS };
uint64_t chance_mix(uint64_t a, uint64_t b);
uint64_t draw(enum stream_of_chance s);
int64_t between(enum stream_of_chance s, int64_t lo, int64_t hi);
bool chance(enum stream_of_chance s, int percent);

/* For unpacked messages: what is taken from it lasts until the event is over; nothing is given back. */
extern ProtobufCAllocator event_memory;
/* Bytes on their way, which may be the same for many receivers: freed with the last reference. */
void *bytes_new(const void *bytes, uint32_t len); /* a copy, with one reference */
void *bytes_keep(void *bytes);
void bytes_drop(void *bytes);                               /* may be NULL */
void *packed(const ProtobufCMessage *m, uint32_t *ret_len); /* with one reference */

/* One change into the hash of what is stored. */
void hash_stored(const struct change *c);
void trace_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
#define TRACE(...)                                                                                                     \
    do {                                                                                                               \
        if (S->trace)                                                                                                  \
            trace_line(__VA_ARGS__);                                                                                   \
    } while (0)
void violated(const char *invariant, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));
#define CHECK(invariant, cond, ...)                                                                                    \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            violated(invariant, __VA_ARGS__);                                                                          \
    } while (0)

/* For a job with a worker on a node that lies: it may suffer. */
#define CHECK_OF(job, invariant, cond, ...) CHECK(invariant, S->lied_about[job] || (cond), __VA_ARGS__)

enum trace_mode { TRACE_OFF, TRACE_KEEP /* the last lines */, TRACE_PRINT };
struct outcome {
    bool violated;
    char invariant[8], text[600];
    usec when;
    uint64_t hash, events; /* of all that was delivered: when, to which handler, its bytes */
    uint64_t hash_stored;  /* of all that the coordinator has stored */
    char *last_lines;      /* TRACE_KEEP; malloc */
};
void cluster_run(const struct plan *p, enum trace_mode trace, struct outcome *ret);
/* The same piece by piece, for a caller that acts on it in between: everything up to a time; false: something is
 * violated. */
void cluster_open(const struct plan *p, enum trace_mode trace, struct outcome *ret);
bool cluster_advance(usec until);
void cluster_close(void);

/* What the schedules went through, all together: a simulator that no longer gets anywhere shows here. */
/* clang-format off */
#define TOTALS(X)                                                                                               \
    X(inputs) X(events) X(completed) X(failed) X(cancelled) X(from_init) X(from_checkpoint) X(from_memory)      \
    X(source_memory) X(source_replica) X(source_buddy) X(source_checkpoint) X(source_init) X(rolled_forward)              \
    X(directed) X(left_in_direction) X(directed_forward)                                                        \
    X(recoveries) X(resizes) X(waits) X(coordinator_lives) X(agent_lives) X(sessions) X(epochs) X(steps)        \
    X(rolled_back) X(installed_in_part) X(quiet_unasked) X(checkpoints) X(checkpoints_torn) X(store_refused)       \
    X(fenced_commands) X(duplicates) X(fenced_terms) X(fenced_epochs) X(refused) X(stalls) X(kills) X(promises)   \
    X(leader_epochs) X(datagrams) X(forged) X(leases_over) X(started_again) X(syncs_failed) X(old_stores) X(not_covered)    \
    X(settled) X(taken_elsewhere) X(revoked) X(passed) X(starts_refused)
/* clang-format on */
struct totals {
#define FIELD(name) uint64_t name;
    TOTALS(FIELD)
#undef FIELD
    uint64_t struck[FAULT_KINDS];
};
extern struct totals *totals;

/* --- network.c ---------------------------------------------------------------------------------------------------- */
struct link {
    int cuts; /* how many faults hold it cut */
    usec slow_until, lossy_until, doubles_until;
    usec extra;
    int loss; /* percent */
};
struct held {
    struct held *next;
    void *bytes;
    uint32_t len;
};
struct stream {
    int host;
    uint32_t agent_life, coord_life;
    bool agent_open, coord_open, dropped;
    bool strange; /* not of the host's agent ... */
    bool named;   /* ... but with its certificate */
    bool greeted; /* the coordinator knows that it is open */
    usec up_last, down_last, up_free, down_free;
    struct held *up, **up_tail, *down, **down_tail; /* stuck in a cut */
};
bool net_reaches(int from, int to);
void net_cut(int from, int to);
void net_heal(int from, int to);
/* Open a session for this host's agent: agent_session follows. */
void net_connect(int host);
void net_up(int host, const ProtobufCMessage *m);
void net_down(uint64_t session, const ProtobufCMessage *m);
void net_down_packed(uint64_t session, void *bytes, uint32_t len); /* keeps a reference */
/* The coordinator ends it; the stream breaks; the agent's process is gone, or its whole host. */
void net_drop(uint64_t session);
void net_break(int host);
void net_end(int host); /* by its agent; agent_session() follows */
void net_agent_gone(int host, bool power);
void net_coord_gone(void);
void net_peer(int from, int to, const ProtobufCMessage *m);
void net_local_up(uint64_t worker, const ProtobufCMessage *m);
void net_local_down(uint64_t worker, const ProtobufCMessage *m);
enum { OLD_DOWN, OLD_UP, OLD_WORKER, OLD_KINDS };
void net_replay(int kind, uint32_t pick);
void net_reset(void);

/* --- coordinator.c, store.c, image.c ------------------------------------------------------------------------------ */
struct image_job {
    bool there;
    struct job job;
    char checkpoint[64], reason[512];
    uint32_t run;
    enum run_state run_state;
    struct epoch epochs[SIM_EPOCHS];
    uint64_t members[SIM_EPOCHS][2 * SIM_WORLD];
    bool fell[SIM_EPOCHS], complete[SIM_EPOCHS], trained[SIM_EPOCHS],
        leader_epochs[SIM_EPOCHS]; /* by slot, as the epochs */
    char paths[SIM_EPOCHS][64];
    uint64_t newest; /* epoch */
    uint32_t counted, failed_epochs;
    bool permanent, refused;
};
struct image_worker {
    struct worker w;
    char node[8], address[32];
};
struct image_ckpt {
    struct checkpoint c;
    char path[64];
    enum checkpoint_state state;
};
struct image {
    struct image_job jobs[SIM_JOBS + 1];
    struct image_worker workers[SIM_WORKERS];
    uint64_t last_worker;
    struct image_ckpt ckpts[SIM_CKPTS];
    int n_ckpts;
    struct node nodes[SIM_NODES];
    struct node_policy policies[SIM_NODES];
    char policy_texts[SIM_NODES][2][160];
    struct loss losses[SIM_LOSSES];
    size_t n_losses, undrained[SIM_NODES]; /* losses there were then */
    uint64_t lost;                         /* the worker that the next loss is about, when it counts */
    struct backup_origin origin;           /* term 0: it was not restored */
};
void image_submit(int job);
void image_apply(const struct change *c);
void image_restore(struct core *core, struct core_time now);

struct pending {
    struct pending *next;
    struct batch batch;
    int submit, cancel; /* job; 0 = none */
    usec queued;
};
struct coord {
    struct core *core; /* NULL while it is down */
    uint32_t life;
    bool stopped;
    uint64_t term;
    struct pending *pending, **pending_tail;
    usec write_began, tick_at;
    bool kill_at_commit, stalled;
    bool job_acked[SIM_JOBS + 1], cancel_acked[SIM_JOBS + 1], submitted[SIM_JOBS + 1];
};
extern const uint8_t coord_term_secret[]; /* of the store, and of its backups */
void coord_start(void);
void coord_kill(usec restart_after, bool power);
void coord_stop(usec lasts);
bool coord_hears(uint64_t session, const void *bytes, uint32_t len); /* false: the session is ended */
void coord_session_closed(uint64_t session);
void coord_hears_heartbeat(int from, const void *bytes, uint32_t len); /* a datagram */
void coord_request(int job);                                           /* submit, or cancel when it is there */
void coord_ask_later(int job, usec wait);
void coord_resize(int job, uint32_t workers);
void coord_drain(int node, bool drain);
void coord_checkpoint(int job);
void coord_forget(int node);
bool coord_revoke(int node); /* false: it could not be asked */
struct core_time coord_now(void);

/* Processor time of the coordinator, where the plan asks for it. */
struct cost {
    uint64_t n, ns, worst_ns;
};
struct costs {
    struct cost received; /* messages of agents: unpacked and taken in */
    struct cost timers;   /* ticks, and when the next is due */
    struct cost reported; /* messages packed, or found packed */
    struct cost stored;   /* commits */
    struct cost restored;
};
/* Of one change of membership. Nodes may be noticed to be lost behind the decision as well, when their workers were
 * waited for no longer. */
struct decision {
    uint32_t n_lost, n_before, n_epochs; /* nodes lost, of them before the decision; epochs decided */
    usec lost_at, formed_at;             /* the last of those before it; the newest epoch */
    struct costs lost, formed;           /* before the input in which that was lost; behind the epoch's */
    uint64_t worst_ns;                   /* of one input */
};
uint64_t cost_begin(void);
void cost_end(struct cost *c, uint64_t begin);

enum stored { STORED, STORED_REFUSED, STORED_DIED /* the process ends; the next one has found out */ };
struct disk; /* tests/support/disk.h */
struct store_state {
    usec slow_until, full_until, error_until;
    struct db *db;        /* twin of the image; may be NULL */
    struct disk *disk;    /* what it is on; NULL = memory */
    uint64_t turn;        /* commits so far */
    struct image *backup; /* of an earlier time; while it is in use, of the right one */
    uint64_t backup_term;
    bool old;                          /* the backup is in use */
    bool cancelled_then[SIM_JOBS + 1]; /* acknowledged cancels at the backup */
    bool lost[SIM_JOBS + 1];           /* jobs submitted after it: a restored store does not have them */
};
void store_begin(enum store_kind kind);
void store_end(void);
usec store_takes(void); /* a commit */
bool store_accepts(void);
enum stored store_commit(int submit, const struct change *list);
void store_trouble(const struct fault *f);
/* The coordinator's process is gone, or its machine's power: what is on disk now? */
void store_reboot(bool power);
void store_back_up(void);
void store_swap(void);     /* the backup for what is there, and back */
void store_put_back(void); /* what titanctl admin restore does; the coordinator is down */
void store_restore(struct core *core, struct core_time now);

/* --- host.c ------------------------------------------------------------------------------------------------------- */
struct clocks {
    int64_t mono_offset_ms, wall_offset_ms;
    int32_t drift_ppm;
};
int64_t clock_mono_of(const struct clocks *c); /* in ms */
int64_t clock_wall_of(const struct clocks *c);
/* When that monotonic clock will show at_ms. */
usec clock_reaches(const struct clocks *c, int64_t at_ms);

struct agent; /* agent.c */
struct host {
    char name[8];
    struct clocks clocks;
    bool up;    /* power */
    bool alive; /* the agent's process */
    bool stopped;
    uint32_t life;    /* of the agent */
    uint64_t session; /* 0 = none */
    bool connecting;
    usec starts_fail_until, refuses_until, disk_slow_until;
    uint64_t refuses; /* workers of this job */
    usec heard_at;    /* by the coordinator, on a session */
    uint64_t *procs;  /* ids of all there have been, ascending */
    size_t n_procs;
    struct agent *agent;
    bool turned; /* an attacker has spoken with its agent's keys */
    uint64_t obeyed_term, obeyed_epoch[SIM_JOBS + 1], promised[SIM_JOBS + 1]; /* by any agent of it */
    /* On its disk. */
    struct seen_term term;
    struct {
        void *bytes;
        uint32_t len;
    } records[SIM_JOBS + 1];
};
void host_agent_kill(int h, usec restart_after);
void host_agent_stop(int h, usec lasts);
void host_power_off(int h, usec lasts);
/* The agent starts a process. */
void host_spawn(int h, uint64_t job, uint64_t worker);
void host_signal(uint64_t worker, int signal); /* what the agent does: SIGKILL */
/* The next of its processes that live, by id; NULL = none. *i: 0 at first. */
struct proc *host_next(int h, size_t *i);

/* --- agent.c ------------------------------------------------------------------------------------------------------ */
void agent_begin(int h);
void agent_end(int h);                     /* its process is no more */
uint64_t agent_epoch(int h, uint64_t job); /* highest accepted */
/* The session it asked for is there, or was lost or refused. */
/* The agent is told to stop (agent.drain_on_term), and tells the coordinator. */
void agent_leave(int h, uint32_t deadline_ms);
void agent_session(int h, bool open, bool was_open);
void agent_hears(int h, const coord_message *m);
void agent_hears_worker(int h, uint64_t worker, const worker_message *m);
void agent_hears_peer(int h, int from, const void *bytes, uint32_t len);
void agent_worker_ended(int h, uint64_t worker, int code, int signal, const char *words);

/* --- a worker's process: worker.c, training.c --------------------------------------------------------------------- */
/* What it holds of one epoch: its own part and its ward's. content: of the whole state at step. */
struct holding {
    uint64_t epoch, step, content; /* epoch 0 = nothing */
    int rank, world, parts, ward;
};
enum sim_source {
    SIM_SOURCE_NONE,
    SIM_SOURCE_INIT,
    SIM_SOURCE_CHECKPOINT,
    SIM_SOURCE_MEMORY,
    SIM_SOURCE_REPLICA,
    SIM_SOURCE_BUDDY
};
#define SIM_RANKS (2 * SIM_WORLD) /* members and departing ranks */
/* One epoch's communicator. Its members pass barriers: all must have arrived, then each goes on at a time of its own,
 * or not, when it is ended or revoked before. */
struct comm {
    uint64_t job, epoch, source_epoch, resume;
    unsigned char id[16];
    enum state_source source;
    int world, ranks;            /* departing ranks behind the members */
    uint64_t workers[SIM_RANKS]; /* those that entered; 0 = not yet */
    bool out[SIM_RANKS];
    int arrived[SIM_RANKS];    /* barriers it stands at or is past */
    int opened;                /* barriers that have opened */
    unsigned commands, agreed; /* COMMAND_* */
    bool over;                 /* a member is out: no barrier opens any more */
    char checkpoint[64];       /* that the command names */
    enum sim_source recovery_source;
    struct holding target; /* what all will hold when the state is there */
    bool rolled_forward, installed;
    bool memory_only;
    int ckpt_parts; /* on disk, of ckpt_step */
    uint64_t ckpt_step, ckpt_content, ckpt_number;
};
struct proc {
    uint64_t id, job;
    int host;
    bool there, alive, hung, stopped, connected, fails_at_start, permanent, begun, exiting, pausing, waiting;
    bool faulty;           /* its agent has found that it breaks the protocol */
    struct member *member; /* its control thread; from its start to the end of the schedule */
    usec tick_at, went_on; /* after it was stopped */
    uint64_t actions, busy_ns;
    int comm, rank;   /* index + 1; 0 = in none */
    bool held;        /* something, when it entered */
    uint64_t entered; /* newest epoch */
    struct holding installed, pending;
    bool prepared;                      /* the step after installed.step */
    bool decided;                       /* that step has passed "agreed", and not "committed" yet */
    bool unpublished;                   /* installed.step: others may not have its sum */
    usec up_last, down_last;            /* its socket keeps the order */
    int64_t contact_ms, epoch_until_ms; /* in its page, for the next agent */
    int exit_code, exit_signal;
    const char *last_words; /* literal */
};
void proc_end(uint64_t worker, int code, int signal, const char *why);
struct proc *proc_pick(uint32_t pick); /* one that lives; NULL = none */

void worker_begin(struct proc *p);
void worker_hears(struct proc *p, const worker_command *m);
void worker_connected(struct proc *p, bool connected); /* the agent's socket */
void worker_timer(struct proc *p);                     /* after every input of its member */

void training_poke(struct proc *p); /* the control thread has news */
void training_revoked(struct proc *p);
void training_ended(struct proc *p); /* the process is no more: its peers notice */
void training_break(uint32_t pick);
void training_network_changed(void); /* barriers that waited for a cut */
bool disk_has_checkpoint(const char *path);
void disk_remove_checkpoint(const char *path);
/* It has been there, and was removed. */
bool disk_had_checkpoint(const char *path);

/* --- faults.c ----------------------------------------------------------------------------------------------------- */
void faults_begin(void);

/* --- invariants.c ------------------------------------------------------------------------------------------------- */
/* A job's committed steps. */
struct ledger {
    uint64_t top;
    uint64_t content[SIM_STEPS + 1], epoch[SIM_STEPS + 1];
    uint64_t newest;    /* epoch that has started from some state */
    uint64_t published; /* the newest step that a worker has told of */
};
/* Epochs' numbers have gaps: where this one is kept; 0 for no epoch. */
size_t epoch_slot(uint64_t job, uint64_t epoch);
/* The stored step of a job falls. */
void must_fall(struct image_job *j, const struct job_status *s);
/* What is stored about where an epoch's state came from. */
/* An epoch is formed. */
void must_include(const struct epoch *e);
void must_originate(uint64_t job, uint64_t epoch, const struct epoch_origin *origin);
void must_told(const coord_message *m); /* before it goes out */
void must_enter(const struct proc *p, const struct comm *c);
void must_save(const struct comm *c); /* a checkpoint is begun */
/* All of c starts from c->target, found on c->recovery source. */
void must_start(struct comm *c);
void must_agree(const struct comm *c);      /* a step of it */
void must_have_lease(const struct proc *p); /* it has done some of a step's work */
/* The content of the step that p commits. */
uint64_t must_commit(const struct proc *p, const struct comm *c);
void must_tell(const struct proc *p, const struct comm *c);
/* Do these workers hold all parts of that epoch at their furthest step? */
bool must_cover(const uint64_t *workers, int n, uint64_t epoch, struct holding *ret, bool *ret_replica,
                bool *ret_rolled);
bool must_be_over(void);
/* queue.c: after an input of the coordinator, with what came of it. */
void must_serve(const struct batch *b);
void queue_restarted(void); /* with what is stored */
void must_at_end(void);

/* --- the whole ---------------------------------------------------------------------------------------------------- */
struct disk_ckpt {
    char path[64];
    char removed[64]; /* the path it had before it was removed */
    uint64_t step, content;
};
struct told {
    bool seen;
    uint64_t members[SIM_WORLD], holders[SIM_RANKS], departing[SIM_WORLD];
    size_t n, n_holders, n_departing;
    uint32_t source;
    uint64_t resume;
    unsigned char comm[16];
};
struct sim {
    const struct plan *plan;
    enum trace_mode trace;
    char *lines; /* ring of TRACE_KEEP */
    size_t n_lines;
    uint64_t rng[CHANCE_STREAMS];
    struct {
        uint64_t epoch;
        unsigned char key[32];
    } mesh_keys[SIM_JOBS + 1]; /* of the newest epoch that workers were told to form */
    usec now;
    struct ev *heap;
    size_t n_heap, cap_heap;
    struct ev *waiting; /* for stopped processes */
    size_t n_waiting, cap_waiting;
    uint64_t seq, hash, hash_stored, events;
    jmp_buf out;
    struct outcome *outcome;

    struct clocks coord_clocks;
    struct coord coord;
    struct store_state store;
    struct image image;
    struct host hosts[SIM_NODES];
    struct link links[SIM_NODES + 1][SIM_NODES + 1];
    int cuts;                  /* of all links together */
    int elsewhere[SIM_FAULTS]; /* the host of each FAULT_ELSEWHERE */
    struct costs costs;
    struct decision decision; /* where the plan measures costs: all there was since it was cleared */
    struct stream streams[SIM_SESSIONS];
    uint64_t next_session;
    struct {
        int host; /* sender or receiver */
        void *bytes;
        uint32_t len;
    } old[OLD_KINDS][16]; /* messages; host: or worker */
    uint32_t n_old[OLD_KINDS];

    struct proc procs[SIM_WORKERS];
    uint64_t last_proc;
    struct comm comms[SIM_COMMS];
    int n_comms;
    uint64_t ckpt_numbers;
    uint32_t kill_at_agree, kill_at_seal; /* armed: the one to kill at the next such barrier; 0 = not */
    usec kill_at_promise;                 /* armed: how long the next agent that gives a promise is away; 0 = not */
    bool leases;                          /* the coordinator gives them: runs on the far side of a cut stop */
    struct told told[SIM_JOBS + 1][SIM_EPOCHS];
    uint64_t numbers[SIM_JOBS + 1][SIM_EPOCHS]; /* of epochs, by slot */
    size_t n_numbers[SIM_JOBS + 1];
    struct ledger ledgers[SIM_JOBS + 1];
    struct disk_ckpt ckpts[SIM_CKPTS];
    int n_ckpts;
    struct queued {
        bool seen, waits, lent; /* it has passed another one */
        uint32_t passed;        /* bits of jobs that it has started before, though they come before it */
    } queued[SIM_JOBS + 1];
    bool lied_about[SIM_JOBS + 1]; /* by a node that has a worker of it */
};
extern struct sim *S;

/* --- byzantine.c -------------------------------------------------------------------------------------------------- */
void byzantine_agent(const struct fault *f);
void byzantine_worker(const struct fault *f);
void byzantine_client(const struct fault *f);
void byzantine_peer(int from, int to, const Titan__Internal__PeerMessage *m); /* a datagram is on its way */
/* Is that one that a liar has made up, and only that? */
bool byzantine_promised(uint64_t epoch);
bool byzantine_step(uint64_t step);

/* --- shrink.c ----------------------------------------------------------------------------------------------------- */
/* Prints what was violated, how to see it again, the fewest faults that show it and the last events. */
void shrink_and_print(FILE *out, uint64_t seed, const struct outcome *first);
/* Of n <= 64 faults, those without any one of which it no longer fails (bit i: fault i); whole, it has failed. */
uint64_t shrink_keep(int n, bool (*fails)(uint64_t keep, void *data), void *data);
/* A run in a process of its own, so that an assertion of the code under test is an outcome too. */
void run_apart(const struct plan *p, enum trace_mode trace, struct outcome *ret);

#endif
