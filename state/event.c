#include "state/event.h"

titan_status event_add(struct db *db, const struct event *e, struct titan_error *err)
{
    return db_run(db, err,
                  "INSERT INTO events (job_id, at_ms, type, message, epoch, step, rank, node, detail)"
                  " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                  "uittuuitt", e->job_id, e->at_ms, e->type, e->message ? e->message : "", e->epoch, e->step,
                  (int64_t)e->rank, e->node ? e->node : "", e->detail ? e->detail : "{}");
}

#define COLUMNS "id, job_id, at_ms, type, message, epoch, step, rank, node, detail"

titan_status event_list(struct db *db, uint64_t job_id, uint64_t after, int limit,
                        bool (*each)(const struct event *e, void *data), void *data, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    if (job_id)
        TRY(db_query(db, &stmt, err, "SELECT " COLUMNS " FROM events WHERE job_id = ? AND id > ? ORDER BY id LIMIT ?",
                     "uui", job_id, after, (int64_t)limit));
    else
        TRY(db_query(db, &stmt, err, "SELECT " COLUMNS " FROM events WHERE id > ? ORDER BY id LIMIT ?", "ui", after,
                     (int64_t)limit));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row) {
        struct event e = {
            .id = col_uint(stmt, 0),
            .job_id = col_uint(stmt, 1),
            .at_ms = col_int(stmt, 2),
            .type = col_text(stmt, 3),
            .message = col_text(stmt, 4),
            .epoch = col_uint(stmt, 5),
            .step = col_uint(stmt, 6),
            .rank = (int32_t)col_int(stmt, 7),
            .node = col_text(stmt, 8),
            .detail = col_text(stmt, 9),
        };
        if (!each(&e, data))
            break;
    }
    db_done(stmt);
    return status;
}
