/* SPDX-License-Identifier: Apache-2.0 */
#include "state/job_quarantine.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/vec.h"

uint64_t change_job(const struct change *c)
{
    switch (c->kind) {
    case CHANGE_JOB_MOVE:
    case CHANGE_JOB_UPDATE:
    case CHANGE_JOB_REASON:
    case CHANGE_JOB_DESIRED:
        return c->job.id;
    case CHANGE_RUN_ADD:
    case CHANGE_RUN_MOVE:
        return c->run.job_id;
    case CHANGE_EPOCH_ADD:
    case CHANGE_EPOCH_MOVE:
        return c->epoch.job_id;
    case CHANGE_EPOCH_ORIGIN:
        return c->epoch_origin.job_id;
    case CHANGE_WORKER_ADD:
    case CHANGE_WORKER_MOVE:
    case CHANGE_WORKER_PID:
        return c->worker.job_id ? c->worker.job_id : c->event.job_id;
    case CHANGE_CHECKPOINT_COMMIT:
    case CHANGE_CHECKPOINT_EXPIRE:
        return c->checkpoint.job_id;
    case CHANGE_LOSS_ADD:
        return c->loss.job_id;
    case CHANGE_EVENT:
        return c->event.job_id;
    case CHANGE_NODE_PUT:
    case CHANGE_NODE_REMOVE:
    case CHANGE_NODE_POLICY:
    case CHANGE_STORE_SETTLED:
        return 0;
    }
    return 0;
}

struct ends {
    struct worker *workers; /* without their texts: a lost worker has none */
    size_t n, cap;
};

static bool each_worker(const struct worker *w, void *data)
{
    struct ends *e = data;
    VEC_MUST_PUSH(e->workers, e->n, e->cap, (struct worker){.id = w->id, .job_id = w->job_id, .run = w->run});
    return true;
}

struct stored {
    struct job job; /* of the texts only job.checkpoint is set */
    char checkpoint[PATH_MAX];
};

static void with_job(const struct job *job, void *data)
{
    struct stored *s = data;
    s->job = (struct job){.id = job->id, .state = job->state, .status = job->status};
    (void)snprintf(s->checkpoint, sizeof(s->checkpoint), "%s", job->status.checkpoint);
    s->job.status.checkpoint = s->checkpoint;
}

titan_status job_quarantine(struct db *db, uint64_t job_id, const char *reason, int64_t at_ms, struct titan_error *err)
{
    titan_assert(reason && *reason);
    struct stored stored;
    struct job *job = &stored.job;
    TRY(job_get(db, job_id, with_job, &stored, err));
    if (sm_final(&job_sm, (int)job->state))
        return TITAN_OK;
    const enum job_state to = sm_allowed(&job_sm, (int)job->state, JOB_FAILED) ? JOB_FAILED : JOB_CANCELLED;
    struct event event = {.job_id = job_id, .at_ms = at_ms, .message = reason, .step = job->status.step, .rank = -1};
    char detail[80];

    struct ends ends = {0};
    titan_status status = worker_list(db, job_id, true, each_worker, &ends, err);
    for (size_t i = 0; i < ends.n && status == TITAN_OK; i++) {
        struct event lost = event;
        (void)snprintf(detail, sizeof(detail), "{\"worker\":%" PRIu64 ",\"counted\":false}", ends.workers[i].id);
        lost.type = "worker.lost";
        lost.detail = detail;
        ends.workers[i].state = WORKER_LOST;
        ends.workers[i].reason = reason;
        status = worker_move(db, &ends.workers[i], &lost, err);
    }
    free(ends.workers);
    TRY(status);

    for (bool row = true; row;) { /* one of these epochs exists, unless the store is damaged further */
        sqlite3_stmt *stmt = NULL;
        struct event revoked = event;
        TRY(db_query(db, &stmt, err, "SELECT number FROM epochs WHERE job_id = ? AND state IN (?, ?) LIMIT 1", "uii",
                     job_id, (int64_t)EPOCH_FORMING, (int64_t)EPOCH_RUNNING));
        status = db_step(db, stmt, &row, err);
        revoked.type = "epoch.revoked";
        revoked.epoch = row ? col_uint(stmt, 0) : 0;
        db_done(stmt);
        TRY(status);
        if (row)
            TRY(epoch_move(db, job_id, revoked.epoch, EPOCH_REVOKED, &revoked, err));
    }

    struct run run = {.job_id = job_id};
    TRY(run_last(db, job_id, &run.number, &run.state, err));
    event.detail = detail;
    if (run.state == RUN_ACTIVE) {
        run.state = RUN_FAILED;
        run.reason = reason;
        (void)snprintf(detail, sizeof(detail), "{\"run\":%" PRIu32 ",\"state\":\"failed\"}", run.number);
        event.type = "run.ended";
        TRY(run_move(db, &run, &event, err));
    }

    (void)snprintf(detail, sizeof(detail), "{\"from\":\"%s\",\"to\":\"%s\"}", sm_name(&job_sm, (int)job->state),
                   sm_name(&job_sm, (int)to));
    event.type = "job.state";
    job->state = to;
    job->reason = reason;
    job->status.finished_at_ms = at_ms;
    job->status.world_size = 0;
    return job_move(db, job, &event, err);
}
