/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/job_size.h"

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/records/phase.h"

uint32_t size_min(const struct jobrec *j)
{
    return MAX(j->desired.min, j->spec.min_workers);
}

uint32_t size_max(const struct jobrec *j)
{
    uint32_t most = j->desired.max ? MIN(j->desired.max, j->spec.max_workers) : j->spec.max_workers;
    return j->size.limit ? MIN(most, j->size.limit) : most;
}

bool worker_displaced(const struct workrec *w)
{
    return node_empties(w->node);
}

uint32_t size_kept(const struct jobrec *j)
{
    uint32_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state != WORKER_STOPPING && !worker_displaced(j->workers[i]);
    return n;
}

uint32_t size_staying(const struct jobrec *j)
{
    uint32_t n = 0;
    for (size_t i = 0; i < j->n_workers; i++)
        n += j->workers[i]->state != WORKER_STOPPING;
    return n;
}

uint32_t size_world(const struct jobrec *j, uint32_t n)
{
    n = MIN(n, size_max(j));
    for (; n >= size_min(j) && n > 0; n--)
        if (world_set_has(&j->spec.worlds, n) || MUTANT(EPOCH_SIZE))
            return n;
    return 0;
}

uint32_t size_least(const struct jobrec *j)
{
    for (uint32_t n = size_min(j); n <= j->spec.max_workers; n++)
        if (n > 0 && world_set_has(&j->spec.worlds, n))
            return n;
    return 0;
}

uint32_t size_owned(const struct jobrec *j)
{
    const uint32_t kept = size_kept(j);
    return phase_ends(j) || j->requeue ? kept : MAX(kept, j->size.claim);
}

void size_claim(struct jobrec *j, uint32_t n)
{
    j->size.claim = n;
}

void size_limit(struct jobrec *j, uint32_t world, uint64_t for_job)
{
    titan_assert((world == 0) == (for_job == 0));
    j->size.limit = world;
    j->size.limit_for = for_job;
}
