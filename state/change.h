/* SPDX-License-Identifier: Apache-2.0 */
/* change.h - a write to the job store as a value. The coordinator's core decides in changes; the store applies a batch
 * of changes in one transaction. */
#ifndef TITAN_STATE_CHANGE_H
#define TITAN_STATE_CHANGE_H

#include "state/checkpoint.h"
#include "state/epoch.h"
#include "state/job.h"
#include "state/loss.h"
#include "state/node.h"
#include "state/node_policy.h"
#include "state/run.h"
#include "state/worker.h"

enum change_kind {
    CHANGE_EVENT,
    CHANGE_JOB_MOVE,    /* job.id, job.state, job.reason, job.status */
    CHANGE_JOB_UPDATE,  /* job.id, job.status */
    CHANGE_JOB_REASON,  /* job.id, job.reason */
    CHANGE_JOB_DESIRED, /* job.id, job.desired size */
    CHANGE_RUN_ADD,     /* run.job_id, run.number */
    CHANGE_RUN_MOVE,    /* run.job_id, run.number, run.state, run.reason */
    CHANGE_EPOCH_ADD,
    CHANGE_EPOCH_MOVE,   /* epoch.job_id, .number, .state */
    CHANGE_EPOCH_ORIGIN, /* epoch_origin */
    CHANGE_WORKER_ADD,
    CHANGE_WORKER_MOVE,
    CHANGE_WORKER_PID, /* worker.id, .pid */
    CHANGE_CHECKPOINT_COMMIT,
    CHANGE_CHECKPOINT_EXPIRE, /* checkpoint.job_id, .step */
    CHANGE_NODE_PUT,
    CHANGE_NODE_REMOVE, /* node.name */
    CHANGE_NODE_POLICY,
    CHANGE_LOSS_ADD,
    CHANGE_STORE_SETTLED, /* the agents' knowledge newer than the backup has been stored */
};

struct change {
    struct change *next;
    enum change_kind kind;
    bool has_event;
    struct event event;
    union {
        struct job job;
        struct run run;
        struct epoch epoch;
        struct {
            uint64_t job_id, number;
            struct epoch_origin is;
        } epoch_origin;
        struct worker worker;
        struct checkpoint checkpoint;
        struct node node;
        struct node_policy policy;
        struct loss loss;
    };
};

/* Applies the list in order; stops at the first failing change. Call inside a transaction. */
titan_status change_apply(struct db *db, const struct change *list, struct titan_error *err) TITAN_MUST_USE;
/* change_apply(); *list becomes the failing change, or NULL. */
titan_status change_apply_from(struct db *db, const struct change **list, struct titan_error *err) TITAN_MUST_USE;

#endif
