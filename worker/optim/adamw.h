/* adamw.h - arguments of the fused AdamW operation (device.h) for one update. */
#ifndef TITAN_WORKER_OPTIM_ADAMW_H
#define TITAN_WORKER_OPTIM_ADAMW_H

#include "base/recipe.h"
#include "worker/device/device.h"

/* update: how many updates there have been with this one, from 1 (skipped steps do not count). grad_scale: what turns
 * the summed gradient into the clipped mean. */
struct adamw_args adamw_arguments(const struct recipe *recipe, double learning_rate, uint64_t update,
                                  double grad_scale);

#endif
