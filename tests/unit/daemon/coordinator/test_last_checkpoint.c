/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that is told to stop has to write a checkpoint first when its state goes with it, however many copies there
 * are in memory, and not when others go on from what it held. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/core_store.h"

static struct core_store s;
static uint64_t term;
static Titan__Internal__StopWorkers stop; /* the newest of job 1; grace_ms UINT32_MAX = none */

static void commit(void)
{
    for (const struct batch_message *m = s.b.out.messages; m; m = m->next)
        if (m->message->kind_case == STOP && m->message->stop->job_id == 1)
            stop = *m->message->stop;
    commit_store(&s);
}

static void forget_stop(void)
{
    stop = (Titan__Internal__StopWorkers){.grace_ms = UINT32_MAX};
}

static bool stopped(void)
{
    return stop.grace_ms != UINT32_MAX;
}

static void submit_stored(uint64_t id, uint32_t workers, int priority)
{
    struct job job = job_of(id, workers, workers);
    job.spec.priority = priority;
    submit_store(&s, &job);
    commit();
}

static void pass(int64_t ms)
{
    pass_time(&s, term, ms, commit);
}

/* Job 1 trains with workers 1 and 2 on node a (session 1), which has no more slots. */
static int setup(void **state)
{
    (void)state;
    open_store(&s);
    term = 1;
    forget_stop();
    assert_int_equal(registration(&s.b, 1, "a", 2, NULL, 0), TITAN_OK);
    commit();
    submit_stored(1, 2, 0);
    for (uint64_t w = 1; w <= 2; w++) {
        ready(&s.b, .worker = w);
        commit();
    }
    progress(&s.b, .worker = 1, .epoch = 1, .step = 7);
    commit();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_store(&s);
    return 0;
}

static void cancel(bool checkpoint, uint32_t grace_ms)
{
    struct core_cancel request = {.reason = "why not", .grace_ms = grace_ms};
    if (checkpoint)
        core_want_checkpoint(s.b.core, 1);
    assert_int_equal(core_cancel(s.b.core, 1, &request, at(&s.b), &s.b.out, NULL), TITAN_OK);
    commit();
}

/* Another coordinator over the same store; the node comes back with both workers, session 2. */
static void restart(void)
{
    Titan__Internal__LiveWorker live[2], *list[2];
    forget_stop();
    restart_store(&s, ++term);
    for (uint64_t i = 0; i < 2; i++) {
        live_worker(&live[i], i + 1);
        list[i] = &live[i];
    }
    assert_int_equal(registration(&s.b, term, "a", 2, list, 2), TITAN_OK);
    commit();
}

static void test_cancel(void **state)
{
    (void)state;
    cancel(false, 10000);
    assert_int_equal(stop.grace_ms, 10000);
    assert_false(stop.must_checkpoint); /* the recipe says whether it writes one */
}

static void test_cancel_with_checkpoint(void **state)
{
    (void)state;
    cancel(true, 10000);
    assert_int_equal(stop.grace_ms, 10000);
    assert_true(stop.must_checkpoint);
}

static void test_cancel_at_once(void **state)
{
    (void)state;
    cancel(true, 0);
    assert_int_equal(stop.grace_ms, 0);
    assert_false(stop.must_checkpoint); /* there is no time for it */
}

static void is_stored(const struct job *job, void *data)
{
    assert_int_equal(job->state, JOB_CANCELLED);
    assert_int_equal(job->status.step, *(const uint64_t *)data);
}

/* The steps that are made before the workers stop are stored with the job's end. */
static void test_cancel_goes_on(void **state)
{
    (void)state;
    uint64_t step = 9;
    cancel(false, 10000);
    progress(&s.b, .worker = 1, .epoch = 1, .step = 9);
    commit();
    progress(&s.b, .worker = 2, .epoch = 1, .step = 8);
    commit();
    for (uint64_t w = 1; w <= 2; w++) {
        exited(&s.b, .worker = w);
        commit();
    }
    assert_int_equal(job_get(s.db, 1, is_stored, &step, NULL), TITAN_OK);
}

/* A worker at its last checkpoint is not killed because the coordinator has restarted. */
static void test_cancel_over_a_restart(void **state)
{
    (void)state;
    cancel(true, 60000);
    restart();
    assert_true(stopped());
    assert_true(stop.grace_ms >= 60000);
    forget_stop();
    pass(30000);
    assert_false(stopped());
}

static void test_requeue_over_a_restart(void **state)
{
    (void)state;
    submit_stored(2, 2, 9);
    assert_true(stop.must_checkpoint);
    restart();
    assert_true(stop.must_checkpoint);
    assert_int_equal(stop.grace_ms, 120000);
    forget_stop();
    pass(60000);
    assert_false(stopped());
    pass(90000);
    assert_true(stopped());
    assert_int_equal(stop.grace_ms, 0); /* that was long enough */
}

static void test_preempted(void **state)
{
    (void)state;
    submit_stored(2, 2, 9);
    assert_int_equal(stop.grace_ms, 120000);
    assert_true(stop.must_checkpoint);
}

static void test_drain_and_maintenance(void **state)
{
    (void)state;
    const struct core_drain drains[] = {{.deadline_ms = 5000},
                                        {.from_ms = at(&s.b).wall_ms + 6000, .for_ms = 30000, .deadline_ms = 1000}};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(core_drain(s.b.core, "a", &drains[i], at(&s.b), &s.b.out, NULL), TITAN_OK);
        commit();
        pass(4000);
        assert_false(stopped());
        pass(2500);
        assert_true(stop.must_checkpoint);
        assert_int_equal(stop.grace_ms, 120000);
        teardown(NULL);
        setup(NULL);
    }
}

/* Between two epochs no worker can write one: the newest steps are in memory only, and what holds them stays until the
 * next epoch runs, with a replacement although another job waits for its slot. */
static void test_between_epochs(void **state)
{
    (void)state;
    exited(&s.b, .worker = 2, .code = -1);
    commit();
    quiesced(&s.b, .worker = 1, .epoch = 1, .step = 7);
    commit();
    submit_stored(2, 2, 9);
    assert_false(stopped());
    pass(500);
    assert_false(stopped());
    ready(&s.b, .worker = 3); /* the replacement */
    commit();
    assert_false(stopped());
    progress(&s.b, .worker = 1, .epoch = 2, .step = 8);
    commit();
    assert_true(stop.must_checkpoint);
    assert_int_equal(stop.grace_ms, 120000);
}

/* A worker that has handed its part over takes nothing with it. */
static void test_departing(void **state)
{
    (void)state;
    assert_int_equal(registration(&s.b, 2, "b", 2, NULL, 0), TITAN_OK);
    commit();
    const struct core_drain d = {0};
    assert_int_equal(core_drain(s.b.core, "a", &d, at(&s.b), &s.b.out, NULL), TITAN_OK);
    commit();
    for (uint64_t w = 3; w <= 4; w++) {
        ready(&s.b, .session = 2, .worker = w);
        commit();
    }
    for (uint64_t w = 1; w <= 2; w++) {
        quiesced(&s.b, .worker = w, .epoch = 1, .step = 8);
        commit();
    }
    assert_false(stopped());
    progress(&s.b, .session = 2, .worker = 3, .epoch = 2, .step = 9);
    commit();
    assert_int_equal(stop.grace_ms, 0);
    assert_false(stop.must_checkpoint);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_cancel),         TEST(test_cancel_with_checkpoint), TEST(test_cancel_at_once),
        TEST(test_cancel_goes_on), TEST(test_cancel_over_a_restart),  TEST(test_requeue_over_a_restart),
        TEST(test_preempted),      TEST(test_drain_and_maintenance),  TEST(test_between_epochs),
        TEST(test_departing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
