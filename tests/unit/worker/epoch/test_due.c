/* SPDX-License-Identifier: Apache-2.0 */
/* When a checkpoint is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/epoch/due.h"
#include "worker/elastic/membership.h"

static struct recipe recipe(bool enable, int interval, const char *async_mode)
{
    struct recipe r;
    memset(&r, 0, sizeof r);
    r.checkpoint.enable = enable;
    r.checkpoint.interval = interval;
    (void)strncpy(r.checkpoint.async_mode, async_mode, sizeof r.checkpoint.async_mode - 1);
    return r;
}

static void test_heed(void **state)
{
    const struct recipe writes = recipe(true, 10, "async"), none = recipe(false, 10, "async");

    (void)state;
    assert_int_equal(checkpoint_heed(&writes, COMMAND_STOP | COMMAND_CHECKPOINT), COMMAND_STOP | COMMAND_CHECKPOINT);
    assert_int_equal(checkpoint_heed(&none, COMMAND_STOP | COMMAND_CHECKPOINT), COMMAND_STOP);
    assert_int_equal(checkpoint_heed(&none, COMMAND_STOP | COMMAND_CHECKPOINT | COMMAND_MUST),
                     COMMAND_STOP | COMMAND_CHECKPOINT);
    assert_int_equal(checkpoint_heed(&none, COMMAND_PAUSE), COMMAND_PAUSE);
    assert_int_equal(checkpoint_heed(&writes, COMMAND_MUST), 0); /* alone it is no command */
}

static void test_due(void **state)
{
    const struct recipe async = recipe(true, 10, "async"), sync = recipe(true, 10, "disabled"),
                        none = recipe(false, 10, "async");
    const struct {
        const struct recipe *r;
        struct due_step step;
        enum checkpoint_due due;
    } cases[] = {
        {&async, {.number = 9}, CHECKPOINT_NOT_DUE},
        {&async, {.number = 10}, CHECKPOINT_BEHIND},
        {&sync, {.number = 10}, CHECKPOINT_WAITED},
        {&async, {.number = 7, .last = true}, CHECKPOINT_WAITED}, /* nothing is behind it */
        {&async, {.number = 7, .agreed = COMMAND_STOP}, CHECKPOINT_NOT_DUE},
        {&async, {.number = 7, .agreed = COMMAND_CHECKPOINT}, CHECKPOINT_WAITED},
        {&async, {.number = 7, .agreed = COMMAND_STOP | COMMAND_CHECKPOINT}, CHECKPOINT_WAITED},
        {&none, {.number = 10, .last = true, .agreed = COMMAND_STOP}, CHECKPOINT_NOT_DUE},
        {&none, {.number = 7, .agreed = COMMAND_STOP | COMMAND_CHECKPOINT}, CHECKPOINT_WAITED},
        /* A skipped step's state is the one before: it is written once steps count again, or if it must be. */
        {&async, {.number = 10, .skipped = true}, CHECKPOINT_PUT_OFF},
        {&async, {.number = 11, .skipped = true, .put_off = true}, CHECKPOINT_PUT_OFF},
        {&async, {.number = 12, .put_off = true}, CHECKPOINT_BEHIND},
        {&sync, {.number = 12, .put_off = true}, CHECKPOINT_WAITED},
        {&async, {.number = 11, .skipped = true}, CHECKPOINT_NOT_DUE},
        {&async, {.number = 11, .skipped = true, .last = true}, CHECKPOINT_WAITED},
        {&async, {.number = 11, .skipped = true, .agreed = COMMAND_CHECKPOINT}, CHECKPOINT_WAITED},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (checkpoint_due(cases[i].r, &cases[i].step) != cases[i].due)
            fail_msg("case %zu: %d", i, (int)checkpoint_due(cases[i].r, &cases[i].step));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heed), cmocka_unit_test(test_due)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
