/* SPDX-License-Identifier: Apache-2.0 */
/* shm.c - collectives among processes of one host through one shared segment.
 *
 * Every collective is a series of rounds. In a round, each member copies the data that others need into its slot of the
 * current buffer. Then all members meet at the barrier, and each reads the data it needs from the others' slots. While
 * one member reads round t, others already fill round t+1. A round moves at most a slot's bytes per member, so the data
 * stays in the caches.
 *
 * Transfers whose size only two members know (messages, shifts, uneven all-to-alls) use the channels between the two
 * instead. All transfers of one operation run at once. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/comm/core.h"
#include "worker/comm/reduce.h"
#include "worker/comm/shm/flow.h"
#include "worker/comm/shm/segment.h"

/* Up to this many bytes over all members, every member computes the whole sum: one barrier instead of two. */
#define EACH_SUMS_BYTES ((size_t)64 << 10)

struct comm {
    struct comm_core core; /* first, because the core passes a pointer to it, which is cast back */
    struct segment segment;
    uint32_t tick; /* buffers filled so far; the same on all members */
};

/* A chunk of a rank's data, which one round moves. */
struct chunk {
    size_t at, len; /* bytes */
    size_t share;   /* all-reduce: bytes that each rank sums */
    uint32_t tick;
};

static titan_status all_gather(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes,
                               struct titan_error *err)
{
    struct segment *seg = &c->segment;
    int rank = seg->rank, world = seg->world;
    size_t step = seg->layout.slot_bytes;
    for (size_t at = 0; at < bytes; at += step) {
        size_t len = MIN(step, bytes - at);
        uint32_t tick = c->tick++;
        memcpy(segment_slot(seg, tick, rank), send + at, len);
        TRY(segment_barrier(seg, err));
        for (int i = 1; i < world; i++) {
            int r = (rank + i) % world;
            memcpy(recv + (size_t)r * bytes + at, segment_slot(seg, tick, r), len);
        }
        if (recv + (size_t)rank * bytes != send)
            memcpy(recv + (size_t)rank * bytes + at, send + at, len);
    }
    return TITAN_OK;
}

/* One round of a reduce-scatter or an all-to-all: part j of every slot is for rank j. */
static titan_status exchange_parts(struct comm *c, const unsigned char *send, size_t bytes, const struct chunk *k,
                                   struct titan_error *err)
{
    struct segment *seg = &c->segment;
    size_t part = seg->layout.slot_bytes / (size_t)seg->world;
    titan_assert(k->len <= part && k->at + k->len <= bytes);
    unsigned char *slot = segment_slot(seg, k->tick, seg->rank);
    for (int i = 1; i < seg->world; i++) {
        size_t r = (size_t)((seg->rank + i) % seg->world);
        memcpy(slot + r * part, send + r * bytes + k->at, k->len);
    }
    return segment_barrier(seg, err);
}

static titan_status reduce_scatter(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes,
                                   enum dtype dt, struct titan_error *err)
{
    struct segment *seg = &c->segment;
    size_t rank = (size_t)seg->rank, part = seg->layout.slot_bytes / (size_t)seg->world;
    const void *src[COMM_WORLD_MAX];
    for (size_t at = 0; at < bytes; at += part) {
        const struct chunk k = {.at = at, .len = MIN(part, bytes - at), .tick = c->tick++};
        TRY(exchange_parts(c, send, bytes, &k, err));
        for (int r = 0; r < seg->world; r++)
            src[r] = r == seg->rank ? send + rank * bytes + at : segment_slot(seg, k.tick, r) + rank * part;
        reduce_sum(recv + at, src, seg->world, k.len / dtype_bytes(dt), dt);
    }
    return TITAN_OK;
}

static titan_status all_to_all(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes,
                               struct titan_error *err)
{
    struct segment *seg = &c->segment;
    size_t rank = (size_t)seg->rank, part = seg->layout.slot_bytes / (size_t)seg->world;
    for (size_t at = 0; at < bytes; at += part) {
        const struct chunk k = {.at = at, .len = MIN(part, bytes - at), .tick = c->tick++};
        TRY(exchange_parts(c, send, bytes, &k, err));
        for (int i = 1; i < seg->world; i++) {
            int r = (seg->rank + i) % seg->world;
            memcpy(recv + (size_t)r * bytes + at, segment_slot(seg, k.tick, r) + rank * part, k.len);
        }
        memcpy(recv + rank * bytes + at, send + rank * bytes + at, k.len);
    }
    return TITAN_OK;
}

static struct chunk chunk_at(const struct comm *c, size_t bytes, size_t i, uint32_t first_tick)
{
    size_t step = c->segment.layout.slot_bytes, world = (size_t)c->segment.world;
    struct chunk k = {.at = i * step, .tick = first_tick + (uint32_t)i};
    titan_assert(k.at < bytes);
    k.len = MIN(step, bytes - k.at);
    k.share = (k.len + world * 64 - 1) / (world * 64) * 64;
    return k;
}

/* Returns the bytes of rank r's share; *ret_at is where the share begins in the chunk. */
static size_t share_of(const struct chunk *k, int r, size_t *ret_at)
{
    titan_assert(r >= 0);
    *ret_at = MIN((size_t)r * k->share, k->len);
    return MIN(k->share, k->len - *ret_at);
}

static titan_status all_reduce(struct comm *c, unsigned char *data, size_t bytes, enum dtype dt,
                               struct titan_error *err)
{
    struct segment *seg = &c->segment;
    const size_t slot_bytes = seg->layout.slot_bytes, n = (bytes + slot_bytes - 1) / slot_bytes;
    const uint32_t first = c->tick;
    const void *src[COMM_WORLD_MAX];
    size_t at, len;

    if (bytes * (size_t)seg->world <= EACH_SUMS_BYTES) { /* each member reads all data and computes the whole sum */
        titan_assert(bytes <= slot_bytes);
        c->tick++;
        memcpy(segment_slot(seg, first, seg->rank), data, bytes);
        TRY(segment_barrier(seg, err));
        for (int r = 0; r < seg->world; r++)
            src[r] = segment_slot(seg, first, r);
        reduce_sum(data, src, seg->world, bytes / dtype_bytes(dt), dt);
        return TITAN_OK;
    }
    /* Between two barriers: fetch the sums of chunk i-1, sum this rank's share of chunk i, lay out chunk i+1. */
    c->tick += (uint32_t)n;
    for (size_t i = 0; i <= n + 1; i++) {
        if (i >= 2) {
            const struct chunk done = chunk_at(c, bytes, i - 2, first);
            for (int k = 1; k < seg->world; k++) {
                const int r = (seg->rank + k) % seg->world;
                len = share_of(&done, r, &at);
                memcpy(data + done.at + at, segment_slot(seg, done.tick, r) + at, len);
            }
        }
        if (i >= 1 && i <= n) { /* sums the own share into data and into the own slot, where the others fetch it */
            const struct chunk full = chunk_at(c, bytes, i - 1, first);
            len = share_of(&full, seg->rank, &at);
            unsigned char *own = segment_slot(seg, full.tick, seg->rank) + at;
            for (int r = 0; r < seg->world; r++)
                src[r] = r == seg->rank ? data + full.at + at : segment_slot(seg, full.tick, r) + at;
            reduce_sum(own, src, seg->world, len / dtype_bytes(dt), dt);
            memcpy(data + full.at + at, own, len);
        }
        if (i < n) { /* copies to the own slot the part that other ranks sum: all but the own share */
            const struct chunk next = chunk_at(c, bytes, i, first);
            unsigned char *slot = segment_slot(seg, next.tick, seg->rank);
            len = share_of(&next, seg->rank, &at);
            memcpy(slot, data + next.at, at);
            memcpy(slot + at + len, data + next.at + at + len, next.len - at - len);
        }
        if (i <= n)
            TRY(segment_barrier(seg, err));
    }
    return TITAN_OK;
}

static titan_status broadcast(struct comm *c, unsigned char *data, size_t bytes, int root, struct titan_error *err)
{
    struct segment *seg = &c->segment;
    titan_assert(root >= 0 && root < seg->world);
    size_t step = seg->layout.slot_bytes;
    for (size_t at = 0; at < bytes; at += step) {
        size_t len = MIN(step, bytes - at);
        uint32_t tick = c->tick++;
        if (seg->rank == root)
            memcpy(segment_slot(seg, tick, root), data + at, len);
        TRY(segment_barrier(seg, err));
        if (seg->rank != root)
            memcpy(data + at, segment_slot(seg, tick, root), len);
    }
    return TITAN_OK;
}

/* Sends to rank + distance and receives from rank - distance. */
static titan_status shift(struct comm *c, unsigned char *recv, const unsigned char *send, size_t bytes, int distance,
                          struct titan_error *err)
{
    struct segment *seg = &c->segment;
    titan_assert(distance >= 0 && distance < seg->world);
    if (distance == 0) {
        memcpy(recv, send, bytes);
        return TITAN_OK;
    }
    struct flow flows[] = {
        flow_out(send, bytes, (seg->rank + distance) % seg->world),
        flow_in(recv, bytes, (seg->rank - distance + seg->world) % seg->world),
    };
    return flows_run(seg, flows, ARRAY_SIZE(flows), err);
}

static titan_status all_to_all_v(struct comm *c, const struct comm_request *r, struct titan_error *err)
{
    struct segment *seg = &c->segment;
    size_t world = (size_t)seg->world, out = 0, in = 0;
    struct flow flows[2 * COMM_WORLD_MAX];
    for (size_t i = 0; i < world; i++) {
        size_t gives = (size_t)r->send_counts[i] * r->count, gets = (size_t)r->recv_counts[i] * r->count;
        flows[i] = flow_out((const unsigned char *)r->send + out, gives, (int)i);
        flows[world + i] = flow_in((unsigned char *)r->recv + in, gets, (int)i);
        out += gives;
        in += gets;
    }
    struct flow *self_out = &flows[seg->rank], *self_in = &flows[world + (size_t)seg->rank];
    memcpy(self_in->at, self_out->at, self_out->left);
    self_in->left = self_out->left = 0;
    return flows_run(seg, flows, 2 * seg->world, err);
}

static titan_status pass(struct comm_core *core, const struct comm_request *parts, int n, struct titan_error *err)
{
    titan_assert(n >= 1);
    struct segment *seg = &((struct comm *)core)->segment;
    struct flow few[8];
    _cleanup_free_ struct flow *many = (size_t)n > ARRAY_SIZE(few) ? malloc((size_t)n * sizeof(*many)) : NULL;
    struct flow *flows = many ? many : few;
    if ((size_t)n > ARRAY_SIZE(few) && !many)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d messages at once", n);
    for (int i = 0; i < n; i++) {
        const struct comm_request *r = &parts[i];
        flows[i] = r->op == COMM_SEND ? flow_out(r->send, r->count, r->peer) : flow_in(r->recv, r->count, r->peer);
        for (int j = i - 1; j >= 0 && flows[i].after < 0; j--)
            if (parts[j].op == r->op && parts[j].peer == r->peer)
                flows[i].after = j;
    }
    return flows_run(seg, flows, n, err);
}

static titan_status barrier(struct comm *c, struct titan_error *err)
{
    return segment_barrier(&c->segment, err);
}

static void wake(struct comm_core *core)
{
    segment_break(&((struct comm *)core)->segment, atomic_load(&core->revoked) ? TITAN_EREVOKED : TITAN_EPEER);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static const struct comm_transport transport = {
    .name = "shm",
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .all_to_all = all_to_all,
    .all_to_all_v = all_to_all_v,
    .shift = shift,
    .barrier = barrier,
    .pass = pass,
    .wake = wake,
};

static titan_status shm_open(const struct comm_config *config, const atomic_int *abort_flag, struct comm **ret,
                             struct titan_error *err)
{
    _cleanup_free_ struct comm *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a communicator");
    TRY(comm_core_init(&c->core, &transport, config->rank, config->world, config->device, err));
    titan_status status = TITAN_OK;
    if (config->world > 1)
        status = segment_open(&c->segment, config, abort_flag, &c->core.revoked, err);
    if (status != TITAN_OK) {
        comm_core_shut(&c->core);
        (void)titan_error_wrap(err, "communicator shm, rank %d of %d", config->rank, config->world);
        return status;
    }
    *ret = TAKE(c);
    return TITAN_OK;
}

static titan_status shm_split(struct comm *parent, const int *members, int n, const atomic_int *abort_flag,
                              struct comm **ret, struct titan_error *err)
{
    _cleanup_free_ struct comm *c = calloc(1, sizeof(*c));
    struct titan_error local = {0};
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a communicator");
    TRY(comm_core_init_child(&c->core, &parent->core, members, n, err));
    titan_status status = TITAN_OK;
    const struct segment_group group = {.members = members, .n = n, .abort_flag = abort_flag};
    if (n > 1)
        status = segment_split(&parent->segment, &c->segment, &group, &c->core.revoked, &local);
    else
        parent->segment.splits++;
    if (status != TITAN_OK) {
        comm_core_shut(&c->core);
        (void)titan_error_wrap(&local, "communicator shm, rank %d of %d: a group of %d", parent->core.rank,
                               parent->core.world, n);
        comm_core_fail(&parent->core, &local);
        if (err)
            *err = local;
        return status;
    }
    comm_core_adopt(&parent->core, &c->core);
    *ret = TAKE(c);
    return TITAN_OK;
}

static void shm_close(struct comm *c)
{
    if (!c)
        return;
    comm_core_shut(&c->core);
    if (c->core.world > 1)
        segment_close(&c->segment);
    free(c);
}

const struct comm_ops comm_shm = {.abi = TITAN_COMM_ABI,
                                  .name = "shm",
                                  .open = shm_open,
                                  .close = shm_close,
                                  .split = shm_split,
                                  COMM_CORE_OPERATIONS};
