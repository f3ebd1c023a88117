/* May we decide? (docs/membership.md, "Who may decide"; the rules are checked by tests/model/membership.pml.)
 *
 * Workers of a node that cannot be reached are *away*: they count neither as there nor as ended before an epoch is
 * decided without them, for until then they may be in one that a delegate has formed. Epochs to count by are the newest
 * complete one and all since. Members are kept of older ones as well, back to the newest that made a step: a member of
 * a complete one that has not heard so holds the one before it (core_source.c). */
#include "daemon/coordinator/core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"

#define WAITED_STEP (UINT64_C(1) << 20) /* numbers below the next multiple may be a delegate's */

static int lower_id(const void *a, const void *b, void *members)
{
    const struct base_member *m = members;
    uint64_t x = m[*(const uint32_t *)a].worker_id, y = m[*(const uint32_t *)b].worker_id;
    return (x > y) - (x < y);
}

static struct base_member *find_member(struct jobrec *j, size_t base, uint64_t worker_id)
{
    struct base *b = &j->bases[base];
    if (!b->by_id) {
        b->by_id = core_alloc((b->n + 1) * sizeof(*b->by_id));
        for (uint32_t i = 0; i < b->n; i++)
            b->by_id[i] = i;
        qsort_r(b->by_id, b->n, sizeof(*b->by_id), lower_id, b->members);
    }
    uint32_t lo = 0, hi = b->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (b->members[b->by_id[mid]].worker_id < worker_id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < b->n && b->members[b->by_id[lo]].worker_id == worker_id ? &b->members[b->by_id[lo]] : NULL;
}

static void forget_base(struct base *b)
{
    free(b->members);
    free(b->by_id);
}

/* The first to count by. */
static size_t first_base(const struct jobrec *j)
{
    size_t first = 0;
    for (size_t b = 0; b < j->n_bases; b++)
        first = j->bases[b].complete ? b : first;
    return first;
}

static bool member_since(struct jobrec *j, size_t first, uint64_t worker_id)
{
    for (size_t b = first; b < j->n_bases; b++)
        if (find_member(j, b, worker_id))
            return true;
    return false;
}

bool quorum_knows(struct jobrec *j, uint64_t worker_id)
{
    return member_since(j, first_base(j), worker_id);
}

bool quorum_lists(struct jobrec *j, uint64_t worker_id)
{
    return member_since(j, 0, worker_id);
}

const struct noderec *quorum_node(const struct jobrec *j, uint64_t worker_id)
{
    for (size_t b = j->n_bases; b-- > 0;) {
        const struct base_member *m = find_member((struct jobrec *)j, b, worker_id);
        if (m && m->node)
            return m->node;
    }
    return NULL;
}

bool quorum_any_on(const struct jobrec *j, const struct noderec *n)
{
    for (size_t b = 0; b < j->n_bases; b++)
        for (uint32_t i = 0; i < j->bases[b].n; i++)
            if (j->bases[b].members[i].node == n)
                return true;
    return false;
}

struct base_member *quorum_add(struct jobrec *j, uint64_t epoch, uint32_t n)
{
    j->bases = realloc(j->bases, (j->n_bases + 1) * sizeof(*j->bases));
    titan_assert(j->bases);
    j->bases[j->n_bases] =
        (struct base){.epoch = epoch, .n = n, .members = core_alloc((n + 1) * sizeof(struct base_member))};
    return j->bases[j->n_bases++].members;
}

void quorum_formed(struct jobrec *j)
{
    struct base_member *members = quorum_add(j, j->status.epoch, j->n_seats);
    j->bases[j->n_bases - 1].source = j->source_epoch;
    for (uint32_t i = 0; i < j->n_seats; i++)
        members[i] = (struct base_member){.worker_id = j->seats[i].worker_id,
                                          .node = j->seats[i].worker ? j->seats[i].worker->node : NULL,
                                          .told = !j->seats[i].worker};
}

void quorum_complete(struct jobrec *j)
{
    for (size_t b = 0; b < j->n_bases; b++)
        j->bases[b].complete |= j->bases[b].epoch == j->status.epoch;
}

void quorum_trained(struct jobrec *j)
{
    size_t kept = 0;
    for (size_t b = 0; b < j->n_bases; b++) {
        if (j->bases[b].epoch >= j->status.epoch)
            j->bases[kept++] = j->bases[b];
        else
            forget_base(&j->bases[b]);
    }
    j->n_bases = kept;
    quorum_complete(j);
}

void quorum_free(struct jobrec *j)
{
    for (size_t b = 0; b < j->n_bases; b++)
        forget_base(&j->bases[b]);
    free(j->bases);
}

void quorum_told(struct jobrec *j, const struct noderec *n, uint64_t worker_id)
{
    for (size_t b = 0; b < j->n_bases; b++) {
        struct base_member *m = find_member(j, b, worker_id);
        if (m && m->node == n)
            m->told = true;
    }
}

static bool lists(const Titan__Internal__AgentHello *hello, uint64_t worker_id)
{
    for (size_t i = 0; hello && i < hello->n_workers; i++)
        if (hello->workers[i]->worker_id == worker_id)
            return true;
    return false;
}

static void node_known_to(struct jobrec *j, const struct noderec *n, const Titan__Internal__AgentHello *hello)
{
    for (size_t b = 0; b < j->n_bases; b++)
        for (uint32_t i = 0; i < j->bases[b].n; i++) {
            struct base_member *m = &j->bases[b].members[i];
            m->told |= m->node == n && !job_worker(j, m->worker_id) && !lists(hello, m->worker_id);
        }
}

void quorum_node_known(struct core *c, const struct noderec *n, const Titan__Internal__AgentHello *hello)
{
    for (size_t b = 0; b < CORE_BUCKETS; b++) /* also those that wait: one that was queued again has a past */
        for (struct jobrec *j = c->buckets[b]; j; j = j->hash_next)
            node_known_to(j, n, hello);
}

bool quorum_keeps(const struct core *c, struct workrec *w)
{
    struct jobrec *j = w->job;
    return c->options.delegate_lease_ms && !phase_stops(j) && w->state == WORKER_READY && quorum_knows(j, w->id);
}

void quorum_end_away(struct core *c, struct jobrec *j, const struct noderec *n)
{
    for (size_t i = j->n_workers; i-- > 0;) {
        struct workrec *w = j->workers[i];
        if (!w->away || (n && w->node != n))
            continue;
        worker_ended(c, w, NULL, batch_printf(c->out, "node %s is lost", w->node->name));
    }
}

/* Is it in the epoch to come, or reachable and of no use to it? */
static bool counted_on(const struct workrec *w)
{
    return w && w->state == WORKER_READY && !w->away;
}

struct quorum {
    uint32_t unknown, all; /* of the epoch that lacks most */
    int64_t until;         /* when the leases of those are over; INT64_MAX: one is about to be told of */
    const struct noderec *node;
};

static bool has_quorum(const struct core *c, const struct jobrec *j, struct quorum *q)
{
    const int64_t lease = c->options.delegate_lease_ms, margin = lease / 20 + 500;
    bool enough = true;
    *q = (struct quorum){0};
    for (size_t b = first_base(j); b < j->n_bases; b++) {
        const struct base *base = &j->bases[b];
        uint32_t unknown = 0;
        for (uint32_t i = 0; i < base->n; i++) {
            const struct base_member *m = &base->members[i];
            const struct workrec *w = job_worker(j, m->worker_id);
            if (m->told || !m->node || counted_on(w))
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
    return enough;
}

bool quorum_decides(struct core *c, struct jobrec *j)
{
    struct quorum q;
    bool enough = !c->options.delegate_lease_ms || MUTANT(COORD_ALONE) || has_quorum(c, j, &q);
    if (!enough && c->now.mono_ms < q.until) {
        j->quorum_at = q.until;
        if (!j->quorum_waits && q.until < INT64_MAX)
            say_job_undecided(c, j, q.unknown, q.all, q.until - c->now.mono_ms, q.node);
        return false;
    }
    if (!enough)
        j->above_delegates = true;
    j->quorum_at = INT64_MAX;
    say_job_decided(c, j);
    quorum_end_away(c, j, NULL);
    return !job_final(j);
}

uint64_t quorum_number(const struct core *c, struct jobrec *j)
{
    uint64_t above = MAX(behind_first_epoch(c), MAX(j->status.epoch, j->refused_epoch));
    if (above >= RANGE_EPOCH_MAX - WAITED_STEP)
        return 0;
    if (!j->above_delegates)
        return above + 1;
    j->above_delegates = false;
    return (above / WAITED_STEP + 1) * WAITED_STEP;
}
