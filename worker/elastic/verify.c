/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - hashes of shards, and what they say of each other. */
#include "worker/elastic/verify.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/progress.h"
#include "worker/elastic/peer_values.h"

/* --- hashes ------------------------------------------------------------------------------------------------------- */

/* Between waits for the stream, each of which is progress. */
#define HASHED_BYTES ((size_t)256 << 20)
#define HASHED_SLICES 128

/* Of the first `tensors` specs, added to *sum (device). */
static titan_status hash_slices(const struct train_state *shard, const struct shard_slice *slices, int n, int tensors,
                                uint64_t *sum, struct stream *s, struct titan_error *err)
{
    const struct device_ops *ops = shard->device->ops;
    size_t bytes = 0;
    int ahead = 0;

    for (int i = 0; i < n && slices[i].tensor < tensors; i++) {
        const struct shard_slice *p = &slices[i];
        enum dtype type;
        const void *const data = state_slice(shard, p, &type);
        progress_action();
        TRY(ops->hash(s, sum, data, type, p->rows, p->cols, (uint64_t)p->tensor << 40 | (uint64_t)p->row, p->col));
        bytes += (size_t)(p->rows * p->cols) * dtype_bytes(type);
        if (bytes < HASHED_BYTES && ++ahead < HASHED_SLICES)
            continue;
        TRY(ops->stream_sync(s, err));
        bytes = 0;
        ahead = 0;
    }
    return TITAN_OK;
}

/* The rank of the first replica that holds the same. */
static int first_replica(const struct mesh *mesh, int rank)
{
    int at[AXIS_COUNT];

    mesh_coords(mesh, rank, at);
    titan_assert(rank >= 0 && rank < mesh->world);
    at[AXIS_DP_REPLICATE] = 0;
    return mesh_rank(mesh, at);
}

titan_status shard_hash(const struct train_state *shard, struct stream *s, struct shard_hash *ret,
                        struct titan_error *err)
{
    const struct layout *l = shard->layout;
    const struct device_ops *ops = shard->device->ops;
    _cleanup_free_ struct shard_slice *all = NULL, *owned = NULL;
    uint64_t sums[2];
    int n_all, n_owned;

    titan_assert(shard->rank >= 0 && shard->rank < l->mesh.world);
    TRY(layout_slices(l, shard->rank, NULL, NULL, NULL, NULL, &all, &n_all, err));
    TRY(layout_owned_slices(l, first_replica(&l->mesh, shard->rank), NULL, NULL, &owned, &n_owned, err));
    TRY(ops->zero(s, shard->hashes, sizeof sums));
    TRY(hash_slices(shard, all, n_all, INT32_MAX, &shard->hashes[0], s, err));
    TRY(hash_slices(shard, owned, n_owned, l->model->n_tensors, &shard->hashes[1], s, err));
    TRY(ops->copy(s, sums, shard->hashes, sizeof sums));
    TRY(ops->stream_sync(s, err));
    *ret = (struct shard_hash){.whole = sums[0], .parameters = sums[1]};
    return TITAN_OK;
}

/* --- comparison --------------------------------------------------------------------------------------------------- */

/* 64 bits in doubles, exactly. */
struct halves {
    double low, high;
};

static struct halves halve(uint64_t x)
{
    return (struct halves){(double)(uint32_t)x, (double)(x >> 32)};
}

static uint64_t join(struct halves h)
{
    return (uint64_t)h.high << 32 | (uint64_t)h.low;
}

/* What a rank says of a shard that it has; rank -1: it has none. */
struct claim {
    double rank;
    struct halves whole, parameters;
};

struct statement {
    struct claim own, owner;
    struct halves bytes;
};

static titan_status check_statement(int rank, const struct statement *x, struct titan_error *err)
{
    const double most = UINT32_MAX;
    const struct peer_value reported[] = {{"own.rank", x->own.rank, -1, COMM_WORLD_MAX},
                                          {"own.whole.low", x->own.whole.low, 0, most},
                                          {"own.whole.high", x->own.whole.high, 0, most},
                                          {"own.parameters.low", x->own.parameters.low, 0, most},
                                          {"own.parameters.high", x->own.parameters.high, 0, most},
                                          {"owner.rank", x->owner.rank, -1, COMM_WORLD_MAX},
                                          {"owner.whole.low", x->owner.whole.low, 0, most},
                                          {"owner.whole.high", x->owner.whole.high, 0, most},
                                          {"owner.parameters.low", x->owner.parameters.low, 0, most},
                                          {"owner.parameters.high", x->owner.parameters.high, 0, most},
                                          {"bytes.low", x->bytes.low, 0, most},
                                          {"bytes.high", x->bytes.high, 0, most}};

    return peer_values_check("comparing states", rank, reported, ARRAY_SIZE(reported), err);
}

static titan_status claim(const struct train_state *shard, struct stream *s, struct claim *ret, struct titan_error *err)
{
    struct shard_hash h = {0};

    if (shard)
        TRY(shard_hash(shard, s, &h, err));
    *ret = (struct claim){shard ? shard->rank : -1, halve(h.whole), halve(h.parameters)};
    return TITAN_OK;
}

static bool same(const struct claim *a, const struct claim *b)
{
    return join(a->whole) == join(b->whole) && join(a->parameters) == join(b->parameters);
}

/* known: of every first replica's rank, which one has said it; grows. */
static titan_status compare_own(const struct mesh *mesh, const struct statement *all, int ranks,
                                const struct claim **known, struct titan_error *err)
{
    for (int i = 0; i < ranks; i++) {
        const struct claim *c = &all[i].own;
        if (c->rank < 0 || c->rank >= mesh->world)
            continue;
        const struct claim **first = &known[first_replica(mesh, (int)c->rank)];
        if (!*first)
            *first = c;
        else if (!same(*first, c))
            return titan_fail(err, TITAN_ECORRUPT, "the states of ranks %.0f and %.0f differ: they are replicas",
                              (*first)->rank, c->rank);
    }
    return TITAN_OK;
}

static void compare_copies(const struct mesh *mesh, const struct statement *all, int ranks, const struct claim **known,
                           struct verified *ret)
{
    for (int i = 0; i < ranks; i++) {
        const struct claim *c = &all[i].owner;
        if (c->rank < 0 || c->rank >= mesh->world)
            continue;
        const struct claim **first = &known[first_replica(mesh, (int)c->rank)];
        if (!*first) {
            *first = c;
        } else if (!same(*first, c) && !ret->copies_differ) {
            ret->copies_differ = true;
            (void)titan_fail(&ret->why, TITAN_ECORRUPT,
                             "the state of rank %.0f and the copy of it that its buddy, rank %.0f, holds differ",
                             c->rank, all[i].own.rank);
        }
    }
}

titan_status verify_shards(const struct mesh *mesh, const struct held_shards *mine, uint64_t bytes,
                           const struct device_handle *device, const struct comm_ops *ops, struct comm *comm, int ranks,
                           struct stream *s, struct verified *ret, struct titan_error *err)
{
    struct statement me = {.bytes = halve(bytes)};
    _cleanup_free_ struct statement *all = calloc((size_t)ranks, sizeof *all);
    _cleanup_free_ const struct claim **known = calloc((size_t)mesh->world, sizeof *known);

    titan_assert(join(me.bytes) == bytes);
    titan_assert(ranks >= 1 && (mine->own || !mine->copy));
    if (!all || !known)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    TRY(claim(mine->own, s, &me.own, err));
    TRY(claim(mine->copy, s, &me.owner, err));
    TRY(holdings_gather_doubles(device, ops, comm, ranks, &me.own.rank, sizeof me / sizeof(double), &all[0].own.rank, s,
                                err));
    for (int i = 0; i < ranks; i++)
        TRY(check_statement(i, &all[i], err));
    *ret = (struct verified){0};
    TRY(compare_own(mesh, all, ranks, known, err));
    compare_copies(mesh, all, ranks, known, ret);
    for (int r = 0; r < mesh->world; r++)
        ret->parameters += known[r] ? join(known[r]->parameters) : 0;
    for (int i = 0; i < ranks; i++)
        ret->bytes += join(all[i].bytes);
    return TITAN_OK;
}
