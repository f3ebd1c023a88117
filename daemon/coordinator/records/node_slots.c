/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/records/node_slots.h"

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_table.h"

uint32_t node_slots(const struct core *c, const struct noderec *n)
{
    uint32_t out = 0;
    for (size_t i = 0; n->gpus && i < n->gpus->n_gpus; i++) {
        const Titan__Internal__GpuState *g = n->gpus->gpus[i];
        const struct jobrec *j = g->worker_id ? core_find_job(c, g->job_id) : NULL;
        const struct workrec *w = j ? job_worker(j, g->worker_id) : NULL;
        const bool held = w && w->node == n;
        out += g->health != TITAN__INTERNAL__GPU_HEALTH__GPU_HEALTHY && g->slot < n->slots && !held;
    }
    return n->slots - MIN(out, n->slots);
}

uint32_t node_spare(const struct core *c, const struct noderec *n)
{
    const uint32_t slots = node_slots(c, n);
    titan_assert(slots <= n->slots);
    return slots > n->used ? slots - n->used : 0;
}

static const Titan__Internal__GpuState *find_gpu(const struct noderec *n, Titan__Internal__GpuHealth health)
{
    for (size_t i = 0; n->gpus && i < n->gpus->n_gpus; i++)
        if (n->gpus->gpus[i]->health == health)
            return n->gpus->gpus[i];
    return NULL;
}

const Titan__Internal__GpuState *node_faulty_gpu(const struct noderec *n)
{
    return find_gpu(n, TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY);
}

const Titan__Internal__GpuState *node_unused_gpu(const struct noderec *n)
{
    const Titan__Internal__GpuState *faulty = node_faulty_gpu(n);
    return faulty ? faulty : find_gpu(n, TITAN__INTERNAL__GPU_HEALTH__GPU_UNKNOWN);
}
