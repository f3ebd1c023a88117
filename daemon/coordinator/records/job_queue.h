/* SPDX-License-Identifier: Apache-2.0 */
/* job_queue.h - the queue: priority first, then the user with the fewest slots in use, then age.
 *
 * Jobs of one priority and user wait in a lane, oldest first. There are few lanes, however many jobs. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_JOB_QUEUE_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_JOB_QUEUE_H

#include "daemon/coordinator/records/core_record.h"

void queue_add(struct core *c, struct jobrec *j);
void queue_remove(struct core *c, struct jobrec *j);
/* In order: queue_next until it is NULL. A job that was given out may be removed. */
void queue_begin(struct core *c);
struct jobrec *queue_next(struct core *c);
void queue_took(struct jobrec *j, uint32_t slots); /* since queue_begin */
struct user *queue_user(struct core *c, const char *name);
void queue_free(struct core *c);

#endif
