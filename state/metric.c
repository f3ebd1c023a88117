/* SPDX-License-Identifier: Apache-2.0 */
#include "state/metric.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"

static titan_status put_evaluation(struct db *db, const struct metric *m, struct titan_error *err)
{
    const struct evaluation_report *e = &m->evaluation;
    titan_assert(e->step == m->step);
    return db_run(db, err,
                  "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job_id, step) DO UPDATE SET"
                  " at_ms = excluded.at_ms, epoch = excluded.epoch, loss = excluded.loss, tokens = excluded.tokens,"
                  " bytes = excluded.bytes, ms = excluded.ms WHERE excluded.epoch > evaluations.epoch",
                  "uuiuruur", m->job_id, m->step, m->at_ms, m->epoch, e->loss, e->tokens, e->bytes, e->ms);
}

/* Stores a row unless a row of the step from epoch `kept` on exists. */
static titan_status put_step(struct db *db, const struct metric *m, uint64_t kept, struct titan_error *err)
{
    const struct step_split *s = &m->split;
    titan_assert(m->job_id && m->step);
    return db_run(db, err,
                  "INSERT OR REPLACE INTO metrics SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14,"
                  " ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30 WHERE NOT EXISTS"
                  " (SELECT 1 FROM metrics WHERE job_id = ?1 AND step = ?2 AND epoch >= ?31)",
                  "uuirrrrrruuiuirrrrrrrirrrrrrrru", m->job_id, m->step, m->at_ms, m->loss, m->grad_norm,
                  m->learning_rate, m->tokens_per_second, m->mfu, m->step_ms, m->tokens, m->epoch,
                  (int64_t)m->world_size, m->memory_bytes, (int64_t)m->skipped_steps, m->loss_max, s->data, s->compute,
                  s->communication, s->checkpoint, s->stragglers, s->slowest_busy, (int64_t)s->slowest, m->tflops,
                  m->mfu_causal, m->expert_tokens_min, m->expert_tokens_max, m->expert_tokens_mean, m->dropped,
                  m->further_rounds, m->room_needed, kept);
}

/* An earlier epoch's later steps are lost: their state left the run's history. */
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

titan_status metric_list(struct db *db, uint64_t job_id, uint64_t after, int limit,
                         bool (*each)(const struct metric *m, void *data), void *data, struct titan_error *err)
{
    titan_assert(each);
    sqlite3_stmt *stmt = NULL;
    if (after > INT64_MAX)
        after = INT64_MAX; /* SQLite would read it as negative, and return all rows */
    TRY(db_query(
        db, &stmt, err,
        "SELECT m.step, m.at_ms, m.loss, grad_norm, learning_rate, tokens_per_second, mfu, step_ms, m.tokens,"
        " m.epoch, world_size, memory_bytes, skipped_steps, e.step, e.loss, e.tokens, e.bytes, e.ms, loss_max,"
        " data_ms, compute_ms, communication_ms, checkpoint_ms, straggler_ms, slowest_busy_ms, slowest_rank,"
        " ifnull(tflops, 0), ifnull(mfu_causal, 0), ifnull(expert_tokens_min, 0), ifnull(expert_tokens_max, 0),"
        " ifnull(expert_tokens_mean, 0), ifnull(expert_tokens_dropped, 0),"
        " ifnull(expert_further_rounds, 0), ifnull(expert_room_needed, 0)"
        " FROM metrics m LEFT JOIN evaluations e ON e.job_id = m.job_id AND e.step = m.step"
        " WHERE m.job_id = ? AND m.step > ? ORDER BY m.step LIMIT ?",
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
            .evaluation = {.step = col_uint(stmt, 13), /* NULL: 0 */
                           .loss = col_real(stmt, 14),
                           .tokens = col_uint(stmt, 15),
                           .bytes = col_uint(stmt, 16),
                           .ms = col_real(stmt, 17)},
            .loss_max = col_real(stmt, 18),
            .split = {.data = col_real(stmt, 19),
                      .compute = col_real(stmt, 20),
                      .communication = col_real(stmt, 21),
                      .checkpoint = col_real(stmt, 22),
                      .stragglers = col_real(stmt, 23),
                      .slowest_busy = col_real(stmt, 24),
                      .slowest = (int)col_int(stmt, 25)},
            .tflops = col_real(stmt, 26),
            .mfu_causal = col_real(stmt, 27),
            .expert_tokens_min = col_real(stmt, 28),
            .expert_tokens_max = col_real(stmt, 29),
            .expert_tokens_mean = col_real(stmt, 30),
            .dropped = col_real(stmt, 31),
            .further_rounds = col_real(stmt, 32),
            .room_needed = col_real(stmt, 33),
        };
        if (!each(&m, data))
            break;
    }
    db_done(stmt);
    return status;
}
