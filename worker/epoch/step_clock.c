/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/epoch/step_clock.h"

#include <math.h>

#include "base/clock.h"

void step_clock_begin(struct step_clock *c)
{
    *c = (struct step_clock){.lap_ns = clock_mono_ns()};
}

void step_clock_lap(struct step_clock *c, enum step_part part)
{
    const int64_t now = clock_mono_ns();

    titan_assert(part < STEP_PARTS);
    titan_assert(c->lap_ns > 0 && c->lap_ns <= now);
    c->parts_ns[part] += now - c->lap_ns;
    c->lap_ns = now;
}

void step_clock_arrive(struct step_clock *c, int64_t waited_ns, const struct device_handle *device)
{
    step_clock_lap(c, STEP_WAIT);
    const int64_t *const parts = c->parts_ns;
    const int64_t arrived = parts[STEP_COMPUTE] + parts[STEP_DATA] + parts[STEP_CHECKPOINT] + parts[STEP_WAIT];

    titan_assert(arrived >= 0);
    c->values[STATISTICS_ARRIVED] = (double)arrived * 1e-6;
    c->values[STATISTICS_WAITED] = waited_ns < 0 ? (double)NAN : (double)(parts[STEP_WAIT] + waited_ns) * 1e-6;
    c->values[STATISTICS_DATA] = (double)parts[STEP_DATA] * 1e-6;
    c->values[STATISTICS_CHECKPOINT] = (double)parts[STEP_CHECKPOINT] * 1e-6;
    c->values[STATISTICS_MEMORY] = (double)device->ops->memory_peak(device->dev, false);
}
