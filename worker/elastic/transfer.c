/* transfer.c - live resharding over the new epoch's communicator. */
#include "worker/elastic/transfer.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* What a rank says about the shard it has. Doubles carry it: exact up to 2^53. */
struct holding {
    double present, rank, world, step, tokens, skipped;
};

struct transfer {
    const struct epoch_view *view;
    const struct train_state *old;
    struct train_state *to;
    const struct layout *from; /* the old cut */
    const struct comm_ops *ops;
    struct comm *comm;
    struct stream *s;
    const struct device_ops *dev;
};

/* --- agreement
 * ---------------------------------------------------------------------------------------------------------- */

static titan_status gather_holdings(const struct transfer *t, struct holding *all, struct titan_error *err)
{
    const struct train_state *o = t->old;
    struct holding mine = {0};
    void *memory = NULL;

    if (o)
        mine = (struct holding){1, o->rank, o->layout->world, (double)o->step, (double)o->tokens, (double)o->skipped};
    if (t->view->world == 1) {
        all[0] = mine;
        return TITAN_OK;
    }
    const size_t each = sizeof mine / sizeof(double), bytes = sizeof mine * (size_t)t->view->world;
    TRY(t->dev->alloc(t->to->device->dev, bytes + sizeof mine, &memory, err));
    char *const send = (char *)memory + bytes;
    titan_status status = t->dev->copy(t->s, send, &mine, sizeof mine);
    if (status == TITAN_OK)
        status = t->ops->all_gather(t->comm, memory, send, each, DTYPE_F64, t->s);
    if (status == TITAN_OK)
        status = t->dev->copy(t->s, all, memory, bytes);
    const titan_status sync = t->dev->stream_sync(t->s, err);
    t->dev->release(t->to->device->dev, memory);
    return status != TITAN_OK ? status : sync;
}

/* All ranks have the same table and come to the same verdict. */
static titan_status check_holdings(const struct transfer *t, const struct holding *all, struct titan_error *err)
{
    const struct epoch_view *v = t->view;

    for (int shard = 0; shard < v->holders; shard++) {
        const int holder = v->holder_ranks[shard];
        if (holder < 0 || holder >= v->world)
            return titan_fail(err, TITAN_ECONFLICT, "state in memory: nobody holds shard %d of %d", shard, v->holders);
        const struct holding *h = &all[holder];
        if (h->present == 0 || h->rank != shard || h->world != v->holders)
            return titan_fail(err, TITAN_ECONFLICT, "state in memory: rank %d does not hold shard %d of %d", holder,
                              shard, v->holders);
        const struct holding *first = &all[v->holder_ranks[0]];
        if (h->step != first->step || h->tokens != first->tokens || h->skipped != first->skipped)
            return titan_fail(err, TITAN_ECONFLICT, "state in memory: shard %d is of step %.0f, shard 0 of step %.0f",
                              shard, h->step, first->step);
    }
    return v->holders > 0 ? TITAN_OK : titan_fail(err, TITAN_ECONFLICT, "state in memory: no holders named");
}

/* --- movement
 * ----------------------------------------------------------------------------------------------------------- */

/* What old shard a and new rank b have in common in a unit, in elements of the unit's flat buffer. */
static struct piece_range common(const struct transfer *t, int unit, int a, int b)
{
    const struct layout *to = t->to->layout;
    const struct piece x = {.tensor = unit, .start = t->from->shard[unit] * a, .count = t->from->shard[unit]};
    const struct piece y = {.tensor = unit, .start = to->shard[unit] * b, .count = to->shard[unit]};
    return piece_overlap(&x, &y);
}

static int64_t common_total(const struct transfer *t, int a, int b)
{
    int64_t n = 0;
    for (int u = 0; u < t->from->model->n_units; u++)
        n += common(t, u, a, b).count;
    return n;
}

static float *array_of(const struct train_state *s, int which)
{
    return which == 0 ? s->master : which == 1 ? s->m : s->v;
}

/* Between the message (3 arrays, units in order) and this rank's old (out) or new (in) arrays. */
static titan_status pack(const struct transfer *t, int a, int b, float *message)
{
    for (int which = 0; which < 3; which++)
        for (int u = 0; u < t->from->model->n_units; u++) {
            const struct piece_range r = common(t, u, a, b);
            const float *src = array_of(t->old, which) + t->from->offset[u] + (r.start - t->from->shard[u] * a);
            if (r.count > 0)
                TRY(t->dev->copy(t->s, message, src, (size_t)r.count * sizeof(float)));
            message += r.count;
        }
    return TITAN_OK;
}

static titan_status unpack(const struct transfer *t, int a, int b, const float *message)
{
    const struct layout *l = t->to->layout;

    for (int which = 0; which < 3; which++)
        for (int u = 0; u < l->model->n_units; u++) {
            const struct piece_range r = common(t, u, a, b);
            float *dst = array_of(t->to, which) + l->offset[u] + (r.start - l->shard[u] * b);
            if (r.count > 0)
                TRY(t->dev->copy(t->s, dst, message, (size_t)r.count * sizeof(float)));
            message += r.count;
        }
    return TITAN_OK;
}

/* Old shard a to new rank b, seen from this rank. */
static titan_status move(const struct transfer *t, int a, int b, float *message)
{
    const int me = t->view->rank, holder = t->view->holder_ranks[a];
    const size_t bytes = 3 * (size_t)common_total(t, a, b) * sizeof(float);

    if (bytes == 0 || (me != holder && me != b))
        return TITAN_OK;
    if (me == holder)
        TRY(pack(t, a, b, message));
    if (holder != b && me == holder)
        return t->ops->send(t->comm, message, bytes, b, t->s);
    if (holder != b)
        TRY(t->ops->recv(t->comm, message, bytes, holder, t->s));
    return unpack(t, a, b, message);
}

static titan_status move_all(const struct transfer *t, struct titan_error *err)
{
    const size_t largest = 3 * (size_t)MAX(t->from->total, t->to->layout->total) * sizeof(float);
    float *message = NULL;
    titan_status status = t->dev->alloc(t->to->device->dev, largest, (void **)&message, err);

    for (int a = 0; status == TITAN_OK && a < t->view->holders; a++)
        for (int b = 0; status == TITAN_OK && b < t->view->world; b++)
            status = move(t, a, b, message);
    if (!message)
        return status;
    const titan_status sync = t->dev->stream_sync(t->s, err);
    t->dev->release(t->to->device->dev, message);
    return sync != TITAN_OK ? sync : status;
}

titan_status state_transfer(const struct epoch_view *view, const struct train_state *old, struct train_state *to,
                            const struct comm_ops *ops, struct comm *comm, struct stream *s, struct titan_error *err)
{
    struct layout *from = NULL;
    struct transfer t = {.view = view, .old = old, .to = to, .ops = ops, .comm = comm, .s = s};
    _cleanup_free_ struct holding *all = calloc((size_t)view->world, sizeof *all);

    t.dev = to->device->ops;
    if (!all)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    TRY(gather_holdings(&t, all, err));
    TRY(check_holdings(&t, all, err));
    TRY(layout_open(to->layout->model, view->holders, &from, err));
    t.from = from;
    titan_status status = move_all(&t, err);
    layout_close(from);
    if (status != TITAN_OK)
        return status;
    const struct holding *h = &all[view->holder_ranks[0]];
    to->step = (uint64_t)h->step;
    to->tokens = (uint64_t)h->tokens;
    to->skipped = (uint64_t)h->skipped;
    TRY(state_refresh_shadow(to, s));
    return t.dev->stream_sync(s, err);
}
