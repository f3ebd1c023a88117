/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - a rank's part of the training state. */
#include "worker/state/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/progress.h"
#include "worker/program/program.h"

static titan_status allocate(struct train_state *s, struct titan_error *err)
{
    const struct device_handle *d = s->device;
    const size_t values = state_bytes(s, s->total), shadow = (size_t)s->total * dtype_bytes(s->types.compute);
    const size_t biases = (size_t)layout_biases(s->layout->model) * sizeof(float);

    if (s->offload)
        TRY(d->ops->alloc_host(d->dev, values, &s->values, err));
    else
        TRY(d->ops->alloc(d->dev, values, &s->values, err));
    if (!s->copy && (s->offload || s->types.compute != s->types.master))
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
    titan_assert(s->types.compute == DTYPE_F32 || s->types.compute == DTYPE_BF16);
    titan_assert(s->types.master == DTYPE_F32 || (s->types.master == DTYPE_BF16 && s->types.moment == DTYPE_BF16));
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

titan_status state_open(const struct device_handle *device, struct layout *layout, int rank, struct state_types types,
                        bool offload, struct train_state **ret, struct titan_error *err)
{
    return open_as(
        (struct train_state){.device = device, .layout = layout, .rank = rank, .types = types, .offload = offload}, ret,
        err);
}

titan_status state_open_copy(const struct device_handle *device, struct layout *layout, int rank,
                             struct state_types types, bool offload, struct train_state **ret, struct titan_error *err)
{
    return open_as((struct train_state){.device = device,
                                        .layout = layout,
                                        .rank = rank,
                                        .types = types,
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

size_t state_bytes(const struct train_state *state, int64_t n)
{
    return (size_t)n * state_types_bytes(state->types);
}

void *state_unit(const struct train_state *state, int unit)
{
    return (char *)state->values + state_bytes(state, state->layout->units[unit].offset);
}

void *state_piece(const struct train_state *state, const struct piece *piece, enum dtype *ret_type)
{
    const struct model *m = state->layout->model;
    const int kind = piece->tensor / m->n_tensors; /* masters, m, v, biases */

    if (kind >= 3) {
        *ret_type = DTYPE_F32;
        return state->biases + (piece->at - 3 * state->total);
    }
    const int unit = m->tensors[piece->tensor % m->n_tensors].unit;
    const struct unit_layout *u = &state->layout->units[unit];
    const int64_t at = piece->at - 3 * u->offset; /* in the unit */
    const size_t masters = (size_t)(kind == 0 ? at : u->shard), moments = (size_t)(kind == 0 ? 0 : at - u->shard);
    titan_assert(at >= kind * u->shard && at < (kind + 1) * u->shard);
    *ret_type = kind == 0 ? state->types.master : state->types.moment;
    return (char *)state_unit(state, unit) + masters * dtype_bytes(state->types.master) +
           moments * dtype_bytes(state->types.moment);
}

static void *unit_shard(const struct train_state *s, int unit)
{
    if (!s->shadow)
        return state_unit(s, unit);
    return (char *)s->shadow + (size_t)s->layout->units[unit].offset * dtype_bytes(s->types.compute);
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
        return state_unit(state, buffer->unit);
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
    const struct state_types t = state->types;

    for (int u = 0; state->shadow && u < l->model->n_units; u++) {
        const size_t n = (size_t)l->units[u].shard;
        if (!holds_unit(state, u))
            continue;
        if (t.compute == t.master)
            TRY(ops->copy(s, unit_shard(state, u), state_unit(state, u), n * dtype_bytes(t.master)));
        else
            TRY(ops->cast(s, unit_shard(state, u), t.compute, state_unit(state, u), t.master, n));
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

/* n stored values as fp32, and where the next ones are on both sides. In one buffer, what is read stays ahead of what
 * is written. */
static float *widen(float *to, const char **from, enum dtype type, int64_t n)
{
    const char *at = *from;

    *from += (size_t)n * dtype_bytes(type);
    for (int64_t i = 0; i < n && type == DTYPE_BF16; i++) {
        uint16_t half;
        memcpy(&half, at + i * (int64_t)sizeof half, sizeof half);
        to[i] = bf16_to_f32(half);
    }
    if (type == DTYPE_F32)
        memmove(to, at, (size_t)n * sizeof *to);
    return to + n;
}

static char *narrow(char *to, const float **from, enum dtype type, int64_t n)
{
    const float *at = *from;

    *from += n;
    for (int64_t i = 0; i < n && type == DTYPE_BF16; i++) {
        const uint16_t half = bf16_from_f32(at[i]);
        memcpy(to + i * (int64_t)sizeof half, &half, sizeof half);
    }
    if (type == DTYPE_F32)
        memcpy(to, at, (size_t)n * sizeof *at);
    return to + (size_t)n * dtype_bytes(type);
}

/* Stored values at the end of host (3 * total) as fp32 from its beginning. */
static void widen_all(const struct train_state *state, float *host)
{
    const char *from = (const char *)(host + 3 * state->total) - state_bytes(state, state->total);

    for (int u = 0; u < state->layout->model->n_units; u++) {
        const int64_t n = holds_unit(state, u) ? state->layout->units[u].shard : 0;
        host = widen(host, &from, state->types.master, n);
        host = widen(host, &from, state->types.moment, 2 * n);
    }
}

/* fp32 into device memory, rounded. */
static titan_status upload_narrow(struct train_state *state, const float *host, struct stream *s,
                                  struct titan_error *err)
{
    const struct device_ops *ops = state->device->ops;
    const size_t bytes = state_bytes(state, state->total);
    _cleanup_free_ char *stored = malloc(bytes + 1);
    char *to = stored;

    if (!stored)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    for (int u = 0; u < state->layout->model->n_units; u++) {
        const int64_t n = holds_unit(state, u) ? state->layout->units[u].shard : 0;
        to = narrow(to, &host, state->types.master, n);
        to = narrow(to, &host, state->types.moment, 2 * n);
    }
    titan_assert(to == stored + bytes);
    TRY(ops->copy(s, state->values, stored, bytes));
    return ops->stream_sync(s, err);
}

titan_status state_upload(struct train_state *state, const float *host, struct stream *s, struct titan_error *err)
{
    const struct device_ops *ops = state->device->ops;
    const size_t n = 3 * (size_t)state->total, biases = (size_t)layout_biases(state->layout->model);

    if (state_types_are_f32(state->types))
        TRY(ops->copy(s, state->values, host, n * sizeof *host));
    else
        TRY(upload_narrow(state, host, s, err));
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

    const size_t bytes = state_bytes(state, state->total);
    TRY(ops->copy(s, (char *)(host + n) - bytes, state->values, bytes));
    if (state->biases)
        TRY(ops->copy(s, host + n, state->biases, biases * sizeof *host));
    TRY(ops->stream_sync(s, err));
    if (!state_types_are_f32(state->types))
        widen_all(state, host);
    return TITAN_OK;
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
