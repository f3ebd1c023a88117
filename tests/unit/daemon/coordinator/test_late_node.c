/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator starts again beside a node that has lost its workers, and the node that holds the state is back late.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/core_store.h"

static struct core_store s;
static bool stopped;                    /* worker 2 has been told to stop */
static Titan__Internal__FormEpoch form; /* the newest, its lists with it; epoch 0 = none */
static size_t n_members;
static uint64_t member;

static void commit(void)
{
    for (const struct batch_message *m = s.b.out.messages; m; m = m->next) {
        stopped |= m->message->kind_case == STOP && m->message->stop->worker_ids[0] == 2;
        if (m->message->kind_case == FORM) {
            form = *m->message->form;
            n_members = form.n_members;
            member = form.members[0]->worker_id;
        }
    }
    commit_store(&s);
}

static void pass(uint64_t session, int64_t ms)
{
    pass_time(&s, session, ms, commit);
}

/* Workers 1 on node a and 2 on node b train in epoch 1; its checkpoint is of step 5, its newest step is 7. Then the
 * coordinator starts again, and node a comes back without its worker. */
static int setup(void **state)
{
    (void)state;
    open_store(&s);
    form = (Titan__Internal__FormEpoch){0};
    assert_int_equal(registration(&s.b, 1, "a", 1, NULL, 0), TITAN_OK);
    commit();
    assert_int_equal(registration(&s.b, 2, "b", 1, NULL, 0), TITAN_OK);
    commit();
    struct job job = job_of(1, 1, 2);
    submit_store(&s, &job);
    commit();
    for (uint64_t w = 1; w <= 2; w++) {
        ready(&s.b, .session = w, .worker = w);
        commit();
    }
    checkpoint(&s.b, .session = 1, .worker = 1, .epoch = 1, .step = 5);
    commit();
    for (uint64_t w = 1; w <= 2; w++) {
        progress(&s.b, .session = w, .worker = w, .epoch = 1, .step = 7);
        commit();
    }
    restart_store(&s, 2);
    assert_int_equal(registration(&s.b, 3, "a", 1, NULL, 0), TITAN_OK);
    commit();
    stopped = false;
    form.epoch = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_store(&s);
    return 0;
}

/* Longer than members have to leave an epoch: what node b holds is waited for, and the run goes on from it. */
static void test_back_in_time(void **state)
{
    (void)state;
    pass(3, 3000);
    assert_false(stopped);
    assert_int_equal(form.epoch, 0);
    Titan__Internal__LiveWorker live, *list[] = {&live};
    live_worker(&live, 2); /* what it holds is sent later */
    assert_int_equal(registration(&s.b, 4, "b", 1, list, 1), TITAN_OK);
    commit();
    pass(4, 900); /* its worker has as long to leave the epoch as others had */
    quiesced(&s.b, .session = 4, .worker = 2, .epoch = 1, .step = 7);
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
    ready(&s.b, .session = 3, .worker = 3);
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
