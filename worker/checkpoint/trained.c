/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/trained.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/tensor/layout.h"

titan_status trained_open(const char *path, struct trained *ret, struct titan_error *err)
{
    *ret = (struct trained){0};
    TRY(checkpoint_find(path, ret->path, err));
    TRY(checkpoint_read_info(ret->path, &ret->info, err));
    recipe_init(&ret->recipe);
    titan_status status = recipe_parse(&ret->recipe, ret->info.recipe, "recipe", err);
    if (status == TITAN_OK)
        status = recipe_resolve(&ret->recipe, err);
    if (status == TITAN_OK)
        status = model_open(&ret->recipe.model.dims, &ret->model, err);
    if (status != TITAN_OK) {
        (void)titan_error_wrap(err, "'%s'", ret->path);
        trained_close(ret);
    }
    return status;
}

void trained_close(struct trained *t)
{
    checkpoint_info_clear(&t->info);
    model_close(t->model);
    t->model = NULL;
}

titan_status trained_load(const struct trained *t, int first, int n, float *out, struct titan_error *err)
{
    titan_assert(first >= 0 && n > 0 && first + n <= t->model->n_tensors);
    _cleanup_free_ struct tensor_spec *specs = calloc((size_t)n, sizeof(*specs));
    _cleanup_free_ struct shard_slice *slices = calloc((size_t)n, sizeof(*slices));
    if (!specs || !slices)
        return titan_fail(err, TITAN_ENOMEM, "no memory to load %d tensors", n);
    for (int i = 0; i < n; i++) {
        const struct model_tensor *m = &t->model->tensors[first + i];
        (void)snprintf(specs[i].name, sizeof(specs[i].name), "%s", m->name);
        specs[i].ndim = model_tensor_shape(m, specs[i].shape);
        specs[i].numel = m->numel;
        slices[i] = (struct shard_slice){.tensor = i, .data = out};
        shard_slice_matrix(&specs[i], &slices[i].rows, &slices[i].cols);
        out += m->numel;
    }
    const struct checkpoint_part part = {.specs = specs, .n_specs = n, .slices = slices, .n_slices = n};
    return checkpoint_load(t->path, &part, NULL, err);
}

titan_status trained_load_biases(const struct trained *t, float *out, struct titan_error *err)
{
    const int before = t->model->n_tensors;
    _cleanup_free_ struct tensor_spec *specs = NULL;
    int n;

    TRY(layout_weight_specs(t->model, &specs, &n, err));
    titan_assert(n >= before);
    _cleanup_free_ struct shard_slice *slices = calloc((size_t)(n - before) + 1, sizeof *slices);
    if (!slices)
        return titan_fail(err, TITAN_ENOMEM, "no memory to load the biases of %d layers", n - before);
    for (int i = 0; i < n - before; i++) {
        slices[i] = (struct shard_slice){.tensor = i, .data = out};
        shard_slice_matrix(&specs[before + i], &slices[i].rows, &slices[i].cols);
        out += specs[before + i].numel;
    }
    const struct checkpoint_part part = {
        .specs = specs + before, .n_specs = n - before, .slices = slices, .n_slices = n - before};
    return n == before ? TITAN_OK : checkpoint_load(t->path, &part, NULL, err);
}
