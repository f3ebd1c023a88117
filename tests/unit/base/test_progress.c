/* SPDX-License-Identifier: Apache-2.0 */
/* Words of progress: nesting, threads, and that `waiting` ends up right however threads race. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/progress.h"

static _Atomic uint64_t actions, busy_ns;
static _Atomic uint32_t waiting;

static int attach(void **state)
{
    (void)state;
    atomic_store(&actions, 0);
    atomic_store(&busy_ns, 0);
    progress_attach(&(struct progress_counters){.actions = &actions, .waiting = &waiting, .busy_ns = &busy_ns});
    return 0;
}

static int detach(void **state)
{
    (void)state;
    progress_attach(NULL);
    return 0;
}

static void test_one_thread(void **state)
{
    (void)state;
    assert_int_equal(waiting, 1); /* idle */
    progress_wait_begin();        /* without work: no effect */
    progress_wait_end();
    progress_work_begin();
    assert_int_equal(waiting, 0);
    progress_work_begin();
    progress_wait_begin();
    progress_wait_begin();
    assert_int_equal(waiting, 1);
    progress_wait_end();
    assert_int_equal(waiting, 1);
    progress_wait_end();
    assert_int_equal(waiting, 0);
    progress_work_end();
    assert_int_equal(waiting, 0);
    progress_work_end();
    assert_int_equal(waiting, 1);
    progress_action();
    progress_action();
    assert_int_equal(actions, 2);
    assert_int_equal(progress_actions(), 2);
    progress_busy(5);
    progress_busy(-7); /* clocks of two threads: never backwards */
    assert_int_equal(busy_ns, 5);
}

static void test_idle_time(void **state)
{
    (void)state;
    progress_work_begin();
    const int64_t before = progress_idle_ns(), from = clock_mono_ns();
    progress_wait_begin();
    const int64_t from_within = clock_mono_ns();
    while (clock_mono_ns() - from_within < 2000000)
        ;
    const int64_t took_within = clock_mono_ns() - from_within;
    progress_wait_end();
    const int64_t took = clock_mono_ns() - from, idle = progress_idle_ns() - before;
    assert_true(idle >= took_within && idle <= took);
    while (clock_mono_ns() - from < 2 * took)
        ;
    assert_int_equal(progress_idle_ns() - before, idle); /* it worked since */
    progress_work_end();
}

static void *flap(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20000; i++) {
        progress_work_begin();
        progress_action();
        if (i % 3 == 0) {
            progress_wait_begin();
            progress_wait_end();
        }
        progress_work_end();
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    const uint64_t before = actions;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, flap, NULL), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(waiting, 1);
    assert_int_equal(actions - before, 80000);
    progress_work_begin();
    assert_int_equal(waiting, 0);
    progress_work_end();
    assert_int_equal(waiting, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_thread, attach, detach),
        cmocka_unit_test_setup_teardown(test_idle_time, attach, detach),
        cmocka_unit_test_setup_teardown(test_threads, attach, detach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
