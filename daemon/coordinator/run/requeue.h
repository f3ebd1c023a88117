/* SPDX-License-Identifier: Apache-2.0 */
/* requeue.h - a job that gives all its slots back for now: it writes a checkpoint, ends its workers, and waits in the
 * queue again. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_REQUEUE_H
#define TITAN_DAEMON_COORDINATOR_RUN_REQUEUE_H

#include "daemon/coordinator/records/core_record.h"

/* Stop a job, with a checkpoint, and queue it again: then it has to be advanced. False when it is about to end anyway.
 */
bool requeue_begin(struct jobrec *j, const char *why);
/* Of a job that is to: it begins to stop, is queued, or goes on after all, since it has made its last step. */
void requeue_advance(struct core *c, struct jobrec *j);
void requeue_restored(struct jobrec *j);

#endif
