/* SPDX-License-Identifier: Apache-2.0 */
/* node_gpus.c - the GPUs of this node's slots; the coordinator gets each change. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"

static bool faulty(const Titan__Internal__GpuState *g)
{
    return g->health == TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY;
}

static const Titan__Internal__GpuState *gpu_before(const struct agent_core *c, uint32_t slot)
{
    for (size_t i = 0; c->gpus && i < c->gpus->n_gpus; i++)
        if (c->gpus->gpus[i]->slot == slot)
            return c->gpus->gpus[i];
    return NULL;
}

static void log_gpu(const struct agent_core *c, const Titan__Internal__GpuState *g, struct agent_actions *out)
{
    const Titan__Internal__GpuState *before = gpu_before(c, g->slot);
    if (faulty(g) && !(before && faulty(before) && !strcmp(before->reason, g->reason)))
        agent_log(out, AGENT_ERROR, "slot out of use", "slot=%u gpu=\"%s\" uuid=%s reason=\"%s\"", g->slot, g->name,
                  g->uuid, g->reason);
    else if (!faulty(g) && before && faulty(before))
        agent_log(out, AGENT_INFO, "slot in use again", "slot=%u gpu=\"%s\" uuid=%s", g->slot, g->name, g->uuid);
}

static bool gpus_equal(const Titan__Internal__NodeGpus *a, const Titan__Internal__NodeGpus *b)
{
    const size_t n = titan__internal__node_gpus__get_packed_size(a);
    if (titan__internal__node_gpus__get_packed_size(b) != n)
        return false;
    _cleanup_free_ uint8_t *bytes = malloc(2 * n + 1);
    titan_assert(bytes);
    (void)titan__internal__node_gpus__pack(a, bytes);
    (void)titan__internal__node_gpus__pack(b, bytes + n);
    return memcmp(bytes, bytes + n, n) == 0;
}

void agent_gpus_report(struct agent_core *c, struct agent_actions *out)
{
    if (!c->gpus || c->gpus_reported || !agent_core_registered(c))
        return;
    MESSAGE(m, GPUS, gpus, c->gpus);
    agent_send(c, &m, out);
    c->gpus_reported = true;
}

void agent_core_gpus(struct agent_core *c, const Titan__Internal__NodeGpus *gpus, int64_t now,
                     struct agent_actions *out)
{
    (void)now;
    if (c->gpus && gpus_equal(c->gpus, gpus))
        return;
    for (size_t i = 0; i < gpus->n_gpus; i++) {
        titan_assert(gpus->gpus[i]->slot < c->options.slots);
        log_gpu(c, gpus->gpus[i], out);
    }
    if (c->gpus)
        titan__internal__node_gpus__free_unpacked(c->gpus, NULL);
    c->gpus = agent_message_copy(&gpus->base);
    c->gpus_reported = false;
    agent_gpus_report(c, out);
    titan_assert(c->gpus->n_gpus == gpus->n_gpus);
}
