/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator starts again beside a node that has lost its workers, and the node that holds the state is back late.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/coordinator/shell/store_restore.h"
#include "state/schema.h"
#include "support/core_bench.h"

static struct bench b;
static struct db *db;
static bool stopped;                    /* worker 2 has been told to stop */
static Titan__Internal__FormEpoch form; /* the newest, its lists with it; epoch 0 = none */
static size_t n_members;
static uint64_t member;

static void commit(void)
{
    struct titan_error err = {0};
    for (const struct batch_message *m = b.out.messages; m; m = m->next) {
        stopped |= m->message->kind_case == STOP && m->message->stop->worker_ids[0] == 2;
        if (m->message->kind_case == FORM) {
            form = *m->message->form;
            n_members = form.n_members;
            member = form.members[0]->worker_id;
        }
    }
    if (change_apply(db, b.out.changes, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    batch_free(&b.out);
}

static void pass(uint64_t session, int64_t ms)
{
    for (int64_t end = b.now + ms; b.now < end;) {
        heartbeat(&b, session);
        commit();
        tick(&b, 100);
        commit();
    }
}

/* Workers 1 on node a and 2 on node b train in epoch 1; its checkpoint is of step 5, its newest step is 7. Then the
 * coordinator starts again, and node a comes back without its worker. */
static int setup(void **state)
{
    (void)state;
    open_bench(&b);
    form = (Titan__Internal__FormEpoch){0};
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    commit();
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    commit();
    struct job job = job_of(1, 1, 2);
    uint64_t existing = 0;
    assert_int_equal(job_submit(db, &job, "recipe", &existing, NULL), TITAN_OK);
    submit_job(&b, &job);
    commit();
    for (uint64_t w = 1; w <= 2; w++) {
        ready(&b, .session = w, .worker = w);
        commit();
    }
    checkpoint(&b, .session = 1, .worker = 1, .epoch = 1, .step = 5);
    commit();
    for (uint64_t w = 1; w <= 2; w++) {
        progress(&b, .session = w, .worker = w, .epoch = 1, .step = 7);
        commit();
    }
    struct core_options options = {
        .term = 2, .seed = 1, .jobs_dir = "/jobs", .heartbeat_ms = 100, .node_timeout_ms = 1000, .next_worker_id = 3};
    core_free(b.core);
    assert_int_equal(core_new(&options, &b.core, NULL), TITAN_OK);
    assert_int_equal(core_restore(b.core, db, at(&b), NULL), TITAN_OK);
    assert_int_equal(registration(&b, 3, "a", 1, NULL, 0), TITAN_OK);
    commit();
    stopped = false;
    form.epoch = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_bench(&b);
    db_close(db);
    return 0;
}

/* Longer than members have to leave an epoch: what node b holds is waited for, and the run goes on from it. */
static void test_back_in_time(void **state)
{
    (void)state;
    pass(3, 3000);
    assert_false(stopped);
    assert_int_equal(form.epoch, 0);
    Titan__Internal__LiveWorker live = TITAN__INTERNAL__LIVE_WORKER__INIT, *list[] = {&live};
    live.job_id = 1;
    live.worker_id = 2;
    live.epoch = 1;
    live.step = 7;
    live.state = TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING; /* what it holds comes behind */
    live.address = (char *)"h:1";
    assert_int_equal(registration(&b, 4, "b", 1, list, 1), TITAN_OK);
    commit();
    pass(4, 900); /* its worker has as long to leave the epoch as others had */
    quiesced(&b, .session = 4, .worker = 2, .epoch = 1, .step = 7);
    commit();
    pass(4, 200);
    assert_int_equal(form.epoch, 2);
    assert_int_equal(form.source, TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY);
    assert_int_equal(form.resume_step, 7);
    assert_int_equal(n_members, 1);
    assert_int_equal(member, 2);
    assert_false(stopped);
}

/* It does not come back: the checkpoint is what is left, with a worker on node a. */
static void test_never_back(void **state)
{
    (void)state;
    pass(3, 12000);
    ready(&b, .session = 3, .worker = 3);
    commit();
    pass(3, 3000);
    assert_int_equal(form.epoch, 2);
    assert_int_equal(form.source, TITAN__INTERNAL__STATE_SOURCE__STATE_CHECKPOINT);
    assert_int_equal(form.resume_step, 5);
    assert_int_equal(member, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_back_in_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_never_back, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
