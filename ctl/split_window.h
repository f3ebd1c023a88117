/* SPDX-License-Identifier: Apache-2.0 */
/* split_window.h - where the time of a job's newest steps went, and the rank that others waited for. */
#ifndef TITAN_CTL_SPLIT_WINDOW_H
#define TITAN_CTL_SPLIT_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/step_split.h"
#include "titan/v1/titan.pb-c.h"

enum { SPLIT_WINDOW = 64 };

struct split_window {
    struct step_split
        splits[SPLIT_WINDOW]; /* the newest splits, oldest first; all of one epoch, in which each rank is one worker */
    size_t n;
    uint64_t epoch;
};

struct split_mean {
    struct step_split
        split;     /* means; slowest: the rank with the longest total wait of the others, -1 in a world of one */
    double waited; /* mean wait of the others in a step with this slowest rank */
    uint32_t steps, slowest_steps; /* number of steps in the means; number of steps with this slowest rank */
};

/* Adds a step. Steps come in order; a step without a split changes nothing. */
void split_window_add(struct split_window *w, const Titan__V1__MetricPoint *point);
/* False: the window is empty. */
bool split_window_mean(const struct split_window *w, struct split_mean *ret);

#endif
