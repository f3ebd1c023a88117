/* SPDX-License-Identifier: Apache-2.0 */
/* profile.h - traces of what a rank ran: the actions of some steps on a time axis (plan/timeline.h), as `profiling.*`
 * of the recipe asks for them and TorchTitan places them: save_traces_folder/iteration_STEP/rankRANK_trace.json.
 *
 * Times are of the machine's monotonic clock, so traces of ranks of one node lie on one axis. A trace that cannot be
 * written is a line in the log and no more. */
#ifndef TITAN_WORKER_EPOCH_PROFILE_H
#define TITAN_WORKER_EPOCH_PROFILE_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/error.h"

struct epoch;

/* As long as an epoch. Written by profile.c only. */
struct profile {
    struct buf trace; /* of the steps so far; empty between traces */
};

/* Around a step: before its first action, and when its update is enqueued. A step that is traced waits for its update.
 */
void profile_begin_step(struct epoch *e);
titan_status profile_end_step(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
void profile_close(struct epoch *e);

#endif
