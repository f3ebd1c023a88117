/* SPDX-License-Identifier: Apache-2.0 */
/* fitting.h - finds a batch, and a room for experts, that fit in memory where the recipe's do not. A refusal for want
 * of memory names them as advice. */
#ifndef TITAN_WORKER_PLAN_FITTING_H
#define TITAN_WORKER_PLAN_FITTING_H

#include "worker/plan/plan.h"

/* The key that says how many sequences a microbatch has: training.local_batch_size, or with a pipeline
 * parallelism.pipeline_parallel_microbatch_size. */
const char *plan_batch_key(const struct recipe *r);
/* The largest value of plan_batch_key() below the recipe's with which programs fit. The global batch stays the same,
 * and is a multiple of this value. Programs fit if they are not refused and fits() says yes (NULL: not asked). 0: no
 * value fits. */
int64_t plan_fitting_batch(const struct plan_options *options,
                           bool (*fits)(const struct plan *plan, struct program *const *programs, void *with),
                           void *with);
/* The same for experts: the largest room of 4, 2 and 1 even shares that is less than parallelism.expert_parallel_room.
 * With less room, experts' rows come in more rounds; the result is the same. 0: no room fits, or no ranks share
 * experts. */
int plan_fitting_room(const struct plan_options *options,
                      bool (*fits)(const struct plan *plan, struct program *const *programs, void *with), void *with);

#endif
