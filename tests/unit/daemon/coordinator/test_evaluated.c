/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluations that workers tell of: one of a step is stored and told, whatever worker says it and how often. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/coordinator/shell/store_restore.h"
#include "state/schema.h"
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

/* Events and rows in what is to be stored; the batch is empty then. */
static int take(void)
{
    int told = 0, rows = 0, updates = 0;
    for (const struct change *k = b.out.changes; k; k = k->next) {
        told += k->has_event && strcmp(k->event.type, "validation.finished") == 0;
        updates += k->kind == CHANGE_JOB_UPDATE && k->job.status.evaluation.step > 0;
    }
    for (const struct batch_metric *m = b.out.metrics; m; m = m->next)
        rows += m->metric.evaluation.step > 0;
    batch_free(&b.out);
    assert_true(rows == told && updates >= told);
    return told;
}

static struct evaluation_report newest(void)
{
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    return status.evaluation;
}

static void test_of_a_step_one(void **state)
{
    (void)state;
    assert_int_equal(newest().step, 0);
    progress(&b, .worker = 1, .epoch = 1, .step = 8);
    batch_free(&b.out);
    evaluated(&b, .worker = 2, .epoch = 1, .step = 8);
    const struct event *e = event(&b, "validation.finished");
    assert_non_null(e);
    assert_string_equal(e->message, "validation loss 2.000000 after step 8");
    assert_non_null(strstr(e->detail, "\"step\":8,\"loss\":2.0,\"perplexity\":7.38905"));
    assert_int_equal(take(), 1);
    assert_true(newest().step == 8 && newest().loss == 2 && newest().tokens == 30 && newest().bytes == 60);
    evaluated(&b, .worker = 1, .epoch = 1, .step = 8);
    evaluated(&b, .worker = 2, .epoch = 1, .step = 8); /* its agent is another one now */
    assert_int_equal(take(), 0);
    progress(&b, .worker = 1, .epoch = 1, .step = 9);
    evaluated(&b, .worker = 1, .epoch = 1, .step = 9);
    assert_int_equal(take(), 1);
}

/* What cannot be is refused, and on record. */
static void test_refused(void **state)
{
    (void)state;
    evaluated(&b, .worker = 1, .epoch = 7, .step = 8);
    assert_int_equal(take(), 0);
    evaluated(&b, .worker = 1, .epoch = 1, .step = UINT64_C(1) << 50);
    assert_non_null(event(&b, "report.refused"));
    assert_int_equal(take(), 0);
    assert_int_equal(newest().step, 0);
}

/* Worker 3 is lost after the evaluation of step 7; the others form epoch 2 and have the state of this step. */
static void lose_one(uint64_t step, int recovery_source)
{
    evaluated(&b, .worker = 1, .epoch = 1, .step = 7);
    assert_int_equal(take(), 1);
    exited(&b, .worker = 3, .code = -1);
    for (uint64_t w = 1; w <= 4; w++)
        if (w != 3)
            quiesced(&b, .worker = w, .epoch = 1, .step = 7);
    state_ready(&b, .worker = 1, .epoch = 2, .recovery_source = recovery_source, .step = step);
    batch_free(&b.out);
}

/* The survivors say again what they have. */
static void test_not_twice_after_a_recovery(void **state)
{
    (void)state;
    lose_one(7, TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_BUDDY);
    evaluated(&b, .worker = 1, .epoch = 2, .step = 7);
    evaluated(&b, .worker = 2, .epoch = 1, .step = 7);
    assert_int_equal(take(), 0);
    evaluated(&b, .worker = 2, .epoch = 2, .step = 8);
    assert_int_equal(take(), 1);
}

/* Steps behind the checkpoint are trained again, and so is what they are evaluated to. */
static void test_again_after_a_fallback(void **state)
{
    (void)state;
    lose_one(5, TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_CHECKPOINT);
    evaluated(&b, .worker = 2, .epoch = 1, .step = 7); /* late, of the epoch before */
    evaluated(&b, .worker = 2, .epoch = 2, .step = 5); /* that state is the one it was */
    assert_int_equal(take(), 0);
    progress(&b, .worker = 1, .epoch = 2, .step = 7);
    batch_free(&b.out);
    evaluated(&b, .worker = 2, .epoch = 2, .step = 7);
    assert_int_equal(take(), 1);
}

static void store(struct db *db)
{
    struct titan_error err = {0};
    if (change_apply(db, b.out.changes, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    batch_free(&b.out);
}

/* Another coordinator has it from the store, and hears it again. */
static void test_not_twice_after_a_restart(void **state)
{
    (void)state;
    struct core_options options = {
        .term = 2, .seed = 1, .jobs_dir = "/jobs", .heartbeat_ms = 100, .node_timeout_ms = 1000, .next_worker_id = 3};
    Titan__Internal__LiveWorker live[2], *list[2];
    struct job job = job_of(1, 2, 2);
    struct db *db = NULL;
    uint64_t there = 0;

    close_bench(&b);
    open_bench(&b);
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    store(db);
    assert_int_equal(job_submit(db, &job, "recipe", &there, NULL), TITAN_OK);
    submit_job(&b, &job);
    store(db);
    for (uint64_t w = 1; w <= 2; w++) {
        ready(&b, .worker = w);
        store(db);
    }
    progress(&b, .worker = 1, .epoch = 1, .step = 8);
    store(db);
    evaluated(&b, .worker = 1, .epoch = 1, .step = 8);
    store(db);
    core_free(b.core);
    assert_int_equal(core_new(&options, &b.core, NULL), TITAN_OK);
    assert_int_equal(core_restore(b.core, db, at(&b), NULL, NULL, NULL), TITAN_OK);
    assert_true(newest().step == 8 && newest().loss == 2 && newest().tokens == 30 && newest().bytes == 60);
    for (uint64_t i = 0; i < 2; i++) {
        titan__internal__live_worker__init(&live[i]);
        live[i].job_id = live[i].epoch = 1;
        live[i].worker_id = i + 1;
        live[i].step = 8;
        live[i].state = TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING;
        live[i].address = (char *)"h:1";
        list[i] = &live[i];
    }
    assert_int_equal(registration(&b, 2, "a", 2, list, 2), TITAN_OK);
    store(db);
    evaluated(&b, .session = 2, .worker = 2, .epoch = 1, .step = 8);
    assert_int_equal(take(), 0);
    evaluated(&b, .session = 2, .worker = 2, .epoch = 1, .step = 9);
    assert_int_equal(take(), 1);
    db_close(db);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_of_a_step_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_twice_after_a_recovery, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_twice_after_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_again_after_a_fallback, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
