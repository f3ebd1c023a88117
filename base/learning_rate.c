/* SPDX-License-Identifier: Apache-2.0 */
/* learning_rate.c - warm-up, stable, decay. */
#include "base/learning_rate.h"

#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/optimizers.h"

/* The factor of lr_scheduler's keys, but for its warm-up and its share of decay. */
static double scheduled(const struct recipe *recipe, int64_t step, int64_t total, int64_t warmup, double ratio)
{
    /* rint() rounds halves to even, as Python does */
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
    const char *type = recipe->lr_scheduler.decay_type;
    const double decay = strcmp(type, "sqrt") == 0     ? 1 - sqrt(progress)
                         : strcmp(type, "cosine") == 0 ? 0.5 * (1 + cos(M_PI * progress))
                                                       : 1 - progress;
    return floor_factor + (1 - floor_factor) * decay;
}

double learning_rate_factor(const struct recipe *recipe, int64_t step)
{
    const int64_t set = recipe->lr_scheduler.total_steps, total = set > 0 ? set : recipe->training.steps;
    const struct optimizer *const o = optimizer_of_matrices(recipe);
    const struct optimizer_schedule own =
        o->schedule ? o->schedule(recipe, step, total) : (struct optimizer_schedule){.most = INFINITY};
    const int64_t warmup = own.warms ? 0 : MIN(recipe->lr_scheduler.warmup_steps, total);

    return fmin(scheduled(recipe, step, total, warmup, own.decays ? 0 : recipe->lr_scheduler.decay_ratio), own.most);
}

double learning_rate_at(const struct recipe *recipe, int64_t step)
{
    return recipe->optimizer.lr * learning_rate_factor(recipe, step);
}

void learning_rate_compare(const struct recipe *recipe, const struct recipe *before, int64_t step, struct buf *out)
{
    const double now = learning_rate_at(recipe, step + 1), then = learning_rate_at(before, step + 1);
    titan_assert(step >= 0);
    if (step == 0 || now == then)
        return;
    buf_printf(out, "learning rate %.2e at step %lld, %.2e from step %lld on: ", learning_rate_at(before, step),
               (long long)step, now, (long long)step + 1);
    if (recipe->lr_scheduler.total_steps <= 0 && before->lr_scheduler.total_steps <= 0 &&
        recipe->training.steps != before->training.steps)
        buf_printf(out,
                   "it follows from training.steps, %lld before and %lld now; lr_scheduler.total_steps = %lld keeps "
                   "what it was",
                   (long long)before->training.steps, (long long)recipe->training.steps,
                   (long long)before->training.steps);
    else
        buf_puts(out, "other keys of [optimizer] or [lr_scheduler]");
}
