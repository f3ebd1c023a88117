/* adamw.c - arguments of an AdamW update. */
#include "worker/optim/adamw.h"

#include <math.h>

struct adamw_args adamw_arguments(const struct recipe *recipe, double learning_rate, uint64_t update, double grad_scale)
{
    return (struct adamw_args){
        .lr = (float)learning_rate,
        .beta1 = (float)recipe->optimizer.beta1,
        .beta2 = (float)recipe->optimizer.beta2,
        .eps = (float)recipe->optimizer.eps,
        .weight_decay = (float)recipe->optimizer.weight_decay,
        .grad_scale = (float)grad_scale,
        .bias1 = (float)(1 - pow(recipe->optimizer.beta1, (double)update)),
        .bias2 = (float)(1 - pow(recipe->optimizer.beta2, (double)update)),
    };
}
