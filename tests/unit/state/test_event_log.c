/* SPDX-License-Identifier: Apache-2.0 */
/* The event log: a chain that shows damage, and a history from which every state follows. SEED=n repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "state/change.h"
#include "state/replay.h"
#include "state/schema.h"
#include "tests/support/seeded.h"

static uint64_t rng;
static uint64_t draw(uint64_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17; /* xorshift64 (Marsaglia, 2003) */
    return rng % n;
}

static struct db *memory_db(void)
{
    struct db *db = NULL;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    return db;
}

static struct event event_of(uint64_t job_id)
{
    return (struct event){.job_id = job_id, .at_ms = 1 + (int64_t)draw(1000), .type = "t", .message = "m", .rank = -1};
}

static int64_t query(struct db *db, const char *sql)
{
    int64_t n = -1;
    assert_int_equal(db_int(db, &n, NULL, sql, ""), TITAN_OK);
    return n;
}

static void run_sql(struct db *db, const char *sql)
{
    struct titan_error err = {0};
    if (db_exec(db, sql, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

/* --- a random history: whatever the state tables allow ------------------------------------------------------------ */

static int random_move(const struct sm *sm, int from)
{
    int allowed[16], n = 0;
    for (int to = 1; to < sm->count; to++)
        if (sm_allowed(sm, from, to))
            allowed[n++] = to;
    return n ? allowed[draw((uint64_t)n)] : from;
}

static int64_t state_of(struct db *db, const char *sql, uint64_t a, uint64_t b)
{
    int64_t state = 0;
    assert_int_equal(db_int(db, &state, NULL, sql, "uu", a, b), TITAN_OK);
    return state;
}

static void add_job(struct db *db, uint64_t id)
{
    struct job job = {.id = id, .name = "n", .user = "u", .submitted_at_ms = 5};
    uint64_t existing = 0;
    struct event e = event_of(id);
    strcpy(job.spec.device, "cpu");
    job.spec.max_workers = 1;
    assert_int_equal(job_submit(db, &job, "text", &existing, NULL), TITAN_OK);
    assert_int_equal(run_add(db, id, 1, &e, NULL), TITAN_OK);
}

static void move_job(struct db *db, uint64_t id)
{
    struct event e = event_of(id);
    int from = (int)state_of(db, "SELECT state FROM jobs WHERE id = ?1 AND ?2 = 0", id, 0);
    struct job_status status = {.restarts = (uint32_t)draw(4)};
    int to = random_move(&job_sm, from);
    if (to == from || draw(4) == 0)
        assert_int_equal(job_update(db, id, &status, draw(2) ? &e : NULL, NULL), TITAN_OK);
    else
        assert_int_equal(
            job_move(db, &(struct job){.id = id, .state = (enum job_state)to, .reason = "why", .status = status}, &e,
                     NULL),
            TITAN_OK);
}

static void move_worker(struct db *db, uint64_t job, uint64_t id)
{
    struct event e = event_of(job);
    int from = (int)state_of(db, "SELECT state FROM workers WHERE id = ?1 AND ?2 = 0", id, 0);
    struct worker w = {.id = id, .job_id = job, .run = 1, .node = "node a", .counted = draw(2)};
    w.state = (enum worker_state)random_move(&worker_sm, from);
    if (from == WORKER_NONE)
        w.counted = false, assert_int_equal(worker_add(db, &w, &e, NULL), TITAN_OK);
    else if ((int)w.state != from)
        assert_int_equal(worker_move(db, &w, &e, NULL), TITAN_OK);
}

static void move_epoch(struct db *db, uint64_t job, uint64_t number)
{
    struct event e = event_of(job);
    int from = (int)state_of(db, "SELECT state FROM epochs WHERE job_id = ? AND number = ?", job, number);
    int to = random_move(&epoch_sm, from);
    struct epoch epoch = {.job_id = job, .number = number, .run = 1};
    if (from == EPOCH_NONE)
        assert_int_equal(epoch_add(db, &epoch, &e, NULL), TITAN_OK);
    else if (to != from)
        assert_int_equal(epoch_move(db, job, number, (enum epoch_state)to, &e, NULL), TITAN_OK);
}

static void move_checkpoint(struct db *db, uint64_t job, uint64_t step)
{
    struct event e = event_of(job);
    int from = (int)state_of(db, "SELECT state FROM checkpoints WHERE job_id = ? AND step = ?", job, step);
    struct checkpoint c = {.job_id = job, .step = step, .epoch = 1000, .path = "/p"};
    if (from == CHECKPOINT_COMMITTED && draw(2))
        assert_int_equal(checkpoint_expire(db, job, step, &e, NULL), TITAN_OK);
    else
        assert_int_equal(checkpoint_add(db, &c, &e, NULL), TITAN_OK);
}

static void move_node(struct db *db, const char *name)
{
    struct event e = {.type = "t", .message = "m", .rank = -1, .node = name};
    struct node n = {.name = name, .device = "cpu", .address = "", .version = ""};
    int64_t from = 0;
    assert_int_equal(db_int(db, &from, NULL, "SELECT state FROM nodes WHERE name = ?", "t", name), TITAN_OK);
    n.state = (enum node_state)(draw(3) ? random_move(&node_sm, (int)from) : from ? from : NODE_READY);
    if (n.state == NODE_NONE) {
        assert_int_equal(node_remove(db, name, &e, NULL), TITAN_OK);
        return;
    }
    assert_int_equal(node_put(db, &n, draw(2) ? &e : NULL, NULL), TITAN_OK);
}

static struct db *random_history(uint64_t moves)
{
    static const char *const nodes[] = {"a", "node b", "host-3.example"};
    struct db *db = memory_db();
    uint64_t jobs = 3;
    for (uint64_t id = 1; id <= jobs; id++)
        add_job(db, id);
    for (uint64_t i = 0; i < moves; i++) {
        uint64_t job = 1 + draw(jobs);
        switch (draw(6)) {
        case 0:
            move_job(db, job);
            break;
        case 1:
            move_worker(db, job, 1000 * job + draw(20));
            break;
        case 2:
            move_epoch(db, job, 1 + draw(20));
            break;
        case 3:
            move_checkpoint(db, job, 1 + draw(10));
            break;
        case 4:
            move_node(db, nodes[draw(ARRAY_SIZE(nodes))]);
            break;
        default: {
            struct event e = event_of(job); /* of no state */
            assert_int_equal(event_add(db, &e, NULL), TITAN_OK);
        }
        }
    }
    return db;
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void print_line(const char *line, void *data)
{
    (void)data;
    print_message("# %s\n", line);
}

static void test_states_follow_from_the_log(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct db *db = random_history(400);
        struct replay_report report;
        struct titan_error err = {0};
        uint64_t checked = 0;
        if (replay_check(db, &report, print_line, NULL, &err) != TITAN_OK ||
            event_verify(db, 0, &checked, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(checked, query(db, "SELECT count(*) FROM events"));
        assert_true(report.changes > 100 && report.rows > 20);
        db_close(db);
    }
}

/* One state after the other altered behind the log's back. */
static void test_what_does_not_follow_is_found(void **state)
{
    (void)state;
    static const char *const changes[] = {
        "UPDATE jobs SET state = state % 9 + 1 WHERE id = 2",
        "UPDATE jobs SET restarts = restarts + 1 WHERE id = 1",
        "UPDATE runs SET state = 3 - state WHERE job_id = 3",
        "UPDATE epochs SET state = state % 4 + 1 WHERE number = (SELECT min(number) FROM epochs)",
        "UPDATE workers SET state = state % 5 + 1 WHERE id = (SELECT max(id) FROM workers)",
        "UPDATE workers SET counted = 1 - counted WHERE id = (SELECT min(id) FROM workers)",
        "UPDATE checkpoints SET state = 3 - state WHERE step = (SELECT max(step) FROM checkpoints)",
        "UPDATE nodes SET state = 3 - state WHERE name = 'node b'",
        "DELETE FROM nodes WHERE name = 'node b'",
        "INSERT INTO nodes (name, state, slots, device, address, version, memory_bytes, incarnation, last_seen_ms) "
        "VALUES ('new', 1, 0, '', '', '', 0, 0, 0)",
        "UPDATE events SET change = replace(change, ' pending ', ' forming ') WHERE id = 1",
        "UPDATE events SET change = 'nonsense' WHERE id = 1",
        "DELETE FROM events WHERE id = 1",
    };
    for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
        struct db *db = random_history(300);
        struct replay_report report;
        struct titan_error err = {0};
        run_sql(db, changes[i]);
        if (replay_check(db, &report, NULL, NULL, &err) != TITAN_ECORRUPT)
            fail_msg("not found: %s", changes[i]);
        assert_true(report.wrong > 0);
        db_close(db);
    }
}

static void check_line(const char *line, void *data)
{
    *(bool *)data = true;
    assert_int_equal(text_unfit(line, strlen(line)), strlen(line));
}

/* What is told of a damaged log is a line, whatever is in the log. */
static void test_what_differs_is_told_in_lines(void **state)
{
    (void)state;
    bool told = false;
    struct db *db = random_history(10);
    run_sql(db, "UPDATE events SET change = 'two' || char(10) || 'lines' || char(27) || '[2J' WHERE id = 1");
    assert_int_equal(replay_check(db, NULL, check_line, &told, NULL), TITAN_ECORRUPT);
    assert_true(told);
    db_close(db);
}

/* Any column of any event. */
static void test_damage_is_named(void **state)
{
    (void)state;
    static const char *const columns[] = {"job_id = job_id + 1",      "at_ms = at_ms + 1",   "type = 'x'",
                                          "message = message || '!'", "epoch = epoch + 1",   "step = step + 1",
                                          "rank = rank + 1",          "node = 'elsewhere'",  "detail = '{\"a\":1}'",
                                          "change = change || ' '",   "chain = zeroblob(32)"};
    for (size_t i = 0; i < ARRAY_SIZE(columns); i++) {
        struct db *db = random_history(200);
        struct titan_error err = {0};
        char sql[128], name[32];
        uint64_t id = 1 + draw((uint64_t)query(db, "SELECT count(*) FROM events"));
        (void)snprintf(sql, sizeof(sql), "UPDATE events SET %s WHERE id = %llu", columns[i], (unsigned long long)id);
        (void)snprintf(name, sizeof(name), "event %llu ", (unsigned long long)id);
        run_sql(db, sql);
        assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_ECORRUPT);
        if (!strstr(err.msg, name))
            fail_msg("'%s' was done to event %llu: %s", columns[i], (unsigned long long)id, err.msg);
        assert_int_equal(event_verify(db, id - 1, NULL, &err), TITAN_ECORRUPT);
        db_close(db);
    }
}

static void test_missing_events(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct db *db = random_history(100);
    run_sql(db, "DELETE FROM events WHERE id IN (20, 21)");
    assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, "events 20 to 21 are missing"));
    db_close(db);

    db = random_history(100);
    int64_t last = query(db, "SELECT max(id) FROM events");
    run_sql(db, "DELETE FROM events WHERE id > 90");
    assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_ECORRUPT);
    char text[64];
    (void)snprintf(text, sizeof(text), "events 91 to %lld are missing", (long long)last);
    assert_non_null(strstr(err.msg, text));
    struct event e = event_of(1); /* ... and still after others have come */
    assert_int_equal(event_add(db, &e, NULL), TITAN_OK);
    assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, text));
    db_close(db);
}

/* The encoding is part of the format: computed apart, by Python's hashlib (see the comment). */
static void test_chain_is_what_is_documented(void **state)
{
    (void)state;
    /* python3 -c 'import hashlib, struct
     * n = lambda v: struct.pack("<q", v); t = lambda s: n(len(s)) + s
     * print(hashlib.sha256(bytes(32) + n(1) + n(7) + n(1000) + n(2) + n(3) + n(-1) + t(b"a.b") + t(b"text") + t(b"n1")
     *                      + t(b"{}") + t(b"")).hexdigest())' */
    static const char expected[] = "1b506f4df716aaab31ed24bf1a28f27aea3fe805da4e34301d9bdc47c16909d1";
    struct db *db = memory_db();
    struct event e = {
        .job_id = 7, .at_ms = 1000, .type = "a.b", .message = "text", .epoch = 2, .step = 3, .rank = -1, .node = "n1"};
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    assert_int_equal(event_add(db, &e, NULL), TITAN_OK);
    assert_int_equal(db_query(db, &stmt, NULL, "SELECT lower(hex(chain)) FROM events", ""), TITAN_OK);
    assert_int_equal(db_step(db, stmt, &row, NULL), TITAN_OK);
    assert_string_equal(col_text(stmt, 0), expected);
    db_done(stmt);
    db_close(db);
}

static bool count_event(const struct event *e, void *data)
{
    (void)e;
    ++*(int *)data;
    return true;
}

static int count_listed(struct db *db, struct event_filter filter, uint64_t after)
{
    int n = 0;
    filter.after = after;
    filter.limit = 100;
    assert_int_equal(event_list(db, &filter, count_event, &n, NULL), TITAN_OK);
    return n;
}

/* The caller is part of the chain; events of calls are listed only when they are asked for. */
static void test_actors(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct titan_error err = {0};
    const char *const actors[] = {"alice", "bob", "alice"};
    struct event plain = {.job_id = 7, .at_ms = 1000, .type = "a.b", .message = "text", .rank = -1};
    assert_int_equal(event_add(db, &plain, NULL), TITAN_OK);
    for (size_t i = 0; i < 3; i++) {
        struct event e = {.job_id = i == 1 ? 7 : 0,
                          .at_ms = 1000 + (int64_t)i,
                          .type = "audit.cancel",
                          .message = "m",
                          .rank = -1,
                          .actor = actors[i]};
        assert_int_equal(event_add(db, &e, NULL), TITAN_OK);
    }
    assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_OK);
    assert_int_equal(count_listed(db, (struct event_filter){0}, 0), 1);
    assert_int_equal(count_listed(db, (struct event_filter){.job_id = 7}, 0), 1);
    assert_int_equal(count_listed(db, (struct event_filter){.audit = true}, 0), 3);
    assert_int_equal(count_listed(db, (struct event_filter){.audit = true, .actor = "alice"}, 0), 2);
    assert_int_equal(count_listed(db, (struct event_filter){.audit = true, .since_ms = 1002}, 0), 1);
    /* Numbers above what a store has: nothing, not everything. */
    assert_int_equal(count_listed(db, (struct event_filter){0}, UINT64_C(1) << 63), 0);
    assert_int_equal(count_listed(db, (struct event_filter){.audit = true}, UINT64_MAX), 0);
    run_sql(db, "UPDATE events SET actor = 'bob' WHERE id = 2");
    assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_ECORRUPT);
    run_sql(db, "UPDATE events SET actor = '' WHERE id = 2");
    assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_ECORRUPT);
    run_sql(db, "UPDATE events SET actor = 'alice' WHERE id = 2");
    assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_OK);
    db_close(db);
}

/* A store of schema 3 can be verified as it is (a backup), and keeps its chain when it becomes one of schema 4. */
static void test_chain_over_schemas(void **state)
{
    (void)state;
    struct schema third = schema_store;
    struct db *db = NULL;
    struct titan_error err = {0};
    third.version = 3;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&third, db, NULL), TITAN_OK);
    run_sql(db, "INSERT INTO events VALUES (1, 7, 1000, 'a.b', 'text', 2, 3, -1, 'n1', '{}', '',"
                " x'1b506f4df716aaab31ed24bf1a28f27aea3fe805da4e34301d9bdc47c16909d1')");
    assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, &err), TITAN_OK);
    struct event e = {.at_ms = 1, .type = "audit.drain", .message = "m", .rank = -1, .actor = "uid:7"};
    assert_int_equal(event_add(db, &e, NULL), TITAN_OK);
    uint64_t checked = 0;
    assert_int_equal(event_verify(db, 0, &checked, &err), TITAN_OK);
    assert_int_equal(checked, 2);
    db_close(db);
}

/* A store from before the chain gets one over what it has, gaps in its ids and all; its rows are taken as they are. */
static void test_older_store(void **state)
{
    (void)state;
    struct schema second = schema_store;
    struct db *db = NULL;
    struct replay_report report;
    struct titan_error err = {0};
    second.version = 2;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&second, db, NULL), TITAN_OK);
    run_sql(db,
            "INSERT INTO jobs (id, name, user, state, device, steps, min_workers, max_workers, worlds, max_restarts,"
            " backoff_ms, backoff_max_ms, keep_latest, submitted_at_ms, restarts) VALUES"
            " (3, 'old', 'u', 3, 'cpu', 7, 1, 2, x'06', 0, 0, 0, 0, 5, 2);"
            "INSERT INTO events VALUES (4, 3, 1, 't', 'm', 0, 0, -1, '', '{}'),"
            " (9, 3, 1, 't', 'm', 0, 0, -1, '', '{}')");
    assert_int_equal(schema_migrate(&schema_store, db, &err), TITAN_OK);
    add_job(db, 4);
    struct event e = event_of(3);
    assert_int_equal(
        job_move(db, &(struct job){.id = 3, .state = JOB_COMPLETED, .status = (struct job_status){.restarts = 2}}, &e,
                 NULL),
        TITAN_OK);
    uint64_t checked = 0;
    if (event_verify(db, 0, &checked, &err) != TITAN_OK ||
        replay_check(db, &report, print_line, NULL, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(checked, 5);
    run_sql(db, "UPDATE events SET message = 'x' WHERE id = 4");
    assert_int_equal(event_verify(db, 0, NULL, &err), TITAN_ECORRUPT);
    db_close(db);
}

static int seed_random(void **state)
{
    (void)state;
    static uint64_t seed;
    if (!seed)
        seed = seeded_seed(0);
    rng = seed * 2 + 1;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_states_follow_from_the_log, seed_random),
        cmocka_unit_test_setup(test_what_does_not_follow_is_found, seed_random),
        cmocka_unit_test_setup(test_what_differs_is_told_in_lines, seed_random),
        cmocka_unit_test_setup(test_damage_is_named, seed_random),
        cmocka_unit_test_setup(test_missing_events, seed_random),
        cmocka_unit_test_setup(test_chain_is_what_is_documented, seed_random),
        cmocka_unit_test(test_actors),
        cmocka_unit_test(test_chain_over_schemas),
        cmocka_unit_test_setup(test_older_store, seed_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
