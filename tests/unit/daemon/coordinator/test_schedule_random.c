/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler under random requests: agents that obey at once, jobs and nodes drawn from a seed. Looked at after
 * every input: slots, nodes out of service, legal sizes, which job gives way to which, what is counted; and in the end
 * all have had a turn. SEED=n repeats one draw. tests/sim has the faults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "base/rng.h"
#include "support/core_bench.h"
#include "tests/support/sets.h"

enum { NODES = 4, JOBS = 10, WORKERS = 4000, ROUNDS = 300, ACTIONS = 120, STEPS = 40 };

struct worker_seen {
    uint64_t job;
    int node;
    bool alive;
    uint64_t epoch; /* it was told to form; 0 = none */
};

static struct world {
    uint64_t seed, draws;
    struct bench b;
    uint32_t slots[NODES];
    bool drained[NODES];
    struct worker_seen workers[WORKERS];
    struct job jobs[JOBS + 1];
    enum job_state states[JOBS + 1];
    uint64_t step[JOBS + 1], epoch[JOBS + 1], rank0[JOBS + 1];
    uint32_t crashes[JOBS + 1];
    bool passed[JOBS + 1];                              /* another one, which is to have its slots */
    Titan__Internal__CoordinatorMessage *todo[WORKERS]; /* not delivered yet, in order */
    uint64_t sessions[WORKERS];
    size_t n_todo;
} w;

/* What the rounds went through: a draw that no longer gets anywhere shows here. */
static struct {
    unsigned squeezed, preempted, passed, resized, drained, completed, departing;
} totals;

static uint32_t roll(uint32_t n)
{
    uint32_t out[4];
    rng_philox(rng_key(w.seed, "scheduler"), w.draws++, 0, out);
    return out[0] % n;
}

#define HOLDS(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            printf("# SEED=%llu: ", (unsigned long long)w.seed);                                                       \
            printf(__VA_ARGS__);                                                                                       \
            printf(" [%s]\n", #cond);                                                                                  \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

static int node_of(const char *name)
{
    return name[0] - 'a';
}

static uint32_t used(int node)
{
    uint32_t n = 0;
    for (size_t i = 1; i < WORKERS; i++)
        n += w.workers[i].alive && w.workers[i].node == node;
    return n;
}

/* --- what came out ------------------------------------------------------------------------------------------------ */

static void see_worker(const struct change *c)
{
    struct worker_seen *s = &w.workers[c->worker.id];
    if (c->kind == CHANGE_WORKER_ADD) {
        *s = (struct worker_seen){.job = c->worker.job_id, .node = node_of(c->worker.node), .alive = true};
        HOLDS(!w.drained[s->node], "worker %llu starts on a drained node", (unsigned long long)c->worker.id);
        HOLDS(used(s->node) <= w.slots[s->node], "node %d has more workers than slots", s->node);
    } else if (c->kind == CHANGE_WORKER_MOVE && c->worker.state >= WORKER_EXITED) {
        s->alive = false;
    }
}

static void see_job(const struct change *c)
{
    uint64_t id = c->job.id;
    if (c->kind == CHANGE_JOB_MOVE) {
        HOLDS(sm_allowed(&job_sm, (int)w.states[id], (int)c->job.state), "job %llu", (unsigned long long)id);
        w.states[id] = c->job.state;
        totals.completed += c->job.state == JOB_COMPLETED;
    }
    totals.passed += c->job.status.passed && !w.passed[id];
    w.passed[id] = c->job.status.passed != 0;
    HOLDS(c->job.status.restarts == w.crashes[id], "job %llu has %u restarts, %u crashes", (unsigned long long)id,
          c->job.status.restarts, w.crashes[id]);
}

static void see_epoch(const struct epoch *e)
{
    const struct job_spec *s = &w.jobs[e->job_id].spec;
    HOLDS(e->world_size >= s->min_workers && world_set_has(&s->worlds, e->world_size), "an epoch of %u members",
          e->world_size);
    totals.departing += e->departing;
    w.epoch[e->job_id] = e->number;
    w.rank0[e->job_id] = e->workers[0];
}

static void see_event(const struct event *e)
{
    unsigned long long by = 0;
    if (strcmp(e->type, "job.preempted") == 0)
        HOLDS(sscanf(e->detail, "{\"by_job\":%llu}", &by) == 1, "%s", e->detail);
    else if (strcmp(e->type, "job.squeezed") == 0)
        HOLDS(sscanf(e->detail, "{\"workers\":%*u,\"for_job\":%llu}", &by) == 1, "%s", e->detail);
    totals.squeezed += strcmp(e->type, "job.squeezed") == 0;
    totals.preempted += strcmp(e->type, "job.preempted") == 0;
    totals.resized += strcmp(e->type, "resize.finished") == 0;
    totals.drained += strcmp(e->type, "node.drained") == 0;
    if (by)
        HOLDS(w.jobs[by].spec.priority > w.jobs[e->job_id].spec.priority || w.passed[e->job_id],
              "job %llu gives way to job %llu", (unsigned long long)e->job_id, by);
}

static Titan__Internal__CoordinatorMessage *copy_of(const Titan__Internal__CoordinatorMessage *m)
{
    uint8_t *bytes = malloc(titan__internal__coordinator_message__get_packed_size(m) + 1);
    size_t n = titan__internal__coordinator_message__pack(m, bytes);
    Titan__Internal__CoordinatorMessage *copy = titan__internal__coordinator_message__unpack(NULL, n, bytes);
    free(bytes);
    assert_non_null(copy);
    return copy;
}

/* Look at the last batch, and take its messages along. */
static void look(void)
{
    for (const struct change *c = w.b.out.changes; c; c = c->next) {
        if (c->kind == CHANGE_WORKER_ADD || c->kind == CHANGE_WORKER_MOVE)
            see_worker(c);
        if (c->kind == CHANGE_JOB_MOVE || c->kind == CHANGE_JOB_UPDATE)
            see_job(c);
        if (c->kind == CHANGE_EPOCH_ADD)
            see_epoch(&c->epoch);
        if (c->has_event)
            see_event(&c->event);
    }
    for (const struct batch_message *m = w.b.out.messages; m; m = m->next) {
        assert_true(w.n_todo < WORKERS);
        w.todo[w.n_todo] = copy_of(m->message);
        w.sessions[w.n_todo++] = m->session;
    }
    batch_free(&w.b.out);
}

/* --- agents that obey --------------------------------------------------------------------------------------------- */

static void end_worker(uint64_t session, uint64_t id, int code)
{
    exited(&w.b, .session = session, .job = w.workers[id].job, .worker = id, .code = code);
    look();
}

static void stop(uint64_t session, const Titan__Internal__StopWorkers *m)
{
    uint64_t id = m->worker_ids[0], job = m->job_id;
    if (!w.workers[id].alive)
        return;
    if (m->must_checkpoint && id == w.rank0[job] && w.workers[id].epoch == w.epoch[job]) {
        w.step[job] += w.step[job] < STEPS;
        checkpoint(&w.b, .session = session, .job = job, .worker = id, .epoch = w.epoch[job], .step = w.step[job]);
        look();
    }
    end_worker(session, id, 0);
}

static void leave(uint64_t session, uint64_t job, uint64_t epoch)
{
    for (uint64_t id = 1; id < WORKERS; id++)
        if (w.workers[id].alive && w.workers[id].job == job && w.workers[id].epoch == epoch &&
            (uint64_t)w.workers[id].node + 1 == session) {
            quiesced(&w.b, .session = session, .job = job, .worker = id, .epoch = epoch, .step = w.step[job]);
            look();
        }
}

static void form(uint64_t session, const Titan__Internal__FormEpoch *m)
{
    for (size_t i = 0; i < m->n_members + m->n_departing; i++) {
        uint64_t id = (i < m->n_members ? m->members[i] : m->departing[i - m->n_members])->worker_id;
        if (w.workers[id].alive && (uint64_t)w.workers[id].node + 1 == session)
            w.workers[id].epoch = i < m->n_members ? m->epoch : 0;
    }
}

static void obey(uint64_t session, const Titan__Internal__CoordinatorMessage *m)
{
    switch ((int)m->kind_case) {
    case START:
        for (size_t i = 0; i < m->start->n_worker_ids; i++)
            if (w.workers[m->start->worker_ids[i]].alive) {
                ready(&w.b, .session = session, .job = m->start->job_id, .worker = m->start->worker_ids[i]);
                look();
            }
        break;
    case FORM:
        form(session, m->form);
        break;
    case REVOKE:
        leave(session, m->revoke->job_id, m->revoke->epoch);
        break;
    case PAUSE:
        leave(session, m->pause->job_id, m->pause->epoch);
        break;
    case STOP:
        stop(session, m->stop);
        break;
    default:
        break;
    }
}

static void deliver(void)
{
    for (size_t i = 0; i < w.n_todo; i++) {
        obey(w.sessions[i], w.todo[i]);
        titan__internal__coordinator_message__free_unpacked(w.todo[i], NULL);
    }
    w.n_todo = 0;
}

/* All that are in an epoch make a step; after the last one they are done. */
static void train(void)
{
    for (uint64_t job = 1; job <= JOBS; job++) {
        uint64_t id = w.rank0[job], session = (uint64_t)w.workers[id].node + 1;
        if (w.states[job] == JOB_NONE || sm_final(&job_sm, (int)w.states[job]) || !w.workers[id].alive ||
            w.workers[id].epoch != w.epoch[job])
            continue;
        w.step[job] += w.step[job] < STEPS;
        progress(&w.b, .session = session, .job = job, .worker = id, .epoch = w.epoch[job], .step = w.step[job]);
        look();
        deliver();
        if (w.step[job] < STEPS)
            continue;
        for (uint64_t k = 1; k < WORKERS; k++)
            if (w.workers[k].alive && w.workers[k].job == job && w.workers[k].epoch == w.epoch[job]) {
                finished(&w.b, .session = (uint64_t)w.workers[k].node + 1, .job = job, .worker = k,
                         .epoch = w.epoch[job], .step = w.step[job]);
                look();
            }
        deliver();
    }
}

static void pass(int64_t ms)
{
    for (int64_t end = w.b.now + ms; w.b.now < end;) {
        for (uint64_t s = 1; s <= NODES; s++) {
            heartbeat(&w.b, s);
            look();
        }
        tick(&w.b, 100);
        look();
        deliver();
    }
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void act(uint64_t *next_job)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    static const char *const users[] = {"ann", "bob", "cid"};
    uint32_t what = roll(12), node = roll(NODES), job = 1 + roll(JOBS);
    if (what < 3 && *next_job <= JOBS) {
        uint64_t id = (*next_job)++;
        w.jobs[id] = job_of(id, 1 + roll(3), 3 + roll(4));
        w.jobs[id].spec.steps = STEPS;
        w.jobs[id].spec.priority = (int32_t)roll(3);
        w.jobs[id].spec.max_restarts = 1000;
        w.jobs[id].user = users[roll(3)];
        w.states[id] = JOB_PENDING;
        submit_job(&w.b, &w.jobs[id]);
    } else if (what == 3) {
        struct core_drain d = {.reason = "", .deadline_ms = roll(2) ? 1000 : 0};
        w.drained[node] = true;
        assert_int_equal(core_drain(w.b.core, names[node], &d, at(&w.b), &w.b.out, NULL), TITAN_OK);
    } else if (what < 6) {
        w.drained[node] = false;
        assert_int_equal(core_undrain(w.b.core, names[node], at(&w.b), &w.b.out, NULL), TITAN_OK);
    } else if (what < 8) {
        struct core_resize r = {.workers = 1 + roll(7)};
        (void)!core_resize(w.b.core, job, &r, at(&w.b), &w.b.out, NULL);
    } else if (what == 8) {
        uint64_t id = w.rank0[job];
        if (w.workers[id].alive && w.workers[id].epoch == w.epoch[job] && w.states[job] == JOB_RUNNING) {
            w.crashes[job]++;
            exited(&w.b, .session = (uint64_t)w.workers[id].node + 1, .job = job, .worker = id, .code = 1);
        }
    }
    look();
    deliver();
}

static void check_end(void)
{
    for (uint64_t id = 1; id <= JOBS; id++)
        HOLDS(w.states[id] == JOB_NONE || w.states[id] == JOB_COMPLETED, "job %llu is %s", (unsigned long long)id,
              sm_name(&job_sm, (int)w.states[id]));
    for (int n = 0; n < NODES; n++)
        HOLDS(used(n) == 0, "node %d is not empty", n);
}

static void run_round(uint64_t seed)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    uint64_t next_job = 1;
    memset(&w, 0, sizeof(w));
    w.seed = seed;
    struct core_options options = {.term = 1,
                                   .seed = seed,
                                   .jobs_dir = "/jobs",
                                   .heartbeat_ms = 100,
                                   .node_timeout_ms = 1000,
                                   .quarantine_crashes = CORE_NO_QUARANTINE};
    w.b.now = 1000;
    batch_init(&w.b.out);
    assert_int_equal(core_new(&options, &w.b.core, NULL), TITAN_OK);
    for (int n = 0; n < NODES; n++) {
        w.slots[n] = 1 + roll(4);
        assert_int_equal(registration(&w.b, (uint64_t)n + 1, names[n], w.slots[n], NULL, 0), TITAN_OK);
        look();
    }
    for (int i = 0; i < ACTIONS; i++) {
        act(&next_job);
        if (roll(2))
            train();
        if (roll(4) == 0)
            pass(100 * (1 + roll(5)));
    }
    for (int n = 0; n < NODES; n++) {
        w.drained[n] = false;
        assert_int_equal(core_undrain(w.b.core, names[n], at(&w.b), &w.b.out, NULL), TITAN_OK);
        look();
    }
    for (int i = 0; i < 1500; i++) {
        pass(100);
        train();
    }
    check_end();
    close_bench(&w.b);
}

static void test_random_requests(void **state)
{
    (void)state;
    const char *given = getenv("SEED") ? getenv("SEED") : getenv("TITAN_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 1;
    printf("# SEED=%llu\n", (unsigned long long)seed);
    const unsigned rounds = getenv("SEED") ? 1 : (unsigned)sliced(100, ROUNDS);
    for (uint64_t i = 0; i < rounds; i++)
        run_round(seed + i);
    printf("# %u completed, %u resized, %u departing, %u squeezed, %u preempted, %u passed, %u drained\n",
           totals.completed, totals.resized, totals.departing, totals.squeezed, totals.preempted, totals.passed,
           totals.drained);
    if (!getenv("SEED"))
        assert_true(totals.completed > rounds && totals.resized > rounds && totals.departing > rounds &&
                    totals.squeezed > rounds / 10 && totals.preempted > rounds / 10 && totals.passed > rounds / 10 &&
                    totals.drained > rounds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {longer(test_random_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
