/* SPDX-License-Identifier: Apache-2.0 */
#include "state/metric.h"

#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"

titan_status metric_put(struct db *db, const struct metric *m, struct titan_error *err)
{
    return db_run(db, err, "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                  "uuirrrrrruuiui", m->job_id, m->step, m->at_ms, m->loss, m->grad_norm, m->learning_rate,
                  m->tokens_per_second, m->mfu, m->step_ms, m->tokens, m->epoch, (int64_t)m->world_size,
                  m->memory_bytes, (int64_t)m->skipped_steps);
}

static bool parse_line(const char *line, size_t len, struct metric *m)
{
    struct json *j = NULL;
    if (json_parse(line, len, &j, NULL) != TITAN_OK || !j)
        return false;
    const int64_t step = json_int(j, "step", 0), epoch = json_int(j, "epoch", 0), tokens = json_int(j, "tokens", 0),
                  memory = json_int(j, "memory_bytes", 0);
    *m = (struct metric){.job_id = m->job_id,
                         .step = (uint64_t)step,
                         .at_ms = json_int(j, "time_ms", 0),
                         .loss = json_real(j, "loss", NAN),
                         .grad_norm = json_real(j, "grad_norm", NAN),
                         .learning_rate = json_real(j, "learning_rate", NAN),
                         .tokens_per_second = json_real(j, "tokens_per_second", NAN),
                         .mfu = json_real(j, "mfu", NAN),
                         .step_ms = json_real(j, "step_ms", NAN),
                         .tokens = (uint64_t)tokens,
                         .epoch = (uint64_t)epoch,
                         .world_size = (uint32_t)json_int(j, "world_size", 0),
                         .memory_bytes = (uint64_t)memory,
                         .skipped_steps = (uint32_t)json_int(j, "skipped_steps", 0)};
    json_free(j);
    return step > 0 && epoch > 0 && tokens >= 0 && memory >= 0;
}

titan_status metric_backfill(struct db *db, uint64_t job_id, const struct buf *text, struct titan_error *err)
{
    struct metric m = {.job_id = job_id};
    for (const char *at = text->data, *end = at + text->len, *newline; at && at < end; at = newline + 1) {
        newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) /* it is being written */
            break;
        if (!parse_line(at, (size_t)(newline - at), &m))
            continue;
        TRY(db_run(db, err,
                   "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job_id, step)"
                   " DO UPDATE SET at_ms = excluded.at_ms, loss = excluded.loss, grad_norm = excluded.grad_norm,"
                   " learning_rate = excluded.learning_rate, tokens_per_second = excluded.tokens_per_second,"
                   " mfu = excluded.mfu, step_ms = excluded.step_ms, tokens = excluded.tokens, epoch = excluded.epoch,"
                   " world_size = excluded.world_size, memory_bytes = excluded.memory_bytes,"
                   " skipped_steps = excluded.skipped_steps WHERE excluded.epoch > metrics.epoch",
                   "uuirrrrrruuiui", m.job_id, m.step, m.at_ms, m.loss, m.grad_norm, m.learning_rate,
                   m.tokens_per_second, m.mfu, m.step_ms, m.tokens, m.epoch, (int64_t)m.world_size, m.memory_bytes,
                   (int64_t)m.skipped_steps));
    }
    return TITAN_OK;
}

titan_status metric_list(struct db *db, uint64_t job_id, uint64_t after, int limit,
                         bool (*each)(const struct metric *m, void *data), void *data, struct titan_error *err)
{
    titan_assert(each);
    sqlite3_stmt *stmt = NULL;
    if (after > INT64_MAX)
        after = INT64_MAX; /* SQLite would take it for a negative one, and give them all */
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
