/* SPDX-License-Identifier: Apache-2.0 */
/* learning_rate.h - learning rate: warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395), with TorchTitan's rules.
 *
 * Steps count from 1. With T steps, W of warm-up and D of decay, s = step - 1:
 *   s < W          (s+1)/W
 *   s < T+1-D      1
 *   then           m + (1-m) f(p), p = (s+1 - (T+1-D)) / D;  f = 1-p | 1-sqrt(p) | (1+cos(pi p))/2
 * D is round(decay_ratio*T) or, if the ratio is unset, the steps that warm-up leaves; W and D are cut to fit T. The
 * stable part is one virtual step longer, so the last real step is above the floor. */
#ifndef TITAN_BASE_LEARNING_RATE_H
#define TITAN_BASE_LEARNING_RATE_H

#include "base/buf.h"
#include "base/recipe.h"

/* Factor on the peak rate for a step in [1, training.steps]; a later step than lr_scheduler.total_steps has the factor
 * of step total_steps. */
double learning_rate_factor(const struct recipe *recipe, int64_t step);
double learning_rate_at(const struct recipe *recipe, int64_t step);
/* Compares the learning rates of a run that has made `step` steps with `before` and continues with `recipe`. Appends
 * one line if continuing with `before` would give another rate; otherwise nothing. */
void learning_rate_compare(const struct recipe *recipe, const struct recipe *before, int64_t step, struct buf *out);

#endif
