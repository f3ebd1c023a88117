/* SPDX-License-Identifier: Apache-2.0 */
/* What metrics show of jobs and the queue: jobs that run and have ended, why others wait. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/core_bench.h"

struct seen {
    struct core_job job;
    char name[64];
    size_t n;
};

static void each(const struct core_job *j, void *data)
{
    struct seen *s = data;
    s->job = *j;
    (void)snprintf(s->name, sizeof(s->name), "%s", j->name);
    s->n++;
}

static struct seen look(const struct bench *b)
{
    struct seen s = {.n = 0};
    core_jobs(b->core, at(b), each, &s);
    return s;
}

static void test_job(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    struct seen s = look(&b);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.job.id, 1);
    assert_int_equal(s.job.state, JOB_RUNNING);
    assert_int_equal(s.job.step, 7);
    assert_int_equal(s.job.steps, 100);
    assert_int_equal(s.job.epoch, 1);
    assert_int_equal(s.job.world_size, 4);
    assert_true(s.job.loss > 2.49 && s.job.loss < 2.51);
    assert_int_equal(s.job.step_at_ms, at(&b).wall_ms);
    assert_int_equal(s.job.checkpoint_at_ms, at(&b).wall_ms);
    assert_int_equal(s.job.n_losses, 0);

    /* An ended job stays for 15 minutes. */
    assert_int_equal(core_cancel(b.core, 1, &(struct core_cancel){.reason = ""}, at(&b), &b.out, NULL), TITAN_OK);
    for (uint64_t w = 1; w <= 4; w++)
        exited(&b, .worker = w);
    s = look(&b);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.job.state, JOB_CANCELLED);
    assert_int_equal(s.job.step, 7);
    b.now += CORE_ENDED_MS - 1;
    assert_int_equal(look(&b).n, 1);
    b.now += 1;
    assert_int_equal(look(&b).n, 0);
    close_bench(&b);
}

/* Of many jobs that end, the newest 256 are shown. */
static void test_many_ended(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    for (uint64_t id = 1; id <= 300; id++) {
        char name[16];
        struct job job = job_of(id, 1, 1);
        (void)snprintf(name, sizeof(name), "job-%u", (unsigned)id);
        job.name = name;
        submit_job(&b, &job);
        batch_free(&b.out);
        assert_int_equal(core_cancel(b.core, id, &(struct core_cancel){.reason = ""}, at(&b), &b.out, NULL), TITAN_OK);
    }
    const struct seen s = look(&b);
    assert_int_equal(s.n, 256);
    assert_string_equal(s.name, "job-256"); /* the last place of the ring */
    assert_int_equal(s.job.state, JOB_CANCELLED);
    close_bench(&b);
}

static void submit_at(struct bench *b, uint64_t id, uint32_t workers, int32_t priority, int64_t submitted_at_ms)
{
    struct job job = job_of(id, workers, workers);
    job.spec.priority = priority;
    job.submitted_at_ms = submitted_at_ms;
    submit_job(b, &job);
}

static void test_queue(void **state)
{
    (void)state;
    struct bench b;
    struct core_queue q;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 4, NULL, 0), TITAN_OK);
    heartbeat(&b, 1);
    core_queue(b.core, &q);
    assert_int_equal(q.n_priorities, 0);
    submit_at(&b, 1, 4, 0, 1); /* takes all slots */
    submit_at(&b, 2, 2, 5, 70);
    submit_at(&b, 3, 2, 5, 60);
    submit_at(&b, 4, 2, 0, 50);
    submit_at(&b, 5, 9, 0, 40); /* more than there is */
    tick(&b, 100);
    core_queue(b.core, &q);
    assert_int_equal(q.waits[CORE_WAITS_SLOTS], 1);
    assert_int_equal(q.waits[CORE_WAITS_BEHIND], 2);
    assert_int_equal(q.waits[CORE_WAITS_NODES], 1);
    assert_int_equal(q.waits[CORE_WAITS_USER] + q.waits[CORE_WAITS_SETTLED], 0);
    assert_int_equal(q.n_priorities, 2);
    assert_int_equal(q.priorities[0].priority, 5);
    assert_int_equal(q.priorities[0].oldest_ms, 70); /* the first of its lane */
    assert_int_equal(q.priorities[1].priority, 0);
    assert_int_equal(q.priorities[1].oldest_ms, 40);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job),
        cmocka_unit_test(test_many_ended),
        cmocka_unit_test(test_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
