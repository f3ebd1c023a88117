/* SPDX-License-Identifier: Apache-2.0 */
/* search.h - which layouts of a model on so many devices are fast and fit.
 *
 * Enumerates legal combinations of tp, pp, cp, dp_shard, activation checkpointing and schedule. A closed formula for
 * memory and time sorts them. The best are built, simulated and listed: first the layouts that fit, the fastest first.
 * The fastest layout follows as keys that can be pasted into the recipe. */
#ifndef TITAN_WORKER_PLAN_SEARCH_H
#define TITAN_WORKER_PLAN_SEARCH_H

#include "worker/plan/plan.h"

/* options: of the recipe's own layout. cost: for the forecasts. */
titan_status search_layouts(const struct plan_options *options, const struct cost *cost, bool json, struct buf *out,
                            struct titan_error *err) TITAN_MUST_USE;

#endif
