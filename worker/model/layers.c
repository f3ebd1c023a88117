/* layers.c - embedding, transformer layer and head as device operations. */
#include "worker/model/layers.h"

#include <string.h>

#include "base/cleanup.h"

#define CARVE_ALIGN 256 /* what a GPU's widest loads want */

/* --- bundles --------------------------------------------------------------------------------------------------------
 */

struct carver {
    char *base; /* NULL: only count */
    size_t used;
};

static void *carve(struct carver *cv, int64_t count, size_t elem)
{
    void *part = cv->base ? cv->base + cv->used : NULL;
    cv->used += ((size_t)count * elem + CARVE_ALIGN - 1) / CARVE_ALIGN * CARVE_ALIGN;
    return part;
}

struct sizes {
    int64_t n, c, h, k, d, hd, q, f, v;
    size_t elem;
};

static struct sizes sizes_of(const struct layer_ctx *ctx)
{
    const struct model_dims *m = &ctx->model->dims;
    const int64_t d = ctx->model->head_dim;
    return (struct sizes){.n = ctx->b * ctx->t,
                          .c = m->dim,
                          .h = m->n_heads,
                          .k = m->n_kv_heads,
                          .d = d,
                          .hd = m->n_heads * d,
                          .q = (m->n_heads + 2 * m->n_kv_heads) * d,
                          .f = m->ffn_hidden,
                          .v = m->vocab_size,
                          .elem = dtype_bytes(ctx->dt)};
}

size_t layer_saved_carve(const struct layer_ctx *ctx, void *base, struct layer_saved *ret)
{
    const struct sizes z = sizes_of(ctx);
    struct carver cv = {.base = base};
    const struct layer_saved saved = {
        .xn1 = carve(&cv, z.n * z.c, z.elem),
        .rstd1 = carve(&cv, z.n, 4),
        .qkv = carve(&cv, z.n * z.q, z.elem),
        .attn = carve(&cv, z.n * z.hd, z.elem),
        .lse = carve(&cv, z.n * z.h, 4),
        .h = carve(&cv, z.n * z.c, z.elem),
        .xn2 = carve(&cv, z.n * z.c, z.elem),
        .rstd2 = carve(&cv, z.n, 4),
        .gu = carve(&cv, z.n * 2 * z.f, z.elem),
        .act = carve(&cv, z.n * z.f, z.elem),
    };
    if (ret)
        *ret = saved;
    return cv.used;
}

size_t layer_back_carve(const struct layer_ctx *ctx, void *base, struct layer_back *ret)
{
    const struct sizes z = sizes_of(ctx);
    struct carver cv = {.base = base};
    const struct layer_back back = {
        .dgu = carve(&cv, z.n * 2 * z.f, z.elem),
        .dxn2 = carve(&cv, z.n * z.c, z.elem),
        .dh = carve(&cv, z.n * z.c, z.elem),
        .dqkv = carve(&cv, z.n * z.q, z.elem),
        .dxn1 = carve(&cv, z.n * z.c, z.elem),
    };
    if (ret)
        *ret = back;
    return cv.used;
}

size_t head_saved_carve(const struct layer_ctx *ctx, void *base, struct head_saved *ret)
{
    const struct sizes z = sizes_of(ctx);
    struct carver cv = {.base = base};
    const struct head_saved saved = {
        .xn = carve(&cv, z.n * z.c, z.elem),
        .rstd = carve(&cv, z.n, 4),
        .logits = carve(&cv, z.n * z.v, z.elem),
    };
    if (ret)
        *ret = saved;
    return cv.used;
}

size_t head_back_carve(const struct layer_ctx *ctx, void *base, struct head_back *ret)
{
    const struct sizes z = sizes_of(ctx);
    struct carver cv = {.base = base};
    const struct head_back back = {.dxn = carve(&cv, z.n * z.c, z.elem)};
    if (ret)
        *ret = back;
    return cv.used;
}

/* dgrad's scratch: the gradient of the activation or of the attention output (never both), and attention's own. */
static size_t dgrad_scratch_bytes(const struct sizes *z)
{
    struct carver cv = {0};
    (void)carve(&cv, z->n * MAX(z->f, z->hd), z->elem);
    return cv.used;
}

size_t layer_work_bytes(const struct layer_ctx *ctx)
{
    const struct sizes z = sizes_of(ctx);
    return dgrad_scratch_bytes(&z) + ctx->ops->attention_work_bytes(ctx->dev, ctx->dt, ctx->b, ctx->t, z.h, z.k, z.d);
}

size_t residual_bytes(const struct layer_ctx *ctx)
{
    const struct sizes z = sizes_of(ctx);
    return (size_t)(z.n * z.c) * z.elem;
}

/* --- parameters and gradients inside a unit's flat buffer
 * ---------------------------------------------------------------- */

static const struct model_unit *layer_unit(const struct layer_ctx *ctx, int layer)
{
    return &ctx->model->units[layer + 1];
}

static const struct model_unit *head_unit(const struct layer_ctx *ctx)
{
    return &ctx->model->units[ctx->model->n_units - 1];
}

static const void *param(const struct layer_ctx *ctx, const struct model_unit *u, const void *params, int which)
{
    return (const char *)params + (size_t)ctx->model->tensors[u->first_tensor + which].offset * dtype_bytes(ctx->dt);
}

static float *grad(const struct layer_ctx *ctx, const struct model_unit *u, float *grads, int which)
{
    return grads + ctx->model->tensors[u->first_tensor + which].offset;
}

/* Zero what a first weight gradient does not overwrite: vectors (their operation adds) and the gaps. */
static titan_status begin_gradient(const struct layer_ctx *ctx, const struct model_unit *u, float *grads,
                                   int64_t padded)
{
    int64_t done = 0; /* everything before is written by a product or zeroed */
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++) {
        const struct model_tensor *t = &ctx->model->tensors[i];
        if (t->ndim == 1)
            continue;
        if (t->offset > done)
            TRY(ctx->ops->zero(ctx->stream, grads + done, (size_t)(t->offset - done) * sizeof *grads));
        done = t->offset + t->numel;
    }
    if (padded > done)
        TRY(ctx->ops->zero(ctx->stream, grads + done, (size_t)(padded - done) * sizeof *grads));
    return TITAN_OK;
}

/* --- the three products of a linear layer with weight w (out,in)
 * ----------------------------------------------------------- */

/* y (N,out) = x (N,in) w^T */
static titan_status linear(const struct layer_ctx *ctx, void *y, const void *x, const void *w, int64_t n, int64_t out,
                           int64_t in)
{
    return ctx->ops->matmul(ctx->stream, y, ctx->dt, out, x, false, in, w, true, in, ctx->dt, n, out, in, 0);
}

/* dx (N,in) = dy (N,out) w */
static titan_status linear_dgrad(const struct layer_ctx *ctx, void *dx, const void *dy, const void *w, int64_t n,
                                 int64_t out, int64_t in)
{
    return ctx->ops->matmul(ctx->stream, dx, ctx->dt, in, dy, false, out, w, false, in, ctx->dt, n, in, out, 0);
}

/* dw (out,in) fp32 = or += dy^T x */
static titan_status linear_wgrad(const struct layer_ctx *ctx, float *dw, bool first, const void *dy, const void *x,
                                 int64_t n, int64_t out, int64_t in)
{
    return ctx->ops->matmul(ctx->stream, dw, DTYPE_F32, in, dy, true, out, x, false, in, ctx->dt, out, in, n,
                            first ? 0 : 1);
}

/* --- embedding
 * ------------------------------------------------------------------------------------------------------------ */

titan_status embedding_forward(const struct layer_ctx *ctx, void *x, const void *params, const int32_t *tokens)
{
    const struct sizes z = sizes_of(ctx);
    return ctx->ops->embed(ctx->stream, x, tokens, params, ctx->dt, z.n, z.c, z.v);
}

titan_status embedding_wgrad(const struct layer_ctx *ctx, float *grads, int64_t padded, bool first,
                             const int32_t *tokens, const void *dx)
{
    const struct sizes z = sizes_of(ctx);
    if (first)
        TRY(ctx->ops->zero(ctx->stream, grads, (size_t)padded * sizeof *grads));
    return ctx->ops->embed_wgrad(ctx->stream, grads, tokens, dx, ctx->dt, z.n, z.c, z.v);
}

/* --- layer
 * ---------------------------------------------------------------------------------------------------------------- */

/* h = x + wo attention(norm(x)) */
static titan_status attention_forward(const struct layer_ctx *ctx, const struct model_unit *u,
                                      const struct layer_saved *s, const void *params, const void *x)
{
    const struct device_ops *ops = ctx->ops;
    const struct sizes z = sizes_of(ctx);
    char *const qkv = s->qkv;
    const float eps = (float)ctx->model->dims.norm_eps;

    /* xn1 (N,C) */
    TRY(ops->rmsnorm(ctx->stream, s->xn1, s->rstd1, x, param(ctx, u, params, LAYER_ATTENTION_NORM), ctx->dt, z.n, z.c,
                     eps));
    /* qkv (N,Q): queries | keys | values of each token side by side */
    TRY(linear(ctx, qkv, s->xn1, param(ctx, u, params, LAYER_WQ), z.n, z.q, z.c));
    /* queries and keys are neighbours: H+K heads in one go */
    TRY(ops->rope(ctx->stream, qkv, z.q, ctx->positions, ctx->cos, ctx->sin, ctx->dt, z.n, z.h + z.k, z.d, false));
    /* attn (N,H*D), lse (H,N) */
    TRY(ops->attention(ctx->stream, s->attn, z.hd, s->lse, qkv, z.q, qkv + (size_t)z.hd * z.elem,
                       qkv + (size_t)(z.hd + z.k * z.d) * z.elem, z.q, ctx->dt, ctx->b, ctx->t, z.h, z.k, z.d));
    /* h (N,C) */
    TRY(linear(ctx, s->h, s->attn, param(ctx, u, params, LAYER_WO), z.n, z.c, z.hd));
    return ops->add(ctx->stream, s->h, s->h, x, ctx->dt, (size_t)(z.n * z.c));
}

/* y = h + w2 (silu(w1 n) * w3 n), n = norm(h) */
static titan_status feed_forward_forward(const struct layer_ctx *ctx, const struct model_unit *u, void *y,
                                         const struct layer_saved *s, const void *params)
{
    const struct device_ops *ops = ctx->ops;
    const struct sizes z = sizes_of(ctx);
    const char *const gate = s->gu;
    const float eps = (float)ctx->model->dims.norm_eps;

    /* xn2 (N,C) */
    TRY(ops->rmsnorm(ctx->stream, s->xn2, s->rstd2, s->h, param(ctx, u, params, LAYER_FFN_NORM), ctx->dt, z.n, z.c,
                     eps));
    /* gu (N,2F): gate | up of each token side by side */
    TRY(linear(ctx, s->gu, s->xn2, param(ctx, u, params, LAYER_W1), z.n, 2 * z.f, z.c));
    /* act (N,F) */
    TRY(ops->swiglu(ctx->stream, s->act, gate, gate + (size_t)z.f * z.elem, 2 * z.f, ctx->dt, z.n, z.f));
    if (!y)
        return TITAN_OK;
    /* y (N,C) */
    TRY(linear(ctx, y, s->act, param(ctx, u, params, LAYER_W2), z.n, z.c, z.f));
    return ops->add(ctx->stream, y, y, s->h, ctx->dt, (size_t)(z.n * z.c));
}

titan_status layer_forward(const struct layer_ctx *ctx, int layer, void *y, const struct layer_saved *saved,
                           const void *params, const void *x)
{
    const struct model_unit *u = layer_unit(ctx, layer);

    TRY(attention_forward(ctx, u, saved, params, x));
    return feed_forward_forward(ctx, u, y, saved, params);
}

/* dh from dy, through the feed-forward half and its residual. */
static titan_status feed_forward_dgrad(const struct layer_ctx *ctx, const struct model_unit *u,
                                       const struct layer_back *g, const struct layer_saved *s, const void *params,
                                       const void *dy, void *dact)
{
    const struct device_ops *ops = ctx->ops;
    const struct sizes z = sizes_of(ctx);
    const char *const gate = s->gu;
    char *const dgate = g->dgu;

    /* dact (N,F) */
    TRY(linear_dgrad(ctx, dact, dy, param(ctx, u, params, LAYER_W2), z.n, z.c, z.f));
    /* dgu (N,2F) */
    TRY(ops->swiglu_dgrad(ctx->stream, dgate, dgate + (size_t)z.f * z.elem, 2 * z.f, dact, gate,
                          gate + (size_t)z.f * z.elem, 2 * z.f, ctx->dt, z.n, z.f));
    /* dxn2 (N,C) */
    TRY(linear_dgrad(ctx, g->dxn2, g->dgu, param(ctx, u, params, LAYER_W1), z.n, 2 * z.f, z.c));
    /* dh (N,C) = dy + the norm's */
    TRY(ops->copy(ctx->stream, g->dh, dy, (size_t)(z.n * z.c) * z.elem));
    return ops->rmsnorm_dgrad(ctx->stream, g->dh, true, g->dxn2, s->h, param(ctx, u, params, LAYER_FFN_NORM), s->rstd2,
                              ctx->dt, z.n, z.c);
}

/* dx from dh, through the attention half and its residual. */
static titan_status attention_dgrad(const struct layer_ctx *ctx, const struct model_unit *u, void *dx,
                                    const struct layer_back *g, const struct layer_saved *s, const void *params,
                                    const void *x, void *dattn, void *work)
{
    const struct device_ops *ops = ctx->ops;
    const struct sizes z = sizes_of(ctx);
    const char *const q = s->qkv, *const k = q + (size_t)z.hd * z.elem, *const v = k + (size_t)(z.k * z.d) * z.elem;
    char *const dq = g->dqkv, *const dk = dq + (size_t)z.hd * z.elem, *const dv = dk + (size_t)(z.k * z.d) * z.elem;

    /* dattn (N,H*D) */
    TRY(linear_dgrad(ctx, dattn, g->dh, param(ctx, u, params, LAYER_WO), z.n, z.c, z.hd));
    /* dqkv (N,Q) */
    TRY(ops->attention_dgrad(ctx->stream, dq, z.q, dk, dv, z.q, dattn, z.hd, s->attn, z.hd, s->lse, q, z.q, k, v, z.q,
                             ctx->dt, ctx->b, ctx->t, z.h, z.k, z.d, work));
    TRY(ops->rope(ctx->stream, dq, z.q, ctx->positions, ctx->cos, ctx->sin, ctx->dt, z.n, z.h + z.k, z.d, true));
    /* dxn1 (N,C) */
    TRY(linear_dgrad(ctx, g->dxn1, g->dqkv, param(ctx, u, params, LAYER_WQ), z.n, z.q, z.c));
    /* dx (N,C) = dh + the norm's */
    TRY(ops->copy(ctx->stream, dx, g->dh, (size_t)(z.n * z.c) * z.elem));
    return ops->rmsnorm_dgrad(ctx->stream, dx, true, g->dxn1, x, param(ctx, u, params, LAYER_ATTENTION_NORM), s->rstd1,
                              ctx->dt, z.n, z.c);
}

titan_status layer_dgrad(const struct layer_ctx *ctx, int layer, void *dx, const struct layer_back *back,
                         const struct layer_saved *saved, const void *params, const void *x, const void *dy, void *work)
{
    const struct model_unit *u = layer_unit(ctx, layer);
    const struct sizes z = sizes_of(ctx);
    char *const scratch = work;

    TRY(feed_forward_dgrad(ctx, u, back, saved, params, dy, scratch));
    return attention_dgrad(ctx, u, dx, back, saved, params, x, scratch, scratch + dgrad_scratch_bytes(&z));
}

titan_status layer_wgrad(const struct layer_ctx *ctx, int layer, float *grads, int64_t padded, bool first,
                         const struct layer_saved *saved, const struct layer_back *back, const void *x, const void *dy)
{
    const struct device_ops *ops = ctx->ops;
    const struct model_unit *u = layer_unit(ctx, layer);
    const struct sizes z = sizes_of(ctx);

    if (first)
        TRY(begin_gradient(ctx, u, grads, padded));
    /* dw2 (C,F) */
    TRY(linear_wgrad(ctx, grad(ctx, u, grads, LAYER_W2), first, dy, saved->act, z.n, z.c, z.f));
    /* dw1 | dw3 (2F,C) */
    TRY(linear_wgrad(ctx, grad(ctx, u, grads, LAYER_W1), first, back->dgu, saved->xn2, z.n, 2 * z.f, z.c));
    TRY(ops->rmsnorm_dgain(ctx->stream, grad(ctx, u, grads, LAYER_FFN_NORM), back->dxn2, saved->h, saved->rstd2,
                           ctx->dt, z.n, z.c));
    /* dwo (C,H*D) */
    TRY(linear_wgrad(ctx, grad(ctx, u, grads, LAYER_WO), first, back->dh, saved->attn, z.n, z.c, z.hd));
    /* dwq | dwk | dwv (Q,C) */
    TRY(linear_wgrad(ctx, grad(ctx, u, grads, LAYER_WQ), first, back->dqkv, saved->xn1, z.n, z.q, z.c));
    return ops->rmsnorm_dgain(ctx->stream, grad(ctx, u, grads, LAYER_ATTENTION_NORM), back->dxn1, x, saved->rstd1,
                              ctx->dt, z.n, z.c);
}

/* --- head
 * ----------------------------------------------------------------------------------------------------------------- */

titan_status head_forward(const struct layer_ctx *ctx, const struct head_saved *saved, const void *params,
                          const void *x)
{
    const struct model_unit *u = head_unit(ctx);
    const struct sizes z = sizes_of(ctx);

    /* xn (N,C) */
    TRY(ctx->ops->rmsnorm(ctx->stream, saved->xn, saved->rstd, x, param(ctx, u, params, HEAD_NORM), ctx->dt, z.n, z.c,
                          (float)ctx->model->dims.norm_eps));
    /* logits (N,V) */
    return linear(ctx, saved->logits, saved->xn, param(ctx, u, params, HEAD_OUTPUT), z.n, z.v, z.c);
}

titan_status head_loss(const struct layer_ctx *ctx, const struct head_saved *saved, float *losses,
                       const int32_t *targets, bool gradient)
{
    const struct sizes z = sizes_of(ctx);
    /* Gradient of the sum over tokens; the mean over the global batch is the optimizer's factor. */
    return ctx->ops->cross_entropy(ctx->stream, losses, gradient ? saved->logits : NULL, saved->logits, targets,
                                   ctx->dt, z.n, z.v, 1.0f);
}

titan_status head_dgrad(const struct layer_ctx *ctx, void *dx, const struct head_back *back,
                        const struct head_saved *saved, const void *params, const void *x)
{
    const struct model_unit *u = head_unit(ctx);
    const struct sizes z = sizes_of(ctx);

    /* dxn (N,C) */
    TRY(linear_dgrad(ctx, back->dxn, saved->logits, param(ctx, u, params, HEAD_OUTPUT), z.n, z.v, z.c));
    /* dx (N,C) */
    return ctx->ops->rmsnorm_dgrad(ctx->stream, dx, false, back->dxn, x, param(ctx, u, params, HEAD_NORM), saved->rstd,
                                   ctx->dt, z.n, z.c);
}

titan_status head_wgrad(const struct layer_ctx *ctx, float *grads, int64_t padded, bool first,
                        const struct head_saved *saved, const struct head_back *back, const void *x)
{
    const struct model_unit *u = head_unit(ctx);
    const struct sizes z = sizes_of(ctx);

    if (first)
        TRY(begin_gradient(ctx, u, grads, padded));
    /* dw (V,C) */
    TRY(linear_wgrad(ctx, grad(ctx, u, grads, HEAD_OUTPUT), first, saved->logits, saved->xn, z.n, z.v, z.c));
    return ctx->ops->rmsnorm_dgain(ctx->stream, grad(ctx, u, grads, HEAD_NORM), back->dxn, x, saved->rstd, ctx->dt, z.n,
                                   z.c);
}
