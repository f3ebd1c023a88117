/* SPDX-License-Identifier: Apache-2.0 */
/* search.h - finds layouts of a model that are fast and fit on a given number of devices.
 *
 * Enumerates legal combinations of tp, pp, cp, dp_shard, activation checkpointing and schedule. A closed formula for
 * memory and time sorts them. The best are built, simulated and listed: first the layouts that fit, the fastest first.
 * The fastest layout follows as keys that can be pasted into the recipe. */
#ifndef TITAN_WORKER_PLAN_SEARCH_H
#define TITAN_WORKER_PLAN_SEARCH_H

#include "worker/plan/plan.h"

/* options: for the recipe's own layout. cost: cost model for the forecasts. */
titan_status search_layouts(const struct plan_options *options, const struct cost *cost, bool json, struct buf *out,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
