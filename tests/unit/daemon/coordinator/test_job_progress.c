/* SPDX-License-Identifier: Apache-2.0 */
/* A job's step and its numbers: loss and speed are those of the step, or not known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "support/core_bench.h"

static struct bench b;

static int setup(void **state)
{
    (void)state;
    running_job(&b); /* job 1, epoch 1, workers 1 to 4, step 7, checkpoint of step 5 */
    batch_free(&b.out);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_bench(&b);
    return 0;
}

static struct job_status status(void)
{
    struct job_status s;
    assert_true(core_job_status(b.core, 1, &s));
    return s;
}

/* Loss of the step in the row of the job as it is stored when the job has ended. */
static struct job_status stored(enum job_state state)
{
    const struct change *k = moved(&b, state);
    assert_non_null(k);
    return k->job.status;
}

static size_t rows(void)
{
    size_t n = 0;
    for (const struct batch_metric *m = b.out.metrics; m; m = m->next)
        n++;
    batch_free(&b.out);
    return n;
}

static void end_all(uint64_t step)
{
    for (uint64_t w = 1; w <= 4; w++)
        finished(&b, .worker = w, .epoch = 1, .step = step);
    for (uint64_t w = 1; w <= 4; w++)
        exited(&b, .worker = w);
}

static void test_numbers_are_of_the_step(void **state)
{
    (void)state;
    progress(&b, .worker = 3, .epoch = 1, .step = 8, .loss = 1.75);
    assert_true(status().step == 8 && status().loss == 1.75);
    progress(&b, .worker = 1, .epoch = 1, .step = 8, .loss = 1.5); /* rank 0 has the word */
    assert_true(status().step == 8 && status().loss == 1.5);
    progress(&b, .worker = 2, .epoch = 1, .step = 8, .loss = 1.25);
    progress(&b, .worker = 1, .epoch = 1, .step = 7, .loss = 1.25);
    assert_true(status().step == 8 && status().loss == 1.5);
}

/* The last reports were lost with an agent: an earlier step's loss is not the last one's. */
static void test_end_without_the_last_report(void **state)
{
    (void)state;
    end_all(100);
    assert_int_equal(stored(JOB_COMPLETED).step, 100);
    assert_true(isnan(stored(JOB_COMPLETED).loss));
    assert_true(stored(JOB_COMPLETED).tokens_per_second == 0);
}

static void test_end_with_the_last_report(void **state)
{
    (void)state;
    progress(&b, .worker = 4, .epoch = 1, .step = 100, .loss = 1.5);
    end_all(100);
    assert_true(stored(JOB_COMPLETED).step == 100 && stored(JOB_COMPLETED).loss == 1.5);
}

/* Back at a checkpoint: the loss is not of the step that is lost. */
static void test_fallback(void **state)
{
    (void)state;
    exited(&b, .worker = 3, .code = -1);
    for (uint64_t w = 1; w <= 4; w++)
        if (w != 3)
            quiesced(&b, .worker = w, .epoch = 1, .step = 7);
    assert_true(status().loss == 2.5);
    state_ready(&b, .worker = 1, .epoch = 2, .recovery_source = TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_CHECKPOINT,
                .step = 5);
    assert_true(status().step == 5 && isnan(status().loss));
    progress(&b, .worker = 2, .epoch = 2, .step = 6, .loss = 1.5);
    assert_true(status().step == 6 && status().loss == 1.5);
}

/* Agents send the newest progress again to each new session. */
static void test_repeated_report(void **state)
{
    (void)state;
    progress(&b, .worker = 1, .epoch = 1, .step = 8, .loss = 1.5);
    assert_int_equal(rows(), 1);
    progress(&b, .worker = 1, .epoch = 1, .step = 8, .loss = 1.5);
    progress(&b, .worker = 1, .epoch = 1, .step = 7, .loss = 1.75);
    assert_null(b.out.gaps);
    assert_int_equal(rows(), 0);
    progress(&b, .worker = 1, .epoch = 1, .step = 9, .loss = 1.25);
    assert_null(b.out.gaps);
    assert_int_equal(rows(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_numbers_are_of_the_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_end_without_the_last_report, setup, teardown),
        cmocka_unit_test_setup_teardown(test_end_with_the_last_report, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fallback, setup, teardown),
        cmocka_unit_test_setup_teardown(test_repeated_report, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
