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

/* AdamW on a range, a parameter at a time: each has random numbers of its own, the same in whatever parts it is held.
 * What lies between parameters stays as it is. */
static titan_status adamw_by_parameter(const struct update *update, const struct update_range *range,
                                       const struct device_ops *ops, char *w, char *m, char *v, uint16_t *shadow,
                                       const float *grad, int64_t n, struct stream *s)
{
    const struct layout *const l = range->layout;
    const struct model_unit *const unit = &l->model->units[range->unit];
    const int64_t begin = layout_begin(l, range->unit, range->rank), end = begin + n;

    for (int t = unit->first_tensor; t < unit->first_tensor + unit->n_tensors; t++) {
        const struct model_tensor *const tensor = &l->model->tensors[t];
        const struct local_tensor *const local = &l->tensors[t];
        const int64_t from = MAX(begin, local->offset), to = MIN(end, local->offset + local->rows * local->cols);
        if (from >= to)
            continue;
        const int64_t at = from - begin, width = tensor->ndim > 1 ? tensor->shape[1] : tensor->numel;
        struct adamw_args a = update->args;
        char name[sizeof tensor->name + 16];
        int64_t row, col;
        (void)snprintf(name, sizeof name, "rounding.%s", tensor->name);
        layout_origin(l, t, range->rank, &row, &col);
        a.rounding.key = rng_key(update->seed, name);
        a.rounding.first = from - local->offset;
        a.rounding.cols = local->cols;
        a.rounding.ld = width;
        a.rounding.origin = row * width + col;
        TRY(ops->adamw(s, w + (size_t)at * dtype_bytes(a.master), m + (size_t)at * dtype_bytes(a.moment),
                       v + (size_t)at * dtype_bytes(a.moment), grad + at, shadow ? shadow + at : NULL,
                       (size_t)(to - from), &a));
    }
    return TITAN_OK;
}

titan_status update_apply(const struct update *update, const struct update_range *range, const struct device_ops *ops,
                          void *values, void *shard, enum dtype dt, const float *grad, int64_t n, struct stream *s)
{
    const struct adamw_args *const a = &update->args;
    const size_t count = (size_t)n;
    char *const m = (char *)values + count * dtype_bytes(a->master), *const v = m + count * dtype_bytes(a->moment);
    uint16_t *const shadow = dt == DTYPE_BF16 && a->master == DTYPE_F32 ? shard : NULL;

    titan_assert(values && grad && n >= 0);
    titan_assert(dt == DTYPE_F32 || dt == DTYPE_BF16);
    titan_assert(range || !a->rounding.random);
    if (update->sgd)
        TRY(ops->sgd(s, values, grad, shadow, count, a));
    else if (a->rounding.random)
        TRY(adamw_by_parameter(update, range, ops, values, m, v, shadow, grad, n, s));
    else
        TRY(ops->adamw(s, values, m, v, grad, shadow, count, a));
    if (shadow || !shard || shard == values)
        return TITAN_OK;
    if (dt != a->master)
        return ops->cast(s, shard, dt, values, a->master, count);
    return ops->copy(s, shard, values, count * dtype_bytes(dt));
}
