/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - grouped-query attention: projections, the norm of heads, rotary embedding, context parallelism.
 *
 * Usually queries, keys and values share one buffer, side by side in each row. With the heads' norm, or where keys and
 * values travel over cp, they have separate buffers: a shared buffer would cost a copy. */
#include "base/cleanup.h"
#include "worker/model/parts.h"

/* --- mask and shape ----------------------------------------------------------------------------------------------- */

static struct attention_heads heads_of(const struct block *k, const struct block_sizes *z)
{
    return (struct attention_heads){.b = k->masked ? 1 : k->b,
                                    .h = z->h,
                                    .kv = z->kv,
                                    .d = z->d,
                                    .dv = z->dv,
                                    .scale = model_score_scale(k->layout->model),
                                    .softcap = k->layout->model->dims.attention_softcap,
                                    .order = k->masked ? ATTENTION_FIXED : k->order};
}

/* key_index: place of each key in the batch */
static struct attention_mask mask_of(const struct block *k, const struct block_tokens *tokens, struct tensor key_index)
{
    if (!k->masked)
        return (struct attention_mask){TENSOR_NONE, TENSOR_NONE, TENSOR_NONE};
    return (struct attention_mask){.index = tokens->index, .start = tokens->start, .key_index = key_index};
}

/* Key indices of all cp ranks, in rank order or in ring order. `table` selects the order. */
static struct tensor keys_of(const struct block *k, const struct block_sizes *z, enum table table)
{
    return tensor_at(k->table[table], 0, DTYPE_I32, 1, z->cp * z->n);
}

/* Rotates queries and keys, in one operation if they are neighbours in one buffer. */
static void rotate(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens, struct tensor q,
                   struct tensor key, bool backward)
{
    const int layer = k->layout->model->units[u->unit].layer;
    if (!model_layer_rotates(k->layout->model, layer))
        return;
    const bool local = model_layer_rotates_locally(k->layout->model, layer);
    const int64_t d = k->layout->model->head_dim;
    const struct tensor c = tensor_at(k->table[local ? TABLE_COS_LOCAL : TABLE_COS], 0, DTYPE_F32, k->t, d / 2);
    const struct tensor s = tensor_at(k->table[local ? TABLE_SIN_LOCAL : TABLE_SIN], 0, DTYPE_F32, k->t, d / 2);

    titan_assert(q.cols % d == 0 && key.cols % d == 0);
    if (key.buffer == q.buffer && key.ld == q.ld && key.offset == q.offset + (size_t)q.cols * dtype_bytes(q.dt)) {
        q.cols += key.cols;
        EMIT(k->e, rope, q, tokens->positions, c, s, .heads = q.cols / d, .flags = backward ? OP_BACKWARD : 0);
        return;
    }
    EMIT(k->e, rope, q, tokens->positions, c, s, .heads = q.cols / d, .flags = backward ? OP_BACKWARD : 0);
    EMIT(k->e, rope, key, tokens->positions, c, s, .heads = key.cols / d, .flags = backward ? OP_BACKWARD : 0);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Reshapes x (N,heads*D) so that one norm covers a row: a head, or all heads with qk_norm_whole. */
static struct tensor by_norm(const struct block *k, struct tensor x)
{
    const int64_t width = k->layout->model->dims.qk_norm_whole ? x.cols : k->layout->model->head_dim;
    titan_assert(width > 0 && tensor_numel(x) % width == 0);
    return tensor_reshape(x, tensor_numel(x) / width, width);
}

/* q | k | v (N,(H+2K)*D). One product computes all three, unless a converter converts one of the layers. Where keys and
 * values travel over cp, a separate product computes k | v. */
static void project(struct block *k, const struct unit_buffers *u, struct layer_saved *saved)
{
    const struct block_sizes z = block_sizes(k);
    const struct tensor xn = saved->t[SAVED_XN1];
    struct tensor kv;

    if (z.cp == 1) {
        const struct tensor qkv = block_new(k, BUF_ACTIVATION, "qkv", z.n, z.hd + z.kd + z.vd);
        block_linear(k, u, ROLE_WQ, 3, qkv, xn);
        saved->t[SAVED_Q] = tensor_cols(qkv, 0, z.hd);
        kv = tensor_cols(qkv, z.hd, z.kd + z.vd);
    } else {
        saved->t[SAVED_Q] = block_new(k, BUF_ACTIVATION, "q", z.n, z.hd);
        block_linear(k, u, ROLE_WQ, 1, saved->t[SAVED_Q], xn);
        saved->t[SAVED_KV] = kv = block_new(k, BUF_ACTIVATION, "kv", z.n, z.kd + z.vd);
        block_linear(k, u, ROLE_WK, 2, kv, xn);
    }
    saved->t[SAVED_XN1] = block_kept(k, u, ROLE_WQ, 3, xn);
    saved->t[SAVED_K] = tensor_cols(kv, 0, z.kd);
    saved->t[SAVED_V] = tensor_cols(kv, z.kd, z.vd);
}

/* A norm over all heads needs the heads of all tp ranks. So each tp rank norms the whole rows of some tokens. */
static bool norms_tokens(const struct block *k)
{
    return k->layout->model->dims.qk_norm_whole && mesh_group_size(&k->layout->mesh, GROUP_TP) > 1;
}

/* Exchanges over tp: x (N,W/tp) has this rank's heads of all tokens. The result (N/tp,W) has all heads of this rank's
 * tokens. */
static struct tensor exchange_heads(struct block *k, enum buffer_kind kind, const char *name, struct tensor x)
{
    const int tp = mesh_group_size(&k->layout->mesh, GROUP_TP);
    const struct tensor received = block_new(k, BUF_WORK, name, x.rows, x.cols);
    const struct tensor out = block_new(k, kind, name, x.rows / tp, x.cols * tp);

    titan_assert(x.rows % tp == 0);
    emit_all_to_all(k->e, CHANNEL_TP, received, x);
    for (int i = 0; i < tp; i++)
        emit_copy(k->e, tensor_cols(out, i * x.cols, x.cols), tensor_rows(received, i * out.rows, out.rows));
    return out;
}

/* The reverse of exchange_heads(): from x (N/tp,W) into `to` (N,W/tp). */
static void return_heads(struct block *k, struct tensor to, struct tensor x)
{
    const int tp = mesh_group_size(&k->layout->mesh, GROUP_TP);
    const struct tensor sent = block_new(k, BUF_WORK, "normed_sent", to.rows, to.cols);
    const bool dense = to.ld == to.cols;
    const struct tensor received = dense ? to : block_new(k, BUF_WORK, "normed_received", to.rows, to.cols);

    titan_assert(to.rows == x.rows * tp && x.cols == to.cols * tp);
    for (int i = 0; i < tp; i++)
        emit_copy(k->e, tensor_rows(sent, i * x.rows, x.rows), tensor_cols(x, i * to.cols, to.cols));
    emit_all_to_all(k->e, CHANNEL_TP, received, sent);
    if (!dense)
        emit_copy(k->e, to, received);
}

/* Returns the normed heads of *raw (N,heads*D) in a tensor of the same shape. Sets *raw to the norm's input, which
 * backward needs. */
static struct tensor norm_heads(struct block *k, const char *name, struct tensor gain, struct tensor *raw,
                                struct tensor *ret_rstd)
{
    const struct tensor out = block_new(k, BUF_ACTIVATION, name, raw->rows, raw->cols);
    struct tensor normed = out;

    if (norms_tokens(k)) {
        *raw = exchange_heads(k, BUF_ACTIVATION, name, *raw);
        normed = block_new(k, BUF_WORK, name, raw->rows, raw->cols);
    }
    const struct tensor rows = by_norm(k, *raw);
    *ret_rstd = block_new_f32(k, BUF_ACTIVATION, "head_rstd", 1, rows.rows);
    EMIT(k->e, rmsnorm, by_norm(k, normed), *ret_rstd, rows, gain, .eps = k->layout->model->dims.norm_eps,
         .flags = block_norm_flags(k));
    if (norms_tokens(k))
        return_heads(k, out, normed);
    return out;
}

/* Makes q, k and v with three products and norms each head of q and k (Qwen 3). */
static void project_normed(struct block *k, const struct unit_buffers *u, struct layer_saved *saved)
{
    const struct block_sizes z = block_sizes(k);
    const struct tensor xn = saved->t[SAVED_XN1];

    saved->t[SAVED_Q_RAW] = block_new(k, BUF_ACTIVATION, "q_raw", z.n, z.hd);
    block_linear(k, u, ROLE_WQ, 1, saved->t[SAVED_Q_RAW], xn);
    saved->t[SAVED_Q] =
        norm_heads(k, "q", block_param(k, u, ROLE_Q_NORM, 1), &saved->t[SAVED_Q_RAW], &saved->t[SAVED_Q_RSTD]);
    saved->t[SAVED_K_RAW] = block_new(k, BUF_ACTIVATION, "k_raw", z.n, z.kd);
    block_linear(k, u, ROLE_WK, 1, saved->t[SAVED_K_RAW], xn);
    saved->t[SAVED_K] =
        norm_heads(k, "k", block_param(k, u, ROLE_K_NORM, 1), &saved->t[SAVED_K_RAW], &saved->t[SAVED_K_RSTD]);
    if (z.cp == 1) {
        saved->t[SAVED_V] = block_new(k, BUF_ACTIVATION, "v", z.n, z.kd);
    } else {
        saved->t[SAVED_KV] = block_new(k, BUF_ACTIVATION, "kv", z.n, z.kd + z.vd);
        saved->t[SAVED_V] = tensor_cols(saved->t[SAVED_KV], z.kd, z.vd);
        emit_copy(k->e, tensor_cols(saved->t[SAVED_KV], 0, z.kd), saved->t[SAVED_K]);
        saved->t[SAVED_K] = tensor_cols(saved->t[SAVED_KV], 0, z.kd);
    }
    block_linear(k, u, ROLE_WV, 1, saved->t[SAVED_V], xn);
    saved->t[SAVED_XN1] = block_kept(k, u, ROLE_WQ, 3, xn);
}

static struct attention_tensors tensors_of(const struct layer_saved *saved)
{
    return (struct attention_tensors){saved->t[SAVED_ATTN], saved->t[SAVED_LSE], saved->t[SAVED_Q], saved->t[SAVED_K],
                                      saved->t[SAVED_V]};
}

void attention_scores(struct block *k, const struct block_tokens *tokens, struct layer_saved *saved)
{
    const struct block_sizes z = block_sizes(k);
    const struct attention_heads heads = heads_of(k, &z);

    saved->t[SAVED_ATTN] = block_new(k, BUF_ACTIVATION, "attn", z.n, z.od);
    saved->t[SAVED_LSE] = block_new_f32(k, BUF_ACTIVATION, "lse", heads.b * z.h, z.n / heads.b);
    /* Keys and values (N,K*(D+Dv)) go round the cp ranks: each step passes them to the next rank. The transfer of the
     * next part runs while the current part is used. Partial results are merged by their log-sum-exp (Liu et al. 2023,
     * arXiv:2310.01889). */
    const bool ring = z.cp > 1 && k->ring;
    struct tensor kv = saved->t[SAVED_KV], next = TENSOR_NONE;
    for (int i = 0; ring && i < z.cp; i++, kv = next) {
        if (i + 1 < z.cp) {
            next = block_new(k, BUF_WORK, "kv_ring", z.n, z.kd + z.vd);
            emit_shift(k->e, CHANNEL_CP, next, kv, 1);
        }
        const struct attention_mask mask =
            mask_of(k, tokens, tensor_cols(keys_of(k, &z, TABLE_KEYS_RING), i * z.n, z.n));
        struct attention_tensors t = tensors_of(saved);
        t.k = tensor_cols(kv, 0, z.kd);
        t.v = tensor_cols(kv, z.kd, z.vd);
        if (i > 0) {
            t.out = block_new(k, BUF_WORK, "attn_part", z.n, z.od);
            t.lse = block_new_f32(k, BUF_WORK, "lse_part", heads.b * z.h, z.n / heads.b);
        }
        emit_attention(k->e, &t, &heads, &mask);
        if (i > 0)
            EMIT(k->e, attention_merge, saved->t[SAVED_ATTN], saved->t[SAVED_LSE], t.out, t.lse, .B = heads.b,
                 .H = z.h);
    }
    if (ring)
        return;

    struct tensor key_index = tokens->index;
    if (z.cp > 1) {
        /* (cp*N,K*(D+Dv)), rank by rank */
        saved->t[SAVED_KV] = emit_all_gather(k->e, CHANNEL_CP, BUF_ACTIVATION, "kv", saved->t[SAVED_KV]);
        saved->t[SAVED_K] = tensor_cols(saved->t[SAVED_KV], 0, z.kd);
        saved->t[SAVED_V] = tensor_cols(saved->t[SAVED_KV], z.kd, z.vd);
        key_index = keys_of(k, &z, TABLE_KEYS_GATHERED);
    }
    const struct attention_mask mask = mask_of(k, tokens, key_index);
    const struct attention_tensors t = tensors_of(saved);
    emit_attention(k->e, &t, &heads, &mask);
}

/* Returns the layer's window, or 0 if the window covers every earlier token of a sequence. */
static int64_t window_of(const struct block *k, const struct unit_buffers *u)
{
    const int64_t window = model_layer_window(k->layout->model, k->layout->model->units[u->unit].layer);
    return window < k->t ? window : 0;
}

/* Sets up attention in a layer with a window. Only the first token that each token sees (SAVED_START) differs from
 * other layers. So attention uses masks even if the batch has none. */
static void look_through(struct block *k, struct block_tokens *tokens, struct tensor start)
{
    k->masked = true;
    tokens->start = start;
}

void attention_forward(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                       struct layer_saved *saved)
{
    struct block seen = *k;
    struct block_tokens seen_tokens = *tokens;

    if (window_of(k, u) > 0) {
        saved->t[SAVED_START] = emit_tensor(k->e, BUF_ACTIVATION, "window_start", DTYPE_I32, 1, block_tokens_local(k));
        EMIT(k->e, window, saved->t[SAVED_START], tokens->index, tokens->start, .tokens = window_of(k, u));
        look_through(&seen, &seen_tokens, saved->t[SAVED_START]);
    }
    if (k->layout->model->dims.qk_norm)
        project_normed(k, u, saved);
    else
        project(k, u, saved);
    rotate(k, u, tokens, saved->t[SAVED_Q], saved->t[SAVED_K], false);
    attention_scores(&seen, &seen_tokens, saved);
    if (k->layout->model->dims.attention_sinks) {
        /* The sinks join the softmax denominators of whole rows, after all parts of the keys are merged. */
        const struct block_sizes z = block_sizes(k);
        const struct tensor attn = saved->t[SAVED_ATTN], lse = saved->t[SAVED_LSE];
        saved->t[SAVED_ATTN] = block_new(k, BUF_ACTIVATION, "attn", z.n, z.od);
        saved->t[SAVED_LSE] = block_new_f32(k, BUF_ACTIVATION, "lse", lse.rows, lse.cols);
        EMIT(k->e, attention_sink, saved->t[SAVED_ATTN], saved->t[SAVED_LSE], attn, lse,
             block_param(k, u, ROLE_SINKS, 1), .B = lse.rows / z.h);
    }
}

/* --- input gradient ----------------------------------------------------------------------------------------------- */

/* t: the tensors of the forward; its keys and values are of the current part. */
static void dgrad(struct block *k, const struct attention_tensors *t, const struct attention_mask *mask,
                  const struct attention_grads *out, struct tensor dattn)
{
    const struct block_sizes z = block_sizes(k);
    const struct attention_heads heads = heads_of(k, &z);
    const struct attention_shape shape = {.dt = k->dt,
                                          .b = heads.b,
                                          .tq = z.n / heads.b,
                                          .tk = t->k.rows / heads.b,
                                          .h = heads.h,
                                          .kv = heads.kv,
                                          .d = heads.d,
                                          .dv = heads.dv,
                                          .order = heads.order,
                                          .softcap = (float)heads.softcap};
    const size_t bytes = k->ops->attention_work_bytes(k->dev, &shape);

    titan_assert(z.n % heads.b == 0 && t->k.rows % heads.b == 0);
    const struct tensor work = emit_tensor(k->e, BUF_WORK, "attention_work", DTYPE_U8, 1, (int64_t)MAX(bytes, 1));
    const struct attention_dtensors d = {out->q, out->k, out->v, dattn, work};
    emit_attention_dgrad(k->e, &d, t, &heads, mask);
}

void attention_scores_dgrad(struct block *k, const struct block_tokens *tokens, const struct layer_saved *saved,
                            struct tensor dattn, const struct attention_grads *out)
{
    const struct block_sizes z = block_sizes(k);
    struct tensor dkv = TENSOR_NONE, kv = saved->t[SAVED_KV], next = TENSOR_NONE;

    if (z.cp == 1) {
        const struct attention_mask mask = mask_of(k, tokens, tokens->index);
        const struct attention_tensors t = tensors_of(saved);
        dgrad(k, &t, &mask, out, dattn);
        return;
    }
    if (!k->ring) { /* sums gradients of all ranks' keys and values (cp*N,K*(D+Dv)) on their own ranks */
        const struct attention_mask mask = mask_of(k, tokens, keys_of(k, &z, TABLE_KEYS_GATHERED));
        const struct tensor all = block_new(k, BUF_DACTIVATION, "dkv", z.cp * z.n, z.kd + z.vd);
        const struct attention_grads to = {out->q, tensor_cols(all, 0, z.kd), tensor_cols(all, z.kd, z.vd)};
        const struct attention_tensors t = tensors_of(saved);
        dgrad(k, &t, &mask, &to, dattn);
        dkv = emit_reduce_scatter(k->e, CHANNEL_CP, BUF_DACTIVATION, "dkv", all);
    }
    /* Keys and values go round the ring once more. Their gradients follow one step behind them. After cp steps the
     * gradients (N,K*(D+Dv)) are back on the rank of their keys. */
    for (int i = 0; k->ring && i < z.cp; i++, kv = next) {
        if (i + 1 < z.cp) {
            next = block_new(k, BUF_WORK, "kv_ring", z.n, z.kd + z.vd);
            emit_shift(k->e, CHANNEL_CP, next, kv, 1);
        }
        const struct attention_mask mask =
            mask_of(k, tokens, tensor_cols(keys_of(k, &z, TABLE_KEYS_RING), i * z.n, z.n));
        const struct tensor part = block_new(k, BUF_DACTIVATION, "dkv_part", z.n, z.kd + z.vd);
        const struct attention_grads to = {i == 0 ? out->q : block_new(k, BUF_WORK, "dq_part", z.n, z.hd),
                                           tensor_cols(part, 0, z.kd), tensor_cols(part, z.kd, z.vd)};
        struct attention_tensors t = tensors_of(saved);
        t.k = tensor_cols(kv, 0, z.kd);
        t.v = tensor_cols(kv, z.kd, z.vd);
        dgrad(k, &t, &mask, &to, dattn);
        if (i > 0) {
            EMIT(k->e, add_2d, out->q, to.q);
            EMIT(k->e, add, part, part, dkv);
        }
        dkv = block_new(k, BUF_DACTIVATION, "dkv_ring", z.n, z.kd + z.vd);
        emit_shift(k->e, CHANNEL_CP, dkv, part, 1);
    }
    emit_copy(k->e, out->k, tensor_cols(dkv, 0, z.kd));
    emit_copy(k->e, out->v, tensor_cols(dkv, z.kd, z.vd));
}

/* Writes the gradient of the norm's input to `to`, a part of BACK_DQKV. Sets *dnormed to the gradient of the norm's
 * output, in the layout of `raw`. */
static void norm_heads_dgrad(struct block *k, struct tensor to, struct tensor *dnormed, struct tensor raw,
                             struct tensor gain, struct tensor rstd)
{
    const struct tensor dense = block_new(k, BUF_WORK, "dhead_raw", raw.rows, raw.cols);

    if (norms_tokens(k))
        *dnormed = exchange_heads(k, BUF_DACTIVATION, "dhead", *dnormed);
    EMIT(k->e, rmsnorm_dgrad, by_norm(k, dense), by_norm(k, *dnormed), by_norm(k, raw), gain, rstd,
         .flags = block_norm_flags(k));
    if (norms_tokens(k))
        return_heads(k, to, dense);
    else
        emit_copy(k->e, to, dense);
}

void attention_heads_dgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                           const struct layer_saved *saved, struct tensor dattn, struct layer_back *back)
{
    const struct block_sizes z = block_sizes(k);
    const bool normed = k->layout->model->dims.qk_norm;
    const struct tensor dqkv = block_new(k, BUF_DACTIVATION, "dqkv", z.n, z.hd + z.kd + z.vd);
    struct attention_grads out = {tensor_cols(dqkv, 0, z.hd), tensor_cols(dqkv, z.hd, z.kd),
                                  tensor_cols(dqkv, z.hd + z.kd, z.kd)};
    const struct attention_grads raw = out;
    struct block seen = *k;
    struct block_tokens seen_tokens = *tokens;

    if (normed) {
        out.q = back->t[BACK_DQ_NORMED] = block_new(k, BUF_DACTIVATION, "dq", z.n, z.hd);
        out.k = back->t[BACK_DK_NORMED] = block_new(k, BUF_DACTIVATION, "dk", z.n, z.kd);
    }
    if (k->layout->model->dims.attention_sinks) {
        back->t[BACK_DSINKS] = block_new_f32(k, BUF_DACTIVATION, "dsinks", 1, z.h);
        EMIT(k->e, attention_sink_dgrad, back->t[BACK_DSINKS], dattn, saved->t[SAVED_ATTN], saved->t[SAVED_LSE],
             block_param(k, u, ROLE_SINKS, 1), .B = saved->t[SAVED_LSE].rows / z.h);
    }
    if (window_of(k, u) > 0)
        look_through(&seen, &seen_tokens, saved->t[SAVED_START]);
    attention_scores_dgrad(&seen, &seen_tokens, saved, dattn, &out);
    rotate(k, u, tokens, out.q, out.k, true);
    if (normed) {
        norm_heads_dgrad(k, raw.q, &back->t[BACK_DQ_NORMED], saved->t[SAVED_Q_RAW], block_param(k, u, ROLE_Q_NORM, 1),
                         saved->t[SAVED_Q_RSTD]);
        norm_heads_dgrad(k, raw.k, &back->t[BACK_DK_NORMED], saved->t[SAVED_K_RAW], block_param(k, u, ROLE_K_NORM, 1),
                         saved->t[SAVED_K_RSTD]);
    }
    back->t[BACK_DQKV] = dqkv;
}

struct tensor attention_dgrad(struct block *k, const struct unit_buffers *u, const struct block_tokens *tokens,
                              const struct layer_saved *saved, struct tensor dattn, struct layer_back *back)
{
    attention_heads_dgrad(k, u, tokens, saved, dattn, back);
    const struct tensor dqkv = back->t[BACK_DQKV];
    const struct tensor dxn = block_new(k, BUF_DACTIVATION, "dxn1", dqkv.rows, k->layout->model->dims.dim);
    block_linear_dgrad(k, u, ROLE_WQ, 3, dxn, dqkv);
    return dxn;
}

/* --- weight gradient ---------------------------------------------------------------------------------------------- */

void attention_wgrad(struct block *k, const struct unit_buffers *u, const struct layer_saved *saved,
                     const struct layer_back *back)
{
    block_linear_wgrad(k, u, ROLE_WQ, 3, back->t[BACK_DQKV], saved->t[SAVED_XN1]);
    if (k->layout->model->dims.attention_sinks)
        EMIT(k->e, bias_wgrad, block_grad(k, u, ROLE_SINKS, 1), back->t[BACK_DSINKS]);
    if (!k->layout->model->dims.qk_norm)
        return;
    EMIT(k->e, rmsnorm_dgain, block_grad(k, u, ROLE_Q_NORM, 1), by_norm(k, back->t[BACK_DQ_NORMED]),
         by_norm(k, saved->t[SAVED_Q_RAW]), saved->t[SAVED_Q_RSTD]);
    EMIT(k->e, rmsnorm_dgain, block_grad(k, u, ROLE_K_NORM, 1), by_norm(k, back->t[BACK_DK_NORMED]),
         by_norm(k, saved->t[SAVED_K_RAW]), saved->t[SAVED_K_RSTD]);
}
