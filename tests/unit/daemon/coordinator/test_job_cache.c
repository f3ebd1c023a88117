/* SPDX-License-Identifier: Apache-2.0 */
/* Rows in memory are the store's, or are not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/shell/job_cache.h"
#include "state/schema.h"

static struct db *memory_db(void)
{
    struct db *db = NULL;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    return db;
}

static void add_job(struct db *db, uint64_t id)
{
    struct job job = {.id = id, .name = "a name", .user = "u", .submitted_at_ms = 5, .request_hash = id};
    uint64_t existing = 0;
    strcpy(job.spec.device, "cpu");
    strcpy(job.spec.mesh, "tp=2");
    job.spec.max_workers = 4;
    assert_int_equal(job_submit(db, &job, "text", &existing, NULL), TITAN_OK);
}

struct seen {
    struct job job;
    char name[32], reason[64];
};

static void with_job(const struct job *job, void *data)
{
    struct seen *s = data;
    s->job = *job;
    (void)snprintf(s->name, sizeof(s->name), "%s", job->name);
    (void)snprintf(s->reason, sizeof(s->reason), "%s", job->reason);
}

static struct seen look(struct job_cache *c, struct db *db, uint64_t id)
{
    struct seen s = {.name = ""};
    assert_int_equal(job_cache_get(c, db, id, with_job, &s, NULL), TITAN_OK);
    assert_int_equal(s.job.id, id);
    return s;
}

static void set_reason(struct db *db, uint64_t id, const char *reason)
{
    assert_int_equal(db_run(db, NULL, "UPDATE jobs SET reason = ? WHERE id = ?", "tu", reason, id), TITAN_OK);
}

static void test_rows_are_kept(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct job_cache *c = job_cache_new();
    struct titan_error err = {0};
    struct seen s;
    assert_int_equal(job_cache_get(c, db, 1, with_job, &s, &err), TITAN_ENOTFOUND);
    add_job(db, 1); /* that there was none is not remembered */
    s = look(c, db, 1);
    assert_string_equal(s.name, "a name");
    set_reason(db, 1, "behind its back");
    s = look(c, db, 1);
    assert_string_equal(s.reason, "");
    assert_string_equal(s.job.spec.mesh, "tp=2");
    add_job(db, 1 + 1024); /* takes the same place */
    (void)look(c, db, 1 + 1024);
    assert_string_equal(look(c, db, 1).reason, "behind its back");
    job_cache_free(c);
    db_close(db);
}

/* While a change is on its way, before it is stored and after, the store is asked. */
static void test_change_under_way(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct job_cache *c = job_cache_new();
    struct change first = {.kind = CHANGE_JOB_REASON, .job.id = 7}, second = {.kind = CHANGE_JOB_UPDATE, .job.id = 7};
    struct change other = {.kind = CHANGE_EVENT, .next = &first};
    add_job(db, 7);
    (void)look(c, db, 7);
    job_cache_begin(c, &other);
    job_cache_begin(c, &second);
    (void)look(c, db, 7); /* not kept */
    set_reason(db, 7, "first");
    assert_string_equal(look(c, db, 7).reason, "first");
    job_cache_end(c, &other);
    set_reason(db, 7, "second");
    assert_string_equal(look(c, db, 7).reason, "second");
    job_cache_end(c, &second);
    assert_string_equal(look(c, db, 7).reason, "second");
    set_reason(db, 7, "behind its back");
    assert_string_equal(look(c, db, 7).reason, "second"); /* kept again */
    job_cache_free(c);
    db_close(db);
}

/* Without memory for one. */
static void test_no_cache(void **state)
{
    (void)state;
    struct db *db = memory_db();
    struct change change = {.kind = CHANGE_JOB_UPDATE, .job.id = 1};
    add_job(db, 1);
    job_cache_begin(NULL, &change);
    assert_string_equal(look(NULL, db, 1).name, "a name");
    job_cache_end(NULL, &change);
    job_cache_free(NULL);
    db_close(db);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_kept),
        cmocka_unit_test(test_change_under_way),
        cmocka_unit_test(test_no_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
