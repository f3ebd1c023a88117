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

    (void)state;
    assert_int_equal(checkpoint_due(&async, 9, false, 0), CHECKPOINT_NOT_DUE);
    assert_int_equal(checkpoint_due(&async, 10, false, 0), CHECKPOINT_BEHIND);
    assert_int_equal(checkpoint_due(&sync, 10, false, 0), CHECKPOINT_WAITED);
    assert_int_equal(checkpoint_due(&async, 7, true, 0), CHECKPOINT_WAITED); /* nothing is behind it */
    assert_int_equal(checkpoint_due(&async, 7, false, COMMAND_STOP), CHECKPOINT_NOT_DUE);
    assert_int_equal(checkpoint_due(&async, 7, false, COMMAND_CHECKPOINT), CHECKPOINT_WAITED);
    assert_int_equal(checkpoint_due(&async, 7, false, COMMAND_STOP | COMMAND_CHECKPOINT), CHECKPOINT_WAITED);
    assert_int_equal(checkpoint_due(&none, 10, true, COMMAND_STOP), CHECKPOINT_NOT_DUE);
    assert_int_equal(checkpoint_due(&none, 7, false, COMMAND_STOP | COMMAND_CHECKPOINT), CHECKPOINT_WAITED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heed), cmocka_unit_test(test_due)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
