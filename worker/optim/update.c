/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - the optimizer's arithmetic: arguments from the recipe, one call of the device. */
#include "worker/optim/update.h"

#include <math.h>
#include <string.h>

struct update update_of_recipe(const struct recipe *recipe, double learning_rate, uint64_t number, double grad_scale)
{
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
                 .grad_scale = (float)grad_scale,
                 .bias1 = (float)(1 - pow(recipe->optimizer.beta1, (double)number)),
                 .bias2 = (float)(1 - pow(recipe->optimizer.beta2, (double)number))},
    };
}

titan_status update_apply(const struct update *update, const struct device_ops *ops, float *values, void *shard,
                          enum dtype dt, const float *grad, int64_t n, struct stream *s)
{
    uint16_t *const shadow = dt == DTYPE_BF16 ? shard : NULL;

    titan_assert(values && grad && n >= 0);
    titan_assert(dt == DTYPE_F32 || dt == DTYPE_BF16);
    if (update->sgd)
        TRY(ops->sgd(s, values, grad, shadow, (size_t)n, &update->args));
    else
        TRY(ops->adamw(s, values, values + n, values + 2 * n, grad, shadow, (size_t)n, &update->args));
    if (shadow || !shard || shard == values)
        return TITAN_OK;
    return ops->copy(s, shard, values, (size_t)n * sizeof *values);
}
