/* SPDX-License-Identifier: Apache-2.0 */
#include "state/metric.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"

/* clang-format off */
/* Columns of a step. The second list came with later versions. Its columns are NULL in older rows, and read as 0. */
#define METRIC(X) \
    X(at_ms, at_ms) X(loss, loss) X(grad_norm, grad_norm) X(learning_rate, learning_rate) \
    X(tokens_per_second, tokens_per_second) X(mfu, mfu) X(step_ms, step_ms) X(tokens, tokens) X(epoch, epoch) \
    X(world_size, world_size) X(memory_bytes, memory_bytes) X(skipped_steps, skipped_steps) \
    X(loss_max, loss_max) X(data_ms, split.data) X(compute_ms, split.compute) \
    X(communication_ms, split.communication) X(checkpoint_ms, split.checkpoint) \
    X(straggler_ms, split.stragglers) X(slowest_busy_ms, split.slowest_busy) X(slowest_rank, split.slowest)
#define METRIC_ADDED(X) \
    X(tflops, tflops) X(mfu_causal, mfu_causal) X(expert_tokens_min, expert_tokens_min) \
    X(expert_tokens_max, expert_tokens_max) X(expert_tokens_mean, expert_tokens_mean) \
    X(expert_tokens_dropped, dropped) X(expert_further_rounds, further_rounds) \
    X(expert_room_needed, room_needed)
#define EVALUATION(X) \
    X(loss, evaluation.loss) X(tokens, evaluation.tokens) X(bytes, evaluation.bytes) X(ms, evaluation.ms)
/* clang-format on */

#define FIELD(column, field) DB_FIELD(struct metric, field),
#define KEY FIELD(job_id, job_id) FIELD(step, step)
DB_ROW(step_row, struct metric, KEY METRIC(FIELD) METRIC_ADDED(FIELD));
DB_ROW(evaluation_row, struct metric, KEY FIELD(at_ms, at_ms) FIELD(epoch, epoch) EVALUATION(FIELD));
DB_ROW(metric_row, struct metric, KEY METRIC(FIELD) METRIC_ADDED(FIELD) FIELD(step, evaluation.step) EVALUATION(FIELD));
#define STEP_COLUMNS "job_id, step" METRIC(DB_NAME) METRIC_ADDED(DB_NAME)
#define STEP_MARKS "?1, ?2" METRIC(DB_MARK) METRIC_ADDED(DB_MARK)
#define EVALUATION_COLUMNS "job_id, step, at_ms, epoch" EVALUATION(DB_NAME)
#define EVALUATION_MARKS "?, ?, ?, ?" EVALUATION(DB_MARK)

static titan_status put_evaluation(struct db *db, const struct metric *m, struct titan_error *err)
{
    titan_assert(m->evaluation.step == m->step);
    return db_put(db, err,
                  "INSERT INTO evaluations (" EVALUATION_COLUMNS ") VALUES (" EVALUATION_MARKS ")"
                  " ON CONFLICT (job_id, step) DO UPDATE SET at_ms = excluded.at_ms" EVALUATION(
                      DB_EXCLUDED) ", epoch = excluded.epoch WHERE excluded.epoch > evaluations.epoch",
                  &evaluation_row, m, "");
}

/* Stores a row unless the step has a row of epoch `kept` or later. */
static titan_status put_step(struct db *db, const struct metric *m, uint64_t kept, struct titan_error *err)
{
    titan_assert(m->job_id && m->step);
    return db_put(db, err,
                  "INSERT OR REPLACE INTO metrics (" STEP_COLUMNS ") SELECT " STEP_MARKS " WHERE NOT EXISTS"
                  " (SELECT 1 FROM metrics WHERE job_id = ?1 AND step = ?2 AND epoch >= ?)",
                  &step_row, m, "u", kept);
}

/* Drops later steps of earlier epochs. They are lost, because their state left the run's history. */
static titan_status drop_lost(struct db *db, const struct metric *m, struct titan_error *err)
{
    TRY(db_run(db, err, "DELETE FROM metrics WHERE job_id = ? AND step > ? AND epoch < ?", "uuu", m->job_id, m->step,
               m->epoch));
    return db_run(db, err, "DELETE FROM evaluations WHERE job_id = ? AND step > ? AND epoch < ?", "uuu", m->job_id,
                  m->step, m->epoch);
}

titan_status metric_put(struct db *db, const struct metric *m, struct titan_error *err)
{
    if (m->evaluation.step)
        return put_evaluation(db, m, err);
    TRY(put_step(db, m, INT64_MAX, err));
    return drop_lost(db, m, err);
}

/* Parses a line as an evaluation or a step. */
static bool parse_line(const char *line, size_t len, struct metric *m, struct metric *evaluation)
{
    struct json *j = NULL;
    *evaluation = (struct metric){.job_id = m->job_id};
    if (json_parse(line, len, &j, NULL) != TITAN_OK || !j)
        return false;
    const int64_t step = json_int(j, "step", 0), epoch = json_int(j, "epoch", 0), tokens = json_int(j, "tokens", 0),
                  memory = json_int(j, "memory_bytes", 0);
    *m = (struct metric){.job_id = m->job_id,
                         .step = (uint64_t)step,
                         .at_ms = json_int(j, "time_ms", 0),
                         .loss = json_real(j, "loss", NAN),
                         .loss_max = json_real(j, "loss_max", NAN),
                         .grad_norm = json_real(j, "grad_norm", NAN),
                         .learning_rate = json_real(j, "learning_rate", NAN),
                         .tokens_per_second = json_real(j, "tokens_per_second", NAN),
                         .tflops = json_real(j, "tflops", 0),
                         .mfu = json_real(j, "mfu", NAN),
                         .mfu_causal = json_real(j, "mfu_causal", 0),
                         .step_ms = json_real(j, "step_ms", NAN),
                         .tokens = (uint64_t)tokens,
                         .epoch = (uint64_t)epoch,
                         .world_size = (uint32_t)json_int(j, "world_size", 0),
                         .memory_bytes = (uint64_t)memory,
                         .split = step_split_parse(j),
                         .expert_tokens_min = json_real(j, "expert_tokens_min", 0),
                         .expert_tokens_max = json_real(j, "expert_tokens_max", 0),
                         .expert_tokens_mean = json_real(j, "expert_tokens_mean", 0),
                         .dropped = json_real(j, "expert_tokens_dropped", 0),
                         .further_rounds = json_real(j, "expert_further_rounds", 0),
                         .room_needed = json_real(j, "expert_room_needed", 0),
                         .skipped_steps = (uint32_t)json_int(j, "skipped_steps", 0)};
    const int64_t evaluated = json_int(j, "validation_step", 0), counted = json_int(j, "validation_tokens", 0),
                  bytes = json_int(j, "validation_bytes", 0);
    if (evaluated > 0 && epoch > 0 && counted > 0 && bytes >= 0) {
        evaluation->step = evaluation->evaluation.step = (uint64_t)evaluated;
        evaluation->at_ms = m->at_ms;
        evaluation->epoch = (uint64_t)epoch;
        evaluation->evaluation.tokens = (uint64_t)counted;
        evaluation->evaluation.bytes = (uint64_t)bytes;
        evaluation->evaluation.loss = json_real(j, "validation_loss", NAN);
        evaluation->evaluation.ms = json_real(j, "validation_ms", NAN);
    }
    const bool is_step = json_get(j, "loss");
    json_free(j);
    return is_step && step > 0 && epoch > 0 && tokens >= 0 && memory >= 0;
}

bool metric_skip(struct buf *text, uint64_t after)
{
    static const char start[] = "{\"step\":";
    const size_t n = sizeof(start) - 1;
    size_t at = 0;
    while (text->len - at > n && memcmp(text->data + at, start, n) == 0 &&
           strtoull(text->data + at + n, NULL, 10) <= after) {
        const char *newline = memchr(text->data + at, '\n', text->len - at);
        if (!newline)
            break;
        at = (size_t)(newline - text->data) + 1;
    }
    buf_consume(text, at);
    return at > 0;
}

titan_status metric_backfill(struct db *db, uint64_t job_id, const struct buf *text, struct metric *ret_last,
                             struct titan_error *err)
{
    struct metric m = {.job_id = job_id}, evaluation;
    uint64_t epoch = 0;
    *ret_last = (struct metric){.job_id = job_id};
    for (const char *at = text->data, *end = at + text->len, *newline; at && at < end; at = newline + 1) {
        newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) /* the line is still being written */
            break;
        const bool is_step = parse_line(at, (size_t)(newline - at), &m, &evaluation);
        if (evaluation.step)
            TRY(put_evaluation(db, &evaluation, err));
        if (!is_step)
            continue;
        TRY(put_step(db, &m, m.epoch, err));
        if (m.epoch != epoch) /* once per epoch: it scans all later rows */
            TRY(drop_lost(db, &m, err));
        epoch = m.epoch;
        *ret_last = m;
    }
    return TITAN_OK;
}

titan_status metric_reached(struct db *db, uint64_t job_id, uint64_t step, uint64_t epoch, uint64_t *ret,
                            struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row;
    *ret = 0;
    TRY(db_query(db, &stmt, err,
                 "SELECT step FROM metrics WHERE job_id = ? AND step <= ? AND epoch <= ? ORDER BY step DESC LIMIT 1",
                 "uuu", job_id, step, epoch));
    const titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && row)
        *ret = col_uint(stmt, 0);
    db_done(stmt);
    return status;
}

#define OF_STEP(column, field) ", m." #column
#define OF_STEP_OR_0(column, field) ", ifnull(m." #column ", 0)"
#define OF_EVALUATION(column, field) ", e." #column

titan_status metric_list(struct db *db, const struct metric_filter *f, bool (*each)(const struct metric *m, void *data),
                         void *data, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct metric m;
    titan_status status;
    TRY(db_query(db, &stmt, err,
                 "SELECT m.job_id, m.step" METRIC(OF_STEP) METRIC_ADDED(OF_STEP_OR_0) ", e.step" EVALUATION(
                     OF_EVALUATION) " FROM metrics m LEFT JOIN evaluations e ON e.job_id = m.job_id AND e.step = m.step"
                                    " WHERE m.job_id = ? AND m.step > ? ORDER BY m.step LIMIT ?",
                 /* SQLite would read a larger number as negative */
                 "uui", f->job_id, MIN(f->after, (uint64_t)INT64_MAX), (int64_t)f->limit));
    while (db_next(db, stmt, &metric_row, &m, &status, err) && each(&m, data))
        ;
    db_done(stmt);
    return status;
}
