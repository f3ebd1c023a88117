/* SPDX-License-Identifier: Apache-2.0 */
/* learning_rate.c - warm-up, stable, decay. */
#include "worker/optim/learning_rate.h"

#include <math.h>
#include <string.h>

#include "base/cleanup.h"

static double decay(const char *type, double progress)
{
    if (strcmp(type, "sqrt") == 0)
        return 1 - sqrt(progress);
    if (strcmp(type, "cosine") == 0)
        return 0.5 * (1 + cos(M_PI * progress));
    return 1 - progress;
}

double optim_factor(const struct recipe *recipe, int64_t step)
{
    const int64_t set = recipe->lr_scheduler.total_steps, total = set > 0 ? set : recipe->training.steps;
    const int64_t warmup = MIN(recipe->lr_scheduler.warmup_steps, total);
    const double ratio = recipe->lr_scheduler.decay_ratio;
    /* rint: halves to even, as Python rounds */
    const int64_t wanted = ratio < 0 ? total - warmup : (int64_t)rint((double)total * ratio);
    const int64_t length = MIN(wanted, total - warmup);
    const int64_t stable_end = total + 1 - length;
    const double floor_factor = recipe->lr_scheduler.min_lr_factor;
    const int64_t s = MIN(step, total) - 1;

    if (s < warmup)
        return (double)(s + 1) / (double)warmup;
    if (s < stable_end)
        return 1;
    const double progress = (double)(s + 1 - stable_end) / (double)length;
    return floor_factor + (1 - floor_factor) * decay(recipe->lr_scheduler.decay_type, progress);
}

double optim_rate(const struct recipe *recipe, int64_t step)
{
    return recipe->optimizer.lr * optim_factor(recipe, step);
}
