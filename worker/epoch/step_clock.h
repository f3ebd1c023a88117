/* SPDX-License-Identifier: Apache-2.0 */
/* step_clock.h - where a rank's time goes from one agreement to the next. A lap charges a part with what has passed
 * since the lap before. */
#ifndef TITAN_WORKER_EPOCH_STEP_CLOCK_H
#define TITAN_WORKER_EPOCH_STEP_CLOCK_H

#include "worker/exec/exec.h"

enum step_part { STEP_COMPUTE, STEP_DATA, STEP_CHECKPOINT, STEP_WAIT, STEP_EVALUATION, STEP_PARTS };

struct step_clock {
    int64_t lap_ns; /* when the last one ended */
    int64_t parts_ns[STEP_PARTS];
    double values[STATISTICS_SAID]; /* for the agreement */
};

/* A step begins: now, or where the last agreement was left. */
void step_clock_begin(struct step_clock *c);
void step_clock_lap(struct step_clock *c, enum step_part part);
/* The rank comes to the agreement, after a lap of waiting: values are those of the step. waited_ns: what computing
 * waited for within the laps, -1: not measured. */
void step_clock_arrive(struct step_clock *c, int64_t waited_ns, const struct device_handle *device);

#endif
