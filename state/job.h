/* SPDX-License-Identifier: Apache-2.0 */
/* job.h - jobs: the request and its progress.
 *
 * job_move() is the only writer of a job's state. The machine (numbers as in titan.v1.JobState):
 *
 *                  .-------------------- cancel ---------------------------.
 *   (new) -> PENDING --place--> FORMING --first step--> RUNNING            |
 *                                 |  ^                  |  ^  |            |
 *                       loss after|  |         loss     |  |  | a worker   |
 *                       a first   |  |  .---------------'  |  | is ready   |
 *                       step      v  |  v     first step   |  v to join    |
 *                              RECOVERING -----------------'  RESIZING     |
 *                                 ^  `--first step--> RUNNING  |   |       |
 *                                 `-----------loss-------------'   |       |
 *                                            RUNNING <-first step--'       v
 *   FORMING, RUNNING, RECOVERING, RESIZING --cancel--> CANCELLING --> CANCELLED
 *   FORMING, RUNNING, RECOVERING, RESIZING --all steps done--> COMPLETED
 *   any but PENDING and CANCELLING --permanent error, budget used--> FAILED
 *   FORMING, RUNNING, RECOVERING, RESIZING --stopped for another job or a drain, checkpoint written--> PENDING
 */
#ifndef TITAN_STATE_JOB_H
#define TITAN_STATE_JOB_H

#include "base/evaluation_report.h"
#include "base/sm.h"
#include "state/event.h"
#include "state/metric.h"

enum job_state {
    JOB_NONE, /* not yet stored */
    JOB_PENDING,
    JOB_FORMING,
    JOB_RUNNING,
    JOB_RECOVERING,
    JOB_RESIZING,
    JOB_CANCELLING,
    JOB_COMPLETED,
    JOB_FAILED,
    JOB_CANCELLED,
};
extern const struct sm job_sm;
#define JOB_IS_OPEN "state < 7" /* in SQL: has not ended */
_Static_assert(JOB_COMPLETED == 7, "the first state of a job that has ended");

#ifndef JOB_WORKERS_MAX      /* a simulator build sets more */
#define JOB_WORKERS_MAX 1024 /* most workers of one job */
#endif
struct world_set { /* legal numbers of workers */
    uint8_t bits[JOB_WORKERS_MAX / 8 + 1];
};
static inline void world_set_add(struct world_set *s, uint32_t world)
{
    s->bits[world / 8] |= (uint8_t)(1u << (world % 8));
}
static inline bool world_set_has(const struct world_set *s, uint32_t world)
{
    return world <= JOB_WORKERS_MAX && (s->bits[world / 8] >> (world % 8) & 1);
}

/* The parts of a recipe that the scheduler needs. */
struct job_spec {
    char device[16]; /* "auto", "cpu", "cuda" */
    uint64_t steps;
    uint32_t min_workers, max_workers;
    struct world_set worlds;
    char mesh[48];    /* degrees that do not shrink when workers are lost, "pp=2 tp=4"; "" = none */
    int32_t priority; /* higher starts first */
    /* Losses per cause that are forgiven within restart_window_s. With a window of 0 all losses of the job, of any
     * cause, count against max_restarts. */
    uint32_t max_restarts, max_node_losses, max_hangs, max_ooms, restart_window_s;
    uint32_t backoff_ms, backoff_max_ms;
    uint32_t keep_latest; /* 0 = all */
};

/* Requested number of workers; 0 = as in the spec. */
struct desired_size {
    uint32_t min, max;
    uint32_t number; /* number of the request, from 1 */
};

/* Progress: the changing part of a row. */
struct job_status {
    uint64_t step;
    double loss; /* NaN before the first */
    double tokens_per_second, mfu;
    uint32_t world_size;
    uint64_t epoch;
    uint32_t restarts;            /* counted losses of all causes */
    uint32_t checkpoint_failures; /* checkpoints that failed */
    uint32_t preemptions;         /* how often it was stopped in favour of another purpose and queued again */
    /* a waiting job that comes first, and from which this job has its slots on loan; 0 = the slots are its own */
    uint64_t passed;
    struct evaluation_report evaluation; /* the newest, without its duration */
    int64_t started_at_ms, finished_at_ms;
    const char *checkpoint; /* NULL = none */
};

#define JOB_NO_ID (-1)

/* An identity as owner of jobs. */
struct job_owner {
    int64_t uid; /* JOB_NO_ID = no uid here */
    const char *name;
};

struct job {
    uint64_t id;
    const char *name, *user;
    const char *labels; /* in the form of labels_join(); NULL for job_submit: none */
    int64_t uid, gid;   /* ids of the submitter; -1 = none here */
    enum job_state state;
    const char *reason;
    struct job_spec spec;
    struct desired_size desired;
    struct job_status status;
    int64_t submitted_at_ms;
    const char *key, *key_owner; /* job_submit: idempotency key, and the submitter as its scope; NULL = none */
    /* For job_submit only: the checkpoint folder (NULL = unknown). Refused while another unfinished job holds the
     * folder; a job that writes checkpoints only on request does not hold it. */
    const char *folder;
    bool holds_folder;
    uint64_t request_hash; /* hash of the whole request */
};

/* The job with this idempotency key; 0: none. TITAN_EEXIST: the job has another request. */
titan_status job_find_key(struct db *db, const struct job *job, uint64_t *ret_existing,
                          struct titan_error *err) TITAN_MUST_USE;
/* Adds a PENDING job with its recipe and the event job.submitted. If another job has the idempotency key, nothing is
 * added, and *ret_existing is that job's id: TITAN_OK for an equal request hash, TITAN_EEXIST otherwise. */
titan_status job_submit(struct db *db, const struct job *job, const char *recipe, uint64_t *ret_existing,
                        struct titan_error *err) TITAN_MUST_USE;
/* Takes state, reason and status from the job with its id. The event has the reason and is not NULL. TITAN_ENOTFOUND;
 * TITAN_EBUG: the table forbids the move. */
titan_status job_move(struct db *db, const struct job *job, const struct event *event,
                      struct titan_error *err) TITAN_MUST_USE;
/* Updates the status without a move, and records the event if given. */
titan_status job_update(struct db *db, uint64_t id, const struct job_status *status, const struct event *event,
                        struct titan_error *err) TITAN_MUST_USE;

titan_status job_set_desired(struct db *db, uint64_t id, const struct desired_size *desired, const struct event *event,
                             struct titan_error *err) TITAN_MUST_USE;

/* Sets the reason of a job without a move. */
titan_status job_set_reason(struct db *db, uint64_t id, const char *reason, const struct event *event,
                            struct titan_error *err) TITAN_MUST_USE;

/* with() is called once, unless TITAN_ENOTFOUND; the job is valid during the call. */
titan_status job_get(struct db *db, uint64_t id, void (*with)(const struct job *job, void *data), void *data,
                     struct titan_error *err) TITAN_MUST_USE;
/* Are the uids equal? If an owner has no uid: are the names equal? */
bool job_owned_by(const struct job *job, const struct job_owner *owner);

struct job_filter {
    uint64_t before;               /* only ids below this id; 0 = from the newest */
    uint32_t states;               /* bit set of enum job_state; 0 = all */
    const char *user;              /* NULL or "" = all */
    const struct job_owner *owner; /* only jobs of this owner; NULL = all */
    const char *name;              /* exact name, or a prefix before a final *; NULL or "" = all */
    char *const *labels;           /* the job has all of these (labels_have) */
    size_t n_labels;
};
/* Lists jobs, newest first. */
titan_status job_list(struct db *db, const struct job_filter *filter, int limit,
                      bool (*each)(const struct job *job, void *data), void *data,
                      struct titan_error *err) TITAN_MUST_USE;
/* Number of matching jobs, regardless of `before`; counting stops at `most`. */
titan_status job_count(struct db *db, const struct job_filter *filter, uint32_t most, uint32_t *ret,
                       struct titan_error *err) TITAN_MUST_USE;
/* Lists unfinished jobs, oldest first. */
titan_status job_list_open(struct db *db, bool (*each)(const struct job *job, void *data), void *data,
                           struct titan_error *err) TITAN_MUST_USE;
/* Fills a finished job's row from its workers' own records of the last step. A row that has the values, or a later
 * step, stays unchanged; a step beyond the row's step must be of the row's epoch. */
titan_status job_fill(struct db *db, const struct metric *last, struct titan_error *err) TITAN_MUST_USE;
/* Lists finished jobs with a step but no loss in their rows, newest first, at most `most`. */
titan_status job_list_without_loss(struct db *db, int most, bool (*each)(const struct job *job, void *data), void *data,
                                   struct titan_error *err) TITAN_MUST_USE;
/* The resolved recipe; the caller owns it. */
titan_status job_recipe(struct db *db, uint64_t id, char **ret, struct titan_error *err) TITAN_MUST_USE;
titan_status job_last_id(struct db *db, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
