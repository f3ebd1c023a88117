/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that fail: what is counted, told and forgotten, and that a run which says that it tries again is not
 * taken for one that hangs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/core_bench.h"

static struct bench b;

static int setup(void **state)
{
    (void)state;
    running_job(&b); /* job 1, epoch 1 */
    batch_free(&b.out);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_bench(&b);
    return 0;
}

static void failed(uint64_t worker, uint64_t epoch, uint64_t step, const char *reason, bool reading)
{
    Titan__Internal__CheckpointFailed body = TITAN__INTERNAL__CHECKPOINT_FAILED__INIT;
    body.job_id = 1;
    body.worker_id = worker;
    body.epoch = epoch;
    body.step = step;
    body.path = (char *)(reading ? "/c/step-00000010" : "/c");
    body.reason = (char *)reason;
    body.reading = reading;
    MESSAGE(m, CHECKPOINT_FAILED, checkpoint_failed, body);
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
}

/* Events of that type in what is to be stored; the batch is empty then. */
static int take(const char *type)
{
    int n = 0;
    for (const struct change *k = b.out.changes; k; k = k->next)
        n += k->has_event && strcmp(k->event.type, type) == 0;
    batch_free(&b.out);
    return n;
}

static const char *reason(void)
{
    static char text[1024];
    return core_job_reason(b.core, 1, text, sizeof(text)) ? text : "";
}

static void test_told_and_counted(void **state)
{
    (void)state;
    int told = 0;
    assert_string_equal(reason(), "");
    for (uint64_t i = 1; i <= 100; i++) {
        failed(1, 1, 6 + i, "'/c/.step-00000010.1': cannot write: No space left on device", false);
        told += take("checkpoint.failed");
    }
    assert_int_equal(told, 7); /* 1, 2, 4, ... 64 */
    assert_non_null(strstr(reason(), "step 106"));
    assert_non_null(strstr(reason(), "No space left"));
    failed(1, 1, 107, "'/c': cannot write: Read-only file system", false);
    assert_int_equal(take("checkpoint.failed"), 1); /* something else */

    checkpoint(&b, .worker = 1, .epoch = 1, .step = 90);
    const struct event *e = event(&b, "checkpoint.committed");
    assert_non_null(e);
    assert_non_null(strstr(e->message, "101 before it were not written"));
    batch_free(&b.out);
    assert_string_equal(reason(), "");
    failed(1, 1, 109, "x: No space left on device", false);
    assert_int_equal(take("checkpoint.failed"), 1); /* from the beginning */
}

/* All ranks may say the same of one checkpoint. */
static void test_once_for_all_ranks(void **state)
{
    (void)state;
    failed(2, 1, 10, "x: No space left on device", false);
    assert_int_equal(take("checkpoint.failed"), 1);
    for (int i = 0; i < 10; i++) {
        failed(2, 1, 10, "x: No space left on device", false);
        assert_int_equal(take("checkpoint.failed"), 0);
    }
}

/* Of an epoch that is over. */
static void test_old_epochs_are_refused(void **state)
{
    (void)state;
    failed(1, 0 + 7, 10, "x: No space left on device", false);
    assert_int_equal(take("checkpoint.failed"), 0);
    assert_string_equal(reason(), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_told_and_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_once_for_all_ranks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_old_epochs_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
