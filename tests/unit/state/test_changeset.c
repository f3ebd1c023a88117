/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of one store as records, applied to another: equal content, whatever was written; wrong records change
 * nothing. Images of a store. Group commit with a log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "state/change.h"
#include "state/changeset.h"
#include "state/enrolment.h"
#include "state/group.h"
#include "state/home.h"
#include "state/job_removal.h"
#include "state/schema.h"
#include "state/store.h"
#include "state/token.h"

#define RECORDS 512

struct log {
    struct buf records[RECORDS];
    uint64_t n;
    int fail_in; /* that append fails, 1 = the next; 0 = none */
};

static titan_status keep(void *data, uint64_t number, const void *bytes, size_t len, struct titan_error *err)
{
    struct log *l = data;
    assert_int_equal(number, l->n + 1); /* no gaps */
    assert_int_equal(changeset_record_number(bytes, len), number);
    assert_true(l->n < RECORDS);
    if (l->fail_in && --l->fail_in == 0)
        return titan_fail(err, TITAN_EUNREACHABLE, "on purpose");
    assert_int_equal(buf_append(&l->records[l->n++], bytes, len), TITAN_OK);
    return TITAN_OK;
}

static void log_free(struct log *l)
{
    for (size_t i = 0; i < l->n; i++)
        buf_free(&l->records[i]);
    l->n = 0;
}

static struct db *fresh(void)
{
    struct db *db = NULL;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    return db;
}

/* All rows of all tables but the machine's, SQLite's own included. */
static void dump(struct db *db, struct buf *ret)
{
    sqlite3_stmt *tables = NULL, *rows = NULL;
    buf_clear(ret);
    assert_int_equal(sqlite3_prepare_v2(db_handle(db),
                                        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'machine'"
                                        " AND rootpage > 0 ORDER BY name",
                                        -1, &tables, NULL),
                     SQLITE_OK);
    while (sqlite3_step(tables) == SQLITE_ROW) {
        char sql[128];
        const char *table = (const char *)sqlite3_column_text(tables, 0);
        (void)snprintf(sql, sizeof(sql), "SELECT * FROM \"%s\" ORDER BY 1, 2", table);
        assert_int_equal(sqlite3_prepare_v2(db_handle(db), sql, -1, &rows, NULL), SQLITE_OK);
        while (sqlite3_step(rows) == SQLITE_ROW) {
            buf_puts(ret, table);
            for (int i = 0; i < sqlite3_column_count(rows); i++) {
                buf_printf(ret, " %d:", sqlite3_column_type(rows, i));
                const void *value = sqlite3_column_blob(rows, i);
                buf_put(ret, value, (size_t)sqlite3_column_bytes(rows, i));
            }
            buf_puts(ret, "\n");
        }
        sqlite3_finalize(rows);
    }
    sqlite3_finalize(tables);
    assert_false(buf_failed(ret));
}

static void assert_equal_stores(struct db *a, struct db *b)
{
    _cleanup_(buf_free) struct buf x = BUF_INIT, y = BUF_INIT;
    dump(a, &x);
    dump(b, &y);
    assert_true(x.len > 0);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
}

/* --- random writes ------------------------------------------------------------------------------------------------ */

struct random_write {
    uint64_t seed;
    int changes; /* how many, in one write */
};

static uint64_t below(uint64_t *seed, uint64_t n)
{
    return hash_draw(seed) % n;
}

static struct job job_of(uint64_t id, uint64_t *seed)
{
    struct job job = {.id = id, .name = "n", .user = "u", .submitted_at_ms = 5, .uid = 7, .gid = 8};
    strcpy(job.spec.device, "cpu");
    job.spec.steps = 10;
    job.spec.max_workers = 4;
    world_set_add(&job.spec.worlds, 1);
    if (below(seed, 2)) {
        job.key = below(seed, 2) ? "k" : "l";
        job.key_owner = "user:u";
    }
    if (below(seed, 3) == 0) {
        job.folder = "/folder";
        job.holds_folder = true;
    }
    return job;
}

/* One change of the real modules, legal or not. */
static titan_status change_one(struct db *db, uint64_t *seed, struct titan_error *err)
{
    static const char *const nodes[] = {"a", "b", "c"};
    static char recipe[20000];
    const uint64_t id = 1 + below(seed, 12), number = 1 + below(seed, 3), worker = 1 + below(seed, 20);
    const char *node = nodes[below(seed, 3)];
    uint64_t existing = 0;
    struct event e = {.job_id = id, .at_ms = 6, .type = "job.state", .message = "m", .rank = -1, .node = node};
    struct change c = {.event = e, .has_event = true};
    struct job job = job_of(id, seed);
    switch (below(seed, 18)) {
    case 0:
    case 1:
    case 2:
        memset(recipe, 'r', sizeof(recipe) - 1);
        recipe[below(seed, sizeof(recipe))] = '\0';
        TRY(job_submit(db, &job, recipe, &existing, err));
        memset(recipe, 'r', sizeof(recipe) - 1);
        return TITAN_OK;
    case 3:
    case 4:
        c.kind = CHANGE_JOB_MOVE;
        c.job = (struct job){.id = id,
                             .state = (enum job_state)(2 + below(seed, 8)),
                             .reason = "r",
                             .status = {.step = below(seed, 9), .loss = below(seed, 2) ? NAN : 1.5, .epoch = number}};
        break;
    case 5:
        c.kind = CHANGE_RUN_ADD;
        c.run = (struct run){.job_id = id, .number = (uint32_t)number, .reason = ""};
        break;
    case 6:
        c.kind = CHANGE_WORKER_ADD;
        c.worker = (struct worker){.id = worker, .job_id = id, .run = (uint32_t)number, .node = node, .address = ""};
        break;
    case 7:
        c.kind = CHANGE_WORKER_MOVE;
        c.worker = (struct worker){.id = worker,
                                   .job_id = id,
                                   .run = 1,
                                   .node = node,
                                   .address = "x",
                                   .state = (enum worker_state)(2 + below(seed, 4)),
                                   .reason = "r"};
        break;
    case 8: {
        const uint64_t workers[] = {worker, worker + 1};
        c.kind = CHANGE_EPOCH_ADD;
        c.epoch = (struct epoch){.job_id = id,
                                 .number = number,
                                 .run = 1,
                                 .checkpoint = "",
                                 .leader = "",
                                 .world_size = 2,
                                 .workers = workers,
                                 .keyed = true};
        return change_apply(db, &c, err);
    }
    case 9:
        c.kind = CHANGE_EPOCH_MOVE;
        c.epoch = (struct epoch){.job_id = id, .number = number, .state = (enum epoch_state)(2 + below(seed, 3))};
        break;
    case 10:
        c.kind = CHANGE_CHECKPOINT_COMMIT;
        c.checkpoint =
            (struct checkpoint){.job_id = id, .step = below(seed, 9), .epoch = 1, .path = "/c", .world_size = 2};
        break;
    case 11:
        c.kind = CHANGE_CHECKPOINT_EXPIRE;
        c.checkpoint = (struct checkpoint){.job_id = id, .step = below(seed, 9), .path = ""};
        break;
    case 12:
        c.kind = CHANGE_NODE_PUT;
        c.node = (struct node){.name = node,
                               .state = below(seed, 2) ? NODE_READY : NODE_LOST,
                               .device = "cpu",
                               .address = "x",
                               .version = "1",
                               .last_seen_ms = (int64_t)below(seed, 1000)};
        break;
    case 13:
        c.kind = CHANGE_NODE_POLICY;
        c.policy = (struct node_policy){
            .name = node, .reason = "r", .quarantine_reason = "", .quarantines = (uint32_t)below(seed, 4)};
        break;
    case 14:
        c.kind = CHANGE_LOSS_ADD;
        c.loss = (struct loss){.job_id = id, .cause = (enum loss_cause)(1 + below(seed, 6)), .node = node};
        break;
    case 15: {
        struct token token;
        char text[TOKEN_TEXT];
        TRY(token_make(&token, text, err));
        strcpy(token.name, "t");
        strcpy(token.created_by, "me");
        token.role = TOKEN_USER;
        return token_add(db, &token, &e, err);
    }
    case 16:
        return job_remove(db, id, "/jobs", &e, err);
    default:
        c.kind = below(seed, 3) ? CHANGE_EVENT : CHANGE_NODE_REMOVE;
        c.node = (struct node){.name = node};
        break;
    }
    return change_apply(db, &c, err);
}

static titan_status write_random(struct db *db, void *arg, struct titan_error *err)
{
    const struct random_write *w = arg;
    uint64_t seed = w->seed;
    for (int i = 0; i < w->changes; i++)
        TRY(change_one(db, &seed, err));
    return TITAN_OK;
}

/* Groups of random writes; returns how many writes had an error of their own. */
static uint64_t write_groups(struct db *db, struct group_log *log, uint64_t seed, int groups)
{
    struct group_stats stats = {0};
    for (int g = 0; g < groups; g++) {
        struct random_write args[8];
        struct group_write writes[8];
        const size_t n = 1 + below(&seed, 8);
        memset(writes, 0, sizeof(writes));
        for (size_t i = 0; i < n; i++) {
            args[i] = (struct random_write){hash_draw(&seed), 1 + (int)below(&seed, 3)};
            writes[i] = (struct group_write){i + 1 < n ? &writes[i + 1] : NULL, write_random, &args[i], {0}};
        }
        group_commit(db, log, writes, &stats);
    }
    return stats.failures;
}

static void test_random_writes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct log l = {.n = 0};
        struct group_log log = {.append = keep, .data = &l};
        struct db *a = fresh(), *b = fresh();
        uint64_t number = 0;
        const uint64_t failures = write_groups(a, &log, seed, 60);
        assert_true(failures > 0 && l.n > 20); /* undone writes, and many that were not */
        assert_int_equal(log.lost.status, TITAN_OK);
        for (uint64_t i = 0; i < l.n; i++) {
            struct titan_error err = {0};
            if (changeset_apply(b, l.records[i].data, l.records[i].len, &err) != TITAN_OK)
                fail_msg("seed %llu record %llu: %s", (unsigned long long)seed, (unsigned long long)i + 1, err.msg);
            /* Again: it changes nothing. */
            assert_int_equal(changeset_apply(b, l.records[i].data, l.records[i].len, &err), TITAN_OK);
        }
        assert_int_equal(changeset_number(b, &number, NULL), TITAN_OK);
        assert_int_equal(number, l.n);
        assert_equal_stores(a, b);
        assert_int_equal(event_verify(b, 0, NULL, NULL), TITAN_OK);
        log_free(&l);
        db_close(a);
        db_close(b);
    }
}

static titan_status write_event(struct db *db, void *arg, struct titan_error *err)
{
    (void)arg;
    return event_add(db, &(struct event){.at_ms = 1, .type = "t", .message = "m", .rank = -1}, err);
}

/* With a log or without: the same rows, except the number. */
static void test_log_changes_no_row(void **state)
{
    (void)state;
    struct log l = {.n = 0};
    struct group_log log = {.append = keep, .data = &l};
    struct db *a = fresh(), *b = fresh();
    int64_t n = 0;
    struct group_stats stats = {0};
    struct group_write w = {.fn = write_event};
    group_commit(a, &log, &w, &stats);
    assert_int_equal(w.err.status, TITAN_OK);
    group_commit(b, NULL, &w, &stats);
    assert_int_equal(w.err.status, TITAN_OK);
    assert_int_equal(db_int(b, &n, NULL, "SELECT count(*) FROM meta WHERE key = 'log_number'", ""), TITAN_OK);
    assert_int_equal(n, 0);
    assert_int_equal(db_exec(a, "DELETE FROM meta WHERE key = 'log_number'", NULL), TITAN_OK);
    assert_equal_stores(a, b);
    log_free(&l);
    db_close(a);
    db_close(b);
}

/* --- wrong records ------------------------------------------------------------------------------------------------ */

static void refuse(struct db *db, const void *bytes, size_t len, titan_status status)
{
    _cleanup_(buf_free) struct buf before = BUF_INIT, after = BUF_INIT;
    struct titan_error err = {0};
    dump(db, &before);
    const titan_status is = changeset_apply(db, bytes, len, &err);
    if (is != status)
        fail_msg("%s, not %s: %s", titan_status_name(is), titan_status_name(status), err.msg);
    assert_true(err.msg[0] && !strchr(err.msg, '\n'));
    assert_true(sqlite3_get_autocommit(db_handle(db)));
    dump(db, &after);
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.data, after.data, before.len);
}

static void test_wrong_records(void **state)
{
    (void)state;
    struct log l = {.n = 0};
    struct group_log log = {.append = keep, .data = &l};
    struct db *a = fresh(), *b = fresh();
    write_groups(a, &log, 3, 40);
    assert_int_equal(changeset_apply(b, l.records[0].data, l.records[0].len, NULL), TITAN_OK);

    /* A gap. */
    refuse(b, l.records[2].data, l.records[2].len, TITAN_ECONFLICT);
    /* Every beginning of a record, and every byte of it changed. */
    const struct buf *r = &l.records[1];
    for (size_t len = 0; len < r->len; len += len < 64 ? 1 : 17)
        refuse(b, r->data, len, TITAN_ECORRUPT);
    _cleanup_free_ char *copy = malloc(r->len);
    assert_non_null(copy);
    for (size_t i = 0; i < r->len; i += i < 64 ? 1 : 17) {
        memcpy(copy, r->data, r->len);
        copy[i] = (char)(copy[i] ^ 0x40);
        refuse(b, copy, r->len, TITAN_ECORRUPT);
    }
    /* The follower's rows are other ones. */
    for (uint64_t i = 1; i < l.n; i++)
        assert_int_equal(changeset_apply(b, l.records[i].data, l.records[i].len, NULL), TITAN_OK);
    struct group_stats stats = {0};
    struct group_write w = {.fn = write_event};
    group_commit(a, &log, &w, &stats);
    assert_int_equal(db_exec(b, "SAVEPOINT s", NULL), TITAN_OK);
    assert_int_equal(write_event(b, NULL, NULL), TITAN_OK);
    assert_int_equal(db_exec(b, "RELEASE s", NULL), TITAN_OK);
    refuse(b, l.records[l.n - 1].data, l.records[l.n - 1].len, TITAN_ECONFLICT);
    /* A table is another one. */
    db_close(b);
    b = fresh();
    assert_int_equal(db_exec(b, "ALTER TABLE events ADD COLUMN another INTEGER", NULL), TITAN_OK);
    assert_int_equal(db_run(b, NULL, "INSERT INTO meta VALUES ('log_number', ?)", "u", l.n - 1), TITAN_OK);
    refuse(b, l.records[l.n - 1].data, l.records[l.n - 1].len, TITAN_ECONFLICT);
    log_free(&l);
    db_close(a);
    db_close(b);
}

/* Records with a right header around wrong changes: nothing changes, or the whole record is applied. */
static void test_damaged_changes(void **state)
{
    (void)state;
    struct log l = {.n = 0};
    struct group_log log = {.append = keep, .data = &l};
    struct db *a = fresh();
    uint64_t seed = 5;
    int refused = 0;
    write_groups(a, &log, 11, 10);
    const struct buf *r = &l.records[0];
    for (int i = 0; i < 150; i++) {
        struct db *b = fresh();
        struct titan_error err = {0};
        _cleanup_free_ char *copy = malloc(r->len);
        assert_non_null(copy);
        memcpy(copy, r->data, r->len);
        size_t len = below(&seed, 3) ? r->len : 24 + (size_t)below(&seed, r->len - 24);
        for (uint64_t n = below(&seed, 4); n > 0; n--)
            copy[24 + below(&seed, r->len - 24)] = (char)below(&seed, 256);
        uint64_t number = 1;
        const uint32_t body = (uint32_t)(len - 24);
        memcpy(copy + 4, &body, sizeof(body));
        const uint64_t sum = hash_mix(hash_bytes(hash_word(HASH_INIT, number), copy + 24, body));
        memcpy(copy + 16, &sum, sizeof(sum));
        const titan_status status = changeset_apply(b, copy, len, &err);
        assert_true(status == TITAN_OK || (err.msg[0] && !strchr(err.msg, '\n')));
        assert_int_equal(changeset_number(b, &number, NULL), TITAN_OK);
        assert_int_equal(number, status == TITAN_OK);
        refused += status != TITAN_OK;
        db_close(b);
    }
    assert_true(refused > 40);
    log_free(&l);
    db_close(a);
}

/* --- what is recorded --------------------------------------------------------------------------------------------- */

/* SQLite records no changes of a table without a primary key. */
static void test_every_table_has_a_key(void **state)
{
    (void)state;
    struct db *db = fresh();
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    int tables = 0;
    assert_int_equal(db_query(db, &stmt, NULL,
                              "SELECT s.name, (SELECT count(*) FROM pragma_table_info(s.name) WHERE pk > 0)"
                              " FROM sqlite_schema AS s WHERE type = 'table' AND s.name NOT GLOB 'sqlite_*'",
                              ""),
                     TITAN_OK);
    for (; db_step(db, stmt, &row, NULL) == TITAN_OK && row; tables++)
        if (col_int(stmt, 1) == 0)
            fail_msg("table %s has no primary key, so other coordinators do not get its rows", col_text(stmt, 0));
    db_done(stmt);
    assert_true(tables > 10);
    db_close(db);
}

static titan_status write_own(struct db *db, void *arg, struct titan_error *err)
{
    (void)arg;
    TRY(db_run(db, err, "UPDATE machine SET clean = 0", ""));
    return home_claim(db, "/tmp", false, err);
}

static void test_own_rows_are_not_recorded(void **state)
{
    (void)state;
    struct log l = {.n = 0};
    struct group_log log = {.append = keep, .data = &l};
    struct db *db = fresh();
    struct group_stats stats = {0};
    struct group_write w = {.fn = write_own};
    int64_t inode = 0;
    group_commit(db, &log, &w, &stats);
    assert_int_equal(w.err.status, TITAN_OK);
    assert_int_equal(db_int(db, &inode, NULL, "SELECT inode FROM machine", ""), TITAN_OK);
    assert_true(inode != 0);
    assert_int_equal(l.n, 0);
    db_close(db);
}

/* --- a log that fails --------------------------------------------------------------------------------------------- */

static void test_failed_append(void **state)
{
    (void)state;
    struct log l = {.fail_in = 3};
    struct group_log log = {.append = keep, .data = &l};
    struct db *db = fresh();
    struct group_stats stats = {0};
    int64_t events = 0;
    for (int i = 0; i < 5; i++) {
        struct group_write second = {.fn = write_event};
        struct group_write first = {.next = &second, .fn = write_event};
        group_commit(db, &log, &first, &stats);
        assert_int_equal(first.err.status, i < 2 ? TITAN_OK : TITAN_ECANCELLED);
        assert_int_equal(second.err.status, first.err.status);
        assert_int_equal(db_int(db, &events, NULL, "SELECT count(*) FROM events", ""), TITAN_OK);
        assert_int_equal(events, i < 2 ? 2 * (i + 1) : 4);
    }
    assert_int_equal(log.lost.status, TITAN_ECANCELLED);
    assert_non_null(strstr(log.lost.msg, "on purpose"));
    assert_int_equal(stats.failures, 6);
    assert_int_equal(l.n, 2); /* the log was not asked again */
    log_free(&l);
    db_close(db);
}

/* --- stores ------------------------------------------------------------------------------------------------------- */

struct led {
    uv_loop_t loop;
    char dir[64];
    struct store *store;
    int done;
    titan_status last, failed;
};

static void on_done(void *arg, const struct titan_error *err)
{
    struct led *f = arg;
    f->done++;
    f->last = err->status;
}

static void on_failed(void *data, const struct titan_error *err)
{
    ((struct led *)data)->failed = err->status;
}

static void close_led(struct led *f)
{
    store_close(f->store, NULL, NULL);
    uv_run(&f->loop, UV_RUN_DEFAULT);
}

/* A coordinator leads with a term that it is given; its store's records make an equal copy from the first one on. */
static void test_led_store(void **state)
{
    (void)state;
    struct led f = {.dir = "/tmp/titan-led-XXXXXX"};
    struct log l = {.n = 0};
    const struct group_log log = {.append = keep, .data = &l};
    struct titan_error err = {0};
    struct db *db = NULL, *copy = fresh();
    int64_t term = 0;
    assert_non_null(mkdtemp(f.dir));
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(store_open_follower(f.dir, &db, &err), TITAN_OK);
    assert_int_equal(
        db_int(db, &term, NULL, "SELECT count(*) FROM meta WHERE key IN ('term', 'store_id', 'log_number')", ""),
        TITAN_OK);
    assert_int_equal(term, 0); /* no term, no id, no number */
    store_close_follower(db);

    assert_int_equal(store_open_led(&f.loop, f.dir, &log, 7, &f.store, &err), TITAN_OK);
    assert_int_equal(store_term(f.store), 7);
    assert_int_equal(l.n, 1);
    store_on_failure(f.store, on_failed, &f);
    assert_int_equal(store_write_now(f.store, write_event, NULL, &err), TITAN_OK);
    assert_int_equal(l.n, 2);
    store_write(f.store, write_event, &f, on_done);
    while (f.done < 1)
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_int_equal(f.last, TITAN_OK);
    for (uint64_t i = 0; i < l.n; i++)
        assert_int_equal(changeset_apply(copy, l.records[i].data, l.records[i].len, &err), TITAN_OK);
    assert_equal_stores(store_reader(f.store), copy);
    l.fail_in = 1;
    store_write(f.store, write_event, &f, on_done);
    while (f.done < 2)
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_int_equal(f.last, TITAN_ECANCELLED);
    assert_int_equal(f.failed, TITAN_ECANCELLED);
    assert_equal_stores(store_reader(f.store), copy);
    close_led(&f);

    /* A term that is not above the store's. */
    assert_int_equal(store_open_led(&f.loop, f.dir, &log, 7, &f.store, &err), TITAN_EBUG);
    assert_int_equal(store_open_follower(f.dir, &db, &err), TITAN_OK);
    assert_equal_stores(db, copy);
    store_close_follower(db);
    uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    assert_int_equal(dir_remove(f.dir, NULL), TITAN_OK);
    log_free(&l);
    db_close(copy);
}

/* An image makes an older or empty file equal, keeps the machine's row, and is refused whole when it is wrong. */
static void test_images(void **state)
{
    (void)state;
    char dir[] = "/tmp/titan-image-XXXXXX", path[64];
    struct log l = {.n = 0};
    struct group_log log = {.append = keep, .data = &l};
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf image = BUF_INIT, later = BUF_INIT;
    struct db *a = NULL, *b = NULL;
    int64_t clean = 0, homes = 0;
    char other[64];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/titan.db", dir);
    (void)snprintf(other, sizeof(other), "%s/b", dir);
    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(store_open_follower(dir, &a, &err), TITAN_OK);
    assert_int_equal(store_open_follower(other, &b, &err), TITAN_OK);
    assert_int_equal(db_exec(a, "INSERT INTO meta VALUES ('store_id', 5)", NULL), TITAN_OK);
    write_groups(a, &log, 21, 20);
    assert_int_equal(home_claim(a, dir, false, NULL), TITAN_OK);
    assert_int_equal(home_claim(b, other, false, NULL), TITAN_OK);
    assert_int_equal(changeset_image(path, &image, &err), TITAN_OK);
    write_groups(a, &log, 22, 20);
    assert_int_equal(changeset_image(path, &later, &err), TITAN_OK);

    if (changeset_install(b, image.data, image.len, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    uint64_t number = 0, end = 0;
    assert_int_equal(changeset_number(b, &number, NULL), TITAN_OK);
    assert_true(number > 0 && number < l.n);
    for (uint64_t i = number; i < l.n; i++)
        assert_int_equal(changeset_apply(b, l.records[i].data, l.records[i].len, NULL), TITAN_OK);
    assert_equal_stores(a, b);
    assert_int_equal(changeset_install(b, image.data, image.len, &err), TITAN_OK); /* an older one */
    assert_equal_stores(a, b);
    assert_int_equal(changeset_number(b, &end, NULL), TITAN_OK);
    assert_int_equal(end, l.n);
    assert_int_equal(db_int(b, &clean, NULL, "SELECT clean FROM machine", ""), TITAN_OK);
    assert_int_equal(clean, 0);
    assert_int_equal(db_int(b, &homes, NULL, "SELECT count(*) FROM machine WHERE path = ?", "t", other), TITAN_OK);
    assert_int_equal(homes, 1);

    /* Wrong ones. */
    assert_int_equal(db_exec(b, "UPDATE meta SET value = 3 WHERE key = 'log_number'", NULL), TITAN_OK);
    _cleanup_(buf_free) struct buf before = BUF_INIT, after = BUF_INIT;
    dump(b, &before);
    for (size_t i = 0; i < 60; i++) {
        _cleanup_free_ char *copy = malloc(later.len);
        assert_non_null(copy);
        memcpy(copy, later.data, later.len);
        const size_t len = i % 2 ? later.len / 60 * i : later.len;
        if (len == later.len) /* the head of a page */
            memset(copy + 4096 * (i / 2 % (later.len / 4096)), 0xa5, 64);
        err = (struct titan_error){0};
        if (changeset_install(b, copy, len, &err) == TITAN_OK) { /* a page that nothing refers to */
            assert_equal_stores(a, b);
            assert_int_equal(db_exec(b, "UPDATE meta SET value = 3 WHERE key = 'log_number'", NULL), TITAN_OK);
            continue;
        }
        assert_true(err.msg[0] && !strchr(err.msg, '\n'));
        dump(b, &after);
        assert_int_equal(before.len, after.len);
        assert_memory_equal(before.data, after.data, before.len);
    }
    assert_int_equal(db_exec(b, "UPDATE meta SET value = 6 WHERE key = 'store_id'", NULL), TITAN_OK);
    assert_int_equal(changeset_install(b, later.data, later.len, &err), TITAN_ECONFLICT);
    store_close_follower(a);
    store_close_follower(b);
    assert_int_equal(dir_remove(dir, NULL), TITAN_OK);
    log_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_writes),
        cmocka_unit_test(test_log_changes_no_row),
        cmocka_unit_test(test_wrong_records),
        cmocka_unit_test(test_damaged_changes),
        cmocka_unit_test(test_every_table_has_a_key),
        cmocka_unit_test(test_own_rows_are_not_recorded),
        cmocka_unit_test(test_failed_append),
        cmocka_unit_test(test_led_store),
        cmocka_unit_test(test_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
