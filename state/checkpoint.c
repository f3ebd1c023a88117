/* SPDX-License-Identifier: Apache-2.0 */
#include "state/checkpoint.h"

#include <stdio.h>

#include "state/job.h"

#define TO(s) SM_BIT(CHECKPOINT_##s)
static const struct sm_state checkpoint_states[] = {
    [CHECKPOINT_NONE] = {"none", SM_INITIAL, TO(COMMITTED)},
    [CHECKPOINT_COMMITTED] = {"committed", 0, TO(EXPIRED) | TO(COMMITTED)},
    [CHECKPOINT_EXPIRED] = {"expired", 0, TO(COMMITTED)}, /* its step trained again after a recovery */
};
#undef TO
const struct sm checkpoint_sm = {"checkpoint", checkpoint_states,
                                 sizeof(checkpoint_states) / sizeof(checkpoint_states[0])};

static titan_status add_change(struct db *db, const struct event *event, uint64_t job_id, uint64_t step, int from,
                               int to, struct titan_error *err)
{
    char key[48];
    (void)snprintf(key, sizeof(key), "%llu/%llu", (unsigned long long)job_id, (unsigned long long)step);
    return event_add_change(db, event, &checkpoint_sm, key, from, to, 0, err);
}

titan_status checkpoint_add(struct db *db, const struct checkpoint *c, const struct event *event,
                            struct titan_error *err)
{
    titan_assert(c->job_id && c->epoch && c->path && *c->path);
    int64_t epoch = 0, before = 0, state = 0;
    TRY(db_int(db, 0, &epoch, err, "SELECT max(number) FROM epochs WHERE job_id = ?", "u", c->job_id));
    TRY(db_int(db, 0, &before, err, "SELECT epoch FROM checkpoints WHERE job_id = ? AND step = ?", "uu", c->job_id,
               c->step));
    if ((uint64_t)epoch > c->epoch || (uint64_t)before > c->epoch)
        return titan_fail(err, TITAN_EREVOKED, "job %llu: checkpoint of step %llu comes from epoch %llu, now is %lld",
                          (unsigned long long)c->job_id, (unsigned long long)c->step, (unsigned long long)c->epoch,
                          (long long)(epoch > before ? epoch : before));
    TRY(db_int(db, CHECKPOINT_NONE, &state, err, "SELECT state FROM checkpoints WHERE job_id = ? AND step = ?", "uu",
               c->job_id, c->step));
    TRY(state_check_move(&checkpoint_sm, c->job_id, (int)state, CHECKPOINT_COMMITTED, err));
    TRY(db_run(db, err, "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?)", "uuuituii", c->job_id,
               c->step, c->epoch, (int64_t)CHECKPOINT_COMMITTED, c->path, c->bytes, (int64_t)c->world_size,
               event->at_ms));
    return add_change(db, event, c->job_id, c->step, (int)state, CHECKPOINT_COMMITTED, err);
}

titan_status checkpoint_expire(struct db *db, uint64_t job_id, uint64_t step, const struct event *event,
                               struct titan_error *err)
{
    int64_t from = 0;
    TRY(db_int(db, CHECKPOINT_NONE, &from, err, "SELECT state FROM checkpoints WHERE job_id = ? AND step = ?", "uu",
               job_id, step));
    TRY(state_check_move(&checkpoint_sm, job_id, (int)from, CHECKPOINT_EXPIRED, err));
    TRY(db_run(db, err, "UPDATE checkpoints SET state = ? WHERE job_id = ? AND step = ?", "iuu",
               (int64_t)CHECKPOINT_EXPIRED, job_id, step));
    return add_change(db, event, job_id, step, (int)from, CHECKPOINT_EXPIRED, err);
}

titan_status checkpoint_list(struct db *db, uint64_t job_id, bool (*each)(const struct checkpoint *c, void *data),
                             void *data, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err,
                 "SELECT step, epoch, path, bytes, world_size, committed_at_ms FROM checkpoints"
                 " WHERE job_id = ? AND state = 1 ORDER BY step DESC",
                 "u", job_id));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row) {
        struct checkpoint c = {
            .job_id = job_id,
            .step = col_uint(stmt, 0),
            .epoch = col_uint(stmt, 1),
            .path = col_text(stmt, 2),
            .bytes = col_uint(stmt, 3),
            .world_size = (uint32_t)col_int(stmt, 4),
            .committed_at_ms = col_int(stmt, 5),
        };
        if (!each(&c, data))
            break;
    }
    db_done(stmt);
    return status;
}
