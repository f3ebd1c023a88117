/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoints.h - a job's checkpoints: committed, expired, failed. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_CHECKPOINTS_H
#define TITAN_DAEMON_COORDINATOR_RUN_CHECKPOINTS_H

#include "daemon/coordinator/records/core_record.h"

void checkpoints_committed(struct core *c, struct jobrec *j, const Titan__Internal__CheckpointWritten *m);
void checkpoints_failed(struct core *c, struct jobrec *j, const struct workrec *w,
                        const Titan__Internal__CheckpointFailed *m);
/* Text for the reason of a run that stops here and loses steps. The text tells that the last checkpoint, or a wanted
 * checkpoint, was not written, and which checkpoint is the newest. NULL = the run loses nothing. */
const char *checkpoints_lost(struct core *c, const struct jobrec *j, bool wanted);
void checkpoints_well(struct jobrec *j); /* the trouble is over */

#endif
