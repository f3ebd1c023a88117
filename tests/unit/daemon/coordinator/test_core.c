/* SPDX-License-Identifier: Apache-2.0 */
/* The core by hand: what one input puts out. tests/sim plays the rest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/coordinator/records/core_record.h"
#include "support/core_bench.h"
#include "tests/support/child.h"

static void test_life_of_a_job(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    for (uint64_t w = 1; w <= 4; w++) {
        assert_null(told(&b, STOP, 0));
        finished(&b, .worker = w, .epoch = 1, .step = 100);
    }
    assert_non_null(told(&b, STOP, 1));
    assert_null(moved(&b, JOB_COMPLETED));
    for (uint64_t w = 1; w <= 4; w++)
        exited(&b, .worker = w, .code = w == 2 ? -1 : 0); /* how it ends no longer matters */
    const struct change *c = moved(&b, JOB_COMPLETED);
    assert_non_null(c);
    assert_int_equal(c->job.status.restarts, 0);
    assert_int_equal(c->job.status.step, 100);
    assert_int_equal(c->job.status.finished_at_ms, 1000000 + b.now);
    struct job_status status;
    assert_false(core_job_status(b.core, 1, &status));
    close_bench(&b);
}

/* Workers that it does not know, of a job that it does not know either, stop at once. */
static void test_unknown_worker(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    const uint64_t jobs[] = {1, 9};
    for (size_t i = 0; i < 2; i++) {
        progress(&b, .job = jobs[i], .worker = 77, .epoch = 1, .step = 8);
        const Titan__Internal__StopWorkers *stop = told(&b, STOP, 1)->stop;
        assert_int_equal(stop->job_id, jobs[i]);
        assert_ids(stop->worker_ids, stop->n_worker_ids, 1, 77);
        assert_int_equal(stop->grace_ms, 0);
        assert_false(stop->must_checkpoint);
        batch_free(&b.out);
        batch_init(&b.out);
    }
    close_bench(&b);
}

/* What the simulation and the fuzz targets call after each input fails on a state that cannot be; not on what a fenced
 * coordinator has left in the middle of an input. */
static void test_check(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    core_check(b.core);
    for (int fenced = 0; fenced < 2; fenced++) {
        const pid_t pid = child_fork();
        if (pid == 0) {
            (void)close(STDERR_FILENO);
            b.core->connected++;
            b.core->fenced_term = fenced ? 9 : 0;
            core_check(b.core);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(WIFSIGNALED(status), !fenced);
    }
    close_bench(&b);
}

static void test_loss_and_return(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    exited(&b, .worker = 3, .code = -1);
    assert_non_null(moved(&b, JOB_RECOVERING));
    assert_non_null(event(&b, "worker.exited"));
    const Titan__Internal__CoordinatorMessage *m = told(&b, REVOKE, 1);
    assert_non_null(m);
    assert_int_equal(m->revoke->epoch, 1);
    b.now += 30;
    quiesced(&b, .worker = 1, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 2, .epoch = 1, .step = 8);
    assert_null(told(&b, FORM, 0));
    quiesced(&b, .worker = 4, .epoch = 1, .step = 7);
    m = told(&b, FORM, 1);
    assert_non_null(m);
    assert_int_equal(m->form->epoch, 2);
    assert_members(m->form, 3, 1, 2, 4);
    assert_int_equal(m->form->source, TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY);
    assert_int_equal(m->form->source_epoch, 1);
    assert_ids(m->form->state_holders, m->form->n_state_holders, 4, 1, 2, 3, 4); /* also those that are gone */
    assert_string_equal(m->form->checkpoint_path, "/c/5"); /* the next source in the fallback order */
    assert_int_equal(m->form->resume_step, 8);             /* of the furthest */
    assert_string_equal(event(&b, "epoch.forming")->detail,
                        "{\"world\":3,\"source\":\"memory\",\"resume_step\":8,\"source_epoch\":1,\"workers\":[1,2,4]}");
    b.now += 10;
    state_ready(&b, .worker = 1, .epoch = 2, .recovery_source = TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_BUDDY,
                .step = 8);
    assert_string_equal(
        event(&b, "state.ready")->detail,
        "{\"rung\":\"buddy\",\"step\":8,\"bytes\":0,\"params_hash\":\"0000000000000abc\","
        "\"rolled_forward\":false,\"connect_ms\":0.0,\"plan_ms\":0.0,\"state_ms\":12.5,\"prepare_ms\":0.0}");
    state_ready(&b, .worker = 1, .epoch = 2,
                .recovery_source = TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_INIT); /* once */
    assert_null(b.out.changes);
    progress(&b, .worker = 1, .epoch = 1, .step = 9); /* from the dead epoch */
    assert_null(b.out.changes);
    assert_null(b.out.metrics);
    b.now += 20;
    progress(&b, .worker = 1, .epoch = 2, .step = 9);
    const struct event *e = event(&b, "recovery.finished");
    assert_non_null(e);
    assert_string_equal(e->detail,
                        "{\"recovery_ms\":60,\"from_step\":7,\"resume_step\":8,\"world\":3,\"rung\":\"buddy\","
                        "\"epochs\":1,\"detect_ms\":0,\"decide_ms\":0,\"quiet_ms\":30,\"form_ms\":0,"
                        "\"state_ms\":10,\"step_ms\":20}");
    const struct core_counters *counted = core_counters(b.core);
    assert_int_equal(counted->recoveries, 1);
    assert_int_equal(counted->recovery_ms, 60);
    assert_int_equal(counted->recovery_quiet_ms, 30);
    assert_int_equal(counted->recovery_state_ms, 10);
    assert_int_equal(counted->recovery_step_ms, 20);
    assert_int_equal(counted->state_buddy, 1);

    tick(&b, 100); /* the back-off of 200 ms is not over */
    assert_null(told(&b, START, 0));
    tick(&b, 50);
    m = told(&b, START, 1);
    assert_non_null(m);
    assert_ids(m->start->worker_ids, m->start->n_worker_ids, 1, 5);
    ready(&b, .worker = 5);
    assert_non_null(moved(&b, JOB_RESIZING));
    m = told(&b, PAUSE, 1);
    assert_non_null(m);
    assert_int_equal(m->pause->epoch, 2);
    assert_int_equal(m->pause->world, 4);
    quiesced(&b, .worker = 1, .epoch = 2, .step = 9);
    quiesced(&b, .worker = 2, .epoch = 2, .step = 9);
    quiesced(&b, .worker = 4, .epoch = 2, .step = 9);
    m = told(&b, FORM, 1);
    assert_non_null(m);
    assert_int_equal(m->form->source, TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY);
    assert_members(m->form, 4, 1, 2, 4, 5);
    assert_ids(m->form->state_holders, m->form->n_state_holders, 3, 1, 2, 4);
    assert_int_equal(m->form->resume_step, 9);
    progress(&b, .worker = 1, .epoch = 3, .step = 10);
    assert_non_null(event(&b, "resize.finished"));
    close_bench(&b);
}

/* A member dies while the others are paused: its part is missing, and its buddy may have it. */
static void test_loss_while_resizing(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    exited(&b, .worker = 3, .code = -1);
    for (uint64_t w = 1; w <= 4; w++)
        if (w != 3)
            quiesced(&b, .worker = w, .epoch = 1, .step = 7);
    progress(&b, .worker = 1, .epoch = 2, .step = 6);
    tick(&b, 250);
    ready(&b, .worker = 5);
    assert_non_null(told(&b, PAUSE, 1));
    quiesced(&b, .worker = 1, .epoch = 2, .step = 9);
    exited(&b, .worker = 2, .code = -1);
    assert_non_null(moved(&b, JOB_RECOVERING));
    assert_non_null(told(&b, REVOKE, 1));
    quiesced(&b, .worker = 4, .epoch = 2, .step = 9);
    const Titan__Internal__CoordinatorMessage *m = told(&b, FORM, 1);
    assert_non_null(m);
    assert_int_equal(m->form->epoch, 3);
    assert_members(m->form, 3, 1, 4, 5);
    assert_int_equal(m->form->source, TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY);
    assert_int_equal(m->form->source_epoch, 2);
    assert_ids(m->form->state_holders, m->form->n_state_holders, 3, 1, 2, 4);
    close_bench(&b);
}

static uint64_t status_step(const struct bench *b)
{
    struct job_status status;
    assert_true(core_job_status(b->core, 1, &status));
    return status.step;
}

/* A lost worker takes parts along that no other one has: the members find the checkpoint, and only then the step falls.
 */
static void test_members_fall_to_the_checkpoint(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 6);
    exited(&b, .worker = 3, .code = -1);
    quiesced(&b, .worker = 1, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 2, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 4, .epoch = 1, .step = 7);
    const Titan__Internal__FormEpoch *f = told(&b, FORM, 1)->form;
    assert_string_equal(f->checkpoint_path, "/c/6");
    assert_int_equal(f->n_older_checkpoints, 1);
    assert_string_equal(f->older_checkpoints[0], "/c/5");
    assert_int_equal(status_step(&b), 7);
    state_ready(&b, .worker = 1, .epoch = 2, .recovery_source = TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_CHECKPOINT,
                .step = 6);
    assert_int_equal(status_step(&b), 6);
    progress(&b, .worker = 1, .epoch = 2, .step = 7);
    assert_int_equal(status_step(&b), 7);
    assert_non_null(strstr(event(&b, "recovery.finished")->detail, "\"resume_step\":6"));
    assert_int_equal(core_counters(b.core)->state_checkpoint, 1);
    close_bench(&b);
}

/* The word about the state is lost, or late: the first step says where they stand. */
static void test_first_step_before_the_state(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    exited(&b, .worker = 3, .code = -1);
    quiesced(&b, .worker = 1, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 2, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 4, .epoch = 1, .step = 7);
    progress(&b, .worker = 2, .epoch = 2, .step = 6);
    assert_int_equal(status_step(&b), 6);
    assert_null(event(&b, "recovery.finished")); /* the state may still be told of */
    state_ready(&b, .worker = 1, .epoch = 2, .recovery_source = TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_CHECKPOINT,
                .step = 5);
    assert_int_equal(status_step(&b), 6); /* not back again */
    assert_non_null(strstr(event(&b, "recovery.finished")->detail, "\"rung\":\"checkpoint\""));
    close_bench(&b);
}

/* A second loss before the new epoch is installed: the old one is still whole with those that had it. */
static void test_loss_before_the_seal(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    exited(&b, .worker = 3, .code = -1);
    quiesced(&b, .worker = 1, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 2, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 4, .epoch = 1, .step = 7);
    assert_int_equal(told(&b, FORM, 1)->form->epoch, 2);
    exited(&b, .worker = 4, .code = -1);
    quiesced_with(&b, .worker = 1, .epoch = 2, .step = 7, .installed = 1);
    quiesced_with(&b, .worker = 2, .epoch = 2, .step = 7, .installed = 1, .pending = 2);
    const Titan__Internal__FormEpoch *f = told(&b, FORM, 1)->form;
    assert_int_equal(f->epoch, 3);
    assert_int_equal(f->source_epoch, 1);
    assert_ids(f->state_holders, f->n_state_holders, 4, 1, 2, 3, 4);
    close_bench(&b);

    /* The same, but one of them had passed the barrier: then each has its part of the new one. */
    running_job(&b);
    exited(&b, .worker = 3, .code = -1);
    quiesced(&b, .worker = 1, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 2, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 4, .epoch = 1, .step = 7);
    exited(&b, .worker = 4, .code = -1);
    quiesced_with(&b, .worker = 1, .epoch = 2, .step = 7, .installed = 1, .pending = 2);
    quiesced_with(&b, .worker = 2, .epoch = 2, .step = 7, .installed = 2);
    f = told(&b, FORM, 1)->form;
    assert_int_equal(f->source_epoch, 2);
    assert_ids(f->state_holders, f->n_state_holders, 3, 1, 2, 4);
    close_bench(&b);
}

/* Rank 0 dies before it has told of the last step, or two, that the others know to be committed. */
static void test_metrics_of_who_died(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    progress(&b, .worker = 2, .epoch = 1, .step = 7); /* rank 0 has said so */
    progress(&b, .worker = 2, .epoch = 1, .step = 8);
    assert_null(b.out.metrics);
    exited(&b, .worker = 1, .code = -1);
    assert_int_equal(b.out.metrics->metric.step, 8);
    assert_null(b.out.metrics->next);
    progress(&b, .worker = 4, .epoch = 1, .step = 9); /* on its way when the epoch was revoked */
    assert_int_equal(b.out.metrics->metric.step, 9);
    progress(&b, .worker = 3, .epoch = 1, .step = 9);
    assert_null(b.out.metrics); /* once */
    assert_int_equal(status_step(&b), 9);
    for (uint64_t w = 2; w <= 4; w++)
        quiesced(&b, .worker = w, .epoch = 1, .step = 9);
    progress(&b, .worker = 2, .epoch = 2, .step = 10);
    assert_int_equal(b.out.metrics->metric.step, 10);
    close_bench(&b);
}

/* No worker that is left has any state. */
static void test_nothing_in_memory(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    exited(&b, .worker = 3, .code = -1);
    for (uint64_t w = 1; w <= 4; w++)
        if (w != 3)
            quiesced_with(&b, .worker = w, .epoch = 1);
    const Titan__Internal__FormEpoch *f = told(&b, FORM, 1)->form;
    assert_int_equal(f->source, TITAN__INTERNAL__STATE_SOURCE__STATE_CHECKPOINT);
    assert_int_equal(f->source_epoch, 0);
    assert_int_equal(f->n_state_holders, 0);
    assert_int_equal(f->resume_step, 5);
    assert_int_equal(status_step(&b), 5);
    close_bench(&b);
}

/* An epoch with its state in memory has as long as others took; the one behind it as long as a first one. */
static void test_time_to_form(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    registration(&b, 1, "a", 4, NULL, 0);
    submit(&b, 1, 2, 4);
    for (uint64_t w = 1; w <= 4; w++)
        ready(&b, .worker = w);
    b.now += 2000;
    state_ready(&b, .worker = 1, .epoch = 1, .recovery_source = TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_INIT);
    progress(&b, .worker = 1, .epoch = 1, .step = 7);
    for (int loss = 0; loss < 2; loss++) {
        if (loss == 0)
            exited(&b, .worker = 4, .code = -1);
        for (uint64_t w = 1; w <= 3; w++)
            quiesced_with(&b, .worker = w, .epoch = 1 + (uint64_t)loss, .step = 7, .installed = 1);
        assert_int_equal(told(&b, FORM, 1)->form->epoch, 2 + loss);
        int64_t since = b.now;
        while (!told(&b, REVOKE, 1) && b.now - since < 400000) {
            heartbeat(&b, 1);
            tick(&b, 100);
        }
        assert_int_equal(b.now - since, loss == 0 ? 8000 : 180000);
    }
    close_bench(&b);
}

/* One order for all nodes, each of them once, however their workers' ranks lie; the next epoch's is another. */
static void test_order_to_form_is_one(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    assert_int_equal(registration(&b, 2, "b", 2, NULL, 0), TITAN_OK);
    submit(&b, 1, 2, 4);
    for (uint64_t w = 1; w <= 4; w++)
        ready(&b, .session = w <= 2 ? 1 : 2, .worker = w);
    const Titan__Internal__CoordinatorMessage *first = told(&b, FORM, 1);
    assert_non_null(first);
    assert_ptr_equal(told(&b, FORM, 2), first);
    assert_members(first->form, 4, 1, 2, 3, 4);
    size_t forms = 0;
    for (const struct batch_message *m = b.out.messages; m; m = m->next)
        forms += (int)m->message->kind_case == FORM;
    assert_int_equal(forms, 2);
    exited(&b, .worker = 1, .code = -1);
    for (uint64_t w = 2; w <= 4; w++)
        quiesced(&b, .session = w <= 2 ? 1 : 2, .worker = w, .epoch = 1);
    const Titan__Internal__CoordinatorMessage *second = told(&b, FORM, 1);
    assert_non_null(second);
    assert_ptr_equal(told(&b, FORM, 2), second);
    assert_int_equal(second->form->epoch, 2);
    assert_members(second->form, 3, 2, 3, 4);
    close_bench(&b);
}

/* A joiner gets its rank beside those of its node, so that a buddy at one distance for all is on another node. */
static void test_ranks_of_a_node_are_neighbours(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    assert_int_equal(registration(&b, 2, "b", 2, NULL, 0), TITAN_OK);
    submit(&b, 1, 2, 4);
    for (uint64_t w = 1; w <= 4; w++)
        ready(&b, .session = w <= 2 ? 1 : 2, .worker = w);
    progress(&b, .worker = 1, .epoch = 1, .step = 7);
    exited(&b, .worker = 1, .code = -1);
    for (uint64_t w = 2; w <= 4; w++)
        quiesced(&b, .session = w <= 2 ? 1 : 2, .worker = w, .epoch = 1, .step = 7);
    assert_members(told(&b, FORM, 1)->form, 3, 2, 3, 4);
    progress(&b, .worker = 2, .epoch = 2, .step = 8);
    tick(&b, 250);
    ready(&b, .worker = 5);
    for (uint64_t w = 2; w <= 4; w++)
        quiesced(&b, .session = w <= 2 ? 1 : 2, .worker = w, .epoch = 2, .step = 8);
    assert_members(told(&b, FORM, 2)->form, 4, 2, 5, 3, 4);
    close_bench(&b);
}

static void test_messages_say_the_term(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    exited(&b, .worker = 3, .code = -1);
    for (const struct batch_message *m = b.out.messages; m; m = m->next)
        assert_int_equal(m->message->term, 1);
    assert_non_null(b.out.messages);
    close_bench(&b);
}

static void test_laggard_is_excluded(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    exited(&b, .worker = 3, .code = -1);
    quiesced(&b, .worker = 1, .epoch = 1, .step = 7);
    quiesced(&b, .worker = 2, .epoch = 1, .step = 7);
    for (int i = 0; i < 101 && !told(&b, STOP, 1); i++) {
        heartbeat(&b, 1);
        tick(&b, 100);
    }
    const Titan__Internal__CoordinatorMessage *m = told(&b, STOP, 1);
    assert_non_null(m);
    assert_ids(m->stop->worker_ids, m->stop->n_worker_ids, 1, 4);
    assert_int_equal(m->stop->grace_ms, 0);
    m = told(&b, FORM, 1);
    assert_non_null(m);
    assert_members(m->form, 2, 1, 2);
    exited(&b, .worker = 4, .code = -1);
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 2);
    close_bench(&b);
}

/* Members are not judged by a time in which the coordinator stood still, or in which its store took nothing: they have
 * said what it has not read, or have not heard of it yet. */
static void test_laggards_of_our_own_time(void **state)
{
    (void)state;
    for (int store = 0; store < 2; store++) {
        struct bench b;
        running_job(&b);
        exited(&b, .worker = 3, .code = -1);
        for (int i = 0; i < 50 && store; i++) {
            b.held = 100 * i;
            heartbeat(&b, 1);
            tick(&b, 100);
            assert_null(told(&b, STOP, 1));
        }
        b.held = 0;
        if (!store) {
            b.now += 5000;
            batch_free(&b.out);
            core_tick(b.core, at(&b), &b.out);
        }
        assert_null(told(&b, STOP, 1));
        quiesced(&b, .worker = 1, .epoch = 1, .step = 7);
        quiesced(&b, .worker = 2, .epoch = 1, .step = 7);
        quiesced(&b, .worker = 4, .epoch = 1, .step = 7);
        const Titan__Internal__CoordinatorMessage *m = told(&b, FORM, 1);
        assert_non_null(m);
        assert_members(m->form, 3, 1, 2, 4);
        assert_int_equal(m->form->source, TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY);
        close_bench(&b);
    }
}

/* A worker that stands still takes the others' steps with it, but not for ever. */
static void test_hang(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    int64_t since = b.now;
    while (!told(&b, REVOKE, 1) && b.now - since < 400000) {
        heartbeat(&b, 1);
        tick(&b, 100);
    }
    assert_int_equal(b.now - since, 300000);
    for (uint64_t w = 1; w <= 3; w++)
        quiesced(&b, .worker = w, .epoch = 1, .step = 7);
    while (!told(&b, STOP, 1) && b.now - since < 400000) {
        heartbeat(&b, 1);
        tick(&b, 100);
    }
    assert_int_equal(told(&b, STOP, 1)->stop->worker_ids[0], 4);
    assert_members(told(&b, FORM, 1)->form, 3, 1, 2, 3);
    exited(&b, .worker = 4, .code = -1);
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 1);
    close_bench(&b);
}

/* Dies at each start: the waits grow, the budget ends it. */
static void test_crash_loop(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    registration(&b, 1, "a", 1, NULL, 0);
    submit(&b, 1, 1, 1);
    static const int64_t waits[] = {200, 400, 500};
    for (int i = 0; i < 3; i++) {
        exited(&b, .worker = 1 + (uint64_t)i, .code = 1, .reason = "no such library");
        assert_null(told(&b, START, 0));
        heartbeat(&b, 1);
        tick(&b, waits[i] - 10);
        assert_null(told(&b, START, 0));
        tick(&b, 10);
        assert_non_null(told(&b, START, 1));
    }
    exited(&b, .worker = 4, .code = 1, .reason = "no such library");
    const struct change *c = moved(&b, JOB_FAILED);
    assert_non_null(c);
    assert_string_equal(c->job.reason, "lost a worker 4 times; restart budget of 3 used; last: no such library");
    tick(&b, 900);
    assert_null(told(&b, START, 0));
    close_bench(&b);
}

static void test_permanent_error(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    exited(&b, .worker = 2, .code = 2, .reason = "training.dataset_path: no such file");
    const struct change *c = moved(&b, JOB_FAILED);
    assert_non_null(c);
    assert_string_equal(c->job.reason, "training.dataset_path: no such file (on node a)");
    assert_int_equal(c->job.status.restarts, 0);
    assert_non_null(told(&b, STOP, 1));
    close_bench(&b);
}

static titan_status cancel(struct bench *b, uint64_t id, enum job_state *ret)
{
    struct core_cancel request = {.reason = "enough", .grace_ms = 700};
    batch_free(&b->out);
    titan_status status = core_cancel(b->core, id, &request, at(b), &b->out, NULL);
    *ret = request.state;
    return status;
}

static void test_cancel(void **state)
{
    (void)state;
    struct bench b;
    enum job_state got = JOB_NONE;
    running_job(&b);
    submit(&b, 2, 1, 1); /* waits */
    assert_null(b.out.messages);
    assert_int_equal(core_pending(b.core), 1);
    assert_int_equal(cancel(&b, 2, &got), TITAN_OK);
    assert_int_equal(got, JOB_CANCELLED);
    assert_int_equal(core_pending(b.core), 0);
    assert_int_equal(cancel(&b, 2, &got), TITAN_ENOTFOUND); /* the store tells how it ended */

    assert_int_equal(cancel(&b, 1, &got), TITAN_OK);
    assert_int_equal(got, JOB_CANCELLING);
    assert_int_equal(told(&b, STOP, 1)->stop->grace_ms, 700);
    assert_int_equal(cancel(&b, 1, &got), TITAN_OK); /* the same again */
    assert_null(b.out.changes);
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 8); /* the last one, written within the grace */
    assert_non_null(event(&b, "checkpoint.committed"));
    for (uint64_t w = 1; w <= 4; w++) {
        assert_null(moved(&b, JOB_CANCELLED));
        exited(&b, .worker = w, .code = w == 1 ? 2 : 0);
    }
    assert_non_null(moved(&b, JOB_CANCELLED));
    close_bench(&b);
}

/* What the store says of its jobs cannot be: one ends at once, with nothing to write, and the next has its slots. */
static void test_contradicted_job(void **state)
{
    (void)state;
    struct bench b;
    struct job_status status;
    size_t stops = 0;
    running_job(&b);
    submit(&b, 2, 4, 4);
    submit(&b, 3, 4, 4);
    batch_free(&b.out);
    core_quarantine(b.core, 2, at(&b), &b.out); /* in the queue */
    assert_false(core_job_status(b.core, 2, &status));
    assert_null(b.out.messages);
    batch_free(&b.out);
    core_quarantine(b.core, 1, at(&b), &b.out);
    assert_false(core_job_status(b.core, 1, &status));
    for (const struct batch_message *m = b.out.messages; m; m = m->next) {
        if (m->message->kind_case != STOP)
            continue;
        assert_int_equal(m->message->stop->grace_ms, 0);
        assert_false(m->message->stop->must_checkpoint);
        stops++;
    }
    assert_int_equal(stops, 4);
    assert_int_equal(told(&b, START, 1)->start->job_id, 3);
    batch_free(&b.out);
    core_quarantine(b.core, 1, at(&b), &b.out); /* it is no more */
    assert_null(b.out.messages);
    assert_int_equal(core_counters(b.core)->quarantined, 3);
    close_bench(&b);
}

static void test_grace_ends(void **state)
{
    (void)state;
    struct bench b;
    enum job_state got = JOB_NONE;
    running_job(&b);
    assert_int_equal(cancel(&b, 1, &got), TITAN_OK);
    for (int i = 0; i < 60; i++) {
        heartbeat(&b, 1);
        tick(&b, 100);
        if (told(&b, STOP, 1))
            break;
    }
    assert_non_null(told(&b, STOP, 1));
    assert_int_equal(told(&b, STOP, 1)->stop->grace_ms, 0);
    close_bench(&b);
}

static void test_queue(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    registration(&b, 1, "a", 4, NULL, 0);
    submit(&b, 1, 8, 8); /* more than there is: stepped over */
    submit(&b, 2, 2, 3);
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 3);
    submit(&b, 3, 2, 2); /* first in the queue */
    assert_null(told(&b, START, 0));
    submit(&b, 4, 2, 2);
    assert_null(told(&b, START, 0));
    assert_int_equal(core_pending(b.core), 3);
    registration(&b, 2, "b", 1, NULL, 0); /* now there are two free slots, on two nodes */
    const Titan__Internal__CoordinatorMessage *m = told(&b, START, 1);
    assert_non_null(m);
    assert_int_equal(m->start->job_id, 3);
    assert_int_equal(m->start->n_worker_ids, 1);
    m = told(&b, START, 2);
    assert_non_null(m);
    assert_int_equal(m->start->job_id, 3);
    registration(&b, 3, "c", 2, NULL, 0); /* seven slots in all: job 1 is still stepped over */
    assert_int_equal(told(&b, START, 3)->start->job_id, 4);
    assert_int_equal(core_pending(b.core), 1);
    close_bench(&b);
}

static void test_growth_waits_for_the_queue(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    registration(&b, 1, "a", 2, NULL, 0);
    submit(&b, 1, 1, 4);
    assert_int_equal(told(&b, START, 1)->start->n_worker_ids, 2);
    submit(&b, 2, 3, 3); /* waits for three */
    registration(&b, 2, "b", 2, NULL, 0);
    assert_null(told(&b, START, 0));
    enum job_state got;
    assert_int_equal(cancel(&b, 2, &got), TITAN_OK);
    assert_int_equal(told(&b, START, 2)->start->n_worker_ids, 2);
    assert_int_equal(told(&b, START, 2)->start->job_id, 1);
    close_bench(&b);
}

static void test_node_lost(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    registration(&b, 2, "b", 4, NULL, 0);
    for (int i = 0; i < 9; i++) {
        heartbeat(&b, 2);
        tick(&b, 100);
    }
    assert_null(event(&b, "node.lost"));
    heartbeat(&b, 2);
    tick(&b, 100);
    assert_non_null(b.out.drops); /* its stream is ended */
    assert_int_equal(b.out.drops->session, 1);
    assert_non_null(event(&b, "node.lost"));
    /* Four workers gone at once are more than the budget of three. */
    assert_non_null(moved(&b, JOB_FAILED));
    close_bench(&b);
}

/* If we stood still ourselves, silence says nothing. */
/* A job with a mesh of pp=2 tp=2, on nodes a (session 1, three slots) and b (session 2, one slot), that runs on four
 * workers; worlds: numbers of workers it may have, 0 ends them. */
static void mesh_job(struct bench *b, const uint32_t *worlds)
{
    open_bench(b);
    registration(b, 1, "a", 3, NULL, 0);
    registration(b, 2, "b", 1, NULL, 0);
    struct job job = job_of(1, worlds[0], worlds[0]);
    for (; *worlds; worlds++) {
        world_set_add(&job.spec.worlds, *worlds);
        job.spec.max_workers = *worlds;
    }
    strcpy(job.spec.mesh, "pp=2 tp=2");
    submit_job(b, &job);
    for (uint64_t w = 1; w <= 3; w++)
        ready(b, .worker = w);
    ready(b, .session = 2, .worker = 4);
    assert_members(told(b, FORM, 1)->form, 4, 1, 2, 3, 4);
    progress(b, .worker = 1, .epoch = 1, .step = 7);
}

/* Node b falls silent; the others leave the epoch. */
static void lose_node_b(struct bench *b)
{
    while (!told(b, REVOKE, 1)) {
        heartbeat(b, 1);
        tick(b, 100);
    }
    for (uint64_t w = 1; w <= 3; w++)
        quiesced(b, .worker = w, .epoch = 1, .step = 7);
}

static const struct change *reason(const struct bench *b)
{
    for (const struct change *c = b->out.changes; c; c = c->next)
        if (c->kind == CHANGE_JOB_REASON)
            return c;
    return NULL;
}

/* Three of four are left and two make a mesh: two go on, the third is kept, and with a fourth it is four again. */
static void test_smaller_mesh(void **state)
{
    (void)state;
    struct bench b;
    mesh_job(&b, (const uint32_t[]){2, 4, 0});
    lose_node_b(&b);
    assert_members(told(&b, FORM, 1)->form, 2, 1, 2);
    progress(&b, .worker = 1, .epoch = 2, .step = 3);
    for (int i = 0; i < 10; i++) {
        heartbeat(&b, 1);
        tick(&b, 100);
        assert_null(told(&b, STOP, 0));
        assert_null(reason(&b));
    }
    registration(&b, 3, "b", 1, NULL, 0);
    assert_ids(told(&b, START, 3)->start->worker_ids, 1, 1, 5);
    ready(&b, .session = 3, .worker = 5);
    assert_non_null(told(&b, PAUSE, 1));
    quiesced(&b, .worker = 1, .epoch = 2, .step = 4);
    quiesced(&b, .worker = 2, .epoch = 2, .step = 4);
    assert_members(told(&b, FORM, 1)->form, 4, 1, 2, 3, 5);
    close_bench(&b);
}

/* Three are left and a mesh takes four: it waits and says so, until a fourth comes. */
static void test_waits_for_a_mesh(void **state)
{
    (void)state;
    struct bench b;
    mesh_job(&b, (const uint32_t[]){4, 8, 0});
    lose_node_b(&b);
    assert_null(told(&b, FORM, 0));
    /* At once, while the back-off holds the replacement. */
    assert_string_equal(reason(&b)->job.reason, "waiting for 1 more worker: the mesh pp=2 tp=2 needs 4, 3 are there");
    assert_string_equal(event(&b, "job.waiting")->detail, "{\"lacks\":1,\"needs\":4,\"workers\":3}");
    heartbeat(&b, 1);
    tick(&b, 100);
    assert_null(reason(&b)); /* once is enough */
    exited(&b, .worker = 3, .code = -1);
    assert_string_equal(reason(&b)->job.reason, "waiting for 2 more workers: the mesh pp=2 tp=2 needs 4, 2 are there");
    for (int i = 0; i < 20; i++) { /* the back-off is over, and the free slot on node a of no use alone */
        heartbeat(&b, 1);
        tick(&b, 100);
        assert_null(told(&b, START, 0));
        assert_null(reason(&b));
    }
    registration(&b, 3, "b", 1, NULL, 0);
    assert_ids(told(&b, START, 1)->start->worker_ids, 1, 1, 5);
    assert_ids(told(&b, START, 3)->start->worker_ids, 1, 1, 6);
    ready(&b, .worker = 5);
    ready(&b, .session = 3, .worker = 6);
    assert_members(told(&b, FORM, 1)->form, 4, 1, 2, 5, 6);
    assert_string_equal(reason(&b)->job.reason, "");
    assert_false(reason(&b)->has_event);
    close_bench(&b);
}

/* Larger than all nodes together: it stays in the queue, says why, and starts when there are nodes enough. */
static void test_needs_nodes(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    registration(&b, 1, "a", 3, NULL, 0);
    struct job job = job_of(1, 4, 4);
    world_set_add(&job.spec.worlds, 4);
    strcpy(job.spec.mesh, "pp=2 tp=2");
    submit_job(&b, &job);
    assert_null(told(&b, START, 0));
    assert_string_equal(reason(&b)->job.reason,
                        "waiting for nodes: the mesh pp=2 tp=2 needs 4 workers, all nodes together have 3 slots");
    assert_string_equal(event(&b, "job.waiting")->detail, "{\"lacks\":1,\"needs\":4,\"workers\":0}");
    registration(&b, 2, "b", 1, NULL, 0);
    assert_string_equal(reason(&b)->job.reason, "");
    assert_non_null(told(&b, START, 1));
    assert_non_null(told(&b, START, 2));
    close_bench(&b);
}

/* No job may hold slots for ever while others wait: after a while the survivors are let go, and the wait goes on. */
static void test_waits_without_workers(void **state)
{
    (void)state;
    struct bench b;
    mesh_job(&b, (const uint32_t[]){4, 0});
    lose_node_b(&b);
    while (!told(&b, STOP, 1)) {
        heartbeat(&b, 1);
        tick(&b, 100);
    }
    assert_string_equal(reason(&b)->job.reason, "waiting for 4 more workers: the mesh pp=2 tp=2 needs 4, 0 are there");
    for (uint64_t w = 1; w <= 3; w++)
        exited(&b, .worker = w);
    registration(&b, 3, "b", 1, NULL, 0);
    assert_non_null(told(&b, START, 1));
    assert_non_null(told(&b, START, 3));
    close_bench(&b);
}

static void test_own_stall_is_not_the_nodes(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    b.now += 30000;
    batch_free(&b.out);
    core_tick(b.core, at(&b), &b.out);
    assert_null(event(&b, "node.lost"));
    for (int i = 0; i < 15 && !event(&b, "node.lost"); i++)
        tick(&b, 100);
    assert_non_null(event(&b, "node.lost"));
    close_bench(&b);
}

static Titan__Internal__LiveWorker live[4], *lives[4];

/* Workers 1..n of job 1 as their agent lists them. */
static void list_workers(size_t n, uint64_t epoch, uint64_t step, int phase)
{
    for (size_t i = 0; i < n; i++) {
        titan__internal__live_worker__init(&live[i]);
        live[i].job_id = 1;
        live[i].worker_id = 1 + i;
        live[i].epoch = epoch;
        live[i].step = step;
        live[i].state = (uint32_t)phase;
        live[i].address = (char *)"h:1";
        lives[i] = &live[i];
    }
}

static void test_agent_comes_back(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    batch_free(&b.out);
    core_session_closed(b.core, 1, at(&b), &b.out);
    tick(&b, 500);
    list_workers(4, 1, 12, TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING);
    assert_int_equal(registration(&b, 2, "a", 4, lives, 4), TITAN_OK);
    assert_null(told(&b, FORM, 0));
    assert_null(told(&b, STOP, 0));
    assert_null(moved(&b, JOB_RECOVERING));
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.step, 12);

    /* One has gone meanwhile; its end is told right behind the registration. */
    assert_int_equal(registration(&b, 3, "a", 4, lives, 3), TITAN_OK);
    assert_non_null(b.out.drops); /* the older stream of the node */
    tick(&b, 1500);               /* on busy machines */
    assert_null(moved(&b, JOB_RECOVERING));
    exited(&b, .session = 3, .worker = 4, .code = 139, .reason = "a reason worth having");
    assert_non_null(moved(&b, JOB_RECOVERING));
    assert_non_null(strstr(event(&b, "worker.exited")->message, "worth having"));

    /* Another has gone and its end is unknown. */
    list_workers(2, 1, 12, TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING);
    assert_int_equal(registration(&b, 4, "a", 4, lives, 2), TITAN_OK);
    assert_non_null(told(&b, REVOKE, 4)); /* in force, so it is said again */
    heartbeat(&b, 4);
    tick(&b, 1);
    assert_non_null(event(&b, "worker.lost"));
    close_bench(&b);
}

static void test_commands_are_said_again(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    registration(&b, 1, "a", 2, NULL, 0);
    submit(&b, 1, 2, 2);
    ready(&b, .worker = 1);
    ready(&b, .worker = 2);
    const Titan__Internal__CoordinatorMessage *m = told(&b, FORM, 1);
    uint8_t id[16];
    memcpy(id, m->form->comm_id.data, 16);
    /* The stream broke before FormEpoch arrived. */
    list_workers(2, 0, 0, TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE);
    assert_int_equal(registration(&b, 2, "a", 2, lives, 2), TITAN_OK);
    m = told(&b, FORM, 2);
    assert_non_null(m);
    assert_int_equal(m->form->epoch, 1);
    assert_memory_equal(m->form->comm_id.data, id, 16);
    /* It did arrive: not again. */
    list_workers(2, 1, 0, TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING);
    assert_int_equal(registration(&b, 3, "a", 2, lives, 2), TITAN_OK);
    assert_null(told(&b, FORM, 0));
    /* StartWorkers never arrived: other workers, at no cost to the budget. */
    submit(&b, 2, 2, 2);
    assert_int_equal(registration(&b, 4, "b", 2, NULL, 0), TITAN_OK);
    assert_non_null(told(&b, START, 4));
    assert_int_equal(registration(&b, 5, "b", 2, NULL, 0), TITAN_OK);
    heartbeat(&b, 5);
    tick(&b, 1);
    m = told(&b, START, 5);
    assert_non_null(m);
    assert_ids(m->start->worker_ids, m->start->n_worker_ids, 2, 5, 6);
    struct job_status status;
    assert_true(core_job_status(b.core, 2, &status));
    assert_int_equal(status.restarts, 0);
    close_bench(&b);
}

static void test_unknown_senders(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    Titan__Internal__AgentHeartbeat body = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    MESSAGE(m, HEARTBEAT, heartbeat, body);
    assert_int_equal(say(&b, 1, &m), TITAN_ECONFLICT); /* no registration */
    assert_int_equal(registration(&b, 1, "", 4, NULL, 0), TITAN_EINVAL);
    assert_int_equal(registration(&b, 1, "../etc", 4, NULL, 0), TITAN_EINVAL);
    assert_int_equal(registration(&b, 1, "a", 0, NULL, 0), TITAN_EINVAL);
    assert_int_equal(registration(&b, 1, "a", 1000000, NULL, 0), TITAN_EINVAL);
    /* Workers of a job that is over are stopped. */
    list_workers(2, 3, 50, TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING);
    assert_int_equal(registration(&b, 1, "a", 4, lives, 2), TITAN_OK);
    assert_non_null(told(&b, STOP, 1));
    progress(&b, .job = 7, .worker = 7, .epoch = 1, .step = 1);
    assert_ids(told(&b, STOP, 1)->stop->worker_ids, 1, 1, 7);
    close_bench(&b);
}

static void test_keep_latest(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 10);
    assert_int_equal(told(&b, COMMITTED, 1)->checkpoint_committed->n_expired_paths, 0);
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 15);
    const Titan__Internal__CheckpointCommitted *m = told(&b, COMMITTED, 1)->checkpoint_committed;
    assert_int_equal(m->n_expired_paths, 1);
    assert_string_equal(m->expired_paths[0], "/c/5");
    assert_non_null(event(&b, "checkpoint.expired"));
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 10); /* sent twice */
    checkpoint(&b, .worker = 1, .epoch = 0, .step = 20); /* from a lower epoch */
    assert_null(b.out.changes);
    /* What the worker keeps stays listed, for as long as it does. */
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 20, .resumable_step = 10, .sound_step = 10);
    assert_int_equal(told(&b, COMMITTED, 1)->checkpoint_committed->n_expired_paths, 0);
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 25, .sound_step = 10);
    m = told(&b, COMMITTED, 1)->checkpoint_committed;
    assert_int_equal(m->n_expired_paths, 1);
    assert_string_equal(m->expired_paths[0], "/c/15");
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 30);
    m = told(&b, COMMITTED, 1)->checkpoint_committed;
    assert_int_equal(m->n_expired_paths, 2);
    assert_string_equal(m->expired_paths[0], "/c/10");
    assert_string_equal(m->expired_paths[1], "/c/20");
    close_bench(&b);
}

/* What its node has run out of is not the job's fault: nothing is counted, and it is tried again later. */
static void test_node_is_short(void **state)
{
    (void)state;
    struct bench b;
    char why[200];
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 4, NULL, 0), TITAN_OK);
    submit(&b, 1, 1, 1);
    const uint64_t first = told(&b, START, 1)->start->worker_ids[0];
    for (uint64_t id = first, tries = 0; tries < 12; tries++) {
        Titan__Internal__WorkerExited body = TITAN__INTERNAL__WORKER_EXITED__INIT;
        body.job_id = 1;
        body.worker_id = id;
        body.exit_code = 1;
        body.cause = TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NODE_SHORT;
        body.reason = (char *)"recipe.toml: Too many open files";
        MESSAGE(m, WORKER_EXITED, worker_exited, body);
        assert_int_equal(say(&b, 1, &m), TITAN_OK);
        assert_null(told(&b, START, 1)); /* not at once */
        assert_true(core_job_reason(b.core, 1, why, sizeof(why)));
        assert_string_equal(why, "node a cannot start a worker: recipe.toml: Too many open files; trying again");
        id = 0;
        for (int64_t end = b.now + 120000; !id && b.now < end;) {
            b.now += 100;
            heartbeat(&b, 1);
            batch_free(&b.out);
            core_tick(b.core, at(&b), &b.out);
            const Titan__Internal__CoordinatorMessage *start = told(&b, START, 1);
            id = start ? start->start->worker_ids[0] : 0;
        }
        assert_true(id > first);
    }
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 0);
    close_bench(&b);
}

static void exited_short(struct bench *b, uint64_t worker)
{
    Titan__Internal__WorkerExited body = TITAN__INTERNAL__WORKER_EXITED__INIT;
    body.job_id = 1;
    body.worker_id = worker;
    body.exit_code = 71;
    body.cause = TITAN__INTERNAL__EXIT_CAUSE__CAUSE_EXIT;
    body.reason = (char *)"cannot write 'x': No space left on device";
    MESSAGE(m, WORKER_EXITED, worker_exited, body);
    assert_int_equal(say(b, 1, &m), TITAN_OK);
}

/* A worker that says so itself, before it is ready and as a member: the others go on, it costs nothing, and those that
 * take its place are not started at once. */
static void test_worker_of_a_short_node(void **state)
{
    (void)state;
    struct bench b;
    struct job_status status;
    char why[200];
    running_job(&b);
    quiesced(&b, .worker = 1, .epoch = 1, .step = 7); /* has lost a peer: the epoch is over before it is known why */
    assert_non_null(told(&b, REVOKE, 1));
    quiesced(&b, .worker = 2, .epoch = 1, .step = 7);
    exited_short(&b, 3);
    assert_null(told(&b, START, 1));
    quiesced(&b, .worker = 4, .epoch = 1, .step = 7);
    assert_members(told(&b, FORM, 1)->form, 3, 1, 2, 4);
    assert_true(core_job_reason(b.core, 1, why, sizeof(why)));
    assert_string_equal(why, "node a cannot keep a worker: cannot write 'x': No space left on device; trying again");
    for (int tries = 0; tries < 12; tries++) {
        uint64_t id = 0;
        const int64_t from = b.now;
        for (; !id && b.now < from + 120000;) {
            b.now += 100;
            heartbeat(&b, 1);
            batch_free(&b.out);
            core_tick(b.core, at(&b), &b.out);
            const Titan__Internal__CoordinatorMessage *start = told(&b, START, 1);
            id = start ? start->start->worker_ids[0] : 0;
        }
        assert_in_range(b.now - from, 1000, 120000);
        exited_short(&b, id);
        assert_true(core_job_reason(b.core, 1, why, sizeof(why)));
        assert_string_equal(why,
                            "node a cannot start a worker: cannot write 'x': No space left on device; trying again");
    }
    struct core_losses losses[CORE_LOSSES_MAX];
    assert_int_equal(core_job_losses(b.core, 1, losses), 0);
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 0);
    close_bench(&b);
}

static void test_no_such_device(void **state)
{
    (void)state;
    struct bench b;
    char why[200];
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 4, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    strcpy(job.spec.device, "cuda");
    submit_job(&b, &job);
    assert_true(core_job_reason(b.core, 1, why, sizeof(why)));
    assert_string_equal(why, "waiting: no node has a cuda device (1 node: cpu)");
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life_of_a_job),
        cmocka_unit_test(test_node_is_short),
        cmocka_unit_test(test_worker_of_a_short_node),
        cmocka_unit_test(test_no_such_device),
        cmocka_unit_test(test_unknown_worker),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_loss_and_return),
        cmocka_unit_test(test_loss_while_resizing),
        cmocka_unit_test(test_members_fall_to_the_checkpoint),
        cmocka_unit_test(test_first_step_before_the_state),
        cmocka_unit_test(test_loss_before_the_seal),
        cmocka_unit_test(test_nothing_in_memory),
        cmocka_unit_test(test_metrics_of_who_died),
        cmocka_unit_test(test_time_to_form),
        cmocka_unit_test(test_order_to_form_is_one),
        cmocka_unit_test(test_ranks_of_a_node_are_neighbours),
        cmocka_unit_test(test_messages_say_the_term),
        cmocka_unit_test(test_laggard_is_excluded),
        cmocka_unit_test(test_laggards_of_our_own_time),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_crash_loop),
        cmocka_unit_test(test_permanent_error),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_grace_ends),
        cmocka_unit_test(test_contradicted_job),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_growth_waits_for_the_queue),
        cmocka_unit_test(test_node_lost),
        cmocka_unit_test(test_smaller_mesh),
        cmocka_unit_test(test_waits_for_a_mesh),
        cmocka_unit_test(test_waits_without_workers),
        cmocka_unit_test(test_needs_nodes),
        cmocka_unit_test(test_own_stall_is_not_the_nodes),
        cmocka_unit_test(test_agent_comes_back),
        cmocka_unit_test(test_commands_are_said_again),
        cmocka_unit_test(test_unknown_senders),
        cmocka_unit_test(test_keep_latest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
