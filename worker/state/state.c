/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - a rank's shard of the training state. */
#include "worker/state/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/progress.h"
#include "worker/program/program.h"

/* Bytes of the errors of the units before one. */
static size_t errors_before(const struct train_state *s, int unit)
{
    const struct layout *const l = s->layout;
    size_t bytes = 0;

    for (int u = 0; u < unit; u++)
        bytes += layout_adds(l, u, s->rank) ? layout_error_bytes(l, u) : 0;
    return bytes;
}

/* The same of codes between replicas. */
static size_t replica_errors_before(const struct train_state *s, int unit)
{
    const struct layout *const l = s->layout;
    size_t bytes = 0;

    for (int u = 0; u < unit; u++)
        bytes += layout_adds(l, u, s->rank) ? layout_replica_error_bytes(l, u) : 0;
    return bytes;
}

titan_status state_open(const struct state_options *o, struct train_state **ret, struct titan_error *err)
{
    struct train_state *s = calloc(1, sizeof *s);
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    titan_assert(o->rank >= 0 && o->rank < o->layout->mesh.world);
    titan_assert(o->types.compute == DTYPE_F32 || o->types.compute == DTYPE_BF16);
    titan_assert(o->types.master == DTYPE_F32 || (o->types.master == DTYPE_BF16 && o->types.moment != DTYPE_F32));
    titan_assert((o->types.moment == DTYPE_U8) == o->layout->coded);
    s->device = o->device;
    s->layout = o->layout;
    s->rank = o->rank;
    s->types = o->types;
    s->offload = o->offload || (o->copy && !o->device->info.host_memory);
    s->copy = o->copy;
    s->total = layout_total(s->layout, s->rank);
    s->kept = layout_state(s->layout, s->rank) - s->total;

    const struct device_handle *const d = s->device;
    const size_t values = state_bytes(s), shadow = (size_t)s->total * dtype_bytes(s->types.compute);
    const size_t biases = (size_t)layout_biases(s->layout->model) * sizeof(float);
    titan_status status = s->offload ? d->ops->alloc_host(d->dev, values, &s->values, err)
                                     : d->ops->alloc(d->dev, values, &s->values, err);
    if (status == TITAN_OK)
        status = staging_open(d, !s->offload && !d->info.host_memory, values, &s->staging, err);
    if (status == TITAN_OK)
        status = d->ops->alloc(d->dev, 2 * sizeof *s->hashes, (void **)&s->hashes, err);
    if (status == TITAN_OK && !s->copy && (s->offload || s->types.compute != s->types.master))
        status = d->ops->alloc(d->dev, shadow, &s->shadow, err);
    if (status == TITAN_OK && biases > 0)
        status = d->ops->alloc(d->dev, biases, (void **)&s->biases, err);
    const size_t errors = o->errors ? errors_before(s, s->layout->model->n_units) : 0;
    titan_assert(!o->errors || !o->copy);
    if (status == TITAN_OK && errors > 0)
        status = d->ops->alloc(d->dev, errors, (void **)&s->errors, err);
    const size_t of_replicas = o->replica_errors ? replica_errors_before(s, s->layout->model->n_units) : 0;
    titan_assert(!o->replica_errors || !o->copy);
    if (status == TITAN_OK && of_replicas > 0)
        status = d->ops->alloc(d->dev, of_replicas, (void **)&s->replica_errors, err);
    if (status != TITAN_OK) {
        s->layout = NULL;
        state_close(s);
        return status;
    }
    *ret = s;
    return TITAN_OK;
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
    if (state->errors)
        d->ops->release(d->dev, state->errors);
    if (state->replica_errors)
        d->ops->release(d->dev, state->replica_errors);
    if (state->hashes)
        d->ops->release(d->dev, state->hashes);
    staging_close(state->staging);
    layout_close(state->layout);
    free(state);
}

/* --- where things are --------------------------------------------------------------------------------------------- */

static bool holds_unit(const struct train_state *s, int unit)
{
    return s->layout->units[unit].pp_rank == mesh_group_rank(&s->layout->mesh, GROUP_PP, s->rank);
}

size_t state_bytes(const struct train_state *state)
{
    return state_types_bytes(state->types, state->total, state->kept);
}

size_t state_unit_bytes(const struct train_state *state, int unit)
{
    const struct layout *l = state->layout;

    return state_types_bytes(state->types, l->units[unit].shard, layout_unit_kept(l, unit));
}

void *state_owned(const struct train_state *state)
{
    const int64_t owned = layout_owned(state->layout, state->rank);

    return (char *)state->values + state_types_bytes(state->types, state->total, state->kept - owned);
}

void *state_unit(const struct train_state *state, int unit)
{
    const struct unit_layout *u = &state->layout->units[unit];

    return (char *)state->values + state_types_bytes(state->types, u->offset, u->kept);
}

/* Offset of a slice in the values, or in the biases, in bytes. */
static size_t place_of(const struct layout *l, int rank, struct state_types types, const struct shard_slice *slice,
                       bool *ret_bias, enum dtype *ret_type)
{
    *ret_bias = layout_spec_is_bias(l, slice->tensor);
    *ret_type = DTYPE_F32;
    if (*ret_bias)
        return (size_t)(slice->at - layout_state(l, rank)) * sizeof(float);
    const struct state_spec *spec = &l->specs[slice->tensor];
    const int64_t before = layout_state(l, rank) - layout_owned(l, rank); /* elements before what the rank owns */
    if (slice->at >= before) {
        const int64_t total = layout_total(l, rank);
        *ret_type = types.moment;
        return state_types_bytes(types, total, slice->at - total);
    }
    const int unit = l->model->tensors[spec->tensor].unit;
    const struct unit_layout *u = &l->units[unit];
    const int64_t at = slice->at - u->offset - u->kept; /* offset in the unit */
    titan_assert(spec->kind == 0 ? at >= 0 && at < u->shard
                                 : at >= u->shard && at < u->shard + layout_unit_kept(l, unit));
    *ret_type = spec->kind == 0 ? types.master : types.moment;
    if (spec->kind == 0)
        return state_types_bytes(types, u->offset + at, u->kept);
    const int64_t begin = types.moment == DTYPE_U8 ? at / MOMENT_BLOCK * MOMENT_BLOCK : at;
    return state_types_bytes(types, u->offset + u->shard, u->kept + begin - u->shard);
}

void *state_slice(const struct train_state *state, const struct shard_slice *slice, enum dtype *ret_type)
{
    bool bias;
    const size_t at = place_of(state->layout, state->rank, state->types, slice, &bias, ret_type);

    titan_assert(*ret_type != DTYPE_U8 ||
                 slice->at >= layout_state(state->layout, state->rank) - layout_owned(state->layout, state->rank));
    return (bias ? (char *)state->biases : (char *)state->values) + at;
}

void *state_block(const struct train_state *state, int tensor, int kind, int64_t from)
{
    const struct layout *const l = state->layout;
    const int unit = l->model->tensors[tensor].unit;
    const int64_t begin = layout_begin(l, unit, state->rank);
    int64_t place = layout_place(l, tensor, state->rank, kind) + from - MAX(begin, l->tensors[tensor].offset);

    titan_assert(state->types.moment == DTYPE_U8 && from % MOMENT_BLOCK == 0 && place % MOMENT_BLOCK == 0);
    titan_assert(from >= begin && from < begin + l->units[unit].shard);
    for (int k = 0; k < kind; k++)
        place += l->units[unit].span[k];
    return (char *)state_unit(state, unit) + state_types_bytes(state->types, l->units[unit].shard, place);
}

/* Bytes of the values in a copy, rounded up to 64. The biases begin behind them, aligned for floats. */
static size_t values_in_copy(const struct layout *l, int rank, struct state_types types)
{
    const int64_t n = layout_total(l, rank);

    return (state_types_bytes(types, n, layout_state(l, rank) - n) + 63) / 64 * 64;
}

size_t state_copy_bytes(const struct layout *layout, int rank, struct state_types types)
{
    return values_in_copy(layout, rank, types) + (size_t)layout_biases(layout->model) * sizeof(float);
}

size_t state_copy_place(const struct layout *layout, int rank, struct state_types types,
                        const struct shard_slice *slice, enum dtype *ret_type)
{
    bool bias;
    const size_t at = place_of(layout, rank, types, slice, &bias, ret_type);

    return (bias ? values_in_copy(layout, rank, types) : 0) + at;
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

    titan_assert(!state->copy); /* no computation uses a copy */
    if (buffer->kind == BUF_OWNED || buffer->kind == BUF_OWNED_HOST)
        return state_owned(state);
    titan_assert(buffer->kind == BUF_TABLE || (buffer->unit >= 0 && buffer->unit < m->n_units));
    switch (buffer->kind) {
    case BUF_SHARD:
        return unit_shard(state, buffer->unit);
    case BUF_STATE:
    case BUF_STATE_HOST:
        return state_unit(state, buffer->unit);
    case BUF_BIAS:
        return state->biases ? state->biases + layout_bias_offset(m, m->units[buffer->unit].layer) : NULL;
    case BUF_ERROR:
        return state_errors(state, buffer->unit);
    case BUF_REPLICA_ERROR:
        titan_assert(state->replica_errors);
        return state->replica_errors + replica_errors_before(state, buffer->unit);
    default:
        return NULL;
    }
}

uint8_t *state_errors(const struct train_state *state, int unit)
{
    titan_assert(state->errors && layout_adds(state->layout, unit, state->rank));
    return state->errors + errors_before(state, unit);
}

titan_status state_zero_errors(const struct train_state *state, struct stream *s)
{
    const int units = state->layout->model->n_units;
    const size_t bytes = state->errors ? errors_before(state, units) : 0;
    const size_t of_replicas = state->replica_errors ? replica_errors_before(state, units) : 0;

    if (of_replicas > 0)
        TRY(state->device->ops->zero(s, state->replica_errors, of_replicas));
    return bytes > 0 ? state->device->ops->zero(s, state->errors, bytes) : TITAN_OK;
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

int64_t state_snapshot_size(const struct layout *layout, int rank)
{
    return layout_state(layout, rank) + layout_biases(layout->model);
}

static void narrow(void *to, const float *from, enum dtype type, int64_t n)
{
    uint16_t *const halves = to;

    if (type == DTYPE_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    for (int64_t i = 0; i < n && type == DTYPE_BF16; i++)
        halves[i] = bf16_from_f32(from[i]);
}

/* A walk over the stored values and, in parallel, over the same values as fp32 on the host. It goes unit by unit:
 * masters, then each kind of state. What the rank owns comes last. */
struct walk {
    const struct train_state *state;
    int unit, section; /* section 0: masters; k: kind k - 1 */
    int64_t left;      /* elements of the section before the next one */
    const float *from; /* the walk reads `from` or writes `to` */
    float *to;
    struct moment_block block; /* a block that the end of a piece cuts */
    size_t held;               /* bytes of it in the pieces so far */
};

static struct walk walk_begin(const struct train_state *state, const float *from, float *to)
{
    return (struct walk){.state = state, .unit = -1, .section = state->layout->kinds.n, .from = from, .to = to};
}

/* Moves on to the next section that has elements, if there are none left in this one. Returns its type. */
static enum dtype walk_on(struct walk *w)
{
    const struct train_state *s = w->state;
    const struct layout *l = s->layout;

    while (w->left == 0) {
        if (++w->section > l->kinds.n) {
            w->section = 0;
            w->unit++;
        }
        titan_assert(w->unit < l->model->n_units || (w->unit == l->model->n_units && w->section <= l->kinds.n));
        if (w->unit == l->model->n_units)
            w->left = w->section == 0 ? 0 : layout_owned_span(l, s->rank, w->section - 1);
        else if (holds_unit(s, w->unit))
            w->left = w->section == 0 ? l->units[w->unit].shard : l->units[w->unit].span[w->section - 1];
    }
    return w->section == 0 ? s->types.master : s->types.moment;
}

/* Decodes or encodes blocks between a piece of the state, from `at` to `end`, and the host's values. Returns the place
 * in the piece where it ends. */
static char *walk_blocks(struct walk *w, char *at, const char *end)
{
    const bool square = w->state->layout->kinds.squares >> (w->section - 1) & 1;
    const int64_t whole = w->held > 0 ? 0 : MIN(w->left / MOMENT_BLOCK, (end - at) / (int64_t)sizeof w->block);
    const size_t part = MIN(sizeof w->block - w->held, (size_t)(end - at));
    struct moment_block *const blocks = whole > 0 ? (void *)at : &w->block;

    titan_assert(w->left > 0 && w->left % MOMENT_BLOCK == 0);
    if (whole == 0 && w->to)
        memcpy((char *)&w->block + w->held, at, part);
    if (whole > 0 && w->to)
        moment_blocks_decode(blocks, whole, square, w->to);
    else if (w->to && w->held + part == sizeof w->block)
        moment_blocks_decode(blocks, 1, square, w->to);
    else if (!w->to && w->held == 0)
        moment_blocks_encode(blocks, MAX(whole, 1), square, w->from);
    if (whole == 0 && !w->to)
        memcpy(at, (char *)&w->block + w->held, part);

    w->held = whole > 0 ? 0 : (w->held + part) % sizeof w->block;
    const int64_t n = whole > 0 ? whole * MOMENT_BLOCK : w->held == 0 ? MOMENT_BLOCK : 0;
    w->left -= n;
    w->from = w->from ? w->from + n : NULL;
    w->to = w->to ? w->to + n : NULL;
    return at + (whole > 0 ? moment_codes_bytes(n) : part);
}

static void take_values(void *arg, void *slice, size_t bytes)
{
    struct walk *w = arg;

    for (char *at = slice, *end = at + bytes; at < end;) {
        const enum dtype type = walk_on(w);
        if (type == DTYPE_U8) {
            at = walk_blocks(w, at, end);
            continue;
        }
        const int64_t n = MIN(w->left, (end - at) / (int64_t)dtype_bytes(type));
        const uint16_t *const halves = (const uint16_t *)(const void *)at;
        titan_assert(n > 0);
        if (type == DTYPE_F32)
            memcpy(w->to, at, (size_t)n * sizeof *w->to);
        for (int64_t i = 0; i < n && type == DTYPE_BF16; i++)
            w->to[i] = bf16_to_f32(halves[i]);
        w->to += n;
        w->left -= n;
        at += (size_t)n * dtype_bytes(type);
    }
}

static void fill_values(void *arg, void *slice, size_t bytes)
{
    struct walk *w = arg;

    for (char *at = slice, *end = at + bytes; at < end;) {
        const enum dtype type = walk_on(w);
        if (type == DTYPE_U8) {
            at = walk_blocks(w, at, end);
            continue;
        }
        const int64_t n = MIN(w->left, (end - at) / (int64_t)dtype_bytes(type));
        titan_assert(n > 0);
        narrow(at, w->from, type, n);
        w->from += n;
        w->left -= n;
        at += (size_t)n * dtype_bytes(type);
    }
}

/* Completes an upload, whose values are copied or enqueued: fills the shadow and waits. */
static titan_status settle(struct train_state *state, struct stream *s, struct titan_error *err)
{
    TRY(state_refresh_shadow(state, s));
    return state->device->ops->stream_sync(s, err);
}

titan_status state_upload(struct train_state *state, const float *host, struct stream *s, struct titan_error *err)
{
    const size_t n = (size_t)(state->total + state->kept), biases = (size_t)layout_biases(state->layout->model);
    struct walk w = walk_begin(state, host, NULL);

    TRY(staging_write(state->staging, state->values, state_bytes(state), (struct staging_work){fill_values, &w}, s,
                      err));
    titan_assert(w.from == host + n);
    if (state->biases)
        TRY(state->device->ops->copy(s, state->biases, host + n, biases * sizeof *host));
    return settle(state, s, err);
}

titan_status state_snapshot(const struct train_state *state, float *host, struct stream *s, struct titan_error *err)
{
    const size_t n = (size_t)(state->total + state->kept), biases = (size_t)layout_biases(state->layout->model);
    struct walk w = walk_begin(state, NULL, host);

    TRY(staging_read(state->staging, state->values, state_bytes(state), (struct staging_work){take_values, &w}, s,
                     err));
    titan_assert(w.to == host + n);
    if (state->biases)
        TRY(state->device->ops->copy(s, host + n, state->biases, biases * sizeof *host));
    return state->device->ops->stream_sync(s, err);
}

static void take_bytes(void *arg, void *slice, size_t bytes)
{
    char **const to = arg;

    memcpy(*to, slice, bytes);
    *to += bytes;
}

titan_status state_copy(const struct train_state *state, void *host, size_t pinned, struct stream *s,
                        struct titan_error *err)
{
    const size_t values = state_bytes(state), biases = (size_t)layout_biases(state->layout->model);
    const size_t behind = values_in_copy(state->layout, state->rank, state->types);
    char *to = host;

    if (pinned > 0 && staging_pinned(state->staging)) {
        TRY(staging_copy(state->staging, (struct pinned_place){host, 0, pinned}, state->values, values, s, err));
        return state->biases ? staging_copy(state->staging, (struct pinned_place){host, behind, pinned}, state->biases,
                                            biases * sizeof(float), s, err)
                             : TITAN_OK;
    }
    TRY(staging_read(state->staging, state->values, values, (struct staging_work){take_bytes, &to}, s, err));
    if (state->biases)
        TRY(state->device->ops->copy(s, (char *)host + behind, state->biases, biases * sizeof(float)));
    return state->device->ops->stream_sync(s, err);
}

/* --- initial values ----------------------------------------------------------------------------------------------- */

#define DRAWN ((int64_t)16 << 20) /* elements per draw; each draw counts as progress */
#define AHEAD 128                 /* operations enqueued between waits */

struct constant {
    enum dtype type;
    float value;
};

static void fill_constant(void *arg, void *slice, size_t bytes)
{
    const struct constant *c = arg;

    for (size_t at = 0; at < bytes; at += dtype_bytes(c->type))
        narrow((char *)slice + at, &c->value, c->type, 1);
}

titan_status state_init(struct train_state *state, uint64_t seed, struct stream *s, struct titan_error *err)
{
    const struct model *m = state->layout->model;
    _cleanup_free_ struct shard_slice *slices = NULL;
    int n;

    TRY(layout_slices(state->layout, state->rank, NULL, NULL, NULL, NULL, &slices, &n, err));
    for (int i = 0; i < n && slices[i].tensor < m->n_tensors; i++) {
        const struct shard_slice *p = &slices[i];
        const struct model_tensor *t = &m->tensors[p->tensor];
        enum dtype type;
        void *const to = state_slice(state, p, &type);

        if (t->init <= INIT_ONES) {
            struct constant c = {type, t->init == INIT_ONES};
            TRY(staging_write(state->staging, to, (size_t)(p->rows * p->cols) * dtype_bytes(type),
                              (struct staging_work){fill_constant, &c}, s, err));
        } else {
            const struct rng_weights w = model_init_weights(m, seed, p->tensor);
            const int64_t width = t->ndim > 1 ? t->shape[1] : t->numel, rows = MAX(DRAWN / p->cols, 1);
            for (int64_t r = 0; r < p->rows; r += rows) {
                progress_action();
                TRY(state->device->ops->weights(
                    s, ARGS(weights, .out = (char *)to + r * p->cols * (int64_t)dtype_bytes(type), .dt = type,
                            .rows = MIN(rows, p->rows - r), .cols = p->cols, .width = width,
                            .first = (p->row + r) * width + p->col, .weights = &w)));
            }
        }
        if (i % AHEAD == AHEAD - 1)
            TRY(state->device->ops->stream_sync(s, err));
    }
    return settle(state, s, err);
}

void state_settle(struct train_state *state)
{
    titan_assert(!state->copy);
    state->settled = true;
}

void state_count_step(struct train_state *state, uint64_t tokens, bool skipped)
{
    titan_assert(state->skipped.total <= state->step);
    state->step++;
    state->tokens += tokens;
    skipped_count(&state->skipped, state->step, skipped);
}

void state_set_numbers(struct train_state *state, uint64_t step, uint64_t tokens, struct skipped_steps skipped)
{
    state->step = step;
    state->tokens = tokens;
    state->skipped = skipped;
}
