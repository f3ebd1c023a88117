#include "state/metric.h"

titan_status metric_put(struct db *db, const struct metric *m, struct titan_error *err)
{
    return db_run(db, err, "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                  "uuirrrrrruuiui", m->job_id, m->step, m->at_ms, m->loss, m->grad_norm, m->learning_rate,
                  m->tokens_per_second, m->mfu, m->step_ms, m->tokens, m->epoch, (int64_t)m->world_size,
                  m->memory_bytes, (int64_t)m->skipped_steps);
}

titan_status metric_list(struct db *db, uint64_t job_id, uint64_t after, int limit,
                         bool (*each)(const struct metric *m, void *data), void *data, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err,
                 "SELECT step, at_ms, loss, grad_norm, learning_rate, tokens_per_second, mfu, step_ms, tokens, epoch,"
                 " world_size, memory_bytes, skipped_steps FROM metrics WHERE job_id = ? AND step > ?"
                 " ORDER BY step LIMIT ?",
                 "uui", job_id, after, (int64_t)limit));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row) {
        struct metric m = {
            .job_id = job_id,
            .step = col_uint(stmt, 0),
            .at_ms = col_int(stmt, 1),
            .loss = col_real(stmt, 2),
            .grad_norm = col_real(stmt, 3),
            .learning_rate = col_real(stmt, 4),
            .tokens_per_second = col_real(stmt, 5),
            .mfu = col_real(stmt, 6),
            .step_ms = col_real(stmt, 7),
            .tokens = col_uint(stmt, 8),
            .epoch = col_uint(stmt, 9),
            .world_size = (uint32_t)col_int(stmt, 10),
            .memory_bytes = col_uint(stmt, 11),
            .skipped_steps = (uint32_t)col_int(stmt, 12),
        };
        if (!each(&m, data))
            break;
    }
    db_done(stmt);
    return status;
}
