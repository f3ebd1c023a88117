/* SPDX-License-Identifier: Apache-2.0 */
/* planner.h - `titan-worker plan`: shows a recipe's costs on a number of devices, before it runs. */
#ifndef TITAN_WORKER_PLANNER_H
#define TITAN_WORKER_PLANNER_H

#include "base/buf.h"
#include "base/options.h"
#include "base/recipe.h"

extern const struct command plan_command;

/* Builds and checks the step programs of every class without a device or data. Prints them to out, unless out is NULL.
 * recipe: resolved. */
titan_status planner_check(const struct recipe *recipe, int world, struct buf *out,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
