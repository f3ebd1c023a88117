/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - hashes of shards, and their comparison. */
#include "worker/elastic/verify.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/progress.h"
#include "base/round.h"
#include "worker/elastic/peer_values.h"

/* --- hashes ------------------------------------------------------------------------------------------------------- */

/* Most bytes and slices between two waits for the stream. Each wait counts as progress. */
#define HASHED_BYTES ((size_t)256 << 20)
#define HASHED_SLICES 128

/* Adds the slices' hashes to *sum (device). */
static titan_status hash_slices(const struct train_state *shard, const struct shard_slice *slices, int n, uint64_t *sum,
                                struct stream *s, struct titan_error *err)
{
    const struct device_ops *ops = shard->device->ops;
    size_t bytes = 0;
    int ahead = 0;

    for (int i = 0; i < n; i++) {
        const struct shard_slice *p = &slices[i];
        enum dtype type;
        const struct layout *const l = shard->layout;
        const bool coded = l->coded && layout_spec_is_kept(l, p->tensor);
        if (layout_spec_is_each(l, p->tensor)) /* replicas differ there */
            continue;
        if (coded && !(l->kinds.owned >> (l->specs[p->tensor].kind - 1) & 1))
            continue;
        const void *const data = state_slice(shard, p, &type);
        const int64_t words = (int64_t)(moment_codes_bytes(round_up(p->rows * p->cols, MOMENT_BLOCK)) / sizeof(float));
        progress_action();
        TRY(ops->hash(s, ARGS(hash, .out = sum, .x = data, .dt = coded ? DTYPE_F32 : type, .rows = coded ? 1 : p->rows,
                              .cols = coded ? words : p->cols, .key = (uint64_t)p->tensor << 40 | (uint64_t)p->row,
                              .first = p->col)));
        bytes += (size_t)(p->rows * p->cols) * dtype_bytes(type);
        if (bytes < HASHED_BYTES && ++ahead < HASHED_SLICES)
            continue;
        TRY(ops->stream_sync(s, err));
        bytes = 0;
        ahead = 0;
    }
    return TITAN_OK;
}

/* Adds the hash of the codes and scales of all kinds of state: replicas have the same ones at the same places. */
static titan_status hash_codes(const struct train_state *shard, uint64_t *sum, struct stream *s,
                               struct titan_error *err)
{
    const struct layout *l = shard->layout;

    for (int u = 0; u < l->model->n_units; u++) {
        const size_t masters = (size_t)l->units[u].shard * dtype_bytes(shard->types.master);
        if (l->units[u].pp_rank != mesh_group_rank(&l->mesh, GROUP_PP, shard->rank))
            continue;
        progress_action();
        TRY(shard->device->ops->hash(
            s, ARGS(hash, .out = sum, .x = (char *)state_unit(shard, u) + masters, .dt = DTYPE_F32, .rows = 1,
                    .cols = (int64_t)((state_unit_bytes(shard, u) - masters) / sizeof(float)),
                    .key = UINT64_C(1) << 63 | (uint64_t)u << 40, .first = layout_begin(l, u, shard->rank))));
        TRY(shard->device->ops->stream_sync(s, err));
    }
    return TITAN_OK;
}

/* Returns the rank of the first replica that holds the same shard as `rank`. */
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
    while (n_owned > 0 && owned[n_owned - 1].tensor >= l->model->n_tensors) /* masters come first */
        n_owned--;
    TRY(ops->zero(s, shard->hashes, sizeof sums));
    TRY(hash_slices(shard, all, n_all, &shard->hashes[0], s, err));
    if (l->coded)
        TRY(hash_codes(shard, &shard->hashes[0], s, err));
    TRY(hash_slices(shard, owned, n_owned, &shard->hashes[1], s, err));
    TRY(ops->copy(s, sums, shard->hashes, sizeof sums));
    TRY(ops->stream_sync(s, err));
    *ret = (struct shard_hash){.whole = sums[0], .parameters = sums[1]};
    return TITAN_OK;
}

/* --- comparison --------------------------------------------------------------------------------------------------- */

/* A 64-bit number in two doubles, exactly. */
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

/* A rank's report on one of its shards; rank -1 = it has no such shard. */
struct claim {
    double rank;
    struct halves whole, parameters;
};

struct statement {
    struct claim own, owner;
    struct halves bytes;
};

static titan_status claim(const struct train_state *shard, struct stream *s, struct claim *ret, struct titan_error *err)
{
    struct shard_hash h = {0};

    if (shard)
        TRY(shard_hash(shard, s, &h, err));
    *ret = (struct claim){shard ? shard->rank : -1, halve(h.whole), halve(h.parameters)};
    return TITAN_OK;
}

titan_status verify_shards(const struct mesh *mesh, const struct held_shards *mine, uint64_t bytes,
                           const struct peer_ranks *ranks, struct verified *ret, struct titan_error *err)
{
    struct statement me = {.bytes = halve(bytes)};
    _cleanup_free_ struct statement *all = calloc((size_t)ranks->n, sizeof *all);
    /* known[r]: the first claim about the shard of rank r, where r is in the first replica. */
    _cleanup_free_ const struct claim **known = calloc((size_t)mesh->world, sizeof *known);

    titan_assert(join(me.bytes) == bytes && (mine->own || !mine->copy));
    if (!all || !known)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    TRY(claim(mine->own, ranks->s, &me.own, err));
    TRY(claim(mine->copy, ranks->s, &me.owner, err));
    TRY(peer_values_gather(ranks, &me, sizeof me, all, err));
    for (int i = 0; i < ranks->n; i++) {
        const struct statement *x = &all[i];
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
        TRY(peer_values_check("comparing states", i, reported, ARRAY_SIZE(reported), err));
    }

    *ret = (struct verified){0};
    for (int i = 0; i < 2 * ranks->n; i++) { /* all own shards, then all copies */
        const bool own = i < ranks->n;
        const struct statement *x = &all[i % ranks->n];
        const struct claim *c = own ? &x->own : &x->owner;
        if (c->rank < 0 || c->rank >= mesh->world)
            continue;
        const struct claim **first = &known[first_replica(mesh, (int)c->rank)];
        const bool differs =
            *first && (join((*first)->whole) != join(c->whole) || join((*first)->parameters) != join(c->parameters));
        *first = *first ? *first : c;
        if (differs && own)
            return titan_fail(err, TITAN_ECORRUPT, "the states of ranks %.0f and %.0f differ: they are replicas",
                              (*first)->rank, c->rank);
        if (differs && !ret->copies_differ)
            (void)titan_fail(&ret->why, TITAN_ECORRUPT,
                             "the state of rank %.0f and the copy of it that its buddy, rank %.0f, holds differ",
                             c->rank, x->own.rank);
        ret->copies_differ |= differs;
    }
    for (int r = 0; r < mesh->world; r++)
        ret->parameters += known[r] ? join(known[r]->parameters) : 0;
    for (int i = 0; i < ranks->n; i++)
        ret->bytes += join(all[i].bytes);
    return TITAN_OK;
}
