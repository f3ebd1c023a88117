/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - parameters in the compute type. */
#include "worker/infer/weights.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "worker/program/program.h"

titan_status weights_open(const struct layout *layout, const struct device_handle *device, enum dtype dt,
                          struct stream *s, struct weights *ret, struct titan_error *err)
{
    const struct device_ops *ops = device->ops;
    const int n = layout->model->n_units;
    const size_t biases = (size_t)layout_biases(layout->model) * sizeof(float);

    titan_assert(layout->mesh.world == 1 && !ret->units);
    *ret = (struct weights){.device = device, .layout = layout, .stream = s, .dt = dt};
    ret->units = calloc((size_t)n, sizeof *ret->units);
    if (!ret->units)
        return titan_fail(err, TITAN_ENOMEM, "model: out of memory");
    for (int u = 0; u < n; u++) {
        const int64_t elements = layout->units[u].padded;
        TRY(ops->alloc(device->dev, (size_t)elements * dtype_bytes(dt), &ret->units[u], err));
        ret->unit_max = MAX(ret->unit_max, elements);
    }
    if (biases > 0)
        TRY(ops->alloc(device->dev, biases, (void **)&ret->biases, err));
    return ops->alloc(device->dev, (size_t)ret->unit_max * sizeof(float), (void **)&ret->staging, err);
}

static void drop(const struct device_handle *d, void *memory)
{
    if (memory)
        d->ops->release(d->dev, memory);
}

void weights_close(struct weights *w)
{
    for (int u = 0; w->units && u < w->layout->model->n_units; u++)
        drop(w->device, w->units[u]);
    drop(w->device, w->biases);
    drop(w->device, w->staging);
    free(w->units);
    *w = (struct weights){0};
}

titan_status weights_set(struct weights *w, int tensor, const float *values, struct titan_error *err)
{
    const struct device_ops *ops = w->device->ops;
    const struct model_tensor *t = &w->layout->model->tensors[tensor];
    char *const unit = w->units[t->unit];
    void *const dst = unit + (size_t)w->layout->tensors[tensor].offset * dtype_bytes(w->dt);

    titan_assert(tensor >= 0 && tensor < w->layout->model->n_tensors && t->numel <= w->unit_max);
    TRY(ops->copy(w->stream, w->staging, values, (size_t)t->numel * sizeof(float)));
    TRY(ops->cast(w->stream, dst, w->dt, w->staging, DTYPE_F32, (size_t)t->numel));
    return ops->stream_sync(w->stream, err);
}

titan_status weights_set_biases(struct weights *w, const float *biases, struct titan_error *err)
{
    const struct device_ops *ops = w->device->ops;

    if (!w->biases)
        return TITAN_OK;
    TRY(ops->copy(w->stream, w->biases, biases, (size_t)layout_biases(w->layout->model) * sizeof *biases));
    return ops->stream_sync(w->stream, err);
}

titan_status weights_load(struct weights *w, const struct trained *t, struct titan_error *err)
{
    const struct model *m = t->model;
    const size_t n_biases = (size_t)layout_biases(m);
    size_t elements = 0;

    titan_assert(m == w->layout->model && (n_biases > 0) == (w->biases != NULL));
    for (int i = 0; i < m->n_tensors; i++)
        elements += (size_t)m->tensors[i].numel;
    _cleanup_free_ float *data = malloc(MAX(elements, (size_t)1) * sizeof *data);
    if (!data)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu parameters", elements);
    TRY(trained_load(t, 0, m->n_tensors, data, err));
    const float *at = data;
    for (int i = 0; i < m->n_tensors; i++) {
        TRY(weights_set(w, i, at, err));
        at += m->tensors[i].numel;
    }

    _cleanup_free_ float *biases = malloc((n_biases + 1) * sizeof *biases);
    if (!biases)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu biases", n_biases);
    TRY(trained_load_biases(t, biases, err));
    return weights_set_biases(w, biases, err);
}

void *weights_bind(void *weights, const struct buffer *buffer)
{
    const struct weights *w = weights;
    const struct model *m = w->layout->model;

    titan_assert(buffer->unit < m->n_units);
    if (buffer->kind == BUF_SHARD)
        return w->units[buffer->unit];
    if (buffer->kind == BUF_BIAS)
        return w->biases + layout_bias_offset(m, m->units[buffer->unit].layer);
    return NULL;
}
