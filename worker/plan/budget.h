/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h - activation checkpointing by a memory budget: which layers keep what, so that the least is computed again.
 *
 * budget is a share of the activation memory between recomputing everything (0) and keeping everything (1), as in
 * torch.compile's activation_memory_budget. Programs with all layers in each mode tell what a layer's activations take
 * and what its recomputation costs, with gate and up as one product and apart; the best mix of modes is found by trying
 * all of them and spread evenly over the layers, so that every pipeline stage has its part of each. */
#ifndef TITAN_WORKER_PLAN_BUDGET_H
#define TITAN_WORKER_PLAN_BUDGET_H

#include "worker/plan/build.h"
#include "worker/plan/cost.h"

/* Fills ret (layers). options->checkpointing is not read. */
titan_status budget_choose(const struct build_options *options, const struct cost *cost, double budget,
                           enum checkpointing *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
