/* SPDX-License-Identifier: Apache-2.0 */
/* fitting.h - finds a batch, and a room for experts, that fits where the recipe's does not. A refusal for want of
 * memory advises it. */
#ifndef TITAN_WORKER_PLAN_FITTING_H
#define TITAN_WORKER_PLAN_FITTING_H

#include "worker/plan/plan.h"

/* The key that says how many sequences a microbatch has: training.local_batch_size, or with a pipeline
 * parallelism.pipeline_parallel_microbatch_size. */
const char *plan_batch_key(const struct recipe *r);
/* The largest smaller value of plan_batch_key() with which programs fit; the global batch must be a multiple of it, and
 * stays. Programs fit if they are not refused and fits() says yes (NULL: not asked). 0: no value fits. */
int64_t plan_fitting_batch(const struct plan_options *options,
                           bool (*fits)(const struct plan *plan, struct program *const *programs, void *with),
                           void *with);
/* Likewise the largest room of 4, 2 and 1 even shares that is less than parallelism.expert_parallel_room. With less
 * room experts' rows come in more rounds, with the same result. 0: no room fits, or no ranks share experts. */
int plan_fitting_room(const struct plan_options *options,
                      bool (*fits)(const struct plan *plan, struct program *const *programs, void *with), void *with);

#endif
