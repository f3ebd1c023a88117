/* SPDX-License-Identifier: Apache-2.0 */
/* slice.h */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "base/slice.h"

static bool kernel_has_slices(void)
{
    struct utsname u;
    int major = 0, minor = 0;
    assert_int_equal(uname(&u), 0);
    assert_int_equal(sscanf(u.release, "%d.%d", &major, &minor), 2);
    return major > 6 || (major == 6 && minor >= 12);
}

static void *slice_of_new_thread(void *ret)
{
    *(int64_t *)ret = slice_get();
    return NULL;
}

static void test_slice(void **state)
{
    (void)state;
    int64_t before = slice_get(), inherited = -1;
    pthread_t thread;
    slice_set(SLICE_SHORT_NS);
    if (!kernel_has_slices()) {
        assert_int_equal(slice_get(), 0);
        print_message("before Linux 6.12: the slice is ignored\n");
        skip();
    }
    assert_int_equal(slice_get(), SLICE_SHORT_NS);
    assert_int_equal(pthread_create(&thread, NULL, slice_of_new_thread, &inherited), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(inherited, SLICE_SHORT_NS);
    slice_set(0);
    assert_int_equal(slice_get(), before);
}

/* The same system call carries niceness and policy. */
static void test_the_rest_stays(void **state)
{
    (void)state;
    int nice = getpriority(PRIO_PROCESS, 0);
    if (nice < 19)
        assert_int_equal(setpriority(PRIO_PROCESS, 0, ++nice), 0);
    slice_set(SLICE_SHORT_NS);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), nice);
    assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
    slice_set(0);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), nice);
}

/* Of a batch thread: kept as such. */
static void test_other_policies(void **state)
{
    (void)state;
    const struct sched_param none = {.sched_priority = 0};
    assert_int_equal(sched_setscheduler(0, SCHED_BATCH, &none), 0);
    slice_set(SLICE_SHORT_NS);
    assert_int_equal(sched_getscheduler(0), SCHED_BATCH);
    slice_set(0);
    assert_int_equal(sched_setscheduler(0, SCHED_IDLE, &none), 0);
    slice_set(SLICE_SHORT_NS);
    assert_int_equal(sched_getscheduler(0), SCHED_IDLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slice),
        cmocka_unit_test(test_the_rest_stays),
        cmocka_unit_test(test_other_policies),
    };
    return cmocka_run_group_tests_name("slice", tests, NULL, NULL);
}
