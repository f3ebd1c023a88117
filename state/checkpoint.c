/* SPDX-License-Identifier: Apache-2.0 */
#include "state/checkpoint.h"

#define TO(s) SM_BIT(CHECKPOINT_##s)
static const struct sm_state checkpoint_states[] = {
    [CHECKPOINT_NONE] = {"none", SM_INITIAL, TO(COMMITTED)},
    [CHECKPOINT_COMMITTED] = {"committed", 0, TO(EXPIRED) | TO(COMMITTED)},
    [CHECKPOINT_EXPIRED] = {"expired", 0, TO(COMMITTED)}, /* its step trained again after a recovery */
};
#undef TO
const struct sm checkpoint_sm = {"checkpoint", checkpoint_states,
                                 sizeof(checkpoint_states) / sizeof(checkpoint_states[0])};

/* clang-format off */
#define CHECKPOINT(X) \
    X(epoch, epoch) X(path, path) X(bytes, bytes) X(world_size, world_size) X(committed_at_ms, committed_at_ms)
/* clang-format on */
#define FIELD(column, field) DB_FIELD(struct checkpoint, field),
DB_ROW(checkpoint_row, struct checkpoint, FIELD(job_id, job_id) FIELD(step, step) CHECKPOINT(FIELD));
#define COLUMNS "job_id, step" CHECKPOINT(DB_NAME)
#define MARKS "?, ?" CHECKPOINT(DB_MARK)

static titan_status find_move(struct db *db, struct event_move *move, struct titan_error *err)
{
    int64_t state = 0;
    TRY(db_int(db, &state, err, "SELECT state FROM checkpoints WHERE job_id = ? AND step = ?", "uu", move->job_id,
               move->id));
    move->from = (int)state;
    return event_check_move(move, err);
}

titan_status checkpoint_add(struct db *db, const struct checkpoint *c, const struct event *event,
                            struct titan_error *err)
{
    titan_assert(c->job_id && c->epoch && c->path && *c->path);
    int64_t epoch = 0, before = 0;
    TRY(db_int(db, &epoch, err, "SELECT max(number) FROM epochs WHERE job_id = ?", "u", c->job_id));
    TRY(db_int(db, &before, err, "SELECT epoch FROM checkpoints WHERE job_id = ? AND step = ?", "uu", c->job_id,
               c->step));
    if ((uint64_t)epoch > c->epoch || (uint64_t)before > c->epoch)
        return titan_fail(err, TITAN_EREVOKED, "job %llu: checkpoint of step %llu comes from epoch %llu, now is %lld",
                          (unsigned long long)c->job_id, (unsigned long long)c->step, (unsigned long long)c->epoch,
                          (long long)(epoch > before ? epoch : before));
    struct event_move move = {
        .what = &checkpoint_sm, .job_id = c->job_id, .id = c->step, .in_job = true, .to = CHECKPOINT_COMMITTED};
    struct checkpoint row = *c;
    row.committed_at_ms = event->at_ms;
    TRY(find_move(db, &move, err));
    TRY(db_put(db, err, "INSERT OR REPLACE INTO checkpoints (" COLUMNS ", state) VALUES (" MARKS ", ?)",
               &checkpoint_row, &row, "i", (int64_t)move.to));
    return event_add_move(db, event, &move, err);
}

titan_status checkpoint_expire(struct db *db, uint64_t job_id, uint64_t step, const struct event *event,
                               struct titan_error *err)
{
    struct event_move move = {
        .what = &checkpoint_sm, .job_id = job_id, .id = step, .in_job = true, .to = CHECKPOINT_EXPIRED};
    TRY(find_move(db, &move, err));
    TRY(db_run(db, err, "UPDATE checkpoints SET state = ? WHERE job_id = ? AND step = ?", "iuu", (int64_t)move.to,
               job_id, step));
    return event_add_move(db, event, &move, err);
}

titan_status checkpoint_list(struct db *db, uint64_t job_id, bool (*each)(const struct checkpoint *c, void *data),
                             void *data, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct checkpoint c;
    titan_status status;
    TRY(db_query(db, &stmt, err,
                 "SELECT " COLUMNS " FROM checkpoints WHERE job_id = ? AND state = ?"
                 " ORDER BY step DESC",
                 "ui", job_id, (int64_t)CHECKPOINT_COMMITTED));
    while (db_next(db, stmt, &checkpoint_row, &c, &status, err) && each(&c, data))
        ;
    db_done(stmt);
    return status;
}
