/* SPDX-License-Identifier: Apache-2.0 */
/* The store's event log and the states beside it, as a damaged or hand-edited store may have them: the log's chain is
 * followed, every state is made once more from the log, and both end with a verdict. */
#include "tests/fuzz/common.h"

#include "base/sm.h"
#include "base/utf8.h"
#include "state/checkpoint.h"
#include "state/epoch.h"
#include "state/job.h"
#include "state/node.h"
#include "state/replay.h"
#include "state/run.h"
#include "state/schema.h"
#include "state/worker.h"

static struct db *db;
static const struct sm *const machines[] = {&job_sm, &run_sm, &epoch_sm, &worker_sm, &checkpoint_sm, &node_sm};
static const char *const keys[] = {"1", "2", "1/1", "1/2", "n1", ""};

static void begin(void)
{
    struct titan_error err = {0};
    if (!db) {
        fuzz_assert(db_open(":memory:", DB_WRITER, false, &db, &err) == TITAN_OK);
        fuzz_assert(schema_migrate(&schema_store, db, &err) == TITAN_OK);
        fuzz_assert(db_exec(db, "PRAGMA foreign_keys=OFF; PRAGMA ignore_check_constraints=ON", &err) == TITAN_OK);
    }
    fuzz_assert(db_exec(db, "SAVEPOINT input", &err) == TITAN_OK);
}

/* A row that says where something stands, whatever stands there already. */
static void put_row(struct fuzz_input *in)
{
    const int64_t id = (int64_t)(fuzz_take(in, 1) % 4);
    const int64_t state = (int64_t)fuzz_take(in, 1) - 2, count = (int8_t)fuzz_take(in, 1);
    struct titan_error err = {0};
    char sql[400];
    /* Three numbers go between the parts. */
    static const char *const rows[][4] = {
        {"jobs (id, name, user, state, device, steps, min_workers, max_workers, worlds, max_restarts, backoff_ms,"
         " backoff_max_ms, keep_latest, submitted_at_ms, restarts) VALUES (",
         ", '', '', ", ", '', 1, 1, 1, x'', 0, 0, 0, 0, 0, ", ")"},
        {"runs (job_id, number, state, started_at_ms) VALUES (1, ", ", ", ", ", ")"},
        {"epochs (job_id, number, run, state, world_size, source, source_epoch, resume_step, checkpoint, comm_id,"
         " created_at_ms) VALUES (1, ",
         ", 1, ", ", ", ", 0, 0, 0, '', x'', 0)"},
        {"workers (job_id, run, node, started_at_ms, id, state, counted) VALUES (1, 1, '', 0, ", ", ", ", ", ")"},
        {"checkpoints VALUES (1, ", ", 1, ", ", '', ", ", 1, 0)"},
        {"nodes (device, address, version, memory_bytes, incarnation, last_seen_ms, name, state, slots)"
         " VALUES ('', '', '', 0, 0, 0, 'n",
         "', ", ", ", ")"},
    };
    const char *const *row = rows[fuzz_take(in, 1) % ARRAY_SIZE(rows)];
    (void)snprintf(sql, sizeof(sql), "INSERT OR REPLACE INTO %s%lld%s%lld%s%lld%s", row[0], (long long)id, row[1],
                   (long long)state, row[2], (long long)count, row[3]);
    fuzz_assert(db_exec(db, sql, &err) == TITAN_OK);
}

/* "job running recovering 2 17", or any words. What was done to the log may have left no number for it. */
static void put_event(struct fuzz_input *in, uint64_t how)
{
    struct titan_error err = {0};
    struct event e = {
        .job_id = 1, .at_ms = 1, .type = how & 4 ? EVENT_RESTORED : "job.state", .message = "", .rank = -1};
    const struct sm *sm = machines[fuzz_take(in, 1) % ARRAY_SIZE(machines)];
    if (how & 8) {
        struct fuzz_input piece = fuzz_piece(in);
        _cleanup_free_ char *change = fuzz_text(piece.data, piece.len);
        (void)!db_run(db, &err,
                      "INSERT OR IGNORE INTO events (job_id, at_ms, type, message, epoch, step, rank, node, detail,"
                      " change, chain) VALUES (1, 1, ?, '', 0, 0, -1, '', '{}', ?, x'00')",
                      "tt", e.type, change);
        return;
    }
    const int from = (int)(fuzz_take(in, 1) % (uint64_t)sm->count), to = (int)(fuzz_take(in, 1) % (uint64_t)sm->count);
    const char *key = keys[fuzz_take(in, 1) % ARRAY_SIZE(keys)];
    const struct event_move move = {
        .what = sm, .name = key, .from = from, .to = to, .count = (int64_t)fuzz_take(in, 1)};
    (void)!event_add_move(db, &e, &move, &err);
}

static void change(struct fuzz_input *in)
{
    static const char *const sql[][2] = {
        {"DELETE FROM events WHERE id = ", ""},
        {"UPDATE OR IGNORE events SET id = id + 3 WHERE id = ", ""},
        {"UPDATE events SET chain = x'' WHERE id = ", ""},
        {"UPDATE events SET rank = rank + 1099511627776 WHERE id = ", ""},
        {"INSERT OR REPLACE INTO meta VALUES ('chain_base', ", ")"},
        {"UPDATE sqlite_sequence SET seq = -3 + ", " WHERE name = 'events'"},
        {"UPDATE sqlite_sequence SET seq = 9223372036854775807 - ", " WHERE name = 'events'"},
        {"DELETE FROM sqlite_sequence WHERE ", ""},
    };
    char text[160];
    struct titan_error err = {0};
    const char *const *which = sql[fuzz_take(in, 1) % ARRAY_SIZE(sql)];
    (void)snprintf(text, sizeof(text), "%s%lld%s", which[0], (long long)fuzz_take(in, 1) % 16, which[1]);
    fuzz_assert(db_exec(db, text, &err) == TITAN_OK);
}

static void say(const char *line, void *data)
{
    uint64_t *reported = data;
    ++*reported;
    fuzz_assert(*line && text_unfit(line, strlen(line)) == strlen(line));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct titan_error err = {0};
    struct replay_report report = {0};
    uint64_t reported = 0, checked = 0;
    begin();
    for (int i = 0; in.len > 0 && i < 64; i++) {
        const uint64_t how = fuzz_take(&in, 1);
        if (how % 4 == 0)
            put_row(&in);
        else if (how % 4 == 1)
            change(&in);
        else
            put_event(&in, how);
    }
    titan_status status = event_verify(db, 0, &checked, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    err = (struct titan_error){0};
    status = replay_check(db, &report, say, &reported, &err);
    if (status != TITAN_OK)
        fuzz_error(status, &err);
    fuzz_assert((status == TITAN_OK) == (report.wrong == 0) && reported == MIN(report.wrong, (uint64_t)100));
    if (!sqlite3_get_autocommit(db_handle(db))) {
        fuzz_assert(db_exec(db, "ROLLBACK TO input; RELEASE input", &err) == TITAN_OK);
    } else { /* SQLite has rolled all back, as it does when there is no number left */
        db_close(db);
        db = NULL;
    }
    return 0;
}
