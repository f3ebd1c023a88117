/* SPDX-License-Identifier: Apache-2.0 */
/* The job store: files, writer thread, group commit, what a full disk does, and the nouns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/mac.h"
#include "state/backup.h"
#include "state/change.h"
#include "state/metric.h"
#include "state/schema.h"
#include "state/store.h"

struct fixture {
    uv_loop_t loop;
    char dir[64];
    struct store *store;
    int done, failed;
    struct titan_error last;
};

static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    strcpy(f->dir, "/tmp/titan-store-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_int_equal(uv_loop_init(&f->loop), 0);
}

static void open_store(struct fixture *f)
{
    struct titan_error err = {0};
    if (store_open(&f->loop, f->dir, &f->store, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

static void close_store(struct fixture *f)
{
    store_close(f->store, NULL, NULL);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    f->store = NULL;
}

static void tear_down(struct fixture *f)
{
    if (f->store)
        close_store(f);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    assert_int_equal(dir_remove(f->dir, NULL), TITAN_OK);
}

static void path_of(const struct fixture *f, const char *name, char path[128])
{
    (void)snprintf(path, 128, "%s/%s", f->dir, name);
}

struct write {
    struct fixture *f;
    struct job job;
    titan_status fail_with;
    char padding[4096];
    uint64_t existing;
};

static titan_status write_one(struct db *db, void *arg, struct titan_error *err)
{
    struct write *w = arg;
    TRY(job_submit(db, &w->job, w->padding, &w->existing, err));
    return w->fail_with ? titan_fail(err, w->fail_with, "on purpose") : TITAN_OK;
}

static void on_done(void *arg, const struct titan_error *err)
{
    struct write *w = arg;
    w->f->done++;
    w->f->failed += err->status != TITAN_OK;
    if (err->status != TITAN_OK)
        w->f->last = *err;
    free(w);
}

static struct job plain_job(uint64_t id)
{
    struct job job = {.id = id, .name = "n", .user = "u", .submitted_at_ms = 5};
    strcpy(job.spec.device, "cpu");
    job.spec.steps = 10;
    job.spec.min_workers = 1;
    job.spec.max_workers = 4;
    world_set_add(&job.spec.worlds, 1);
    world_set_add(&job.spec.worlds, 4);
    return job;
}

static struct write *queue_job(struct fixture *f, uint64_t id, titan_status fail_with)
{
    struct write *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    w->f = f;
    w->job = plain_job(id);
    w->fail_with = fail_with;
    memset(w->padding, 'x', sizeof(w->padding) - 1);
    store_write(f->store, write_one, w, on_done);
    return w;
}

static void wait_done(struct fixture *f, int n)
{
    while (f->done < n)
        uv_run(&f->loop, UV_RUN_ONCE);
}

static int64_t count(struct fixture *f, const char *sql)
{
    int64_t n = -1;
    struct db *db = NULL;
    char path[128];
    path_of(f, "titan.db", path);
    assert_int_equal(db_open(path, DB_READER, true, &db, NULL), TITAN_OK);
    assert_int_equal(db_int(db, &n, NULL, sql, ""), TITAN_OK);
    db_close(db);
    return n;
}

static void test_tables_are_sound(void **state)
{
    (void)state;
    const struct sm *const all[] = {&job_sm, &run_sm, &epoch_sm, &worker_sm, &checkpoint_sm, &node_sm};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        assert_true(sm_valid(all[i]));
}

/* What terms are proved with: of the store and its backups, and of no other. */
static void test_secret(void **state)
{
    (void)state;
    struct fixture f, other;
    struct titan_error err = {0};
    struct restore_report report;
    uint8_t secret[MAC_BYTES], zero[MAC_BYTES] = {0};
    char store[128], copy[128];
    set_up(&f);
    open_store(&f);
    memcpy(secret, store_secret(f.store), sizeof(secret));
    assert_memory_not_equal(secret, zero, sizeof(secret));
    path_of(&f, "titan.db", store);
    path_of(&f, "copy.db", copy);
    assert_int_equal(backup_copy(store, copy, &err), TITAN_OK);
    close_store(&f);
    open_store(&f);
    assert_memory_equal(store_secret(f.store), secret, sizeof(secret));
    close_store(&f);
    if (backup_restore(copy, f.dir, 0, 1000, &report, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    open_store(&f);
    assert_memory_equal(store_secret(f.store), secret, sizeof(secret));
    set_up(&other);
    open_store(&other);
    assert_memory_not_equal(store_secret(other.store), secret, sizeof(secret));
    tear_down(&other);
    tear_down(&f);
}

static void test_group_commit(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    open_store(&f);
    for (uint64_t id = 1; id <= 2000; id++)
        queue_job(&f, id, id % 100 == 7 ? TITAN_ECONFLICT : TITAN_OK);
    wait_done(&f, 2000);
    assert_int_equal(f.failed, 20);
    assert_string_equal(f.last.msg, "on purpose");
    struct store_stats stats = store_stats(f.store);
    assert_int_equal(stats.failures, 20);
    assert_true(stats.commits < 500);
    assert_int_equal(count(&f, "SELECT count(*) FROM jobs"), 1980);
    assert_int_equal(count(&f, "SELECT count(*) FROM events"), 1980); /* nothing of a failed write stays */
    uint64_t term = store_term(f.store);
    close_store(&f);
    open_store(&f);
    assert_int_equal(store_term(f.store), term + 1);
    assert_int_equal(count(&f, "SELECT count(*) FROM jobs"), 1980);
    tear_down(&f);
}

static titan_status set_page_limit(struct db *db, void *arg, struct titan_error *err)
{
    char sql[64];
    int64_t pages = 0;
    TRY(db_int(db, &pages, err, "PRAGMA page_count", ""));
    (void)snprintf(sql, sizeof(sql), "PRAGMA max_page_count=%lld", (long long)(pages + *(int *)arg));
    return db_exec(db, sql, err);
}

static void wrote_limit(void *arg, const struct titan_error *err)
{
    (void)arg;
    assert_int_equal(err->status, TITAN_OK);
}

static void test_full_disk(void **state)
{
    (void)state;
    struct fixture f;
    int few = 40, many = 100000;
    set_up(&f);
    open_store(&f);
    store_write(f.store, set_page_limit, &few, wrote_limit);
    for (uint64_t id = 1; id <= 200; id++)
        queue_job(&f, id, TITAN_OK);
    wait_done(&f, 200);
    assert_true(f.failed > 100 && f.failed < 200); /* the first ones fitted and are kept */
    assert_int_equal(f.last.status, TITAN_ENOSPC);
    assert_int_equal(count(&f, "SELECT count(*) FROM jobs"), 200 - f.failed);
    store_write(f.store, set_page_limit, &many, wrote_limit);
    int failed = f.failed;
    queue_job(&f, 1000, TITAN_OK);
    wait_done(&f, 201);
    assert_int_equal(f.failed, failed);
    assert_int_equal(count(&f, "SELECT count(*) FROM jobs WHERE id = 1000"), 1);
    tear_down(&f);
}

static void test_newer_store_is_left_alone(void **state)
{
    (void)state;
    struct fixture f;
    struct titan_error err = {0};
    struct db *db = NULL;
    char path[128];
    set_up(&f);
    open_store(&f);
    close_store(&f);
    path_of(&f, "titan.db", path);
    assert_int_equal(db_open(path, DB_WRITER, true, &db, NULL), TITAN_OK);
    assert_int_equal(db_exec(db, "PRAGMA user_version=99", NULL), TITAN_OK);
    db_close(db);
    _cleanup_(buf_free) struct buf before = BUF_INIT, after = BUF_INIT;
    assert_int_equal(file_read(path, 1 << 24, &before, NULL), TITAN_OK);
    assert_int_equal(store_open(&f.loop, f.dir, &f.store, &err), TITAN_EVERSION);
    assert_non_null(strstr(err.msg, "schema 99"));
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(file_read(path, 1 << 24, &after, NULL), TITAN_OK);
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.data, after.data, before.len);
    f.store = NULL;
    tear_down(&f);
}

static void test_damaged_store(void **state)
{
    (void)state;
    struct fixture f;
    struct titan_error err = {0};
    char path[128];
    set_up(&f);
    path_of(&f, "titan.db", path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 1000; i++)
        (void)fputs("this is no database ", file);
    (void)fclose(file);
    assert_int_equal(store_open(&f.loop, f.dir, &f.store, &err), TITAN_ECORRUPT);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(unlink(path), 0);

    /* Another program's database. */
    struct db *db = NULL;
    assert_int_equal(db_open(path, DB_WRITER, true, &db, NULL), TITAN_OK);
    assert_int_equal(db_exec(db, "CREATE TABLE t (a)", NULL), TITAN_OK);
    db_close(db);
    assert_int_equal(store_open(&f.loop, f.dir, &f.store, &err), TITAN_ECORRUPT);
    assert_int_equal(unlink(path), 0);

    /* Pages gone wrong, found by the check that follows an unclean stop. */
    open_store(&f);
    for (uint64_t id = 1; id <= 100; id++)
        queue_job(&f, id, TITAN_OK);
    wait_done(&f, 100);
    close_store(&f);
    assert_int_equal(db_open(path, DB_WRITER, true, &db, NULL), TITAN_OK);
    assert_int_equal(db_exec(db, "UPDATE machine SET clean = 0", NULL), TITAN_OK);
    db_close(db);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    char junk[8192];
    memset(junk, 0xa5, sizeof(junk));
    assert_int_equal(pwrite(fd, junk, sizeof(junk), lseek(fd, 0, SEEK_END) / 2 / 4096 * 4096), (ssize_t)sizeof(junk));
    (void)close(fd);
    assert_int_equal(store_open(&f.loop, f.dir, &f.store, &err), TITAN_ECORRUPT);
    f.store = NULL;
    tear_down(&f);
}

static void test_reader_cannot_write(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    open_store(&f);
    assert_int_not_equal(db_exec(store_reader(f.store), "DELETE FROM meta", NULL), TITAN_OK);
    assert_int_not_equal(db_exec(store_metrics_reader(f.store), "DELETE FROM metrics", NULL), TITAN_OK);
    tear_down(&f);
}

/* --- nouns, on a database in memory ------------------------------------------------------------------------------- */

static struct db *memory_db(void)
{
    struct db *db = NULL;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    return db;
}

static void add_job(struct db *db, uint64_t id)
{
    struct job job = plain_job(id);
    uint64_t existing = 0;
    assert_int_equal(job_submit(db, &job, "text", &existing, NULL), TITAN_OK);
}

static struct event event_of(uint64_t job_id)
{
    return (struct event){.job_id = job_id, .at_ms = 1, .type = "t", .message = "m", .rank = -1};
}

static void test_every_move_of_a_job(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct job_status status = {.loss = NAN};
    uint64_t id = 0;
    for (int from = JOB_PENDING; from <= JOB_CANCELLED; from++) {
        for (int to = JOB_NONE; to <= JOB_CANCELLED; to++) {
            add_job(db, ++id);
            /* Put it there behind the functions' back. */
            assert_int_equal(db_run(db, NULL, "UPDATE jobs SET state = ? WHERE id = ?", "iu", (int64_t)from, id),
                             TITAN_OK);
            struct event e = event_of(id);
            titan_status got = job_move(
                db, &(struct job){.id = id, .state = (enum job_state)to, .reason = "why", .status = status}, &e, NULL);
            assert_int_equal(got, sm_allowed(&job_sm, from, to) ? TITAN_OK : TITAN_EBUG);
            int64_t now = 0, events = 0;
            assert_int_equal(db_int(db, &now, NULL, "SELECT state FROM jobs WHERE id = ?", "u", id), TITAN_OK);
            assert_int_equal(db_int(db, &events, NULL, "SELECT count(*) FROM events WHERE job_id = ?", "u", id),
                             TITAN_OK);
            assert_int_equal(now, got == TITAN_OK ? to : from);
            assert_int_equal(events, got == TITAN_OK ? 2 : 1);
        }
    }
    struct event e = event_of(9999);
    assert_int_equal(job_move(db, &(struct job){.id = 9999, .state = JOB_FORMING, .status = status}, &e, NULL),
                     TITAN_ENOTFOUND);
    db_close(db);
}

/* With a store of any size a submit reads a few rows. */
static void test_submit_scans_no_table(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct titan_error err = {0};
    struct job job = plain_job(1);
    uint64_t existing = 0;
    char folder[32];
    job.folder = folder;
    job.holds_folder = true;
    job.key_owner = "uid:1000";
    for (job.id = 1; job.id <= 100; job.id++) {
        char key[32];
        (void)snprintf(folder, sizeof(folder), "/runs/%llu", (unsigned long long)job.id);
        (void)snprintf(key, sizeof(key), "key %llu", (unsigned long long)job.id);
        job.key = key;
        assert_int_equal(job_submit(db, &job, "text", &existing, &err), TITAN_OK);
    }
    for (sqlite3_stmt *s = sqlite3_next_stmt(db_handle(db), NULL); s; s = sqlite3_next_stmt(db_handle(db), s))
        if (sqlite3_stmt_status(s, SQLITE_STMTSTATUS_FULLSCAN_STEP, 0) >= 100)
            fail_msg("it goes over the whole table: %s", sqlite3_sql(s));
    job.key = NULL;
    assert_int_equal(job_submit(db, &job, "text", &existing, &err), TITAN_ECONFLICT); /* the folder of job 100 */
    db_close(db);
}

static void test_idempotency_key(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct titan_error err = {0};
    struct job job = plain_job(1);
    uint64_t existing = 7;
    job.key = "key";
    job.key_owner = "uid:1000";
    job.request_hash = UINT64_MAX - 3;
    assert_int_equal(job_submit(db, &job, "a", &existing, &err), TITAN_OK);
    assert_int_equal(existing, 0);
    job.id = 2;
    assert_int_equal(job_submit(db, &job, "a", &existing, &err), TITAN_OK);
    assert_int_equal(existing, 1);
    job.request_hash = 5;
    assert_int_equal(job_submit(db, &job, "b", &existing, &err), TITAN_EEXIST);
    assert_non_null(strstr(err.msg, "job 1"));
    uint64_t last = 0;
    assert_int_equal(job_last_id(db, &last, NULL), TITAN_OK);
    assert_int_equal(last, 1);
    /* Another submitter's key of the same name is another key. */
    job.key_owner = "uid:1001";
    assert_int_equal(job_submit(db, &job, "b", &existing, &err), TITAN_OK);
    assert_int_equal(existing, 0);
    job.id = 3;
    assert_int_equal(job_submit(db, &job, "b", &existing, &err), TITAN_OK);
    assert_int_equal(existing, 2);
    db_close(db);
}

struct listed {
    uint64_t ids[64];
    size_t n;
    struct job last;
    char reason[32];
};

static bool each_job(const struct job *job, void *data)
{
    struct listed *l = data;
    l->ids[l->n++] = job->id;
    l->last = *job;
    return true;
}

static void with_job(const struct job *job, void *data)
{
    (void)each_job(job, data);
}

static void with_mesh(const struct job *job, void *data)
{
    struct listed *l = data;
    l->last = *job;
    (void)snprintf(l->reason, sizeof(l->reason), "%s", job->reason);
}

static struct job job_filled(struct db *db, uint64_t id, const struct metric *last)
{
    struct listed l = {.n = 0};
    assert_int_equal(job_fill(db, last, NULL), TITAN_OK);
    assert_int_equal(job_get(db, id, with_job, &l, NULL), TITAN_OK);
    return l.last;
}

/* What workers wrote down fills what the row of an ended job does not know, and takes nothing back. */
static void test_job_is_filled(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct job_status status = {.step = 5, .loss = NAN, .epoch = 2};
    struct event e = event_of(1);
    struct listed l = {.n = 0};
    add_job(db, 1);
    const uint64_t steps = plain_job(1).spec.steps;
    struct metric m = {.job_id = 1, .step = 5, .loss = 1.5, .tokens_per_second = 7, .mfu = NAN, .epoch = 1};
    assert_int_equal(job_move(db, &(struct job){.id = 1, .state = JOB_FORMING, .status = status}, &e, NULL), TITAN_OK);
    assert_true(isnan(job_filled(db, 1, &m).status.loss)); /* it has not ended */
    assert_int_equal(job_list_without_loss(db, 9, each_job, &l, NULL), TITAN_OK);
    assert_int_equal(l.n, 0);
    assert_int_equal(job_move(db, &(struct job){.id = 1, .state = JOB_FAILED, .status = status}, &e, NULL), TITAN_OK);
    assert_int_equal(job_list_without_loss(db, 9, each_job, &l, NULL), TITAN_OK);
    assert_int_equal(l.n, 1);
    m.step = 4;
    assert_true(isnan(job_filled(db, 1, &m).status.loss));
    m.step = 6; /* of an epoch that was lost */
    assert_true(isnan(job_filled(db, 1, &m).status.loss));
    m.step = 5;
    assert_true(job_filled(db, 1, &m).status.loss == 1.5);
    struct job job = job_filled(db, 1, &m);
    assert_true(job.status.step == 5 && job.status.tokens_per_second == 7 && job.status.mfu == 0);
    assert_int_equal(job_list_without_loss(db, 9, each_job, &l, NULL), TITAN_OK);
    assert_int_equal(l.n, 1);
    m.loss = 1.25;
    assert_true(job_filled(db, 1, &m).status.loss == 1.5);
    m.step = 6;
    m.epoch = 2;
    job = job_filled(db, 1, &m);
    assert_true(job.status.step == 6 && job.status.loss == 1.25);
    m.step = steps + 1;
    assert_int_equal(job_filled(db, 1, &m).status.step, 6);
    db_close(db);
}

static void test_lists_and_pages(void **state)
{
    (void)state;
    struct db *db = memory_db();
    for (uint64_t id = 1; id <= 10; id++)
        add_job(db, id);
    struct event e = event_of(4);
    struct job_status status = {.step = 3, .loss = 1.5, .epoch = 2, .passed = 7, .checkpoint = "/c"};
    assert_int_equal(
        job_move(db, &(struct job){.id = 4, .state = JOB_FORMING, .reason = "because", .status = status}, &e, NULL),
        TITAN_OK);
    struct listed l = {.n = 0};
    assert_int_equal(job_list(db, &(struct job_filter){0}, 3, each_job, &l, NULL), TITAN_OK);
    assert_int_equal(l.n, 3);
    assert_int_equal(l.ids[0], 10);
    assert_int_equal(job_list(db, &(struct job_filter){.before = l.ids[2], .user = ""}, 64, each_job, &l, NULL),
                     TITAN_OK);
    assert_int_equal(l.n, 10);
    assert_int_equal(l.ids[9], 1);
    l.n = 0;
    assert_int_equal(
        job_list(db, &(struct job_filter){.states = SM_BIT(JOB_FORMING), .user = "u"}, 64, each_job, &l, NULL),
        TITAN_OK);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.ids[0], 4);
    assert_true(l.last.status.loss == 1.5 && l.last.status.step == 3 && l.last.status.epoch == 2);
    assert_int_equal(l.last.status.passed, 7);
    assert_true(world_set_has(&l.last.spec.worlds, 4) && !world_set_has(&l.last.spec.worlds, 2));
    l.n = 0; /* of those that have not ended, by their index */
    assert_int_equal(
        job_list(db, &(struct job_filter){.states = SM_BIT(JOB_FORMING) | SM_BIT(JOB_PENDING)}, 2, each_job, &l, NULL),
        TITAN_OK);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.ids[1], 9);
    uint32_t n = 0;
    assert_int_equal(job_count(db, &(struct job_filter){.states = SM_BIT(JOB_PENDING), .before = 3}, 64, &n, NULL),
                     TITAN_OK);
    assert_int_equal(n, 9);
    assert_int_equal(job_count(db, &(struct job_filter){0}, 4, &n, NULL), TITAN_OK);
    assert_int_equal(n, 4);
    assert_int_equal(job_count(db, &(struct job_filter){.user = "nobody"}, 4, &n, NULL), TITAN_OK);
    assert_int_equal(n, 0);
    l.n = 0;
    assert_int_equal(job_list(db, &(struct job_filter){.user = "nobody"}, 64, each_job, &l, NULL), TITAN_OK);
    assert_int_equal(l.n, 0);
    /* Of one identity: by number where both have one, else by name. */
    assert_int_equal(db_exec(db, "UPDATE jobs SET uid = id % 3, user = 'u' || id", NULL), TITAN_OK);
    assert_int_equal(db_exec(db, "UPDATE jobs SET uid = -1, user = 'alice' WHERE id IN (2, 5)", NULL), TITAN_OK);
    assert_int_equal(
        job_list(db, &(struct job_filter){.owner = &(struct job_owner){2, "alice"}}, 64, each_job, &l, NULL), TITAN_OK);
    assert_int_equal(l.n, 3); /* 8 by number, 2 and 5 by name */
    l.n = 0;
    assert_int_equal(
        job_list(db, &(struct job_filter){.owner = &(struct job_owner){JOB_NO_ID, "alice"}}, 64, each_job, &l, NULL),
        TITAN_OK);
    assert_int_equal(l.n, 2);
    /* By name and labels; a limit counts what is found. */
    assert_int_equal(db_exec(db,
                             "UPDATE jobs SET name = 'lr-' || id, labels = 'a=' || (id % 2) || char(10) || 'b=x' ||"
                             " char(10) WHERE id > 4",
                             NULL),
                     TITAN_OK);
    l.n = 0;
    assert_int_equal(job_list(db, &(struct job_filter){.name = "lr-7"}, 64, each_job, &l, NULL), TITAN_OK);
    assert_int_equal(l.n, 1);
    l.n = 0;
    assert_int_equal(job_list(db, &(struct job_filter){.name = "lr-*"}, 64, each_job, &l, NULL), TITAN_OK);
    assert_int_equal(l.n, 6);
    l.n = 0;
    char *odd[] = {"a=1", "b"};
    assert_int_equal(job_list(db, &(struct job_filter){.labels = odd, .n_labels = 2}, 2, each_job, &l, NULL), TITAN_OK);
    assert_int_equal(l.n, 2);
    assert_int_equal(l.ids[0], 9);
    assert_int_equal(l.ids[1], 7);
    assert_int_equal(job_count(db, &(struct job_filter){.labels = odd, .n_labels = 2}, 64, &n, NULL), TITAN_OK);
    assert_int_equal(n, 3);
    assert_true(job_owned_by(&(struct job){.uid = 5, .user = "a"}, &(struct job_owner){5, "b"}));
    assert_false(job_owned_by(&(struct job){.uid = 5, .user = "a"}, &(struct job_owner){6, "a"}));
    assert_true(job_owned_by(&(struct job){.uid = -1, .user = "a"}, &(struct job_owner){6, "a"}));
    assert_false(job_owned_by(&(struct job){.uid = -1, .user = ""}, &(struct job_owner){-1, ""}));
    assert_int_equal(job_get(db, 5, with_job, &l, NULL), TITAN_OK);
    assert_true(isnan(l.last.status.loss));
    struct titan_error err = {0};
    assert_int_equal(job_get(db, 11, with_job, &l, &err), TITAN_ENOTFOUND);
    assert_string_equal(err.msg, "there is no job 11");
    char *text = NULL;
    assert_int_equal(job_recipe(db, 5, &text, NULL), TITAN_OK);
    assert_string_equal(text, "text");
    free(text);
    db_close(db);
}

struct seen_epoch {
    struct epoch e;
    uint64_t workers[8];
};

static void with_epoch(const struct epoch *e, void *data)
{
    struct seen_epoch *s = data;
    s->e = *e;
    memcpy(s->workers, e->workers, e->world_size * sizeof(uint64_t));
}

static bool count_row(const struct checkpoint *c, void *data)
{
    (void)c;
    ++*(int *)data;
    return true;
}

/* A job of a store from before meshes were kept is there afterwards; reasons can be set without a move. */
static void test_migration(void **state)
{
    (void)state;
    struct schema first = schema_store;
    struct db *db = NULL;
    first.version = 1;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&first, db, NULL), TITAN_OK);
    assert_int_equal(db_exec(db,
                             "INSERT INTO jobs (id, name, user, state, device, steps, min_workers, max_workers, worlds,"
                             " max_restarts, backoff_ms, backoff_max_ms, keep_latest, submitted_at_ms,"
                             " idempotency_key) VALUES (3, 'old', 'u', 1, 'cpu', 7, 1, 2, x'06', 0, 0, 0, 0, 5, 'k')",
                             NULL),
                     TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    struct job job = plain_job(4);
    uint64_t existing = 0;
    job.key = "k";
    job.key_owner = "user:u";
    assert_int_equal(job_submit(db, &job, "text", &existing, NULL), TITAN_OK);
    assert_int_equal(existing, 3);
    job.key = NULL;
    strcpy(job.spec.mesh, "pp=2 tp=2");
    assert_int_equal(job_submit(db, &job, "text", &existing, NULL), TITAN_OK);
    assert_int_equal(job_set_reason(db, 4, "waiting", &(struct event){.job_id = 4, .type = "t", .message = "m"}, NULL),
                     TITAN_OK);
    assert_int_equal(job_set_reason(db, 5, "waiting", NULL, NULL), TITAN_ENOTFOUND);
    struct listed l = {.n = 0};
    assert_int_equal(job_get(db, 3, with_mesh, &l, NULL), TITAN_OK);
    assert_string_equal(l.last.spec.mesh, "");
    assert_int_equal(l.last.spec.steps, 7);
    int64_t n = 0;
    assert_int_equal(db_int(db, &n, NULL, "SELECT count(*) FROM jobs WHERE labels = '' AND removed_at_ms = 0", ""),
                     TITAN_OK);
    assert_int_equal(n, 2);
    assert_int_equal(job_get(db, 4, with_mesh, &l, NULL), TITAN_OK);
    assert_string_equal(l.last.spec.mesh, "pp=2 tp=2");
    assert_string_equal(l.reason, "waiting");
    db_close(db);
}

/* What belongs to one machine moves out of the shared tables, whether the older store had it or not. */
static void test_machine_migration(void **state)
{
    (void)state;
    for (int had = 0; had < 2; had++) {
        struct schema older = schema_store;
        struct db *db = NULL;
        int64_t rows = 0, left = 0;
        older.version = SCHEMA_MACHINE - 1;
        assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
        assert_int_equal(schema_migrate(&older, db, NULL), TITAN_OK);
        if (had)
            assert_int_equal(db_exec(db,
                                     "INSERT INTO meta VALUES ('clean', 0), ('term', 4);"
                                     "INSERT INTO home VALUES (1, '/state', 77)",
                                     NULL),
                             TITAN_OK);
        assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
        assert_int_equal(db_int(db, &rows, NULL,
                                "SELECT count(*) FROM machine WHERE clean = ? AND path = ? AND inode = ?", "iti",
                                (int64_t)!had, had ? "/state" : "", (int64_t)(had ? 77 : 0)),
                         TITAN_OK);
        assert_int_equal(rows, 1);
        assert_int_equal(db_int(db, &left, NULL,
                                "SELECT (SELECT count(*) FROM meta WHERE key = 'clean') +"
                                " (SELECT count(*) FROM sqlite_schema WHERE name = 'home')",
                                ""),
                         TITAN_OK);
        assert_int_equal(left, 0);
        assert_int_equal(schema_compare(&schema_store, db, NULL), TITAN_OK);
        db_close(db);
    }
}

/* An older store that was not closed is checked before it is migrated. */
static void test_older_unclean_store(void **state)
{
    (void)state;
    struct fixture f;
    struct schema older = schema_store;
    struct db *db = NULL;
    char path[128];
    bool unclean = false;
    older.version = SCHEMA_MACHINE - 1;
    set_up(&f);
    path_of(&f, "titan.db", path);
    assert_int_equal(db_open(path, DB_WRITER, true, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&older, db, NULL), TITAN_OK);
    assert_int_equal(db_exec(db, "INSERT INTO meta VALUES ('clean', 0), ('term', 4)", NULL), TITAN_OK);
    db_close(db);
    assert_int_equal(schema_probe(&schema_store, path, &unclean, NULL), TITAN_OK);
    assert_true(unclean);
    open_store(&f);
    assert_int_equal(store_term(f.store), 5);
    close_store(&f);
    assert_int_equal(schema_probe(&schema_store, path, &unclean, NULL), TITAN_OK);
    assert_false(unclean);
    tear_down(&f);
}

static void test_epochs_and_checkpoints(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct event e = event_of(1);
    uint64_t ids[] = {11, 12, 13};
    add_job(db, 1);
    assert_int_equal(run_add(db, 1, 1, &e, NULL), TITAN_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(worker_add(db, &(struct worker){.id = ids[i], .job_id = 1, .run = 1, .node = "n"}, &e, NULL),
                         TITAN_OK);
    struct epoch epoch = {.job_id = 1,
                          .number = 1,
                          .run = 1,
                          .source = 1,
                          .resume_step = 40,
                          .checkpoint = "/p",
                          .comm_id = {1, 2, 3},
                          .world_size = 3,
                          .workers = ids};
    assert_int_equal(epoch_add(db, &epoch, &e, NULL), TITAN_OK);
    assert_int_equal(epoch_add(db, &epoch, &e, NULL), TITAN_ECONFLICT); /* never two memberships of one number */
    struct seen_epoch seen = {{0}, {0}};
    assert_int_equal(epoch_get(db, 1, 0, with_epoch, &seen, NULL), TITAN_OK);
    assert_int_equal(seen.e.number, 1);
    assert_int_equal(seen.e.resume_step, 40);
    assert_memory_equal(seen.workers, ids, sizeof(ids));
    assert_memory_equal(seen.e.comm_id, epoch.comm_id, 16);

    struct checkpoint c = {.job_id = 1, .step = 50, .epoch = 1, .path = "/a", .bytes = 1, .world_size = 3};
    assert_int_equal(checkpoint_add(db, &c, &e, NULL), TITAN_OK);
    assert_int_equal(epoch_move(db, 1, 1, EPOCH_REVOKED, &e, NULL), TITAN_OK);
    assert_int_equal(epoch_move(db, 1, 1, EPOCH_RUNNING, &e, NULL), TITAN_EBUG);
    epoch.number = 2;
    assert_int_equal(epoch_add(db, &epoch, &e, NULL), TITAN_OK);
    c.step = 60;
    assert_int_equal(checkpoint_add(db, &c, &e, NULL), TITAN_EREVOKED); /* from the dead */
    c.epoch = 2;
    assert_int_equal(checkpoint_add(db, &c, &e, NULL), TITAN_OK);
    assert_int_equal(checkpoint_expire(db, 1, 50, &e, NULL), TITAN_OK);
    assert_int_equal(checkpoint_expire(db, 1, 50, &e, NULL), TITAN_EBUG);
    int rows = 0;
    assert_int_equal(checkpoint_list(db, 1, count_row, &rows, NULL), TITAN_OK);
    assert_int_equal(rows, 1);
    db_close(db);
}

struct seen_events {
    uint64_t ids[64];
    size_t n;
};

static bool each_event(const struct event *e, void *data)
{
    struct seen_events *s = data;
    s->ids[s->n++] = e->id;
    return true;
}

static void test_events_in_order(void **state)
{
    (void)state;
    struct db *db = memory_db();
    for (uint64_t i = 0; i < 20; i++) {
        struct event e = event_of(1 + i % 2);
        assert_int_equal(event_add(db, &e, NULL), TITAN_OK);
    }
    struct seen_events s = {.n = 0};
    assert_int_equal(event_list(db, &(struct event_filter){.limit = 64}, each_event, &s, NULL), TITAN_OK);
    assert_int_equal(s.n, 20);
    for (size_t i = 1; i < s.n; i++)
        assert_true(s.ids[i] > s.ids[i - 1]);
    uint64_t middle = s.ids[9];
    s.n = 0;
    assert_int_equal(
        event_list(db, &(struct event_filter){.job_id = 1, .after = middle, .limit = 3}, each_event, &s, NULL),
        TITAN_OK);
    assert_int_equal(s.n, 3);
    assert_true(s.ids[0] > middle);
    db_close(db);
}

struct seen_metric {
    struct metric last;
    int n;
};

static bool each_metric(const struct metric *m, void *data)
{
    struct seen_metric *s = data;
    s->last = *m;
    s->n++;
    return true;
}

static void test_metrics(void **state)
{
    (void)state;
    struct db *db = NULL;
    struct metric last;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_metrics, db, NULL), TITAN_OK);
    struct metric m = {.job_id = 1, .step = 1, .loss = NAN, .tokens = UINT64_C(1) << 40, .split = step_split_none()};
    assert_int_equal(metric_put(db, &m, NULL), TITAN_OK);
    m.split = (struct step_split){1, 2, 3, 4, 5, 6, 7};
    m.tflops = 0.5;
    m.mfu_causal = 0.25;
    m.expert_tokens_min = 1;
    m.expert_tokens_max = 9;
    m.expert_tokens_mean = 4;
    m.dropped = 6;
    m.further_rounds = 11;
    m.room_needed = 1.5;
    m.step = 2;
    m.loss = 3.25;
    assert_int_equal(metric_put(db, &m, NULL), TITAN_OK);
    m.loss = 3.5; /* trained again */
    m.epoch = 2;
    assert_int_equal(metric_put(db, &m, NULL), TITAN_OK);
    struct seen_metric s = {.n = 0};
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 0, 10}, each_metric, &s, NULL), TITAN_OK);
    assert_int_equal(s.n, 2);
    assert_true(s.last.loss == 3.5 && s.last.epoch == 2 && s.last.tokens == UINT64_C(1) << 40);
    assert_true(step_split_total(&s.last.split) == 15 && s.last.split.slowest_busy == 6 && s.last.split.slowest == 7);
    assert_true(s.last.tflops == 0.5 && s.last.mfu_causal == 0.25);
    assert_true(s.last.expert_tokens_min == 1 && s.last.expert_tokens_max == 9 && s.last.expert_tokens_mean == 4 &&
                s.last.dropped == 6);
    assert_true(s.last.further_rounds == 11 && s.last.room_needed == 1.5);
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 0, 1}, each_metric, &s, NULL), TITAN_OK);
    int listed = s.n; /* after steps that there cannot be: none, not all */
    assert_int_equal(metric_list(db, &(struct metric_filter){1, UINT64_MAX, 10}, each_metric, &s, NULL), TITAN_OK);
    assert_int_equal(metric_list(db, &(struct metric_filter){1, UINT64_C(1) << 63, 10}, each_metric, &s, NULL),
                     TITAN_OK);
    assert_int_equal(s.n, listed);
    assert_true(isnan(s.last.loss) && isnan(s.last.split.data) && s.last.split.slowest == -1);
    /* What the workers wrote: rows that are missing or newer, and nothing that is no row. */
    static const char lines[] =
        "{\"step\":2,\"epoch\":1,\"loss\":9}\n{\"step\":3,\"epoch\":2,\"loss\":4.5,\"loss_max\":5,\"tokens\":7,\"data_"
        "ms\":1,"
        "\"compute_ms\":2,\"communication_ms\":3,\"checkpoint_ms\":4,\"straggler_ms\":5,\"slowest_busy_ms\":6,"
        "\"slowest_rank\":9,\"tflops\":2,\"expert_tokens_min\":3,\"expert_tokens_mean\":5.5,\"expert_tokens_dropped\":"
        "8,\"expert_further_rounds\":12,\"expert_room_needed\":1.25}\nnot JSON\n[1]\n"
        "{\"step\":-1,\"epoch\":2,\"loss\":1}\n{\"step\":1,\"epoch\":1,\"loss\":6.5}\n{\"step\":9,\"epoch\":2";
    const struct buf text = {.data = (char *)lines, .len = sizeof(lines) - 1};
    assert_int_equal(metric_backfill(db, 1, &text, &last, NULL), TITAN_OK);
    assert_true(last.step == 1 && last.epoch == 1 && last.loss == 6.5); /* the last line of a step */
    s = (struct seen_metric){.n = 0};
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 0, 10}, each_metric, &s, NULL), TITAN_OK);
    assert_int_equal(s.n, 3);
    assert_true(s.last.step == 3 && s.last.loss == 4.5 && s.last.loss_max == 5 && s.last.tokens == 7);
    assert_true(s.last.split.stragglers == 5 && s.last.split.slowest == 9);
    assert_true(s.last.tflops == 2 && s.last.mfu_causal == 0 && s.last.expert_tokens_min == 3 &&
                s.last.expert_tokens_mean == 5.5);
    assert_true(s.last.dropped == 8 && s.last.further_rounds == 12 && s.last.room_needed == 1.25);
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 1, 1}, each_metric, &s, NULL), TITAN_OK);
    assert_true(s.last.loss == 3.5);
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 0, 1}, each_metric, &s, NULL), TITAN_OK);
    assert_true(s.last.loss == 6.5 && isnan(s.last.loss_max) && s.last.split.slowest == -1);
    assert_int_equal(metric_backfill(db, 1, &(struct buf){.data = NULL}, &last, NULL), TITAN_OK);
    assert_true(last.step == 0);
    struct buf rest = BUF_INIT;
    assert_int_equal(buf_append(&rest, lines, sizeof(lines) - 1), TITAN_OK);
    metric_skip(&rest, 1);
    assert_int_equal(rest.len, sizeof(lines) - 1);
    metric_skip(&rest, 2);
    assert_true(strncmp(rest.data, "{\"step\":3,", 10) == 0);
    metric_skip(&rest, 8); /* up to what is no row */
    assert_true(strncmp(rest.data, "not JSON", 8) == 0);
    buf_free(&rest);
    metric_skip(&rest, 8);
    db_close(db);
}

/* Steps of an epoch that a later one goes back behind are no steps of the run any more. */
static void test_metrics_lost_steps(void **state)
{
    (void)state;
    static const char lines[] = "{\"step\":1,\"epoch\":1,\"loss\":1}\n{\"step\":2,\"epoch\":1,\"loss\":2}\n"
                                "{\"step\":3,\"epoch\":1,\"loss\":3}\n{\"step\":2,\"epoch\":4,\"loss\":4}\n";
    const struct buf text = {.data = (char *)lines, .len = sizeof(lines) - 1};
    struct db *db = NULL;
    struct metric last;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_metrics, db, NULL), TITAN_OK);
    struct metric m = {.job_id = 1, .epoch = 1};
    for (m.step = 1; m.step <= 5; m.step++)
        assert_int_equal(metric_put(db, &m, NULL), TITAN_OK);
    m.step = m.evaluation.step = 4;
    assert_int_equal(metric_put(db, &m, NULL), TITAN_OK);
    uint64_t reached;
    assert_int_equal(metric_reached(db, 1, 5, 1, &reached, NULL), TITAN_OK);
    assert_int_equal(reached, 5);
    m = (struct metric){.job_id = 1, .step = 3, .epoch = 2};
    assert_int_equal(metric_put(db, &m, NULL), TITAN_OK);
    assert_int_equal(metric_reached(db, 1, 5, 1, &reached, NULL), TITAN_OK);
    assert_int_equal(reached, 2); /* a watcher that has seen step 5 of epoch 1 gets step 3 again */
    assert_int_equal(metric_reached(db, 1, 3, 2, &reached, NULL), TITAN_OK);
    assert_int_equal(reached, 3);
    assert_int_equal(metric_reached(db, 2, 3, 2, &reached, NULL), TITAN_OK);
    assert_int_equal(reached, 0);
    m.step = 4;
    assert_int_equal(metric_put(db, &m, NULL), TITAN_OK);
    struct seen_metric s = {.n = 0};
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 0, 10}, each_metric, &s, NULL), TITAN_OK);
    assert_int_equal(s.n, 4);
    assert_true(s.last.step == 4 && s.last.epoch == 2 && s.last.evaluation.step == 0);
    assert_int_equal(metric_backfill(db, 1, &text, &last, NULL), TITAN_OK); /* step 2 of epoch 4 is the newest */
    s = (struct seen_metric){.n = 0};
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 0, 10}, each_metric, &s, NULL), TITAN_OK);
    assert_int_equal(s.n, 2);
    assert_true(s.last.step == 2 && s.last.loss == 4);
    db_close(db);
}

static bool each_evaluation(const struct metric *m, void *data)
{
    struct seen_metric *s = data;
    if (m->evaluation.step) {
        s->last = *m;
        s->n++;
    }
    return true;
}

static void evaluations_are(struct db *db, int n, uint64_t step, double loss)
{
    struct seen_metric s = {.n = 0};
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 0, 10}, each_evaluation, &s, NULL), TITAN_OK);
    assert_int_equal(s.n, n);
    assert_true(s.last.step == step && s.last.evaluation.step == step && s.last.evaluation.loss == loss);
}

/* An evaluation stands with its step, whichever is stored first; of a later epoch, in place of the one before. */
static void test_evaluations(void **state)
{
    (void)state;
    struct db *db = NULL;
    struct metric last;
    struct schema first = schema_metrics;
    first.version = 1;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&first, db, NULL), TITAN_OK); /* a store from before there were any */
    const struct metric step = {.job_id = 1, .step = 4, .epoch = 1, .loss = 2};
    struct metric e = {
        .job_id = 1, .step = 4, .epoch = 1, .evaluation = {.step = 4, .tokens = 30, .bytes = 60, .loss = 3, .ms = 5}};
    assert_int_equal(db_exec(db, "INSERT INTO metrics VALUES (1, 4, 0, 2, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0)", NULL),
                     TITAN_OK);
    assert_int_equal(schema_migrate(&schema_metrics, db, NULL), TITAN_OK);
    struct seen_metric s = {.n = 0};
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 0, 10}, each_evaluation, &s, NULL), TITAN_OK);
    assert_int_equal(s.n, 0);
    assert_int_equal(metric_put(db, &e, NULL), TITAN_OK);
    evaluations_are(db, 1, 4, 3);
    assert_int_equal(metric_put(db, &step, NULL), TITAN_OK);
    evaluations_are(db, 1, 4, 3);
    e.evaluation.loss = 9;
    assert_int_equal(metric_put(db, &e, NULL), TITAN_OK); /* said again in the same epoch */
    evaluations_are(db, 1, 4, 3);
    e.epoch = 2;
    assert_int_equal(metric_put(db, &e, NULL), TITAN_OK);
    evaluations_are(db, 1, 4, 9);
    /* The workers' own: with a step, on a line of its own, and what is none. */
    static const char lines[] =
        "{\"step\":8,\"epoch\":1,\"loss\":1,\"validation_step\":8,\"validation_loss\":1.5,\"validation_tokens\":4,"
        "\"validation_bytes\":9,\"validation_ms\":2}\n"
        "{\"step\":4,\"epoch\":3,\"time_ms\":1,\"validation_step\":4,\"validation_loss\":7,\"validation_tokens\":4}\n"
        "{\"step\":6,\"epoch\":3,\"validation_step\":6,\"validation_loss\":7,\"validation_tokens\":-4}\n"
        "{\"step\":-5,\"epoch\":3,\"validation_step\":-5,\"validation_loss\":7,\"validation_tokens\":4}\n";
    const struct buf text = {.data = (char *)lines, .len = sizeof(lines) - 1};
    assert_int_equal(metric_backfill(db, 1, &text, &last, NULL), TITAN_OK);
    evaluations_are(db, 2, 8, 1.5);
    s = (struct seen_metric){.n = 0};
    assert_int_equal(metric_list(db, &(struct metric_filter){1, 0, 1}, each_metric, &s, NULL), TITAN_OK);
    assert_true(s.last.loss == 2 && s.last.epoch == 1 && s.last.evaluation.loss == 7); /* no step without a loss */
    db_close(db);
}

struct kept {
    int n;
    struct node_policy policy;
    char reason[64], why[64];
    struct loss losses[4];
};

static void each_policy(const struct node_policy *p, void *data)
{
    struct kept *k = data;
    k->n++;
    k->policy = *p;
    (void)snprintf(k->reason, sizeof(k->reason), "%s", p->reason);
    (void)snprintf(k->why, sizeof(k->why), "%s", p->quarantine_reason);
}

static void each_kept_loss(const struct loss *l, void *data)
{
    struct kept *k = data;
    assert_true(k->n < 4);
    k->losses[k->n++] = *l;
}

/* What is decided about a node replaces what was; losses come back in order, of a job or of all, from a time on. */
static void test_policies_and_losses(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct node_policy p = {.name = "a",
                            .draining = true,
                            .reason = "new disk",
                            .deadline_ms = 1,
                            .window_from_ms = 2,
                            .window_until_ms = 3,
                            .window_lead_ms = 4,
                            .quarantined_until_ms = 5,
                            .quarantines = 6,
                            .quarantine_reason = "crashes"};
    assert_int_equal(node_policy_put(db, &p, NULL, NULL), TITAN_OK);
    p.deadline_ms = 10;
    assert_int_equal(node_policy_put(db, &p, NULL, NULL), TITAN_OK);
    struct kept k = {.n = 0};
    assert_int_equal(node_policy_list(db, each_policy, &k, NULL), TITAN_OK);
    assert_int_equal(k.n, 1);
    assert_true(k.policy.draining && k.policy.deadline_ms == 10 && k.policy.window_from_ms == 2 &&
                k.policy.window_until_ms == 3 && k.policy.window_lead_ms == 4 && k.policy.quarantined_until_ms == 5 &&
                k.policy.quarantines == 6);
    assert_string_equal(k.reason, "new disk");
    assert_string_equal(k.why, "crashes");

    uint64_t existing = 0;
    for (uint64_t id = 1; id <= 2; id++) {
        struct job job = plain_job(id);
        job.spec.priority = -7;
        job.spec.max_hangs = 3;
        job.spec.restart_window_s = 60;
        assert_int_equal(job_submit(db, &job, "text", &existing, NULL), TITAN_OK);
    }
    const struct loss losses[] = {{1, LOSS_CRASH, "a", 100}, {2, LOSS_NODE, "b", 200}, {1, LOSS_OOM, "", 300}};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(loss_add(db, &losses[i], NULL), TITAN_OK);
    k.n = 0;
    assert_int_equal(loss_list(db, 0, 200, each_kept_loss, &k, NULL), TITAN_OK);
    assert_int_equal(k.n, 2);
    assert_true(k.losses[0].cause == LOSS_NODE && k.losses[1].cause == LOSS_OOM);
    k.n = 0;
    assert_int_equal(loss_list(db, 1, 0, each_kept_loss, &k, NULL), TITAN_OK);
    assert_int_equal(k.n, 2);
    assert_true(k.losses[0].at_ms == 100 && k.losses[1].at_ms == 300);

    const struct desired_size desired = {.min = 1, .max = 2, .number = 9};
    assert_int_equal(job_set_desired(db, 2, &desired, NULL, NULL), TITAN_OK);
    assert_int_equal(job_set_desired(db, 3, &desired, NULL, NULL), TITAN_ENOTFOUND);
    struct listed l = {.n = 0};
    assert_int_equal(job_get(db, 2, with_mesh, &l, NULL), TITAN_OK);
    assert_true(l.last.desired.min == 1 && l.last.desired.max == 2 && l.last.desired.number == 9);
    assert_true(l.last.spec.priority == -7 && l.last.spec.max_hangs == 3 && l.last.spec.restart_window_s == 60);
    db_close(db);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_are_sound),
        cmocka_unit_test(test_group_commit),
        cmocka_unit_test(test_secret),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_newer_store_is_left_alone),
        cmocka_unit_test(test_damaged_store),
        cmocka_unit_test(test_reader_cannot_write),
        cmocka_unit_test(test_every_move_of_a_job),
        cmocka_unit_test(test_submit_scans_no_table),
        cmocka_unit_test(test_idempotency_key),
        cmocka_unit_test(test_job_is_filled),
        cmocka_unit_test(test_lists_and_pages),
        cmocka_unit_test(test_epochs_and_checkpoints),
        cmocka_unit_test(test_events_in_order),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_metrics_lost_steps),
        cmocka_unit_test(test_evaluations),
        cmocka_unit_test(test_migration),
        cmocka_unit_test(test_machine_migration),
        cmocka_unit_test(test_older_unclean_store),
        cmocka_unit_test(test_policies_and_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
