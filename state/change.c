/* SPDX-License-Identifier: Apache-2.0 */
#include "state/change.h"

#include "state/backup.h"

static titan_status apply(struct db *db, const struct change *c, struct titan_error *err)
{
    const struct event *event = c->has_event ? &c->event : NULL;
    switch (c->kind) {
    case CHANGE_EVENT:
        return event_add(db, &c->event, err);
    case CHANGE_JOB_MOVE:
        return job_move(db, &c->job, event, err);
    case CHANGE_JOB_UPDATE:
        return job_update(db, c->job.id, &c->job.status, event, err);
    case CHANGE_JOB_REASON:
        return job_set_reason(db, c->job.id, c->job.reason, event, err);
    case CHANGE_JOB_DESIRED:
        return job_set_desired(db, c->job.id, &c->job.desired, event, err);
    case CHANGE_RUN_ADD:
        return run_add(db, c->run.job_id, c->run.number, &c->event, err);
    case CHANGE_RUN_MOVE:
        return run_move(db, &c->run, &c->event, err);
    case CHANGE_EPOCH_ADD:
        return epoch_add(db, &c->epoch, &c->event, err);
    case CHANGE_EPOCH_MOVE:
        return epoch_move(db, c->epoch.job_id, c->epoch.number, c->epoch.state, &c->event, err);
    case CHANGE_EPOCH_ORIGIN:
        return epoch_set_origin(db, c->epoch_origin.job_id, c->epoch_origin.number, &c->epoch_origin.is, &c->event,
                                err);
    case CHANGE_WORKER_ADD:
        return worker_add(db, &c->worker, &c->event, err);
    case CHANGE_WORKER_MOVE:
        return worker_move(db, &c->worker, &c->event, err);
    case CHANGE_WORKER_PID:
        return worker_set_pid(db, c->worker.id, c->worker.pid, &c->event, err);
    case CHANGE_CHECKPOINT_COMMIT:
        return checkpoint_add(db, &c->checkpoint, &c->event, err);
    case CHANGE_CHECKPOINT_EXPIRE:
        return checkpoint_expire(db, c->checkpoint.job_id, c->checkpoint.step, &c->event, err);
    case CHANGE_NODE_PUT:
        return node_put(db, &c->node, event, err);
    case CHANGE_NODE_REMOVE:
        return node_remove(db, c->node.name, event, err);
    case CHANGE_NODE_POLICY:
        return node_policy_put(db, &c->policy, event, err);
    case CHANGE_LOSS_ADD:
        return loss_add(db, &c->loss, err);
    case CHANGE_STORE_SETTLED:
        return backup_settle(db, &c->event, err);
    }
    return titan_fail(err, TITAN_EBUG, "unknown change %d", (int)c->kind);
}

titan_status change_apply_from(struct db *db, const struct change **list, struct titan_error *err)
{
    for (; *list; *list = (*list)->next)
        TRY(apply(db, *list, err));
    return TITAN_OK;
}

titan_status change_apply(struct db *db, const struct change *list, struct titan_error *err)
{
    return change_apply_from(db, &list, err);
}
