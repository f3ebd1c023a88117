/* SPDX-License-Identifier: Apache-2.0 */
/* What people ask of jobs and nodes, against the core by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "support/core_bench.h"

static titan_status resize(struct bench *b, uint64_t job, uint32_t workers, uint32_t min, uint32_t max,
                           struct titan_error *err)
{
    struct core_resize r = {.workers = workers, .min = min, .max = max};
    batch_free(&b->out);
    return core_resize(b->core, job, &r, at(b), &b->out, err);
}

/* Workers that are out of an epoch, with the state of this step; 0 ends them. */
struct quiesced_all {
    uint64_t epoch, step, workers[8];
};
#define all_quiesced(b, ...) all_quiesced_of((b), (struct quiesced_all){__VA_ARGS__})
static void all_quiesced_of(struct bench *b, struct quiesced_all all)
{
    for (size_t i = 0; i < ARRAY_SIZE(all.workers) && all.workers[i]; i++)
        quiesced(b, .worker = all.workers[i], .epoch = all.epoch, .step = all.step);
}

static void assert_departing(const Titan__Internal__FormEpoch *f, size_t want, ...)
{
    va_list ap;
    assert_int_equal(f->n_departing, want);
    va_start(ap, want);
    for (size_t i = 0; i < want; i++)
        assert_int_equal(f->departing[i]->worker_id, va_arg(ap, int));
    va_end(ap);
}

/* Four shrink to three, from memory: the fourth hands over and is stopped when the three have made a step. */
static void test_shrink(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    assert_int_equal(resize(&b, 1, 3, 0, 0, NULL), TITAN_OK);
    const struct event *e = event(&b, "resize.requested");
    assert_non_null(e);
    assert_string_equal(e->detail, "{\"request\":1,\"min\":2,\"max\":3}");
    assert_non_null(moved(&b, JOB_RESIZING));
    assert_non_null(told(&b, PAUSE, 1));
    all_quiesced(&b, .epoch = 1, .step = 9, .workers = {1, 2, 3});
    assert_null(told(&b, FORM, 0));
    quiesced(&b, .worker = 4, .epoch = 1, .step = 9);
    const Titan__Internal__FormEpoch *f = told(&b, FORM, 1)->form;
    assert_members(f, 3, 1, 2, 3);
    assert_departing(f, 1, 4);
    assert_int_equal(f->source, TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY);
    assert_ids(f->state_holders, f->n_state_holders, 4, 1, 2, 3, 4);
    assert_int_equal(f->resume_step, 9);
    assert_null(told(&b, STOP, 0)); /* it still has to hand over */
    quiesced(&b, .worker = 4, .epoch = 2, .step = 9);
    assert_null(told(&b, REVOKE, 0)); /* a departing rank that is out breaks nothing */
    progress(&b, .worker = 1, .epoch = 2, .step = 10);
    e = event(&b, "resize.finished");
    assert_non_null(e);
    assert_string_equal(e->detail, "{\"resize_ms\":0,\"resume_step\":9,\"world\":3}");
    const Titan__Internal__CoordinatorMessage *m = told(&b, STOP, 1);
    assert_ids(m->stop->worker_ids, m->stop->n_worker_ids, 1, 4);
    exited(&b, .worker = 4, .code = -1);
    e = event(&b, "worker.exited");
    assert_string_equal(e->message, "worker 4 left, as it was told");
    assert_string_equal(e->detail, "{\"worker\":4,\"exit_code\":-1,\"signal\":9,\"asked\":true,\"counted\":false}");
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 0);
    assert_int_equal(status.world_size, 3);
    assert_null(told(&b, START, 0)); /* no job wants the slot back */
    close_bench(&b);
}

/* Rank 0 has its state first: the departing rank may still be inside the last barrier, and is stopped when it is out.
 * Or it is out first. */
static void test_departing_leaves_first(void **state)
{
    (void)state;
    for (int out_first = 0; out_first < 2; out_first++) {
        struct bench b;
        running_job(&b);
        assert_int_equal(resize(&b, 1, 3, 0, 0, NULL), TITAN_OK);
        all_quiesced(&b, .epoch = 1, .step = 9, .workers = {1, 2, 3, 4});
        assert_departing(told(&b, FORM, 1)->form, 1, 4);
        for (int i = 0; i < 2; i++) {
            assert_null(told(&b, STOP, 0));
            if (i == out_first)
                state_ready(&b, .worker = 1, .epoch = 2, .step = 9,
                            .recovery_source = TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_MEMORY);
            else
                quiesced(&b, .worker = 4, .epoch = 2, .step = 9);
        }
        const Titan__Internal__CoordinatorMessage *m = told(&b, STOP, 1);
        assert_ids(m->stop->worker_ids, m->stop->n_worker_ids, 1, 4);
        assert_null(told(&b, REVOKE, 0));
        close_bench(&b);
    }
}

/* Back to what the recipe says: workers start first, then the members pause. */
static void test_grow(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    assert_int_equal(resize(&b, 1, 2, 0, 0, NULL), TITAN_OK);
    all_quiesced(&b, .epoch = 1, .step = 9, .workers = {1, 2, 3, 4});
    assert_departing(told(&b, FORM, 1)->form, 2, 3, 4);
    progress(&b, .worker = 1, .epoch = 2, .step = 10);
    exited(&b, .worker = 3);
    exited(&b, .worker = 4);
    assert_int_equal(resize(&b, 1, 0, 0, 0, NULL), TITAN_OK);
    assert_null(told(&b, PAUSE, 0));
    const Titan__Internal__CoordinatorMessage *m = told(&b, START, 1);
    assert_ids(m->start->worker_ids, m->start->n_worker_ids, 2, 5, 6);
    ready(&b, .worker = 5);
    assert_null(told(&b, PAUSE, 0)); /* both at once */
    ready(&b, .worker = 6);
    assert_non_null(told(&b, PAUSE, 1));
    all_quiesced(&b, .epoch = 2, .step = 12, .workers = {1, 2});
    const Titan__Internal__FormEpoch *f = told(&b, FORM, 1)->form;
    assert_members(f, 4, 1, 2, 5, 6);
    assert_departing(f, 0);
    assert_int_equal(f->resume_step, 12);
    close_bench(&b);
}

/* A departing rank that dies before it has handed over takes the epoch with it. */
static void test_departing_lost(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    assert_int_equal(resize(&b, 1, 3, 0, 0, NULL), TITAN_OK);
    all_quiesced(&b, .epoch = 1, .step = 9, .workers = {1, 2, 3, 4});
    exited(&b, .worker = 4, .code = -1);
    assert_non_null(told(&b, REVOKE, 1));
    assert_int_equal(told(&b, REVOKE, 1)->revoke->epoch, 2);
    all_quiesced(&b, .epoch = 2, .step = 9, .workers = {1, 2, 3});
    assert_int_equal(told(&b, FORM, 1)->form->epoch, 3);
    assert_members(told(&b, FORM, 1)->form, 3, 1, 2, 3);
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 1);
    close_bench(&b);
}

/* A worker on its way to a run that has been asked to stay small, and one on a node that is to be empty, go at once. */
static void test_surplus_goes(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    submit(&b, 1, 1, 4);
    ready(&b, .worker = 1);
    ready(&b, .worker = 2);
    progress(&b, .worker = 1, .epoch = 1, .step = 5);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    assert_ids(told(&b, START, 2)->start->worker_ids, told(&b, START, 2)->start->n_worker_ids, 1, 3);
    assert_int_equal(resize(&b, 1, 2, 0, 0, NULL), TITAN_OK);
    assert_int_equal(told(&b, STOP, 2)->stop->worker_ids[0], 3);
    assert_null(told(&b, PAUSE, 0));
    exited(&b, .session = 2, .worker = 3, .code = -1);
    assert_int_equal(resize(&b, 1, 3, 0, 0, NULL), TITAN_OK);
    assert_int_equal(told(&b, START, 2)->start->worker_ids[0], 4);
    struct core_drain d = {.reason = ""};
    batch_free(&b.out);
    assert_int_equal(core_drain(b.core, "b", &d, at(&b), &b.out, NULL), TITAN_OK);
    assert_int_equal(told(&b, STOP, 2)->stop->worker_ids[0], 4);
    assert_null(told(&b, PAUSE, 0));
    close_bench(&b);
}

/* Of three on their way two are too many: the newest go, one at a time, and no more than that. */
static void test_surplus_is_counted(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    submit(&b, 1, 1, 4);
    ready(&b, .worker = 1);
    progress(&b, .worker = 1, .epoch = 1, .step = 5);
    assert_int_equal(registration(&b, 2, "b", 3, NULL, 0), TITAN_OK);
    assert_ids(told(&b, START, 2)->start->worker_ids, told(&b, START, 2)->start->n_worker_ids, 3, 2, 3, 4);
    assert_int_equal(resize(&b, 1, 2, 0, 0, NULL), TITAN_OK);
    uint64_t stopped[4];
    size_t n = 0;
    for (const struct batch_message *m = b.out.messages; m; m = m->next)
        if (m->message->kind_case == STOP && n < ARRAY_SIZE(stopped))
            stopped[n++] = m->message->stop->worker_ids[0];
    assert_ids(stopped, n, 2, 4, 3);
    close_bench(&b);
}

static void test_resize_refused(void **state)
{
    (void)state;
    struct bench b;
    struct titan_error err = {0};
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 8, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 2, 8);
    memset(&job.spec.worlds, 0, sizeof(job.spec.worlds));
    for (uint32_t w = 2; w <= 8; w += 2)
        world_set_add(&job.spec.worlds, w);
    strcpy(job.spec.mesh, "tp=2");
    submit_job(&b, &job);
    assert_int_equal(resize(&b, 1, 5, 0, 0, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, "job 1 cannot run on 5 workers with the mesh tp=2; nearest: 4 and 6");
    assert_string_equal(err.hint, "its recipe allows 2 to 8");
    assert_int_equal(resize(&b, 1, 9, 0, 0, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, "job 1 cannot run on 9 workers with the mesh tp=2; nearest: 8");
    assert_int_equal(resize(&b, 1, 1, 0, 0, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, "job 1 cannot run on 1 workers with the mesh tp=2; nearest: 2");
    assert_int_equal(resize(&b, 1, 0, 6, 4, &err), TITAN_EINVAL);
    assert_int_equal(resize(&b, 1, 0, 0, 4, &err), TITAN_EINVAL);
    assert_int_equal(resize(&b, 1, 4, 2, 4, &err), TITAN_EINVAL);
    assert_int_equal(resize(&b, 1, UINT32_MAX, 0, 0, &err), TITAN_EINVAL);
    assert_int_equal(resize(&b, 2, 4, 0, 0, &err), TITAN_ENOTFOUND);
    assert_null(b.out.changes);
    assert_int_equal(core_cancel(b.core, 1, &(struct core_cancel){.reason = ""}, at(&b), &b.out, NULL), TITAN_OK);
    assert_int_equal(resize(&b, 1, 4, 0, 0, &err), TITAN_ECONFLICT);
    close_bench(&b);
}

/* The desired size holds for a job that waits, and after a restart of the coordinator. */
static void test_desired_size_is_kept(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    submit(&b, 1, 2, 4);
    assert_int_equal(resize(&b, 1, 0, 3, 3, NULL), TITAN_OK);
    assert_int_equal(registration(&b, 1, "a", 8, NULL, 0), TITAN_OK);
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 3);
    close_bench(&b);

    open_bench(&b);
    struct core_saved_job saved = {.job = job_of(1, 2, 4)};
    saved.job.desired = (struct desired_size){.max = 2, .number = 1};
    core_restore_job(b.core, &saved, at(&b));
    assert_int_equal(registration(&b, 1, "a", 8, NULL, 0), TITAN_OK);
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 2);
    close_bench(&b);
}

/* An acting leader can have given its job's epochs numbers that no store has. */
static void test_number_after_a_restart(void **state)
{
    (void)state;
    for (uint32_t lease_ms = 0; lease_ms <= 10000; lease_ms += 10000) {
        struct bench b = {.now = 1000};
        struct core_options options = {.term = 2, .seed = 1, .jobs_dir = "/jobs", .leader_lease_ms = lease_ms};
        batch_init(&b.out);
        assert_int_equal(core_new(&options, &b.core, NULL), TITAN_OK);
        struct core_saved_job saved = {.job = job_of(1, 1, 1), .run = 1};
        saved.job.status.epoch = 5;
        core_restore_job(b.core, &saved, at(&b));
        assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
        assert_non_null(told(&b, START, 1));
        const uint64_t worker = told(&b, START, 1)->start->worker_ids[0];
        heartbeat(&b, 1);
        ready(&b, .worker = worker);
        const uint64_t number = told(&b, FORM, 1)->form->epoch;
        assert_int_equal(number, lease_ms ? UINT64_C(1) << 20 : 6);
        close_bench(&b);
    }
}

static titan_status checked(struct bench *b, uint64_t session, uint64_t request, const char *problem)
{
    Titan__Internal__NodeChecked body = TITAN__INTERNAL__NODE_CHECKED__INIT;
    body.request_id = request;
    body.problem = (char *)problem;
    MESSAGE(m, CHECKED, checked, body);
    return say(b, session, &m);
}

static void node_one(const struct core_node *n, void *data)
{
    *(struct core_node *)data = *n;
}

/* A node that checks gets no workers before it has seen the jobs' folders, and none while it does not. */
static void test_unfit_node(void **state)
{
    (void)state;
    struct bench b;
    struct core_node n;
    char reason[300];
    open_bench(&b);
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = (char *)"n1";
    body.slots = 4;
    body.device = (char *)"cpu";
    body.incarnation = 7;
    body.checks = true;
    MESSAGE(m, REGISTRATION, registration, body);
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    const Titan__Internal__CoordinatorMessage *asked = NULL;
    for (const struct batch_message *at = b.out.answers; at; at = at->next)
        if (at->message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECK)
            asked = at->message;
    assert_non_null(asked);
    assert_string_equal(asked->check->jobs_dir, "/jobs");
    submit(&b, 1, 2, 4);
    assert_null(told(&b, START, 1));
    assert_int_equal(checked(&b, 1, 0, "'/jobs/.titan-jobs' is not there"), TITAN_OK);
    assert_null(told(&b, START, 1));
    assert_non_null(event(&b, "node.unfit"));
    core_nodes(b.core, node_one, &n);
    assert_string_equal(n.state_text, "unfit");
    assert_string_equal(n.reason, "'/jobs/.titan-jobs' is not there");
    assert_true(core_job_reason(b.core, 1, reason, sizeof(reason)));
    assert_non_null(strstr(reason, "node n1 is unfit: '/jobs/.titan-jobs' is not there"));
    assert_int_equal(checked(&b, 1, 9, ""), TITAN_OK); /* an operator's, not ours */
    assert_null(told(&b, START, 1));
    assert_int_equal(checked(&b, 1, 0, ""), TITAN_OK);
    assert_non_null(told(&b, START, 1));
    assert_non_null(event(&b, "node.fit"));
    /* The same agent again: what was seen holds while it looks once more. */
    assert_int_equal(say(&b, 2, &m), TITAN_OK);
    core_nodes(b.core, node_one, &n);
    assert_string_equal(n.state_text, "ready");
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shrink),
        cmocka_unit_test(test_grow),
        cmocka_unit_test(test_departing_leaves_first),
        cmocka_unit_test(test_departing_lost),
        cmocka_unit_test(test_resize_refused),
        cmocka_unit_test(test_surplus_goes),
        cmocka_unit_test(test_surplus_is_counted),
        cmocka_unit_test(test_desired_size_is_kept),
        cmocka_unit_test(test_number_after_a_restart),
        cmocka_unit_test(test_unfit_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
