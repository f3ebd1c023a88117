/* SPDX-License-Identifier: Apache-2.0 */
/* sets.h - what of a test program is for `make test` and what for `make test-slow` (TITAN_TEST_SET; without it, all).
 * A program of both sets says of each case to which it belongs; tests/run.py finds it by slow( and longer(. What
 * cmocka's struct CMUnitTest has besides follows: slow(test_x, .setup_func = open_it). */
#ifndef TITAN_TESTS_SUPPORT_SETS_H
#define TITAN_TESTS_SUPPORT_SETS_H

#include <stdbool.h>

/* Of the fast set only. A case without a name is skipped by cmocka. */
#define quick(f, ...)                                                                                                  \
    {                                                                                                                  \
        .name = in_slow_set() ? NULL : #f, .test_func = (f), ##__VA_ARGS__                                             \
    }
/* Of the slow set only. */
#define slow(f, ...)                                                                                                   \
    {                                                                                                                  \
        .name = in_fast_set() ? NULL : #f, .test_func = (f), ##__VA_ARGS__                                             \
    }
/* In both: a slice in the fast set, as sliced() says, all in the slow one. */
#define longer(f, ...)                                                                                                 \
    {                                                                                                                  \
        .name = #f, .test_func = (f), ##__VA_ARGS__                                                                    \
    }

bool in_fast_set(void);
bool in_slow_set(void);
/* The number of rounds: few in the fast set, fewer yet with a sanitizer, which is slow itself. */
long sliced(long few, long all);

#endif
