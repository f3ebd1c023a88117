/* SPDX-License-Identifier: Apache-2.0 */
#include "state/epoch.h"

#include <stdio.h>
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

static titan_status add_change(struct db *db, const struct event *event, uint64_t job_id, uint64_t number, int from,
                               int to, struct titan_error *err)
{
    char key[48];
    (void)snprintf(key, sizeof(key), "%llu/%llu", (unsigned long long)job_id, (unsigned long long)number);
    return event_add_change(db, event, &epoch_sm, key, from, to, 0, err);
}

titan_status epoch_add(struct db *db, const struct epoch *e, const struct event *event, struct titan_error *err)
{
    titan_assert(e->number && e->world_size <= JOB_WORKERS_MAX && (e->workers || e->world_size + e->departing == 0));
    titan_assert(e->departing <= JOB_WORKERS_MAX && e->source_epoch < e->number);
    TRY(state_check_move(&epoch_sm, e->job_id, EPOCH_NONE, EPOCH_FORMING, err));
    TRY(db_run(
        db, err,
        "INSERT INTO epochs (job_id, number, run, state, world_size, source, source_epoch, resume_step,"
        " checkpoint, comm_id, created_at_ms, leavers, delegate, key) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,"
        " ?)",
        "uuiiiiuutbiitb", e->job_id, e->number, (int64_t)e->run, (int64_t)EPOCH_FORMING, (int64_t)e->world_size,
        (int64_t)e->source, e->source_epoch, e->resume_step, e->checkpoint ? e->checkpoint : "",
        (const void *)e->comm_id, sizeof(e->comm_id), e->created_at_ms, (int64_t)e->departing,
        e->leader ? e->leader : "", (const void *)e->key, e->keyed ? sizeof(e->key) : (size_t)0));
    TRY(db_run(db, err, "UPDATE workers SET rank = -1 WHERE job_id = ? AND rank >= 0", "u", e->job_id));
    for (uint32_t rank = 0; rank < e->world_size + e->departing; rank++) {
        TRY(db_run(db, err, "INSERT INTO members VALUES (?, ?, ?, ?)", "uuiu", e->job_id, e->number, (int64_t)rank,
                   e->workers[rank]));
        if (rank < e->world_size)
            TRY(db_run(db, err, "UPDATE workers SET rank = ? WHERE id = ?", "iu", (int64_t)rank, e->workers[rank]));
    }
    return add_change(db, event, e->job_id, e->number, EPOCH_NONE, EPOCH_FORMING, err);
}

titan_status epoch_move(struct db *db, uint64_t job_id, uint64_t number, enum epoch_state to, const struct event *event,
                        struct titan_error *err)
{
    titan_assert(to > EPOCH_FORMING);
    int64_t from = 0;
    TRY(db_int(db, EPOCH_NONE, &from, err, "SELECT state FROM epochs WHERE job_id = ? AND number = ?", "uu", job_id,
               number));
    TRY(state_check_move(&epoch_sm, job_id, (int)from, to, err));
    if (to == EPOCH_RUNNING)
        TRY(db_run(db, err, "UPDATE epochs SET state = ?, formed_at_ms = ? WHERE job_id = ? AND number = ?", "iiuu",
                   (int64_t)to, event->at_ms, job_id, number));
    else
        TRY(db_run(db, err, "UPDATE epochs SET state = ?, ended_at_ms = ? WHERE job_id = ? AND number = ?", "iiuu",
                   (int64_t)to, event->at_ms, job_id, number));
    return add_change(db, event, job_id, number, (int)from, to, err);
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
    TRY(db_int(db, 0, &number, err, "SELECT max(number) FROM epochs WHERE job_id = ? AND formed_at_ms > 0", "u",
               job_id));
    *ret = (uint64_t)number;
    return TITAN_OK;
}

titan_status epoch_next(struct db *db, uint64_t job_id, uint64_t *number, struct titan_error *err)
{
    int64_t next = 0;
    TRY(db_int(db, 0, &next, err, "SELECT min(number) FROM epochs WHERE job_id = ? AND number > ?", "uu", job_id,
               *number));
    *number = (uint64_t)next;
    return TITAN_OK;
}

static titan_status read_members(struct db *db, const struct epoch *e, uint64_t *workers, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err, "SELECT rank, worker_id FROM members WHERE job_id = ? AND epoch = ? ORDER BY rank",
                 "uu", e->job_id, e->number));
    uint32_t n = 0;
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row && n < e->world_size + e->departing)
        workers[n++] = col_uint(stmt, 1);
    db_done(stmt);
    if (status == TITAN_OK && n != e->world_size + e->departing)
        status =
            titan_fail(err, TITAN_ECORRUPT, "job %llu epoch %llu has %u members stored, not %u",
                       (unsigned long long)e->job_id, (unsigned long long)e->number, n, e->world_size + e->departing);
    return status;
}

titan_status epoch_get(struct db *db, uint64_t job_id, uint64_t number, void (*with)(const struct epoch *e, void *data),
                       void *data, struct titan_error *err)
{
    titan_assert(with);
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err,
                 "SELECT number, run, state, world_size, source, source_epoch, resume_step, checkpoint, comm_id,"
                 " created_at_ms, leavers, delegate, rung >= 0 OR formed_at_ms > 0, key, length(key), rung >= 0 FROM "
                 "epochs WHERE "
                 "job_id = ?1 AND "
                 "(?2 = 0 OR number = ?2)"
                 " ORDER BY number DESC LIMIT 1",
                 "uu", job_id, number));
    bool row = false;
    _cleanup_free_ uint64_t *workers = NULL;
    titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && !row)
        status = titan_fail(err, TITAN_ENOTFOUND, "job %llu has no such epoch", (unsigned long long)job_id);
    if (status == TITAN_OK) {
        struct epoch e = {
            .job_id = job_id,
            .number = col_uint(stmt, 0),
            .run = (uint32_t)col_int(stmt, 1),
            .state = (enum epoch_state)col_int(stmt, 2),
            .world_size = (uint32_t)col_int(stmt, 3),
            .source = (uint32_t)col_int(stmt, 4),
            .source_epoch = col_uint(stmt, 5),
            .resume_step = col_uint(stmt, 6),
            .checkpoint = col_text(stmt, 7),
            .created_at_ms = col_int(stmt, 9),
            .departing = (uint32_t)col_int(stmt, 10),
            .leader = col_text(stmt, 11),
            .complete = col_int(stmt, 12) != 0,
            .keyed = col_int(stmt, 14) == 32,
            .has_origin = col_int(stmt, 15) != 0,
        };
        col_blob(stmt, 8, e.comm_id, sizeof(e.comm_id));
        col_blob(stmt, 13, e.key, sizeof(e.key));
        /* Check before the addition: a damaged row may have any values. */
        const bool sane = e.world_size <= JOB_WORKERS_MAX && e.departing <= JOB_WORKERS_MAX;
        workers = sane ? calloc(e.world_size + e.departing + 1, sizeof(*workers)) : NULL;
        if (!sane)
            status = titan_fail(err, TITAN_ECORRUPT, "job %llu epoch %llu has %u members and %u departing ranks stored",
                                (unsigned long long)job_id, (unsigned long long)e.number, e.world_size, e.departing);
        else if (!workers)
            status = titan_fail(err, TITAN_ENOMEM, "out of memory");
        else
            status = read_members(db, &e, workers, err);
        e.workers = workers;
        if (status == TITAN_OK)
            with(&e, data);
    }
    db_done(stmt);
    return status;
}
