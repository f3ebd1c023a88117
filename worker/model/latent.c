/* SPDX-License-Identifier: Apache-2.0 */
/* latent.c - projections of latent attention; attention.c has the rest. */
#include "worker/model/latent.h"

#include "base/cleanup.h"
#include "worker/model/parts.h"

/* Widths of the parts of a head, and ranks (widths) of the latent vectors. */
struct widths {
    int64_t nope, rope, v, q_rank, kv_rank;
};

static struct widths widths_of(const struct block *k)
{
    const struct model_dims *d = &k->layout->model->dims;
    titan_assert(d->kv_lora_rank > 0);
    return (struct widths){d->qk_nope_head_dim, d->qk_rope_head_dim, d->v_head_dim, d->q_lora_rank, d->kv_lora_rank};
}

/* Returns columns [from, from + count) of every head of x (N,heads*width), with one head per row. */
static struct tensor part_of_heads(struct tensor x, int64_t width, int64_t from, int64_t count)
{
    titan_assert(tensor_numel(x) % width == 0 && from + count <= width);
    return tensor_cols(tensor_reshape(x, tensor_numel(x) / width, width), from, count);
}

/* x (N,heads*rope), dense */
static void rotate(struct block *k, const struct block_tokens *tokens, struct tensor x, bool backward)
{
    const int64_t d = widths_of(k).rope;
    const struct tensor c = tensor_at(k->table[TABLE_COS], 0, DTYPE_F32, k->t, d / 2);
    const struct tensor s = tensor_at(k->table[TABLE_SIN], 0, DTYPE_F32, k->t, d / 2);

    titan_assert(x.cols % d == 0);
    EMIT(k->e, rope, x, tokens->positions, c, s, .heads = x.cols / d, .flags = backward ? OP_BACKWARD : 0);
}

/* Rotates the last columns of every head of q (N,H*(nope+rope)). */
static void rotate_heads(struct block *k, const struct block_tokens *tokens, struct tensor q, bool backward)
{
    const struct widths w = widths_of(k);
    const struct tensor part = part_of_heads(q, w.nope + w.rope, w.nope, w.rope);
    const struct tensor dense = block_new(k, BUF_WORK, "q_rope", q.rows, tensor_numel(part) / q.rows);

    emit_copy(k->e, tensor_reshape(dense, part.rows, w.rope), part);
    rotate(k, tokens, dense, backward);
    emit_copy(k->e, part, tensor_reshape(dense, part.rows, w.rope));
}

/* wkv_a has two parts: rows of the latent vector (this function) and rows of the rotated key (rope_rows()). */
static struct tensor latent_rows(const struct block *k, struct tensor wkv_a)
{
    return tensor_rows(wkv_a, 0, widths_of(k).kv_rank);
}

static struct tensor rope_rows(const struct block *k, struct tensor wkv_a)
{
    const struct widths w = widths_of(k);
    return tensor_rows(wkv_a, w.kv_rank, w.rope);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static struct tensor norm_latent(struct block *k, const char *name, struct tensor x, struct tensor gain,
                                 struct tensor *ret_rstd)
{
    const struct model_dims *d = &k->layout->model->dims;
    const struct tensor out = block_new(k, BUF_ACTIVATION, name, x.rows, x.cols);

    *ret_rstd = block_new_f32(k, BUF_ACTIVATION, "latent_rstd", 1, x.rows);
    EMIT(k->e, rmsnorm, out, *ret_rstd, x, gain, .eps = d->latent_norm_eps > 0 ? d->latent_norm_eps : d->norm_eps,
         .flags = block_norm_flags(k));
    return out;
}

void latent_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                    struct layer_saved *saved)
{
    const struct block_sizes z = block_sizes(k);
    const struct widths w = widths_of(k);
    struct tensor *s = saved->t;

    /* queries */
    s[SAVED_Q] = block_new(k, BUF_ACTIVATION, "q", z.n, z.hd);
    if (w.q_rank == 0) {
        block_linear(k, u, ROLE_WQ, 1, s[SAVED_Q], s[SAVED_XN1]);
    } else {
        s[SAVED_Q_LATENT] = block_new(k, BUF_ACTIVATION, "q_latent", z.n, w.q_rank);
        block_linear(k, u, ROLE_WQ_A, 1, s[SAVED_Q_LATENT], s[SAVED_XN1]);
        s[SAVED_Q_LATENT_NORMED] = norm_latent(k, "q_latent_normed", s[SAVED_Q_LATENT],
                                               block_param(k, u, ROLE_Q_NORM, 1), &s[SAVED_Q_LATENT_RSTD]);
        block_linear(k, u, ROLE_WQ_B, 1, s[SAVED_Q], s[SAVED_Q_LATENT_NORMED]);
        s[SAVED_Q_LATENT_NORMED] = block_kept(k, u, ROLE_WQ_B, 1, s[SAVED_Q_LATENT_NORMED]);
    }
    rotate_heads(k, tokens, s[SAVED_Q], false);

    /* the latent vector of keys and values, and the key that all heads share */
    const struct tensor wkv_a = block_param(k, u, ROLE_WKV_A, 1);
    s[SAVED_KV_LATENT] = block_new(k, BUF_ACTIVATION, "kv_latent", z.n, w.kv_rank);
    block_linear_part(k, u, ROLE_WKV_A, LINEAR_FORWARD, s[SAVED_KV_LATENT], s[SAVED_XN1], latent_rows(k, wkv_a), OP_TB);
    const struct tensor k_rope = block_new(k, BUF_ACTIVATION, "k_rope", z.n, w.rope);
    block_linear_part(k, u, ROLE_WKV_A, LINEAR_FORWARD, k_rope, s[SAVED_XN1], rope_rows(k, wkv_a), OP_TB);
    if (block_keeps_codes(k, u, ROLE_WKV_A, 1))
        s[SAVED_XN1] = block_kept(k, u, w.q_rank == 0 ? ROLE_WQ : ROLE_WQ_A, 1, s[SAVED_XN1]);
    rotate(k, tokens, k_rope, false);
    s[SAVED_KV_LATENT_NORMED] = norm_latent(k, "kv_latent_normed", s[SAVED_KV_LATENT],
                                            block_param(k, u, ROLE_KV_NORM, 1), &s[SAVED_KV_LATENT_RSTD]);

    /* keys and values from kv_b (N,H*(nope+v)) */
    const struct tensor kv_b = block_new(k, BUF_ACTIVATION, "kv_b", z.n, z.h * (w.nope + w.v));
    block_linear(k, u, ROLE_WKV_B, 1, kv_b, s[SAVED_KV_LATENT_NORMED]);
    s[SAVED_KV_LATENT_NORMED] = block_kept(k, u, ROLE_WKV_B, 1, s[SAVED_KV_LATENT_NORMED]);
    s[SAVED_K] = block_new(k, BUF_ACTIVATION, "k", z.n, z.kd);
    emit_copy(k->e, part_of_heads(s[SAVED_K], z.d, 0, w.nope), part_of_heads(kv_b, w.nope + w.v, 0, w.nope));
    emit_copy(k->e, part_of_heads(s[SAVED_K], z.d, w.nope, w.rope), k_rope);
    s[SAVED_V] = block_new(k, BUF_ACTIVATION, "v", z.n, z.vd);
    emit_copy(k->e, part_of_heads(s[SAVED_V], w.v, 0, w.v), part_of_heads(kv_b, w.nope + w.v, w.nope, w.v));
    if (z.cp > 1) { /* keys and values travel over cp in one buffer, side by side */
        s[SAVED_KV] = block_new(k, BUF_ACTIVATION, "kv", z.n, z.kd + z.vd);
        const struct tensor keys = tensor_cols(s[SAVED_KV], 0, z.kd), values = tensor_cols(s[SAVED_KV], z.kd, z.vd);
        emit_copy(k->e, keys, s[SAVED_K]);
        emit_copy(k->e, values, s[SAVED_V]);
        s[SAVED_K] = keys;
        s[SAVED_V] = values;
    }
    attention_scores(k, tokens, saved);
}

/* --- input gradient ----------------------------------------------------------------------------------------------- */

/* Returns the gradient of a norm's input. */
static struct tensor norm_latent_dgrad(struct block *k, const char *name, struct tensor dnormed, struct tensor x,
                                       struct tensor gain, struct tensor rstd)
{
    const struct tensor dx = block_new(k, BUF_DACTIVATION, name, x.rows, x.cols);

    EMIT(k->e, rmsnorm_dgrad, dx, dnormed, x, gain, rstd, .flags = block_norm_flags(k));
    return dx;
}

struct tensor latent_dgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                           const struct layer_saved *saved, struct tensor dattn, struct layer_back *back)
{
    const struct block_sizes z = block_sizes(k);
    const struct widths w = widths_of(k);
    const struct tensor *s = saved->t;
    struct tensor *g = back->t;
    const struct attention_grads out = {.q = block_new(k, BUF_DACTIVATION, "dq", z.n, z.hd),
                                        .k = block_new(k, BUF_DACTIVATION, "dk", z.n, z.kd),
                                        .v = block_new(k, BUF_DACTIVATION, "dv", z.n, z.vd)};

    g[BACK_DQ] = out.q;
    attention_scores_dgrad(k, tokens, saved, dattn, &out);
    rotate_heads(k, tokens, out.q, true);

    /* The gradients of keys (N,H*D) and values (N,H*Dv). The gradient of the shared key is the sum over all heads. */
    g[BACK_DK_ROPE] = block_new(k, BUF_DACTIVATION, "dk_rope", z.n, w.rope);
    EMIT(k->e, zero, g[BACK_DK_ROPE]);
    EMIT(k->e, add_2d, g[BACK_DK_ROPE], part_of_heads(out.k, z.d, w.nope, w.rope));
    rotate(k, tokens, g[BACK_DK_ROPE], true);
    g[BACK_DKV_B] = block_new(k, BUF_DACTIVATION, "dkv_b", z.n, z.h * (w.nope + w.v));
    emit_copy(k->e, part_of_heads(g[BACK_DKV_B], w.nope + w.v, 0, w.nope), part_of_heads(out.k, z.d, 0, w.nope));
    emit_copy(k->e, part_of_heads(g[BACK_DKV_B], w.nope + w.v, w.nope, w.v), part_of_heads(out.v, w.v, 0, w.v));

    /* dxn (N,C): here the gradient through queries is written */
    const struct tensor dxn = block_new(k, BUF_DACTIVATION, "dxn1", z.n, z.c);
    if (w.q_rank == 0) {
        block_linear_dgrad(k, u, ROLE_WQ, 1, dxn, g[BACK_DQ]);
    } else {
        g[BACK_DQ_LATENT_NORMED] = block_new(k, BUF_DACTIVATION, "dq_latent_normed", dxn.rows, w.q_rank);
        block_linear_dgrad(k, u, ROLE_WQ_B, 1, g[BACK_DQ_LATENT_NORMED], g[BACK_DQ]);
        g[BACK_DQ_LATENT] = norm_latent_dgrad(k, "dq_latent", g[BACK_DQ_LATENT_NORMED], s[SAVED_Q_LATENT],
                                              block_param(k, u, ROLE_Q_NORM, 1), s[SAVED_Q_LATENT_RSTD]);
        block_linear_dgrad(k, u, ROLE_WQ_A, 1, dxn, g[BACK_DQ_LATENT]);
    }

    /* here the gradient through keys and values is added to dxn */
    const struct tensor wkv_a = block_param(k, u, ROLE_WKV_A, 1);
    g[BACK_DKV_LATENT_NORMED] = block_new(k, BUF_DACTIVATION, "dkv_latent_normed", dxn.rows, w.kv_rank);
    block_linear_dgrad(k, u, ROLE_WKV_B, 1, g[BACK_DKV_LATENT_NORMED], g[BACK_DKV_B]);
    g[BACK_DKV_LATENT] = norm_latent_dgrad(k, "dkv_latent", g[BACK_DKV_LATENT_NORMED], s[SAVED_KV_LATENT],
                                           block_param(k, u, ROLE_KV_NORM, 1), s[SAVED_KV_LATENT_RSTD]);
    block_linear_part(k, u, ROLE_WKV_A, LINEAR_DGRAD, dxn, g[BACK_DKV_LATENT], latent_rows(k, wkv_a), OP_ADD_TO);
    block_linear_part(k, u, ROLE_WKV_A, LINEAR_DGRAD, dxn, g[BACK_DK_ROPE], rope_rows(k, wkv_a), OP_ADD_TO);
    return dxn;
}

/* --- weight gradient ---------------------------------------------------------------------------------------------- */

void latent_wgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                  const struct layer_back *back)
{
    const struct tensor *s = saved->t, *g = back->t;
    const struct tensor dwkv_a = block_grad(k, u, ROLE_WKV_A, 1);
    const struct tensor xn = block_values(k, s[SAVED_XN1], dwkv_a.cols);
    const uint32_t flags = OP_TA | (u->first ? 0 : OP_ADD_TO);

    block_linear_wgrad(k, u, ROLE_WKV_B, 1, g[BACK_DKV_B], s[SAVED_KV_LATENT_NORMED]);
    EMIT(k->e, rmsnorm_dgain, block_grad(k, u, ROLE_KV_NORM, 1), g[BACK_DKV_LATENT_NORMED], s[SAVED_KV_LATENT],
         s[SAVED_KV_LATENT_RSTD]);
    block_linear_part(k, u, ROLE_WKV_A, LINEAR_WGRAD, latent_rows(k, dwkv_a), g[BACK_DKV_LATENT], xn, flags);
    block_linear_part(k, u, ROLE_WKV_A, LINEAR_WGRAD, rope_rows(k, dwkv_a), g[BACK_DK_ROPE], xn, flags);
    if (widths_of(k).q_rank == 0) {
        block_linear_wgrad(k, u, ROLE_WQ, 1, g[BACK_DQ], xn);
        return;
    }
    block_linear_wgrad(k, u, ROLE_WQ_B, 1, g[BACK_DQ], s[SAVED_Q_LATENT_NORMED]);
    EMIT(k->e, rmsnorm_dgain, block_grad(k, u, ROLE_Q_NORM, 1), g[BACK_DQ_LATENT_NORMED], s[SAVED_Q_LATENT],
         s[SAVED_Q_LATENT_RSTD]);
    block_linear_wgrad(k, u, ROLE_WQ_A, 1, g[BACK_DQ_LATENT], xn);
}
