/* SPDX-License-Identifier: Apache-2.0 */
/* footprint.c - shared segments of a program's communicators. */
#include "worker/plan/footprint.h"

#include "base/cleanup.h"
#include "worker/comm/comm.h"

static size_t of_channel(const struct program *p, enum channel channel)
{
    const int members = mesh_group_size(&p->mesh, channel_group(channel));
    /* An edge is a communicator of two ranks. A pipeline channel has two edges: for the messages it sends and for the
     * messages it receives. */
    const bool edges = channel_group(channel) == GROUP_PP;
    struct comm_use use = {0}, sent = {0}, received = {0};
    bool used = channel == CHANNEL_WORLD;

    if (members < 2)
        return 0;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        const struct operand *const o = action_operands(p, a);
        const struct op_params *const q = action_params(p, a);
        if (a->channel != (int)channel)
            continue;
        used = true;
        for (int k = 0; k < a->n_operands; k++) { /* a bucket's parts are sent in turn: the largest counts */
            const size_t bytes = o[k].access & ACCESS_READ ? o[k].bytes : 0;
            if (a->op == OP_ALL_GATHER)
                use.gathered = MAX(use.gathered, bytes);
            if (a->op == OP_REDUCE_SCATTER || a->op == OP_ALL_TO_ALL)
                use.exchanged = MAX(use.exchanged, bytes / (size_t)members);
            if (a->op == OP_ALL_REDUCE || op_is_agreement((enum op)a->op))
                use.summed = MAX(use.summed, bytes);
        }
        if (a->op == OP_SEND) {
            sent.message = MAX(sent.message, (size_t)q->send.bytes);
            sent.ways = 1;
        } else if (a->op == OP_RECV) {
            received.message = MAX(received.message, (size_t)q->recv.bytes);
            received.ways = 1;
        } else if (a->op == OP_SHIFT) {
            use.message = MAX(use.message, (size_t)q->shift.bytes);
            use.ways = MAX(use.ways, 2);
        } else if (a->op == OP_ROTATE) {
            use.message = MAX(use.message, (size_t)q->rotate.piece);
            use.ways = MAX(use.ways, 2);
        } else if (a->op == OP_TO_OWNERS || a->op == OP_FROM_OWNERS) { /* a whole range may go to one owner */
            use.message = MAX(use.message, (size_t)q->to_owners.n * sizeof(float));
            use.ways = 2 * (members - 1);
        } else if (a->op == OP_ALL_TO_ALL_V) { /* the operand has the expected rows of all members */
            use.message = MAX(use.message, (size_t)(q->all_to_all_v.bytes * q->all_to_all_v.rows) / (size_t)members);
            use.ways = 2 * (members - 1);
        }
    }
    if (edges)
        return (sent.ways > 0 ? comm_shm_touched(2, &sent) : 0) +
               (received.ways > 0 ? comm_shm_touched(2, &received) : 0);
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
