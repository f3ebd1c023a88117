/* SPDX-License-Identifier: Apache-2.0 */
/* fitting.h - which batch, and which room for experts, fits where the recipe's does not: what a refusal for
 * want of memory advises. */
#ifndef TITAN_WORKER_PLAN_FITTING_H
#define TITAN_WORKER_PLAN_FITTING_H

#include "worker/plan/plan.h"

/* The key that says how many sequences a microbatch has: training.local_batch_size, or with a pipeline
 * parallelism.pipeline_parallel_microbatch_size. */
const char *plan_batch_key(const struct recipe *r);
/* Of that key's smaller values, those that the global batch is a multiple of, the largest with which these options have
 * programs that fit: that are not refused, and of which fits() says so (NULL: no more is asked). The global batch
 * stays. 0: none is. */
int64_t plan_fitting_batch(const struct plan_options *options,
                           bool (*fits)(const struct plan *plan, struct program *const *programs, void *with),
                           void *with);
/* Likewise of 4, 2 and 1 even shares, those that are less than parallelism.expert_parallel_room: their experts' rows
 * come in more rounds, with the same result. 0: none is, or no ranks share experts. */
int plan_fitting_room(const struct plan_options *options,
                      bool (*fits)(const struct plan *plan, struct program *const *programs, void *with), void *with);

#endif
