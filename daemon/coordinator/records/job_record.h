/* SPDX-License-Identifier: Apache-2.0 */
/* job_record.h - jobs and their workers: the records, and the containers in them. They decide nothing. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_JOB_RECORD_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_JOB_RECORD_H

#include "base/mac.h"
#include "daemon/coordinator/records/node_record.h"
#include "state/change.h"
#include "state/metric.h"

struct core;
struct jobrec;
struct lane;
struct user;

struct workrec {
    uint64_t id;
    struct jobrec *job;
    struct noderec *node;
    uint32_t rank_slot;      /* its place among the job's rank slots + 1, see job_rank_slot; 0 = it never had one */
    enum worker_state state; /* STARTING, READY, STOPPING; ended ones have no record */
    char *address;
    int64_t pid;                /* 0 = not known */
    enum loss_cause exit_cause; /* what its end counts as, though it is told to stop; LOSS_NONE = not at all */
    bool started;               /* it has been seen alive */
    bool quiesced;              /* out of the job's current epoch, holding the state of last_step */
    int64_t missing;            /* its agent did not list it; it counts as ended from then on; 0 = it is there */
    uint64_t epoch;             /* newest it knows of */
    uint64_t last_step;
    uint64_t installed; /* epoch of the state shards that it holds for good, at last_step; 0 = none */
    bool unseen;        /* a restored store or others say so, its own agent has not yet: its end is no loss to count */
    bool away;          /* its node cannot be reached, and nothing is decided about it */
    uint64_t pending;   /* of this one it has its whole state shard too; 0 = none */
    bool prepared;      /* for last_step + 1 it needs nothing but the sum of AGREE */
    bool chosen;        /* a member of the epoch that is being formed, see source_departing */
    int64_t deadline;   /* of starting or stopping */
};

#define METRICS_SPARE 4 /* steps that members can be ahead of what rank 0 was heard to say */

/* A place in the current epoch. */
struct rank_slot {
    uint64_t worker_id;
    struct workrec *worker; /* NULL = ended */
    bool finished;          /* a departing rank: it has handed its state shard over */
};

/* An epoch with members that are kept (run/kept_epochs.h): the newest that made a step, and those since. */
struct kept_member {
    uint64_t worker_id;
    const struct noderec *node; /* NULL = not known any more, which is reported */
    bool released;              /* it has ended, or its agent knows that the run goes on without it */
};

struct kept_epoch {
    uint64_t epoch, source; /* where its state came from; 0 = no memory */
    bool complete;          /* its members have had their state */
    uint32_t n;
    struct kept_member *members; /* in rank order */
    uint32_t *by_id;             /* where they are, in id order; NULL until the first search */
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
    int64_t at_mono;
};

struct ckptrec {
    uint64_t step, epoch;
    char *path;
};

/* What a job is about; records/phase.c has the table of moves, outbox/transitions.c makes them:
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

/* The parts of a job. Each is written by one file, and read by all. */
struct job_size {       /* job_size.c */
    uint32_t claim;     /* workers it has a claim to */
    uint32_t limit;     /* at most so many for now, since a job of higher priority waits; 0 = no such limit */
    uint64_t limit_for; /* that one */
};
struct job_waits {  /* outbox/events.c: what it waits for, as it was said */
    char *said;     /* NULL = nothing */
    uint32_t lacks; /* workers; 0 = it does not wait for any */
    bool undecided; /* for members that cannot be reached */
};
struct job_clock {          /* run/job_clock.c; monotonic times */
    int64_t epoch_deadline; /* to be quiet, or to make the first or next step; INT64_MAX = none */
    int64_t starve_at;      /* gives its slots back; INT64_MAX = none */
    int64_t formed_mono;    /* when we have formed the epoch; 0 = we have not, or before our start */
    int64_t state_took;     /* longest from FormEpoch to StateReady; 0 = none yet */
    bool patient;           /* the last epoch missed its time: the next one has as long as the first */
};
struct epoch_id { /* run/epoch_forming.c */
    unsigned char comm_id[16];
    bool keyed;
    uint8_t key[MAC_BYTES];
};
struct epoch_source { /* run/recovery_source.c: where its state comes from */
    uint32_t kind;    /* titan.internal.StateSource */
    uint64_t epoch, resume_step;
    char *checkpoint;
    uint64_t *holders; /* members of that epoch, in rank order */
    size_t n_holders, cap_holders;
    bool origin_known;    /* its members have said where their state came from */
    bool origin_reported; /* ... which is in the store, of this coordinator or one before */
    struct epoch_origin origin;
};
struct job_quorum {         /* run/quorum.c; what agents have decided: run/leader_epochs.c */
    int64_t at;             /* leases of unreachable members are over; INT64_MAX = none is waited for */
    bool above_leaders;     /* the next epoch's number is to be above all that agents can have given unheard */
    uint64_t refused_epoch; /* a number that an agent has taken already */
    int64_t adopt_until;    /* members of an epoch that agents have formed, and that are away, are waited for */
};
struct job_budget {         /* run/restart_budget.c */
    int64_t replace_at;     /* earliest start of new workers */
    uint32_t losses;        /* since the job was last complete and moving */
    struct past_loss *past; /* that counted, oldest first; only those within the window, if it has one */
    size_t n_past, cap_past;
    struct {
        char *words;     /* the reason that the worker itself gave; NULL = none has */
        uint64_t epoch;  /* of the job then */
        uint64_t before; /* workers below it were there */
    } fault;             /* the last one that was charged */
};
struct job_progress { /* run/job_progress.c */
    double step_ms;
    uint64_t metric_step;               /* of the last one taken */
    uint64_t evaluated_step;            /* likewise; steps behind a fallback are evaluated again */
    struct metric spare[METRICS_SPARE]; /* of other ranks than 0, by step */
    bool unsaved;                       /* status has changed since it was stored ... */
    int64_t saved_mono;                 /* ... then */
};
struct job_resize {      /* run/resize.c */
    int64_t begun_mono;  /* 0 = none is under way */
    uint32_t next_world; /* that the members pause for; a hint */
};
struct job_stop {      /* run/job_end.c */
    char *why;         /* it is queued again, or cancelled */
    uint32_t grace_ms; /* that its workers have */
};

struct jobrec {
    struct jobrec *hash_next;
    struct jobrec *prev, *next; /* in its lane of the queue or in the active list */
    struct lane *lane;          /* while it waits */
    uint64_t id;
    struct user *user;
    struct job_spec spec;
    struct desired_size desired;
    char device[16]; /* what it was placed on; "" before */

    /* outbox/transitions.c moves these. */
    enum job_state state; /* as stored */
    enum job_phase phase;
    struct job_status status;
    uint32_t run; /* number of the newest */
    bool run_active;
    enum epoch_state epoch_state; /* of status.epoch */
    bool broken;                  /* a member left the epoch by itself, or it did not form in time */
    bool charged;                 /* the end of the current epoch has cost at least one restart */

    /* job_record.c */
    struct workrec **workers; /* in id order */
    size_t n_workers, cap_workers;
    struct rank_slot *rank_slots; /* in rank order; behind them, until it is installed, the departing ranks */
    uint32_t n_members, n_departing;

    struct job_size size;
    struct job_waits waits;
    struct job_clock clock;
    struct epoch_id epoch_id;
    struct epoch_source source;
    struct kept_epoch *kept; /* in the order of their numbers */
    size_t n_kept, cap_kept;
    struct job_quorum quorum;
    struct recovery recovery;
    struct job_budget budget;
    struct job_progress progress;
    struct job_resize resize;
    struct job_stop stop;
    bool requeue;         /* it is to give its slots back and be queued again, as soon as it may stop */
    bool must_checkpoint; /* when it stops, also if its recipe writes none */
    char *short_why; /* a node could not start or keep a worker, for want of what is its own; NULL = one could since */
    const struct noderec **refusals; /* records/refusals.h */
    size_t n_refusals, cap_refusals;
    char *folder;          /* of its checkpoints, see core_set_folder; NULL = not known */
    struct ckptrec *ckpts; /* newest first */
    size_t n_ckpts, cap_ckpts;
    struct {
        char *words, *why; /* for its reason, and the cause alone; NULL = there is no trouble */
        uint32_t streak;   /* not written since the last that was */
        bool reading;
    } trouble;        /* with its checkpoints */
    uint64_t n_taken; /* workers that agents have reported, after a backup */
};

struct exit_report {
    int32_t exit_code, signal;
    enum loss_cause cause;
    bool node_short; /* not its fault: its node has no descriptors, memory, processes or space left; or it was not
                        started, as no folder answers */
    bool refused;    /* nor started: its node does not start workers of this job */
    bool asked;      /* it was told to leave and did, or was killed for it */
    const char *reason;
};

struct subject {
    uint64_t job_id, worker_id;
};

void core_list_remove(struct jobrec **first, struct jobrec **last, struct jobrec *j);
void core_list_append(struct jobrec **first, struct jobrec **last, struct jobrec *j);
bool epoch_live(const struct jobrec *j);    /* forming or running */
bool epoch_leaving(const struct jobrec *j); /* members were asked to leave it, by revoke or pause */
/* The members are at their last step or past it: no worker needs to join. */
bool epoch_near_end(const struct jobrec *j);
size_t job_count_workers(const struct jobrec *j, enum worker_state state);
struct workrec *job_worker(const struct jobrec *j, uint64_t id);
struct rank_slot *job_rank_slot(struct jobrec *j, const struct workrec *w); /* a member's or a departing rank's */
/* Make room for new ones, members and departing ranks, and fill it; w NULL = it has ended. A worker keeps the first
 * place it is given: a second one is as of one that has ended. */
void job_new_rank_slots(struct jobrec *j, uint32_t members, uint32_t departing);
void job_set_rank_slot(struct jobrec *j, uint32_t at, uint64_t worker_id, struct workrec *w);
bool job_member(struct jobrec *j, const struct workrec *w);
bool job_final(const struct jobrec *j);
/* Does it give its slots to that one, which waits? It has a lower priority, or has passed it. */
bool job_yields(const struct jobrec *j, const struct jobrec *to);
bool job_fits_device(const struct jobrec *j, const char *device); /* may it run on this kind? */
/* A worker as `is` says, on is.node, where it uses a slot; its id is none of the others'. */
struct workrec *job_new_worker(struct jobrec *j, struct workrec is, const char *address);
void worker_knows(struct workrec *w, uint64_t epoch);              /* of this epoch */
void worker_enters(struct workrec *w, uint64_t epoch);             /* it was sent the epoch */
void job_remove_worker(struct jobrec *j, const struct workrec *w); /* its slot is free */

#endif
