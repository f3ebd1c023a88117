/* SPDX-License-Identifier: Apache-2.0 */
/* profile.h - traces of a rank: the actions of some steps on a time axis (plan/timeline.h). The recipe's `profiling.*`
 * selects the steps; file names are as in TorchTitan: save_traces_folder/iteration_STEP/rankRANK_trace.json.
 *
 * Times come from the machine's monotonic clock, so one node's traces share an axis. A failed write is a line in the
 * log only. */
#ifndef TITAN_WORKER_EPOCH_PROFILE_H
#define TITAN_WORKER_EPOCH_PROFILE_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/error.h"

struct epoch;

/* Lives as long as an epoch. Written by profile.c only. */
struct profile {
    struct buf trace; /* trace of the steps so far; empty between traces */
};

/* Call begin before a step's first action, and end when the step's update is enqueued. A traced step waits for its
 * update. */
void profile_begin_step(struct epoch *e);
titan_status profile_end_step(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
void profile_close(struct epoch *e);

#endif
