/* SPDX-License-Identifier: Apache-2.0 */
/* footprint.c - shared segments of a program's communicators. */
#include "worker/plan/footprint.h"

#include "base/cleanup.h"
#include "worker/comm/comm.h"

/* An edge is a communicator of two ranks. A channel has an edge for what it sends and an edge for what it receives. */
static size_t of_edges(const struct program *p, enum channel channel)
{
    struct comm_use use[2] = {0};
    size_t bytes = 0;

    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        if (a->channel != (int)channel || (a->op != OP_SEND && a->op != OP_RECV))
            continue;
        struct comm_use *const u = &use[a->op == OP_RECV];
        const int64_t n = a->op == OP_SEND ? action_params(p, a)->send.bytes : action_params(p, a)->recv.bytes;
        titan_assert(n >= 0);
        u->message = MAX(u->message, (size_t)n);
        u->ways = 1;
    }
    for (int side = 0; side < 2; side++)
        bytes += use[side].ways > 0 ? comm_shm_touched(2, &use[side]) : 0;
    return bytes;
}

static size_t of_channel(const struct program *p, enum channel channel)
{
    const int members = mesh_group_size(&p->mesh, channel_group(channel));
    struct comm_use use = {0};
    bool used = channel == CHANNEL_WORLD;

    if (channel_group(channel) == GROUP_PP)
        return of_edges(p, channel);
    if (members < 2)
        return 0;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        const struct operand *const o = action_operands(p, a);
        const struct op_params *const q = action_params(p, a);
        if (a->channel != (int)channel)
            continue;
        used = true;
        for (int k = 0; k < a->n_operands; k++) { /* parts of a bucket go one after the other */
            const size_t sent = o[k].access & ACCESS_READ ? o[k].bytes : 0;
            if (a->op == OP_ALL_GATHER)
                use.gathered = MAX(use.gathered, sent);
            if (a->op == OP_REDUCE_SCATTER || a->op == OP_ALL_TO_ALL)
                use.exchanged = MAX(use.exchanged, sent / (size_t)members);
            if (a->op == OP_ALL_REDUCE || a->op == OP_AGREE)
                use.summed = MAX(use.summed, sent);
        }
        if (a->op == OP_SHIFT) {
            use.message = MAX(use.message, (size_t)q->shift.bytes);
            use.ways = MAX(use.ways, 2);
        } else if (a->op == OP_ALL_TO_ALL_V) { /* expected rows, over all members */
            use.message = MAX(use.message, (size_t)(q->all_to_all_v.bytes * q->all_to_all_v.rows) / (size_t)members);
            use.ways = 2 * (members - 1);
        }
    }
    return used ? comm_shm_touched(members, &use) : 0;
}

size_t footprint_of_peers(const struct machine *m, const struct program *p, size_t copy_bytes)
{
    const struct comm_use gradients = {.message = copy_bytes, .ways = 2};
    size_t bytes = copy_bytes > 0 ? comm_shm_touched(p->mesh.world, &gradients) : 0;

    titan_assert(p->mesh.world >= 1);
    if (p->mesh.world == 1)
        return 0;
    if (!m->host_memory)
        return m->memory_peers;
    for (int c = 0; c < CHANNEL_COUNT; c++)
        bytes += of_channel(p, (enum channel)c);
    return bytes;
}
