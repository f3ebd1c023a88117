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
    assert_string_equal(why_waits(&b, 2), "waiting for nodes: the run needs 5 workers, all nodes together have 4 slots");
    r = (struct core_resize){.min = 3, .max = 8};
    batch_free(&b.out);
    assert_int_equal(core_resize(b.core, 2, &r, at(&b), &b.out, NULL), TITAN_OK);
    assert_int_equal(started(&b), 2);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_large_are_left_out),
        cmocka_unit_test(test_nodes_come_and_go),
        cmocka_unit_test(test_growth_beside_too_large),
        cmocka_unit_test(test_resized_while_it_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
