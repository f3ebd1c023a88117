/* SPDX-License-Identifier: Apache-2.0 */
/* fitting.h - which batch fits where the recipe's does not: what a refusal for want of memory advises. */
#ifndef TITAN_WORKER_PLAN_FITTING_H
#define TITAN_WORKER_PLAN_FITTING_H

#include "worker/plan/plan.h"

/* Of the divisors of training.local_batch_size, smaller than it, the largest with which these options have programs
 * that fit: that are not refused, and of which fits() says so (NULL: no more is asked). The global batch stays. 0: none
 * is. */
int64_t plan_fitting_batch(const struct plan_options *options,
                           bool (*fits)(const struct plan *plan, struct program *const *programs, void *with),
                           void *with);

#endif
