/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation of the CPU plug-in against the fp64 reference, on one thread and on several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/device_ops.h"
#include "support/device_samples.h"
#include "support/sets.h"
#include "tests/support/child.h"

static void check_threads(int threads, bool samples)
{
    struct device_handle h;
    struct titan_error err = {0};
    struct device_options options = {.threads = threads};
    if (device_open("cpu", &options, &h, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    int failed = samples ? device_samples_check(&h, true, stdout) : device_ops_check(&h, stdout);
    device_close(&h);
    assert_int_equal(failed, 0);
}

static void test_one_thread(void **state)
{
    (void)state;
    check_threads(1, false);
}
static void test_three_threads(void **state)
{
    (void)state;
    check_threads(3, false);
}
/* The large shapes' checks, on small ones of their form. */
static void test_samples(void **state)
{
    (void)state;
    check_threads(2, true);
}

/* oneDNN reads its limit once, so a machine without AVX-512 needs a process of its own. There bf16 products run widened
 * to fp32. */
static int run_limited(void)
{
    struct device_handle h;
    struct titan_error err = {0};
    struct device_options options = {.threads = 1};
    if (device_open("cpu", &options, &h, &err) != TITAN_OK) {
        printf("not ok - %s\n", err.msg);
        return 1;
    }
    int failed = device_ops_check(&h, stdout);
    device_close(&h);
    return failed > 0;
}

static void test_without_bf16_products(void **state)
{
    int status = 0;
    (void)state;
    fflush(stdout);
    pid_t pid = child_fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
        execl("/proc/self/exe", "test_cpu_ops", "limited", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 1);
    if (argc > 1 && strcmp(argv[1], "limited") == 0)
        return run_limited();
    const struct CMUnitTest tests[] = {
        slow(test_one_thread),
        quick(test_three_threads),
        quick(test_samples),
        quick(test_without_bf16_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
