/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator that starts on rows that cannot be: the job they are of is passed over, or the start is refused where
 * they are of a node. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "daemon/coordinator/shell/store_restore.h"
#include "state/schema.h"
#include "tests/support/core_bench.h"

static struct db *db;

static void store(struct bench *b)
{
    struct titan_error err = {0};
    if (change_apply(db, b->out.changes, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    batch_free(&b->out);
    batch_init(&b->out);
}
#define STORED(what) what, store(&b)

/* Job 1 has lost one of four workers on node a and trains on in its second epoch; the node is to be drained. */
static int set_up(void **state)
{
    static const struct core_drain drain = {.reason = "new disk", .deadline_ms = 60000};
    struct job job = job_of(1, 2, 4);
    struct bench b;
    uint64_t there = 0;
    (void)state;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    job.spec.restart_window_s = 3600;
    job.spec.max_node_losses = 3;
    open_bench(&b);
    STORED(assert_int_equal(registration(&b, 1, "a", 4, NULL, 0), TITAN_OK));
    STORED(heartbeat(&b, 1));
    assert_int_equal(job_submit(db, &job, "", &there, NULL), TITAN_OK);
    STORED(submit_job(&b, &job));
    for (uint64_t w = 1; w <= 4; w++)
        STORED(ready(&b, .worker = w));
    STORED(progress(&b, .worker = 1, .epoch = 1, .step = 7));
    STORED(checkpoint(&b, .worker = 1, .epoch = 1, .step = 5));
    STORED(exited(&b, .worker = 4, .code = -1));
    for (uint64_t w = 1; w <= 3; w++)
        STORED(quiesced(&b, .worker = w, .epoch = 1, .step = 7));
    STORED(progress(&b, .worker = 1, .epoch = 2, .step = 8));
    STORED(assert_int_equal(core_drain(b.core, "a", &drain, at(&b), &b.out, NULL), TITAN_OK));
    close_bench(&b);
    assert_int_equal(db_exec(db, "PRAGMA foreign_keys=OFF; PRAGMA ignore_check_constraints=ON", NULL), TITAN_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    db_close(db);
    return 0;
}

static void passed_over(uint64_t job_id, const char *why, void *data)
{
    assert_int_equal(job_id, 1);
    assert_true(*why);
    ++*(int *)data;
}

/* A start on the store after this damage; *ret_over: jobs that were passed over. */
static titan_status start(const char *damage, int *ret_over)
{
    struct titan_error err = {0};
    struct core_options options = {
        .term = 2, .seed = 1, .jobs_dir = "/jobs", .heartbeat_ms = 100, .node_timeout_ms = 1000};
    struct bench b;
    *ret_over = 0;
    assert_int_equal(db_exec(db, "SAVEPOINT damage", NULL), TITAN_OK);
    if (db_exec(db, damage, &err) != TITAN_OK)
        fail_msg("%s: %s", damage, err.msg);
    b = (struct bench){.now = 4000};
    batch_init(&b.out);
    assert_int_equal(worker_last_id(db, &options.next_worker_id, NULL), TITAN_OK);
    options.next_worker_id++;
    assert_int_equal(core_new(&options, &b.core, NULL), TITAN_OK);
    const titan_status status = core_restore(b.core, db, at(&b), passed_over, ret_over, &err);
    if (status == TITAN_OK) {
        core_check(b.core);
        assert_int_equal(registration(&b, 11, "a", 4, NULL, 0), TITAN_OK);
        tick(&b, 20000);
        core_check(b.core);
    }
    close_bench(&b);
    assert_int_equal(db_exec(db, "ROLLBACK TO damage; RELEASE damage", NULL), TITAN_OK);
    return status;
}

/* The last of three members leaves the second epoch. */
#define LEAVES "UPDATE epochs SET world_size = 2, leavers = 1 WHERE number = 2; UPDATE jobs SET world_size = 2"

static void test_rows_of_a_job(void **state)
{
    (void)state;
    static const char *const damages[] = {
        "UPDATE jobs SET state = 0",
        "UPDATE jobs SET state = -1",
        "UPDATE jobs SET max_workers = 2000000000",
        "UPDATE jobs SET max_workers = 0",
        "UPDATE jobs SET min_workers = 5",
        "UPDATE jobs SET worlds = x''",
        "UPDATE jobs SET step = 101",
        "UPDATE jobs SET steps = -1",
        "UPDATE jobs SET evaluation_step = -1",
        "UPDATE jobs SET world_size = 2",
        "UPDATE jobs SET state = 6",
        "UPDATE epochs SET state = 4 WHERE number = 2",
        "UPDATE runs SET state = 2",
        "UPDATE runs SET state = 5; UPDATE epochs SET state = 3 WHERE number = 2; UPDATE jobs SET state = 4",
        "UPDATE epochs SET world_size = 0 WHERE number = 2",
        "UPDATE epochs SET world_size = -1, leavers = 0 WHERE number = 2",
        "UPDATE epochs SET world_size = -2, leavers = 1 WHERE number = 2", /* and one, it is 0 */
        "UPDATE epochs SET world_size = 3 * (number - 1), formed_at_ms = 0",
        "UPDATE epochs SET state = 66 WHERE number = 2",
        "UPDATE epochs SET source_epoch = 2 WHERE number = 2",
        "UPDATE epochs SET source = 0 WHERE number = 2",
        "UPDATE epochs SET resume_step = -1 WHERE number = 2",
        "UPDATE members SET worker_id = 0 WHERE epoch = 2 AND rank = 1",
        "UPDATE members SET worker_id = 0 WHERE epoch = 1 AND rank = 1",
        LEAVES "; UPDATE members SET worker_id = 0 WHERE epoch = 2 AND rank = 2",
        "UPDATE workers SET state = 0 WHERE id = 2",
        "UPDATE workers SET state = -7 WHERE id = 2",
        "UPDATE workers SET node = '' WHERE id = 2",
        "UPDATE workers SET id = -5 WHERE id = 2",
        "UPDATE checkpoints SET step = -5",
    };
    int over;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(start(i ? LEAVES : "SELECT 1", &over), TITAN_OK);
        assert_int_equal(over, 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(damages); i++) {
        const titan_status status = start(damages[i], &over);
        if (status != TITAN_OK || over != 1)
            fail_msg("%s: status %d, %d passed over", damages[i], (int)status, over);
    }
}

static void test_rows_of_a_node(void **state)
{
    (void)state;
    static const char *const damages[] = {
        "UPDATE nodes SET state = 7",
        "UPDATE nodes SET name = ''",
        "UPDATE nodes SET last_seen_ms = -9223372036854775808",
        "UPDATE node_policies SET window_until_ms = 9223372036854775807",
        "UPDATE node_policies SET quarantined_until_ms = 9223372036854775807",
        "UPDATE node_policies SET quarantined_until_ms = 9000000, quarantines = 0",
        "UPDATE node_policies SET deadline_ms = -9223372036854775808",
        "UPDATE losses SET at_ms = 9223372036854775807",
        "UPDATE losses SET cause = 9",
    };
    int over;
    for (size_t i = 0; i < ARRAY_SIZE(damages); i++)
        if (start(damages[i], &over) != TITAN_ECORRUPT)
            fail_msg("%s: was believed", damages[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rows_of_a_job, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rows_of_a_node, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
