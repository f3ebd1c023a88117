/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's process but for its training thread: the member core (worker/elastic/member.h) and what agent_connection.c
 * does around it. */
#include "tests/sim/sim.h"

#include <string.h>

#include "base/error.h"

static int64_t now_of(const struct proc *p)
{
    return clock_mono_of(&S->hosts[p->host].clocks);
}

static void on_timer(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    if (!p->alive || !p->member || S->now < p->tick_at)
        return; /* no member yet: the timer was of one that had its number before, and an old command starts it again */
    p->tick_at = 0;
    member_tick(p->member, now_of(p), p->actions);
    training_poke(p);
    worker_timer(p);
}
static const struct handler timer = {"worker timer", on_timer, TARGET_WORKER};

void worker_timer(struct proc *p)
{
    int64_t due = member_deadline(p->member);
    if (!p->alive || due == INT64_MAX)
        return;
    usec when = clock_reaches(&S->hosts[p->host].clocks, due);
    if (p->tick_at && p->tick_at <= when)
        return;
    p->tick_at = when;
    (void)at(when, &timer, p->id, 0);
}

/* --- what the member core asks of its process --------------------------------------------------------------------- */

static void say(void *arg, const worker_message *m)
{
    struct proc *p = arg;
    net_local_up(p->id, &m->base);
}

static void revoke(void *arg, uint64_t epoch)
{
    struct proc *p = arg;
    TRACE("worker %llu: epoch %llu is revoked", LL(p->id), LL(epoch));
    training_revoked(p);
}

static void on_end(const struct ev *e)
{
    bool lease = e->b == MEMBER_END_LEASE;
    totals->leases_over += lease;
    proc_end(e->a, lease ? 1 : -1, lease ? 0 : 9, lease ? "lease is over" : "did not leave its epoch");
}
static const struct handler ends = {"worker ends itself", on_end, TARGET_WORKER};

static void end(void *arg, enum member_end why, const char *words)
{
    struct proc *p = arg;
    (void)words;
    (void)at(S->now, &ends, p->id, why);
}

static void note(void *arg, const char *sentence, const char *pairs)
{
    const struct proc *p = arg;
    TRACE("worker %llu: %s (%s)", LL(p->id), sentence, pairs);
}

/* --- its life ----------------------------------------------------------------------------------------------------- */

static void on_opened(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    if (!p->alive || !p->member || member_state(p->member)->opened)
        return; /* of one that had its number before, or that one was heard */
    member_opened(p->member);
    training_poke(p);
}
static const struct handler opened = {"data and device are open", on_opened, TARGET_WORKER};

void worker_begin(struct proc *p)
{
    struct member_options options = {.job_id = p->job,
                                     .worker_id = p->id,
                                     .pid = 1000 + (int64_t)p->id,
                                     .address = "host:1",
                                     .lease_ms = 8000,
                                     .lease_grace_ms = 2000};
    struct member_host host = {.arg = p, .send = say, .revoke = revoke, .end = end, .note = S->trace ? note : NULL};
    p->member = member_open(&options, &host, now_of(p));
    titan_assert(p->member);
    p->begun = true;
    worker_timer(p);
    (void)at(S->now + between(CHANCE_WORK, MS, 300 * MS), &opened, p->id, 0);
}

void worker_connected(struct proc *p, bool connected)
{
    if (!p->member || p->connected == connected)
        return;
    p->connected = connected;
    if (connected)
        member_connected(p->member, now_of(p));
    else
        member_disconnected(p->member);
}

void worker_hears(struct proc *p, const worker_command *m)
{
    const struct member_state was = *member_state(p->member);
    (void)member_hear(p->member, m, now_of(p));
    const struct member_state *is = member_state(p->member);
    CHECK("I2",
          m->term >= was.term || m->kind_case == TITAN__INTERNAL__AGENT_TO_WORKER__KIND_LEASE ||
              is->counters.fenced + is->counters.nonsense > was.counters.fenced + was.counters.nonsense,
          "worker %llu has seen term %llu and takes a command of %llu", LL(p->id), LL(was.term), LL(m->term));
    if (m->term < was.term && m->kind_case != TITAN__INTERNAL__AGENT_TO_WORKER__KIND_LEASE)
        CHECK("I2",
              is->seen == was.seen && is->offered == was.offered && is->revoked == was.revoked &&
                  is->stopped == was.stopped && is->in_revoked == was.in_revoked,
              "worker %llu has seen term %llu and obeys a command of %llu", LL(p->id), LL(was.term), LL(m->term));
    training_poke(p);
    worker_timer(p);
}
