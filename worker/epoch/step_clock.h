/* SPDX-License-Identifier: Apache-2.0 */
/* step_clock.h - measures where a rank's time goes between two agreements. A lap charges the time since the previous
 * lap to a part. */
#ifndef TITAN_WORKER_EPOCH_STEP_CLOCK_H
#define TITAN_WORKER_EPOCH_STEP_CLOCK_H

#include "worker/exec/exec.h"

enum step_part { STEP_COMPUTE, STEP_DATA, STEP_CHECKPOINT, STEP_WAIT, STEP_EVALUATION, STEP_PARTS };

struct step_clock {
    int64_t lap_ns; /* end of the last lap */
    int64_t parts_ns[STEP_PARTS];
    double values[STATISTICS_SAID]; /* for the agreement */
};

/* Call at the begin of a step: now, or at the end of the last agreement. */
void step_clock_begin(struct step_clock *c);
void step_clock_lap(struct step_clock *c, enum step_part part);
/* Call when the rank reaches the agreement. Fills `values` with the step's values. waited_ns: time that computation
 * waited within the laps; -1 = not measured. */
void step_clock_arrive(struct step_clock *c, int64_t waited_ns, const struct device_handle *device);

#endif
