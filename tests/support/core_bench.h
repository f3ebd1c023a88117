/* SPDX-License-Identifier: Apache-2.0 */
/* core_bench.h - the coordinator's core by hand: say what an agent says, look at what comes out. Include cmocka first.
 */
#ifndef TITAN_TESTS_SUPPORT_CORE_BENCH_H
#define TITAN_TESTS_SUPPORT_CORE_BENCH_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "daemon/coordinator/core.h"
#include "titan/internal/worker.pb-c.h"

#define START TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START
#define FORM TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM
#define REVOKE TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE
#define PAUSE TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE
#define STOP TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP
#define COMMITTED TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED

struct bench {
    struct core *core;
    struct batch out;   /* of the last input */
    int64_t now, ahead; /* of the clock on the wall: by so much */
    int64_t held;       /* what was decided waits for the store, for so long */
};

static inline struct core_time at(const struct bench *b)
{
    return (struct core_time){.mono_ms = b->now, .wall_ms = 1000000 + b->now + b->ahead, .held_ms = b->held};
}

static inline void open_bench(struct bench *b)
{
    struct core_options options = {
        .term = 1, .seed = 1, .jobs_dir = "/jobs", .heartbeat_ms = 100, .node_timeout_ms = 1000};
    memset(b, 0, sizeof(*b));
    b->now = 1000;
    batch_init(&b->out);
    assert_int_equal(core_new(&options, &b->core, NULL), TITAN_OK);
}

static inline void close_bench(struct bench *b)
{
    batch_free(&b->out);
    core_free(b->core);
}

static inline titan_status say(struct bench *b, uint64_t session, const Titan__Internal__AgentMessage *m)
{
    batch_free(&b->out);
    return core_agent(b->core, session, m, at(b), &b->out, NULL);
}

#define MESSAGE(name, CASE, member, body)                                                                              \
    Titan__Internal__AgentMessage name = TITAN__INTERNAL__AGENT_MESSAGE__INIT;                                         \
    (name).kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##CASE;                                                    \
    (name).member = &(body)

static inline titan_status registration(struct bench *b, uint64_t session, const char *node, uint32_t slots,
                                        Titan__Internal__LiveWorker **workers, size_t n)
{
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = (char *)node;
    body.slots = slots;
    body.device = (char *)"cpu";
    body.incarnation = session; /* each from an agent of its own */
    body.workers = workers;
    body.n_workers = n;
    MESSAGE(m, REGISTRATION, registration, body);
    return say(b, session, &m);
}

/* What an agent says of a worker, by name: progress(&b, .worker = 2, .epoch = 1, .step = 7). */
struct peer_value {
    uint64_t session, job; /* 1 unless named */
    uint64_t worker, epoch, step;
    uint64_t resumable_step, sound_step; /* checkpoints that its worker keeps */
    uint64_t installed, pending; /* epochs that the state it holds is of, with which parts whole and which not */
    int code;                    /* below 0: it died of SIGKILL */
    int recovery_source;         /* Titan__Internal__RecoverySource */
    double loss;                 /* 2.5 unless named */
    const char *reason, *path;   /* "" and "/c/STEP" unless named */
};
#define SAID(...) said_of((struct peer_value){__VA_ARGS__})

static inline struct peer_value said_of(struct peer_value s)
{
    s.session = s.session ? s.session : 1;
    s.job = s.job ? s.job : 1;
    s.reason = s.reason ? s.reason : "";
    return s;
}

#define ready(b, ...) bench_ready((b), SAID(__VA_ARGS__))
static inline void bench_ready(struct bench *b, struct peer_value s)
{
    Titan__Internal__WorkerReady body = TITAN__INTERNAL__WORKER_READY__INIT;
    body.job_id = s.job;
    body.worker_id = s.worker;
    body.address = (char *)"h:1";
    MESSAGE(m, WORKER_READY, worker_ready, body);
    assert_int_equal(say(b, s.session, &m), TITAN_OK);
}

#define progress(b, ...) bench_progress((b), SAID(__VA_ARGS__))
static inline void bench_progress(struct bench *b, struct peer_value s)
{
    Titan__Internal__WorkerProgress body = TITAN__INTERNAL__WORKER_PROGRESS__INIT;
    body.job_id = s.job;
    body.worker_id = s.worker;
    body.epoch = s.epoch;
    body.step = s.step;
    body.loss = s.loss != 0 ? s.loss : 2.5;
    MESSAGE(m, PROGRESS, progress, body);
    assert_int_equal(say(b, s.session, &m), TITAN_OK);
}

/* Out of its epoch, holding the state of step as parts of the epochs installed and pending. */
#define quiesced_with(b, ...) bench_quiesced((b), SAID(__VA_ARGS__))
static inline void bench_quiesced(struct bench *b, struct peer_value s)
{
    Titan__Internal__WorkerQuiesced body = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    body.job_id = s.job;
    body.worker_id = s.worker;
    body.epoch = s.epoch;
    body.last_step = s.step;
    body.installed_epoch = s.installed;
    body.pending_epoch = s.pending;
    MESSAGE(m, WORKER_QUIESCED, worker_quiesced, body);
    assert_int_equal(say(b, s.session, &m), TITAN_OK);
}

/* The same for one that has trained in that epoch. */
#define quiesced(b, ...) bench_quiesced_trained((b), SAID(__VA_ARGS__))
static inline void bench_quiesced_trained(struct bench *b, struct peer_value s)
{
    s.installed = s.epoch;
    bench_quiesced(b, s);
}

/* Rank 0 of job 1 says where the members' state came from. */
#define state_ready(b, ...) bench_state_ready((b), SAID(__VA_ARGS__))
static inline void bench_state_ready(struct bench *b, struct peer_value s)
{
    Titan__Internal__StateReady body = TITAN__INTERNAL__STATE_READY__INIT;
    body.job_id = s.job;
    body.worker_id = s.worker;
    body.epoch = s.epoch;
    body.recovery_source = (Titan__Internal__RecoverySource)s.recovery_source;
    body.step = s.step;
    body.params_hash = 0xabc;
    body.state_ms = 12.5;
    MESSAGE(m, STATE_READY, state_ready, body);
    assert_int_equal(say(b, s.session, &m), TITAN_OK);
}

#define exited(b, ...) bench_exited((b), SAID(__VA_ARGS__))
static inline void bench_exited(struct bench *b, struct peer_value s)
{
    Titan__Internal__WorkerExited body = TITAN__INTERNAL__WORKER_EXITED__INIT;
    body.job_id = s.job;
    body.worker_id = s.worker;
    body.exit_code = s.code;
    body.signal = s.code < 0 ? 9 : 0;
    body.reason = (char *)(uintptr_t)s.reason;
    MESSAGE(m, WORKER_EXITED, worker_exited, body);
    assert_int_equal(say(b, s.session, &m), TITAN_OK);
}

#define checkpoint(b, ...) bench_checkpoint((b), SAID(__VA_ARGS__))
static inline void bench_checkpoint(struct bench *b, struct peer_value s)
{
    char path[32];
    (void)snprintf(path, sizeof(path), "/c/%llu", (unsigned long long)s.step);
    Titan__Internal__CheckpointWritten body = TITAN__INTERNAL__CHECKPOINT_WRITTEN__INIT;
    body.job_id = s.job;
    body.worker_id = s.worker;
    body.epoch = s.epoch;
    body.step = s.step;
    body.path = s.path ? (char *)(uintptr_t)s.path : path;
    body.resumable_step = s.resumable_step;
    body.sound_step = s.sound_step;
    MESSAGE(m, CHECKPOINT, checkpoint, body);
    assert_int_equal(say(b, s.session, &m), TITAN_OK);
}

#define evaluated(b, ...) bench_evaluated((b), SAID(__VA_ARGS__))
static inline void bench_evaluated(struct bench *b, struct peer_value s)
{
    Titan__Internal__WorkerEvaluated body = TITAN__INTERNAL__WORKER_EVALUATED__INIT;
    body.job_id = s.job;
    body.worker_id = s.worker;
    body.epoch = s.epoch;
    body.step = s.step;
    body.loss = 2;
    body.tokens = 30;
    body.bytes = 60;
    MESSAGE(m, EVALUATED, evaluated, body);
    assert_int_equal(say(b, s.session, &m), TITAN_OK);
}

#define finished(b, ...) bench_finished((b), SAID(__VA_ARGS__))
static inline void bench_finished(struct bench *b, struct peer_value s)
{
    Titan__Internal__WorkerFinished body = TITAN__INTERNAL__WORKER_FINISHED__INIT;
    body.job_id = s.job;
    body.worker_id = s.worker;
    body.epoch = s.epoch;
    body.step = s.step;
    MESSAGE(m, FINISHED, finished, body);
    assert_int_equal(say(b, s.session, &m), TITAN_OK);
}

static inline void tick(struct bench *b, int64_t ms)
{
    /* As the shell does: at least every heartbeat. */
    for (int64_t end = b->now + ms; b->now < end;) {
        b->now = b->now + 100 < end ? b->now + 100 : end;
        batch_free(&b->out);
        core_tick(b->core, at(b), &b->out);
    }
}

static inline void heartbeat(struct bench *b, uint64_t session)
{
    Titan__Internal__AgentHeartbeat body = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    MESSAGE(m, HEARTBEAT, heartbeat, body);
    assert_int_equal(say(b, session, &m), TITAN_OK);
}

static inline struct job job_of(uint64_t id, uint32_t min, uint32_t max)
{
    struct job job = {.id = id, .name = "", .user = "", .state = JOB_PENDING, .reason = ""};
    strcpy(job.spec.device, "auto");
    job.spec.steps = 100;
    job.spec.min_workers = min;
    job.spec.max_workers = max;
    for (uint32_t w = min; w <= max; w++)
        world_set_add(&job.spec.worlds, w);
    job.spec.max_restarts = 3;
    job.spec.backoff_ms = 200;
    job.spec.backoff_max_ms = 500;
    job.spec.keep_latest = 2;
    return job;
}

static inline void submit_job(struct bench *b, const struct job *job)
{
    batch_free(&b->out);
    core_submitted(b->core, job, at(b), &b->out);
}

static inline void submit(struct bench *b, uint64_t id, uint32_t min, uint32_t max)
{
    struct job job = job_of(id, min, max);
    submit_job(b, &job);
}

/* --- what came out ------------------------------------------------------------------------------------------------ */

static inline const Titan__Internal__CoordinatorMessage *told(const struct bench *b, int kind, uint64_t session)
{
    for (const struct batch_message *m = b->out.messages; m; m = m->next)
        if ((int)m->message->kind_case == kind && (!session || m->session == session))
            return m->message;
    return NULL;
}

static inline const struct change *moved(const struct bench *b, enum job_state to)
{
    for (const struct change *c = b->out.changes; c; c = c->next)
        if (c->kind == CHANGE_JOB_MOVE && c->job.state == to)
            return c;
    return NULL;
}

static inline const struct event *event(const struct bench *b, const char *type)
{
    for (const struct change *c = b->out.changes; c; c = c->next)
        if (c->has_event && strcmp(c->event.type, type) == 0)
            return &c->event;
    return NULL;
}

static inline void assert_ids(const uint64_t *ids, size_t n, size_t want, ...)
{
    va_list ap;
    assert_int_equal(n, want);
    va_start(ap, want);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], va_arg(ap, int));
    va_end(ap);
}

static inline void assert_members(const Titan__Internal__FormEpoch *f, size_t want, ...)
{
    va_list ap;
    assert_int_equal(f->n_members, want);
    va_start(ap, want);
    for (size_t i = 0; i < want; i++)
        assert_int_equal(f->members[i]->worker_id, va_arg(ap, int));
    va_end(ap);
}

/* A job of four workers on one node (session 1, ids 1..4) that has trained to step 7, checkpoint at 5. */
static inline void running_job(struct bench *b)
{
    open_bench(b);
    assert_int_equal(registration(b, 1, "a", 4, NULL, 0), TITAN_OK);
    heartbeat(b, 1);
    submit(b, 1, 2, 4);
    const Titan__Internal__CoordinatorMessage *m = told(b, START, 1);
    assert_non_null(m);
    assert_ids(m->start->worker_ids, m->start->n_worker_ids, 4, 1, 2, 3, 4);
    assert_string_equal(m->start->directory, "/jobs/1");
    assert_non_null(moved(b, JOB_FORMING));
    for (uint64_t w = 1; w <= 3; w++) {
        ready(b, .worker = w);
        assert_null(told(b, FORM, 0)); /* a gang: all or none */
    }
    ready(b, .worker = 4);
    m = told(b, FORM, 1);
    assert_non_null(m);
    assert_members(m->form, 4, 1, 2, 3, 4);
    assert_int_equal(m->form->epoch, 1);
    assert_int_equal(m->form->source, TITAN__INTERNAL__STATE_SOURCE__STATE_INIT);
    assert_int_equal(m->form->comm_id.len, 16);
    progress(b, .worker = 2, .epoch = 1, .step = 1);
    assert_non_null(moved(b, JOB_RUNNING));
    assert_non_null(event(b, "epoch.formed"));
    assert_null(b->out.metrics); /* rank 0 speaks for all */
    progress(b, .worker = 1, .epoch = 1, .step = 7);
    assert_non_null(b->out.metrics);
    checkpoint(b, .worker = 1, .epoch = 1, .step = 5);
    assert_non_null(event(b, "checkpoint.committed"));
    assert_non_null(told(b, COMMITTED, 1));
}

#endif
