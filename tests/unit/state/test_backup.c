/* SPDX-License-Identifier: Apache-2.0 */
/* Backups: of a store that is being written, checked, and put back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "state/backup.h"
#include "state/event.h"
#include "state/group.h"
#include "state/job.h"
#include "state/schema.h"

static const struct backup_checks rederive = {.rederive = true};

struct fixture {
    char dir[64], store[96], copy[96];
    struct db *db;
    uint64_t next;
};

static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    strcpy(f->dir, "/tmp/titan-backup-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->store, sizeof(f->store), "%s/titan.db", f->dir);
    (void)snprintf(f->copy, sizeof(f->copy), "%s/copy.db", f->dir);
    assert_int_equal(db_open(f->store, DB_WRITER, true, &f->db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, f->db, NULL), TITAN_OK);
    assert_int_equal(db_exec(f->db, "INSERT INTO meta VALUES ('term', 7); UPDATE machine SET clean = 0", NULL),
                     TITAN_OK);
}

static void tear_down(struct fixture *f)
{
    db_close(f->db);
    assert_int_equal(dir_remove(f->dir, NULL), TITAN_OK);
}

static titan_status write_job(struct db *db, void *arg, struct titan_error *err)
{
    struct fixture *f = arg;
    struct job job = {.id = ++f->next, .name = "n", .user = "u", .submitted_at_ms = 5};
    struct job_status status = {.restarts = 1};
    struct event e = {.job_id = job.id, .at_ms = 6, .type = "job.state", .message = "m", .rank = -1};
    uint64_t existing = 0;
    strcpy(job.spec.device, "cpu");
    job.spec.max_workers = 1;
    TRY(job_submit(db, &job, "a recipe", &existing, err));
    return job_move(db, &(struct job){.id = job.id, .state = JOB_FORMING, .status = status}, &e, err);
}

static void write_jobs(struct fixture *f, int n)
{
    struct group_stats stats = {0};
    for (int i = 0; i < n; i++) {
        struct group_write w = {.fn = write_job, .arg = f};
        group_commit(f->db, NULL, &w, &stats);
        assert_int_equal(w.err.status, TITAN_OK);
        group_checkpoint(f->db);
    }
}

static struct backup_report verify(const char *path)
{
    struct backup_report r;
    struct titan_error err = {0};
    if (backup_verify(path, &rederive, &r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return r;
}

enum { COPIES = 20, JOBS_A_COPY = 20 };

struct writing {
    struct fixture *f;
    sem_t due; /* jobs to write: a bound, since verifying takes as long as the store is large */
    _Atomic uint64_t done;
};

static void *write_on(void *data)
{
    struct writing *w = data;
    for (int i = 0; i < COPIES * JOBS_A_COPY; i++) {
        while (sem_wait(&w->due) != 0)
            ;
        write_jobs(w->f, 1);
        w->done = w->f->next;
    }
    return NULL;
}

/* Whatever was durable before the copy began is in it; and a copy is of one moment. */
static void test_copy_of_a_busy_store(void **state)
{
    (void)state;
    struct fixture f;
    struct titan_error err = {0};
    pthread_t thread;
    set_up(&f);
    write_jobs(&f, 50);
    struct writing w = {.f = &f, .done = 50};
    sem_init(&w.due, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, write_on, &w), 0);
    for (int i = 0; i < COPIES; i++) {
        for (int n = 0; n < JOBS_A_COPY; n++)
            sem_post(&w.due);
        uint64_t before = w.done;
        if (backup_copy(f.store, f.copy, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        struct backup_report r = verify(f.copy);
        assert_true((uint64_t)r.jobs >= before && r.jobs == r.last_job);
        assert_int_equal(r.chained, 2 * r.jobs);
        assert_int_equal(r.replay.changes, 2 * r.jobs);
        assert_int_equal(r.term, 7);
    }
    pthread_join(thread, NULL);
    sem_destroy(&w.due);
    assert_int_equal(verify(f.store).jobs, f.next); /* the writer was not disturbed */
    tear_down(&f);
}

static void test_restore(void **state)
{
    (void)state;
    struct fixture f;
    struct titan_error err = {0};
    struct restore_report r;
    char path[96];
    set_up(&f);
    write_jobs(&f, 10);
    assert_int_equal(backup_copy(f.store, f.copy, &err), TITAN_OK);
    write_jobs(&f, 5);
    db_close(f.db);
    f.db = NULL;
    (void)snprintf(path, sizeof(path), "%s/run", f.dir);
    assert_int_equal(dir_make(path, NULL), TITAN_OK);
    (void)snprintf(path, sizeof(path), "%s/run/term", f.dir);
    assert_int_equal(file_replace(path, "41\n", 3, NULL), TITAN_OK);
    (void)snprintf(path, sizeof(path), "%s/jobs/99", f.dir);
    assert_int_equal(dir_make(path, NULL), TITAN_OK);

    if (backup_restore(f.copy, f.dir, 0, 1000, &r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(r.backup.jobs, 10);
    assert_int_equal(r.term, 41 + BACKUP_TERM_STEP); /* an agent has seen 41 */
    assert_int_equal(r.next_job, 100);               /* a job's folder has 99 */
    assert_int_equal(verify(r.aside).jobs, 15);      /* nothing is thrown away */
    struct backup_report now = verify(f.store);
    assert_int_equal(now.jobs, 10);
    assert_int_equal(now.term, r.term);
    assert_int_equal(now.last_event, 30 + BACKUP_ID_STEP + 1); /* 15 jobs had told 30 events */

    if (backup_restore(f.copy, f.dir, 5000000, 2000, &r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(r.term, 5000000 + BACKUP_TERM_STEP);
    tear_down(&f);
}

/* Any page of a backup gone wrong; a newer Titan's; something else. */
static void test_what_is_not_restored(void **state)
{
    (void)state;
    struct fixture f;
    struct titan_error err = {0};
    struct restore_report r;
    struct db *db = NULL;
    set_up(&f);
    write_jobs(&f, 200);
    assert_int_equal(backup_copy(f.store, f.copy, &err), TITAN_OK);
    _cleanup_(buf_free) struct buf good = BUF_INIT;
    assert_int_equal(file_read(f.copy, 1 << 26, &good, NULL), TITAN_OK);
    int found = 0, pages = (int)(good.len / 4096);
    for (int page = 0; page < pages; page++) {
        _cleanup_(buf_free) struct buf bad = BUF_INIT;
        assert_int_equal(buf_append(&bad, good.data, good.len), TITAN_OK);
        memset(bad.data + 4096 * (size_t)page, 0xa5, 4096);
        assert_int_equal(file_replace(f.copy, bad.data, bad.len, NULL), TITAN_OK);
        found += backup_restore(f.copy, f.dir, 0, 1000, &r, &err) != TITAN_OK;
    }
    /* Pages that are not in use are no damage. */
    assert_true(pages > 20 && found >= pages - 2);
    assert_int_equal(file_replace(f.copy, good.data, good.len, NULL), TITAN_OK);
    assert_int_equal(db_open(f.copy, DB_WRITER, true, &db, NULL), TITAN_OK);
    assert_int_equal(db_exec(db, "PRAGMA user_version=99", NULL), TITAN_OK);
    db_close(db);
    assert_int_equal(backup_restore(f.copy, f.dir, 0, 1000, &r, &err), TITAN_EVERSION);
    (void)unlink(f.copy);
    assert_int_equal(backup_restore(f.copy, f.dir, 0, 1000, &r, &err), TITAN_ENOTFOUND);
    tear_down(&f);
}

/* What a store does when it is written stands in its schema: one that was put in by another hand is no backup of ours.
 */
static void test_other_schemas(void **state)
{
    (void)state;
    static const struct {
        const char *sql, *words;
    } cases[] = {
        {"CREATE TRIGGER alive AFTER UPDATE ON tokens BEGIN UPDATE tokens SET revoked_at_ms = 0; END",
         "has a trigger 'alive', which Titan does not make"},
        {"CREATE VIEW zzz AS SELECT * FROM tokens", "has a view 'zzz', which Titan does not make"},
        {"CREATE TABLE aaa (x)", "has a table 'aaa', which Titan does not make"},
        {"DROP INDEX jobs_folder", "lacks the index 'jobs_folder'"},
        {"ALTER TABLE tokens ADD COLUMN more INTEGER",
         "the table 'tokens' of the job store is another than Titan makes"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct fixture f;
        struct titan_error err = {0};
        struct restore_report r;
        struct backup_report report;
        struct db *db = NULL;
        set_up(&f);
        write_jobs(&f, 2);
        assert_int_equal(backup_copy(f.store, f.copy, &err), TITAN_OK);
        assert_int_equal(backup_verify(f.copy, &rederive, &report, &err), TITAN_OK);
        assert_int_equal(db_open(f.copy, DB_WRITER, true, &db, NULL), TITAN_OK);
        assert_int_equal(sqlite3_exec(db_handle(db), cases[i].sql, NULL, NULL, NULL), SQLITE_OK);
        db_close(db);
        assert_int_equal(backup_verify(f.copy, &rederive, &report, &err), TITAN_ECORRUPT);
        assert_non_null(strstr(err.msg, cases[i].words));
        assert_int_equal(backup_restore(f.copy, f.dir, 0, 1000, &r, &err), TITAN_ECORRUPT);
        tear_down(&f);
    }
}

/* A store that is whole, and in which a job is not what its events have made of it, is not restored. */
static void test_not_what_events_made(void **state)
{
    (void)state;
    struct fixture f;
    struct titan_error err = {0};
    struct restore_report r;
    struct backup_report report;
    struct db *db = NULL;
    set_up(&f);
    write_jobs(&f, 2);
    assert_int_equal(backup_copy(f.store, f.copy, &err), TITAN_OK);
    assert_int_equal(db_open(f.copy, DB_WRITER, true, &db, NULL), TITAN_OK);
    assert_int_equal(db_exec(db, "UPDATE jobs SET restarts = restarts + 1 WHERE id = 1", NULL), TITAN_OK);
    db_close(db);
    assert_int_equal(backup_verify(f.copy, &(struct backup_checks){0}, &report, &err), TITAN_OK);
    assert_int_equal(backup_verify(f.copy, &(struct backup_checks){.rederive = true}, &report, &err), TITAN_ECORRUPT);
    assert_int_equal(backup_restore(f.copy, f.dir, 0, 1000, &r, &err), TITAN_ECORRUPT);
    assert_int_equal(verify(f.store).jobs, 2);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_of_a_busy_store), cmocka_unit_test(test_restore),
        cmocka_unit_test(test_what_is_not_restored), cmocka_unit_test(test_other_schemas),
        cmocka_unit_test(test_not_what_events_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
