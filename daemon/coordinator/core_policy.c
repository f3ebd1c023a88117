/* What is decided about nodes: drain on request, maintenance windows, quarantine. An agent that comes back changes none
 * of it. */
#include "daemon/coordinator/core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mutant.h"

#define LEAD_DEFAULT_MS 300000           /* a window's drain begins so long before it */
#define QUARANTINE_MS 600000             /* the first; each further one is twice as long */
#define QUARANTINE_MAX_MS 86400000       /* the longest */
#define WINDOW_MAX_MS (366LL * 86400000) /* of maintenance, and how far ahead it may be planned */

bool node_leaves(const struct noderec *n)
{
    return n->leaving && n->leaving == n->incarnation;
}

bool node_empties(const struct noderec *n)
{
    return n->policy.draining || n->in_window || node_leaves(n);
}

bool node_unfit(const struct noderec *n)
{
    return n->unfit && n->unfit[0];
}

bool node_accepts(const struct noderec *n)
{
    return n->state == NODE_READY && n->session && !node_empties(n) && !n->quarantine_end && !n->steady_at &&
           !node_unfit(n) && !n->unchecked;
}

const char *node_state_text(const struct noderec *n)
{
    bool there = n->state == NODE_READY && n->session;
    if (n->in_window && n->used == 0)
        return "maintenance";
    /* One that has just dropped its stream is not lost yet, but neither can it be counted on. */
    if (!there)
        return "lost";
    if (node_empties(n))
        return n->used > 0 ? "draining" : "drained";
    if (n->quarantine_end)
        return "quarantined";
    return node_unfit(n) ? "unfit" : "ready";
}

const char *node_reason_text(const struct noderec *n)
{
    if (node_leaves(n))
        return "its agent is told to stop";
    if (n->quarantine_end && !node_empties(n))
        return n->policy.quarantine_reason;
    if (node_unfit(n) && !node_empties(n))
        return n->unfit;
    return n->given_up && !node_empties(n) ? "given up by an operator" : n->policy.reason;
}

static void set_reason(const char **field, const char *text)
{
    free((char *)(uintptr_t)*field);
    *field = core_strdup(text);
}

/* --- drain ----------------------------------------------------------------------------------------------------- */

static int64_t mono_of(const struct core *c, int64_t wall_ms)
{
    return wall_ms ? c->now.mono_ms + (wall_ms - c->now.wall_ms) : INT64_MAX;
}

static titan_status check_window(const struct core_drain *d, int64_t now_ms, struct titan_error *err)
{
    if (d->for_ms < 1000 || d->for_ms > WINDOW_MAX_MS)
        return titan_fail(err, TITAN_EINVAL, "drain: a maintenance window is from a second to a year long");
    if (d->from_ms < 0 || d->from_ms > now_ms + WINDOW_MAX_MS)
        return titan_fail(err, TITAN_EINVAL, "drain: the window begins more than a year from now");
    if (d->from_ms + d->for_ms <= now_ms)
        return titan_fail(err, TITAN_EINVAL, "drain: the window is over already");
    return TITAN_OK;
}

static void plan_window(struct core *c, struct noderec *n, const struct core_drain *d)
{
    char from[32], until[32];
    n->policy.window_from_ms = d->from_ms;
    n->policy.window_until_ms = d->from_ms + d->for_ms;
    n->policy.window_lead_ms = d->deadline_ms ? d->deadline_ms : LEAD_DEFAULT_MS;
    n->in_window = false;
    say_policy(c, n, "node.window",
               batch_printf(c->out, "maintenance from %s to %s", clock_format(n->policy.window_from_ms, from),
                            clock_format(n->policy.window_until_ms, until)),
               batch_printf(c->out, "{\"from_ms\":%lld,\"until_ms\":%lld,\"lead_ms\":%lld}",
                            (long long)n->policy.window_from_ms, (long long)n->policy.window_until_ms,
                            (long long)n->policy.window_lead_ms));
}

void policy_leaves(struct core *c, struct noderec *n, const Titan__Internal__AgentLeaves *m)
{
    if (node_leaves(n))
        return;
    n->leaving = n->incarnation;
    n->leave_at = c->now.mono_ms + m->deadline_ms;
    n->said_drained = false;
    say_event(
        c, NULL,
        (struct say){.type = "node.draining",
                     .message = batch_printf(c->out, "node %s is drained: its agent is told to stop", n->name),
                     .node = n,
                     .detail = batch_printf(c->out, "{\"workers\":%u,\"deadline_ms\":%u}", n->used, m->deadline_ms)});
    node_look_again(c, n);
}

static void say_draining(struct core *c, struct noderec *n, const char *words)
{
    n->said_drained = false;
    say_policy(c, n, "node.draining", batch_printf(c->out, "is drained: %s", words),
               batch_printf(c->out, "{\"workers\":%u,\"deadline_ms\":%lld}", n->used,
                            n->drain_at == INT64_MAX ? 0LL : (long long)(n->drain_at - c->now.mono_ms)));
}

titan_status core_drain(struct core *c, const char *node, const struct core_drain *d, struct core_time now,
                        struct batch *out, struct titan_error *err)
{
    struct noderec *n = core_find_node(c, node);
    if (!n)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no node '%.253s'", node);
    if (d->from_ms || d->for_ms)
        TRY(check_window(d, now.wall_ms, err));
    core_begin(c, now, out);
    set_reason(&n->policy.reason, d->reason && *d->reason ? d->reason : "asked for");
    if (d->for_ms) {
        plan_window(c, n, d);
    } else {
        n->policy.draining = true;
        n->policy.deadline_ms = d->deadline_ms ? now.wall_ms + d->deadline_ms : 0;
        n->drain_at = d->deadline_ms ? now.mono_ms + d->deadline_ms : INT64_MAX;
        say_draining(c, n, n->policy.reason);
        node_look_again(c, n);
    }
    policy_tick(c);
    core_finish(c);
    return TITAN_OK;
}

static void end_drain(struct core *c, struct noderec *n, const char *words)
{
    n->policy.draining = n->in_window = n->said_drained = false;
    n->policy.deadline_ms = n->policy.window_from_ms = n->policy.window_until_ms = n->policy.window_lead_ms = 0;
    n->drain_at = INT64_MAX;
    set_reason(&n->policy.reason, "");
    say_policy(c, n, "node.undrained", words, NULL);
    node_look_again(c, n);
}

titan_status core_undrain(struct core *c, const char *node, struct core_time now, struct batch *out,
                          struct titan_error *err)
{
    struct noderec *n = core_find_node(c, node);
    if (!n)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no node '%.253s'", node);
    core_begin(c, now, out);
    n->quarantine_end = n->policy.quarantined_until_ms = 0;
    n->policy.quarantines = 0;
    n->n_crashes = 0;
    set_reason(&n->policy.quarantine_reason, "");
    end_drain(c, n, "is in service again, as asked for");
    core_finish(c);
    return TITAN_OK;
}

/* It is not coming back: nobody waits for what it may know. */
static void give_up(struct core *c, struct noderec *n, const char *words, const struct say *untold)
{
    n->given_up = true;
    if (n->state == NODE_READY)
        node_lose(c, n, words);
    else
        say_event(c, NULL, *untold);
    for (struct jobrec *j = c->active; j; j = j->next)
        quorum_end_away(c, j, n);
    quorum_node_known(c, n, NULL);
    node_look_again(c, n);
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        job_advance(c, j);
    }
    core_finish(c);
}

titan_status core_node_forget(struct core *c, const char *node, struct core_time now, struct batch *out,
                              struct titan_error *err)
{
    struct noderec *n = core_find_node(c, node);
    if (!n)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no node '%.253s'", node);
    if (n->session) {
        titan_status status = titan_fail(err, TITAN_ECONFLICT, "node %s is connected: it is not gone", n->name);
        if (err)
            titan_error_hint(err, "titanctl drain takes it out of service");
        return status;
    }
    core_begin(c, now, out);
    give_up(c, n, "is lost: given up by an operator",
            &(struct say){.type = "node.forgotten",
                          .message = batch_printf(c->out, "node %s is given up by an operator", n->name),
                          .node = n});
    return TITAN_OK;
}

void core_node_revoke(struct core *c, const char *node, struct core_time now, struct batch *out)
{
    struct noderec *n = core_find_node(c, node);
    if (!n || core_fenced(c))
        return;
    core_begin(c, now, out);
    tell_stop_all(c, n, "the node's certificate is revoked");
    give_up(c, n, "is lost: its certificate is revoked",
            &(struct say){.type = "node.forgotten",
                          .message = batch_printf(c->out, "node %s is given up: its certificate is revoked", n->name),
                          .node = n});
}

static void window_tick(struct core *c, struct noderec *n)
{
    const struct node_policy *p = &n->policy;
    if (!p->window_until_ms)
        return;
    if (c->now.wall_ms >= p->window_until_ms) {
        bool draining = p->draining; /* by request as well: that stays */
        int64_t deadline_ms = p->deadline_ms, drain_at = n->drain_at;
        end_drain(c, n, "is in service again: the maintenance window is over");
        if (draining) {
            n->policy.draining = true;
            n->policy.deadline_ms = deadline_ms;
            n->drain_at = drain_at;
            say_draining(c, n, "asked for");
        }
    } else if (!n->in_window && c->now.wall_ms >= p->window_from_ms - p->window_lead_ms) {
        n->in_window = true;
        n->drain_at = MIN(n->drain_at, mono_of(c, p->window_from_ms));
        say_draining(c, n, batch_printf(c->out, "maintenance, %s", p->reason));
        node_look_again(c, n);
    }
}

/* What could not be moved in time is stopped, with a checkpoint, and waits for slots elsewhere. */
static void drain_deadline(struct core *c, struct noderec *n)
{
    const char *why = batch_printf(c->out, "node %s is drained, and its workers found no other place in time", n->name);
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        bool here = false;
        for (size_t i = 0; i < j->n_workers && !here; i++)
            here = j->workers[i]->node == n && j->workers[i]->state != WORKER_STOPPING;
        if (here && j->state != JOB_RESIZING && j->n_leavers == 0) /* they are on their way */
            requeue_begin(c, j, why);
    }
}

/* --- quarantine ------------------------------------------------------------------------------------------------ */

static void add_crash(struct noderec *n, uint64_t job_id, int64_t at)
{
    n->crashes[n->n_crashes++ % NODE_CRASHES] = (struct crash){at, job_id};
}

/* Its crashes within the window, of one job or, with job_id 0, of all. */
static uint32_t crashes_of(const struct core *c, const struct noderec *n, uint64_t job_id)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < n->n_crashes && i < NODE_CRASHES; i++)
        count +=
            c->now.mono_ms - n->crashes[i].at < CORE_NODE_HISTORY_MS && (job_id == 0 || n->crashes[i].job_id == job_id);
    return count;
}

/* Is it this node, or do workers crash wherever they are? The last node of its kind stays in any case. */
static bool stands_out(const struct core *c, const struct noderec *n, uint32_t crashes)
{
    uint32_t others = 0;
    bool alternative = false;
    for (const struct noderec *o = c->nodes; o; o = o->next) {
        if (o == n || strcmp(o->device, n->device) != 0)
            continue;
        others += crashes_of(c, o, 0);
        alternative |= node_accepts(o);
    }
    return alternative && crashes > others;
}

/* One job's crashes speak against a node only when its workers elsewhere are there and have not crashed: else it may
 * be the job. */
static bool bears_witness(const struct core *c, const struct noderec *n, const struct jobrec *j)
{
    bool elsewhere = false;
    for (const struct noderec *o = c->nodes; o; o = o->next)
        if (o != n && crashes_of(c, o, j->id) > 0)
            return false;
    for (size_t i = 0; i < j->n_workers && !elsewhere; i++)
        elsewhere = j->workers[i]->node != n && j->workers[i]->state == WORKER_READY;
    return elsewhere;
}

bool policy_avoids(const struct core *c, const struct noderec *n, const struct jobrec *j)
{
    return c->options.quarantine_crashes != CORE_NO_QUARANTINE &&
           crashes_of(c, n, j->id) >= c->options.quarantine_crashes;
}

void policy_crashed(struct core *c, struct noderec *n, const struct jobrec *j)
{
    add_crash(n, j->id, c->now.mono_ms);
    uint32_t crashes = crashes_of(c, n, 0);
    const bool alone = crashes_of(c, n, j->id) == crashes && !MUTANT(QUARANTINE_ALONE);
    if (c->options.quarantine_crashes == CORE_NO_QUARANTINE || crashes < c->options.quarantine_crashes ||
        n->quarantine_end || !stands_out(c, n, crashes) || (alone && !bears_witness(c, n, j)))
        return;
    /* One that had none for as long as the longest starts over. */
    if (n->policy.quarantined_until_ms && c->now.wall_ms - n->policy.quarantined_until_ms > QUARANTINE_MAX_MS)
        n->policy.quarantines = 0;
    int64_t length = MIN((int64_t)QUARANTINE_MS << MIN(n->policy.quarantines, 16u), (int64_t)QUARANTINE_MAX_MS);
    n->policy.quarantines++;
    n->policy.quarantined_until_ms = c->now.wall_ms + length;
    n->quarantine_end = c->now.mono_ms + length;
    set_reason(&n->policy.quarantine_reason, batch_printf(c->out, "%u workers crashed there within 10 min", crashes));
    say_policy(c, n, "node.quarantined",
               batch_printf(c->out, "takes no new workers for %lld min: %s", (long long)length / 60000,
                            n->policy.quarantine_reason),
               batch_printf(c->out, "{\"crashes\":%u,\"quarantines\":%u,\"until_ms\":%lld}", crashes,
                            n->policy.quarantines, (long long)n->policy.quarantined_until_ms));
}

/* quarantined_until_ms stays: how long ago the last one was decides on the length of the next. */
static void end_quarantine(struct core *c, struct noderec *n)
{
    n->quarantine_end = 0;
    say_policy(c, n, "node.released", "takes workers again: its quarantine is over", NULL);
    c->slots_changed = true;
}

/* --- time and the store ---------------------------------------------------------------------------------------- */

void policy_tick(struct core *c)
{
    for (struct noderec *n = c->nodes; n; n = n->next) {
        window_tick(c, n);
        if (n->quarantine_end && c->now.mono_ms >= n->quarantine_end)
            end_quarantine(c, n);
        if (!node_empties(n))
            continue;
        if (n->used > 0 && c->now.mono_ms >= (node_leaves(n) ? MIN(n->drain_at, n->leave_at) : n->drain_at))
            drain_deadline(c, n);
        if (n->used == 0 && !n->said_drained) {
            say_event(c, NULL,
                      (struct say){.type = "node.drained",
                                   .message = batch_printf(c->out, "node %s is empty", n->name),
                                   .node = n});
            n->said_drained = true;
        }
    }
}

void core_restore_policy(struct core *c, const struct node_policy *saved, struct core_time now)
{
    struct noderec *n = core_find_node(c, saved->name);
    c->now = now;
    if (!n)
        return;
    free((char *)(uintptr_t)n->policy.reason);
    free((char *)(uintptr_t)n->policy.quarantine_reason);
    n->policy = *saved;
    n->policy.name = NULL;
    n->policy.reason = core_strdup(saved->reason);
    n->policy.quarantine_reason = core_strdup(saved->quarantine_reason);
    n->drain_at = mono_of(c, saved->deadline_ms);
    n->said_drained = true; /* before the restart, or it does not matter any more */
    if (saved->quarantined_until_ms > now.wall_ms)
        n->quarantine_end = mono_of(c, saved->quarantined_until_ms);
    if (saved->window_until_ms > now.wall_ms && now.wall_ms >= saved->window_from_ms - saved->window_lead_ms) {
        n->in_window = true;
        n->drain_at = MIN(n->drain_at, mono_of(c, saved->window_from_ms));
    }
}

void core_restore_loss(struct core *c, const struct loss *saved, struct core_time now)
{
    struct noderec *n = core_find_node(c, saved->node);
    if (n && saved->cause == LOSS_CRASH)
        add_crash(n, saved->job_id, now.mono_ms - (now.wall_ms - saved->at_ms));
}
