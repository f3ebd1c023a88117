/* Every operation of the CPU plug-in against the fp64 reference, on one thread and on several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/device_ops.h"

static void check_threads(int threads)
{
    struct device_handle h;
    struct titan_error err = {0};
    struct device_options options = {.threads = threads};
    if (device_open("cpu", &options, &h, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    int failed = device_ops_check(&h, stdout);
    device_close(&h);
    assert_int_equal(failed, 0);
}

static void test_one_thread(void **state)
{
    (void)state;
    check_threads(1);
}
static void test_three_threads(void **state)
{
    (void)state;
    check_threads(3);
}

int main(void)
{
    setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_three_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
