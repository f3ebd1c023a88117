/* core_internal.h - the core's records, shared by its files: core.c (inputs), core_node.c (sessions, silence),
 * core_worker.c (reports, ends), core_epoch.c (revoke, form), core_job.c (what a job does next), core_budget.c (what a
 * loss costs), core_detect.c (silence, hangs), core_fence.c (terms, names), core_place.c (slots and queue),
 * core_restore.c (from the store), core_behind.c (from agents, when the store is a backup), core_source.c (where the
 * state comes from), core_transitions.c (moves of states), core_events.c (what is told of), core_tell.c (messages). */
#ifndef TITAN_DAEMON_COORDINATOR_CORE_INTERNAL_H
#define TITAN_DAEMON_COORDINATOR_CORE_INTERNAL_H

#include "base/json.h"
#include "base/mac.h"
#include "daemon/coordinator/core.h"
#include "proto/ranges.h"
#include "titan/internal/worker.pb-c.h"

struct jobrec;
struct lane;
struct user;

#define NODE_CRASHES 16 /* that are remembered */
/* Others are asked whether they reach a silent node. */
struct probe {
    uint64_t id;
    int64_t at; /* when they were asked; 0 = it is not suspected */
    uint32_t asked, reached, denied;
    bool held; /* the round before had reached it */
};

struct noderec {
    struct noderec *next, *hash_next;
    char *name, *device, *address, *version;
    char *identity; /* of who said its last hello; "" = not known */
    enum node_state state;
    uint64_t session; /* 0 = not connected */
    uint32_t slots, used;
    uint64_t memory_bytes, incarnation;
    uint32_t peer_port; /* UDP; 0 = none */
    bool unchecked;     /* it has not said yet whether jobs can have their folders there */
    char *unfit;        /* ... why they cannot; "" or NULL = they can */
    int64_t seen_mono, seen_wall;
    /* For its datagrams: of the newest session; and the newest that it is known to have, as its welcome may be late. */
    bool keyed, key_had, unkeyed; /* unkeyed: its agent is of an older version, and proves nothing */
    uint8_t key[MAC_BYTES], had[MAC_BYTES];
    int64_t stream_mono, datagram_mono; /* a message of its stream, a beat as a datagram, last */
    struct node_policy policy;          /* name is ours; the texts are owned */
    bool in_window;                     /* its maintenance window, or the drain ahead of it, is in force */
    bool said_drained;
    bool given_up;          /* an operator has said that it is gone for good */
    int64_t drain_at;       /* what is still there then is stopped; INT64_MAX = never */
    uint64_t leaving;       /* incarnation of the agent that is told to stop; 0 = none */
    int64_t leave_at;       /* what is there then is stopped */
    int64_t quarantine_end; /* 0 = it is not in quarantine */
    struct crash {
        int64_t at;
        uint64_t job_id;
    } crashes[NODE_CRASHES]; /* the last ones, as a ring */
    uint64_t n_crashes;
    int64_t answered_mono; /* a beat of it, last */
    bool unconfirmed;      /* no beat has followed its hello, which may be older than what its agent has done since */
    struct noderec *session_next;
    struct probe probe;
    int64_t lost_mono;           /* last; 0 = never */
    int64_t steady_at, quiet_ms; /* no new work before it has beaten well until then; 0 = it does */
    uint32_t flaps;
    int64_t said_mono; /* a refusal was told of */
    struct node_refusals {
        uint64_t old_terms, old_epochs, other_epochs, imposters, out_of_range, unproved;
    } refusals;     /* of its agent, as that has told of them */
    uint64_t round; /* in which it was told something, see tell_seats */
    uint32_t mine;  /* workers of the job that is being placed */
    uint32_t first; /* of the members of the epoch that is being formed, the first on it */
};

struct workrec {
    uint64_t id;
    struct jobrec *job;
    struct noderec *node;
    uint32_t seat;           /* its place among the job's seats + 1, see job_seat; 0 = it never had one */
    enum worker_state state; /* STARTING, READY, STOPPING; ended ones have no record */
    char *address;
    int64_t pid;           /* 0 = not known */
    enum loss_cause blame; /* what its end counts as, though it is told to stop; LOSS_NONE = not at all */
    bool started;          /* it has been seen alive */
    bool quiesced;         /* out of the job's current epoch, holding the state of last_step */
    int64_t missing;       /* its agent did not list it; it counts as ended from then on; 0 = it is there */
    uint64_t epoch;        /* newest it knows of */
    uint64_t last_step;
    uint64_t sealed;   /* epoch whose parts it holds for good, at last_step; 0 = none */
    bool unseen;       /* a restored store or others say so, its own agent has not yet: its end is no loss to count */
    bool away;         /* its node cannot be reached, and nothing is decided about it */
    uint64_t unsealed; /* of this one it has its whole part too; 0 = none */
    bool prepared;     /* for last_step + 1 it needs nothing but the sum of AGREE */
    bool chosen;       /* a member of the epoch that is being formed, see source_leavers */
    int64_t deadline;  /* of starting or stopping */
};

#define METRICS_SPARE 4 /* steps that members can be ahead of what rank 0 was heard to say */

/* A place in the current epoch. */
struct seat {
    uint64_t worker_id;
    struct workrec *worker; /* NULL = ended */
    bool finished;          /* a leaver: it has handed its part over */
};

/* An epoch whose members are kept (core_quorum.c): the newest that made a step, and those since. */
struct base_member {
    uint64_t worker_id;
    const struct noderec *node; /* NULL = not known any more, and so told of */
    bool told;                  /* it has ended, or its agent knows that the run goes on without it */
};
struct base {
    uint64_t epoch, source; /* where its state came from; 0 = no memory */
    bool complete;          /* its members have had their state */
    uint32_t n;
    struct base_member *members; /* in rank order */
    uint32_t *by_id;             /* where they are, in id order; NULL until somebody is looked for */
};

/* How a recovery goes; monotonic times, 0 = not yet. */
struct recovery {
    int64_t lost;                                   /* the first report; 0 = there is none under way */
    int64_t revoked, quiet, formed, ready, stepped; /* of the newest epoch in it */
    int64_t detect_ms;                              /* from the loss to its report, where that is known */
    uint32_t epochs;                                /* that were revoked in it */
    uint64_t from_step;
};

struct past_loss {
    enum loss_cause cause;
    int64_t at_ms; /* Unix time */
};

struct ckptrec {
    uint64_t step, epoch;
    char *path;
};

/* What a job is about; the table of moves is in core_phase.c, and core_transitions.c makes them:
 *
 *   QUEUED --placed--> ASSEMBLING --epoch formed--> TRAINING --asked to pause--> PAUSING --next epoch--> TRAINING
 *      ^                   ^  <-----a member is lost----'                           |
 *      |                   `----------------------a member is lost------------------'
 *      |  of these three:
 *      `--last worker gone-- REQUEUEING <--its slots are needed, or its node is drained
 *                            FINISHING  <--all steps are made                              --last worker gone--> ENDED
 *                            CANCELLING <--cancelled                                       --last worker gone--> ENDED
 *                            ENDED      <--failed; it is kept until its last worker is gone
 */
enum job_phase {
    PHASE_NONE,
    PHASE_QUEUED,     /* it has no workers */
    PHASE_ASSEMBLING, /* no epoch is live: workers start, or leave the last one, until enough are ready for the next */
    PHASE_TRAINING,   /* an epoch forms or runs */
    PHASE_PAUSING,    /* members of a running epoch were asked to leave it at a step boundary, for another membership */
    PHASE_REQUEUEING, /* workers stop, with a checkpoint; then it is queued again */
    PHASE_FINISHING,  /* all steps are made: workers exit */
    PHASE_CANCELLING,
    PHASE_ENDED,
};
extern const struct sm phase_sm;

struct jobrec {
    struct jobrec *hash_next;
    struct jobrec *prev, *next; /* in its lane of the queue or in the active list */
    struct lane *lane;          /* while it waits */
    uint64_t id;
    struct user *user;
    enum job_state state; /* as stored */
    enum job_phase phase;
    struct job_spec spec;
    char device[16]; /* what it was placed on; "" before */
    struct job_wish wish;
    struct job_status status;

    uint32_t run; /* number of the newest */
    bool run_active;
    struct workrec **workers; /* in id order */
    size_t n_workers, cap_workers;
    uint64_t n_taken; /* workers that agents have told of, after a backup */
    uint32_t target;  /* workers it has a claim to */
    uint32_t squeeze; /* at most so many for now, since a job of higher priority waits; 0 = no such limit */
    uint64_t squeezed_for;
    char *said;       /* what it waits for, as it was said; NULL = nothing */
    uint32_t lacks;   /* workers it has been said to wait for; 0 = it does not wait */
    char *lack_words; /* as they were said, which may not be stored yet */

    enum epoch_state epoch_state; /* of status.epoch */
    struct seat *seats;           /* in rank order; behind them, until it is sealed, the leavers */
    uint32_t n_seats, n_leavers;
    uint32_t source;
    uint64_t source_epoch, resume_step;
    int64_t formed_mono; /* when we have formed it; 0 = we have not, or before our start */
    char *epoch_checkpoint;
    unsigned char comm_id[16];
    bool keyed;
    uint8_t key[MAC_BYTES]; /* of the epoch */
    uint64_t *holders;
    size_t n_holders;
    struct base *bases; /* in the order of their numbers */
    size_t n_bases;
    int64_t quorum_at;      /* leases of those who cannot be reached are over; INT64_MAX = none is waited for */
    bool quorum_waits;      /* the job's reason says so */
    bool above_delegates;   /* the next epoch's number is to be above all that delegates can have given unheard */
    uint64_t refused_epoch; /* a number that an agent has taken already */
    int64_t adopt_until;    /* members of a delegated epoch that are away are waited for */
    bool origin_known;      /* its members have said where their state came from */
    struct epoch_origin origin;
    bool broken;  /* a member left the epoch by itself, or it did not form in time */
    bool charged; /* the end of the current epoch has cost at least one restart */
    struct {
        char *words;     /* the reason that the worker itself gave; NULL = none has */
        uint64_t epoch;  /* of the job then */
        uint64_t before; /* workers below it were there */
    } fault;             /* the last one that was charged */

    char *folder;          /* of its checkpoints, see core_set_folder; NULL = not known */
    struct ckptrec *ckpts; /* newest first */
    size_t n_ckpts, cap_ckpts;
    struct {
        char *words, *why; /* for its reason, and the cause alone; NULL = there is no trouble */
        uint32_t streak;   /* not written since the last that was */
        bool reading;
    } trouble; /* with its checkpoints */

    bool requeue;    /* it is to give its slots back and be queued again, as soon as it may stop */
    char *stop_why;  /* for this, or why it is cancelled */
    char *short_why; /* a node could not start a worker, for want of what is its own; NULL = since then one could */
    bool must_checkpoint;   /* when it stops, also if its recipe writes none */
    int64_t epoch_deadline; /* to be quiet, or to make the first or next step; INT64_MAX = none */
    int64_t replace_at;     /* earliest start of new workers */
    int64_t starve_at;      /* gives its slots back; INT64_MAX = none */
    uint32_t losses;        /* since the job was last complete and moving */
    struct past_loss *past; /* that counted, oldest first; only those within the window, if it has one */
    size_t n_past, cap_past;
    struct recovery recovery;
    int64_t state_took;  /* longest from FormEpoch to StateReady; 0 = none yet */
    bool patient;        /* the last epoch missed its time: the next one has as long as the first */
    int64_t resize_mono; /* resize began; 0 = none */
    uint32_t next_world; /* that the members pause for; a hint */
    uint32_t grace_ms;
    double step_ms;
    uint64_t metric_step;               /* of the last one taken */
    struct metric spare[METRICS_SPARE]; /* of other ranks than 0, by step */
    int64_t saved_mono;                 /* status was last stored */
    bool unsaved;                       /* and has changed since */
};

#define LAST_CHECKPOINT_MS 120000 /* for the last one of workers that stop for the system's sake */

#define CORE_BUCKETS 4096
struct core {
    struct core_options options; /* times of detection at the pace of now, see detect_pace */
    struct core_options asked;   /* as given */
    char *jobs_dir, *jobs_token;
    bool secret_set;
    uint8_t secret[MAC_BYTES];
    uint8_t term_secret[MAC_BYTES];
    int64_t term_said; /* when a term without a proof was told of; 0 = never */
    uint64_t last_key; /* of a session that was drawn */
    struct core_time now;
    struct batch *out;
    struct noderec *nodes, *last_node, *names[CORE_BUCKETS];
    uint32_t connected, by_datagram;                /* nodes; of those, whose datagrams come */
    uint64_t tell_round;                            /* number of the newest */
    Titan__Internal__CoordinatorMessage *form_told; /* in this input; it goes to all members alike */
    struct jobrec *buckets[CORE_BUCKETS];
    struct user *users;     /* all there have been */
    struct lane *lanes;     /* the queue */
    uint64_t blocker;       /* job in the queue that the others behind it wait for; 0 = none */
    bool holding;           /* what comes free is kept for it, as it will be enough */
    uint32_t claimed_ahead; /* slots it does not get, since running jobs wait for them */
    struct jobrec *active, *active_last;
    size_t pending;
    struct noderec *sessions[CORE_BUCKETS];
    struct greeting { /* sessions of a known identity that have not said hello */
        struct greeting *next;
        uint64_t session;
        char *identity;
    } * greetings;
    uint64_t next_worker_id, last_probe;
    uint64_t fenced_term; /* that a node has obeyed, above ours; 0 = we are not fenced */
    char *fenced_by;
    bool behind; /* agents may know what the restored store does not */
    int64_t behind_since;
    uint64_t *taken; /* workers above options.backup_worker that the store has */
    size_t n_taken;
    int64_t late_mono; /* this process was found to have stood still; 0 = never */
    struct core_counters counters;
    bool slots_changed;
    bool unsettled; /* something was heard that is not looked at before the next tick, see core_options.at_once */
    int64_t last_input;
    /* core_deadline(), of all nodes and of all jobs, while nothing has come that could make it an earlier one. */
    struct due {
        int64_t node, job;
    } due;
};

/* --- core.c --- */
void *core_alloc(size_t bytes); /* zeroed; see batch_alloc about running out */
char *core_strdup(const char *text);
void core_set_string(char **field, const char *text);
struct noderec *core_find_node(const struct core *c, const char *name);
struct noderec *core_find_session(const struct core *c, uint64_t session);
struct noderec *core_add_node(struct core *c, const char *name);
struct noderec *core_expect_node(struct core *c, const char *name);         /* found, or one that is to say hello yet */
void core_set_session(struct core *c, struct noderec *n, uint64_t session); /* 0 = none */
struct jobrec *core_find_job(const struct core *c, uint64_t id);
struct jobrec *core_add_job(struct core *c, const struct job *job);
void core_list_remove(struct jobrec **first, struct jobrec **last, struct jobrec *j);
void core_list_append(struct jobrec **first, struct jobrec **last, struct jobrec *j);
void core_forget(struct core *c, struct jobrec *j); /* unlinks and frees */
/* Around every input. */
void core_moves(struct core *c, struct core_time now); /* time does */
void core_begin(struct core *c, struct core_time now, struct batch *out);
void core_finish(struct core *c);

/* --- core_node.c --- */
void node_checked(struct core *c, struct noderec *n, const Titan__Internal__NodeChecked *m);
titan_status node_hello(struct core *c, uint64_t session, const Titan__Internal__AgentMessage *message,
                        struct titan_error *err) TITAN_MUST_USE;
/* Jobs with workers there may have something to do. */
void node_look_again(struct core *c, const struct noderec *n);
void node_lose(struct core *c, struct noderec *n, const char *words);
bool node_name_ok(const char *name);

/* --- core_behind.c --- */
/* Has the agent to be asked first what it knows? */
bool behind_asks(const struct core *c, const Titan__Internal__AgentHello *m);
/* Take over what it has told; before its workers are looked at. */
void behind_hello(struct core *c, struct noderec *n, const Titan__Internal__AgentHello *m);
/* A worker of this job is of no use, but what it has done may be: it was submitted after the backup. */
bool behind_no_use(const struct core *c, uint64_t job_id);
void behind_tick(struct core *c);
/* A node that has not said yet what it knows; NULL = all have. */
const struct noderec *behind_awaits(const struct core *c);
uint64_t behind_first_epoch(const struct core *c); /* no number below it is given; 0 = the store was not restored */

/* --- core_policy.c --- */
bool node_leaves(const struct noderec *n);            /* its agent is told to stop: what ends there is drained */
bool node_empties(const struct noderec *n);           /* workers on it have to go */
bool node_unfit(const struct noderec *n);             /* jobs cannot have their folders there */
bool node_accepts(const struct noderec *n);           /* new workers may start there */
const char *node_state_text(const struct noderec *n); /* as in titan.v1.Node.state */
const char *node_reason_text(const struct noderec *n);
/* A worker of the job has crashed there: too many in too short a time put the node in quarantine. */
void policy_crashed(struct core *c, struct noderec *n, const struct jobrec *j);
/* The job's workers crash there so often that its next ones are rather started elsewhere. */
void policy_leaves(struct core *c, struct noderec *n, const Titan__Internal__AgentLeaves *m);
bool policy_avoids(const struct core *c, const struct noderec *n, const struct jobrec *j);
void policy_tick(struct core *c);

/* --- core_phase.c --- */
/* Of a job that goes on: by its newest epoch. */
enum job_phase phase_by_epoch(const struct jobrec *j);
/* Only exits of its workers are waited for: it finishes, is cancelled, or has ended. */
bool phase_ends(const struct jobrec *j);
bool phase_stops(const struct jobrec *j); /* the same, or it stops to be queued again */

/* --- core_requeue.c --- */
/* Stop a job, with a checkpoint, and queue it again. Nothing happens when it is about to end anyway. */
void requeue_begin(struct core *c, struct jobrec *j, const char *why);
/* Of a job that is to: it begins to stop, is queued, or goes on after all, since it has made its last step. */
void requeue_advance(struct core *c, struct jobrec *j);
void requeue_restored(struct jobrec *j);

/* --- core_detect.c --- */
/* Something was heard of it. */
void detect_heard(struct core *c, struct noderec *n);
void detect_has_key(struct noderec *n); /* that of its newest session */
void detect_probe_result(struct core *c, const Titan__Internal__ProbeResult *m);
void detect_lost(struct core *c, struct noderec *n);
void detect_returned(struct core *c, struct noderec *n, bool same_agent);
void detect_stalled(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__WorkerStalled *m);
void detect_straggler(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__WorkerStraggles *m);
/* Nodes have come: beats as often as the coordinator can take, and the times that count them in the same ratio. Who
 * beats at another pace than now is told. */
void detect_pace(struct core *c);
void detect_tick(struct core *c);
int64_t detect_deadline(const struct core *c);

/* --- core_worker.c --- */
struct exit_report {
    int32_t exit_code, signal;
    enum loss_cause cause;
    bool node_short; /* it was not started: its node has no descriptors, memory, processes or space left */
    const char *reason;
};
struct subject {
    uint64_t job_id, worker_id;
};
/* --- core_fence.c --- */
/* Is every field what it can be? n may be NULL. */
titan_status fence_range(struct core *c, struct noderec *n, const Titan__Internal__AgentMessage *m,
                         struct titan_error *err) TITAN_MUST_USE;
/* Fences the core when a node whose hello is accepted, or is about to be, proves a higher term; without a proof the
 * session is refused. *ret_drop: the message is of a lower one. */
titan_status fence_message(struct core *c, const char *node, const Titan__Internal__AgentMessage *m, bool *ret_drop,
                           struct titan_error *err) TITAN_MUST_USE;
/* Is the name its own? */
titan_status fence_name(struct core *c, const struct noderec *n, const Titan__Internal__AgentHello *m,
                        const char *identity, struct titan_error *err) TITAN_MUST_USE;
/* Of a session that has not said hello: to be freed. "" = not known. */
char *fence_take_identity(struct core *c, uint64_t session);
/* Can the job's epochs have come to this number? */
bool fence_epoch(const struct core *c, const struct jobrec *j, uint64_t epoch);
/* Counts it and tells of it, of one node not too often. words: what is refused; may be batch memory. */
void fence_implausible(struct core *c, struct noderec *n, uint64_t job_id, const char *words);
/* Has the job a worker there, or a member of an epoch that decisions count by? */
bool fence_has_part(const struct jobrec *j, const struct noderec *n);
/* The same for an epoch: is one of its members or leavers of that node? */
bool fence_in_epoch(const struct jobrec *j, const struct noderec *n, const Titan__Internal__FormEpoch *f);
/* Is it where the job keeps its checkpoint of that step? UINT64_MAX = of any. */
bool fence_path(const struct jobrec *j, uint64_t step, const char *path);
/* A report about a worker that is not there. */
void fence_stranger(struct core *c, struct noderec *n, const struct subject *about);
/* What the node's agent has refused itself. */
void fence_told(struct core *c, struct noderec *n, const Titan__Internal__AgentBeat *m);

/* Whom a report is about; false when it is about no worker. */
bool worker_subject(const Titan__Internal__AgentMessage *m, struct subject *ret);
void worker_report(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__AgentMessage *m);
/* Can the job be at that step at all? */
bool worker_step_exists(const struct jobrec *j, uint64_t step);
/* And have come to it in this epoch by now? Not to be asked before its origin can have been told. */
bool worker_step_reached(const struct core *c, const struct jobrec *j, uint64_t step);
/* A worker listed in a hello, seen alive. */
void worker_adopt(struct core *c, struct workrec *w, const Titan__Internal__LiveWorker *live);
void worker_stop(struct core *c, struct workrec *w, uint32_t grace_ms, const char *reason);
/* A worker is no more: report is NULL when its node cannot say. Frees w. Does not advance the job. */
void worker_ended(struct core *c, struct workrec *w, const struct exit_report *report, const char *why);
/* Takes it out of the books, and frees it; nothing is said of it. */
void worker_forget(struct core *c, struct workrec *w);
void worker_deadlines(struct core *c, struct jobrec *j);
/* Rank 0 will say no more in this epoch: what others said of steps that it did not tell of is taken. */
void worker_spare_metrics(struct core *c, struct jobrec *j);

/* --- core_epoch.c --- */
bool epoch_live(const struct jobrec *j);    /* forming or running */
bool epoch_leaving(const struct jobrec *j); /* members were asked to leave it, by revoke or pause */
void epoch_revoke(struct core *c, struct jobrec *j, const char *why);
/* All members out of the old epoch, and enough for a new one? Then it is formed. */
void epoch_try_form(struct core *c, struct jobrec *j);
/* It has made its first step (or was done at once). */
void epoch_formed(struct core *c, struct jobrec *j);
/* It has made a step: it may take as long again before somebody asks whether it hangs. */
void epoch_tries(struct core *c, struct jobrec *j); /* it cannot go on for now, and says so */
void epoch_moves_on(struct core *c, struct jobrec *j);
/* The members are at their last step or past it: nobody needs to join. */
bool epoch_near_end(const struct jobrec *j);
/* Those who did not leave the epoch in time have to go. */
void epoch_exclude_laggards(struct core *c, struct jobrec *j);
/* recovery.finished, once all is known that belongs into it. */
void epoch_say_recovered(struct core *c, struct jobrec *j);
bool epoch_state_in_memory(int32_t rung);

/* --- core_quorum.c --- */
/* Is it a member of an epoch to count by? */
bool quorum_knows(struct jobrec *j, uint64_t worker_id);
bool quorum_lists(struct jobrec *j, uint64_t worker_id); /* of any that is kept? */
/* Where it is, as a member of any epoch that is kept; NULL = not known. */
const struct noderec *quorum_node(const struct jobrec *j, uint64_t worker_id);
/* Is any of those there? */
bool quorum_any_on(const struct jobrec *j, const struct noderec *n);
struct base_member *quorum_add(struct jobrec *j, uint64_t epoch, uint32_t n); /* to be filled in */
void quorum_formed(struct jobrec *j);                                         /* the current epoch is one to count by */
/* ... and has its state: those before it are not any more, but somebody may still hold one of them. */
void quorum_complete(struct jobrec *j);
void quorum_trained(struct jobrec *j); /* ... has made a step: everybody in it holds it, and those before go */
void quorum_free(struct jobrec *j);
void quorum_told(struct jobrec *j, const struct noderec *n, uint64_t worker_id); /* of its end, on that node */
/* Its agent has said hello: whom it does not list has ended. Whoever it does list and is not in our books is being
 * stopped, and counts until it is told of: the order may not arrive. Without a hello the node is given up. */
void quorum_node_known(struct core *c, const struct noderec *n, const Titan__Internal__AgentHello *hello);
/* The node of w is lost: is its end for a decision to come? */
bool quorum_keeps(const struct core *c, struct workrec *w);
void quorum_end_away(struct core *c, struct jobrec *j, const struct noderec *n); /* n NULL = wherever they were */
/* May the next epoch be formed? Then those who are away have ended. False also when that has failed the job. */
bool quorum_decides(struct core *c, struct jobrec *j);
/* Of the next epoch; 0 = there is none left. */
uint64_t quorum_number(const struct core *c, struct jobrec *j);

/* --- core_delegate.c --- */
void delegate_hello(struct core *c, struct noderec *n, const Titan__Internal__AgentHello *m);
void delegate_report(struct core *c, struct noderec *n, const Titan__Internal__EpochDelegated *d);
typedef bool delegate_knows(const struct core *c, struct jobrec *j, const Titan__Internal__Member *m);
/* Can it be an epoch of the job? Each member and leaver is one that knows() accepts, and named once. */
bool delegate_sound(const struct core *c, struct jobrec *j, const Titan__Internal__FormEpoch *f,
                    delegate_knows *knows) TITAN_MUST_USE;
/* An epoch that others have formed is the job's, once it is sound. delegate: who; NULL = a coordinator whose store is
 * lost. */
void delegate_take(struct core *c, struct jobrec *j, const Titan__Internal__FormEpoch *f, const char *delegate);
void delegate_refused(struct core *c, struct noderec *n, const Titan__Internal__EpochRefused *m);

/* --- core_source.c --- */
/* What the worker says it holds. */
void source_held(struct workrec *w, const Titan__Internal__WorkerQuiesced *q);
/* Does it hold its part of that epoch? */
bool source_holds(const struct workrec *w, uint64_t epoch);
/* Set source, source_epoch, holders, resume_step and checkpoint of the next epoch from what its workers hold. */
void source_choose(struct jobrec *j);
/* Holders of the source that are not among the members, in the source's rank order; ret has room for n_holders. */
uint32_t source_leavers(const struct jobrec *j, struct workrec *const *members, uint32_t n, struct workrec **ret);
/* Every member of the epoch has its part: nobody needs an older one, and leavers may go. */
void source_sealed(struct core *c, struct jobrec *j);
void source_ready(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__StateReady *m);

/* --- core_plan.c --- */
/* The range of workers the job is to have: the recipe's, as narrowed by requests and by others' need. */
uint32_t plan_least(const struct jobrec *j);
uint32_t plan_most(const struct jobrec *j);
/* Must it go, since its node is to be empty? */
bool plan_leaves(const struct workrec *w);
uint32_t plan_kept(const struct jobrec *j); /* workers that are neither told to stop nor have to go */
/* Pause a running epoch when those who are there should be another membership. */
void plan_resize(struct core *c, struct jobrec *j);
/* The epoch's members have their state: leavers, and who else is too many, may go. */
void plan_release(struct core *c, struct jobrec *j);

/* --- core_job.c --- */
/* Do whatever the job's state calls for now. May free j when it is over. */
void job_advance(struct core *c, struct jobrec *j);
/* The same for what an agent has said, or in the next tick, see core_options.at_once. */
void job_heard(struct core *c, struct jobrec *j);
void job_cancel(struct core *c, struct jobrec *j, const char *reason, uint32_t grace_ms);
void job_fail(struct core *c, struct jobrec *j, const char *reason);
void job_stop_all(struct core *c, struct jobrec *j, uint32_t grace_ms, const char *reason);
void job_checkpoint(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointWritten *m);
void job_checkpoint_failed(struct core *c, struct jobrec *j, const struct workrec *w,
                           const Titan__Internal__CheckpointFailed *m);
void job_checkpoint_well(struct jobrec *j); /* there is no trouble any more */
/* The clock of recovery.finished runs from the first report. */
void job_begin_recovery(struct core *c, struct jobrec *j);
/* Send again what is in force for the job's workers on this node. */
void job_resend(struct core *c, struct jobrec *j, struct noderec *n);
void job_tick(struct core *c, struct jobrec *j); /* deadlines; then job_advance */
int64_t job_deadline(const struct jobrec *j, int64_t now);
uint32_t job_staying(const struct jobrec *j); /* workers that are not told to stop */
size_t job_count_workers(const struct jobrec *j, enum worker_state state);
struct workrec *job_worker(const struct jobrec *j, uint64_t id);
struct seat *job_seat(struct jobrec *j, const struct workrec *w); /* a member's or a leaver's */
/* Make room for new ones, members and leavers, and fill it; w NULL = it has ended. A worker keeps the first place it is
 * given: a second one is as of one that has ended. */
void job_new_seats(struct jobrec *j, uint32_t members, uint32_t leavers);
void job_set_seat(struct jobrec *j, uint32_t at, uint64_t worker_id, struct workrec *w);
bool job_member(struct jobrec *j, const struct workrec *w);
void job_falls_back(struct jobrec *j, uint64_t step); /* steps behind it are made again */
bool job_final(const struct jobrec *j);
void job_add_worker(struct jobrec *j, struct workrec *w); /* its id is none of the others' */
void job_remove_worker(struct jobrec *j, const struct workrec *w);

/* --- core_budget.c --- */
/* A loss that counts: against the budget of its cause, and towards the wait before a replacement. May fail the job.
 * node: where it was; NULL = nowhere in particular. */
void budget_charge(struct core *c, struct jobrec *j, enum loss_cause cause, struct noderec *node, const char *words);
/* The worker ends of the fault that has cost a restart already: one of the whole run is charged once. words: its own.
 */
bool budget_paid(const struct jobrec *j, const struct workrec *w, enum loss_cause cause, const char *words);
/* Before budget_charge: what it is charged for, in the worker's own words. */
void budget_fault(struct core *c, struct jobrec *j, enum loss_cause cause, const char *words);
void budget_restore(struct jobrec *j, const struct loss *loss);
/* One that costs nothing, but a replacement has to wait as after one that does, and at least a second. */
void budget_wait(struct core *c, struct jobrec *j);

/* --- core_queue.c --- */
void queue_add(struct core *c, struct jobrec *j);
void queue_remove(struct core *c, struct jobrec *j);
/* In order: queue_next until it is NULL. A job that was given out may be removed. */
void queue_begin(struct core *c);
struct jobrec *queue_next(struct core *c);
void queue_took(struct jobrec *j, uint32_t slots); /* since queue_begin */
struct user *queue_user(struct core *c, const char *name);
/* Would it come after the job that the others wait for? */
bool queue_behind(const struct core *c, const struct jobrec *j);
void queue_free(struct core *c);

/* --- core_preempt.c --- */
/* The first in the queue lacks slots on this device, of which so many are spare: make jobs of lower priority give some
 * back. False when all they have would not do. */
bool preempt_for(struct core *c, struct jobrec *j, const char *device, uint32_t spare);
/* Jobs that gave way to one that does not wait any more may grow again. */
void preempt_over(struct core *c);

/* --- core_place.c --- */
/* Largest number of workers the job may run on, at most n; 0 = none. */
uint32_t place_world(const struct jobrec *j, uint32_t n);
/* The fewest workers it may run on; 0 = none. */
uint32_t place_least(const struct jobrec *j);
/* Start the workers the job may have now. */
void place_grow(struct core *c, struct jobrec *j);
/* Slots have changed hands: let waiting jobs, then the queue, have them. */
void place_settle(struct core *c);

/* --- core_events.c --- */
struct say {
    const char *type, *message;   /* message may be batch memory */
    const struct workrec *worker; /* rank and node are taken from it */
    const struct noderec *node;
    const char *detail; /* NULL = {} */
};
/* The event that goes with a change; j NULL = of no job. */
void event_attach(struct core *c, struct change *change, const struct jobrec *j, struct say say);
/* A JSON object under construction; its text ends up in the batch. */
struct detail {
    struct buf buf;
    struct json_writer w;
};
void detail_begin(struct detail *d);
const char *detail_end(struct core *c, struct detail *d);
const char *source_name(uint32_t source);                         /* of titan.internal.StateSource */
void say_event(struct core *c, struct jobrec *j, struct say say); /* without a change; j NULL = of no job */
/* What it waits for, or, with lacks 0, that it does not any more. */
void say_job_waits(struct core *c, struct jobrec *j, uint32_t lacks);
/* The same for a job in the queue that all nodes together, with so many slots, could not hold. */
void say_job_needs_nodes(struct core *c, struct jobrec *j, uint32_t lacks, uint32_t slots);
void say_job_wish(struct core *c, struct jobrec *j, const char *message);
/* What an active job waits for, when that has changed; NULL = nothing any more. */
void say_job_blocked(struct core *c, struct jobrec *j, const char *words);
void say_policy(struct core *c, struct noderec *n, const char *type, const char *message, const char *detail);
void say_loss(struct core *c, const struct jobrec *j, enum loss_cause cause, const struct noderec *n);
void say_settled(struct core *c);
/* Nothing can be decided for so long, and then: it can, or it was. */
void say_job_undecided(struct core *c, struct jobrec *j, uint32_t unknown, uint32_t all, int64_t ms,
                       const struct noderec *node);
void say_job_decided(struct core *c, struct jobrec *j);
void say_origin(struct core *c, struct jobrec *j, const Titan__Internal__StateReady *m);
void say_recovery_finished(struct core *c, struct jobrec *j);
void say_checkpoint(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointWritten *m);
void say_checkpoint_failed(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointFailed *m);
void say_checkpoint_expired(struct core *c, struct jobrec *j, const struct ckptrec *ckpt);
void say_node_fit(struct core *c, struct noderec *n, const char *problem); /* "": it is */

/* --- core_transitions.c --- */
/* Every change of a state goes through one of these. Each asserts that the state table has the move (state/job.h,
 * epoch.h, member.h, node.h), then changes the record, and adds the change with its event to the batch: an illegal move
 * ends the process at its line, before anything of it is stored. */
void move_phase(struct jobrec *j, enum job_phase to); /* the others call it, where a state says the phase */
void move_job(struct core *c, struct jobrec *j, enum job_state to, const char *reason);
void store_status(struct core *c, struct jobrec *j); /* what a move stores as well, in between */
void begin_run(struct core *c, struct jobrec *j);
void end_run(struct core *c, struct jobrec *j, enum run_state to, const char *reason); /* if there is one */
/* The job is in a new epoch, FORMING, of so many members. store_epoch follows, once members and source are set. by: the
 * node whose agent has formed it; FORMED_HERE, or NULL = a coordinator that the restored store does not know of. */
void enter_epoch(struct jobrec *j, uint64_t number, uint32_t world);
#define FORMED_HERE ""
void store_epoch(struct core *c, struct jobrec *j, const char *by);
void move_epoch(struct core *c, struct jobrec *j, enum epoch_state to, const char *why);
void begin_worker(struct core *c, struct workrec *w); /* STARTING */
void move_worker(struct core *c, struct workrec *w, enum worker_state to, const struct exit_report *report,
                 bool counted, const char *why);
void store_pid(struct core *c, struct workrec *w, int64_t pid);
void move_node(struct core *c, struct noderec *n, enum node_state to, const char *message);

/* --- core_tell.c --- */
void tell_start(struct core *c, struct jobrec *j, struct noderec *n, const uint64_t *ids, size_t count);
void tell_form(struct core *c, struct jobrec *j, struct noderec *n);
void tell_revoke(struct core *c, struct jobrec *j, struct noderec *n);
void tell_pause(struct core *c, struct jobrec *j, struct noderec *n);
void tell_checkpoint(struct core *c, const struct jobrec *j); /* write one at the next step and go on */
void tell_stop(struct core *c, uint64_t session, uint64_t job_id, uint64_t worker_id, uint32_t grace_ms,
               const char *reason);
/* All workers of the node, at once. */
void tell_stop_all(struct core *c, struct noderec *n, const char *reason);
void tell_stop_stranger(struct core *c, uint64_t session, uint64_t job_id, uint64_t worker_id);
void tell_welcome(struct core *c, struct noderec *n);
void tell_check(struct core *c, struct noderec *n); /* are the jobs' folders seen there? */
void tell_epochs(struct core *c, uint64_t session); /* to tell them */
/* Call tell for every node with a seat or a leaver of the current epoch, once each. */
void tell_seats(struct core *c, struct jobrec *j, void (*tell)(struct core *, struct jobrec *, struct noderec *));
/* And for those with workers that are ready to join. */
void tell_all(struct core *c, struct jobrec *j, void (*tell)(struct core *, struct jobrec *, struct noderec *));

#endif
