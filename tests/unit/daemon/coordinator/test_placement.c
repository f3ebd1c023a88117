/* SPDX-License-Identifier: Apache-2.0 */
/* Which job in a long queue gets the slots that there are, and what it costs to find it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/core_bench.h"

enum { SLOTS = 4, MANY = 10000 };

static void submit_as(struct bench *b, uint64_t id, uint32_t min, uint32_t max, const char *user)
{
    struct job job = job_of(id, min, max);
    job.user = user;
    submit_job(b, &job);
}

static uint64_t started(const struct bench *b)
{
    const Titan__Internal__CoordinatorMessage *m = told(b, START, 0);
    return m ? m->start->job_id : 0;
}

static const char *why_waits(struct bench *b, uint64_t job)
{
    static char text[256];
    return core_job_reason(b->core, job, text, sizeof(text)) ? text : "";
}

static uint64_t looks(const struct bench *b)
{
    return core_counters(b->core)->queue_looks;
}

/* --- too large for all nodes together ----------------------------------------------------------------------------- */

/* Ten thousand of one user are no work for a job that fits: neither when they come, nor when it does. */
static void test_too_large_are_left_out(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", SLOTS, NULL, 0), TITAN_OK);
    for (uint64_t id = 1; id <= MANY; id++) {
        const uint32_t size = SLOTS + 1 + (uint32_t)(id % 60);
        submit_as(&b, id, size, size, "mallory");
        assert_non_null(event(&b, "job.waiting"));
    }
    assert_int_equal(looks(&b), 0);
    submit_as(&b, MANY + 1, 1, 1, "alice");
    assert_int_equal(started(&b), MANY + 1);
    assert_int_equal(looks(&b), 1);
    assert_string_equal(why_waits(&b, MANY),
                        "waiting for nodes: the run needs 45 workers, all nodes together have 4 slots");
    close_bench(&b);
}

/* Nodes come and go: what is too large changes with them, and is reported, of many jobs for some. */
static void test_nodes_come_and_go(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", SLOTS, NULL, 0), TITAN_OK);
    submit_as(&b, 1, SLOTS, SLOTS, "bob");
    assert_int_equal(started(&b), 1);
    for (uint64_t id = 2; id <= MANY; id++)
        submit_as(&b, id, 8, 8, "mallory");
    assert_int_equal(registration(&b, 2, "b", SLOTS, NULL, 0), TITAN_OK);
    assert_string_equal(why_waits(&b, 2), "waiting: needs 8 slots, 4 free on node b");
    assert_int_equal(looks(&b), 2); /* the first in the queue, for all that are like it */
    batch_free(&b.out);
    core_session_closed(b.core, 2, at(&b), &b.out);
    for (int i = 0; i < 40 && !event(&b, "node.lost"); i++) {
        heartbeat(&b, 1);
        tick(&b, 100);
    }
    assert_string_equal(why_waits(&b, MANY),
                        "waiting for nodes: the run needs 8 workers, all nodes together have 4 slots");
    const uint64_t before = looks(&b);
    exited(&b, .worker = 1, .code = 2, .reason = "bad input");
    assert_int_equal(looks(&b), before);
    submit_as(&b, MANY + 1, 1, 1, "alice");
    assert_int_equal(started(&b), MANY + 1);
    close_bench(&b);
}

/* A running job may grow beside them. */
static void test_growth_beside_too_large(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 1, SLOTS, "alice");
    assert_int_equal(started(&b), 1);
    submit_as(&b, 2, 64, 64, "mallory");
    assert_int_equal(registration(&b, 2, "b", 2, NULL, 0), TITAN_OK);
    assert_int_equal(told(&b, START, 2)->start->n_worker_ids, 2);
    close_bench(&b);
}

/* One that is asked to make do with less fits then. */
static void test_resized_while_it_waits(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", SLOTS, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 2, 8, "alice");
    assert_int_equal(started(&b), 1);
    exited(&b, .worker = 1, .code = 2, .reason = "bad input");
    struct core_resize r = {.min = 5, .max = 8};
    submit_as(&b, 2, 2, 8, "alice");
    batch_free(&b.out);
    assert_int_equal(core_resize(b.core, 2, &r, at(&b), &b.out, NULL), TITAN_OK);
    for (uint64_t w = 2; w <= SLOTS; w++)
        exited(&b, .worker = w, .code = -1);
    assert_int_equal(started(&b), 0);
    assert_string_equal(why_waits(&b, 2),
                        "waiting for nodes: the run needs 5 workers, all nodes together have 4 slots");
    r = (struct core_resize){.min = 3, .max = 8};
    batch_free(&b.out);
    assert_int_equal(core_resize(b.core, 2, &r, at(&b), &b.out, NULL), TITAN_OK);
    assert_int_equal(started(&b), 2);
    close_bench(&b);
}

/* --- jobs that pass ----------------------------------------------------------------------------------------------- */

/* All workers of a job, on session 1, train in an epoch. */
struct run_of {
    uint64_t job, first, n, step;
};
#define make_run(b, ...) make_run_of((b), (struct run_of){__VA_ARGS__})
static void make_run_of(struct bench *b, struct run_of run)
{
    for (uint64_t w = run.first; w < run.first + run.n; w++)
        ready(b, .job = run.job, .worker = w);
    progress(b, .job = run.job, .worker = run.first, .epoch = 1, .step = run.step);
}

/* Job 1 of one worker runs on the four slots, job 2 waits for all of them, job 3 of one worker has passed it and trains
 * as worker 2. */
static void open_passed(struct bench *b)
{
    open_bench(b);
    assert_int_equal(registration(b, 1, "a", SLOTS, NULL, 0), TITAN_OK);
    submit_as(b, 1, 1, 1, "bob");
    submit_as(b, 2, SLOTS, SLOTS, "mallory");
    assert_int_equal(started(b), 0);
    submit_as(b, 3, 1, 1, "alice");
    assert_int_equal(started(b), 3);
    assert_int_equal(moved(b, JOB_FORMING)->job.status.passed, 2);
    assert_string_equal(moved(b, JOB_FORMING)->job.reason,
                        "backfill: job 2 comes first, and gets these slots when they are enough for it");
    make_run(b, .job = 1, .first = 1, .n = 1, .step = 5);
    make_run(b, .job = 3, .first = 2, .n = 1, .step = 5);
}

/* Idle slots are for a job that can give them back; and it does when they are enough for the one that it has passed. */
static void test_passes_and_gives_back(void **state)
{
    (void)state;
    struct bench b;
    open_passed(&b);
    assert_string_equal(why_waits(&b, 2), "waiting: needs 4 slots, 2 free on node a");
    assert_string_equal(why_waits(&b, 3),
                        "backfill: job 2 comes first, and gets these slots when they are enough for it");
    exited(&b, .job = 1, .worker = 1, .code = 2, .reason = "bad input");
    assert_string_equal(event(&b, "job.preempted")->message, "preempted by job 2 (priority 0), which it had passed");
    const Titan__Internal__StopWorkers *stop = told(&b, STOP, 1)->stop;
    assert_int_equal(stop->job_id, 3);
    assert_true(stop->must_checkpoint);
    submit_as(&b, 4, 1, 1, "carol"); /* nothing passes now: the slots come */
    assert_int_equal(started(&b), 0);
    checkpoint(&b, .job = 3, .worker = 2, .epoch = 1, .step = 6);
    exited(&b, .job = 3, .worker = 2);
    assert_int_equal(started(&b), 2);
    assert_int_equal(moved(&b, JOB_PENDING)->job.id, 3);
    assert_int_equal(moved(&b, JOB_PENDING)->job.status.passed, 0);
    struct job_status status;
    assert_false(core_job_status(b.core, 4, &status));
    close_bench(&b);
}

/* Not with what comes free, but with what is left: as long as the first one could not start with all that is on loan.
 */
static void test_passes_as_long_as_it_is_in_vain(void **state)
{
    (void)state;
    struct bench b;
    open_passed(&b);
    submit_as(&b, 4, 1, 3, "carol");
    assert_int_equal(started(&b), 4);
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 2);
    submit_as(&b, 5, 1, 1, "dave");
    submit_as(&b, 6, 1, 1, "erin");
    assert_int_equal(started(&b), 0);
    exited(&b, .job = 3, .worker = 2, .code = 2, .reason = "bad input");
    assert_int_equal(started(&b), 5);
    assert_null(event(&b, "job.preempted"));
    assert_string_equal(why_waits(&b, 2), "waiting: needs 4 slots, none free");
    assert_string_equal(why_waits(&b, 6), "waiting behind job 2 (priority 0)");
    close_bench(&b);
}

/* What comes back counts from when it is known to, so that both are waited for at the same time. */
static void test_gives_back_while_another_ends(void **state)
{
    (void)state;
    struct bench b;
    open_passed(&b);
    finished(&b, .job = 1, .worker = 1, .epoch = 1, .step = 100);
    assert_int_equal(event(&b, "job.preempted")->job_id, 3);
    close_bench(&b);
}

/* The one that has passed gives before one that has not, whatever their priorities. */
static void test_passing_gives_first(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", SLOTS, NULL, 0), TITAN_OK);
    struct job low = job_of(1, 1, 1);
    low.spec.priority = -1;
    submit_job(&b, &low);
    submit_as(&b, 2, 2, 2, "bob");
    submit_as(&b, 3, 3, 3, "mallory");
    submit_as(&b, 4, 1, 1, "alice");
    assert_int_equal(started(&b), 4);
    exited(&b, .job = 2, .worker = 2, .code = 2, .reason = "bad input");
    assert_int_equal(event(&b, "job.preempted")->job_id, 4);
    close_bench(&b);
}

/* What is elastic shrinks, and goes on. */
static void test_shrinks_to_give_back(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 8, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 4, 4, "bob");
    submit_as(&b, 2, 6, 6, "mallory");
    submit_as(&b, 3, 1, 4, "alice");
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 4);
    make_run(&b, .job = 1, .first = 1, .n = 4, .step = 5);
    make_run(&b, .job = 3, .first = 5, .n = 4, .step = 5);
    exited(&b, .job = 1, .worker = 1, .code = 2, .reason = "bad input");
    assert_null(event(&b, "job.preempted"));
    assert_string_equal(event(&b, "job.squeezed")->detail, "{\"workers\":2,\"for_job\":2}");
    assert_int_equal(told(&b, PAUSE, 1)->pause->job_id, 3);
    for (uint64_t w = 2; w <= 4; w++)
        exited(&b, .job = 1, .worker = w, .code = -1);
    for (uint64_t w = 5; w <= 8; w++)
        quiesced(&b, .job = 3, .worker = w, .epoch = 1, .step = 6);
    assert_members(told(&b, FORM, 1)->form, 2, 5, 6);
    progress(&b, .job = 3, .worker = 5, .epoch = 2, .step = 7);
    exited(&b, .job = 3, .worker = 7);
    exited(&b, .job = 3, .worker = 8);
    assert_int_equal(started(&b), 2);
    assert_string_equal(why_waits(&b, 3), ""); /* the loan is over: these two are its own */
    close_bench(&b);
}

/* Two wait: the loan is due to the second one when the first has started. */
static void test_loan_is_due_to_the_next(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 5, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 2, 2, "bob");
    submit_as(&b, 2, 4, 4, "mallory");
    submit_as(&b, 3, 5, 5, "mallory");
    submit_as(&b, 4, 1, 1, "mallory");
    assert_int_equal(started(&b), 4);
    make_run(&b, .job = 1, .first = 1, .n = 2, .step = 5);
    make_run(&b, .job = 4, .first = 3, .n = 1, .step = 5);
    exited(&b, .job = 1, .worker = 1, .code = 2, .reason = "bad input");
    exited(&b, .job = 1, .worker = 2, .code = -1);
    assert_int_equal(started(&b), 2);
    assert_string_equal(why_waits(&b, 4),
                        "backfill: job 3 comes first, and gets these slots when they are enough for it");
    make_run(&b, .job = 2, .first = 4, .n = 4, .step = 1);
    exited(&b, .job = 2, .worker = 4, .code = 2, .reason = "bad input");
    assert_int_equal(event(&b, "job.preempted")->job_id, 4);
    for (uint64_t w = 5; w <= 7; w++)
        exited(&b, .job = 2, .worker = w, .code = -1);
    exited(&b, .job = 4, .worker = 3);
    assert_int_equal(started(&b), 3);
    close_bench(&b);
}

/* To the users, too, the order is what it was: a job of the user with fewer slots is not on loan from one of a user
 * with more. */
static void test_loan_and_fair_order(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 6, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 2, 2, "bob");
    submit_as(&b, 2, 2, 2, "bob");
    submit_as(&b, 3, 3, 3, "bob"); /* behind 4, though it is older */
    submit_as(&b, 4, 5, 5, "mallory");
    submit_as(&b, 5, 2, 2, "alice");
    assert_int_equal(started(&b), 5);
    make_run(&b, .job = 1, .first = 1, .n = 2, .step = 5);
    make_run(&b, .job = 5, .first = 5, .n = 2, .step = 5);
    batch_free(&b.out);
    assert_int_equal(core_cancel(b.core, 4, &(struct core_cancel){.reason = ""}, at(&b), &b.out, NULL), TITAN_OK);
    exited(&b, .job = 1, .worker = 1, .code = 2, .reason = "bad input");
    exited(&b, .job = 1, .worker = 2, .code = -1);
    assert_string_equal(why_waits(&b, 3), "waiting: needs 3 slots, 2 free on node a");
    assert_null(told(&b, STOP, 0));
    assert_string_equal(why_waits(&b, 5), "");
    close_bench(&b);
}

/* What the store says is what holds behind a restart. */
static void test_loan_is_kept(void **state)
{
    (void)state;
    struct bench b = {.now = 1000};
    struct core_options options = {
        .term = 1, .seed = 1, .jobs_dir = "/jobs", .heartbeat_ms = 100, .node_timeout_ms = 1000, .next_worker_id = 8};
    batch_init(&b.out);
    assert_int_equal(core_new(&options, &b.core, NULL), TITAN_OK);
    struct job first = job_of(2, SLOTS, SLOTS), passed = job_of(3, 1, 1);
    passed.state = JOB_FORMING;
    passed.status.passed = 2;
    struct node node = {
        .name = "a", .state = NODE_READY, .slots = SLOTS, .device = "cpu", .address = "", .version = ""};
    struct worker worker = {.id = 7, .job_id = 3, .run = 1, .node = "a", .state = WORKER_STARTING};
    core_restore_node(b.core, &node, at(&b));
    core_restore_job(b.core, &(struct core_saved_job){.job = first}, at(&b));
    core_restore_job(
        b.core,
        &(struct core_saved_job){.job = passed, .run = 1, .run_active = true, .workers = &worker, .n_workers = 1},
        at(&b));
    Titan__Internal__LiveWorker live = TITAN__INTERNAL__LIVE_WORKER__INIT, *list[] = {&live};
    live.job_id = 3;
    live.worker_id = 7;
    live.state = TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE;
    live.address = (char *)"h:1";
    assert_int_equal(registration(&b, 1, "a", SLOTS, list, 1), TITAN_OK);
    assert_int_equal(event(&b, "job.preempted")->job_id, 3);
    close_bench(&b);
}

/* A job waits for no slots of another device than its own. */
static void test_devices_have_a_head_each(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", SLOTS, NULL, 0), TITAN_OK);
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = (char *)"g";
    body.slots = 2;
    body.device = (char *)"cuda";
    body.incarnation = 2;
    MESSAGE(m, REGISTRATION, registration, body);
    assert_int_equal(say(&b, 2, &m), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    strcpy(job.spec.device, "cuda");
    submit_job(&b, &job);
    job = job_of(2, 2, 2);
    strcpy(job.spec.device, "cuda");
    submit_job(&b, &job);
    assert_string_equal(why_waits(&b, 2), "waiting: needs 2 slots, 1 free on node g");
    job = job_of(3, 3, 3);
    strcpy(job.spec.device, "cpu");
    submit_job(&b, &job);
    assert_int_equal(started(&b), 3);
    assert_int_equal(moved(&b, JOB_FORMING)->job.status.passed, 0);
    job = job_of(4, 2, 2);
    strcpy(job.spec.device, "cpu");
    submit_job(&b, &job);
    assert_string_equal(why_waits(&b, 4), "waiting: needs 2 slots, 1 free on node a");
    submit_as(&b, 5, 1, 1, "");
    assert_int_equal(started(&b), 5);
    assert_int_equal(moved(&b, JOB_FORMING)->job.status.passed, 2); /* on the GPU: that comes before the CPU */
    close_bench(&b);
}

/* A long queue of jobs that fit, but not now, is no work for one that passes them. */
static void test_passes_a_long_queue(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", SLOTS, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 2, 2, "bob");
    for (uint64_t id = 2; id <= MANY; id++)
        submit_as(&b, id, SLOTS - (uint32_t)(id % 2), SLOTS, "mallory");
    const uint64_t before = looks(&b);
    assert_true(before < 10);
    submit_as(&b, MANY + 1, 1, 1, "mallory");
    assert_int_equal(started(&b), MANY + 1);
    assert_int_equal(looks(&b), before + 2); /* the first in the queue, and the one that passes all */
    close_bench(&b);
}

/* --- slots of one user -------------------------------------------------------------------------------------------- */

/* One user may have four of eight slots. */
static void open_limited(struct bench *b)
{
    struct core_options options = {
        .term = 1, .seed = 1, .jobs_dir = "/jobs", .heartbeat_ms = 100, .node_timeout_ms = 1000, .user_slots = 4};
    memset(b, 0, sizeof(*b));
    b->now = 1000;
    batch_init(&b->out);
    assert_int_equal(core_new(&options, &b->core, NULL), TITAN_OK);
    assert_int_equal(registration(b, 1, "a", 8, NULL, 0), TITAN_OK);
}

static void test_user_has_its_slots(void **state)
{
    (void)state;
    struct bench b;
    open_limited(&b);
    submit_as(&b, 1, 1, 3, "alice");
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 3);
    submit_as(&b, 2, 2, 2, "alice");
    assert_int_equal(started(&b), 0);
    assert_string_equal(why_waits(&b, 2), "waiting: alice runs on 3 of 4 slots that one user may have "
                                          "(limits.user_slots), and this job needs 2");
    submit_as(&b, 3, 1, 6, "alice"); /* the rest of them */
    assert_int_equal(started(&b), 3);
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 1);
    assert_string_equal(why_waits(&b, 2),
                        "waiting: alice runs on 4 of 4 slots that one user may have (limits.user_slots)");
    submit_as(&b, 4, 4, 4, "bob"); /* alice's is in no other user's way, and nothing is lent */
    assert_int_equal(started(&b), 4);
    assert_int_equal(moved(&b, JOB_FORMING)->job.status.passed, 0);
    exited(&b, .job = 3, .worker = 4, .code = 2, .reason = "bad input");
    assert_int_equal(started(&b), 0);
    make_run(&b, .job = 1, .first = 1, .n = 3, .step = 5);
    exited(&b, .job = 1, .worker = 1, .code = 2, .reason = "bad input");
    assert_int_equal(started(&b), 2);
    close_bench(&b);
}

/* Nor does a job grow beyond it, by itself or on request; and one that waits for its user keeps no other small. */
static void test_user_limit_and_growth(void **state)
{
    (void)state;
    struct bench b;
    struct titan_error err = {0};
    open_limited(&b);
    submit_as(&b, 1, 2, 2, "alice");
    submit_as(&b, 2, 1, 8, "bob");
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 4);
    submit_as(&b, 3, 2, 2, "bob");
    submit_as(&b, 4, 1, 8, "carol");
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 2);
    exited(&b, .job = 1, .worker = 1, .code = 2, .reason = "bad input");
    assert_int_equal(started(&b), 4);
    exited(&b, .job = 1, .worker = 2, .code = -1);
    assert_int_equal(started(&b), 4);
    struct core_resize r = {.workers = 5};
    batch_free(&b.out);
    assert_int_equal(core_resize(b.core, 4, &r, at(&b), &b.out, &err), TITAN_ELIMIT);
    assert_string_equal(err.msg, "carol may have 4 slots (limits.user_slots), and other jobs of theirs have 0");
    r = (struct core_resize){.min = 2, .max = 8};
    assert_int_equal(core_resize(b.core, 4, &r, at(&b), &b.out, &err), TITAN_OK);
    assert_null(told(&b, START, 0));
    close_bench(&b);
}

/* What a job waits to have again is its own before it is its user's next job's. */
static void test_user_limit_and_replacements(void **state)
{
    (void)state;
    struct bench b;
    open_limited(&b);
    submit_as(&b, 1, 2, 2, "alice");
    make_run(&b, .job = 1, .first = 1, .n = 2, .step = 5);
    submit_as(&b, 2, 3, 3, "alice");
    exited(&b, .job = 1, .worker = 1, .code = 1, .reason = "no such GPU");
    assert_int_equal(started(&b), 0);
    assert_string_equal(why_waits(&b, 2), "waiting: alice runs on 2 of 4 slots that one user may have "
                                          "(limits.user_slots), and this job needs 3");
    close_bench(&b);
}

/* A worker that moves to another node is one of its user's still. */
static void test_user_limit_and_drain(void **state)
{
    (void)state;
    struct bench b;
    open_limited(&b);
    submit_as(&b, 1, 4, 4, "alice");
    make_run(&b, .job = 1, .first = 1, .n = 4, .step = 5);
    assert_int_equal(registration(&b, 2, "b", 4, NULL, 0), TITAN_OK);
    struct core_drain d = {.reason = "new disks"};
    batch_free(&b.out);
    assert_int_equal(core_drain(b.core, "a", &d, at(&b), &b.out, NULL), TITAN_OK);
    assert_int_equal(told(&b, START, 2)->start->n_worker_ids, 4);
    close_bench(&b);
}

/* --- a node that takes workers and starts none -------------------------------------------------------------------- */

static void see_state(const struct core_node *n, void *data)
{
    if (strcmp(n->name, "a") == 0)
        (void)snprintf(data, 64, "%s%s%s", n->state_text, *n->reason ? ": " : "", n->reason);
}

static void assert_state_of_a(const struct bench *b, const char *expected)
{
    char text[64] = "";
    core_nodes(b->core, see_state, text);
    assert_string_equal(text, expected);
}

/* The job's next worker starts on another one, long before a start takes too long; nothing of it counts. */
static void test_silent_node(void **state)
{
    (void)state;
    struct bench b;
    struct job_status status;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 3, NULL, 0), TITAN_OK);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 1, 1, "alice");
    assert_non_null(told(&b, START, 1));
    const int64_t begun = b.now;
    while (!event(&b, "node.unfit")) {
        heartbeat(&b, 1);
        heartbeat(&b, 2);
        tick(&b, 100);
        assert_true(b.now - begun < 31000);
    }
    assert_true(b.now - begun >= 30000);
    assert_int_equal(told(&b, STOP, 1)->stop->worker_ids[0], 1);
    assert_int_equal(told(&b, START, 2)->start->worker_ids[0], 2);
    assert_state_of_a(&b, "unfit: it does not answer that it starts a worker");
    ready(&b, .session = 2, .worker = 2);
    assert_non_null(told(&b, FORM, 2));
    exited(&b, .worker = 1); /* at last */
    assert_non_null(event(&b, "node.fit"));
    assert_state_of_a(&b, "ready");
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 0);
    close_bench(&b);
}

/* As long as the store takes nothing it was not even asked. */
static void test_node_that_was_not_asked(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 1, 1, "alice");
    b.held = 1000;
    for (int i = 0; i < 650; i++) {
        b.held = i < 400 ? 1000 : 0;
        heartbeat(&b, 1);
        tick(&b, 100);
        assert_null(event(&b, "node.unfit"));
    }
    close_bench(&b);
}

/* What it says of any worker is an answer, and so is a new session; what it says late counts. */
static void test_silent_node_answers(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 1, 1, "alice");
    for (int i = 0; i < 400 && !event(&b, "node.unfit"); i++) {
        heartbeat(&b, 1);
        tick(&b, 100);
    }
    assert_non_null(told(&b, STOP, 1));
    assert_int_equal(registration(&b, 2, "a", 1, NULL, 0), TITAN_OK);
    assert_state_of_a(&b, "ready");
    for (int i = 0; i < 10 && !told(&b, START, 2); i++) {
        heartbeat(&b, 2);
        tick(&b, 100);
    }
    assert_int_equal(told(&b, START, 2)->start->worker_ids[0], 2);
    Titan__Internal__WorkerStarted body = TITAN__INTERNAL__WORKER_STARTED__INIT;
    body.job_id = 1;
    body.worker_id = 2;
    body.pid = 77;
    MESSAGE(m, WORKER_STARTED, worker_started, body);
    assert_int_equal(say(&b, 2, &m), TITAN_OK);
    for (int i = 0; i < 400; i++) { /* it may be long in starting, then */
        heartbeat(&b, 2);
        tick(&b, 100);
        assert_null(told(&b, STOP, 2));
    }
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_large_are_left_out),
        cmocka_unit_test(test_nodes_come_and_go),
        cmocka_unit_test(test_growth_beside_too_large),
        cmocka_unit_test(test_resized_while_it_waits),
        cmocka_unit_test(test_passes_and_gives_back),
        cmocka_unit_test(test_passes_as_long_as_it_is_in_vain),
        cmocka_unit_test(test_shrinks_to_give_back),
        cmocka_unit_test(test_loan_is_due_to_the_next),
        cmocka_unit_test(test_loan_and_fair_order),
        cmocka_unit_test(test_loan_is_kept),
        cmocka_unit_test(test_devices_have_a_head_each),
        cmocka_unit_test(test_passes_a_long_queue),
        cmocka_unit_test(test_user_has_its_slots),
        cmocka_unit_test(test_user_limit_and_growth),
        cmocka_unit_test(test_gives_back_while_another_ends),
        cmocka_unit_test(test_passing_gives_first),
        cmocka_unit_test(test_user_limit_and_replacements),
        cmocka_unit_test(test_silent_node),
        cmocka_unit_test(test_node_that_was_not_asked),
        cmocka_unit_test(test_silent_node_answers),
        cmocka_unit_test(test_user_limit_and_drain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
