/* SPDX-License-Identifier: Apache-2.0 */
/* split_window.h - where the time of a job's newest steps went, and which rank the others waited for. */
#ifndef TITAN_CTL_SPLIT_WINDOW_H
#define TITAN_CTL_SPLIT_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/step_split.h"
#include "titan/v1/titan.pb-c.h"

enum { SPLIT_WINDOW = 64 };

struct split_window {
    struct step_split splits[SPLIT_WINDOW]; /* the newest, oldest first; of one epoch, in which a rank is one worker */
    size_t n;
    uint64_t epoch;
};

struct split_mean {
    struct step_split
        split;     /* means; slowest: the rank that the others waited for longest in all, -1 in a world of one */
    double waited; /* by the others, on average, in a step that it was the slowest of */
    uint32_t steps, slowest_steps; /* of the means; of those, in which it was the slowest */
};

/* Steps come in order; one without a split changes nothing. */
void split_window_add(struct split_window *w, const Titan__V1__MetricPoint *point);
/* False: there is none. */
bool split_window_mean(const struct split_window *w, struct split_mean *ret);

#endif
