/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - the optimizer's arithmetic: arguments from the recipe, one call of the device. */
#include "worker/optim/update.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

struct update update_of_recipe(const struct recipe *recipe, double learning_rate, uint64_t number, double tokens,
                               double clip)
{
    const struct state_types types = state_types_of_recipe(recipe, DTYPE_F32);

    titan_assert(number >= 1);
    titan_assert(learning_rate >= 0);
    return (struct update){
        .sgd = strcmp(recipe->optimizer.name, "SGD") == 0,
        .args = {.lr = (float)learning_rate,
                 .beta1 = (float)recipe->optimizer.beta1,
                 .beta2 = (float)recipe->optimizer.beta2,
                 .eps = (float)recipe->optimizer.eps,
                 .weight_decay = (float)recipe->optimizer.weight_decay,
                 .l2 = strcmp(recipe->optimizer.name, "Adam") == 0,
                 .grad_scale = (float)(clip / tokens),
                 .bias1 = (float)(1 - pow(recipe->optimizer.beta1, (double)number)),
                 .bias2 = (float)(1 - pow(recipe->optimizer.beta2, (double)number)),
                 .master = types.master,
                 .moment = types.moment,
                 .mean = (float)(1 / tokens),
                 .clip = (float)clip,
                 .rounding = {.random = types.moment == DTYPE_BF16 &&
                                        strcmp(recipe->optimizer.state_rounding, "stochastic") == 0,
                              .step = number}},
        .seed = (uint64_t)recipe->training.seed,
    };
}

#define TOGETHER 64 /* ranges in one call of the device */

/* AdamW ranges that are not enqueued yet. */
struct gathered {
    const struct adamw_args *args;
    const struct device_ops *ops;
    struct stream *s;
    int n;
    struct adamw_range ranges[TOGETHER];
};

static titan_status enqueue(struct gathered *g)
{
    const int n = g->n;

    g->n = 0;
    return n == 0 ? TITAN_OK : g->ops->adamw(g->s, g->ranges, n, g->args);
}

/* Gathers elements [at, at + n) of an update's range, all rounded in the same way. */
static titan_status gather(struct gathered *g, const struct update_range *range, uint16_t *shadow, int64_t at,
                           int64_t n, const struct moment_rounding *rounding)
{
    const size_t master = dtype_bytes(g->args->master), moment = dtype_bytes(g->args->moment);
    char *const w = range->values, *const m = w + (size_t)range->n * master, *const v = m + (size_t)range->n * moment;

    titan_assert(at >= 0 && n >= 0 && at + n <= range->n);
    if (g->n == TOGETHER)
        TRY(enqueue(g));
    g->ranges[g->n++] = (struct adamw_range){.master = w + (size_t)at * master,
                                             .m = m + (size_t)at * moment,
                                             .v = v + (size_t)at * moment,
                                             .grad = range->grad + at,
                                             .shadow = shadow ? shadow + at : NULL,
                                             .n = (size_t)n,
                                             .rounding = *rounding};
    return TITAN_OK;
}

/* Gathers a range parameter by parameter. Each parameter has its own random numbers, the same for any cut of the
 * parameter. Elements between parameters stay unchanged. */
static titan_status gather_parameters(struct gathered *g, const struct update *update, const struct update_range *range,
                                      uint16_t *shadow)
{
    const struct layout *const l = range->layout;
    const struct model_unit *const unit = &l->model->units[range->unit];
    const int64_t begin = layout_begin(l, range->unit, range->rank), end = begin + range->n;

    for (int t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        const struct model_tensor *const tensor = &l->model->tensors[t];
        const struct local_tensor *const local = &l->tensors[t];
        const int64_t from = MAX(begin, local->offset), to = MIN(end, local->offset + local->rows * local->cols);
        const int64_t width = tensor->ndim > 1 ? tensor->shape[1] : tensor->numel;
        const int64_t stretch = layout_stretch(l, t) * local->cols;
        struct moment_rounding rounding = update->args.rounding;
        char name[sizeof tensor->name + 16];
        (void)snprintf(name, sizeof name, "rounding.%s", tensor->name);
        rounding.key = rng_key(update->seed, name);
        rounding.cols = local->cols;
        rounding.ld = width;
        for (int64_t at = from, next; at < to; at = next) {
            const int64_t first = (at - local->offset) / stretch * stretch;
            int64_t row, col;
            next = MIN(to, local->offset + first + stretch);
            layout_origin(l, t, range->rank, first / local->cols, &row, &col);
            rounding.first = at - local->offset - first;
            rounding.origin = row * width + col;
            TRY(gather(g, range, shadow, at - begin, next - at, &rounding));
        }
    }
    return TITAN_OK;
}

titan_status update_apply(const struct update *update, const struct update_range *ranges, int count,
                          const struct device_ops *ops, enum dtype dt, struct stream *s)
{
    const struct adamw_args *const a = &update->args;
    const bool shadows = dt == DTYPE_BF16 && a->master == DTYPE_F32;
    struct gathered g = {.args = a, .ops = ops, .s = s};

    titan_assert(dt == DTYPE_F32 || dt == DTYPE_BF16);
    for (int i = 0; i < count; i++) {
        const struct update_range *const r = &ranges[i];
        uint16_t *const shadow = shadows ? r->shard : NULL;
        titan_assert(r->values && r->grad && r->n >= 0);
        titan_assert(r->layout || !a->rounding.random);
        if (update->sgd)
            TRY(ops->sgd(s, r->values, r->grad, shadow, (size_t)r->n, a));
        else if (a->rounding.random)
            TRY(gather_parameters(&g, update, r, shadow));
        else
            TRY(gather(&g, r, shadow, 0, r->n, &a->rounding));
    }
    TRY(enqueue(&g));
    /* Makes the shards from the masters, where they are neither the masters themselves nor written with them. */
    for (int i = 0; i < count && !shadows; i++) {
        const struct update_range *const r = &ranges[i];
        if (!r->shard || r->shard == r->values)
            continue;
        TRY(dt != a->master ? ops->cast(s, r->shard, dt, r->values, a->master, (size_t)r->n)
                            : ops->copy(s, r->shard, r->values, (size_t)r->n * dtype_bytes(dt)));
    }
    return TITAN_OK;
}
