/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.c - live resharding over the new epoch's communicator. */
#include "worker/elastic/transfer.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/vec.h"

#define MESSAGE_MAX (INT64_C(4) << 20) /* elements */

/* A box between a tensor's piece and the message. */
struct parcel {
    float *data; /* in the piece */
    int64_t ld, rows, cols;
};

struct transfer {
    const struct holdings *holdings;
    const struct layout *from, *cut; /* the old one and the new one */
    const struct parts *mine;
    struct train_state *to; /* NULL: this rank is in no epoch after this */
    int rank;
    const struct comm_ops *ops;
    struct comm *comm;
    struct stream *s;
    const struct device_ops *dev;
    int *candidates; /* (old world) scratch */
    uint64_t sent;   /* bytes */
    /* One message is under way at a time. */
    float *message;
    int64_t room, used;
    int sender, receiver;
    struct parcel *parcels; /* to unpack */
    int n_parcels, cap_parcels;
};

/* --- who gives ---------------------------------------------------------------------------------------------------- */

/* Old ranks that hold what old rank a does. */
static int list_candidates(const struct transfer *t, int a, int unit, enum share share)
{
    const struct mesh *mesh = &t->from->mesh;
    const int stage = mesh->world / mesh->size[AXIS_PP], replicas = mesh_group_size(mesh, GROUP_REPLICATE);
    const enum group parts = t->from->units[unit].group == GROUP_EXPERT_SHARD ? GROUP_EP : GROUP_TP;

    if (share == SHARE_BIAS) {
        for (int i = 0; i < stage; i++)
            t->candidates[i] = a / stage * stage + i;
        return stage;
    }
    mesh_group_members(mesh, GROUP_REPLICATE, a, t->candidates);
    if (share == SHARE_CUT)
        return replicas;
    /* Parts of each replica, the last one first: their places are not overwritten before they are read. */
    const int n = mesh_group_size(mesh, parts);
    for (int i = replicas - 1; i >= 0; i--)
        mesh_group_members(mesh, parts, t->candidates[i], t->candidates + i * n);
    return replicas * n;
}

struct pair {
    const struct transfer *t;
    int a, b; /* old rank, new rank */
};

/* Does old rank a give new rank b what it and others hold alike? */
static bool gives(void *arg, int unit, enum share share)
{
    const struct pair *p = arg;
    const struct transfer *t = p->t;
    const int n = list_candidates(t, p->a, unit, share);
    int present = 0;

    for (int i = 0; i < n; i++) {
        const int holder = t->holdings->holder[t->candidates[i]];
        if (holder == p->b)
            return t->candidates[i] == p->a;
        present += holder >= 0;
    }
    titan_assert(present > 0); /* holdings_gather */
    int turn = p->b % present;
    for (int i = 0; i < n; i++)
        if (t->holdings->holder[t->candidates[i]] >= 0 && turn-- == 0)
            return t->candidates[i] == p->a;
    return false;
}

/* --- movement ----------------------------------------------------------------------------------------------------- */

static titan_status copy_box(const struct transfer *t, float *dst, int64_t ldd, const float *src, int64_t lds,
                             int64_t rows, int64_t cols)
{
    if (rows == 1 || (ldd == cols && lds == cols))
        return t->dev->copy(t->s, dst, src, (size_t)(rows * cols) * sizeof(float));
    return t->dev->copy_2d(t->s, dst, ldd, src, lds, DTYPE_F32, rows, cols, 1);
}

/* Send what is packed, or receive and unpack. */
static titan_status flush(struct transfer *t)
{
    const size_t bytes = (size_t)t->used * sizeof(float);
    const float *at = t->message;

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
        const struct parcel *p = &t->parcels[i];
        TRY(copy_box(t, p->data, p->ld, at, p->cols, p->rows, p->cols));
        at += p->rows * p->cols;
    }
    titan_assert((size_t)(at - t->message) * sizeof(float) == bytes);
    t->n_parcels = 0;
    return TITAN_OK;
}

static titan_status note_parcel(struct transfer *t, struct parcel p, struct titan_error *err)
{
    if (!VEC_PUSH(t->parcels, t->n_parcels, t->cap_parcels, p))
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    return TITAN_OK;
}

/* A box that fits in a message. */
static titan_status carry(struct transfer *t, const struct piece *x, const struct piece *y, const struct piece *box,
                          struct titan_error *err)
{
    const int64_t n = box->rows * box->cols;

    titan_assert(n > 0 && n <= t->room);
    if (t->used + n > t->room)
        TRY(flush(t));
    t->used += n;
    if (t->rank == t->receiver)
        return note_parcel(t, (struct parcel){y->data + piece_place(y, box), y->cols, box->rows, box->cols}, err);
    return copy_box(t, t->message + t->used - n, box->cols, x->data + piece_place(x, box), x->cols, box->rows,
                    box->cols);
}

static titan_status move_common(struct transfer *t, const struct piece *x, const struct piece *y,
                                struct titan_error *err)
{
    const struct piece all = piece_overlap(x, y);

    if (all.rows > 0 && t->sender == t->receiver)
        return copy_box(t, y->data + piece_place(y, &all), y->cols, x->data + piece_place(x, &all), x->cols, all.rows,
                        all.cols);
    const int64_t cols = MIN(all.cols, t->room), rows = MAX(t->room / MAX(cols, 1), 1);
    for (int64_t r = 0; r < all.rows; r += rows)
        for (int64_t c = 0; c < all.cols; c += cols) {
            struct piece box = all;
            box.row += r;
            box.rows = MIN(rows, all.rows - r);
            box.col += c;
            box.cols = MIN(cols, all.cols - c);
            TRY(carry(t, x, y, &box, err));
        }
    return TITAN_OK;
}

/* What old rank a gives new rank b, seen from this rank, which is one of the two. */
static titan_status move(struct transfer *t, int a, int b, struct titan_error *err)
{
    struct pair pair = {t, a, b};
    _cleanup_free_ struct piece *give = NULL, *take = NULL;
    int n_give, n_take, first = 0;

    t->sender = t->holdings->holder[a];
    t->receiver = b;
    titan_assert(t->used == 0 && t->n_parcels == 0);
    titan_assert(t->sender >= 0 && (t->sender == t->rank || t->receiver == t->rank));
    const bool here = t->sender == t->rank, there = b == t->rank;
    const struct train_state *const old = t->holdings->copied[a] ? t->mine->copy : t->mine->own;
    titan_assert(!here || (old && old->rank == a));
    titan_assert(!there || t->to);
    TRY(layout_pieces(t->from, a, here ? old->values : NULL, here ? old->biases : NULL, gives, &pair, &give, &n_give,
                      err));
    TRY(layout_pieces(t->cut, b, there ? t->to->values : NULL, there ? t->to->biases : NULL, NULL, NULL, &take, &n_take,
                      err));
    for (int i = 0; i < n_give; i++) {
        while (first < n_take && take[first].tensor < give[i].tensor)
            first++;
        for (int j = first; j < n_take && take[j].tensor == give[i].tensor; j++)
            TRY(move_common(t, &give[i], &take[j], err));
    }
    return flush(t);
}

static titan_status move_all(struct transfer *t, struct titan_error *err)
{
    const struct epoch_view *view = t->holdings->view;

    for (int a = 0; a < view->holders; a++)
        for (int b = 0; b < view->world; b++) {
            const int holder = t->holdings->holder[a];
            if (holder >= 0 && (holder == t->rank || b == t->rank))
                TRY(move(t, a, b, err));
        }
    return TITAN_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

/* Elements of a message, the same on all ranks: little beside the state. */
static int64_t message_room(const struct transfer *t)
{
    int64_t largest = 0;

    for (int p = 0; p < t->from->mesh.size[AXIS_PP]; p++)
        largest = MAX(largest, t->from->total[p]);
    titan_assert(largest > 0);
    return MIN(largest / 64 + 1, MESSAGE_MAX);
}

static titan_status move_and_settle(struct transfer *t, const struct device_handle *device, struct titan_error *err)
{
    if (!t->candidates)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    t->room = message_room(t);
    TRY(t->dev->alloc(device->dev, (size_t)t->room * sizeof(float), (void **)&t->message, err));
    titan_status status = move_all(t, err);
    if (status == TITAN_OK && t->to)
        status = state_refresh_shadow(t->to, t->s);
    const titan_status sync = t->dev->stream_sync(t->s, err);
    t->dev->release(device->dev, t->message);
    return sync != TITAN_OK ? sync : status;
}

titan_status state_transfer(const struct holdings *holdings, const struct parts *mine, const struct layout *cut,
                            struct train_state *to, const struct device_handle *device, const struct comm_ops *ops,
                            struct comm *comm, struct stream *s, uint64_t *ret_sent, struct titan_error *err)
{
    struct transfer t = {.holdings = holdings,
                         .from = holdings->from,
                         .cut = cut,
                         .mine = mine,
                         .to = to,
                         .rank = holdings->view->rank,
                         .ops = ops,
                         .comm = comm,
                         .s = s,
                         .dev = device->ops,
                         .candidates = calloc((size_t)holdings->view->holders + 1, sizeof(int))};

    titan_assert((to != NULL) == (t.rank < holdings->view->world));
    titan_assert(!to || (to->rank == t.rank && to->step == 0));
    const titan_status status = move_and_settle(&t, device, err);
    free(t.candidates);
    free(t.parcels);
    TRY(status);
    if (to)
        state_set_numbers(to, holdings->step, holdings->tokens, holdings->skipped);
    *ret_sent = t.sent;
    return TITAN_OK;
}
