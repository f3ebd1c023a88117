/* SPDX-License-Identifier: Apache-2.0 */
/* failpoint.h: off, each effect, counts, text that is not understood. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "tests/support/child.h"

/* Wait status of a child that passes "here" n times with these points armed by the environment. */
static int child(const char *text, int n)
{
    int status = 0;
    const pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)setenv("TITAN_FAILPOINTS", text, 1);
        for (int i = 0; i < n; i++)
            if (failpoint("here", NULL) != TITAN_OK)
                _exit(10 + i);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
        int end;
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, &end, 0);
    }
    return status;
}

static void test_effects(void **state)
{
    (void)state;
    assert_int_equal(child("", 3), 0);
    assert_int_equal(child("there=kill", 3), 0);
    assert_int_equal(WTERMSIG(child("here=kill", 1)), SIGKILL);
    assert_int_equal(child("here=kill@4", 3), 0);
    assert_true(WIFSIGNALED(child("here=kill@3", 3)));
    assert_int_equal(WEXITSTATUS(child("here=fail@2", 5)), 11);
    assert_int_equal(WEXITSTATUS(child("there=kill,here=fail@3", 5)), 12);
    assert_true(WIFSTOPPED(child("here=stop", 1)));
    assert_int_equal(WEXITSTATUS(child("here=exit:77@2", 2)), 77);
    assert_int_equal(WEXITSTATUS(child("here=fail@2+", 5)), 11);
    const int64_t began = clock_mono_ns();
    assert_int_equal(child("here=sleep:30", 2), 0);
    assert_true(clock_mono_ns() - began >= 30 * INT64_C(1000000));
}

static titan_status refuse(void *arg, const char *name, struct titan_error *err)
{
    *(int *)arg += 1;
    return titan_fail(err, TITAN_EIO, "called at %s", name);
}

static void test_call(void **state)
{
    (void)state;
    struct titan_error err = {0};
    int calls = 0;
    assert_int_equal(failpoint_set("here=call@2", NULL), TITAN_OK);
    failpoint_on_call(refuse, &calls);
    for (int i = 1; i <= 3; i++)
        assert_int_equal(failpoint("here", &err), i == 2 ? TITAN_EIO : TITAN_OK);
    assert_int_equal(calls, 1);
    assert_string_equal(err.msg, "called at here");
    failpoint_on_call(NULL, NULL);
    assert_int_equal(failpoint_set("here=call", NULL), TITAN_OK);
    assert_int_equal(failpoint("here", NULL), TITAN_OK);
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
}

static void test_set(void **state)
{
    (void)state;
    struct titan_error err = {0};
    static const char *const wrong[] = {"here",        "=kill",       "here=",      "here=die",        "here=kill@",
                                        "here=kill@0", "here=sleep:", "here=killx", "here=kill@2x",    "here%=kill",
                                        "here%x=kill", "here=exit:",  "here=fail:", "here=fail:EWHAT", "here=fail@+",
                                        "here%1",      "%1=kill"};
    assert_int_equal(failpoint_set("here=fail@2", NULL), TITAN_OK);
    for (int i = 1; i <= 4; i++)
        assert_int_equal(failpoint("here", &err), i == 2 ? TITAN_EPEER : TITAN_OK);
    assert_non_null(strstr(err.msg, "here"));
    assert_int_equal(failpoint_set("here%2=fail:ENOSPC@2+", NULL), TITAN_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(failpoint("here", NULL), TITAN_OK); /* no rank: not counted */
    atomic_store(&failpoint_rank, 2);
    for (int i = 1; i <= 4; i++)
        assert_int_equal(failpoint("here", NULL), i >= 2 ? TITAN_ENOSPC : TITAN_OK);
    atomic_store(&failpoint_rank, 1);
    assert_int_equal(failpoint("here", NULL), TITAN_OK);
    assert_int_equal(failpoint_set(NULL, NULL), TITAN_OK);
    assert_int_equal(failpoint("here", NULL), TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        assert_int_equal(failpoint_set(wrong[i], &err), TITAN_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_effects), cmocka_unit_test(test_call),
                                       cmocka_unit_test(test_set)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
