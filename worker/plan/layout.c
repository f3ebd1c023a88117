/* layout.c - ranges of flat buffers. */
#include "worker/plan/layout.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"

#define BLOCK_MIN 1024
#define BLOCKS_MAX (INT64_C(1) << 22) /* of a model: what a step sums on the host for its gradient norm */

static int64_t choose_block(const struct model *model)
{
    int64_t numel = 0, block = BLOCK_MIN;

    for (int u = 0; u < model->n_units; u++)
        numel += model->units[u].numel;
    while (numel / block > BLOCKS_MAX)
        block *= 2;
    return block;
}

titan_status layout_open(const struct model *model, int world, struct layout **ret, struct titan_error *err)
{
    struct layout *l = calloc(1, sizeof *l);
    if (l) {
        l->shard = calloc((size_t)model->n_units, sizeof *l->shard);
        l->offset = calloc((size_t)model->n_units, sizeof *l->offset);
    }
    if (!l || !l->shard || !l->offset) {
        layout_close(l);
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    }
    l->model = model;
    l->world = world;
    l->block = choose_block(model);
    for (int u = 0; u < model->n_units; u++) {
        const int64_t grain = l->block * world;
        l->shard[u] = (model->units[u].numel + grain - 1) / grain * l->block;
        l->offset[u] = l->total;
        l->total += l->shard[u];
    }
    *ret = l;
    return TITAN_OK;
}

void layout_close(struct layout *layout)
{
    if (!layout)
        return;
    free(layout->shard);
    free(layout->offset);
    free(layout);
}

int64_t layout_padded(const struct layout *layout, int unit)
{
    return layout->shard[unit] * layout->world;
}

int64_t layout_blocks(const struct layout *layout)
{
    return layout->total / layout->block;
}

int64_t layout_unit_blocks(const struct layout *layout, int unit)
{
    return (layout->model->units[unit].numel + layout->block - 1) / layout->block;
}

int64_t layout_block_index(const struct layout *layout, int unit, int64_t b)
{
    const int64_t per_rank = layout->shard[unit] / layout->block;
    return b / per_rank * layout_blocks(layout) + layout->offset[unit] / layout->block + b % per_rank;
}

titan_status layout_specs(const struct model *model, struct tensor_spec **ret, int *ret_n, struct titan_error *err)
{
    static const char *const prefix[3] = {"", "optim.m.", "optim.v."};
    struct tensor_spec *specs = calloc((size_t)model->n_tensors * 3, sizeof *specs);

    if (!specs)
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < model->n_tensors; i++) {
            const struct model_tensor *t = &model->tensors[i];
            struct tensor_spec *s = &specs[kind * model->n_tensors + i];
            (void)snprintf(s->name, sizeof s->name, "%s%.80s", prefix[kind], t->name);
            s->ndim = t->ndim;
            s->numel = t->numel;
            for (int d = 0; d < t->ndim; d++)
                s->shape[d] = t->shape[d];
        }
    }
    *ret = specs;
    *ret_n = model->n_tensors * 3;
    return TITAN_OK;
}

titan_status layout_pieces(const struct layout *layout, int rank, float *master, float *m, float *v, struct piece **ret,
                           int *ret_n, struct titan_error *err)
{
    const struct model *model = layout->model;
    float *const array[3] = {master, m, v};
    struct piece *pieces = calloc((size_t)model->n_tensors * 3, sizeof *pieces);
    int n = 0;

    if (!pieces)
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < model->n_tensors; i++) {
            const struct model_tensor *t = &model->tensors[i];
            const int64_t begin = layout->shard[t->unit] * rank, end = begin + layout->shard[t->unit];
            const int64_t from = MAX(begin, t->offset), to = MIN(end, t->offset + t->numel);
            if (from >= to)
                continue;
            pieces[n++] = (struct piece){.tensor = kind * model->n_tensors + i,
                                         .start = from - t->offset,
                                         .count = to - from,
                                         .data = array[kind] + layout->offset[t->unit] + (from - begin)};
        }
    }
    *ret = pieces;
    *ret_n = n;
    return TITAN_OK;
}
