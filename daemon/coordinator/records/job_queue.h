/* SPDX-License-Identifier: Apache-2.0 */
/* job_queue.h - the queue: priority first, then the user with the fewest slots in use, then age.
 *
 * Jobs of one priority, user, device and least size wait in a lane, oldest first: they differ in age only, so what
 * keeps the first one from its turn keeps all of them. A walk looks at lanes, however many jobs there are. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_JOB_QUEUE_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_JOB_QUEUE_H

#include "daemon/coordinator/records/core_record.h"

void queue_add(struct core *c, struct jobrec *j);
void queue_remove(struct core *c, struct jobrec *j);
/* All nodes in service have so many slots together: lanes of jobs that need more are left out of every walk. False:
 * they had as many before. */
bool queue_set_all(struct core *c, const uint32_t all[CORE_DEVICES]);
/* Slots of all nodes in service, of the kind with most of them that the job may run on. */
uint32_t queue_room(const struct core *c, const struct jobrec *j);
bool queue_too_large(const struct jobrec *j); /* does it need more than that? */
/* The oldest jobs that are too large, so many of them at most. */
void queue_each_too_large(struct core *c, size_t most, void (*each)(struct core *c, struct jobrec *j));
/* In order: queue_next until it is NULL. A job that was given out may be removed. */
void queue_begin(struct core *c);
struct jobrec *queue_next(struct core *c);
/* From here on the walk leaves out jobs that need more than so many slots of each device that they may run on. */
void queue_narrow(struct core *c, const uint32_t room[CORE_DEVICES]);
/* The same of jobs of j's user that need more than so many slots. */
void queue_narrow_user(struct core *c, const struct jobrec *j, uint32_t allowed);
/* Does one that waits come before one that runs, if that waited as well? As of queue_begin. */
bool queue_before(const struct jobrec *waits, const struct jobrec *runs);
/* Of one of core_devices. */
const struct queue_head *queue_head_of(const struct core *c, const char *device);
/* Does a job wait that could have free slots of that device? */
bool queue_wants(const struct core *c, const char *device);
/* Slots that a job may have for its user's sake, UINT32_MAX without a limit; *ret_others (may be NULL): those of that
 * user's other jobs. */
uint32_t queue_allows(const struct core *c, const struct jobrec *j, uint32_t *ret_others);
void queue_took(struct jobrec *j, uint32_t slots); /* since queue_begin */
struct user *queue_user(struct core *c, const char *name);
const char *queue_user_name(const struct user *u);
size_t queue_user_pending(const struct core *c, const char *name);
void queue_free(struct core *c);

#endif
