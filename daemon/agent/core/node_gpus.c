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
    const size_t bytes = titan__internal__node_gpus__get_packed_size(gpus);
    if (c->gpus && titan__internal__node_gpus__get_packed_size(c->gpus) == bytes) {
        _cleanup_free_ uint8_t *both = malloc(2 * bytes + 1);
        titan_assert(both);
        (void)titan__internal__node_gpus__pack(c->gpus, both);
        (void)titan__internal__node_gpus__pack(gpus, both + bytes);
        if (memcmp(both, both + bytes, bytes) == 0)
            return;
    }
    for (size_t i = 0; i < gpus->n_gpus; i++) {
        const Titan__Internal__GpuState *g = gpus->gpus[i], *before = NULL;
        titan_assert(g->slot < c->options.slots);
        for (size_t k = 0; c->gpus && k < c->gpus->n_gpus && !before; k++)
            before = c->gpus->gpus[k]->slot == g->slot ? c->gpus->gpus[k] : NULL;
        const bool was_faulty = before && faulty(before);
        if (faulty(g) && !(was_faulty && !strcmp(before->reason, g->reason)))
            agent_log(out, AGENT_ERROR, "slot out of use", "slot=%u gpu=\"%s\" uuid=%s reason=\"%s\"", g->slot, g->name,
                      g->uuid, g->reason);
        else if (!faulty(g) && was_faulty)
            agent_log(out, AGENT_INFO, "slot in use again", "slot=%u gpu=\"%s\" uuid=%s", g->slot, g->name, g->uuid);
    }
    if (c->gpus)
        titan__internal__node_gpus__free_unpacked(c->gpus, NULL);
    c->gpus = agent_message_copy(&gpus->base);
    c->gpus_reported = false;
    agent_gpus_report(c, out);
}
