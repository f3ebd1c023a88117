/* state.c - a rank's part of the training state. */
#include "worker/state.h"

#include <stdlib.h>

#include "base/cleanup.h"

titan_status state_open(const struct device_handle *device, const struct model *model, int rank, int world,
                        enum dtype dt, struct train_state **ret, struct titan_error *err)
{
    struct train_state *s = calloc(1, sizeof *s);
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    s->device = device;
    s->rank = rank;
    s->dt = dt;

    titan_status status = layout_open(model, world, &s->layout, err);
    float **const arrays[] = {&s->master, &s->m, &s->v};
    for (size_t i = 0; status == TITAN_OK && i < ARRAY_SIZE(arrays); i++)
        status = device->ops->alloc(device->dev, (size_t)s->layout->total * sizeof(float), (void **)arrays[i], err);
    if (status == TITAN_OK && dt == DTYPE_F32)
        s->shadow = s->master;
    else if (status == TITAN_OK)
        status = device->ops->alloc(device->dev, (size_t)s->layout->total * dtype_bytes(dt), &s->shadow, err);
    if (status != TITAN_OK) {
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
    void *const arrays[] = {state->master, state->m, state->v, state->shadow != state->master ? state->shadow : NULL};
    for (size_t i = 0; i < ARRAY_SIZE(arrays); i++)
        if (arrays[i])
            state->device->ops->release(state->device->dev, arrays[i]);
    layout_close(state->layout);
    free(state);
}

titan_status state_refresh_shadow(struct train_state *state, struct stream *s)
{
    if (state->shadow == state->master)
        return TITAN_OK;
    return state->device->ops->cast(s, state->shadow, state->dt, state->master, DTYPE_F32,
                                    (size_t)state->layout->total);
}

titan_status state_init(struct train_state *state, uint64_t seed, struct stream *s, struct titan_error *err)
{
    const struct layout *l = state->layout;
    const struct device_ops *ops = state->device->ops;
    _cleanup_free_ float *values = malloc((size_t)l->total * sizeof *values);

    if (!values)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    for (int u = 0; u < l->model->n_units; u++)
        model_init_range(l->model, seed, u, l->shard[u] * state->rank, l->shard[u], values + l->offset[u]);
    TRY(ops->copy(s, state->master, values, (size_t)l->total * sizeof *values));
    TRY(state_refresh_shadow(state, s));
    return ops->stream_sync(s, err);
}

titan_status state_load(struct train_state *state, const char *path, uint64_t recipe_hash, struct stream *s,
                        struct titan_error *err)
{
    const struct layout *l = state->layout;
    const struct device_ops *ops = state->device->ops;
    const size_t bytes = (size_t)l->total * sizeof(float);
    _cleanup_free_ float *host = calloc(3, bytes); /* padding stays zero */
    _cleanup_free_ struct tensor_spec *specs = NULL;
    _cleanup_free_ struct piece *pieces = NULL;
    _cleanup_(checkpoint_info_clear) struct checkpoint_info info = {0};
    int n_specs, n_pieces;

    if (!host)
        return titan_fail(err, TITAN_ENOMEM, "state: out of memory");
    TRY(checkpoint_read_info(path, &info, err));
    if (info.recipe_hash != recipe_hash) {
        (void)titan_fail(err, TITAN_ECONFLICT, "checkpoint '%s' belongs to another recipe", path);
        titan_error_hint(err, "use another checkpoint.folder, or the recipe this checkpoint was written with");
        return TITAN_ECONFLICT;
    }
    TRY(layout_specs(l->model, &specs, &n_specs, err));
    TRY(layout_pieces(l, state->rank, host, host + l->total, host + 2 * l->total, &pieces, &n_pieces, err));
    TRY(checkpoint_load(path, specs, n_specs, pieces, n_pieces, err));
    TRY(ops->copy(s, state->master, host, bytes));
    TRY(ops->copy(s, state->m, host + l->total, bytes));
    TRY(ops->copy(s, state->v, host + 2 * l->total, bytes));
    TRY(state_refresh_shadow(state, s));
    state->step = info.step;
    state->tokens = info.tokens;
    state->skipped = info.skipped_steps;
    return ops->stream_sync(s, err);
}

titan_status state_snapshot(const struct train_state *state, float *host, struct stream *s, struct titan_error *err)
{
    const size_t total = (size_t)state->layout->total;
    const struct device_ops *ops = state->device->ops;

    TRY(ops->copy(s, host, state->master, total * sizeof(float)));
    TRY(ops->copy(s, host + total, state->m, total * sizeof(float)));
    TRY(ops->copy(s, host + 2 * total, state->v, total * sizeof(float)));
    return ops->stream_sync(s, err);
}
