/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/quorum.h"

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/worker_end.h"

#define WAITED_STEP (UINT64_C(1) << 20) /* an acting leader may have used numbers below the next multiple of this */

bool quorum_keeps(const struct core *c, struct workrec *w)
{
    struct jobrec *j = w->job;
    return c->options.leader_lease_ms && !phase_stops(j) && w->state == WORKER_READY && kept_counts(j, w->id);
}

void quorum_end_away(struct core *c, struct jobrec *j, const struct noderec *n)
{
    titan_assert(!c->stale || n || phase_stops(j)); /* workers unknown to a restored store may still decide */
    for (size_t i = j->n_workers; i-- > 0;) {
        struct workrec *w = j->workers[i];
        if (!w->away || (n && w->node != n))
            continue;
        worker_ended(c, w, NULL, batch_printf(c->out, "node %s is lost", w->node->name));
    }
}

struct quorum {
    uint32_t unknown, all; /* counts of the epoch that lacks most members */
    /* the time when the leases of unknown members end; INT64_MAX = a connected node is about to report */
    int64_t until;
    const struct noderec *node;
};

/* gone: a node whose workers count as unknown, whatever their records say; NULL = none. */
static bool has_quorum(const struct core *c, const struct jobrec *j, const struct noderec *gone, struct quorum *q)
{
    const int64_t lease = c->options.leader_lease_ms, margin = lease / 20 + 500;
    bool enough = true;
    *q = (struct quorum){0};
    for (size_t b = kept_first(j); b < j->n_kept; b++) {
        const struct kept_epoch *base = &j->kept[b];
        uint32_t unknown = 0;
        for (uint32_t i = 0; i < base->n; i++) {
            const struct kept_member *m = &base->members[i];
            const struct workrec *w = job_worker(j, m->worker_id);
            /* The worker will be in the next epoch, or the worker is reachable and the next epoch does not need it. */
            const bool counted_on = w && w->state == WORKER_READY && !w->away && m->node != gone;
            if (m->released || !m->node || counted_on)
                continue;
            unknown++;
            q->node = m->node;
            q->until = MAX(q->until, m->node->session ? INT64_MAX : m->node->answered_mono + lease + margin);
        }
        if (unknown >= q->unknown) {
            q->unknown = unknown;
            q->all = base->n;
        }
        enough = enough && 2 * unknown <= base->n;
    }
    titan_assert(q->unknown <= q->all && (enough || q->unknown > 0));
    return enough;
}

void quorum_give_up(const struct core *c, struct jobrec *j, const struct noderec *n)
{
    struct quorum q;
    j->quorum.above_leaders |= c->options.leader_lease_ms && !has_quorum(c, j, n, &q);
}

bool quorum_decides(struct core *c, struct jobrec *j)
{
    struct quorum q;
    bool enough = !c->options.leader_lease_ms || MUTANT(COORD_ALONE) || has_quorum(c, j, NULL, &q);
    if (!enough && c->now.mono_ms < q.until) {
        j->quorum.at = q.until;
        if (!j->waits.undecided && q.until < INT64_MAX)
            emit_job_undecided(c, j, q.unknown, q.all, q.until - c->now.mono_ms, q.node);
        return false;
    }
    if (!enough)
        j->quorum.above_leaders = true;
    j->quorum.at = INT64_MAX;
    emit_job_decided(c, j);
    quorum_end_away(c, j, NULL);
    return !job_final(j);
}

uint64_t quorum_number(const struct core *c, struct jobrec *j)
{
    uint64_t above = MAX(core_first_epoch(c), MAX(j->status.epoch, j->quorum.refused_epoch));
    if (above >= RANGE_EPOCH_MAX - WAITED_STEP)
        return 0;
    if (!j->quorum.above_leaders)
        return above + 1;
    j->quorum.above_leaders = false;
    return (above / WAITED_STEP + 1) * WAITED_STEP;
}
