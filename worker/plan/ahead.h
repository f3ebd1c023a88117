/* SPDX-License-Identifier: Apache-2.0 */
/* ahead.h - the programs of the epoch to come, made by a thread of their own while this one trains.
 *
 * A change of membership that is planned is known some steps before it happens, a plan depends on the recipe and the
 * number of ranks only. One plan is kept: that of the world that was wanted last, or else of the one that is likely. */
#ifndef TITAN_WORKER_PLAN_AHEAD_H
#define TITAN_WORKER_PLAN_AHEAD_H

#include <stdbool.h>

#include "worker/plan/plan.h"

struct plan_ahead;

/* options: of any world; what it borrows must outlive the thread. */
titan_status plan_ahead_open(const struct plan_options *options, struct plan_ahead **ret,
                             struct titan_error *err) TITAN_MUST_USE;
void plan_ahead_close(struct plan_ahead *a); /* NULL is fine; waits for a plan that is being made */
/* Begin with the plan for so many ranks, if it is not there. Any thread; does not wait. */
void plan_ahead_want(struct plan_ahead *a, int world);
/* The same of a world that may come, as when a worker is lost. False: one is there or wanted already, and stays. */
bool plan_ahead_expect(struct plan_ahead *a, int world);
/* The plan of that world and its programs, as plan_open and plan_programs make them and with their failures: what was
 * made ahead (then its end is waited for), or else made here. */
titan_status plan_ahead_take(struct plan_ahead *a, int world, struct plan **ret, struct program ***ret_programs,
                             struct titan_error *err) TITAN_MUST_USE;

#endif
