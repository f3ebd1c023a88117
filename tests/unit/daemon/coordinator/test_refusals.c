/* SPDX-License-Identifier: Apache-2.0 */
/* A node that refuses to start workers of a job: that says nothing of the run, which goes on elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/core_bench.h"

static const char why[] = "user alice is uid 1001 for the coordinator and uid 1002 on node a";

/* Exit code 2: of a limit beyond the machine, which is no bad input of the job. */
static void refused(struct bench *b, uint64_t session, uint64_t job, uint64_t worker)
{
    Titan__Internal__WorkerExited body = TITAN__INTERNAL__WORKER_EXITED__INIT;
    body.job_id = job;
    body.worker_id = worker;
    body.exit_code = 2;
    body.cause = TITAN__INTERNAL__EXIT_CAUSE__CAUSE_REFUSED;
    body.reason = (char *)(uintptr_t)why;
    MESSAGE(m, WORKER_EXITED, worker_exited, body);
    assert_int_equal(say(b, session, &m), TITAN_OK);
}

static void assert_uncharged(const struct bench *b, uint64_t job)
{
    struct job_status status;
    for (const struct change *c = b->out.changes; c; c = c->next) {
        assert_int_not_equal(c->kind, CHANGE_LOSS_ADD);
        assert_true(c->kind != CHANGE_WORKER_MOVE || !c->worker.counted);
    }
    assert_int_equal(core_job_status(b->core, job, &status) ? status.restarts : 0, 0);
}

static const struct change *reason_of(const struct bench *b, enum job_state state)
{
    const struct change *c = moved(b, state);
    assert_non_null(c);
    return c;
}

static void assert_reason(const struct bench *b, uint64_t job, const char *expected)
{
    char text[400];
    assert_true(core_job_reason(b->core, job, text, sizeof(text)));
    assert_string_equal(text, expected);
}

static void test_no_node_is_left(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 4, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 2, 2);
    job.spec.max_restarts = 1000;
    submit_job(&b, &job);
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 2);
    refused(&b, 1, 1, 1);
    assert_string_equal(
        reason_of(&b, JOB_FAILED)->job.reason,
        "node a refuses its workers: user alice is uid 1001 for the coordinator and uid 1002 on node a");
    assert_string_equal(event(&b, "job.refused")->message, moved(&b, JOB_FAILED)->job.reason);
    assert_string_equal(event(&b, "job.refused")->node, "a");
    assert_null(event(&b, "worker.exited")->detail ? strstr(event(&b, "worker.exited")->detail, "\"counted\":true")
                                                   : NULL);
    assert_uncharged(&b, 1);
    refused(&b, 1, 1, 2);
    assert_null(event(&b, "job.refused"));
    assert_null(told(&b, START, 0));
    submit(&b, 2, 4, 4); /* nothing is left of it, and the node takes other jobs */
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 4);
    close_bench(&b);
}

static void test_goes_on_elsewhere(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    submit(&b, 1, 2, 2);
    assert_int_equal(registration(&b, 2, "b", 2, NULL, 0), TITAN_OK);
    refused(&b, 1, 1, 1);
    assert_int_equal(told(&b, START, 2)->start->n_worker_ids, 1); /* at once */
    assert_uncharged(&b, 1);
    refused(&b, 1, 1, 2);
    assert_null(event(&b, "job.refused")); /* said once */
    assert_int_equal(told(&b, START, 2)->start->n_worker_ids, 1);
    ready(&b, .session = 2, .worker = 3);
    ready(&b, .session = 2, .worker = 4);
    assert_members(told(&b, FORM, 2)->form, 2, 3, 4);
    progress(&b, .session = 2, .worker = 3, .epoch = 1, .step = 3);
    assert_uncharged(&b, 1);
    /* What it loses there is not replaced on the node that refuses it, however free that is. */
    exited(&b, .session = 2, .worker = 4, .code = 1);
    for (int64_t end = b.now + 20000; b.now < end && !told(&b, START, 2);) {
        heartbeat(&b, 1);
        heartbeat(&b, 2);
        tick(&b, 100);
        assert_null(told(&b, START, 1));
    }
    assert_non_null(told(&b, START, 2));
    submit(&b, 2, 1, 1); /* one that it does not refuse */
    assert_non_null(told(&b, START, 1));
    close_bench(&b);
}

/* Other nodes have no slots now: it waits in the queue, holds none of the node that refuses it, and no job waits for
 * it. */
static void test_waits_for_others(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 2, "b", 2, NULL, 0), TITAN_OK);
    submit(&b, 1, 2, 2);
    assert_non_null(told(&b, START, 2));
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    struct job job = job_of(2, 1, 2);
    job.spec.priority = 5;
    strcpy(job.spec.device, "cpu");
    submit_job(&b, &job); /* would have job 1 preempted, if the slots of node a were not free */
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 2);
    refused(&b, 1, 2, 3);
    refused(&b, 1, 2, 4);
    const struct change *pending = reason_of(&b, JOB_PENDING);
    assert_string_equal(
        pending->job.reason,
        "node a refuses its workers: user alice is uid 1001 for the coordinator and uid 1002 on node a");
    assert_uncharged(&b, 2);
    assert_null(event(&b, "job.preempted"));
    assert_reason(&b, 2,
                  "node a refuses its workers: user alice is uid 1001 for the coordinator and uid 1002 on node a; "
                  "waiting: needs 1 slot, none free; 2 on nodes that refuse it");
    submit(&b, 3, 2, 2);
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 2);
    exited(&b, .session = 1, .job = 3, .worker = 5, .code = 2); /* a permanent error: the job is over, slots are free */
    exited(&b, .session = 1, .job = 3, .worker = 6, .code = 2);
    heartbeat(&b, 1);
    heartbeat(&b, 2);
    tick(&b, 100);
    assert_null(told(&b, START, 1));
    /* The node registers anew: it may have been put right. */
    assert_int_equal(registration(&b, 3, "a", 2, NULL, 0), TITAN_OK);
    assert_int_equal(told(&b, START, 3)->start->job_id, 2);
    refused(&b, 3, 2, 7);
    assert_non_null(event(&b, "job.refused"));
    refused(&b, 3, 2, 8);
    assert_non_null(moved(&b, JOB_PENDING));
    /* The other one has a slot again. */
    exited(&b, .session = 2, .worker = 1, .code = 2);
    exited(&b, .session = 2, .worker = 2, .code = 2);
    assert_int_equal(told(&b, START, 2)->start->job_id, 2);
    close_bench(&b);
}

/* A node that is away may take it when it is back. */
static void test_waits_for_one_that_is_away(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    batch_free(&b.out);
    core_session_closed(b.core, 2, at(&b), &b.out);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    submit(&b, 1, 1, 1);
    refused(&b, 1, 1, 1);
    assert_non_null(moved(&b, JOB_PENDING));
    assert_int_equal(registration(&b, 4, "b", 1, NULL, 0), TITAN_OK);
    assert_non_null(told(&b, START, 4));
    refused(&b, 4, 1, 2);
    assert_string_equal(
        reason_of(&b, JOB_FAILED)->job.reason,
        "node b refuses its workers: user alice is uid 1001 for the coordinator and uid 1002 on node a");
    close_bench(&b);
}

/* A run that would grow stays as it is, and has no claim to slots that it cannot have. */
static void test_growth_is_refused(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    submit(&b, 1, 1, 4);
    ready(&b, .worker = 1);
    ready(&b, .worker = 2);
    progress(&b, .worker = 1, .epoch = 1, .step = 3);
    assert_int_equal(registration(&b, 2, "b", 2, NULL, 0), TITAN_OK);
    assert_int_equal(told(&b, START, 2)->start->n_worker_ids, 2);
    refused(&b, 2, 1, 3);
    refused(&b, 2, 1, 4);
    assert_null(moved(&b, JOB_RECOVERING));
    assert_null(moved(&b, JOB_PENDING));
    assert_uncharged(&b, 1);
    submit(&b, 2, 2, 2);
    assert_int_equal(told(&b, START, 2)->start->n_worker_ids, 2);
    progress(&b, .worker = 1, .epoch = 1, .step = 4);
    close_bench(&b);
}

/* Of a worker that runs it is no refusal, whatever its agent says. */
static void test_of_a_worker_that_runs(void **state)
{
    (void)state;
    struct bench b;
    struct job_status status;
    running_job(&b);
    refused(&b, 1, 1, 3);
    assert_null(event(&b, "job.refused"));
    assert_true(moved(&b, JOB_FAILED) != NULL); /* exit code 2 */
    close_bench(&b);
    running_job(&b);
    Titan__Internal__WorkerExited body = TITAN__INTERNAL__WORKER_EXITED__INIT;
    body.job_id = 1;
    body.worker_id = 3;
    body.exit_code = 5;
    body.cause = TITAN__INTERNAL__EXIT_CAUSE__CAUSE_REFUSED;
    MESSAGE(m, WORKER_EXITED, worker_exited, body);
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    assert_null(event(&b, "job.refused"));
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 1);
    close_bench(&b);
}

/* The record of a node goes and leaves nothing behind. */
static void test_node_is_forgotten(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    submit(&b, 1, 1, 1);
    assert_non_null(told(&b, START, 1));
    refused(&b, 1, 1, 1);
    assert_non_null(told(&b, START, 2));
    batch_free(&b.out);
    core_session_closed(b.core, 1, at(&b), &b.out);
    for (int i = 0; i < 50; i++) {
        heartbeat(&b, 2);
        tick(&b, 100);
    }
    batch_free(&b.out);
    assert_int_equal(core_node_remove(b.core, "a", at(&b), &b.out, NULL), TITAN_OK);
    assert_int_equal(registration(&b, 3, "a", 1, NULL, 0), TITAN_OK);
    refused(&b, 2, 1, 2);
    assert_non_null(told(&b, START, 3));
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_node_is_left),   cmocka_unit_test(test_goes_on_elsewhere),
        cmocka_unit_test(test_waits_for_others),  cmocka_unit_test(test_waits_for_one_that_is_away),
        cmocka_unit_test(test_growth_is_refused), cmocka_unit_test(test_of_a_worker_that_runs),
        cmocka_unit_test(test_node_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
