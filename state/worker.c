/* SPDX-License-Identifier: Apache-2.0 */
#include "state/worker.h"

#include <stdio.h>

#include "state/job.h"

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

static titan_status add_change(struct db *db, const struct event *event, const struct worker *w, int from, int to,
                               struct titan_error *err)
{
    char key[24];
    (void)snprintf(key, sizeof(key), "%llu", (unsigned long long)w->id);
    return event_add_change(db, event, &worker_sm, key, from, to, w->counted, err);
}

titan_status worker_add(struct db *db, const struct worker *w, const struct event *event, struct titan_error *err)
{
    titan_assert(w->id && w->job_id && w->run && w->node && *w->node);
    TRY(state_check_move(&worker_sm, w->job_id, WORKER_NONE, WORKER_STARTING, err));
    TRY(db_run(db, err, "INSERT INTO workers (id, job_id, run, node, state, started_at_ms) VALUES (?, ?, ?, ?, ?, ?)",
               "uuitii", w->id, w->job_id, (int64_t)w->run, w->node, (int64_t)WORKER_STARTING, event->at_ms));
    return add_change(db, event, w, WORKER_NONE, WORKER_STARTING, err);
}

titan_status worker_move(struct db *db, const struct worker *w, const struct event *event, struct titan_error *err)
{
    titan_assert(w->state > WORKER_STARTING);
    int64_t from = 0;
    TRY(db_int(db, WORKER_NONE, &from, err, "SELECT state FROM workers WHERE id = ?", "u", w->id));
    TRY(state_check_move(&worker_sm, w->job_id, (int)from, (int)w->state, err));
    TRY(db_run(db, err,
               "UPDATE workers SET state = ?, address = ?, exit_code = ?, signal = ?, counted = ?, reason = ?,"
               " ended_at_ms = ? WHERE id = ?",
               "itiiitiu", (int64_t)w->state, w->address ? w->address : "", (int64_t)w->exit_code, (int64_t)w->signal,
               (int64_t)w->counted, w->reason ? w->reason : "",
               sm_final(&worker_sm, (int)w->state) ? event->at_ms : (int64_t)0, w->id));
    return add_change(db, event, w, (int)from, (int)w->state, err);
}

titan_status worker_set_pid(struct db *db, uint64_t id, int64_t pid, const struct event *event, struct titan_error *err)
{
    TRY(db_run(db, err, "UPDATE workers SET pid = ? WHERE id = ?", "iu", pid, id));
    return event_add(db, event, err);
}

titan_status worker_list(struct db *db, uint64_t job_id, bool live, bool (*each)(const struct worker *w, void *data),
                         void *data, struct titan_error *err)
{
    titan_assert(each);
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err,
                 "SELECT id, run, node, state, address, pid, rank, exit_code, signal, counted, reason FROM workers"
                 " WHERE job_id = ?1 AND (?2 = 0 OR state < 4) ORDER BY id",
                 "ui", job_id, (int64_t)live));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row) {
        struct worker w = {
            .id = col_uint(stmt, 0),
            .job_id = job_id,
            .run = (uint32_t)col_int(stmt, 1),
            .node = col_text(stmt, 2),
            .state = (enum worker_state)col_int(stmt, 3),
            .address = col_text(stmt, 4),
            .pid = col_int(stmt, 5),
            .rank = (int32_t)col_int(stmt, 6),
            .exit_code = (int32_t)col_int(stmt, 7),
            .signal = (int32_t)col_int(stmt, 8),
            .counted = col_int(stmt, 9) != 0,
            .reason = col_text(stmt, 10),
        };
        if (!each(&w, data))
            break;
    }
    db_done(stmt);
    return status;
}

titan_status worker_extent(struct db *db, uint64_t job_id, int64_t *ret_workers, int64_t *ret_ranks,
                           struct titan_error *err)
{
    TRY(db_int(db, 0, ret_workers, err, "SELECT count(*) FROM workers WHERE job_id = ?1", "u", job_id));
    return db_int(db, 0, ret_ranks, err, "SELECT max(world_size) FROM epochs WHERE job_id = ?1", "u", job_id);
}

titan_status worker_last_id(struct db *db, uint64_t *ret, struct titan_error *err)
{
    int64_t id = 0;
    TRY(db_int(db, 0, &id, err, "SELECT max(id) FROM workers", ""));
    *ret = (uint64_t)id;
    return TITAN_OK;
}
