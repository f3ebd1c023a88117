/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/cluster/quarantine.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/outbox/events.h"

#define QUARANTINE_MS 600000       /* the first quarantine; each further one is twice as long */
#define QUARANTINE_MAX_MS 86400000 /* longest quarantine */

static void add_crash(struct noderec *n, uint64_t job_id, int64_t at)
{
    n->crashes[n->n_crashes++ % NODE_CRASHES] = (struct crash){at, job_id};
}

/* Crashes on the node within the window, of one job; job_id 0 = of all jobs. */
static uint32_t crashes_of(const struct core *c, const struct noderec *n, uint64_t job_id)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < n->n_crashes && i < NODE_CRASHES; i++)
        count +=
            c->now.mono_ms - n->crashes[i].at < CORE_NODE_HISTORY_MS && (job_id == 0 || n->crashes[i].job_id == job_id);
    return count;
}

bool quarantine_avoids(const struct core *c, const struct noderec *n, const struct jobrec *j)
{
    return c->options.quarantine_crashes != CORE_NO_QUARANTINE &&
           crashes_of(c, n, j->id) >= c->options.quarantine_crashes;
}

void quarantine_crashed(struct core *c, struct noderec *n, const struct jobrec *j)
{
    add_crash(n, j->id, c->now.mono_ms);
    const uint32_t crashes = crashes_of(c, n, 0);
    if (c->options.quarantine_crashes == CORE_NO_QUARANTINE || crashes < c->options.quarantine_crashes ||
        n->quarantine_end)
        return;
    /* Do workers crash on this node only, or everywhere? The last node of its device kind never stands out. */
    uint32_t others = 0;
    bool alternative = false, job_elsewhere = false, witness = false;
    for (const struct noderec *o = c->nodes; o; o = o->next) {
        job_elsewhere |= o != n && crashes_of(c, o, j->id) > 0;
        if (o == n || strcmp(o->device, n->device) != 0)
            continue;
        others += crashes_of(c, o, 0);
        alternative |= node_accepts(o);
    }
    if (!alternative || crashes <= others)
        return;
    /* Crashes of one job count against a node only if the job has workers elsewhere that have not crashed. Otherwise
     * the job may be the cause. */
    for (size_t i = 0; i < j->n_workers; i++)
        witness |= j->workers[i]->node != n && j->workers[i]->state == WORKER_READY;
    if (crashes_of(c, n, j->id) == crashes && !MUTANT(QUARANTINE_ALONE) && (job_elsewhere || !witness))
        return;
    /* If the last quarantine ended more than QUARANTINE_MAX_MS ago, the node's count starts over. */
    if (n->policy.quarantined_until_ms && c->now.wall_ms - n->policy.quarantined_until_ms > QUARANTINE_MAX_MS)
        n->policy.quarantines = 0;
    int64_t length = MIN((int64_t)QUARANTINE_MS << MIN(n->policy.quarantines, 16u), (int64_t)QUARANTINE_MAX_MS);
    titan_assert(length >= QUARANTINE_MS && !n->quarantine_end);
    n->policy.quarantines++;
    n->policy.quarantined_until_ms = c->now.wall_ms + length;
    n->quarantine_end = c->now.mono_ms + length;
    core_set_text(&n->policy.quarantine_reason,
                  batch_printf(c->out, "%u workers crashed there within 10 min", crashes));
    emit_policy(c, n, "node.quarantined",
                batch_printf(c->out, "takes no new workers for %lld min: %s", (long long)length / 60000,
                             n->policy.quarantine_reason),
                batch_printf(c->out, "{\"crashes\":%u,\"quarantines\":%u,\"until_ms\":%lld}", crashes,
                             n->policy.quarantines, (long long)n->policy.quarantined_until_ms));
}

void quarantine_silent(struct core *c, struct noderec *n)
{
    if (n->silent)
        return;
    n->silent = true;
    emit_node_fit(c, n, node_unfit_words(n));
}

void quarantine_answered(struct core *c, struct noderec *n)
{
    if (!n->silent)
        return;
    n->silent = false;
    if (!node_unfit(n))
        emit_node_fit(c, n, "");
    c->slots_changed = true;
}

void quarantine_lift(struct noderec *n)
{
    n->quarantine_end = n->policy.quarantined_until_ms = 0;
    n->policy.quarantines = 0;
    n->n_crashes = 0;
    core_set_text(&n->policy.quarantine_reason, "");
}

/* quarantined_until_ms stays: the time since the last quarantine decides the length of the next quarantine. */
void quarantine_over(struct core *c, struct noderec *n)
{
    titan_assert(n->quarantine_end && n->quarantine_end <= c->now.mono_ms);
    n->quarantine_end = 0;
    emit_policy(c, n, "node.released", "takes workers again: its quarantine is over", NULL);
    c->slots_changed = true;
}

void core_restore_loss(struct core *c, const struct loss *saved, struct core_time now)
{
    struct noderec *n = core_find_node(c, saved->node);
    if (n && saved->cause == LOSS_CRASH)
        add_crash(n, saved->job_id, now.mono_ms - MAX(now.wall_ms - saved->at_ms, INT64_C(0)));
}

void quarantine_restore(struct core *c, struct noderec *n)
{
    const int64_t until = n->policy.quarantined_until_ms;
    if (until > c->now.wall_ms)
        n->quarantine_end = c->now.mono_ms + (until - c->now.wall_ms);
}
