/* SPDX-License-Identifier: Apache-2.0 */
/* job.h - jobs: what was asked for, where it stands.
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
    JOB_NONE, /* not stored yet */
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

#ifndef JOB_WORKERS_MAX      /* the simulator has a build with more */
#define JOB_WORKERS_MAX 1024 /* most workers of one job */
#endif
struct world_set { /* numbers of workers a job may run on */
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

/* What the scheduler must know of a recipe. */
struct job_spec {
    char device[16]; /* "auto", "cpu", "cuda" */
    uint64_t steps;
    uint32_t min_workers, max_workers;
    struct world_set worlds;
    char mesh[48];    /* degrees that do not give way when workers are lost, "pp=2 tp=4"; "" = none */
    int32_t priority; /* the higher, the sooner */
    /* Losses by cause that are forgiven within restart_window_s. With a window of 0 all losses of the job count, of
     * whatever cause, against max_restarts. */
    uint32_t max_restarts, max_node_losses, max_hangs, max_ooms, restart_window_s;
    uint32_t backoff_ms, backoff_max_ms;
    uint32_t keep_latest; /* 0 = all */
};

/* How many workers it is to have, by request; 0 = what the spec says. */
struct desired_size {
    uint32_t min, max;
    uint32_t number; /* of the request, from 1 */
};

/* Where it stands; the part of a row that changes. */
struct job_status {
    uint64_t step;
    double loss; /* NaN before the first */
    double tokens_per_second, mfu;
    uint32_t world_size;
    uint64_t epoch;
    uint32_t restarts;                   /* losses that counted, of all causes */
    uint32_t checkpoint_failures;        /* checkpoints that were not written */
    uint32_t preemptions;                /* times it was stopped in favour of something else and queued again */
    uint64_t passed;                     /* a job that waits and comes first: slots are on loan; 0 = they are its own */
    struct evaluation_report evaluation; /* the newest; without the time it took */
    int64_t started_at_ms, finished_at_ms;
    const char *checkpoint; /* NULL = none */
};

#define JOB_NO_ID (-1)

/* An identity as the owner of jobs. */
struct job_owner {
    int64_t uid; /* JOB_NO_ID = it has none here */
    const char *name;
};

struct job {
    uint64_t id;
    const char *name, *user;
    const char *labels; /* as labels_join() has them; NULL for job_submit: none */
    int64_t uid, gid;   /* of the submitter; -1 = that identity has none here */
    enum job_state state;
    const char *reason;
    struct job_spec spec;
    struct desired_size desired;
    struct job_status status;
    int64_t submitted_at_ms;
    const char *key, *key_owner; /* job_submit: idempotency key and the submitter's name among keys; NULL = none */
    /* For job_submit only: the folder of its checkpoints (NULL = not known). Refused where another job that has not
     * ended holds it; one that writes none unless it is ordered does not hold it. */
    const char *folder;
    bool holds_folder;
    uint64_t request_hash; /* of everything the client sent */
};

/* The job that has this one's idempotency key; 0: none. TITAN_EEXIST: of another request. */
titan_status job_find_key(struct db *db, const struct job *job, uint64_t *ret_existing,
                          struct titan_error *err) TITAN_MUST_USE;
/* Add a PENDING job with its recipe and the event job.submitted. With an idempotency key that is taken nothing is
 * added: *ret_existing is that job's id, TITAN_OK when the request's hash is the same and TITAN_EEXIST when it is not.
 */
titan_status job_submit(struct db *db, const struct job *job, const char *recipe, uint64_t *ret_existing,
                        struct titan_error *err) TITAN_MUST_USE;
/* The event says why and is not NULL. TITAN_ENOTFOUND, TITAN_EBUG for a move the table does not allow. */
titan_status job_move(struct db *db, uint64_t id, enum job_state to, const char *reason,
                      const struct job_status *status, const struct event *event,
                      struct titan_error *err) TITAN_MUST_USE;
/* The status alone, without a move (and, with event, what happened). */
titan_status job_update(struct db *db, uint64_t id, const struct job_status *status, const struct event *event,
                        struct titan_error *err) TITAN_MUST_USE;

titan_status job_set_desired(struct db *db, uint64_t id, const struct desired_size *desired, const struct event *event,
                             struct titan_error *err) TITAN_MUST_USE;

/* Say something about a job that stays in its state. */
titan_status job_set_reason(struct db *db, uint64_t id, const char *reason, const struct event *event,
                            struct titan_error *err) TITAN_MUST_USE;

/* with() is called once, unless TITAN_ENOTFOUND; the job is valid during the call. */
titan_status job_get(struct db *db, uint64_t id, void (*with)(const struct job *job, void *data), void *data,
                     struct titan_error *err) TITAN_MUST_USE;
/* The same number where both have one, else the same name. */
bool job_owned_by(const struct job *job, const struct job_owner *owner);

struct job_filter {
    uint64_t before;               /* ids below it; 0 = from the newest */
    uint32_t states;               /* bit set of enum job_state; 0 = all */
    const char *user;              /* NULL or "" = of all */
    const struct job_owner *owner; /* and of this one only; NULL = of all */
    const char *name;              /* this one, or with a * at its end what begins so; NULL or "" = all */
    char *const *labels;           /* has all of them (labels_have) */
    size_t n_labels;
};
/* Newest first. */
titan_status job_list(struct db *db, const struct job_filter *filter, int limit,
                      bool (*each)(const struct job *job, void *data), void *data,
                      struct titan_error *err) TITAN_MUST_USE;
/* How many there are, whatever `before`; no more than `most` are counted. */
titan_status job_count(struct db *db, const struct job_filter *filter, uint32_t most, uint32_t *ret,
                       struct titan_error *err) TITAN_MUST_USE;
/* Jobs that have not ended, oldest first. */
titan_status job_list_open(struct db *db, bool (*each)(const struct job *job, void *data), void *data,
                           struct titan_error *err) TITAN_MUST_USE;
/* What the workers of a job that has ended wrote down of its last step. Nothing changes where the row knows it, or has
 * come further; a step beyond the row's has to be of its epoch. */
titan_status job_fill(struct db *db, const struct metric *last, struct titan_error *err) TITAN_MUST_USE;
/* Jobs that have ended at a step and have no loss in their rows, newest first, `most` of them at most. */
titan_status job_list_without_loss(struct db *db, int most, bool (*each)(const struct job *job, void *data), void *data,
                                   struct titan_error *err) TITAN_MUST_USE;
/* The resolved recipe, owned by the caller. */
titan_status job_recipe(struct db *db, uint64_t id, char **ret, struct titan_error *err) TITAN_MUST_USE;
titan_status job_last_id(struct db *db, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;

/* The common middle of every *_move: may `what` go from -> to? TITAN_EBUG when the table says no. */
titan_status state_check_move(const struct sm *sm, uint64_t job_id, int from, int to,
                              struct titan_error *err) TITAN_MUST_USE;

#endif
