/* SPDX-License-Identifier: Apache-2.0 */
/* owed.c - errors of codes of gradients, added up where their range has its owner. */
#include "worker/elastic/owed.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/codecs.h"
#include "base/failpoint.h"

#define ROOM ((int64_t)16 << 20) /* bytes of the codes that a rank gets at a time */

struct owed {
    const struct resharding *what;
    const struct peer_ranks *ranks;
    const struct device_ops *dev;
    int rank;
    int64_t n;      /* values that a rank gets at a time: whole buckets of its own range */
    uint8_t *codes; /* device: of those values, a piece from each giver */
    float *part;    /* device: values that were decoded together */
    float *sum;     /* device (n) */
    int *givers;    /* old ranks whose errors of the unit go to the new rank, ascending */
    int n_givers;
    uint64_t *sent;
};

/* Finds the old ranks whose errors of a unit go to new rank b: of those that add to the same buffer, its replica's
 * share. Returns whether this rank has a part in that. */
static bool find_givers(struct owed *o, int unit, int b)
{
    const struct layout *const from = o->what->holdings->from, *const cut = o->what->cut;
    const int replicas = mesh_group_size(&cut->mesh, GROUP_REPLICATE);
    const int replica = mesh_group_rank(&cut->mesh, GROUP_REPLICATE, b);
    int all = 0;
    bool here = b == o->rank;

    for (int a = 0; a < from->mesh.world; a++)
        if (layout_adds(from, unit, a) && layout_same_buffer(from, a, cut, b, unit))
            o->givers[all++] = a;
    o->n_givers = 0;
    for (int i = 0; i < all; i++) {
        if ((int64_t)i * replicas / all != replica)
            continue;
        o->givers[o->n_givers++] = o->givers[i];
        here = here || o->what->holdings->holder[o->givers[i]] == o->rank;
    }
    return here && o->n_givers > 0;
}

/* Puts the codes of the buckets of an old rank's piece that have its values from `from` to `from` + n - 1 at `to`, as a
 * piece of their own. from: a bucket's first value. */
static titan_status pack(const struct owed *o, int unit, int piece, int64_t from, int64_t n, uint8_t *to)
{
    const struct train_state *const old = o->what->mine->own;
    const struct codec_places whole = codec_places(CODEC_LOCO, old->layout->units[unit].shard);
    const struct codec_places here = codec_places(CODEC_INT8, n);
    const uint8_t *const at = state_errors(old, unit) + (size_t)piece * (size_t)whole.error_bytes;
    const size_t bucket = (size_t)(from / CODEC_BUCKET);

    titan_assert(from % CODEC_BUCKET == 0 && n > 0 && from + n <= old->layout->units[unit].shard);
    TRY(o->dev->copy(o->ranks->s, to, at + bucket * sizeof(float), (size_t)here.buckets * sizeof(float)));
    return o->dev->copy(o->ranks->s, to + here.codes, at + whole.error_codes + from, (size_t)n);
}

/* Adds up what old ranks owe of a unit's values `begin` to `end` - 1, which are in one of their pieces. On new rank b,
 * ret (end - begin) gets the sum. */
static titan_status add_up(struct owed *o, int unit, int b, int64_t begin, int64_t end, float *ret,
                           struct titan_error *err)
{
    const struct unit_layout *const old = &o->what->holdings->from->units[unit];
    const int piece = (int)(begin / old->shard);
    const int64_t first = begin % old->shard / CODEC_BUCKET * CODEC_BUCKET;
    const int64_t last = end - piece * old->shard; /* one behind it */
    const int64_t n = MIN((last + CODEC_BUCKET - 1) / CODEC_BUCKET * CODEC_BUCKET, old->shard) - first;
    const size_t bytes = codec_bytes(CODEC_INT8, n);

    titan_assert(last <= old->shard && n <= o->n + 2 * CODEC_BUCKET);
    for (int i = 0; i < o->n_givers; i++) {
        const int sender = o->what->holdings->holder[o->givers[i]];
        uint8_t *const at = o->codes + (b == o->rank ? (size_t)i * bytes : 0);
        titan_assert(sender >= 0);
        if (sender == o->rank)
            TRY(pack(o, unit, piece, first, n, at));
        if (sender == o->rank && b != o->rank) {
            TRY(failpoint("state.message", NULL));
            TRY(o->ranks->ops->send(o->ranks->comm, at, bytes, b, o->ranks->s));
            *o->sent += bytes;
        } else if (sender != o->rank && b == o->rank) {
            TRY(o->ranks->ops->recv(o->ranks->comm, at, bytes, sender, o->ranks->s));
        }
    }
    if (b == o->rank) {
        TRY(o->dev->decode_sum(o->ranks->s, ARGS(decode_sum, .out = o->part, .codes = o->codes, .codec = CODEC_INT8,
                                                 .pieces = o->n_givers, .n = n)));
        TRY(o->dev->copy(o->ranks->s, ret, o->part + begin - piece * old->shard - first,
                         (size_t)(end - begin) * sizeof *ret));
    }
    return o->dev->stream_sync(o->ranks->s, err);
}

/* Codes n values of the sum, from a bucket's first one on, as this rank's error of its own piece. */
static titan_status keep(const struct owed *o, int unit, int64_t from, int64_t n)
{
    const struct train_state *const to = o->what->to;
    const struct unit_layout *const l = &to->layout->units[unit];
    const struct codec_places whole = codec_places(CODEC_LOCO, l->shard), here = codec_places(CODEC_INT8, n);
    uint8_t *const at = state_errors(to, unit) +
                        (size_t)mesh_group_rank(&to->layout->mesh, l->group, to->rank) * (size_t)whole.error_bytes;
    const size_t scales = (size_t)here.buckets * sizeof(float);

    TRY(o->dev->encode(o->ranks->s,
                       ARGS(encode, .codes = o->codes, .x = o->sum, .codec = CODEC_INT8, .pieces = 1, .n = n)));
    TRY(o->dev->copy(o->ranks->s, at + (size_t)(from / CODEC_BUCKET) * sizeof(float), o->codes, scales));
    return o->dev->copy(o->ranks->s, at + whole.error_codes + from, o->codes + here.codes, (size_t)n);
}

/* Brings new rank b what is owed of a unit, range by range. */
static titan_status bring(struct owed *o, int unit, int b, struct titan_error *err)
{
    const struct unit_layout *const from = &o->what->holdings->from->units[unit];
    const struct layout *const cut = o->what->cut;
    const int64_t begin = layout_begin(cut, unit, b), shard = cut->units[unit].shard;

    for (int64_t at = 0; at < shard; at += o->n) {
        const int64_t n = MIN(o->n, shard - at), end = MIN(begin + at + n, from->padded);
        if (b == o->rank)
            TRY(o->dev->zero(o->ranks->s, o->sum, (size_t)n * sizeof *o->sum));
        for (int64_t v = begin + at, next; v < end; v = next) {
            next = MIN((v / from->shard + 1) * from->shard, end);
            TRY(add_up(o, unit, b, v, next, o->sum + v - begin - at, err));
        }
        if (b == o->rank)
            TRY(keep(o, unit, at, n));
    }
    return TITAN_OK;
}

titan_status owed_transfer(const struct resharding *what, const struct peer_ranks *ranks, uint64_t *sent,
                           struct titan_error *err)
{
    const struct holdings *const h = what->holdings;
    const struct device_handle *const d = ranks->device;
    const int world = h->from->mesh.world;
    int64_t buckets = MAX(ROOM / (world * (CODEC_BUCKET + 16)) - 2, 1), largest = 1;
    for (int u = 0; u < what->cut->model->n_units; u++)
        largest = MAX(largest, codec_buckets(what->cut->units[u].shard));
    buckets = MIN(buckets, largest / 8 + 1); /* room is small beside the state */
    const int64_t most = buckets + 2;        /* of another mesh's buckets that have them */
    _cleanup_free_ int *givers = calloc((size_t)world, sizeof *givers);
    struct owed o = {.what = what,
                     .ranks = ranks,
                     .dev = d->ops,
                     .rank = h->view->rank,
                     .n = buckets * CODEC_BUCKET,
                     .givers = givers,
                     .sent = sent};
    titan_status status = givers ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "state: out of memory");

    titan_assert(h->settled);
    if (status == TITAN_OK)
        status =
            d->ops->alloc(d->dev, (size_t)world * codec_bytes(CODEC_INT8, most * CODEC_BUCKET), (void **)&o.codes, err);
    if (status == TITAN_OK)
        status = d->ops->alloc(d->dev, (size_t)(most * CODEC_BUCKET) * sizeof *o.part, (void **)&o.part, err);
    if (status == TITAN_OK)
        status = d->ops->alloc(d->dev, (size_t)o.n * sizeof *o.sum, (void **)&o.sum, err);
    for (int u = 0; u < what->cut->model->n_units && status == TITAN_OK; u++) {
        titan_assert(h->from->units[u].numel == what->cut->units[u].numel);
        if (layout_error_bytes(h->from, u) == 0 || layout_error_bytes(what->cut, u) == 0)
            continue;
        for (int b = 0; b < what->cut->mesh.world && status == TITAN_OK; b++)
            if (what->cut->units[u].pp_rank == mesh_group_rank(&what->cut->mesh, GROUP_PP, b) && find_givers(&o, u, b))
                status = bring(&o, u, b, err);
    }
    if (o.sum) {
        const titan_status sync = d->ops->stream_sync(ranks->s, err);
        d->ops->release(d->dev, o.sum);
        status = status == TITAN_OK ? sync : status;
    }
    if (o.part)
        d->ops->release(d->dev, o.part);
    if (o.codes)
        d->ops->release(d->dev, o.codes);
    return status;
}
