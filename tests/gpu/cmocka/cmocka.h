/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka.h - the few names of cmocka that tests/golden uses, for machines that do not have it. A failed assertion ends
 * its test; results are TAP. TITAN_TEST_ONLY=WORD runs the tests with WORD in their name. */
#ifndef TITAN_TESTS_GPU_CMOCKA_H
#define TITAN_TESTS_GPU_CMOCKA_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
};
#define cmocka_unit_test(f)                                                                                            \
    {                                                                                                                  \
#f, f                                                                                                          \
    }

static jmp_buf cmocka_failed;

__attribute__((noreturn)) static inline void cmocka_fail_at(const char *file, int line)
{
    printf("# %s:%d\n", file, line);
    longjmp(cmocka_failed, 1);
}
#define print_message printf
#define fail_msg(...) (printf("# " __VA_ARGS__), printf("\n"), cmocka_fail_at(__FILE__, __LINE__))
#define assert_true(c) ((c) ? (void)0 : fail_msg("%s is not true", #c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b) assert_true((intmax_t)(a) == (intmax_t)(b))
#define assert_string_equal(a, b) assert_true(strcmp((a), (b)) == 0)

static inline int cmocka_run(const struct CMUnitTest *tests, size_t n)
{
    volatile int failed = 0;
    const char *only = getenv("TITAN_TEST_ONLY");
    for (volatile size_t i = 0; i < n; i++) {
        void *state = NULL;
        if (!tests[i].name || (only && !strstr(tests[i].name, only)))
            continue;
        bool ok = setjmp(cmocka_failed) == 0;
        if (ok)
            tests[i].test_func(&state);
        printf("%sok %zu - %s\n", ok ? "" : "not ", i + 1, tests[i].name);
        (void)fflush(stdout);
        failed += !ok;
    }
    return failed;
}
#define cmocka_run_group_tests(tests, setup, teardown) cmocka_run((tests), sizeof(tests) / sizeof((tests)[0]))

#endif
