/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - a rank's part of the training state. */
#include "worker/state/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/progress.h"
#include "worker/program/program.h"

static titan_status allocate(struct train_state *s, struct titan_error *err)
{
    const struct device_handle *d = s->device;
    const size_t values = 3 * (size_t)s->total * sizeof(float), shadow = (size_t)s->total * dtype_bytes(s->dt);
    const size_t biases = (size_t)layout_biases(s->layout->model) * sizeof(float);

    if (s->offload)
        TRY(d->ops->alloc_host(d->dev, values, (void **)&s->values, err));
    else
        TRY(d->ops->alloc(d->dev, values, (void **)&s->values, err));
    if (!s->copy && (s->offload || s->dt != DTYPE_F32))
        TRY(d->ops->alloc(d->dev, shadow, &s->shadow, err));
    return biases > 0 ? d->ops->alloc(d->dev, biases, (void **)&s->biases, err) : TITAN_OK;
}

static titan_status open_as(struct train_state as, struct train_state **ret, struct titan_error *err)
{
    struct train_state *s = malloc(sizeof *s);
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    *s = as;
    titan_assert(s->device && s->rank >= 0 && s->rank < s->layout->mesh.world);
    titan_assert(s->dt == DTYPE_F32 || s->dt == DTYPE_BF16);
    s->total = layout_total(s->layout, s->rank);
    const titan_status status = allocate(s, err);
    if (status != TITAN_OK) {
        s->layout = NULL;
        state_close(s);
        return status;
    }
    *ret = s;
    return TITAN_OK;
}

titan_status state_open(const struct device_handle *device, struct layout *layout, int rank, enum dtype dt,
                        bool offload, struct train_state **ret, struct titan_error *err)
{
    return open_as((struct train_state){.device = device, .layout = layout, .rank = rank, .dt = dt, .offload = offload},
                   ret, err);
}

titan_status state_open_copy(const struct device_handle *device, struct layout *layout, int rank, bool offload,
                             struct train_state **ret, struct titan_error *err)
{
    return open_as((struct train_state){.device = device,
                                        .layout = layout,
                                        .rank = rank,
                                        .dt = DTYPE_F32,
                                        .offload = offload || !device->info.host_memory,
                                        .copy = true},
                   ret, err);
}

void state_close(struct train_state *state)
{
    if (!state)
        return;
    const struct device_handle *d = state->device;
    if (state->values && state->offload)
        d->ops->release_host(d->dev, state->values);
    else if (state->values)
        d->ops->release(d->dev, state->values);
    if (state->shadow)
        d->ops->release(d->dev, state->shadow);
    if (state->biases)
        d->ops->release(d->dev, state->biases);
    layout_close(state->layout);
    free(state);
}

/* --- where things are --------------------------------------------------------------------------------------------- */

static bool holds_unit(const struct train_state *s, int unit)
{
    return s->layout->units[unit].pp_rank == mesh_group_rank(&s->layout->mesh, GROUP_PP, s->rank);
}

static float *unit_values(const struct train_state *s, int unit)
{
    return s->values + 3 * s->layout->units[unit].offset;
}

static void *unit_shard(const struct train_state *s, int unit)
{
    if (!s->shadow)
        return unit_values(s, unit);
    return (char *)s->shadow + (size_t)s->layout->units[unit].offset * dtype_bytes(s->dt);
}

void *state_bind(const struct train_state *state, const struct buffer *buffer)
{
    const struct model *m = state->layout->model;

    titan_assert(!state->copy); /* nothing is computed with one */
    titan_assert(buffer->kind == BUF_TABLE || (buffer->unit >= 0 && buffer->unit < m->n_units));
    switch (buffer->kind) {
    case BUF_SHARD:
        return unit_shard(state, buffer->unit);
    case BUF_STATE:
    case BUF_STATE_HOST:
        return unit_values(state, buffer->unit);
    case BUF_BIAS:
        return state->biases ? state->biases + layout_bias_offset(m, m->units[buffer->unit].layer) : NULL;
    default:
        return NULL;
    }
}

/* --- filling ------------------------------------------------------------------------------------------------------ */

titan_status state_refresh_shadow(struct train_state *state, struct stream *s)
{
    const struct device_ops *ops = state->device->ops;
    const struct layout *l = state->layout;

    for (int u = 0; state->shadow && u < l->model->n_units; u++) {
        const size_t n = (size_t)l->units[u].shard;
        if (!holds_unit(state, u))
            continue;
        if (state->dt == DTYPE_F32)
            TRY(ops->copy(s, unit_shard(state, u), unit_values(state, u), n * sizeof(float)));
        else
            TRY(ops->cast(s, unit_shard(state, u), state->dt, unit_values(state, u), DTYPE_F32, n));
    }
    return TITAN_OK;
}

/* A box of a parameter's initial values, a row at a time where it is not as wide as the matrix. */
static void init_piece(const struct model *m, uint64_t seed, const struct piece *p)
{
    const struct model_tensor *t = &m->tensors[p->tensor];
    const int64_t width = t->ndim > 1 ? t->shape[1] : t->numel;
    const int64_t rows = p->cols == width ? p->rows : 1;

    progress_action();
    for (int64_t r = 0; r < p->rows; r += rows)
        model_init_tensor(m, seed, p->tensor, (p->row + r) * width + p->col, rows * p->cols, p->data + r * p->cols);
}

int64_t state_snapshot_size(const struct layout *layout, int rank)
{
    return 3 * layout_total(layout, rank) + layout_biases(layout->model);
}

titan_status state_upload(struct train_state *state, const float *host, struct stream *s, struct titan_error *err)
{
    const struct device_ops *ops = state->device->ops;
    const size_t n = 3 * (size_t)state->total, biases = (size_t)layout_biases(state->layout->model);

    TRY(ops->copy(s, state->values, host, n * sizeof *host));
    if (state->biases)
        TRY(ops->copy(s, state->biases, host + n, biases * sizeof *host));
    TRY(state_refresh_shadow(state, s));
    return ops->stream_sync(s, err);
}

titan_status state_init(struct train_state *state, uint64_t seed, struct stream *s, struct titan_error *err)
{
    const struct layout *l = state->layout;
    _cleanup_free_ float *host = calloc((size_t)state_snapshot_size(l, state->rank) + 1, sizeof *host);
    _cleanup_free_ struct piece *pieces = NULL;
    int n;

    if (!host)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    TRY(layout_pieces(l, state->rank, host, host + 3 * state->total, NULL, NULL, &pieces, &n, err));
    for (int i = 0; i < n; i++)
        if (pieces[i].tensor < l->model->n_tensors)
            init_piece(l->model, seed, &pieces[i]);
    return state_upload(state, host, s, err);
}

titan_status state_snapshot(const struct train_state *state, float *host, struct stream *s, struct titan_error *err)
{
    const struct device_ops *ops = state->device->ops;
    const size_t n = 3 * (size_t)state->total, biases = (size_t)layout_biases(state->layout->model);

    TRY(ops->copy(s, host, state->values, n * sizeof *host));
    if (state->biases)
        TRY(ops->copy(s, host + n, state->biases, biases * sizeof *host));
    return ops->stream_sync(s, err);
}

void state_count_step(struct train_state *state, uint64_t tokens, bool skipped)
{
    titan_assert(state->skipped <= state->step);
    state->step++;
    state->tokens += tokens;
    state->skipped += skipped;
}

void state_set_numbers(struct train_state *state, uint64_t step, uint64_t tokens, uint64_t skipped)
{
    state->step = step;
    state->tokens = tokens;
    state->skipped = skipped;
}
