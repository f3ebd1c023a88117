/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h - activation checkpointing by a memory budget: chooses what each layer keeps, so that the least is computed
 * again.
 *
 * budget is a share of the activation memory between recomputing everything (0) and keeping everything (1), as in
 * torch.compile's activation_memory_budget. For each mode, two programs with all layers in this mode are built: with
 * gate and up as one product, and apart. A program tells what a layer's activations take and what their recomputation
 * costs. All mixes of modes are tried. The best mix is spread evenly over the layers, so that every pipeline stage has
 * its part of each mode. */
#ifndef TITAN_WORKER_PLAN_BUDGET_H
#define TITAN_WORKER_PLAN_BUDGET_H

#include "worker/plan/build.h"
#include "worker/plan/cost.h"

/* Fills ret (layers). options->checkpointing is not read. */
titan_status budget_choose(const struct build_options *options, const struct cost *cost, double budget,
                           enum checkpointing *ret, struct titan_error *err) TITAN_MUST_USE;

#endif
