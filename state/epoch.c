/* SPDX-License-Identifier: Apache-2.0 */
#include "state/epoch.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "state/job.h"

#define TO(s) SM_BIT(EPOCH_##s)
static const struct sm_state epoch_states[] = {
    [EPOCH_NONE] = {"none", SM_INITIAL, TO(FORMING)},
    [EPOCH_FORMING] = {"forming", 0, TO(RUNNING) | TO(REVOKED) | TO(ENDED)},
    [EPOCH_RUNNING] = {"running", 0, TO(REVOKED) | TO(ENDED)},
    [EPOCH_REVOKED] = {"revoked", SM_FINAL | SM_FAILURE, 0},
    [EPOCH_ENDED] = {"ended", SM_FINAL, 0},
};
#undef TO
const struct sm epoch_sm = {"epoch", epoch_states, sizeof(epoch_states) / sizeof(epoch_states[0])};

/* clang-format off */
#define EPOCH(X) \
    X(run, run) X(world_size, world_size) X(source, source) X(source_epoch, source_epoch) \
    X(resume_step, resume_step) X(checkpoint, checkpoint) X(comm_id, comm_id) X(created_at_ms, created_at_ms) \
    X(leavers, departing) X(delegate, leader)
/* Columns that are read, but not written with the epoch. */
#define EPOCH_READ(X) \
    X(state, state) X(key, key) X(length(key) = 32, keyed) X(rung >= 0, has_origin) \
    X(rung >= 0 OR formed_at_ms > 0, complete)
/* clang-format on */
#define FIELD(column, field) DB_FIELD(struct epoch, field),
DB_ROW(new_row, struct epoch, FIELD(job_id, job_id) FIELD(number, number) EPOCH(FIELD));
DB_ROW(epoch_row, struct epoch, FIELD(job_id, job_id) FIELD(number, number) EPOCH(FIELD) EPOCH_READ(FIELD));
#define COLUMNS "job_id, number" EPOCH(DB_NAME)

titan_status epoch_add(struct db *db, const struct epoch *e, const struct event *event, struct titan_error *err)
{
    titan_assert(e->number && e->world_size <= JOB_WORKERS_MAX && (e->workers || e->world_size + e->departing == 0));
    titan_assert(e->departing <= JOB_WORKERS_MAX && e->source_epoch < e->number);
    const struct event_move move = {.what = &epoch_sm,
                                    .job_id = e->job_id,
                                    .id = e->number,
                                    .in_job = true,
                                    .from = EPOCH_NONE,
                                    .to = EPOCH_FORMING};
    TRY(event_check_move(&move, err));
    TRY(db_put(db, err, "INSERT INTO epochs (" COLUMNS ", state, key) VALUES (?, ?" EPOCH(DB_MARK) ", ?, ?)", &new_row,
               e, "ib", (int64_t)move.to, (const void *)e->key, e->keyed ? sizeof(e->key) : (size_t)0));
    TRY(db_run(db, err, "UPDATE workers SET rank = -1 WHERE job_id = ? AND rank >= 0", "u", e->job_id));
    for (uint32_t rank = 0; rank < e->world_size + e->departing; rank++) {
        TRY(db_run(db, err, "INSERT INTO members VALUES (?, ?, ?, ?)", "uuiu", e->job_id, e->number, (int64_t)rank,
                   e->workers[rank]));
        if (rank < e->world_size)
            TRY(db_run(db, err, "UPDATE workers SET rank = ? WHERE id = ?", "iu", (int64_t)rank, e->workers[rank]));
    }
    return event_add_move(db, event, &move, err);
}

titan_status epoch_move(struct db *db, uint64_t job_id, uint64_t number, enum epoch_state to, const struct event *event,
                        struct titan_error *err)
{
    titan_assert(to > EPOCH_FORMING);
    struct event_move move = {.what = &epoch_sm, .job_id = job_id, .id = number, .in_job = true, .to = (int)to};
    int64_t from = 0;
    TRY(db_int(db, &from, err, "SELECT state FROM epochs WHERE job_id = ? AND number = ?", "uu", job_id, number));
    move.from = (int)from;
    TRY(event_check_move(&move, err));
    if (to == EPOCH_RUNNING)
        TRY(db_run(db, err, "UPDATE epochs SET state = ?, formed_at_ms = ? WHERE job_id = ? AND number = ?", "iiuu",
                   (int64_t)to, event->at_ms, job_id, number));
    else
        TRY(db_run(db, err, "UPDATE epochs SET state = ?, ended_at_ms = ? WHERE job_id = ? AND number = ?", "iiuu",
                   (int64_t)to, event->at_ms, job_id, number));
    return event_add_move(db, event, &move, err);
}

titan_status epoch_set_origin(struct db *db, uint64_t job_id, uint64_t number, const struct epoch_origin *origin,
                              const struct event *event, struct titan_error *err)
{
    titan_assert(number && origin->recovery_source >= 0);
    TRY(db_run(db, err, "UPDATE epochs SET rung = ?, state_step = ?, params_hash = ? WHERE job_id = ? AND number = ?",
               "iuuuu", (int64_t)origin->recovery_source, origin->step, origin->params_hash, job_id, number));
    return event_add(db, event, err);
}

titan_status epoch_last_trained(struct db *db, uint64_t job_id, uint64_t *ret, struct titan_error *err)
{
    int64_t number = 0;
    TRY(db_int(db, &number, err, "SELECT max(number) FROM epochs WHERE job_id = ? AND formed_at_ms > 0", "u", job_id));
    *ret = (uint64_t)number;
    return TITAN_OK;
}

titan_status epoch_next(struct db *db, uint64_t job_id, uint64_t *number, struct titan_error *err)
{
    int64_t next = 0;
    TRY(db_int(db, &next, err, "SELECT min(number) FROM epochs WHERE job_id = ? AND number > ?", "uu", job_id,
               *number));
    *number = (uint64_t)next;
    return TITAN_OK;
}

titan_status epoch_get(struct db *db, uint64_t job_id, uint64_t number, void (*with)(const struct epoch *e, void *data),
                       void *data, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    _cleanup_free_ uint64_t *workers = NULL;
    struct epoch e;
    titan_status status;
    TRY(db_query(db, &stmt, err,
                 "SELECT " COLUMNS EPOCH_READ(DB_NAME) " FROM epochs WHERE job_id = ?1 AND"
                                                       " (?2 = 0 OR number = ?2) ORDER BY number DESC LIMIT 1",
                 "uu", job_id, number));
    if (!db_next(db, stmt, &epoch_row, &e, &status, err)) {
        if (status == TITAN_OK)
            status = titan_fail(err, TITAN_ENOTFOUND, "job %llu has no such epoch", (unsigned long long)job_id);
    } else if (e.world_size > JOB_WORKERS_MAX ||
               e.departing > JOB_WORKERS_MAX) { /* a damaged row may have any values */
        status = titan_fail(err, TITAN_ECORRUPT, "job %llu epoch %llu has %u members and %u departing ranks stored",
                            (unsigned long long)job_id, (unsigned long long)e.number, e.world_size, e.departing);
    } else if (!(workers = calloc(e.world_size + e.departing + 1, sizeof(*workers)))) {
        status = titan_fail(err, TITAN_ENOMEM, "out of memory");
    } else {
        sqlite3_stmt *members = NULL;
        const uint32_t ranks = e.world_size + e.departing;
        uint32_t n = 0;
        bool row = true;
        e.workers = workers;
        status = db_query(db, &members, err,
                          "SELECT rank, worker_id FROM members WHERE job_id = ? AND epoch = ? ORDER BY rank", "uu",
                          e.job_id, e.number);
        while (status == TITAN_OK && row && (status = db_step(db, members, &row, err)) == TITAN_OK && row && n < ranks)
            workers[n++] = col_uint(members, 1);
        db_done(members);
        if (status == TITAN_OK && n != ranks)
            status = titan_fail(err, TITAN_ECORRUPT, "job %llu epoch %llu has %u members stored, not %u",
                                (unsigned long long)e.job_id, (unsigned long long)e.number, n, ranks);
        if (status == TITAN_OK)
            with(&e, data);
    }
    db_done(stmt);
    return status;
}
