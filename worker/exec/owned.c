/* SPDX-License-Identifier: Apache-2.0 */
/* owned.c - matrices that are updated whole: what travels to their owners and back, and the owners' work. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "worker/exec/executor.h"
#include "worker/optim/whole_matrix.h"

/* A box of a matrix that one rank has in its range. It is dense there, and `ld` wide at the owner. */
struct owner_part {
    int holder, owner; /* ranks in GROUP_OWNERS */
    bool sends;        /* the holder sends it; other ranks that have the same box do not */
    int64_t rows, cols;
    int64_t at;        /* place in the holder's range of the unit, in elements */
    int64_t place, ld; /* place and row length in the owner's values */
};

/* The parts of a unit of which this rank is holder or owner, in an order that is the same on all ranks. */
struct owner_route {
    int n, cap;
    struct owner_part *parts;
};

/* --- routes ------------------------------------------------------------------------------------------------------- */

static bool of_unit(void *arg, int unit, enum share share)
{
    const int *const wanted = arg;
    return unit == *wanted && share != SHARE_BIAS;
}

/* Adds what a rank's slice has of the matrices of its tensor. */
static titan_status add_parts(struct exec *e, struct owner_route *route, int unit, int rank,
                              const struct shard_slice *slice, struct titan_error *err)
{
    const struct layout *const l = e->p->layout;
    const struct owners *const o = l->owners;
    const int tensor = l->specs[slice->tensor].tensor;
    const int holder = mesh_group_rank(&l->mesh, GROUP_OWNERS, rank);
    const int me = mesh_group_rank(&l->mesh, GROUP_OWNERS, e->opt.rank);
    const bool sends = l->model->tensors[tensor].split != SPLIT_NONE || layout_unit_part(l, unit, rank) == 0;

    for (int i = o->first[tensor]; i < o->first[tensor + 1]; i++) {
        const struct owned_matrix *const x = &o->matrices[i];
        const struct shard_slice whole = {.tensor = slice->tensor, .row = x->row, .rows = x->rows, .cols = x->cols};
        const struct shard_slice both = shard_slice_overlap(slice, &whole);
        if (both.rows == 0 || (holder != me && x->owner != me))
            continue;
        const int64_t begin = l->units[unit].offset + l->units[unit].kept;
        titan_assert(both.cols == slice->cols); /* so it is dense in the range */
        const struct owner_part part = {
            .holder = holder,
            .owner = x->owner,
            .sends = sends,
            .rows = both.rows,
            .cols = both.cols,
            .at = slice->at - begin + shard_slice_place(slice, &both),
            .place = x->values + (both.row - x->row) * x->cols + both.col,
            .ld = x->cols,
        };
        if (!VEC_PUSH(route->parts, route->n, route->cap, part))
            return titan_fail(err, TITAN_ENOMEM, "owners: out of memory");
    }
    return TITAN_OK;
}

titan_status exec_open_routes(struct exec *e, struct titan_error *err)
{
    const struct layout *const l = e->p->layout;
    const int n = mesh_group_size(&l->mesh, GROUP_OWNERS);
    _cleanup_free_ int *members = calloc((size_t)n, sizeof *members);

    e->routes = calloc((size_t)l->model->n_units, sizeof(struct owner_route *));
    if (!members || !e->routes)
        return titan_fail(err, TITAN_ENOMEM, "owners: out of memory");
    mesh_group_members(&l->mesh, GROUP_OWNERS, e->opt.rank, members);
    for (int i = 0; i < e->p->n_actions; i++) {
        const struct action *const a = &e->p->actions[i];
        if (a->op != OP_TO_OWNERS)
            continue;
        int unit = a->unit;
        struct owner_route *const route = calloc(1, sizeof *route);
        e->routes[a->unit] = route;
        if (!route)
            return titan_fail(err, TITAN_ENOMEM, "owners: out of memory");
        for (int r = 0; r < n; r++) {
            _cleanup_free_ struct shard_slice *slices = NULL;
            int n_slices;
            TRY(layout_slices(l, members[r], NULL, NULL, of_unit, &unit, &slices, &n_slices, err));
            for (int k = 0; k < n_slices && l->specs[slices[k].tensor].kind == 0; k++)
                TRY(add_parts(e, route, a->unit, members[r], &slices[k], err));
        }
    }
    return TITAN_OK;
}

void exec_close_routes(struct exec *e)
{
    for (int u = 0; e->routes && u < e->p->layout->model->n_units; u++)
        if (e->routes[u]) {
            free(e->routes[u]->parts);
            free(e->routes[u]);
        }
    free(e->routes);
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

static bool dense(const struct owner_part *p)
{
    return p->rows == 1 || p->cols == p->ld;
}

/* Copies a part between the owner's values and a place where the part is dense. */
static titan_status place_part(const struct call *c, const struct owner_part *p, float *values, float *part, bool to)
{
    return c->ops->copy_2d(c->s, ARGS(strided, .dst = to ? values + p->place : part, .ldd = to ? p->ld : p->cols,
                                      .src = to ? part : values + p->place, .lds = to ? p->cols : p->ld,
                                      .dt = DTYPE_F32, .rows = p->rows, .cols = p->cols, .repeat = 1));
}

/* Moves the parts of a unit to their owners, or back. cut_parts: room for parts that are not dense in `values`. */
static titan_status exchange(const struct call *c, float *values, float *cut_parts, float *range, bool to)
{
    const struct exec *const e = c->e;
    const struct owner_route *const route = e->routes[c->a->unit];
    const struct comm_ops *const comm = e->opt.comm_ops;
    struct comm *const among = e->opt.comms[c->a->channel];
    const int me = mesh_group_rank(&e->p->mesh, GROUP_OWNERS, e->opt.rank);
    const int64_t most = c->p->to_owners.cut;
    int64_t used = 0;

    if (!e->update) /* the step is skipped, on every rank */
        return TITAN_OK;
    for (int i = 0; i < route->n; i++) {
        const struct owner_part *const p = &route->parts[i];
        if (to && !p->sends)
            continue;
        if (p->holder == me && p->owner == me)
            TRY(place_part(c, p, values, range + p->at, to));
        else if (!to && p->owner == me && !dense(p)) {
            titan_assert(used + p->rows * p->cols <= most);
            TRY(place_part(c, p, values, cut_parts + used, false));
            used += p->rows * p->cols;
        }
    }
    if (!among)
        return TITAN_OK;
    TRY(comm->group_begin(among));
    used = 0;
    for (int i = 0; i < route->n; i++) {
        const struct owner_part *const p = &route->parts[i];
        const size_t bytes = (size_t)(p->rows * p->cols) * sizeof(float);
        if (p->holder == p->owner || (to && !p->sends))
            continue;
        float *mine = range + p->at;
        if (p->owner == me) {
            mine = dense(p) ? values + p->place : cut_parts + used;
            used += dense(p) ? 0 : p->rows * p->cols;
            titan_assert(used <= most);
        }
        if ((p->holder == me) == to)
            TRY(comm->send(among, mine, bytes, p->holder == me ? p->owner : p->holder, c->s));
        else
            TRY(comm->recv(among, mine, bytes, p->holder == me ? p->owner : p->holder, c->s));
    }
    TRY(comm->group_end(among));
    used = 0;
    for (int i = 0; i < route->n && to; i++) {
        const struct owner_part *const p = &route->parts[i];
        if (!p->sends || p->owner != me || p->holder == me || dense(p))
            continue;
        TRY(place_part(c, p, values, cut_parts + used, true));
        used += p->rows * p->cols;
    }
    return TITAN_OK;
}

titan_status exec_to_owners(const struct call *c, float *values, float *cut_parts, float *gradient)
{
    return exchange(c, values, cut_parts, gradient, true);
}

titan_status exec_from_owners(const struct call *c, float *gradient, float *cut_parts, float *values)
{
    return exchange(c, values, cut_parts, gradient, false);
}

/* --- directions --------------------------------------------------------------------------------------------------- */

titan_status exec_whole(const struct call *c, double *sums, float *values, float *next, void *work, const void *state,
                        const float *masters)
{
    const struct exec *const e = c->e;
    const struct layout *const l = e->p->layout;
    const struct owners *const o = l->owners;
    const int me = mesh_group_rank(&l->mesh, GROUP_OWNERS, e->opt.rank);

    if (!e->update)
        return TITAN_OK;
    struct whole_step step = e->update->whole;
    if (step.moment == DTYPE_U8) { /* codes are decoded to the place of the state after the step */
        TRY(update_read_owned(l, e->opt.rank, step.moment, next, state, c->ops, c->s));
        step.moment = DTYPE_F32;
        state = next;
    }
    step.dt = (enum dtype)c->p->whole.compute;
    for (int i = 0; i < o->n; i++) {
        const struct owned_matrix *const x = &o->matrices[i];
        if (x->pp_rank != e->p->pp_rank || x->owner != me)
            continue;
        struct whole_matrix m = {.name = l->model->tensors[x->tensor].name,
                                 .rows = x->rows,
                                 .cols = x->cols,
                                 .heads = x->heads,
                                 .number = i,
                                 .of = o->n,
                                 .values = values + x->values,
                                 .weights = masters ? masters + x->values : NULL};
        for (int k = 0; k < OPTIMIZER_STATES && x->state[k].rows > 0; k++) {
            m.next[k] = next + x->state[k].at;
            m.state[k] = (const char *)state + (size_t)x->state[k].at * dtype_bytes(step.moment);
        }
        TRY(whole_direction(&step, &m, work, c->ops, c->s));
        const size_t n = (size_t)(x->rows * x->cols);
        TRY(c->ops->block_sums(c->s, work, m.values, n, WHOLE_SUM_BLOCK, true));
        TRY(c->ops->sum(c->s, sums + x->tensor, true, work, (n + WHOLE_SUM_BLOCK - 1) / WHOLE_SUM_BLOCK));
    }
    return TITAN_OK;
}

titan_status exec_adopt(const struct call *c, void *state, const float *next, int64_t n)
{
    const struct exec *const e = c->e;

    titan_assert(n == layout_owned(e->p->layout, e->opt.rank));
    return e->update ? update_keep_owned(e->p->layout, e->opt.rank, (enum dtype)c->p->dt2, state, next, c->ops, c->s)
                     : TITAN_OK;
}
