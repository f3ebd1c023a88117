/* SPDX-License-Identifier: Apache-2.0 */
#include "state/run.h"

#define TO(s) SM_BIT(RUN_##s)
static const struct sm_state run_states[] = {
    [RUN_NONE] = {"none", SM_INITIAL, TO(ACTIVE)},
    [RUN_ACTIVE] = {"active", 0, TO(COMPLETED) | TO(FAILED) | TO(CANCELLED) | TO(LOST)},
    [RUN_COMPLETED] = {"completed", SM_FINAL, 0},
    [RUN_FAILED] = {"failed", SM_FINAL | SM_FAILURE, 0},
    [RUN_CANCELLED] = {"cancelled", SM_FINAL, 0},
    [RUN_LOST] = {"lost", SM_FINAL | SM_FAILURE, 0},
};
#undef TO
const struct sm run_sm = {"run", run_states, sizeof(run_states) / sizeof(run_states[0])};

titan_status run_add(struct db *db, uint64_t job_id, uint32_t number, const struct event *event,
                     struct titan_error *err)
{
    titan_assert(job_id && number);
    const struct event_move move = {
        .what = &run_sm, .job_id = job_id, .id = number, .in_job = true, .from = RUN_NONE, .to = RUN_ACTIVE};
    TRY(event_check_move(&move, err));
    TRY(db_run(db, err, "INSERT INTO runs (job_id, number, state, started_at_ms) VALUES (?, ?, ?, ?)", "uiii", job_id,
               (int64_t)number, (int64_t)RUN_ACTIVE, event->at_ms));
    return event_add_move(db, event, &move, err);
}

titan_status run_move(struct db *db, const struct run *r, const struct event *event, struct titan_error *err)
{
    titan_assert(r->state > RUN_ACTIVE);
    struct event_move move = {
        .what = &run_sm, .job_id = r->job_id, .id = r->number, .in_job = true, .to = (int)r->state};
    int64_t from = 0;
    TRY(db_int(db, &from, err, "SELECT state FROM runs WHERE job_id = ? AND number = ?", "ui", r->job_id,
               (int64_t)r->number));
    move.from = (int)from;
    TRY(event_check_move(&move, err));
    TRY(db_run(db, err, "UPDATE runs SET state = ?, reason = ?, ended_at_ms = ? WHERE job_id = ? AND number = ?",
               "itiui", (int64_t)r->state, r->reason ? r->reason : "", event->at_ms, r->job_id, (int64_t)r->number));
    return event_add_move(db, event, &move, err);
}

titan_status run_last(struct db *db, uint64_t job_id, uint32_t *ret_number, enum run_state *ret_state,
                      struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err, "SELECT number, state FROM runs WHERE job_id = ? ORDER BY number DESC LIMIT 1", "u",
                 job_id));
    bool row = false;
    titan_status status = db_step(db, stmt, &row, err);
    *ret_number = row ? (uint32_t)col_int(stmt, 0) : 0;
    *ret_state = row ? (enum run_state)col_int(stmt, 1) : RUN_NONE;
    db_done(stmt);
    return status;
}
