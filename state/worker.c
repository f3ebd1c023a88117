/* SPDX-License-Identifier: Apache-2.0 */
#include "state/worker.h"

#define TO(s) SM_BIT(WORKER_##s)
static const struct sm_state worker_states[] = {
    [WORKER_NONE] = {"none", SM_INITIAL, TO(STARTING)},
    [WORKER_STARTING] = {"starting", 0, TO(READY) | TO(STOPPING) | TO(EXITED) | TO(LOST)},
    [WORKER_READY] = {"ready", 0, TO(STOPPING) | TO(EXITED) | TO(LOST)},
    [WORKER_STOPPING] = {"stopping", 0, TO(EXITED) | TO(LOST)},
    [WORKER_EXITED] = {"exited", SM_FINAL, 0},
    [WORKER_LOST] = {"lost", SM_FINAL | SM_FAILURE, 0},
};
#undef TO
const struct sm worker_sm = {"worker", worker_states, sizeof(worker_states) / sizeof(worker_states[0])};

/* clang-format off */
/* Columns that place a worker, and columns that worker_move() takes over. */
#define WORKER(X) X(job_id, job_id) X(run, run) X(node, node) X(pid, pid) X(rank, rank)
#define WORKER_MOVED(X) \
    X(address, address) X(exit_code, exit_code) X(signal, signal) X(counted, counted) X(reason, reason)
/* clang-format on */
#define FIELD(column, field) DB_FIELD(struct worker, field),
DB_ROW(worker_row, struct worker, FIELD(id, id) FIELD(state, state) WORKER_MOVED(FIELD) WORKER(FIELD));
DB_ROW(moved_row, struct worker, FIELD(state, state) WORKER_MOVED(FIELD));

titan_status worker_add(struct db *db, const struct worker *w, const struct event *event, struct titan_error *err)
{
    titan_assert(w->id && w->job_id && w->run && w->node && *w->node);
    const struct event_move move = {
        .what = &worker_sm, .job_id = w->job_id, .id = w->id, .to = WORKER_STARTING, .count = w->counted};
    TRY(event_check_move(&move, err));
    TRY(db_run(db, err, "INSERT INTO workers (id, job_id, run, node, state, started_at_ms) VALUES (?, ?, ?, ?, ?, ?)",
               "uuitii", w->id, w->job_id, (int64_t)w->run, w->node, (int64_t)move.to, event->at_ms));
    return event_add_move(db, event, &move, err);
}

titan_status worker_move(struct db *db, const struct worker *w, const struct event *event, struct titan_error *err)
{
    titan_assert(w->state > WORKER_STARTING);
    const bool ended = sm_final(&worker_sm, (int)w->state);
    struct event_move move = {
        .what = &worker_sm, .job_id = w->job_id, .id = w->id, .to = (int)w->state, .count = w->counted};
    int64_t from = 0;
    TRY(db_int(db, &from, err, "SELECT state FROM workers WHERE id = ?", "u", w->id));
    move.from = (int)from;
    TRY(event_check_move(&move, err));
    TRY(db_put(db, err, "UPDATE workers SET state = ?" WORKER_MOVED(DB_SET) ", ended_at_ms = ? WHERE id = ?",
               &moved_row, w, "iu", ended ? event->at_ms : (int64_t)0, w->id));
    return event_add_move(db, event, &move, err);
}

titan_status worker_set_pid(struct db *db, uint64_t id, int64_t pid, const struct event *event, struct titan_error *err)
{
    TRY(db_run(db, err, "UPDATE workers SET pid = ? WHERE id = ?", "iu", pid, id));
    return event_add(db, event, err);
}

titan_status worker_list(struct db *db, uint64_t job_id, bool live, bool (*each)(const struct worker *w, void *data),
                         void *data, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct worker w;
    titan_status status;
    TRY(db_query(db, &stmt, err,
                 "SELECT id, state" WORKER_MOVED(DB_NAME) WORKER(DB_NAME) " FROM workers WHERE job_id = ? AND state < ?"
                                                                          " ORDER BY id",
                 "ui", job_id, live ? (int64_t)WORKER_EXITED : INT64_MAX));
    while (db_next(db, stmt, &worker_row, &w, &status, err) && each(&w, data))
        ;
    db_done(stmt);
    return status;
}

titan_status worker_extent(struct db *db, uint64_t job_id, int64_t *ret_workers, int64_t *ret_ranks,
                           struct titan_error *err)
{
    TRY(db_int(db, ret_workers, err, "SELECT count(*) FROM workers WHERE job_id = ?1", "u", job_id));
    return db_int(db, ret_ranks, err, "SELECT max(world_size) FROM epochs WHERE job_id = ?1", "u", job_id);
}

titan_status worker_last_id(struct db *db, uint64_t *ret, struct titan_error *err)
{
    int64_t id = 0;
    TRY(db_int(db, &id, err, "SELECT max(id) FROM workers", ""));
    *ret = (uint64_t)id;
    return TITAN_OK;
}
