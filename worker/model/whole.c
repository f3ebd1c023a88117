/* whole.c - the whole model on one device. */
#include "worker/model/whole.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/model/layers.h"

struct whole_model {
    struct layer_ctx ctx;
    const struct device_handle *device;
    int64_t b_max, t_max;
    void **params; /* per unit, in the compute type */
    int64_t unit_max;
    /* device memory */
    int32_t *tokens, *targets, *positions;
    float *cos, *sin, *losses, *staging; /* staging (unit_max) fp32: parameters in, gradients out */
    double *sum;
    void *x[2], *saved, *head, *work; /* forward only: one layer's bundle is enough */
    /* backward only, allocated at first use */
    void **xs, **saves; /* per layer; xs has one more, the head's input */
    void *dx[2], *back, *head_back;
};

static titan_status grab(struct whole_model *w, size_t bytes, void *ret, struct titan_error *err)
{
    return w->device->ops->alloc(w->device->dev, bytes, (void **)ret, err);
}

static titan_status alloc_params(struct whole_model *w, struct titan_error *err)
{
    const struct model *m = w->ctx.model;
    w->params = calloc((size_t)m->n_units, sizeof *w->params);
    if (!w->params)
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    for (int u = 0; u < m->n_units; u++) {
        w->unit_max = MAX(w->unit_max, m->units[u].numel);
        TRY(grab(w, (size_t)m->units[u].numel * dtype_bytes(w->ctx.dt), &w->params[u], err));
    }
    return TITAN_OK;
}

static titan_status upload_rope(struct whole_model *w, struct titan_error *err)
{
    const size_t bytes = (size_t)(w->t_max * (w->ctx.model->head_dim / 2)) * sizeof(float);
    _cleanup_free_ float *c = malloc(bytes);
    _cleanup_free_ float *s = malloc(bytes);
    if (!c || !s)
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    model_rope_tables(w->ctx.model, w->t_max, c, s);
    TRY(grab(w, bytes, &w->cos, err));
    TRY(grab(w, bytes, &w->sin, err));
    TRY(w->ctx.ops->copy(w->ctx.stream, w->cos, c, bytes));
    TRY(w->ctx.ops->copy(w->ctx.stream, w->sin, s, bytes));
    w->ctx.cos = w->cos;
    w->ctx.sin = w->sin;
    return w->ctx.ops->stream_sync(w->ctx.stream, err);
}

static titan_status alloc_forward(struct whole_model *w, struct titan_error *err)
{
    const size_t n = (size_t)(w->b_max * w->t_max);

    TRY(grab(w, n * 4, &w->tokens, err));
    TRY(grab(w, n * 4, &w->targets, err));
    TRY(grab(w, n * 4, &w->positions, err));
    TRY(grab(w, n * 4, &w->losses, err));
    TRY(grab(w, sizeof *w->sum, &w->sum, err));
    TRY(grab(w, (size_t)w->unit_max * sizeof(float), &w->staging, err));
    TRY(grab(w, residual_bytes(&w->ctx), &w->x[0], err));
    TRY(grab(w, residual_bytes(&w->ctx), &w->x[1], err));
    TRY(grab(w, layer_saved_carve(&w->ctx, NULL, NULL), &w->saved, err));
    TRY(grab(w, head_saved_carve(&w->ctx, NULL, NULL), &w->head, err));
    TRY(grab(w, layer_work_bytes(&w->ctx), &w->work, err));
    w->ctx.positions = w->positions;
    return upload_rope(w, err);
}

static titan_status alloc_backward(struct whole_model *w, struct titan_error *err)
{
    const int layers = (int)w->ctx.model->dims.n_layers;
    struct layer_ctx full = w->ctx;

    if (w->head_back)
        return TITAN_OK;
    full.b = w->b_max;
    full.t = w->t_max;
    if (!w->xs)
        w->xs = calloc((size_t)layers + 1, sizeof *w->xs);
    if (!w->saves)
        w->saves = calloc((size_t)layers, sizeof *w->saves);
    if (!w->xs || !w->saves)
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    for (int l = 0; l <= layers; l++) {
        if (!w->xs[l])
            TRY(grab(w, residual_bytes(&full), &w->xs[l], err));
        if (l < layers && !w->saves[l])
            TRY(grab(w, layer_saved_carve(&full, NULL, NULL), &w->saves[l], err));
    }
    for (int i = 0; i < 2; i++)
        if (!w->dx[i])
            TRY(grab(w, residual_bytes(&full), &w->dx[i], err));
    if (!w->back)
        TRY(grab(w, layer_back_carve(&full, NULL, NULL), &w->back, err));
    return grab(w, head_back_carve(&full, NULL, NULL), &w->head_back, err);
}

titan_status whole_model_open(const struct model *model, const struct device_handle *device, enum dtype dt, int64_t b,
                              int64_t t, struct whole_model **ret, struct titan_error *err)
{
    struct whole_model *w = calloc(1, sizeof *w);
    if (!w)
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    w->device = device;
    w->b_max = b;
    w->t_max = t;
    w->ctx = (struct layer_ctx){.ops = device->ops, .dev = device->dev, .model = model, .dt = dt, .b = b, .t = t};
    titan_status status = device->ops->stream_open(device->dev, "model", true, &w->ctx.stream, err);
    if (status == TITAN_OK)
        status = alloc_params(w, err);
    if (status == TITAN_OK)
        status = alloc_forward(w, err);
    if (status != TITAN_OK) {
        whole_model_close(w);
        return status;
    }
    *ret = w;
    return TITAN_OK;
}

static void drop(struct whole_model *w, void *ptr)
{
    if (ptr)
        w->device->ops->release(w->device->dev, ptr);
}

void whole_model_close(struct whole_model *w)
{
    if (!w)
        return;
    const struct model *m = w->ctx.model;
    for (int u = 0; w->params && u < m->n_units; u++)
        drop(w, w->params[u]);
    for (int l = 0; w->xs && l <= m->dims.n_layers; l++)
        drop(w, w->xs[l]);
    for (int l = 0; w->saves && l < m->dims.n_layers; l++)
        drop(w, w->saves[l]);
    void *const rest[] = {w->tokens,  w->targets, w->positions, w->cos,  w->sin,      w->losses,
                          w->staging, w->sum,     w->x[0],      w->x[1], w->saved,    w->head,
                          w->work,    w->dx[0],   w->dx[1],     w->back, w->head_back};
    for (size_t i = 0; i < ARRAY_SIZE(rest); i++)
        drop(w, rest[i]);
    if (w->ctx.stream)
        w->device->ops->stream_close(w->ctx.stream);
    free(w->params);
    free(w->xs);
    free(w->saves);
    free(w);
}

/* Elements [offset, +count) of a unit from host fp32 values, at most unit_max. */
static titan_status set_range(struct whole_model *w, int unit, int64_t offset, int64_t count, const float *values,
                              struct titan_error *err)
{
    const struct device_ops *ops = w->ctx.ops;
    char *const dst = (char *)w->params[unit] + (size_t)offset * dtype_bytes(w->ctx.dt);

    TRY(ops->copy(w->ctx.stream, w->staging, values, (size_t)count * sizeof(float)));
    TRY(ops->cast(w->ctx.stream, dst, w->ctx.dt, w->staging, DTYPE_F32, (size_t)count));
    return ops->stream_sync(w->ctx.stream, err);
}

titan_status whole_model_set(struct whole_model *w, int tensor, const float *values, struct titan_error *err)
{
    const struct model_tensor *t = &w->ctx.model->tensors[tensor];
    return set_range(w, t->unit, t->offset, t->numel, values, err);
}

titan_status whole_model_init(struct whole_model *w, uint64_t seed, struct titan_error *err)
{
    _cleanup_free_ float *values = malloc((size_t)w->unit_max * sizeof *values);
    if (!values)
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    for (int u = 0; u < w->ctx.model->n_units; u++) {
        const int64_t n = w->ctx.model->units[u].numel;
        model_init_range(w->ctx.model, seed, u, 0, n, values);
        TRY(set_range(w, u, 0, n, values, err));
    }
    return TITAN_OK;
}

/* Tokens and positions of this call's shape onto the device. */
static titan_status load_batch(struct whole_model *w, const int32_t *tokens, const int32_t *targets, int64_t b,
                               int64_t t, struct titan_error *err)
{
    const size_t bytes = (size_t)(b * t) * sizeof(int32_t);

    if (b < 1 || t < 1 || t > w->t_max || b * t > w->b_max * w->t_max)
        return titan_fail(err, TITAN_EINVAL, "model: batch of %ld x %ld tokens, room for %ld x %ld", (long)b, (long)t,
                          (long)w->b_max, (long)w->t_max);
    for (int64_t i = 0; i < b * t; i++)
        if (tokens[i] < 0 || tokens[i] >= w->ctx.model->dims.vocab_size)
            return titan_fail(err, TITAN_EINVAL, "model: token %d is outside the vocabulary of %ld", tokens[i],
                              (long)w->ctx.model->dims.vocab_size);
    _cleanup_free_ int32_t *positions = malloc(bytes);
    if (!positions)
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    for (int64_t i = 0; i < b * t; i++)
        positions[i] = (int32_t)(i % t);
    w->ctx.b = b;
    w->ctx.t = t;
    TRY(w->ctx.ops->copy(w->ctx.stream, w->positions, positions, bytes));
    TRY(w->ctx.ops->copy(w->ctx.stream, w->tokens, tokens, bytes));
    if (targets)
        TRY(w->ctx.ops->copy(w->ctx.stream, w->targets, targets, bytes));
    return w->ctx.ops->stream_sync(w->ctx.stream, err);
}

/* Forward up to the logits, nothing kept. */
static titan_status forward(struct whole_model *w, struct head_saved *head)
{
    const struct layer_ctx *ctx = &w->ctx;
    const int layers = (int)ctx->model->dims.n_layers;
    struct layer_saved saved;

    (void)layer_saved_carve(ctx, w->saved, &saved);
    (void)head_saved_carve(ctx, w->head, head);
    TRY(embedding_forward(ctx, w->x[0], w->params[0], w->tokens));
    for (int l = 0; l < layers; l++)
        TRY(layer_forward(ctx, l, w->x[(l + 1) % 2], &saved, w->params[l + 1], w->x[l % 2]));
    return head_forward(ctx, head, w->params[layers + 1], w->x[layers % 2]);
}

/* Rows [first, first+rows) of the logits as fp32 on the host. */
static titan_status fetch_logits(struct whole_model *w, const struct head_saved *head, int64_t first, int64_t rows,
                                 float *logits, struct titan_error *err)
{
    const int64_t v = w->ctx.model->dims.vocab_size;
    const int64_t chunk = MAX(1, w->unit_max / v);

    for (int64_t r = 0; r < rows; r += chunk) {
        const int64_t n = MIN(chunk, rows - r) * v;
        const char *src = (const char *)head->logits + (size_t)((first + r) * v) * dtype_bytes(w->ctx.dt);
        TRY(w->ctx.ops->cast(w->ctx.stream, w->staging, DTYPE_F32, src, w->ctx.dt, (size_t)n));
        TRY(w->ctx.ops->copy(w->ctx.stream, logits + r * v, w->staging, (size_t)n * sizeof(float)));
        TRY(w->ctx.ops->stream_sync(w->ctx.stream, err));
    }
    return TITAN_OK;
}

titan_status whole_model_logits(struct whole_model *w, const int32_t *tokens, int64_t b, int64_t t, float *logits,
                                struct titan_error *err)
{
    struct head_saved head;

    TRY(load_batch(w, tokens, NULL, b, t, err));
    TRY(forward(w, &head));
    return fetch_logits(w, &head, 0, b * t, logits, err);
}

titan_status whole_model_next(struct whole_model *w, const int32_t *tokens, int64_t t, float *logits,
                              struct titan_error *err)
{
    struct head_saved head;

    TRY(load_batch(w, tokens, NULL, 1, t, err));
    TRY(forward(w, &head));
    return fetch_logits(w, &head, t - 1, 1, logits, err);
}

/* One unit's gradient (in staging) to the caller's arrays. */
static titan_status fetch_gradient(struct whole_model *w, int unit, float *const *grads, struct titan_error *err)
{
    const struct model_unit *u = &w->ctx.model->units[unit];

    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++) {
        const struct model_tensor *t = &w->ctx.model->tensors[i];
        TRY(w->ctx.ops->copy(w->ctx.stream, grads[i], w->staging + t->offset, (size_t)t->numel * sizeof(float)));
    }
    return w->ctx.ops->stream_sync(w->ctx.stream, err);
}

static titan_status loss_and_gradients(struct whole_model *w, float *const *grads, struct titan_error *err)
{
    const struct layer_ctx *ctx = &w->ctx;
    const struct model *m = ctx->model;
    const int layers = (int)m->dims.n_layers;
    struct layer_saved saved;
    struct layer_back back;
    struct head_saved head;
    struct head_back head_back;

    TRY(alloc_backward(w, err));
    TRY(embedding_forward(ctx, w->xs[0], w->params[0], w->tokens));
    for (int l = 0; l < layers; l++) {
        (void)layer_saved_carve(ctx, w->saves[l], &saved);
        TRY(layer_forward(ctx, l, w->xs[l + 1], &saved, w->params[l + 1], w->xs[l]));
    }
    (void)head_saved_carve(ctx, w->head, &head);
    (void)head_back_carve(ctx, w->head_back, &head_back);
    TRY(head_forward(ctx, &head, w->params[layers + 1], w->xs[layers]));
    TRY(head_loss(ctx, &head, w->losses, w->targets, true));

    void *dy = w->dx[0], *dx = w->dx[1];
    TRY(head_dgrad(ctx, dy, &head_back, &head, w->params[layers + 1], w->xs[layers]));
    TRY(head_wgrad(ctx, w->staging, m->units[layers + 1].numel, true, &head, &head_back, w->xs[layers]));
    TRY(fetch_gradient(w, layers + 1, grads, err));
    (void)layer_back_carve(ctx, w->back, &back);
    for (int l = layers - 1; l >= 0; l--) {
        (void)layer_saved_carve(ctx, w->saves[l], &saved);
        TRY(layer_dgrad(ctx, l, dx, &back, &saved, w->params[l + 1], w->xs[l], dy, w->work));
        TRY(layer_wgrad(ctx, l, w->staging, m->units[l + 1].numel, true, &saved, &back, w->xs[l], dy));
        TRY(fetch_gradient(w, l + 1, grads, err));
        void *swap = dy;
        dy = dx;
        dx = swap;
    }
    TRY(embedding_wgrad(ctx, w->staging, m->units[0].numel, true, w->tokens, dy));
    return fetch_gradient(w, 0, grads, err);
}

titan_status whole_model_loss(struct whole_model *w, const int32_t *tokens, const int32_t *targets, int64_t b,
                              int64_t t, double *ret_loss_sum, float *const *grads, struct titan_error *err)
{
    const size_t n = (size_t)(b * t);

    TRY(load_batch(w, tokens, targets, b, t, err));
    if (grads) {
        TRY(loss_and_gradients(w, grads, err));
    } else {
        struct head_saved head;
        TRY(forward(w, &head));
        TRY(head_loss(&w->ctx, &head, w->losses, w->targets, false));
    }
    TRY(w->ctx.ops->block_sums(w->ctx.stream, w->sum, w->losses, n, n, false));
    TRY(w->ctx.ops->copy(w->ctx.stream, ret_loss_sum, w->sum, sizeof *w->sum));
    return w->ctx.ops->stream_sync(w->ctx.stream, err);
}
