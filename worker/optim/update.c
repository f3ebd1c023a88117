/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - the optimizer's arithmetic: arguments from the recipe, one call of the device. */
#include "worker/optim/update.h"

#include <math.h>
#include <string.h>

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
                 .clip = (float)clip},
    };
}

titan_status update_apply(const struct update *update, const struct device_ops *ops, void *values, void *shard,
                          enum dtype dt, const float *grad, int64_t n, struct stream *s)
{
    const struct adamw_args *const a = &update->args;
    const size_t count = (size_t)n;
    char *const m = (char *)values + count * dtype_bytes(a->master), *const v = m + count * dtype_bytes(a->moment);
    uint16_t *const shadow = dt == DTYPE_BF16 && a->master == DTYPE_F32 ? shard : NULL;

    titan_assert(values && grad && n >= 0);
    titan_assert(dt == DTYPE_F32 || dt == DTYPE_BF16);
    if (update->sgd)
        TRY(ops->sgd(s, values, grad, shadow, count, a));
    else
        TRY(ops->adamw(s, values, m, v, grad, shadow, count, a));
    if (shadow || !shard || shard == values)
        return TITAN_OK;
    if (dt != a->master)
        return ops->cast(s, shard, dt, values, a->master, count);
    return ops->copy(s, shard, values, count * dtype_bytes(dt));
}
