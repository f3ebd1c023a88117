/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.c - live resharding over the new epoch's communicator. */
#include "worker/elastic/transfer.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/round.h"
#include "base/failpoint.h"
#include "base/vec.h"

#define MESSAGE_MAX (INT64_C(16) << 20) /* bytes */
#define MESSAGE_ALIGN 8                 /* alignment of a box in a message */
#define COPIES_AHEAD 128                /* number of copies that are enqueued between two waits for the stream */

/* A box of a slice, in the state or in a message. */
struct parcel {
    void *data;
    enum dtype type;
    int64_t ld, rows, cols;
    bool adds;    /* the values are added to what is there */
    float factor; /* which is then multiplied by this; 0: not */
};

struct transfer {
    const struct holdings *holdings;
    const struct layout *from, *cut; /* old layout, new layout */
    const struct held_shards *mine;
    struct train_state *to; /* NULL: this rank departs */
    int rank;
    const struct comm_ops *ops;
    struct comm *comm;
    struct stream *s;
    const struct device_ops *dev;
    int *candidates; /* scratch, two entries per rank of the source epoch */
    uint64_t sent;   /* bytes */
    unsigned copies; /* enqueued */
    /* The current message. There is only one at a time. */
    char *message;
    int64_t room, used; /* bytes */
    int sender, receiver;
    struct parcel *parcels; /* to unpack */
    int n_parcels, cap_parcels;
    /* How values of the current slice come to the new state (parcel). */
    bool adds;
    float factor;
};

/* --- senders ------------------------------------------------------------------------------------------------------ */

struct pair {
    const struct transfer *t;
    int a, b; /* old rank, new rank */
};

/* Does old rank a give its data of a unit's share to new rank b? Several old ranks may hold the same data, and only one
 * of them gives it. */
static bool gives(void *arg, int unit, enum share share)
{
    const struct pair *p = arg;
    const struct transfer *t = p->t;
    const struct mesh *mesh = &t->from->mesh;
    const int stage = mesh->world / mesh->size[AXIS_PP], replicas = mesh_group_size(mesh, GROUP_REPLICATE);
    int n = replicas; /* old ranks that hold the same data as old rank a */

    if (share == SHARE_BIAS) {
        n = stage;
        for (int i = 0; i < stage; i++)
            t->candidates[i] = p->a / stage * stage + i;
    } else {
        mesh_group_members(mesh, GROUP_REPLICATE, p->a, t->candidates);
    }
    if (share != SHARE_BIAS && share != SHARE_CUT) {
        /* Replaces each replica by the members of the group that cuts the unit, which all hold the data. The loop
         * begins with the last replica, so that no entry is overwritten before it is read. */
        const enum group group = t->from->units[unit].cut;
        const int members = mesh_group_size(mesh, group);
        for (int i = replicas - 1; i >= 0; i--)
            mesh_group_members(mesh, group, t->candidates[i], t->candidates + i * members);
        n = replicas * members;
    }
    int present = 0;
    for (int i = 0; i < n; i++) {
        const int holder = t->holdings->holder[t->candidates[i]];
        if (holder == p->b)
            return t->candidates[i] == p->a;
        present += holder >= 0;
    }
    titan_assert(present > 0); /* holdings_gather() guarantees a holder */
    int turn = p->b % present;
    for (int i = 0; i < n; i++)
        if (t->holdings->holder[t->candidates[i]] >= 0 && turn-- == 0)
            return t->candidates[i] == p->a;
    return false;
}

/* Of the kind of state of which each replica has a value of its own, a new rank gets the mean of the replicas that hold
 * it: their sum in rank order, divided by their number. Returns the turn of old rank a among the *ret_of givers of a
 * unit's share, one of each replica; -1: it gives nothing. */
static int turn_of(const struct pair *p, int unit, enum share share, int *ret_of)
{
    const struct transfer *const t = p->t;
    const struct mesh *const mesh = &t->from->mesh;
    const int replicas = mesh_group_size(mesh, GROUP_REPLICATE);
    const enum group group = t->from->units[unit].cut;
    const int members = share == SHARE_CUT ? 1 : mesh_group_size(mesh, group);
    int *const among = t->candidates + replicas; /* the ranks of a replica that hold it alike */
    int turn = -1, n = 0;

    mesh_group_members(mesh, GROUP_REPLICATE, p->a, t->candidates);
    for (int i = 0; i < replicas; i++) {
        among[0] = t->candidates[i];
        if (members > 1)
            mesh_group_members(mesh, group, t->candidates[i], among);
        int first = 0;
        while (first < members && t->holdings->holder[among[first]] < 0)
            first++;
        if (first == members)
            continue;
        turn = among[first] == p->a ? n : turn;
        n++;
    }
    titan_assert(n > 0);
    *ret_of = n;
    return turn;
}

/* --- movement ----------------------------------------------------------------------------------------------------- */

static int64_t parcel_bytes(const struct parcel *p)
{
    const int64_t bytes = p->rows * p->cols * (int64_t)dtype_bytes(p->type);
    return (bytes + MESSAGE_ALIGN - 1) / MESSAGE_ALIGN * MESSAGE_ALIGN;
}

/* Returns the box `slice`, which is a part of slice p, in the state. */
static struct parcel in_state(const struct train_state *state, const struct shard_slice *p,
                              const struct shard_slice *slice)
{
    struct parcel ret = {.ld = p->cols, .rows = slice->rows, .cols = slice->cols};
    char *const first = state_slice(state, p, &ret.type);

    if (ret.type == DTYPE_U8) { /* blocks of codes: owners move matrices whole */
        titan_assert(slice->rows == p->rows && slice->cols == p->cols);
        ret.rows = 1;
        ret.cols = ret.ld = (int64_t)moment_codes_bytes(round_up(p->rows * p->cols, MOMENT_BLOCK));
        ret.data = first;
        return ret;
    }
    ret.data = first + shard_slice_place(p, slice) * (int64_t)dtype_bytes(ret.type);
    return ret;
}

/* Returns the same box in a message, where it is dense. */
static struct parcel in_message(const struct parcel *p, char *at)
{
    return (struct parcel){.data = at, .type = p->type, .ld = p->cols, .rows = p->rows, .cols = p->cols};
}

static titan_status copy_slice(struct transfer *t, const struct parcel *dst, const struct parcel *src)
{
    const int64_t rows = src->rows, cols = src->cols;

    titan_assert(dst->type == src->type && dst->rows == rows && dst->cols == cols);
    /* Waits before the queue is full: a full queue would block the host in a call that does not count as waiting. */
    if (++t->copies % COPIES_AHEAD == 0)
        TRY(t->dev->stream_sync(t->s, NULL));
    if (rows == 1 || (dst->ld == cols && src->ld == cols))
        return t->dev->copy(t->s, dst->data, src->data, (size_t)(rows * cols) * dtype_bytes(src->type));
    return t->dev->copy_2d(t->s, ARGS(strided, .dst = dst->data, .ldd = dst->ld, .src = src->data, .lds = src->ld,
                                      .dt = src->type, .rows = rows, .cols = cols, .repeat = 1));
}

/* Copies or adds a box of a message, or of the old state, to the new state. */
static titan_status bring(struct transfer *t, const struct parcel *dst, const struct parcel *src)
{
    if (!dst->adds)
        TRY(copy_slice(t, dst, src));
    else
        TRY(t->dev->add_2d(t->s, ARGS(strided, .dst = dst->data, .ldd = dst->ld, .src = src->data, .lds = src->ld,
                                      .dt = src->type, .rows = src->rows, .cols = src->cols, .repeat = 1)));
    for (int64_t r = 0; r < dst->rows && dst->factor > 0; r++) {
        float *const row = (float *)dst->data + r * dst->ld;
        titan_assert(dst->type == DTYPE_F32);
        if (++t->copies % COPIES_AHEAD == 0)
            TRY(t->dev->stream_sync(t->s, NULL));
        TRY(t->dev->scale(t->s, row, row, DTYPE_F32, dst->factor, (size_t)dst->cols));
    }
    return TITAN_OK;
}

/* Sends the packed message, or receives a message and unpacks it. */
static titan_status flush(struct transfer *t)
{
    const size_t bytes = (size_t)t->used;
    char *at = t->message;

    t->used = 0;
    if (bytes == 0)
        return TITAN_OK;
    titan_assert(t->sender != t->receiver && (t->rank == t->sender || t->rank == t->receiver));
    TRY(failpoint("state.message", NULL));
    if (t->rank == t->sender) {
        t->sent += bytes;
        return t->ops->send(t->comm, t->message, bytes, t->receiver, t->s);
    }
    TRY(t->ops->recv(t->comm, t->message, bytes, t->sender, t->s));
    for (int i = 0; i < t->n_parcels; i++) {
        const struct parcel packed = in_message(&t->parcels[i], at);
        TRY(bring(t, &t->parcels[i], &packed));
        at += parcel_bytes(&packed);
    }
    titan_assert((size_t)(at - t->message) == bytes);
    t->n_parcels = 0;
    return TITAN_OK;
}

/* Sends a piece of this rank's state, or receives it. */
static titan_status pass(struct transfer *t, const struct parcel *all, struct titan_error *err)
{
    const int64_t most = t->room / (int64_t)sizeof(float); /* elements of a message, of the widest type */
    const int64_t cols = MIN(all->cols, most), rows = MAX(most / cols, 1);

    for (int64_t r = 0; r < all->rows; r += rows)
        for (int64_t c = 0; c < all->cols; c += cols) {
            struct parcel here = *all;
            here.data = (char *)all->data + (r * all->ld + c) * (int64_t)dtype_bytes(all->type);
            here.rows = MIN(rows, all->rows - r);
            here.cols = MIN(cols, all->cols - c);
            const int64_t n = parcel_bytes(&here);
            titan_assert(n > 0 && n <= t->room);
            if (t->used + n > t->room)
                TRY(flush(t));
            const struct parcel packed = in_message(&here, t->message + t->used);
            t->used += n;
            if (t->rank == t->sender)
                TRY(copy_slice(t, &packed, &here));
            else if (!VEC_PUSH(t->parcels, t->n_parcels, t->cap_parcels, here)) /* to unpack it */
                return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
        }
    return TITAN_OK;
}

/* Moves the overlap of slice x of the old state and slice y of the new state. */
static titan_status move_common(struct transfer *t, const struct train_state *old, const struct shard_slice *x,
                                const struct shard_slice *y, struct titan_error *err)
{
    const struct shard_slice all = shard_slice_overlap(x, y);

    if (all.rows == 0)
        return TITAN_OK;
    struct parcel to = t->rank == t->receiver ? in_state(t->to, y, &all) : in_state(old, x, &all);
    to.adds = t->adds;
    to.factor = t->factor;
    if (t->sender != t->receiver)
        return pass(t, &to, err);
    const struct parcel from = in_state(old, x, &all);
    return bring(t, &to, &from);
}

/* Returns `bytes` of codes in the state, or nothing for a state that is not here. */
static struct parcel codes_in(const struct train_state *state, int tensor, int kind, int64_t from, int64_t bytes)
{
    return (struct parcel){.data = state ? state_block(state, tensor, kind, from) : NULL,
                           .type = DTYPE_U8,
                           .ld = bytes,
                           .rows = 1,
                           .cols = bytes};
}

/* Moves the blocks of codes that old rank a gives new rank b, as they are: both meshes cut tensors alike, so a block
 * has the same elements in both. */
static titan_status move_blocks(struct transfer *t, const struct train_state *old, struct pair *pair,
                                struct titan_error *err)
{
    const struct layout *const x = t->from, *const y = t->cut;
    const struct model *const m = x->model;

    titan_assert(x->mesh.size[AXIS_TP] == y->mesh.size[AXIS_TP] && x->mesh.ep == y->mesh.ep);
    for (int i = 0; i < m->n_tensors; i++) {
        const int u = m->tensors[i].unit;
        const bool whole = m->tensors[i].split == SPLIT_NONE;
        const int64_t begin_x = layout_begin(x, u, pair->a), begin_y = layout_begin(y, u, pair->b);
        const int64_t from = MAX(MAX(begin_x, begin_y), x->tensors[i].offset);
        const int64_t to = MIN(MIN(begin_x + x->units[u].shard, begin_y + y->units[u].shard), layout_blocks_end(x, i));
        const int64_t blocks = (to - from + MOMENT_BLOCK - 1) / MOMENT_BLOCK;
        titan_assert(x->tensors[i].offset == y->tensors[i].offset);
        if (from >= to || x->units[u].pp_rank != mesh_group_rank(&x->mesh, GROUP_PP, pair->a) ||
            y->units[u].pp_rank != mesh_group_rank(&y->mesh, GROUP_PP, pair->b) ||
            (!whole && !layout_same_buffer(x, pair->a, y, pair->b, u)) ||
            !gives(pair, u, whole ? SHARE_WHOLE : SHARE_CUT))
            continue;
        for (int k = 0; k < x->kinds.n; k++) {
            const int64_t bytes = (int64_t)moment_codes_bytes(blocks * MOMENT_BLOCK);
            if (!((layout_kinds(x, i) & ~x->kinds.owned) >> k & 1))
                continue;
            const struct parcel source = codes_in(t->rank == t->sender ? old : NULL, i, k, from, bytes);
            const struct parcel target = codes_in(t->rank == t->receiver ? t->to : NULL, i, k, from, bytes);
            if (t->sender == t->receiver)
                TRY(copy_slice(t, &target, &source));
            else
                TRY(pass(t, source.data ? &source : &target, err));
        }
    }
    return TITAN_OK;
}

/* Adds what old rank a has of the kind of state of which each replica has a value of its own. */
static titan_status move_means(struct transfer *t, const struct train_state *old, const struct pair *pair,
                               const struct shard_slice *take, int n_take, struct titan_error *err)
{
    const struct layout *const l = t->from;
    _cleanup_free_ struct shard_slice *all = NULL;
    int n, of, first = 0;

    TRY(layout_slices(l, pair->a, NULL, NULL, NULL, NULL, &all, &n, err));
    for (int i = 0; i < n; i++) {
        if (!layout_spec_is_each(l, all[i].tensor))
            continue;
        const struct model_tensor *const tensor = &l->model->tensors[l->specs[all[i].tensor].tensor];
        const int turn = turn_of(pair, tensor->unit, tensor->split == SPLIT_NONE ? SHARE_WHOLE : SHARE_CUT, &of);
        if (turn < 0)
            continue;
        t->adds = turn > 0;
        t->factor = of > 1 && turn + 1 == of ? 1.0f / (float)of : 0;
        while (first < n_take && take[first].tensor < all[i].tensor)
            first++;
        for (int j = first; j < n_take && take[j].tensor == all[i].tensor; j++)
            TRY(move_common(t, old, &all[i], &take[j], err));
    }
    t->adds = false;
    t->factor = 0;
    return TITAN_OK;
}

/* Moves all data that old rank a gives new rank b. This rank is one of the two. */
static titan_status move(struct transfer *t, int a, int b, struct titan_error *err)
{
    struct pair pair = {t, a, b};
    _cleanup_free_ struct shard_slice *give = NULL, *take = NULL;
    int n_give, n_take, first = 0;

    t->sender = t->holdings->holder[a];
    t->receiver = b;
    titan_assert(t->used == 0 && t->n_parcels == 0);
    titan_assert(t->sender >= 0 && (t->sender == t->rank || t->receiver == t->rank));
    const bool here = t->sender == t->rank, there = b == t->rank;
    const struct train_state *const old = t->holdings->copied[a] ? t->mine->copy : t->mine->own;
    titan_assert(!here || (old && old->rank == a));
    titan_assert(!there || t->to);
    TRY(layout_slices(t->from, a, NULL, NULL, gives, &pair, &give, &n_give, err));
    TRY(layout_slices(t->cut, b, NULL, NULL, NULL, NULL, &take, &n_take, err));
    if (t->from->coded)
        TRY(move_blocks(t, old, &pair, err));
    for (int i = 0; i < n_give; i++) {
        const bool kept = layout_spec_is_kept(t->from, give[i].tensor);
        const bool owned = kept && t->from->kinds.owned >> (t->from->specs[give[i].tensor].kind - 1) & 1;
        if ((t->from->coded && kept && !owned) || layout_spec_is_each(t->from, give[i].tensor))
            continue;
        while (first < n_take && take[first].tensor < give[i].tensor)
            first++;
        for (int j = first; j < n_take && take[j].tensor == give[i].tensor; j++)
            TRY(move_common(t, old, &give[i], &take[j], err));
    }
    if (t->from->kinds.each)
        TRY(move_means(t, old, &pair, take, n_take, err));
    return flush(t);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

titan_status state_transfer(const struct resharding *what, const struct peer_ranks *ranks, uint64_t *ret_sent,
                            struct titan_error *err)
{
    const struct holdings *h = what->holdings;
    const struct epoch_view *view = h->view;
    struct transfer t = {.holdings = h,
                         .from = h->from,
                         .cut = what->cut,
                         .mine = what->mine,
                         .to = what->to,
                         .rank = view->rank,
                         .ops = ranks->ops,
                         .comm = ranks->comm,
                         .s = ranks->s,
                         .dev = ranks->device->ops,
                         .candidates = calloc(2 * (size_t)view->holders + 1, sizeof(int))};
    int64_t largest = 0;

    titan_assert((t.to != NULL) == (t.rank < view->world) && ranks->n == h->ranks);
    titan_assert(!t.to || (t.to->rank == t.rank && t.to->step == 0));
    /* All ranks have the same message size, which is small beside the state. */
    for (int p = 0; p < t.from->mesh.size[AXIS_PP]; p++)
        largest = MAX(largest, t.from->total[p]);
    titan_assert(largest > 0);
    t.room = MIN((largest / 64 + 1) * MESSAGE_ALIGN, MESSAGE_MAX);
    titan_status status = t.candidates ? t.dev->alloc(ranks->device->dev, (size_t)t.room, (void **)&t.message, err)
                                       : titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    const bool opened = status == TITAN_OK;
    for (int a = 0; a < view->holders; a++)
        for (int b = 0; b < view->world && status == TITAN_OK; b++)
            if (h->holder[a] >= 0 && (h->holder[a] == t.rank || b == t.rank))
                status = move(&t, a, b, err);
    if (status == TITAN_OK && t.to)
        status = state_refresh_shadow(t.to, t.s);
    if (opened) {
        const titan_status sync = t.dev->stream_sync(t.s, err);
        t.dev->release(ranks->device->dev, t.message);
        status = sync != TITAN_OK ? sync : status;
    }
    free(t.candidates);
    free(t.parcels);
    TRY(status);
    titan_assert(t.used == 0 && t.n_parcels == 0);
    if (t.to)
        state_set_numbers(t.to, h->step, h->tokens, h->skipped);
    *ret_sent = t.sent;
    return TITAN_OK;
}
