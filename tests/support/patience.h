/* SPDX-License-Identifier: Apache-2.0 */
/* patience.h - how long a test waits for what has to come. Deadlines of tests are there against hanging only: they are
 * a minute at least, and a slow or busy machine stretches them. */
#ifndef TITAN_TESTS_SUPPORT_PATIENCE_H
#define TITAN_TESTS_SUPPORT_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

/* What a deadline is multiplied by: the processor's slowness (TITAN_TEST_SLOWNESS, by tests/run.py) and the processes
 * that want to run for each processor. At least 1. */
double patience(void);
/* A deadline of that many seconds, a minute at least, in ms: for calls that take a timeout. */
int patience_ms(int seconds);
/* A time that the tested is to keep, which a busy machine stretches sixfold at most: for waits that are waited out. */
uint32_t patience_stretched(int ms);

/* When the wait began; {0} at first. */
struct patience_wait {
    int64_t began_ns;
};
/* False once a minute has passed, stretched. For a loop that waits in a call of its own. Any thread or process. */
bool patience_left(struct patience_wait *wait);
/* The same after a short sleep. */
bool patience_nap(struct patience_wait *wait);

/* Waits until the condition holds; false when it hangs. */
#define AWAITED(condition)                                                                                             \
    ({                                                                                                                 \
        struct patience_wait wait_ = {0};                                                                              \
        bool holds_;                                                                                                   \
        while (!(holds_ = (condition)) && patience_nap(&wait_)) {                                                      \
        }                                                                                                              \
        holds_;                                                                                                        \
    })
/* The same in a cmocka test, which fails with the condition's text. */
#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        if (!AWAITED(condition))                                                                                       \
            fail_msg("still not: %s", #condition);                                                                     \
    } while (0)

/* Lets time pass because the test is about time that passes; `why` is for the reader. A disturbance, never a wait. */
void patience_pause_ms(int ms, const char *why);

#endif
