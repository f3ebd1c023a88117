/* SPDX-License-Identifier: Apache-2.0 */
/* ahead.h - a thread makes the programs of the next epoch while the current epoch trains.
 *
 * A planned change of membership is known some steps before it happens. A plan depends only on the recipe and the
 * number of ranks. One plan is kept: the plan of the world that was wanted last, or else of a world that is likely. */
#ifndef TITAN_WORKER_PLAN_AHEAD_H
#define TITAN_WORKER_PLAN_AHEAD_H

#include <stdbool.h>

#include "worker/plan/plan.h"

struct plan_ahead;

/* options may be of any world. What they borrow must outlive the thread. */
titan_status plan_ahead_open(const struct plan_options *options, struct plan_ahead **ret,
                             struct titan_error *err) TITAN_MUST_USE;
void plan_ahead_close(struct plan_ahead *a); /* NULL is fine; waits for a plan that is being made */
/* Begins to make the plan for `world` ranks, unless this plan is there. Any thread may call; the call does not wait. */
void plan_ahead_want(struct plan_ahead *a, int world);
/* Like plan_ahead_want(), for a world that may come, as after the loss of a worker. It returns false and changes
 * nothing if a plan is already there or wanted. */
bool plan_ahead_expect(struct plan_ahead *a, int world);
/* Returns the plan for `world` ranks and its programs. They, and the failures, are those of plan_open() and
 * plan_programs(). If the thread is still making the plan, the call waits for it. If there is no such plan, the call
 * makes it. */
titan_status plan_ahead_take(struct plan_ahead *a, int world, struct plan **ret, struct program ***ret_programs,
                             struct titan_error *err) TITAN_MUST_USE;

#endif
