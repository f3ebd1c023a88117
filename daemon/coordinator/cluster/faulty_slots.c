/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/cluster/faulty_slots.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/records/node_slots.h"

static bool faulty(const Titan__Internal__GpuState *g)
{
    return g && g->health == TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY;
}

static Titan__Internal__GpuState *gpu_of(const Titan__Internal__NodeGpus *gpus, uint32_t slot)
{
    for (size_t i = 0; gpus && i < gpus->n_gpus; i++)
        if (gpus->gpus[i]->slot == slot)
            return gpus->gpus[i];
    return NULL;
}

static void emit_slot(struct core *c, const struct noderec *n, const Titan__Internal__GpuState *g, bool out)
{
    struct detail d;
    detail_begin(&d);
    json_put_uint(&d.w, "slot", g->slot);
    json_put_string(&d.w, "uuid", g->uuid);
    if (out)
        json_put_string(&d.w, "reason", g->reason);
    emit_event(
        c, NULL,
        (struct emit){
            .type = out ? "slot.quarantined" : "slot.released",
            .message = out ? batch_printf(c->out, "node %s slot %u takes no workers: %s", n->name, g->slot, g->reason)
                           : batch_printf(c->out, "node %s slot %u takes workers again", n->name, g->slot),
            .node = n,
            .detail = detail_end(c, &d)});
}

static void slots_received(struct core *c, struct noderec *n, const Titan__Internal__NodeGpus *m)
{
    Titan__Internal__NodeGpus *before = n->gpus;
    n->gpus = NULL;
    if (m) {
        const size_t size = titan__internal__node_gpus__get_packed_size(m);
        _cleanup_free_ uint8_t *bytes = core_alloc(size + 1);
        (void)titan__internal__node_gpus__pack(m, bytes);
        n->gpus = titan__internal__node_gpus__unpack(NULL, size, bytes);
        titan_assert(n->gpus && n->gpus->n_gpus == m->n_gpus);
    }
    for (size_t i = 0; m && i < n->gpus->n_gpus; i++) {
        Titan__Internal__GpuState *g = n->gpus->gpus[i], *old = gpu_of(before, g->slot);
        const bool was = faulty(old);
        if (was && g->health == TITAN__INTERNAL__GPU_HEALTH__GPU_UNKNOWN) {
            /* A new agent has not checked this GPU yet. Until it has, the old agent's report holds. */
            char *const reason = g->reason;
            g->health = old->health;
            g->reason = old->reason;
            old->reason = reason;
        }
        if (faulty(g) != was)
            emit_slot(c, n, g, faulty(g));
    }
    for (size_t i = 0; before && i < before->n_gpus; i++)
        if (faulty(before->gpus[i]) && !gpu_of(n->gpus, before->gpus[i]->slot))
            emit_slot(c, n, before->gpus[i], false);
    if (before)
        titan__internal__node_gpus__free_unpacked(before, NULL);
    c->slots_changed = true;
}

static void ask_to_look(struct core *c, struct noderec *n)
{
    if (n->session && node_faulty_gpu(n))
        send_release_gpus(c, n);
}

void faulty_slots_lift(struct core *c, struct noderec *n)
{
    n->lifting = node_faulty_gpu(n) != NULL;
    ask_to_look(c, n);
}

void faulty_slots_registered(struct core *c, struct noderec *n, const Titan__Internal__NodeGpus *m)
{
    slots_received(c, n, m);
    if (n->lifting)
        ask_to_look(c, n);
}

void faulty_slots_report(struct core *c, struct noderec *n, const Titan__Internal__NodeGpus *m)
{
    n->lifting = false;
    slots_received(c, n, m);
}
