/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/sched/maintenance.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mutant.h"
#include "daemon/coordinator/cluster/quarantine.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/run/job_driver.h"
#include "daemon/coordinator/run/requeue.h"

#define LEAD_DEFAULT_MS 300000           /* how long before a window its drain begins */
#define WINDOW_MAX_MS (366LL * 86400000) /* longest window, and how far ahead it may be planned */

static int64_t mono_of(const struct core *c, int64_t wall_ms)
{
    return wall_ms ? c->now.mono_ms + (wall_ms - c->now.wall_ms) : INT64_MAX;
}

void maintenance_agent_leaves(struct core *c, struct noderec *n, const Titan__Internal__AgentLeaves *m)
{
    if (node_leaves(n))
        return;
    n->leaving = n->incarnation;
    n->leave_at = c->now.mono_ms + m->deadline_ms;
    n->reported_drained = false;
    emit_event(
        c, NULL,
        (struct emit){.type = "node.draining",
                      .message = batch_printf(c->out, "node %s is drained: its agent is told to stop", n->name),
                      .node = n,
                      .detail = batch_printf(c->out, "{\"workers\":%u,\"deadline_ms\":%u}", n->used, m->deadline_ms)});
    job_driver_look_again(c, n);
}

static void emit_draining(struct core *c, struct noderec *n, const char *words)
{
    n->reported_drained = false;
    emit_policy(c, n, "node.draining", batch_printf(c->out, "is drained: %s", words),
                batch_printf(c->out, "{\"workers\":%u,\"deadline_ms\":%lld}", n->used,
                             n->drain_at == INT64_MAX ? 0LL : (long long)(n->drain_at - c->now.mono_ms)));
}

static void end_drain(struct core *c, struct noderec *n, const char *words)
{
    n->policy.draining = n->in_window = n->reported_drained = false;
    n->policy.deadline_ms = n->policy.window_from_ms = n->policy.window_until_ms = n->policy.window_lead_ms = 0;
    n->drain_at = INT64_MAX;
    core_set_text(&n->policy.reason, "");
    emit_policy(c, n, "node.undrained", words, NULL);
    job_driver_look_again(c, n);
}

titan_status maintenance_check(const struct core_drain *d, int64_t now_ms, struct titan_error *err)
{
    if ((!d->from_ms && !d->for_ms) || MUTANT(WINDOW_UNBOUNDED))
        return TITAN_OK;
    if (d->for_ms < 1000 || d->for_ms > WINDOW_MAX_MS)
        return titan_fail(err, TITAN_EINVAL, "drain: a maintenance window is from a second to a year long");
    if (d->from_ms < 0 || d->from_ms > now_ms + WINDOW_MAX_MS)
        return titan_fail(err, TITAN_EINVAL, "drain: the window begins more than a year from now");
    if (d->from_ms + d->for_ms <= now_ms)
        return titan_fail(err, TITAN_EINVAL, "drain: the window is over already");
    return TITAN_OK;
}

void maintenance_drain(struct core *c, struct noderec *n, const struct core_drain *d)
{
    struct node_policy *p = &n->policy;
    core_set_text(&p->reason, d->reason && *d->reason ? d->reason : "asked for");
    if (d->for_ms) {
        char from[32], until[32];
        p->window_from_ms = d->from_ms;
        p->window_until_ms = d->from_ms + d->for_ms;
        p->window_lead_ms = d->deadline_ms ? d->deadline_ms : LEAD_DEFAULT_MS;
        titan_assert(p->window_from_ms < p->window_until_ms || MUTANT(WINDOW_UNBOUNDED));
        n->in_window = false;
        emit_policy(c, n, "node.window",
                    batch_printf(c->out, "maintenance from %s to %s", clock_format(p->window_from_ms, from),
                                 clock_format(p->window_until_ms, until)),
                    batch_printf(c->out, "{\"from_ms\":%lld,\"until_ms\":%lld,\"lead_ms\":%lld}",
                                 (long long)p->window_from_ms, (long long)p->window_until_ms,
                                 (long long)p->window_lead_ms));
    } else {
        p->draining = true;
        p->deadline_ms = d->deadline_ms ? c->now.wall_ms + d->deadline_ms : 0;
        n->drain_at = mono_of(c, p->deadline_ms);
        emit_draining(c, n, p->reason);
        job_driver_look_again(c, n);
    }
    maintenance_tick(c);
}

void maintenance_undrain(struct core *c, struct noderec *n)
{
    const bool there = n->state == NODE_READY && n->session;
    end_drain(c, n, there ? "is in service again, as asked for" : "is not here: it is in service when it comes back");
}

void maintenance_tick(struct core *c)
{
    for (struct noderec *n = c->nodes; n; n = n->next) {
        const struct node_policy *p = &n->policy;
        if (p->window_until_ms && c->now.wall_ms >= p->window_until_ms) {
            const bool draining = p->draining; /* a requested drain stays in force */
            const int64_t deadline_ms = p->deadline_ms, drain_at = n->drain_at;
            end_drain(c, n, "is in service again: the maintenance window is over");
            if (draining) {
                n->policy.draining = true;
                n->policy.deadline_ms = deadline_ms;
                n->drain_at = drain_at;
                emit_draining(c, n, "asked for");
            }
        } else if (p->window_until_ms && !n->in_window && c->now.wall_ms >= p->window_from_ms - p->window_lead_ms) {
            n->in_window = true;
            n->drain_at = MIN(n->drain_at, mono_of(c, p->window_from_ms));
            emit_draining(c, n, batch_printf(c->out, "maintenance, %s", p->reason));
            job_driver_look_again(c, n);
        }
        if (n->quarantine_end && c->now.mono_ms >= n->quarantine_end)
            quarantine_over(c, n);
        if (!node_empties(n))
            continue;
        const bool due = c->now.mono_ms >= (node_leaves(n) ? MIN(n->drain_at, n->leave_at) : n->drain_at);
        /* Workers that could not be moved in time stop with a checkpoint and wait for slots elsewhere. */
        for (struct jobrec *j = due && n->used > 0 ? c->active : NULL, *next; j; j = next) {
            next = j->next;
            bool here = false;
            for (size_t i = 0; i < j->n_workers && !here; i++)
                here = j->workers[i]->node == n && j->workers[i]->state != WORKER_STOPPING;
            const bool moves = j->state == JOB_RESIZING || j->n_departing > 0;
            const char *why =
                batch_printf(c->out, "node %s is drained, and its workers found no other place in time", n->name);
            if (here && !moves && requeue_begin(j, why))
                job_advance(c, j);
        }
        if (n->used == 0 && !n->reported_drained) {
            emit_event(c, NULL,
                       (struct emit){.type = "node.drained",
                                     .message = batch_printf(c->out, "node %s is empty", n->name),
                                     .node = n});
            n->reported_drained = true;
        }
    }
}

void maintenance_restore(struct core *c, struct noderec *n, const struct node_policy *saved)
{
    node_take_policy(n, saved);
    n->drain_at = mono_of(c, saved->deadline_ms);
    n->reported_drained = true; /* emitted before the restart, or no longer relevant */
    if (saved->window_until_ms > c->now.wall_ms && c->now.wall_ms >= saved->window_from_ms - saved->window_lead_ms) {
        n->in_window = true;
        n->drain_at = MIN(n->drain_at, mono_of(c, saved->window_from_ms));
    }
}
