/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/kept_epochs.h"

#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

static int lower_id(const void *a, const void *b, void *members)
{
    const struct kept_member *m = members;
    uint64_t x = m[*(const uint32_t *)a].worker_id, y = m[*(const uint32_t *)b].worker_id;
    return (x > y) - (x < y);
}

static struct kept_member *find_member(struct jobrec *j, size_t base, uint64_t worker_id)
{
    struct kept_epoch *b = &j->kept[base];
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
    titan_assert(lo == hi && lo <= b->n);
    return lo < b->n && b->members[b->by_id[lo]].worker_id == worker_id ? &b->members[b->by_id[lo]] : NULL;
}

const struct kept_epoch *kept_find(const struct jobrec *j, uint64_t epoch)
{
    for (size_t b = 0; b < j->n_kept; b++)
        if (j->kept[b].epoch == epoch)
            return &j->kept[b];
    return NULL;
}

/* Index of the oldest quorum configuration. */
size_t kept_first(const struct jobrec *j)
{
    size_t first = 0;
    for (size_t b = 0; b < j->n_kept; b++)
        first = j->kept[b].complete ? b : first;
    return first;
}

uint32_t kept_unheard(const struct jobrec *j, const struct noderec **ret_node)
{
    const struct kept_epoch *newest = j->n_kept ? &j->kept[j->n_kept - 1] : NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; newest && i < newest->n; i++) {
        const struct kept_member *m = &newest->members[i];
        if (m->released || !m->node || m->node->session || job_worker(j, m->worker_id))
            continue;
        *ret_node = m->node;
        n++;
    }
    return n;
}

static bool member_since(struct jobrec *j, size_t first, uint64_t worker_id)
{
    for (size_t b = first; b < j->n_kept; b++)
        if (find_member(j, b, worker_id))
            return true;
    return false;
}

bool kept_counts(struct jobrec *j, uint64_t worker_id)
{
    return member_since(j, kept_first(j), worker_id);
}

bool kept_lists(struct jobrec *j, uint64_t worker_id)
{
    return member_since(j, 0, worker_id);
}

const struct noderec *kept_node(const struct jobrec *j, uint64_t worker_id)
{
    for (size_t b = j->n_kept; b-- > 0;) {
        const struct kept_member *m = find_member((struct jobrec *)j, b, worker_id);
        if (m && m->node)
            return m->node;
    }
    return NULL;
}

bool kept_any_on(const struct jobrec *j, const struct noderec *n)
{
    for (size_t b = 0; b < j->n_kept; b++)
        for (uint32_t i = 0; i < j->kept[b].n; i++)
            if (j->kept[b].members[i].node == n)
                return true;
    return false;
}

bool kept_awaits(const struct jobrec *j, const struct noderec *n)
{
    for (size_t b = 0; b < j->n_kept; b++)
        for (uint32_t i = 0; i < j->kept[b].n; i++)
            if (j->kept[b].members[i].node == n && !j->kept[b].members[i].released)
                return true;
    return false;
}

void kept_drop_node(struct core *c, const struct noderec *n)
{
    for (size_t b = 0; b < CORE_BUCKETS; b++)
        for (struct jobrec *j = c->buckets[b]; j; j = j->hash_next)
            for (size_t k = 0; k < j->n_kept; k++)
                for (uint32_t i = 0; i < j->kept[k].n; i++)
                    if (j->kept[k].members[i].node == n)
                        j->kept[k].members[i].node = NULL;
}

const struct jobrec *kept_any_awaits(const struct core *c, const struct noderec *n)
{
    for (size_t b = 0; b < CORE_BUCKETS; b++)
        for (const struct jobrec *j = c->buckets[b]; j; j = j->hash_next)
            if (kept_awaits(j, n))
                return j;
    return NULL;
}

struct kept_member *kept_add(struct jobrec *j, uint64_t epoch, uint64_t source, uint32_t n)
{
    struct kept_member *members = core_alloc((n + 1) * sizeof(*members));
    struct kept_epoch added = {.epoch = epoch, .source = source, .n = n, .members = members};
    titan_assert(n > 0 && source < epoch && !kept_find(j, epoch));
    VEC_MUST_PUSH(j->kept, j->n_kept, j->cap_kept, added);
    size_t at = j->n_kept - 1;
    for (; at > 0 && j->kept[at - 1].epoch > epoch; at--)
        j->kept[at] = j->kept[at - 1];
    j->kept[at] = added;
    return members;
}

void kept_formed(struct jobrec *j)
{
    titan_assert(j->n_members > 0 && j->source.epoch < j->status.epoch);
    struct kept_member *members = kept_add(j, j->status.epoch, j->source.epoch, j->n_members);
    for (uint32_t i = 0; i < j->n_members; i++)
        members[i] = (struct kept_member){.worker_id = j->rank_slots[i].worker_id,
                                          .node = j->rank_slots[i].worker ? j->rank_slots[i].worker->node : NULL,
                                          .released = !j->rank_slots[i].worker};
}

void kept_complete(struct jobrec *j)
{
    for (size_t b = 0; b < j->n_kept; b++)
        j->kept[b].complete |= j->kept[b].epoch == j->status.epoch;
}

void kept_trained(struct jobrec *j)
{
    size_t kept = 0;
    for (size_t b = 0; b < j->n_kept; b++) {
        if (j->kept[b].epoch >= j->status.epoch) {
            j->kept[kept++] = j->kept[b];
            continue;
        }
        free(j->kept[b].members);
        free(j->kept[b].by_id);
    }
    j->n_kept = kept;
    titan_assert(kept <= 1); /* the epoch that made a step is the newest */
    kept_complete(j);
}

void kept_release(struct jobrec *j, const struct noderec *n, uint64_t worker_id)
{
    for (size_t b = 0; b < j->n_kept; b++) {
        struct kept_member *m = find_member(j, b, worker_id);
        if (m && m->node == n)
            m->released = true;
    }
}

void kept_node_known(struct core *c, const struct noderec *n, const Titan__Internal__AgentRegistration *registration)
{
    for (size_t b = 0; b < CORE_BUCKETS; b++) /* also queued jobs: jobs that were queued again have kept epochs */
        for (struct jobrec *j = c->buckets[b]; j; j = j->hash_next)
            for (size_t k = 0; k < j->n_kept; k++)
                for (uint32_t i = 0; i < j->kept[k].n; i++) {
                    struct kept_member *m = &j->kept[k].members[i];
                    if (m->node != n || job_worker(j, m->worker_id))
                        continue;
                    bool listed = false;
                    for (size_t w = 0; registration && w < registration->n_workers && !listed; w++)
                        listed = registration->workers[w]->worker_id == m->worker_id;
                    m->released |= !listed;
                }
}
