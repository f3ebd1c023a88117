/* SPDX-License-Identifier: Apache-2.0 */
/* `make sim-scale`: thousands of nodes with one job on all of them, in the simulator (tests/sim/sim.h): the real cores
 * of the coordinator, of every agent and of every worker, and the real store. What the coordinator costs in steady
 * state, when a tenth of the nodes loses its power at once, and when it is itself started anew. Processor times are
 * this machine's, all others virtual.
 *   AGENTS=n   nodes, at most SIM_SCALE (default: 1000)
 *   SEED=n     of the schedule (default: 1)
 *   TRACE=1    print what happens */
#include "tests/sim/sim.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/cleanup.h"

#define NEVER (INT64_C(1000000) * SEC)
#define SLICE (5 * MS) /* conditions are looked at this often */
#define STEADY (20 * SEC)
#define SETTLE (10 * SEC)
#define RESTART (500 * MS)
#define SHARE_MAX 30.0 /* percent of a core, in steady state */
#define DECISION_MAX_MS 100.0
#define DECISION_NODES 1000 /* up to so many nodes */

static struct plan plan;
static struct outcome outcome;
static int passed, failed;

/* --- rows --------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void row(bool ok, const char *fmt, ...)
{
    va_list args;
    printf("%s ", ok ? "ok" : "FAIL");
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    passed += ok;
    failed += !ok;
}

static double ms_of(uint64_t ns)
{
    return (double)ns / 1e6;
}

static double s_of(usec t)
{
    return (double)t / (double)SEC;
}

static uint64_t spent_ns(const struct costs *c)
{
    return c->received.ns + c->timers.ns + c->reported.ns + c->stored.ns;
}

static double peak_mib(void)
{
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_maxrss / 1024;
}

/* --- the cluster -------------------------------------------------------------------------------------------------- */

static void make_plan(int nodes, uint64_t seed)
{
    plan = (struct plan){.seed = seed,
                         .nodes = nodes,
                         .jobs = 1,
                         .store = STORE_MEMORY,
                         .backup_at = NEVER,
                         .quiet_at = NEVER,
                         .lease_ms = 60000,
                         .pace = 20, /* steps of 2 s */
                         .scale = true};
    for (int h = 0; h <= SIM_COORD; h++) {
        plan.slots[MIN(h, SIM_NODES - 1)] = 1;
        plan.mono_offset_ms[h] = 1 + (int64_t)(chance_mix(seed, (uint64_t)h) % 1000000000);
        plan.wall_offset_ms[h] = INT64_C(1700000000000);
        plan.drift_ppm[h] = (int32_t)(chance_mix(seed + 1, (uint64_t)h) % 200) - 100;
    }
    struct job *j = &plan.specs[1];
    j->id = 1;
    j->name = j->user = j->reason = j->status.checkpoint = "";
    strcpy(j->spec.device, "auto");
    j->spec.steps = SIM_STEPS;
    j->spec.min_workers = (uint32_t)MAX(nodes / 2, 1);
    j->spec.max_workers = (uint32_t)nodes;
    for (uint32_t w = j->spec.min_workers; w <= j->spec.max_workers; w++)
        world_set_add(&j->spec.worlds, w);
    j->spec.max_restarts = 1000000;
    j->spec.backoff_ms = 100;
    j->spec.backoff_max_ms = 60000;
    j->spec.keep_latest = 2;
    plan.redundancy[1] = REDUNDANCY_BUDDY;
    plan.submit_at[1] = NEVER;
}

static int nodes_in(enum node_state state)
{
    int n = 0;
    for (int h = 0; h < plan.nodes; h++)
        n += S->image.nodes[h].state == state;
    return n;
}

/* As far as the coordinator knows. */
static void count_connected(const struct core_node *n, void *data)
{
    *(int *)data += n->connected;
}
static int connected(void)
{
    int n = 0;
    if (S->coord.core)
        core_nodes(S->coord.core, count_connected, &n);
    return n;
}

static bool all_there(void)
{
    return nodes_in(NODE_READY) == plan.nodes && connected() == plan.nodes;
}

static const struct image_job *job(void)
{
    return &S->image.jobs[1];
}

/* The job trains with all workers on nodes with power. */
static uint32_t wanted;
static bool trains(void)
{
    return job()->job.state == JOB_RUNNING && job()->job.status.world_size == wanted;
}

static bool all_noticed(void)
{
    return nodes_in(NODE_READY) == (int)wanted;
}

static bool survivors_are_back(void)
{
    return connected() == (int)wanted && trains();
}

/* false: not within so long, or something is violated. */
static bool await(bool (*condition)(void), usec within)
{
    for (usec until = S->now + within; !condition();)
        if (S->now >= until || !cluster_advance(S->now + SLICE))
            return false;
    return true;
}

/* An act of ours, as an event: what it leads to is checked like everything else. */
static void act(const struct handler *what)
{
    (void)at(S->now, what, 0, 0);
    (void)cluster_advance(S->now);
}

/* --- what is done to it ------------------------------------------------------------------------------------------- */

static void on_submit(const struct ev *e)
{
    (void)e;
    coord_request(1);
}

/* Every tenth node, so that they lie among the others. */
static void on_storm(const struct ev *e)
{
    (void)e;
    for (int h = 3; h < plan.nodes; h += 10)
        host_power_off(h, NEVER);
}

static void on_death(const struct ev *e)
{
    (void)e;
    coord_kill(RESTART, false);
}

static bool begin(void)
{
    static const struct handler submit = {"submit", on_submit, TARGET_WORLD};
    bool ok = await(all_there, 600 * SEC);
    row(ok, "%d nodes register: all after %.1f s; %.2f ms of the coordinator's processor time each", plan.nodes,
        s_of(S->now), ms_of(spent_ns(&S->costs)) / plan.nodes);
    if (!ok || !cluster_advance(S->now + SETTLE))
        return false;
    const usec at = S->now;
    const uint64_t before = spent_ns(&S->costs);
    wanted = (uint32_t)plan.nodes;
    act(&submit);
    ok = await(trains, 600 * SEC);
    row(ok, "one job with a worker on each: its first step after %.1f s; %.0f ms of processor time", s_of(S->now - at),
        ms_of(spent_ns(&S->costs) - before));
    return ok && cluster_advance(S->now + SETTLE);
}

static bool steady(void)
{
    memset(&S->costs, 0, sizeof(S->costs));
    memset(&S->decision, 0, sizeof(S->decision));
    const uint64_t step = job()->job.status.step;
    const bool held = cluster_advance(S->now + STEADY);
    const struct costs *c = &S->costs;
    const double seconds = s_of(STEADY), share = 100 * ms_of(spent_ns(c)) / 1000 / seconds;
    const double messages = (double)(c->received.n + c->reported.n);
    row(held && S->decision.n_lost == 0 && S->decision.n_epochs == 0 && job()->job.status.step > step,
        "%.0f s in steady state: %.0f messages a second, %llu steps, no node lost and no epoch decided", seconds,
        messages / seconds, LL(job()->job.status.step - step));
    row(share <= SHARE_MAX,
        "the coordinator's processor time: %.1f us a message, %.2f %% of a core (target <= %.0f %%)",
        1000 * ms_of(spent_ns(c)) / messages, share, SHARE_MAX);
    return held;
}

static bool storm(void)
{
    static const struct handler dies = {"storm", on_storm, TARGET_WORLD};
    const uint32_t dead = (uint32_t)(plan.nodes + 6) / 10;
    const uint64_t epoch = job()->job.status.epoch;
    memset(&S->costs, 0, sizeof(S->costs));
    memset(&S->decision, 0, sizeof(S->decision));
    const usec at = S->now;
    wanted = (uint32_t)plan.nodes - dead;
    act(&dies);
    bool ok = await(trains, 900 * SEC);
    const usec stepped = S->now - at;
    ok = ok && await(all_noticed, 900 * SEC);
    const struct decision *d = &S->decision;
    const double ms = ms_of(spent_ns(&d->formed) - spent_ns(&d->lost));
    row(ok && d->n_lost == dead && d->n_before > 0,
        "%u nodes lose their power at once: %u are noticed, %u of them before the decision", dead, d->n_lost,
        d->n_before);
    row(ok && d->n_epochs == 1 && job()->job.status.epoch == epoch + 1,
        "then one new epoch: %u decided, of %u members, %.1f s after their death, %.0f ms after the last one noticed "
        "before; its first "
        "step after %.1f s",
        d->n_epochs, job()->job.status.world_size, s_of(d->formed_at - at), 1000 * s_of(d->formed_at - d->lost_at),
        s_of(stepped));
    row(ok && (plan.nodes > DECISION_NODES || ms <= DECISION_MAX_MS),
        "processor time from that last one to the decision: %.1f ms, %llu messages heard%s", ms,
        LL(d->formed.received.n - d->lost.received.n), plan.nodes > DECISION_NODES ? "" : " (target <= 100 ms)");
    row(ok, "the coordinator's processor time for all of it: %.0f ms, the longest input %.1f ms",
        ms_of(spent_ns(&S->costs)), ms_of(d->worst_ns));
    return ok && cluster_advance(S->now + SETTLE);
}

static bool restart(void)
{
    static const struct handler death = {"coordinator dies", on_death, TARGET_WORLD};
    const struct job_status before = job()->job.status;
    const usec at = S->now;
    const size_t heap = mallinfo2().uordblks;
    act(&death);
    const double kib = (double)(heap - mallinfo2().uordblks) / 1024;
    row(true, "the coordinator dies, and with it %.0f KiB of memory: %.1f KiB a node", kib, kib / plan.nodes);
    memset(&S->costs, 0, sizeof(S->costs));
    memset(&S->decision, 0, sizeof(S->decision));
    const bool ok = await(survivors_are_back, 600 * SEC);
    row(ok,
        "started anew: state from the store in %.1f ms of processor time, all %u agents are back %.1f s after its "
        "start, %.2f ms "
        "of processor time each",
        ms_of(S->costs.restored.ns), wanted, s_of(S->now - at - RESTART), ms_of(spent_ns(&S->costs)) / wanted);
    const bool held = ok && cluster_advance(S->now + 3 * SETTLE);
    row(held && S->decision.n_lost == 0 && S->decision.n_epochs == 0 && job()->job.status.epoch == before.epoch &&
            job()->job.state == JOB_RUNNING && job()->job.status.step > before.step &&
            job()->job.status.restarts == before.restarts,
        "then: the epoch is adopted as it is, %u nodes lost, %u epochs decided, %llu more steps", S->decision.n_lost,
        S->decision.n_epochs, LL(job()->job.status.step - before.step));
    return held;
}

static uint64_t number(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

int main(void)
{
    const uint64_t nodes = number("AGENTS", 1000);
    if (nodes < 10 || nodes > SIM_NODES) {
        fprintf(stderr, "AGENTS: 10 to %d\n", SIM_NODES);
        return 2;
    }
    struct timespec begun, ended;
    (void)clock_gettime(CLOCK_MONOTONIC, &begun);
    make_plan((int)nodes, number("SEED", 1));
    cluster_open(&plan, number("TRACE", 0) ? TRACE_PRINT : TRACE_OFF, &outcome);
    const bool through = begin() && steady() && storm() && restart();
    const struct image_job *j = job();
    if (outcome.violated)
        row(false, "%s is violated at %.3f s: %s", outcome.invariant, s_of(S->now), outcome.text);
    else if (!through)
        row(false, "stuck at %.3f s: job %s, epoch %llu of %u, step %llu, %d nodes connected: %s", s_of(S->now),
            sm_name(&job_sm, (int)j->job.state), LL(j->job.status.epoch), j->job.status.world_size,
            LL(j->job.status.step), connected(), j->reason);
    (void)clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("# %.0f s of virtual time, %llu events, in %.0f s; %.0f MiB of memory, %.0f KiB an agent with its worker\n",
           s_of(S->now), LL(S->events), (double)(ended.tv_sec - begun.tv_sec), peak_mib(),
           1024 * peak_mib() / (double)nodes);
    cluster_close();
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
