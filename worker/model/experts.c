/* SPDX-License-Identifier: Apache-2.0 */
/* experts.c - router, exchange of rows, experts. */
#include "worker/model/experts.h"

#include <math.h>

#include "base/cleanup.h"
#include "worker/model/parts.h"

struct sizes {
    int ep;
    /* Experts are cut over tp: each tp rank has all of their tokens and a part of their width. */
    bool cut;
    int64_t ns, c, m;
    int64_t e, here, top_k; /* experts in all, experts on this rank, experts per token */
    int64_t each;           /* the most rows that one expert takes from one rank's tokens */
    /* rows: of this rank's tokens, for all experts; round_rows: rows that this rank's experts take in one round. */
    int64_t rows, round_rows;
    int64_t rounds; /* number of rounds: enough for the most rows that this rank's experts can get */
    int parts;      /* experts_parts() */
};

/* With more rounds a program would be too long to read. */
#define ROUNDS_MAX 64

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static uint32_t order_flags(const struct block *k)
{
    return k->by_rank ? OP_BY_RANK : 0;
}

static struct sizes sizes_of(const struct block *k)
{
    const struct model_dims *d = &k->layout->model->dims;
    const int ep = mesh_group_size(&k->layout->mesh, GROUP_EP), cut = mesh_expert_cut(&k->layout->mesh);
    const int64_t ns = cut > 1 ? block_tokens_local(k) : block_tokens_sharded(k), here = d->n_experts / ep;

    titan_assert(d->n_experts > 0 && d->n_experts % ep == 0 && d->moe_hidden % cut == 0);
    /* the most rows that one expert takes from ns tokens, each of which chooses top_k experts */
    int64_t each = ns;
    if (k->expert_capacity > 0)
        each = MIN(ns, MAX(1, (int64_t)ceil(k->expert_capacity * (double)(ns * d->top_k) / (double)d->n_experts)));
    const int64_t rows = MIN(ns * d->top_k, d->n_experts * each);
    /* The rows of one round: as many as a rank's experts can get, or fewer if block.expert_parallel_room sets a smaller
     * room. A full round may leave up to EXPERT_SPLIT - 1 rows free. */
    const int64_t most = ep * MIN(ns * MIN(d->top_k, here), here * each);
    int64_t round_rows = most;
    if (ep > 1 && k->expert_parallel_room > 0) {
        const int64_t least = MAX(2 * EXPERT_SPLIT, ceil_div(most, ROUNDS_MAX) + EXPERT_SPLIT - 1);
        round_rows = MIN(most, MAX(least, (int64_t)ceil(k->expert_parallel_room * (double)rows)));
    }
    return (struct sizes){.ep = ep,
                          .cut = cut > 1,
                          .ns = ns,
                          .c = d->dim,
                          .m = d->moe_hidden / cut,
                          .e = d->n_experts,
                          .here = here,
                          .top_k = d->top_k,
                          .each = each,
                          .rows = rows,
                          .round_rows = round_rows,
                          .parts = experts_parts(k),
                          .rounds = round_rows >= most ? 1 : ceil_div(most, round_rows - EXPERT_SPLIT + 1)};
}

int experts_parts(const struct block *k)
{
    return k->by_rank ? mesh_group_size(&k->layout->mesh, GROUP_EP) : 1;
}

int64_t experts_rounds(const struct block *k)
{
    return sizes_of(k).rounds;
}

int64_t experts_rows_even(const struct block *k)
{
    return sizes_of(k).rows;
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

/* Returns the input of experts and their router: this tp rank's tokens, or the tokens of all tp ranks if experts are
 * cut. */
static struct tensor routed_input(const struct block *k, const struct layer_saved *saved)
{
    return saved->t[mesh_expert_cut(&k->layout->mesh) > 1 ? SAVED_XN2 : SAVED_XN2_OWN];
}

/* --- which row goes where ----------------------------------------------------------------------------------------- */

/* Routes the tokens. With ep > 1 returns how many rows each rank sends to each expert here: (ep,E/ep). With several
 * rounds the numbers are per round: (ep,rounds*E/ep). */
static struct tensor route(struct block *k, struct layer_units u, const struct block_tokens *tokens,
                           struct layer_saved *saved)
{
    const struct sizes z = sizes_of(k);
    const struct model_dims *d = &k->layout->model->dims;
    struct tensor *s = saved->t;

    titan_assert(u.experts);
    s[SAVED_LOGITS] = block_new_f32(k, BUF_ACTIVATION, "router_logits", z.ns, z.e);
    block_linear(k, u.own, ROLE_GATE, 1, s[SAVED_LOGITS], routed_input(k, saved));
    s[SAVED_CHOSEN] = new_table(k, "chosen", z.ns, z.top_k);
    s[SAVED_WEIGHTS] = block_new_f32(k, BUF_ACTIVATION, "router_weights", z.ns, z.top_k);
    EMIT(k->e, route, s[SAVED_CHOSEN], s[SAVED_WEIGHTS], s[SAVED_LOGITS], k->round_robin ? tokens->index : TENSOR_NONE,
         of_unit(k->bias, u.experts->unit), of_unit(k->expert_tokens, u.experts->unit), .groups = d->n_expert_groups,
         .top_groups = d->n_limited_groups, .group_top_k = d->group_top_k, .scale = d->route_scale,
         .flags = routing_flags(k));
    s[SAVED_PLACE] = new_table(k, "place", z.ns, z.top_k);
    s[SAVED_COUNTS] = new_table(k, "expert_rows", z.ep, z.here);
    s[SAVED_RANK_COUNTS] = new_table(k, "rank_rows", 1, z.ep);
    EMIT(k->e, permute, s[SAVED_PLACE], s[SAVED_COUNTS], s[SAVED_RANK_COUNTS], s[SAVED_CHOSEN],
         of_unit(k->dropped, u.experts->unit), .capacity = z.each < z.ns ? z.each : 0);
    if (z.ep == 1)
        return TENSOR_NONE;
    const struct tensor received = new_table(k, "received_rows", z.ep, z.here);
    emit_all_to_all(k->e, CHANNEL_EP, received, s[SAVED_COUNTS]);
    if (z.rounds == 1)
        return received;
    s[SAVED_RECEIVED] = new_table(k, "received_in_rounds", z.ep, z.rounds * z.here);
    EMIT(k->e, split_rounds, s[SAVED_RECEIVED], received, k->seen ? *k->seen : TENSOR_NONE, .room = z.round_rows,
         .flags = order_flags(k));
    s[SAVED_SENT] = new_table(k, "sent_in_rounds", z.ep, z.rounds * z.here);
    emit_all_to_all(k->e, CHANNEL_EP, s[SAVED_SENT], s[SAVED_RECEIVED]);
    return s[SAVED_RECEIVED];
}

/* The rows that travel in one round, and their places. */
struct round {
    /* number: number of the round. expected: number of rows, if every rank gets an even share. */
    int64_t number, expected;
    struct tensor sent, received; /* with ep > 1: numbers of rows to each rank and from each rank */
    /* With several rounds. place_sent: for each row in the order by expert, its place among this round's rows. origin:
     * the inverse of place_sent. */
    struct tensor place_sent, origin;
    struct tensor place_here, counts; /* places of arrived rows in the order by expert; rows of each expert */
};

static struct round round_of(struct block *k, const struct layer_saved *saved, struct tensor received, int64_t number)
{
    const struct sizes z = sizes_of(k);
    const struct tensor *s = saved->t;
    struct round r = {.number = number,
                      .expected = number == 0 ? z.rows : 0,
                      .sent = s[SAVED_RANK_COUNTS],
                      .received = TENSOR_NONE,
                      .place_sent = TENSOR_NONE,
                      .origin = TENSOR_NONE,
                      .place_here = TENSOR_NONE,
                      .counts = s[SAVED_COUNTS]};

    titan_assert(number >= 0 && number < z.rounds);
    if (z.ep == 1)
        return r;
    if (z.rounds > 1) {
        r.place_sent = new_table(k, "place_in_round", z.rows, 1);
        r.origin = new_table(k, "origin_in_round", z.rows, 1);
        r.sent = new_table(k, "rank_rows", 1, z.ep);
        EMIT(k->e, place_round, r.place_sent, r.origin, r.sent, s[SAVED_SENT], .rounds = z.rounds, .round = number);
    }
    r.place_here = new_table(k, "place_here", z.round_rows, 1);
    r.counts = new_table(k, "expert_rows_here", z.parts, z.here);
    r.received = new_table(k, "rank_rows_here", 1, z.ep);
    EMIT(k->e, permute_received, r.place_here, r.counts, r.received, tensor_cols(received, number * z.here, z.here),
         .flags = order_flags(k));
    return r;
}

/* Sends this round's part of rows (Ns*top_k,C), sorted by expert, to the experts' ranks. Returns (R,C), sorted by the
 * experts there. */
static struct tensor exchange(struct block *k, enum buffer_kind kind, const char *name, const struct round *r,
                              struct tensor rows)
{
    const struct sizes z = sizes_of(k);
    struct tensor leaving = rows;

    if (z.ep == 1)
        return rows;
    if (z.rounds > 1) {
        leaving = block_new(k, kind, name, z.rows, z.c);
        EMIT(k->e, scatter_rows, leaving, rows, r->place_sent, TENSOR_NONE, .flags = 0);
    }
    const struct tensor arrived = block_new(k, kind, name, z.round_rows, z.c);
    emit_all_to_all_v(k->e, CHANNEL_EP, (struct counted_rows){arrived, r->received},
                      (struct counted_rows){leaving, r->sent}, r->expected);
    const struct tensor sorted = block_new(k, kind, name, z.round_rows, z.c);
    EMIT(k->e, scatter_rows, sorted, arrived, r->place_here, TENSOR_NONE, .flags = 0);
    return sorted;
}

/* The reverse of exchange(): returns rows from the experts' ranks into *all (Ns*top_k,C). */
static void exchange_back(struct block *k, enum buffer_kind kind, const char *name, const struct round *r,
                          struct tensor rows, struct tensor *all)
{
    const struct sizes z = sizes_of(k);

    if (z.ep == 1) {
        *all = rows;
        return;
    }
    const struct tensor by_rank = block_new(k, kind, name, z.round_rows, z.c);
    EMIT(k->e, combine_rows, by_rank, rows, r->place_here, TENSOR_NONE, .flags = OP_KEEP);
    const struct tensor back = block_new(k, kind, name, z.rows, z.c);
    emit_all_to_all_v(k->e, CHANNEL_EP, (struct counted_rows){back, r->sent},
                      (struct counted_rows){by_rank, r->received}, r->expected);
    if (z.rounds == 1) {
        *all = back;
        return;
    }
    if (r->number == 0)
        *all = block_new(k, kind, name, z.rows, z.c);
    EMIT(k->e, scatter_rows, *all, back, r->origin, TENSOR_NONE, .flags = r->number == 0 ? 0 : OP_ADD_TO);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* The experts' input in a round, and their results. */
struct pass {
    struct tensor rows, gu, act; /* (R,C), (R,2M), (R,M) */
};

static bool has_biases(const struct block *k)
{
    return k->layout->model->dims.mlp_bias;
}

/* Computes silu(w1 x) * w3 x of each row's expert, or the model's other gate. */
static struct pass run_experts(struct block *k, const struct unit_buffers *u, const struct round *r, struct tensor rows)
{
    const struct sizes z = sizes_of(k);
    const struct pass x = {.rows = rows,
                           .gu = block_new(k, BUF_ACTIVATION, "rows_gu", z.round_rows, 2 * z.m),
                           .act = block_new(k, BUF_ACTIVATION, "rows_act", z.round_rows, z.m)};
    const struct tensor gate = tensor_cols(x.gu, 0, z.m), up = tensor_cols(x.gu, z.m, z.m);

    EMIT(k->e, matmul_grouped, gate, rows, block_param(k, u, ROLE_W1, 1), r->counts, .rows = r->expected,
         .flags = OP_TB);
    EMIT(k->e, matmul_grouped, up, rows, block_param(k, u, ROLE_W3, 1), r->counts, .rows = r->expected, .flags = OP_TB);
    if (has_biases(k)) {
        EMIT(k->e, add_bias_grouped, gate, block_param(k, u, ROLE_W1_BIAS, 1), r->counts);
        EMIT(k->e, add_bias_grouped, up, block_param(k, u, ROLE_W3_BIAS, 1), r->counts);
    }
    block_gate(k, x.act, gate, up, z.ep > 1 ? r->counts : TENSOR_NONE);
    return x;
}

struct tensor experts_forward(struct block *k, struct layer_units u, const struct block_tokens *tokens,
                              struct layer_saved *saved)
{
    const struct sizes z = sizes_of(k);
    struct tensor *s = saved->t;

    titan_assert(u.own && u.experts);
    /* xn2 (Ns,C) */
    const int64_t own = block_tokens_sharded(k);
    s[SAVED_XN2_OWN] = block_new(k, BUF_ACTIVATION, "xn2", own, z.c);
    s[SAVED_RSTD2] = block_new_f32(k, BUF_ACTIVATION, "rstd", 1, own);
    EMIT(k->e, rmsnorm, s[SAVED_XN2_OWN], s[SAVED_RSTD2], s[SAVED_H], block_param(k, u.own, ROLE_FFN_NORM, 1),
         .eps = k->layout->model->dims.norm_eps, .flags = block_norm_flags(k));
    if (z.cut)
        s[SAVED_XN2] = emit_all_gather(k->e, CHANNEL_TP, BUF_ACTIVATION, "xn2", s[SAVED_XN2_OWN]);
    const struct tensor received = route(k, u, tokens, saved);
    const struct tensor rows = block_new(k, BUF_ACTIVATION, "rows", z.rows, z.c);
    EMIT(k->e, scatter_rows, rows, routed_input(k, saved), s[SAVED_PLACE], TENSOR_NONE, .flags = 0);
    for (int64_t q = 0; q < z.rounds; q++) {
        const struct round r = round_of(k, saved, received, q);
        const struct pass x = run_experts(k, u.experts, &r, exchange(k, BUF_ACTIVATION, "rows", &r, rows));
        const struct tensor out = block_new(k, BUF_ACTIVATION, "rows_out", z.round_rows, z.c);
        EMIT(k->e, matmul_grouped, out, x.act, block_param(k, u.experts, ROLE_W2, 1), r.counts, .rows = r.expected,
             .flags = OP_TB);
        if (has_biases(k)) /* if experts are cut over tp: the bias of this rank's columns only */
            EMIT(k->e, add_bias_grouped, out, block_param(k, u.experts, ROLE_W2_BIAS, 1), r.counts);
        exchange_back(k, BUF_ACTIVATION, "rows_out", &r, out, &s[SAVED_ROWS_OUT]);
        if (q == 0) {
            s[SAVED_ROWS] = x.rows;
            s[SAVED_ROWS_GU] = x.gu;
            s[SAVED_ROWS_ACT] = x.act;
            if (z.ep > 1) {
                s[SAVED_RANK_COUNTS_HERE] = r.received;
                s[SAVED_PLACE_HERE] = r.place_here;
                s[SAVED_COUNTS_HERE] = r.counts;
            }
            if (z.ep > 1 && z.rounds > 1) {
                s[SAVED_RANK_COUNTS_SENT] = r.sent;
                s[SAVED_PLACE_SENT] = r.place_sent;
                s[SAVED_ORIGIN] = r.origin;
            }
        }
    }
    /* y (Ns,C). If experts are cut, this rank has a part of each sum. */
    struct tensor routed = block_new(k, BUF_ACTIVATION, "routed", z.ns, z.c);
    EMIT(k->e, combine_rows, routed, s[SAVED_ROWS_OUT], s[SAVED_PLACE], s[SAVED_WEIGHTS], .flags = 0);
    if (z.cut)
        routed = emit_reduce_scatter(k->e, CHANNEL_TP, BUF_ACTIVATION, "routed", routed);
    struct tensor residual = s[SAVED_H];
    if (k->layout->model->dims.n_shared_experts > 0) {
        if (!z.cut)
            s[SAVED_XN2] = emit_all_gather(k->e, CHANNEL_TP, BUF_ACTIVATION, "xn2", s[SAVED_XN2_OWN]);
        residual = block_feed_forward(k, u.own, s[SAVED_H], saved);
    }
    EMIT(k->e, add, routed, routed, residual);
    return routed;
}

/* --- input gradient ----------------------------------------------------------------------------------------------- */

/* Returns a round as it was in forward, and its pass. Rounds after the first are rare, so forward does not keep them:
 * they are computed again here. */
static struct round recompute_round(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                                    int64_t number, struct tensor rows, struct pass *ret)
{
    const struct sizes z = sizes_of(k);
    const struct tensor *s = saved->t;

    if (number == 0) { /* forward kept the tables of the first round */
        *ret = (struct pass){.rows = s[SAVED_ROWS], .gu = s[SAVED_ROWS_GU], .act = s[SAVED_ROWS_ACT]};
        return (struct round){.expected = z.rows,
                              .sent = s[z.rounds > 1 ? SAVED_RANK_COUNTS_SENT : SAVED_RANK_COUNTS],
                              .received = s[SAVED_RANK_COUNTS_HERE],
                              .place_sent = s[SAVED_PLACE_SENT],
                              .origin = s[SAVED_ORIGIN],
                              .place_here = s[SAVED_PLACE_HERE],
                              .counts = s[z.ep > 1 ? SAVED_COUNTS_HERE : SAVED_COUNTS]};
    }
    const struct round r = round_of(k, saved, s[SAVED_RECEIVED], number);
    *ret = run_experts(k, u, &r, exchange(k, BUF_ACTIVATION, "rows", &r, rows));
    return r;
}

/* Computes forward's rows of all rounds again, for rounds that are recomputed. With one round returns TENSOR_NONE. */
static struct tensor recomputed_rows(struct block *k, const struct layer_saved *saved)
{
    const struct sizes z = sizes_of(k);
    const struct tensor *s = saved->t;

    if (z.rounds == 1)
        return TENSOR_NONE;
    const struct tensor rows = block_new(k, BUF_ACTIVATION, "rows", z.rows, z.c);
    EMIT(k->e, scatter_rows, rows, routed_input(k, saved), s[SAVED_PLACE], TENSOR_NONE, .flags = 0);
    return rows;
}

/* drows (R,C) -> gradient of gate and up (R,2M) */
static struct tensor run_experts_dgu(struct block *k, const struct unit_buffers *u, const struct round *r,
                                     const struct pass *x, struct tensor drows)
{
    const struct sizes z = sizes_of(k);
    const struct tensor dact = block_new(k, BUF_DACTIVATION, "drows_act", z.round_rows, z.m);

    EMIT(k->e, matmul_grouped, dact, drows, block_param(k, u, ROLE_W2, 1), r->counts, .rows = r->expected, .flags = 0);
    const struct tensor dgu = block_new(k, BUF_DACTIVATION, "drows_gu", z.round_rows, 2 * z.m);
    block_gate_dgrad(k, dgu, dact, tensor_cols(x->gu, 0, z.m), tensor_cols(x->gu, z.m, z.m),
                     z.ep > 1 ? r->counts : TENSOR_NONE);
    return dgu;
}

/* Computes the balance loss of each sequence and adds its gradient to dlogits. A sequence can be cut over several
 * ranks. Its statistics are gathered first, so that the loss is the same on every mesh. */
static void balance_loss(struct block *k, const struct block_tokens *tokens, const struct layer_saved *saved,
                         struct tensor dlogits)
{
    const struct sizes z = sizes_of(k);
    const uint32_t flags = routing_flags(k) & OP_SIGMOID;
    const struct tensor *s = saved->t;
    /* If experts are cut over tp, the router's gradient is a sum over tp ranks. So each rank adds a part. */
    const double factor = k->layout->model->dims.balance_loss / mesh_expert_cut(&k->layout->mesh);

    struct tensor stats = block_new_f32(k, BUF_WORK, "balance_stats", k->b, BALANCE_STATS(z.e));
    EMIT(k->e, balance_stats, stats, s[SAVED_LOGITS], s[SAVED_CHOSEN], tokens->targets, .pieces = 1, .flags = flags);
    if (!z.cut)
        stats = emit_all_gather(k->e, CHANNEL_TP, BUF_WORK, "balance_stats", stats);
    stats = emit_all_gather(k->e, CHANNEL_CP, BUF_WORK, "balance_stats", stats);
    const struct tensor losses = block_new_f32(k, BUF_WORK, "balance_losses", 1, k->b);
    const struct tensor dscores = block_new_f32(k, BUF_WORK, "dscores", k->b, z.e);
    EMIT(k->e, balance_loss, losses, dscores, stats, .top_k = z.top_k, .tokens = k->t, .factor = factor);
    if (k->statistics && tensor_exists(*k->statistics))
        EMIT(k->e, balance_loss_sum, *k->statistics, losses);
    EMIT(k->e, balance_dgrad, dlogits, s[SAVED_LOGITS], dscores, .all = block_tokens_local(k), .pieces = 1,
         .flags = flags);
}

struct tensor experts_dgrad(struct block *k, struct layer_units u, const struct block_tokens *tokens,
                            const struct layer_saved *saved, struct tensor dy, struct layer_back *back)
{
    const struct sizes z = sizes_of(k);
    const struct tensor *s = saved->t;

    titan_assert(u.own && u.experts);
    const struct tensor dall = z.cut ? emit_all_gather(k->e, CHANNEL_TP, BUF_DACTIVATION, "dy of all", dy) : dy;
    const struct tensor dout = block_new(k, BUF_DACTIVATION, "drows_out", z.rows, z.c);
    EMIT(k->e, scatter_rows, dout, dall, s[SAVED_PLACE], s[SAVED_WEIGHTS], .flags = 0);
    const struct tensor rows = recomputed_rows(k, saved);
    struct tensor drows = TENSOR_NONE;
    for (int64_t q = 0; q < z.rounds; q++) {
        struct pass x;
        const struct round r = recompute_round(k, u.experts, saved, q, rows, &x);
        const struct tensor arrived = exchange(k, BUF_DACTIVATION, "drows_out", &r, dout);
        const struct tensor dgu = run_experts_dgu(k, u.experts, &r, &x, arrived);
        const struct tensor dx = block_new(k, BUF_DACTIVATION, "drows", z.round_rows, z.c);
        EMIT(k->e, matmul_grouped, dx, tensor_cols(dgu, 0, z.m), block_param(k, u.experts, ROLE_W1, 1), r.counts,
             .rows = r.expected, .flags = 0);
        EMIT(k->e, matmul_grouped, dx, tensor_cols(dgu, z.m, z.m), block_param(k, u.experts, ROLE_W3, 1), r.counts,
             .rows = r.expected, .flags = OP_ADD_TO);
        exchange_back(k, BUF_DACTIVATION, "drows", &r, dx, &drows);
        if (q == 0) {
            back->t[BACK_DROWS] = arrived;
            back->t[BACK_DROWS_GU] = dgu;
        }
    }
    if (z.rounds > 1)
        back->t[BACK_DROWS_OUT] = dout;
    /* dxn2 (Ns,C): sum over experts, router and shared experts. If experts are cut over tp, both the experts' and the
     * router's gradient are sums over the experts' width. So each tp rank has a part of both. */
    struct tensor dxn = block_new(k, BUF_DACTIVATION, "dxn2", z.ns, z.c);
    EMIT(k->e, combine_rows, dxn, drows, s[SAVED_PLACE], TENSOR_NONE, .flags = 0);

    /* The router: dlogits from the gradient of the combined rows. Its input gradient is added to dxn. */
    const struct tensor dweights = block_new_f32(k, BUF_DACTIVATION, "drouter_weights", z.ns, z.top_k);
    EMIT(k->e, combine_dweights, dweights, dall, s[SAVED_ROWS_OUT], s[SAVED_PLACE]);
    const struct tensor dlogits = block_new_f32(k, BUF_DACTIVATION, "drouter_logits", z.ns, z.e);
    EMIT(k->e, route_dgrad, dlogits, dweights, s[SAVED_LOGITS], s[SAVED_CHOSEN],
         .scale = k->layout->model->dims.route_scale, .flags = routing_flags(k));
    if (k->layout->model->dims.balance_loss > 0)
        balance_loss(k, tokens, saved, dlogits);
    back->t[BACK_DLOGITS] = dlogits;
    if (k->dt != DTYPE_F32) {
        back->t[BACK_DLOGITS] = block_new(k, BUF_DACTIVATION, "drouter_logits", z.ns, z.e);
        EMIT(k->e, cast, back->t[BACK_DLOGITS], dlogits);
    }
    block_product(k, dxn, back->t[BACK_DLOGITS], block_param(k, u.own, ROLE_GATE, 1), OP_ADD_TO);
    if (z.cut)
        dxn = emit_reduce_scatter(k->e, CHANNEL_TP, BUF_DACTIVATION, "dxn2", dxn);
    if (k->layout->model->dims.n_shared_experts > 0)
        EMIT(k->e, add, dxn, dxn, block_feed_forward_dgrad(k, u.own, saved, dy, back));
    return dxn;
}

/* --- weight gradient ---------------------------------------------------------------------------------------------- */

static struct unit_buffers part_of(const struct unit_buffers *u, int part)
{
    struct unit_buffers p = *u;

    titan_assert(u->grads >= 0 && part >= 0);
    p.grads += part;
    return p;
}

void experts_wgrad(struct block *k, struct layer_units u, const struct layer_saved *saved,
                   const struct layer_back *back)
{
    const struct sizes z = sizes_of(k);
    const struct tensor *g = back->t;
    const struct tensor rows = recomputed_rows(k, saved);

    for (int part = 0; part < experts_parts(k); part++) {
        const struct unit_buffers p = part_of(u.experts, part);
        block_begin_grads(k, &p);
    }
    for (int64_t q = 0; q < experts_rounds(k); q++) {
        struct pass x;
        const struct round r = recompute_round(k, u.experts, saved, q, rows, &x);
        struct tensor drows = g[BACK_DROWS], dgu = g[BACK_DROWS_GU];
        if (q > 0) {
            drows = exchange(k, BUF_DACTIVATION, "drows_out", &r, g[BACK_DROWS_OUT]);
            dgu = run_experts_dgu(k, u.experts, &r, &x, drows);
        }
        /* Gradients after the first are added to the buffer instead of overwriting it. */
        const uint32_t add = q > 0 || !u.experts->first ? OP_ADD_TO : 0;
        const int64_t n = r.expected / z.parts;
        for (int part = 0; part < z.parts; part++) {
            const struct unit_buffers p = part_of(u.experts, part);
            const struct tensor counts = tensor_rows(r.counts, 0, part + 1);
            const struct tensor dgate = tensor_cols(dgu, 0, z.m), dup = tensor_cols(dgu, z.m, z.m);
            EMIT(k->e, matmul_grouped, block_grad(k, &p, ROLE_W2, 1), drows, x.act, counts, .rows = n,
                 .flags = OP_TA | add);
            EMIT(k->e, matmul_grouped, block_grad(k, &p, ROLE_W1, 1), dgate, x.rows, counts, .rows = n,
                 .flags = OP_TA | add);
            EMIT(k->e, matmul_grouped, block_grad(k, &p, ROLE_W3, 1), dup, x.rows, counts, .rows = n,
                 .flags = OP_TA | add);
            if (has_biases(k)) {
                EMIT(k->e, bias_wgrad_grouped, block_grad(k, &p, ROLE_W2_BIAS, 1), drows, counts, .flags = add);
                EMIT(k->e, bias_wgrad_grouped, block_grad(k, &p, ROLE_W1_BIAS, 1), dgate, counts, .flags = add);
                EMIT(k->e, bias_wgrad_grouped, block_grad(k, &p, ROLE_W3_BIAS, 1), dup, counts, .flags = add);
            }
        }
    }
    block_linear_wgrad(k, u.own, ROLE_GATE, 1, g[BACK_DLOGITS], routed_input(k, saved));
    if (k->layout->model->dims.n_shared_experts > 0)
        block_feed_forward_wgrad(k, u.own, saved, back);
}
