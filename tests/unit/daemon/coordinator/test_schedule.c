/* SPDX-License-Identifier: Apache-2.0 */
/* Which jobs get slots, which give them up, which nodes take work: the core by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "support/core_bench.h"

/* --- helpers ------------------------------------------------------------------------------------------------------ */

static void submit_as(struct bench *b, uint64_t id, uint32_t min, uint32_t max, int priority, const char *user)
{
    struct job job = job_of(id, min, max);
    job.spec.priority = priority;
    job.user = user;
    submit_job(b, &job);
}

/* Workers first..first+n-1 of a job, all on session 1, train in its first epoch. */
struct run_of {
    uint64_t job, first, n, step;
};
#define make_run(b, ...) make_run_of((b), (struct run_of){__VA_ARGS__})
static void make_run_of(struct bench *b, struct run_of run)
{
    for (uint64_t w = run.first; w < run.first + run.n; w++)
        ready(b, .session = 1, .job = run.job, .worker = w);
    progress(b, .session = 1, .job = run.job, .worker = run.first, .epoch = 1, .step = run.step);
}

static bool reported(const struct bench *b, const char *type)
{
    return event(b, type) != NULL;
}

static const char *why_waits(struct bench *b, uint64_t job)
{
    static char text[256];
    return core_job_reason(b->core, job, text, sizeof(text)) ? text : "";
}

struct find_node {
    const char *name;
    char state[24], reason[128];
    uint32_t used;
};

static void see_node(const struct core_node *n, void *data)
{
    struct find_node *f = data;
    if (strcmp(n->name, f->name) != 0)
        return;
    (void)snprintf(f->state, sizeof(f->state), "%s", n->state_text);
    (void)snprintf(f->reason, sizeof(f->reason), "%s", n->reason);
    f->used = n->slots_used;
}

static void assert_node(struct bench *b, const char *name, const char *state)
{
    struct find_node f = {.name = name};
    core_nodes(b->core, see_node, &f);
    assert_string_equal(f.state, state);
}

static titan_status drain(struct bench *b, const char *node, int64_t deadline_ms)
{
    struct core_drain d = {.reason = "new disks", .deadline_ms = deadline_ms};
    batch_free(&b->out);
    return core_drain(b->core, node, &d, at(b), &b->out, NULL);
}

static void undrain(struct bench *b, const char *node)
{
    batch_free(&b->out);
    assert_int_equal(core_undrain(b->core, node, at(b), &b->out, NULL), TITAN_OK);
}

/* Time passes, agents 1..n heartbeat; stops early when something of this kind was told or moved. */
static void wait_ms(struct bench *b, uint64_t sessions, int64_t ms)
{
    for (int64_t end = b->now + ms; b->now < end;) {
        for (uint64_t s = 1; s <= sessions; s++)
            heartbeat(b, s);
        tick(b, 100);
    }
}

/* --- the queue ---------------------------------------------------------------------------------------------------- */

static uint64_t started(const struct bench *b)
{
    const Titan__Internal__CoordinatorMessage *m = told(b, START, 0);
    return m ? m->start->job_id : 0;
}

/* Priority first, then the fewest slots of an owner, then age. */
static void test_order(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 1, 1, 0, "ann");
    submit_as(&b, 2, 1, 1, 0, "bob");
    submit_as(&b, 3, 1, 1, 0, "ann"); /* waits from here on */
    submit_as(&b, 4, 1, 1, 0, "ann");
    submit_as(&b, 5, 1, 1, 0, "bob");
    submit_as(&b, 6, 1, 1, 0, "cid");
    submit_as(&b, 8, 1, 1, -5, "dan");
    assert_null(told(&b, STOP, 0));
    submit_as(&b, 7, 1, 1, 5, "ann"); /* the youngest below it gives way, which has not even started */
    const Titan__Internal__CoordinatorMessage *m = told(&b, STOP, 1);
    assert_int_equal(m->stop->job_id, 2);
    assert_int_equal(m->stop->grace_ms, 0);
    assert_string_equal(why_waits(&b, 8), "waiting behind job 7 (priority 5)");
    assert_string_equal(why_waits(&b, 3), "waiting behind job 7 (priority 5)");
    exited(&b, .job = 2, .worker = 2, .code = -1);
    assert_int_equal(started(&b), 7);
    /* Now one slot after the other comes free: worker, of job, next job. */
    static const uint64_t ends[][3] = {{1, 1, 2}, {3, 7, 3}, {4, 2, 5}, {5, 3, 4}, {6, 5, 6}, {7, 4, 8}};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        exited(&b, .job = ends[i][1], .worker = ends[i][0], .code = 2, .reason = "bad input");
        assert_int_equal(started(&b), ends[i][2]);
    }
    close_bench(&b);
}

static void test_fair_order(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 3, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 1, 1, 0, "ann");
    submit_as(&b, 2, 1, 1, 0, "ann");
    submit_as(&b, 3, 1, 1, 0, "bob");
    for (uint64_t id = 1; id <= 3; id++)
        make_run(&b, .job = id, .first = id, .n = 1, .step = 1);
    submit_as(&b, 4, 1, 1, 0, "ann");
    submit_as(&b, 5, 1, 1, 0, "bob");
    submit_as(&b, 6, 1, 1, 0, "cid");
    submit_as(&b, 7, 1, 1, 0, "cid");
    assert_null(told(&b, START, 0));
    assert_string_equal(why_waits(&b, 6), "waiting: needs 1 slot, none free");
    assert_string_equal(why_waits(&b, 4), "waiting behind job 6 (priority 0)");
    /* One slot after the other comes free: cid has none, then bob and cid have one each, then the oldest. */
    exited(&b, .worker = 1, .code = 2, .reason = "bad input");
    assert_int_equal(started(&b), 6);
    exited(&b, .job = 3, .worker = 3, .code = 2, .reason = "bad input");
    assert_int_equal(started(&b), 5); /* bob has none now */
    exited(&b, .job = 2, .worker = 2, .code = 2, .reason = "bad input");
    assert_int_equal(started(&b), 4);                                    /* ann has none now */
    exited(&b, .job = 4, .worker = 6, .code = 2, .reason = "bad input"); /* ann again: 4 was worker 6 */
    assert_int_equal(started(&b), 7);
    close_bench(&b);
}

static void test_reason_names_nodes(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    assert_int_equal(registration(&b, 2, "b", 3, NULL, 0), TITAN_OK);
    submit(&b, 1, 3, 3);
    submit(&b, 2, 4, 4);
    submit(&b, 3, 3, 3);
    assert_string_equal(why_waits(&b, 2), "waiting: needs 4 slots, 2 free on node a");
    assert_string_equal(why_waits(&b, 3), "waiting behind job 2 (priority 0)");
    close_bench(&b);
}

/* --- preemption --------------------------------------------------------------------------------------------------- */

/* Elastic jobs shrink, the lowest and youngest first; when the other has started they may grow again. */
static void test_preemption_shrinks(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 8, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 2, 4, 1, "ann");
    submit_as(&b, 2, 2, 4, 0, "ann");
    make_run(&b, .job = 1, .first = 1, .n = 4, .step = 5);
    make_run(&b, .job = 2, .first = 5, .n = 4, .step = 5);
    submit_as(&b, 3, 1, 1, 0, "bob"); /* equals do not give way */
    assert_null(told(&b, PAUSE, 0));
    submit_as(&b, 4, 2, 2, 9, "bob");
    assert_true(reported(&b, "job.squeezed"));
    assert_int_equal(event(&b, "job.squeezed")->job_id, 2);
    assert_string_equal(event(&b, "job.squeezed")->detail, "{\"workers\":2,\"for_job\":4}");
    const Titan__Internal__CoordinatorMessage *m = told(&b, PAUSE, 1);
    assert_non_null(m);
    assert_int_equal(m->pause->job_id, 2);
    for (uint64_t w = 5; w <= 8; w++)
        quiesced(&b, .job = 2, .worker = w, .epoch = 1, .step = 6);
    assert_members(told(&b, FORM, 1)->form, 2, 5, 6);
    progress(&b, .job = 2, .worker = 5, .epoch = 2, .step = 7);
    exited(&b, .job = 2, .worker = 7);
    assert_null(told(&b, START, 0)); /* not for 3, though it would fit: 4 is first */
    exited(&b, .job = 2, .worker = 8);
    assert_int_equal(started(&b), 4);
    struct job_status status;
    assert_true(core_job_status(b.core, 2, &status));
    assert_int_equal(status.restarts, 0);
    /* When no job waits any more it is what it was. */
    make_run(&b, .job = 4, .first = 9, .n = 2, .step = 1);
    exited(&b, .job = 4, .worker = 9, .code = 2, .reason = "bad input");
    assert_int_equal(started(&b), 3);
    exited(&b, .job = 4, .worker = 10, .code = -1);
    assert_int_equal(started(&b), 2);
    close_bench(&b);
}

/* Slots that the head of the queue will have enough of are not for those it has priority over. */
static void test_slots_are_held(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 5, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 2, 2, 0, "ann");
    submit_as(&b, 2, 3, 3, 0, "ann");
    make_run(&b, .job = 1, .first = 1, .n = 2, .step = 5);
    make_run(&b, .job = 2, .first = 3, .n = 3, .step = 5);
    exited(&b, .worker = 1, .code = 1, .reason = "no such GPU");
    submit_as(&b, 3, 4, 4, 9, "bob");
    assert_int_equal(event(&b, "job.preempted")->job_id, 2); /* with what is free that is enough */
    wait_ms(&b, 1, 400);
    assert_null(told(&b, START, 0)); /* job 1 would need the free one */
    exited(&b, .job = 2, .worker = 3);
    exited(&b, .job = 2, .worker = 4);
    assert_null(told(&b, START, 0));
    exited(&b, .job = 2, .worker = 5);
    assert_int_equal(started(&b), 3);
    close_bench(&b);

    /* What will not be enough in any case is not held. */
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 5, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 2, 2, 0, "ann");
    submit_as(&b, 2, 3, 3, 9, "ann");
    make_run(&b, .job = 1, .first = 1, .n = 2, .step = 5);
    make_run(&b, .job = 2, .first = 3, .n = 3, .step = 5);
    exited(&b, .worker = 1, .code = 1, .reason = "no such GPU");
    submit_as(&b, 3, 4, 4, 9, "bob");
    assert_null(event(&b, "job.preempted"));
    uint64_t again = 0;
    for (int i = 0; i < 4 && !again; i++) {
        wait_ms(&b, 1, 100);
        again = started(&b);
    }
    assert_int_equal(again, 1);
    close_bench(&b);
}

/* What cannot shrink enough is stopped, with a checkpoint, and comes back by itself. */
static void test_preemption_stops(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 4, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 2, 2, 0, "ann");
    submit_as(&b, 2, 2, 2, 1, "ann");
    make_run(&b, .job = 1, .first = 1, .n = 2, .step = 5);
    make_run(&b, .job = 2, .first = 3, .n = 2, .step = 5);
    submit_as(&b, 3, 2, 2, 2, "bob");
    assert_int_equal(event(&b, "job.preempted")->job_id, 1); /* the lowest, though it is older */
    const Titan__Internal__CoordinatorMessage *m = told(&b, STOP, 1);
    assert_int_equal(m->stop->job_id, 1);
    assert_true(m->stop->must_checkpoint);
    assert_true(m->stop->grace_ms > 0);
    progress(&b, .worker = 1, .epoch = 1, .step = 6); /* the step that was under way */
    assert_non_null(b.out.metrics);
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 6);
    assert_true(reported(&b, "checkpoint.committed"));
    exited(&b, .worker = 1);
    exited(&b, .worker = 2, .code = -1);
    const struct change *c = moved(&b, JOB_PENDING);
    assert_non_null(c);
    assert_string_equal(c->job.reason, "preempted by job 3 (priority 2)");
    assert_int_equal(c->job.status.restarts, 0);
    assert_int_equal(c->job.status.preemptions, 1);
    assert_int_equal(started(&b), 3);
    assert_string_equal(why_waits(&b, 1), "preempted by job 3 (priority 2); waiting: needs 2 slots, none free");
    make_run(&b, .job = 3, .first = 5, .n = 2, .step = 1);
    exited(&b, .job = 3, .worker = 5, .code = 2, .reason = "bad input");
    exited(&b, .job = 3, .worker = 6, .code = -1);
    assert_int_equal(started(&b), 1);
    ready(&b, .worker = 7);
    ready(&b, .worker = 8);
    const Titan__Internal__FormEpoch *f = told(&b, FORM, 1)->form;
    assert_int_equal(f->epoch, 2);
    assert_int_equal(f->source, TITAN__INTERNAL__STATE_SOURCE__STATE_CHECKPOINT);
    assert_int_equal(f->resume_step, 6);
    close_bench(&b);
}

/* --- drain -------------------------------------------------------------------------------------------------------- */

/* Replacements first, then one pause that swaps the members. */
static void test_drain_swaps(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    submit(&b, 1, 2, 2);
    make_run(&b, .job = 1, .first = 1, .n = 2, .step = 5);
    assert_int_equal(registration(&b, 2, "b", 4, NULL, 0), TITAN_OK);
    assert_int_equal(drain(&b, "a", 0), TITAN_OK);
    assert_node(&b, "a", "draining");
    assert_null(told(&b, PAUSE, 0));
    const Titan__Internal__CoordinatorMessage *m = told(&b, START, 2);
    assert_ids(m->start->worker_ids, m->start->n_worker_ids, 2, 3, 4);
    ready(&b, .session = 2, .worker = 3);
    assert_null(told(&b, PAUSE, 0));
    ready(&b, .session = 2, .worker = 4);
    assert_non_null(told(&b, PAUSE, 1));
    m = told(&b, PAUSE, 2); /* a joiner hears how many there will be */
    assert_non_null(m);
    assert_int_equal(m->pause->world, 2);
    quiesced(&b, .worker = 1, .epoch = 1, .step = 8);
    quiesced(&b, .worker = 2, .epoch = 1, .step = 8);
    const Titan__Internal__FormEpoch *f = told(&b, FORM, 2)->form;
    assert_members(f, 2, 3, 4);
    assert_int_equal(f->n_departing, 2);
    assert_int_equal(f->source, TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY);
    assert_non_null(told(&b, FORM, 1)); /* the departing ranks hand over */
    progress(&b, .session = 2, .worker = 3, .epoch = 2, .step = 9);
    assert_non_null(told(&b, STOP, 1));
    exited(&b, .worker = 1);
    exited(&b, .worker = 2);
    assert_node(&b, "a", "drained");
    tick(&b, 100);
    assert_true(reported(&b, "node.drained"));
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 0);
    /* Its agent comes back: the decision stands. */
    assert_int_equal(registration(&b, 3, "a", 2, NULL, 0), TITAN_OK);
    assert_node(&b, "a", "drained");
    submit(&b, 2, 4, 4);
    assert_null(told(&b, START, 0));
    undrain(&b, "a");
    assert_int_equal(started(&b), 2);
    assert_node(&b, "a", "ready");
    close_bench(&b);
}

/* Without slots elsewhere a job shrinks if it may. */
static void test_drain_shrinks(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    submit(&b, 1, 1, 3);
    ready(&b, .worker = 1);
    ready(&b, .worker = 2);
    ready(&b, .session = 2, .worker = 3);
    progress(&b, .worker = 1, .epoch = 1, .step = 5);
    assert_int_equal(drain(&b, "a", 0), TITAN_OK);
    assert_non_null(told(&b, PAUSE, 0));
    quiesced(&b, .worker = 1, .epoch = 1, .step = 6);
    quiesced(&b, .worker = 2, .epoch = 1, .step = 6);
    quiesced(&b, .session = 2, .worker = 3, .epoch = 1, .step = 6);
    assert_members(told(&b, FORM, 2)->form, 1, 3);
    close_bench(&b);
}

/* Neither works: it waits and says so, and at the deadline it is stopped with a checkpoint and queued. */
static void test_drain_deadline(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    submit(&b, 1, 2, 2);
    make_run(&b, .job = 1, .first = 1, .n = 2, .step = 5);
    assert_int_equal(drain(&b, "a", 5000), TITAN_OK);
    assert_null(told(&b, PAUSE, 0));
    assert_string_equal(event(&b, "job.waiting")->message, "draining node a: 2 workers wait for slots elsewhere");
    wait_ms(&b, 2, 4900);
    assert_null(told(&b, STOP, 0));
    wait_ms(&b, 2, 100);
    assert_true(told(&b, STOP, 1)->stop->must_checkpoint);
    exited(&b, .worker = 1);
    exited(&b, .worker = 2);
    const struct change *c = moved(&b, JOB_PENDING);
    assert_non_null(c);
    assert_int_equal(c->job.status.restarts, 0);
    assert_non_null(strstr(c->job.reason, "node a is drained"));
    assert_int_equal(registration(&b, 3, "c", 2, NULL, 0), TITAN_OK);
    assert_int_equal(started(&b), 1);
    close_bench(&b);
}

static void test_maintenance(void **state)
{
    (void)state;
    struct bench b;
    struct titan_error err = {0};
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    struct core_drain d = {.from_ms = at(&b).wall_ms + 60000, .for_ms = 30000, .deadline_ms = 10000};
    batch_free(&b.out);
    assert_int_equal(core_drain(b.core, "a", &d, at(&b), &b.out, NULL), TITAN_OK);
    assert_true(reported(&b, "node.window"));
    assert_node(&b, "a", "ready");
    wait_ms(&b, 1, 49000);
    assert_node(&b, "a", "ready");
    wait_ms(&b, 1, 1100);
    assert_node(&b, "a", "maintenance");
    wait_ms(&b, 1, 39800);
    assert_node(&b, "a", "maintenance");
    wait_ms(&b, 1, 300);
    assert_node(&b, "a", "ready");
    struct core_drain past = {.from_ms = at(&b).wall_ms - 60000, .for_ms = 30000};
    assert_int_equal(core_drain(b.core, "a", &past, at(&b), &b.out, &err), TITAN_EINVAL);
    assert_int_equal(core_drain(b.core, "x", &d, at(&b), &b.out, &err), TITAN_ENOTFOUND);
    close_bench(&b);
}

/* --- quarantine --------------------------------------------------------------------------------------------------- */

/* A job's only worker, which is on the session's node, crashes; the next one is waited for. So many sessions answer. */
struct crash_of {
    uint64_t session, job, worker, sessions;
};
#define crash(b, ...) crash_of((b), (struct crash_of){__VA_ARGS__})
static uint64_t crash_of(struct bench *b, struct crash_of c)
{
    exited(b, .session = c.session, .job = c.job, .worker = c.worker, .code = 1, .reason = "no such GPU");
    for (int i = 0; i < 20; i++) {
        wait_ms(b, c.sessions, 100);
        const Titan__Internal__CoordinatorMessage *m = told(b, START, 0);
        if (m)
            return m->start->worker_ids[0];
    }
    return 0;
}

static void test_quarantine(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    job.spec.max_restarts = 100;
    submit_job(&b, &job);
    /* Alone it stays in service. */
    uint64_t w = 1;
    for (int i = 0; i < 4; i++)
        w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 1);
    assert_node(&b, "a", "ready");
    undrain(&b, "a"); /* forgets them */
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 2);
    w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 2);
    assert_int_equal(registration(&b, 3, "a", 1, NULL, 0),
                     TITAN_OK); /* no worker listed: it is gone, it is unknown how */
    assert_node(&b, "a", "ready");
    close_bench(&b);
}

static void test_quarantine_ends(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    job.spec.max_restarts = 100;
    submit_job(&b, &job);
    job.id = 2;
    submit_job(&b, &job);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    (void)crash(&b, .session = 1, .job = 1, .worker = 1, .sessions = 2);
    (void)crash(&b, .session = 1, .job = 2, .worker = 2, .sessions = 2);
    exited(&b, .worker = 3, .code = 1, .reason = "no such GPU");
    assert_true(reported(&b, "node.quarantined"));
    assert_node(&b, "a", "quarantined");
    wait_ms(&b, 2, 1000);
    /* The jobs go on elsewhere; a rejoin does not clear it; ten minutes do. */
    assert_int_equal(registration(&b, 3, "a", 1, NULL, 0), TITAN_OK);
    assert_node(&b, "a", "quarantined");
    for (int i = 0; i < 6000; i++) {
        heartbeat(&b, 2);
        heartbeat(&b, 3);
        tick(&b, 100);
    }
    assert_node(&b, "a", "ready");
    close_bench(&b);
}

/* --- slots of faulty GPUs ----------------------------------------------------------------------------------------- */

#define RELEASE TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_RELEASE_GPUS

/* The agent of that session says how the GPU of slot 0 is, and which worker of job 1 is there; slot 1 is well. first:
 * with its registration. */
static void say_gpu_as(struct bench *b, uint64_t session, int health, uint64_t worker, bool first)
{
    Titan__Internal__GpuState gpus[2] = {TITAN__INTERNAL__GPU_STATE__INIT, TITAN__INTERNAL__GPU_STATE__INIT};
    Titan__Internal__GpuState *list[2] = {&gpus[0], &gpus[1]};
    Titan__Internal__NodeGpus body = TITAN__INTERNAL__NODE_GPUS__INIT;
    gpus[0].health = (Titan__Internal__GpuHealth)health;
    gpus[0].reason = (char *)(health == TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY ? "Xid 79" : "");
    gpus[0].job_id = worker ? 1 : 0;
    gpus[0].worker_id = worker;
    gpus[1].slot = 1;
    body.gpus = list;
    body.n_gpus = 2;
    Titan__Internal__AgentRegistration node = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    node.node = (char *)"a";
    node.slots = 2;
    node.device = (char *)"cpu";
    node.incarnation = 1;
    node.gpus = &body;
    MESSAGE(later, GPUS, gpus, body);
    MESSAGE(registers, REGISTRATION, registration, node);
    assert_int_equal(say(b, session, first ? &registers : &later), TITAN_OK);
}

static void say_gpu(struct bench *b, uint64_t session, int health, uint64_t worker)
{
    say_gpu_as(b, session, health, worker, false);
}

static void test_faulty_slot(void **state)
{
    enum {
        WELL = TITAN__INTERNAL__GPU_HEALTH__GPU_HEALTHY,
        UNKNOWN = TITAN__INTERNAL__GPU_HEALTH__GPU_UNKNOWN,
        FAULTY = TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY
    };
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    submit_as(&b, 1, 1, 1, 0, "ann");
    say_gpu(&b, 1, FAULTY, 1);
    assert_true(reported(&b, "slot.quarantined"));
    say_gpu(&b, 1, FAULTY, 1);
    assert_false(reported(&b, "slot.quarantined"));
    submit_as(&b, 2, 1, 1, 0, "ann"); /* beside the worker that is in the faulty slot */
    assert_int_equal(started(&b), 2);
    exited(&b, .job = 1, .worker = 1, .code = 2, .reason = "bad input");
    submit_as(&b, 3, 1, 1, 0, "ann"); /* its slot takes no other */
    assert_null(told(&b, START, 0));
    assert_string_equal(why_waits(&b, 3), "waiting: needs 1 slot, none free; node a slot 0 is out of use: Xid 79");
    /* A new agent that has not looked yet does not say that it is well. */
    say_gpu(&b, 1, UNKNOWN, 0);
    assert_false(reported(&b, "slot.released"));
    undrain(&b, "a");
    const Titan__Internal__CoordinatorMessage *m = told(&b, RELEASE, 0);
    assert_non_null(m);
    assert_true(m->release_gpus->n_slots == 1 && m->release_gpus->slots[0] == 0);
    say_gpu(&b, 1, WELL, 0);
    assert_true(reported(&b, "slot.released"));
    assert_int_equal(started(&b), 3);
    undrain(&b, "a");
    assert_null(told(&b, RELEASE, 0));
    /* One that has not been looked at yet takes no worker, and is no event. */
    say_gpu(&b, 1, UNKNOWN, 0);
    assert_false(reported(&b, "slot.quarantined"));
    submit_as(&b, 4, 1, 1, 0, "ann");
    exited(&b, .job = 2, .worker = 2, .code = 2, .reason = "bad input");
    assert_null(told(&b, START, 0));
    say_gpu(&b, 1, WELL, 0);
    assert_int_equal(started(&b), 4);
    close_bench(&b);
}

/* It is asked to look at the GPU when it is back, until it has said something of it; not because of a later fault. */
static void test_undrain_while_the_agent_is_away(void **state)
{
    enum { WELL = TITAN__INTERNAL__GPU_HEALTH__GPU_HEALTHY, FAULTY = TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY };
    (void)state;
    struct bench b;
    open_bench(&b);
    say_gpu_as(&b, 1, FAULTY, 0, true);
    batch_free(&b.out);
    core_session_closed(b.core, 1, at(&b), &b.out);
    undrain(&b, "a");
    assert_null(told(&b, RELEASE, 0));
    for (uint64_t session = 2; session < 4; session++) { /* the first is over before it has heard */
        say_gpu_as(&b, session, FAULTY, 0, true);
        assert_non_null(told(&b, RELEASE, 0));
        if (session == 2) {
            batch_free(&b.out);
            core_session_closed(b.core, session, at(&b), &b.out);
        }
    }
    say_gpu(&b, 3, WELL, 0);
    assert_true(reported(&b, "slot.released"));
    say_gpu(&b, 3, FAULTY, 0);
    batch_free(&b.out);
    core_session_closed(b.core, 3, at(&b), &b.out);
    say_gpu_as(&b, 4, FAULTY, 0, true);
    assert_null(told(&b, RELEASE, 0));
    close_bench(&b);
}

/* Its own fault or the node's? The job's next worker is started elsewhere, and the node stays for the others. */
static void test_quarantine_needs_a_witness(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    job.spec.max_restarts = 100;
    submit_job(&b, &job);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    uint64_t w = crash(&b, .session = 1, .job = 1, .worker = 1, .sessions = 2);
    w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 2);
    exited(&b, .worker = w, .code = 1, .reason = "no such GPU");
    assert_node(&b, "a", "ready");
    for (int i = 0; i < 20 && !told(&b, START, 0); i++)
        wait_ms(&b, 2, 100);
    assert_non_null(told(&b, START, 2));
    for (int i = 0; i < 3; i++)
        w = crash(&b, .session = 2, .job = 1,
                  .worker = told(&b, START, 0) ? told(&b, START, 0)->start->worker_ids[0] : w, .sessions = 2);
    assert_node(&b, "b", "ready");
    close_bench(&b);
}

/* Workers 1 on node a and 2 on node b train; the one on a crashes again and again, and now and then the other. */
static void crash_beside(struct bench *b, bool other_too)
{
    open_bench(b);
    assert_int_equal(registration(b, 1, "a", 1, NULL, 0), TITAN_OK);
    assert_int_equal(registration(b, 2, "b", 2, NULL, 0), TITAN_OK);
    assert_int_equal(registration(b, 3, "c", 1, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 4, 4);
    job.spec.max_restarts = 100;
    submit_job(b, &job);
    for (uint64_t w = 1; w <= 4; w++)
        ready(b, .session = core_node_session(b->core, w <= 2 ? "b" : w == 3 ? "a" : "c"), .worker = w);
    if (other_too)
        exited(b, .session = 3, .worker = 4, .code = 1, .reason = "no such file");
    uint64_t w = crash(b, .session = 1, .job = 1, .worker = 3, .sessions = 3);
    w = crash(b, .session = 1, .job = 1, .worker = w, .sessions = 3);
    exited(b, .worker = w, .code = 1, .reason = "no such GPU");
}

static void test_quarantine_by_one_job(void **state)
{
    (void)state;
    struct bench b;
    crash_beside(&b, false);
    assert_node(&b, "a", "quarantined");
    close_bench(&b);
    crash_beside(&b, true);
    assert_node(&b, "a", "ready");
    close_bench(&b);
}

/* A worker that breaks the protocol is its job's to pay for. */
static void test_faulty_workers(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    job.spec.max_restarts = 5;
    job.spec.restart_window_s = 3600;
    submit_job(&b, &job);
    uint64_t w = 1, session = 1;
    for (int i = 0; i < 6; i++) {
        Titan__Internal__WorkerExited body = TITAN__INTERNAL__WORKER_EXITED__INIT;
        body.job_id = 1;
        body.worker_id = w;
        body.exit_code = -1;
        body.signal = 9;
        body.cause = TITAN__INTERNAL__EXIT_CAUSE__CAUSE_FAULTY;
        body.reason = (char *)"it broke the protocol: x";
        MESSAGE(m, WORKER_EXITED, worker_exited, body);
        assert_int_equal(say(&b, session, &m), TITAN_OK);
        assert_false(reported(&b, "node.quarantined"));
        for (int k = 0; i < 5 && k < 200 && !told(&b, START, 0); k++)
            wait_ms(&b, 2, 100);
        if (i < 5) {
            struct core_losses losses[CORE_LOSSES_MAX];
            assert_int_equal(core_job_losses(b.core, 1, losses), 1);
            assert_string_equal(losses[0].cause, "faulty");
            assert_int_equal(losses[0].count, i + 1);
            session = told(&b, START, 1) ? 1 : 2;
            w = told(&b, START, 0)->start->worker_ids[0];
        }
    }
    assert_node(&b, "a", "ready");
    assert_string_equal(moved(&b, JOB_FAILED)->job.reason,
                        "6 workers broke the protocol within 1 h; budget of 5 (fault_tolerance.max_restarts) used; "
                        "last: it broke the protocol: x");
    close_bench(&b);
}

/* Its agent was silent for the whole lease, and it left in order: its node's fault. */
static void test_left_for_its_lease(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    job.spec.restart_window_s = 3600;
    job.spec.max_node_losses = 1;
    submit_job(&b, &job);
    assert_non_null(told(&b, START, 1));
    exited(&b, .worker = 1, .reason = "no agent for the whole lease");
    assert_string_equal(event(&b, "worker.exited")->message, "worker 1 left: no agent for the whole lease");
    struct core_losses losses[CORE_LOSSES_MAX];
    assert_int_equal(core_job_losses(b.core, 1, losses), 1);
    assert_string_equal(losses[0].cause, "node_loss");
    assert_null(moved(&b, JOB_FAILED));
    close_bench(&b);
}

/* The device under a worker fails: that is said, with the slot, and counts as a crash of the node. */
static void test_device_failed(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    job.spec.max_restarts = 5;
    job.spec.restart_window_s = 3600;
    submit_job(&b, &job);
    Titan__Internal__WorkerExited body = TITAN__INTERNAL__WORKER_EXITED__INIT;
    body.job_id = 1;
    body.worker_id = 1;
    body.exit_code = 75;
    body.cause = TITAN__INTERNAL__EXIT_CAUSE__CAUSE_EXIT;
    body.reason = (char *)"the device of slot 1 failed: Xid 79";
    MESSAGE(m, WORKER_EXITED, worker_exited, body);
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    assert_true(reported(&b, "worker.device_failed"));
    struct core_losses losses[CORE_LOSSES_MAX];
    assert_int_equal(core_job_losses(b.core, 1, losses), 1);
    assert_string_equal(losses[0].cause, "crash");
    close_bench(&b);
}

/* An agent that is told to stop: its worker moves, its end costs nothing, and the next agent is in service at once. */
static void test_agent_leaves(void **state)
{
    (void)state;
    struct bench b;
    struct job_status status;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 2, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 2, 2);
    job.spec.max_restarts = 0;
    submit_job(&b, &job);
    make_run(&b, .job = 1, .first = 1, .n = 2, .step = 5);
    assert_int_equal(registration(&b, 2, "b", 2, NULL, 0), TITAN_OK);
    Titan__Internal__AgentLeaves leaves = TITAN__INTERNAL__AGENT_LEAVES__INIT;
    leaves.deadline_ms = 5000;
    MESSAGE(m, LEAVES, leaves, leaves);
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    assert_true(reported(&b, "node.draining"));
    assert_node(&b, "a", "draining");
    assert_int_equal(told(&b, START, 2)->start->n_worker_ids, 2);
    exited(&b, .worker = 1, .code = 1, .reason = "the node goes");
    assert_int_equal(say(&b, 1, &m), TITAN_OK); /* once more: a new coordinator is told so */
    assert_false(reported(&b, "node.draining"));
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 0);
    assert_int_equal(registration(&b, 3, "a", 2, NULL, 0), TITAN_OK); /* worker 2 is gone with the agent */
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 0);
    assert_node(&b, "a", "ready");
    close_bench(&b);
}

/* Nowhere to go: it is stopped with a checkpoint at the deadline, and queued. */
static void test_agent_leaves_alone(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    submit(&b, 1, 1, 1);
    make_run(&b, .job = 1, .first = 1, .n = 1, .step = 5);
    Titan__Internal__AgentLeaves leaves = TITAN__INTERNAL__AGENT_LEAVES__INIT;
    leaves.deadline_ms = 1000;
    MESSAGE(m, LEAVES, leaves, leaves);
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    wait_ms(&b, 1, 900);
    assert_null(told(&b, STOP, 1));
    for (int i = 0; i < 10 && !told(&b, STOP, 1); i++)
        wait_ms(&b, 1, 50);
    assert_true(told(&b, STOP, 1)->stop->grace_ms > 0);
    close_bench(&b);
}

static void test_quarantine_kept(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    struct node n = {.name = "a", .state = NODE_READY, .slots = 1, .device = "cpu", .address = "", .version = ""};
    core_restore_node(b.core, &n, at(&b));
    struct node_policy p = {.name = "a",
                            .reason = "",
                            .quarantine_reason = "3 workers crashed there within 10 min",
                            .quarantined_until_ms = at(&b).wall_ms + 5000,
                            .quarantines = 1};
    core_restore_policy(b.core, &p, at(&b));
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    assert_node(&b, "a", "quarantined");
    wait_ms(&b, 1, 5100);
    assert_node(&b, "a", "ready");
    close_bench(&b);
}

/* --- budgets ------------------------------------------------------------------------------------------------------ */

static void test_budgets(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    job.spec.max_restarts = 2;
    job.spec.max_node_losses = 1;
    job.spec.restart_window_s = 60;
    submit_job(&b, &job);
    uint64_t w = crash(&b, .session = 1, .job = 1, .worker = 1, .sessions = 1);
    w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 1);
    ready(&b, .worker = w);
    wait_ms(&b, 1, 61000); /* both are forgotten */
    w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 1);
    w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 1);
    struct core_losses losses[CORE_LOSSES_MAX];
    assert_int_equal(core_job_losses(b.core, 1, losses), 1);
    assert_string_equal(losses[0].cause, "crash");
    assert_int_equal(losses[0].count, 2);
    assert_int_equal(losses[0].budget, 2);
    exited(&b, .worker = w, .code = 1, .reason = "no such GPU");
    assert_string_equal(moved(&b, JOB_FAILED)->job.reason,
                        "3 workers crashed within 60 s; budget of 2 (fault_tolerance.max_restarts) used; last: no such "
                        "GPU");
    close_bench(&b);
}

/* A window is so long whatever the clock is set to. */
static void test_budget_and_clock(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 1, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 1, 1);
    job.spec.max_restarts = 2;
    job.spec.restart_window_s = 60;
    submit_job(&b, &job);
    b.ahead = INT64_C(365) * 86400 * 1000;
    uint64_t w = crash(&b, .session = 1, .job = 1, .worker = 1, .sessions = 1);
    w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 1);
    b.ahead = 0;
    ready(&b, .worker = w);
    wait_ms(&b, 1, 61000); /* both are forgotten */
    w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 1);
    w = crash(&b, .session = 1, .job = 1, .worker = w, .sessions = 1);
    b.ahead = INT64_C(365) * 86400 * 1000; /* and these are not */
    exited(&b, .worker = w, .code = 1, .reason = "no such GPU");
    assert_non_null(moved(&b, JOB_FAILED));
    close_bench(&b);
}

static uint32_t restarts(const struct bench *b)
{
    struct job_status status;
    assert_true(core_job_status(b->core, 1, &status));
    return status.restarts;
}

/* What all workers of an epoch say at their end is one fault; the same from those that replace them is another one. */
static void test_one_fault_is_charged_once(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b);
    assert_int_equal(registration(&b, 1, "a", 4, NULL, 0), TITAN_OK);
    struct job job = job_of(1, 4, 4);
    job.spec.max_restarts = 3;
    submit_job(&b, &job);
    make_run(&b, .job = 1, .first = 1, .n = 4, .step = 5);
    for (uint64_t w = 1; w <= 4; w++) {
        char words[64];
        (void)snprintf(words, sizeof(words), "rank %u: cannot read batch 5 of 'data'", (unsigned)(8 + w));
        exited(&b, .worker = w, .code = 1, .reason = words);
        assert_int_equal(restarts(&b), 1);
    }
    const Titan__Internal__CoordinatorMessage *m = NULL;
    for (int i = 0; i < 50 && !(m = told(&b, START, 1)); i++)
        wait_ms(&b, 1, 100);
    assert_non_null(m);
    assert_int_equal(m->start->n_worker_ids, 4);
    const uint64_t next = m->start->worker_ids[0];
    exited(&b, .worker = next, .code = 1, .reason = "rank 0: cannot read batch 5 of 'data'");
    assert_int_equal(restarts(&b), 2);
    exited(&b, .worker = next + 1, .code = 1, .reason = "rank 10: cannot read batch 5 of 'data'");
    assert_int_equal(restarts(&b), 2);
    exited(&b, .worker = next + 2, .code = 1, .reason = "no such GPU");
    assert_int_equal(restarts(&b), 3);
    exited(&b, .worker = next + 3, .code = 1); /* it has given no reason: nothing says that it is the same */
    assert_non_null(moved(&b, JOB_FAILED));
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_fair_order),
        cmocka_unit_test(test_reason_names_nodes),
        cmocka_unit_test(test_preemption_shrinks),
        cmocka_unit_test(test_slots_are_held),
        cmocka_unit_test(test_preemption_stops),
        cmocka_unit_test(test_drain_swaps),
        cmocka_unit_test(test_drain_shrinks),
        cmocka_unit_test(test_drain_deadline),
        cmocka_unit_test(test_maintenance),
        cmocka_unit_test(test_quarantine),
        cmocka_unit_test(test_faulty_slot),
        cmocka_unit_test(test_undrain_while_the_agent_is_away),
        cmocka_unit_test(test_quarantine_ends),
        cmocka_unit_test(test_quarantine_needs_a_witness),
        cmocka_unit_test(test_quarantine_by_one_job),
        cmocka_unit_test(test_faulty_workers),
        cmocka_unit_test(test_one_fault_is_charged_once),
        cmocka_unit_test(test_left_for_its_lease),
        cmocka_unit_test(test_device_failed),
        cmocka_unit_test(test_agent_leaves),
        cmocka_unit_test(test_agent_leaves_alone),
        cmocka_unit_test(test_quarantine_kept),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_budget_and_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
