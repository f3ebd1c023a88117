/* SPDX-License-Identifier: Apache-2.0 */
/* job_record.h - records of jobs and their workers, and the containers in them. They decide nothing. */
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
    uint32_t rank_slot;      /* index of its rank slot + 1, see job_rank_slot; 0 = it never had one */
    enum worker_state state; /* STARTING, READY, STOPPING; ended workers have no record */
    char *address;
    int64_t pid; /* 0 = unknown */
    /* cause of the worker's end although the worker was told to stop; LOSS_NONE = the end is no loss */
    enum loss_cause exit_cause;
    bool started;    /* seen alive */
    bool quiesced;   /* left the job's current epoch with the state of last_step */
    int64_t missing; /* time from which the worker counts as ended; 0 = its agent lists it */
    uint64_t epoch;  /* newest epoch it knows */
    uint64_t last_step;
    uint64_t installed; /* epoch of its installed state shards, at last_step; 0 = none */
    /* known only from other agents or a restored store, not from its own agent, so its end is no loss */
    bool unseen;
    bool away;        /* its node is unreachable, and nothing is decided about the worker */
    uint64_t pending; /* epoch of which the worker also has its whole state shard; 0 = none */
    bool prepared;    /* it needs only the sum of AGREE for last_step + 1 */
    bool chosen;      /* member of the epoch being formed, see source_departing */
    int64_t deadline; /* deadline of its start or stop */
};

#define METRICS_SPARE 4 /* steps that members can be ahead of rank 0's last report */

/* A place in the current epoch. */
struct rank_slot {
    uint64_t worker_id;
    struct workrec *worker; /* NULL = the worker has ended */
    bool finished;          /* a departing rank has handed over its state shard */
};

/* A kept epoch and its members (run/kept_epochs.h): the newest epoch that made a step, and the epochs since. */
struct kept_member {
    uint64_t worker_id;
    const struct noderec *node; /* NULL = no longer known */
    bool released;              /* the worker has ended, or its agent knows that the run goes on without it */
};

struct kept_epoch {
    uint64_t epoch, source; /* source: the epoch from which its state came; 0 = not from memory */
    bool complete;          /* all its members got their state */
    uint32_t n;
    struct kept_member *members; /* ordered by rank */
    uint32_t *by_id;             /* indexes into members, in id order; NULL until the first search */
};

/* The course of a recovery; monotonic times, 0 = not yet. */
struct recovery {
    int64_t lost;                                   /* first report; 0 = no recovery is under way */
    int64_t revoked, quiet, formed, ready, stepped; /* times of its newest epoch */
    int64_t detect_ms;                              /* from the loss to its report, where known */
    uint32_t epochs;                                /* epochs revoked in it */
    uint64_t from_step;
};

struct past_loss {
    enum loss_cause cause;
    int64_t at_mono;
};

struct ckptrec {
    uint64_t step, epoch;
    char *path;
    int64_t at_ms; /* wall clock */
};

/* What a job is doing. records/phase.c has the table of moves; outbox/transitions.c makes the moves:
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
    PHASE_QUEUED,     /* the job has no workers */
    PHASE_ASSEMBLING, /* no epoch is live: workers start, or leave the last epoch, until enough are ready */
    PHASE_TRAINING,   /* an epoch forms or runs */
    PHASE_PAUSING,    /* members were asked to leave a running epoch at a step boundary, for another membership */
    PHASE_REQUEUEING, /* workers write a checkpoint and stop; then the job is queued again */
    PHASE_FINISHING,  /* all steps are made, and workers exit */
    PHASE_CANCELLING,
    PHASE_ENDED,
};

/* The parts of a job. One file writes each part; all files read it. */
struct job_size {       /* job_size.c */
    uint32_t claim;     /* workers that the job may claim */
    uint32_t limit;     /* temporary maximum of workers, because a job of higher priority waits; 0 = none */
    uint64_t limit_for; /* id of that job */
};
struct job_waits {  /* outbox/events.c: what the job waits for, as last emitted */
    char *reported; /* NULL = nothing */
    uint32_t lacks; /* missing workers; 0 = it waits for none */
    bool undecided; /* the job waits for unreachable members */
};
struct job_clock {          /* run/job_clock.c; monotonic times */
    int64_t epoch_deadline; /* deadline to be quiet, or to make the first or next step; INT64_MAX = none */
    int64_t starve_at;      /* time at which the job gives its slots back; INT64_MAX = never */
    int64_t formed_mono;    /* time at which this coordinator formed the epoch; 0 = others formed it */
    int64_t state_took;     /* longest time from FormEpoch to StateReady; 0 = none yet */
    bool patient;           /* the last epoch missed its deadline, so the next epoch gets as much time as the first */
};
struct epoch_id { /* run/epoch_forming.c */
    unsigned char comm_id[16];
    bool keyed;
    uint8_t key[MAC_BYTES];
};
struct epoch_source { /* run/recovery_source.c: where the epoch's state comes from */
    uint32_t kind;    /* titan.internal.StateSource */
    uint64_t epoch, resume_step;
    char *checkpoint;
    uint64_t *holders; /* members of the source epoch, in rank order */
    size_t n_holders, cap_holders;
    bool origin_known;    /* the members have reported where their state came from */
    bool origin_reported; /* this or an earlier coordinator has stored that report */
    struct epoch_origin origin;
};
struct job_quorum { /* run/quorum.c; decisions of agents: run/leader_epochs.c */
    int64_t at;     /* time at which the leases of unreachable members end; INT64_MAX = the job waits for no lease */
    /* the next epoch number must exceed every number that agents may have given without a report */
    bool above_leaders;
    uint64_t refused_epoch; /* epoch number already taken by an agent */
    int64_t adopt_until;    /* how long the job waits for absent members of an epoch that agents have formed */
};
struct job_budget {         /* run/restart_budget.c */
    int64_t replace_at;     /* earliest start of new workers */
    uint32_t losses;        /* losses since the job was last complete and moving */
    struct past_loss *past; /* counted losses, oldest first; with a window, only losses within it */
    size_t n_past, cap_past;
    struct {
        char *words;     /* the worker's own reason; NULL = it gave none */
        uint64_t epoch;  /* the job's epoch then */
        uint64_t before; /* workers with lower ids existed at the time of the fault */
    } fault;             /* the last charged fault */
};
struct job_progress { /* run/job_progress.c */
    double step_ms;
    uint64_t metric_step; /* step of the last metric taken */
    /* step of the last evaluation taken; steps after a fallback are evaluated again */
    uint64_t evaluated_step;
    struct metric spare[METRICS_SPARE]; /* metrics of ranks other than 0, by step */
    int64_t step_at_ms;                 /* wall clock: when the status moved to its step; 0 = not since the start */
    double grad_norm;                   /* of that step */
    uint64_t tokens;                    /* up to that step */
    uint32_t skipped_steps;
    bool unsaved;       /* status has changed since it was stored */
    int64_t saved_mono; /* time at which status was last stored */
};
struct job_resize {      /* run/resize.c */
    int64_t begun_mono;  /* 0 = no resize is under way */
    uint32_t next_world; /* world size that the members pause for; a hint */
};
struct job_stop {      /* run/job_end.c */
    char *why;         /* reason of the requeue or cancellation */
    uint32_t grace_ms; /* grace of its workers */
};

struct jobrec {
    struct jobrec *hash_next;
    struct jobrec *prev, *next; /* links in its lane of the queue, or in the active list */
    struct lane *lane;          /* NULL unless it waits in the queue */
    uint64_t id;
    char *name;
    struct user *user;
    int64_t submitted_at_ms;
    struct job_spec spec;
    struct desired_size desired;
    char device[16]; /* device it was placed on; "" = not placed yet */

    /* Only outbox/transitions.c changes these. */
    enum job_state state; /* the state as stored */
    enum job_phase phase;
    struct job_status status;
    uint32_t run; /* number of the newest run */
    bool run_active;
    enum epoch_state epoch_state; /* state of status.epoch */
    bool broken;                  /* a member left the epoch by itself, or the epoch did not form in time */
    bool charged;                 /* the end of the current epoch has cost at least one restart */

    /* job_record.c */
    struct workrec **workers; /* ordered by id */
    size_t n_workers, cap_workers;
    struct rank_slot *rank_slots; /* members in rank order, then the departing ranks until the epoch is installed */
    uint32_t n_members, n_departing;

    struct job_size size;
    struct job_waits waits;
    struct job_clock clock;
    struct epoch_id epoch_id;
    struct epoch_source source;
    struct kept_epoch *kept; /* ordered by epoch number */
    size_t n_kept, cap_kept;
    struct job_quorum quorum;
    struct recovery recovery;
    struct job_budget budget;
    struct job_progress progress;
    struct job_resize resize;
    struct job_stop stop;
    bool requeue;         /* the job is to be queued again, and gives its slots back as soon as it may stop */
    bool must_checkpoint; /* write a checkpoint when the job stops, even if its recipe writes none */
    char *short_why;      /* why its node lacked resources to start or keep a worker; NULL = a worker started since */
    const struct noderec **refusals; /* records/refusals.h */
    size_t n_refusals, cap_refusals;
    char *folder;          /* folder of its checkpoints, see core_set_folder; NULL = unknown */
    struct ckptrec *ckpts; /* newest first */
    size_t n_ckpts, cap_ckpts;
    struct {
        char *words, *why; /* words: text for the job's reason; why: the cause alone; NULL = no trouble */
        uint32_t streak;   /* failed checkpoints since the last written one */
        bool reading;
    } trouble;        /* trouble with its checkpoints */
    uint64_t n_taken; /* number of workers added from agents' reports, after a backup */
};

struct exit_report {
    int32_t exit_code, signal;
    enum loss_cause cause;
    /* the node is at fault, not the worker: the node has no descriptors, memory, processes or space left, or no folder
     * answers */
    bool node_short;
    bool refused; /* the worker was not started, because its node refuses workers of this job */
    bool asked;   /* the worker left on request, or was killed for not leaving */
    const char *reason;
};

struct subject {
    uint64_t job_id, worker_id;
};

void core_list_remove(struct jobrec **first, struct jobrec **last, struct jobrec *j);
void core_list_append(struct jobrec **first, struct jobrec **last, struct jobrec *j);
bool epoch_live(const struct jobrec *j);    /* forming or running */
bool epoch_leaving(const struct jobrec *j); /* members were asked to leave, by revoke or pause */
/* The members have reached their last step, so no worker needs to join. */
bool epoch_near_end(const struct jobrec *j);
bool epoch_done(const struct jobrec *j); /* all members have finished */
size_t job_count_workers(const struct jobrec *j, enum worker_state state);
struct workrec *job_worker(const struct jobrec *j, uint64_t id);
struct rank_slot *job_rank_slot(struct jobrec *j, const struct workrec *w); /* slot of a member or departing rank */
/* Makes room for the rank slots of new members and departing ranks. job_set_rank_slot fills a slot; w NULL = the worker
 * has ended. A worker keeps its first slot. A second slot is filled as if the worker had ended. */
void job_new_rank_slots(struct jobrec *j, uint32_t members, uint32_t departing);
void job_set_rank_slot(struct jobrec *j, uint32_t at, uint64_t worker_id, struct workrec *w);
bool job_member(struct jobrec *j, const struct workrec *w);
bool job_final(const struct jobrec *j);
/* Does j give its slots to the waiting job `to`? True if j has a lower priority than `to`, or has passed `to`. */
bool job_yields(const struct jobrec *j, const struct jobrec *to);
bool job_fits_device(const struct jobrec *j, const char *device); /* may it run on this device kind? */
/* Adds the worker `is`, which uses a slot of is.node. Its id must be new to the job. */
struct workrec *job_new_worker(struct jobrec *j, struct workrec is, const char *address);
void worker_knows(struct workrec *w, uint64_t epoch);              /* the worker knows this epoch */
void worker_enters(struct workrec *w, uint64_t epoch);             /* the worker was sent this epoch */
void job_remove_worker(struct jobrec *j, const struct workrec *w); /* frees its slot */

#endif
