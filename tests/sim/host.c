/* SPDX-License-Identifier: Apache-2.0 */
/* Machines: clocks of their own, the agent's process, the processes of workers. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* --- clocks ------------------------------------------------------------------------------------------------------- */

int64_t clock_mono_of(const struct clocks *c)
{
    return c->mono_offset_ms + S->now / MS + S->now / MS * c->drift_ppm / 1000000;
}

int64_t clock_wall_of(const struct clocks *c)
{
    return c->wall_offset_ms + S->now / MS;
}

usec clock_reaches(const struct clocks *c, int64_t at_ms)
{
    int64_t since = at_ms - c->mono_offset_ms;
    usec when = (since - since * c->drift_ppm / 1000000) * MS;
    /* Rounding may end a little early. */
    return when + MS > S->now ? when + MS : S->now;
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

static void on_noticed(const struct ev *e)
{
    struct host *h = &S->hosts[e->a];
    struct proc *p = &S->procs[e->b & 0xffffffff];
    if (h->alive && h->life == e->b >> 32)
        agent_worker_ended((int)e->a, p->id, p->exit_code, p->exit_signal, p->last_words);
}
static const struct handler noticed = {"agent notices an end", on_noticed, TARGET_AGENT};

void proc_end(uint64_t worker, int code, int signal, const char *why)
{
    struct proc *p = &S->procs[worker];
    struct host *h = &S->hosts[p->host];
    if (!p->alive)
        return;
    TRACE("worker %llu of job %llu ends: code %d signal %d %s", LL(worker), LL(p->job), code, signal, why);
    p->alive = p->connected = p->stopped = false;
    p->exit_code = code;
    p->exit_signal = signal;
    p->last_words = why;
    cluster_continue(TARGET_WORKER, worker);
    training_ended(p);
    if (h->alive)
        (void)at(S->now + between(CHANCE_HOST, 100, 5 * MS), &noticed, (uint64_t)p->host,
                 (uint64_t)h->life << 32 | worker);
}

struct proc *proc_pick(uint32_t pick)
{
    uint32_t n = 0;
    for (uint64_t i = 1; i <= S->last_proc; i++)
        n += S->procs[i].alive;
    if (!n)
        return NULL;
    pick %= n;
    for (uint64_t i = 1; i <= S->last_proc; i++)
        if (S->procs[i].alive && pick-- == 0)
            return &S->procs[i];
    return NULL;
}

struct proc *host_next(int h, size_t *i)
{
    const struct host *host = &S->hosts[h];
    while (*i < host->n_procs) {
        struct proc *p = &S->procs[host->procs[(*i)++]];
        if (p->alive && p->host == h)
            return p;
    }
    return NULL;
}

static void add_proc(struct host *host, uint64_t worker)
{
    size_t at = host->n_procs;
    while (at > 0 && host->procs[at - 1] >= worker)
        at--;
    if (at < host->n_procs && host->procs[at] == worker)
        return; /* started again */
    host->procs = realloc(host->procs, (host->n_procs + 1) * sizeof(*host->procs));
    titan_assert(host->procs);
    memmove(&host->procs[at + 1], &host->procs[at], (host->n_procs++ - at) * sizeof(*host->procs));
    host->procs[at] = worker;
}

static void on_start(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    const struct host *h = &S->hosts[p->host];
    if (!p->alive)
        return;
    if (p->fails_at_start) {
        proc_end(p->id, p->permanent ? 2 : 1, 0, p->permanent ? "bad data" : "cannot start");
        return;
    }
    worker_begin(p);
    if (h->alive)
        worker_connected(p, true);
}
static const struct handler start = {"worker starts", on_start, TARGET_WORKER};

void host_spawn(int h, uint64_t job, uint64_t worker)
{
    CHECK("sim", worker < SIM_WORKERS, "more workers than the simulator keeps");
    struct proc *p = &S->procs[worker];
    /* An old command to an agent that has been started anew is obeyed; the coordinator has no use for the process. */
    CHECK("I7", !p->alive, "worker %llu is started twice", LL(worker));
    if (p->there)
        totals->started_again++;
    member_close(p->member);
    bool fails = S->now < S->hosts[h].starts_fail_until;
    *p = (struct proc){.there = true,
                       .alive = true,
                       .id = worker,
                       .job = job,
                       .host = h,
                       .fails_at_start = fails,
                       .permanent = fails && chance(CHANCE_HOST, 5)};
    S->last_proc = worker > S->last_proc ? worker : S->last_proc;
    add_proc(&S->hosts[h], worker);
    (void)at(S->now + between(CHANCE_HOST, 5 * MS, 150 * MS), &start, worker, 0);
}

void host_signal(uint64_t worker, int signal)
{
    proc_end(worker, -1, signal, "");
}

/* --- the agent's process ------------------------------------------------------------------------------------------ */

static void on_reconnect(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    struct host *h = &S->hosts[p->host];
    if (!p->alive || !p->begun || !h->alive || h->life != e->b)
        return;
    worker_connected(p, true);
}
static const struct handler reconnect = {"worker connects", on_reconnect, TARGET_WORKER};

static void on_agent_up(const struct ev *e)
{
    struct host *h = &S->hosts[e->a];
    if (h->alive)
        return;
    h->alive = true;
    h->up = true;
    h->life++;
    totals->agent_lives++;
    TRACE("agent %s is up, life %u", h->name, h->life);
    agent_begin((int)e->a);
    size_t i = 0;
    for (struct proc *p; (p = host_next((int)e->a, &i));)
        (void)at(S->now + between(CHANCE_HOST, MS, 30 * MS), &reconnect, p->id, h->life);
    training_network_changed();
}
static const struct handler agent_up = {"agent starts", on_agent_up, TARGET_WORLD};

static void agent_gone(int n, bool power, usec restart_after)
{
    struct host *h = &S->hosts[n];
    net_agent_gone(n, power);
    h->alive = false;
    h->stopped = false;
    cluster_continue(TARGET_AGENT, (uint64_t)n);
    agent_end(n);
    size_t i = 0;
    for (struct proc *p; (p = host_next(n, &i));)
        if (p->connected && !power)
            worker_connected(p, false);
    (void)at(S->now + restart_after, &agent_up, (uint64_t)n, 0);
}

void host_agent_kill(int n, usec restart_after)
{
    struct host *h = &S->hosts[n];
    if (!h->alive)
        return;
    TRACE("agent %s is killed", h->name);
    agent_gone(n, false, restart_after);
}

void host_power_off(int n, usec lasts)
{
    struct host *h = &S->hosts[n];
    if (!h->alive)
        return;
    TRACE("node %s loses power", h->name);
    h->up = false;
    agent_gone(n, true, lasts);
    size_t i = 0;
    for (struct proc *p; (p = host_next(n, &i));)
        proc_end(p->id, -1, 9, "power");
}

static void on_agent_continue(const struct ev *e)
{
    struct host *h = &S->hosts[e->a];
    if (!h->stopped || h->life != e->b)
        return;
    TRACE("agent %s goes on", h->name);
    h->stopped = false;
    cluster_continue(TARGET_AGENT, e->a);
}

void host_agent_stop(int n, usec lasts)
{
    static const struct handler go_on = {"agent continues", on_agent_continue, TARGET_WORLD};
    struct host *h = &S->hosts[n];
    if (!h->alive || h->stopped)
        return;
    TRACE("agent %s is stopped", h->name);
    h->stopped = true;
    (void)at(S->now + lasts, &go_on, (uint64_t)n, h->life);
}
