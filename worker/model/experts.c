/* SPDX-License-Identifier: Apache-2.0 */
/* experts.c - router, exchange of rows, experts. */
#include "worker/model/experts.h"

#include <math.h>

#include "base/cleanup.h"
#include "worker/model/parts.h"

struct sizes {
    int ep;
    int64_t ns, c, m;
    int64_t e, here, top_k; /* experts in all, on this rank, of a token */
    int64_t rows, room;     /* choices of this rank's tokens; most rows its experts can get */
};

/* Most rows that the experts of a rank can get, or as many as there is room for: more are a failure of the step. */
static int64_t room_of(const struct block *k, int ep, int64_t rows, int64_t most)
{
    titan_assert(ep >= 1 && rows >= 0 && most >= 0);
    if (ep == 1 || k->expert_room <= 0)
        return most;
    return MAX(1, MIN(most, (int64_t)ceil(k->expert_room * (double)rows)));
}

static struct sizes sizes_of(const struct block *k)
{
    const struct model_dims *d = &k->layout->model->dims;
    const int ep = mesh_group_size(&k->layout->mesh, GROUP_EP);
    const int64_t ns = block_tokens_sharded(k), here = d->n_experts / ep;

    titan_assert(d->n_experts > 0 && d->n_experts % ep == 0);
    return (struct sizes){.ep = ep,
                          .ns = ns,
                          .c = d->dim,
                          .m = d->moe_hidden,
                          .e = d->n_experts,
                          .here = here,
                          .top_k = d->top_k,
                          .rows = ns * d->top_k,
                          .room = room_of(k, ep, ns * d->top_k, ep * ns * MIN(d->top_k, here))};
}

static uint32_t routing_flags(const struct block *k)
{
    const struct model_dims *d = &k->layout->model->dims;
    return (d->sigmoid_scores ? OP_SIGMOID : 0) | (d->normalize_scores ? OP_NORMALIZE : 0);
}

static struct tensor of_unit(const struct tensor *tensors, int unit)
{
    titan_assert(unit >= 0);
    return tensors ? tensors[unit] : TENSOR_NONE;
}

static struct tensor new_table(struct block *k, const char *name, int64_t rows, int64_t cols)
{
    return emit_tensor(k->e, BUF_ACTIVATION, name, DTYPE_I32, rows, cols);
}

/* Rows of each expert on this rank. */
static struct tensor counts_here(const struct block *k, const struct layer_saved *saved)
{
    return saved->t[mesh_group_size(&k->layout->mesh, GROUP_EP) > 1 ? SAVED_COUNTS_HERE : SAVED_COUNTS];
}

/* --- which row goes where ----------------------------------------------------------------------------------------- */

static void route(struct block *k, struct layer_units u, struct layer_saved *saved)
{
    const struct sizes z = sizes_of(k);
    const struct model_dims *d = &k->layout->model->dims;
    struct tensor *s = saved->t;

    titan_assert(u.experts);
    s[SAVED_LOGITS] = block_new_f32(k, BUF_ACTIVATION, "router_logits", z.ns, z.e);
    block_linear(k, u.own, ROLE_GATE, 1, s[SAVED_LOGITS], s[SAVED_XN2_OWN]);
    s[SAVED_CHOSEN] = new_table(k, "chosen", z.ns, z.top_k);
    s[SAVED_WEIGHTS] = block_new_f32(k, BUF_ACTIVATION, "router_weights", z.ns, z.top_k);
    EMIT(k->e, route, s[SAVED_CHOSEN], s[SAVED_WEIGHTS], s[SAVED_LOGITS], of_unit(k->bias, u.experts->unit),
         of_unit(k->load, u.experts->unit), .groups = d->n_expert_groups, .top_groups = d->n_limited_groups,
         .group_top_k = d->group_top_k, .scale = d->route_scale, .flags = routing_flags(k));
    s[SAVED_PLACE] = new_table(k, "place", z.ns, z.top_k);
    s[SAVED_COUNTS] = new_table(k, "expert_rows", z.ep, z.here);
    s[SAVED_RANK_COUNTS] = new_table(k, "rank_rows", 1, z.ep);
    EMIT(k->e, permute, s[SAVED_PLACE], s[SAVED_COUNTS], s[SAVED_RANK_COUNTS], s[SAVED_CHOSEN]);
    if (z.ep == 1)
        return;
    /* (ep,E/ep): rows that each rank sends to each expert here */
    const struct tensor received = new_table(k, "received_rows", z.ep, z.here);
    emit_all_to_all(k->e, CHANNEL_EP, received, s[SAVED_COUNTS]);
    s[SAVED_PLACE_HERE] = new_table(k, "place_here", z.room, 1);
    s[SAVED_COUNTS_HERE] = new_table(k, "expert_rows_here", 1, z.here);
    s[SAVED_RANK_COUNTS_HERE] = new_table(k, "rank_rows_here", 1, z.ep);
    EMIT(k->e, permute_received, s[SAVED_PLACE_HERE], s[SAVED_COUNTS_HERE], s[SAVED_RANK_COUNTS_HERE], received);
}

/* Rows (Ns*top_k,C), sorted by expert, to the experts' ranks: (R,C) sorted by the expert there. */
static struct tensor exchange(struct block *k, enum buffer_kind kind, const char *name, const struct layer_saved *saved,
                              struct tensor rows)
{
    const struct sizes z = sizes_of(k);
    const struct tensor *s = saved->t;

    if (z.ep == 1)
        return rows;
    const struct tensor arrived = block_new(k, kind, name, z.room, z.c);
    emit_all_to_all_v(k->e, CHANNEL_EP, arrived, s[SAVED_RANK_COUNTS_HERE], rows, s[SAVED_RANK_COUNTS], z.rows);
    const struct tensor sorted = block_new(k, kind, name, z.room, z.c);
    EMIT(k->e, scatter_rows, sorted, arrived, s[SAVED_PLACE_HERE], TENSOR_NONE);
    return sorted;
}

/* The way back. */
static struct tensor exchange_back(struct block *k, enum buffer_kind kind, const char *name,
                                   const struct layer_saved *saved, struct tensor rows)
{
    const struct sizes z = sizes_of(k);
    const struct tensor *s = saved->t;

    if (z.ep == 1)
        return rows;
    const struct tensor by_rank = block_new(k, kind, name, z.room, z.c);
    EMIT(k->e, combine_rows, by_rank, rows, s[SAVED_PLACE_HERE], TENSOR_NONE);
    const struct tensor back = block_new(k, kind, name, z.rows, z.c);
    emit_all_to_all_v(k->e, CHANNEL_EP, back, s[SAVED_RANK_COUNTS], by_rank, s[SAVED_RANK_COUNTS_HERE], z.rows);
    return back;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* SAVED_ROWS (R,C) -> outputs (R,C): w2 (silu(w1 x) * w3 x) of each row's expert */
static struct tensor run_experts(struct block *k, const struct unit_buffers *u, struct layer_saved *saved)
{
    const struct sizes z = sizes_of(k);
    const struct tensor counts = counts_here(k, saved);
    struct tensor *s = saved->t;

    s[SAVED_ROWS_GU] = block_new(k, BUF_ACTIVATION, "rows_gu", z.room, 2 * z.m);
    const struct tensor gate = tensor_cols(s[SAVED_ROWS_GU], 0, z.m), up = tensor_cols(s[SAVED_ROWS_GU], z.m, z.m);
    EMIT(k->e, matmul_grouped, gate, s[SAVED_ROWS], block_param(k, u, ROLE_W1, 1), counts, .rows = z.rows,
         .flags = OP_TB);
    EMIT(k->e, matmul_grouped, up, s[SAVED_ROWS], block_param(k, u, ROLE_W3, 1), counts, .rows = z.rows,
         .flags = OP_TB);
    s[SAVED_ROWS_ACT] = block_new(k, BUF_ACTIVATION, "rows_act", z.room, z.m);
    EMIT(k->e, swiglu, s[SAVED_ROWS_ACT], gate, up);
    const struct tensor out = block_new(k, BUF_ACTIVATION, "rows_out", z.room, z.c);
    EMIT(k->e, matmul_grouped, out, s[SAVED_ROWS_ACT], block_param(k, u, ROLE_W2, 1), counts, .rows = z.rows,
         .flags = OP_TB);
    return out;
}

struct tensor experts_forward(struct block *k, struct layer_units u, struct layer_saved *saved)
{
    const struct sizes z = sizes_of(k);
    struct tensor *s = saved->t;

    titan_assert(u.own && u.experts);
    /* xn2 (Ns,C) */
    s[SAVED_XN2_OWN] = block_new(k, BUF_ACTIVATION, "xn2", z.ns, z.c);
    s[SAVED_RSTD2] = block_new_f32(k, BUF_ACTIVATION, "rstd", 1, z.ns);
    EMIT(k->e, rmsnorm, s[SAVED_XN2_OWN], s[SAVED_RSTD2], s[SAVED_H], block_param(k, u.own, ROLE_FFN_NORM, 1),
         .eps = k->layout->model->dims.norm_eps);
    route(k, u, saved);
    const struct tensor rows = block_new(k, BUF_ACTIVATION, "rows", z.rows, z.c);
    EMIT(k->e, scatter_rows, rows, s[SAVED_XN2_OWN], s[SAVED_PLACE], TENSOR_NONE);
    s[SAVED_ROWS] = exchange(k, BUF_ACTIVATION, "rows", saved, rows);
    const struct tensor out = run_experts(k, u.experts, saved);
    s[SAVED_ROWS_OUT] = exchange_back(k, BUF_ACTIVATION, "rows_out", saved, out);
    /* y (Ns,C) */
    const struct tensor routed = block_new(k, BUF_ACTIVATION, "routed", z.ns, z.c);
    EMIT(k->e, combine_rows, routed, s[SAVED_ROWS_OUT], s[SAVED_PLACE], s[SAVED_WEIGHTS]);
    struct tensor residual = s[SAVED_H];
    if (k->layout->model->dims.n_shared_experts > 0) {
        s[SAVED_XN2] = emit_all_gather(k->e, CHANNEL_TP, BUF_ACTIVATION, "xn2", s[SAVED_XN2_OWN]);
        residual = block_feed_forward(k, u.own, s[SAVED_H], saved);
    }
    EMIT(k->e, add, routed, routed, residual);
    return routed;
}

/* --- input gradient ----------------------------------------------------------------------------------------------- */

/* BACK_DROWS (R,C) -> gradient of SAVED_ROWS (R,C) */
static struct tensor run_experts_dgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                                       struct layer_back *back)
{
    const struct sizes z = sizes_of(k);
    const struct tensor counts = counts_here(k, saved), *s = saved->t;
    struct tensor *g = back->t;

    const struct tensor dact = block_new(k, BUF_DACTIVATION, "drows_act", z.room, z.m);
    EMIT(k->e, matmul_grouped, dact, g[BACK_DROWS], block_param(k, u, ROLE_W2, 1), counts, .rows = z.rows, .flags = 0);
    g[BACK_DROWS_GU] = block_new(k, BUF_DACTIVATION, "drows_gu", z.room, 2 * z.m);
    const struct tensor dgate = tensor_cols(g[BACK_DROWS_GU], 0, z.m), dup = tensor_cols(g[BACK_DROWS_GU], z.m, z.m);
    EMIT(k->e, swiglu_dgrad, dgate, dup, dact, tensor_cols(s[SAVED_ROWS_GU], 0, z.m),
         tensor_cols(s[SAVED_ROWS_GU], z.m, z.m));
    const struct tensor dx = block_new(k, BUF_DACTIVATION, "drows", z.room, z.c);
    EMIT(k->e, matmul_grouped, dx, dgate, block_param(k, u, ROLE_W1, 1), counts, .rows = z.rows, .flags = 0);
    EMIT(k->e, matmul_grouped, dx, dup, block_param(k, u, ROLE_W3, 1), counts, .rows = z.rows, .flags = OP_ADD_TO);
    return dx;
}

/* BACK_DLOGITS from the gradient of what came back; its product is added to dxn (Ns,C). */
static void route_dgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                        struct tensor dy, struct tensor dxn, struct layer_back *back)
{
    const struct sizes z = sizes_of(k);
    const double scale = k->layout->model->dims.route_scale;
    const struct tensor *s = saved->t;

    const struct tensor dweights = block_new_f32(k, BUF_DACTIVATION, "drouter_weights", z.ns, z.top_k);
    EMIT(k->e, combine_dweights, dweights, dy, s[SAVED_ROWS_OUT], s[SAVED_PLACE]);
    const struct tensor dlogits = block_new_f32(k, BUF_DACTIVATION, "drouter_logits", z.ns, z.e);
    EMIT(k->e, route_dgrad, dlogits, dweights, s[SAVED_LOGITS], s[SAVED_CHOSEN], .scale = scale,
         .flags = routing_flags(k));
    back->t[BACK_DLOGITS] = dlogits;
    if (k->dt != DTYPE_F32) {
        back->t[BACK_DLOGITS] = block_new(k, BUF_DACTIVATION, "drouter_logits", z.ns, z.e);
        EMIT(k->e, cast, back->t[BACK_DLOGITS], dlogits);
    }
    block_product(k, dxn, back->t[BACK_DLOGITS], block_param(k, u, ROLE_GATE, 1), OP_ADD_TO);
}

struct tensor experts_dgrad(struct block *k, struct layer_units u, const struct layer_saved *saved, struct tensor dy,
                            struct layer_back *back)
{
    const struct sizes z = sizes_of(k);
    const struct tensor *s = saved->t;

    titan_assert(u.own && u.experts);
    const struct tensor dout = block_new(k, BUF_DACTIVATION, "drows_out", z.rows, z.c);
    EMIT(k->e, scatter_rows, dout, dy, s[SAVED_PLACE], s[SAVED_WEIGHTS]);
    back->t[BACK_DROWS] = exchange(k, BUF_DACTIVATION, "drows_out", saved, dout);
    const struct tensor dx = run_experts_dgrad(k, u.experts, saved, back);
    const struct tensor drows = exchange_back(k, BUF_DACTIVATION, "drows", saved, dx);
    /* dxn2 (Ns,C): of experts, router and shared experts */
    const struct tensor dxn = block_new(k, BUF_DACTIVATION, "dxn2", z.ns, z.c);
    EMIT(k->e, combine_rows, dxn, drows, s[SAVED_PLACE], TENSOR_NONE);
    route_dgrad(k, u.own, saved, dy, dxn, back);
    if (k->layout->model->dims.n_shared_experts > 0)
        EMIT(k->e, add, dxn, dxn, block_feed_forward_dgrad(k, u.own, saved, dy, back));
    return dxn;
}

/* --- weight gradient ---------------------------------------------------------------------------------------------- */

void experts_wgrad(struct block *k, struct layer_units u, const struct layer_saved *saved,
                   const struct layer_back *back)
{
    const struct sizes z = sizes_of(k);
    const struct unit_buffers *x = u.experts;
    const struct tensor counts = counts_here(k, saved), *s = saved->t, *g = back->t;
    const struct tensor dgate = tensor_cols(g[BACK_DROWS_GU], 0, z.m), dup = tensor_cols(g[BACK_DROWS_GU], z.m, z.m);

    block_begin_grads(k, x);
    EMIT(k->e, matmul_grouped, block_grad(k, x, ROLE_W2, 1), g[BACK_DROWS], s[SAVED_ROWS_ACT], counts, .rows = z.rows,
         .flags = OP_TA | (x->first ? 0 : OP_ADD_TO));
    EMIT(k->e, matmul_grouped, block_grad(k, x, ROLE_W1, 1), dgate, s[SAVED_ROWS], counts, .rows = z.rows,
         .flags = OP_TA | (x->first ? 0 : OP_ADD_TO));
    EMIT(k->e, matmul_grouped, block_grad(k, x, ROLE_W3, 1), dup, s[SAVED_ROWS], counts, .rows = z.rows,
         .flags = OP_TA | (x->first ? 0 : OP_ADD_TO));
    block_linear_wgrad(k, u.own, ROLE_GATE, 1, g[BACK_DLOGITS], s[SAVED_XN2_OWN]);
    if (k->layout->model->dims.n_shared_experts > 0)
        block_feed_forward_wgrad(k, u.own, saved, back);
}
