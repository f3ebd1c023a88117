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
/* Begins to make the plan for so many ranks, if it is not there. Any thread may call; the call does not wait. */
void plan_ahead_want(struct plan_ahead *a, int world);
/* Like plan_ahead_want(), for a world that may come, as after the loss of a worker. False: a plan is there or wanted
 * already, and stays. */
bool plan_ahead_expect(struct plan_ahead *a, int world);
/* Returns the plan of that world and its programs, as plan_open() and plan_programs() make them, with their failures. A
 * plan that is still being made ahead is waited for. Without a plan made ahead, the plan is made here. */
titan_status plan_ahead_take(struct plan_ahead *a, int world, struct plan **ret, struct program ***ret_programs,
                             struct titan_error *err) TITAN_MUST_USE;

#endif
