/* SPDX-License-Identifier: Apache-2.0 */
/* requeue.h - a job gives all its slots back for now: it writes a checkpoint, ends its workers, and is queued again. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_REQUEUE_H
#define TITAN_DAEMON_COORDINATOR_RUN_REQUEUE_H

#include "daemon/coordinator/records/core_record.h"

/* Marks a job to stop, with a checkpoint, and be queued again; advance the job next. False: the job is about to end
 * anyway. */
bool requeue_begin(struct jobrec *j, const char *why);
/* Moves a marked job on: it begins to stop, is queued, or goes on because it has made its last step. */
void requeue_advance(struct core *c, struct jobrec *j);
void requeue_restored(struct jobrec *j);

#endif
