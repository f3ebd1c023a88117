/* SPDX-License-Identifier: Apache-2.0 */
/* job_queue.h - the queue: by priority, then the user with the fewest slots in use, then age.
 *
 * Jobs of one priority, user, device and least size wait in one lane, oldest first. These jobs differ in age only. So a
 * lack of slots that blocks the first job blocks all jobs of the lane. A walk looks at lanes, however many jobs there
 * are. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_JOB_QUEUE_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_JOB_QUEUE_H

#include "daemon/coordinator/records/core_record.h"

void queue_add(struct core *c, struct jobrec *j);
void queue_remove(struct core *c, struct jobrec *j);
/* Sets the slots of all nodes in service. Every walk leaves out lanes of jobs that need more. False: the numbers did
 * not change. */
bool queue_set_all(struct core *c, const uint32_t all[CORE_DEVICES]);
/* Returns the slots of all nodes in service, of one device kind. Among the kinds on which the job may run, this is the
 * kind with the most slots. */
uint32_t queue_room(const struct core *c, const struct jobrec *j);
bool queue_too_large(const struct jobrec *j); /* does the job need more than queue_room? */
/* Calls each() for the oldest jobs that are too large, at most `most` of them. */
void queue_each_too_large(struct core *c, size_t most, void (*each)(struct core *c, struct jobrec *j));
/* Walks the queue in order: call queue_next until NULL. A returned job may be removed. */
void queue_begin(struct core *c);
struct jobrec *queue_next(struct core *c);
/* From now on the walk leaves out jobs that need more than room[] slots of every device that they may run on. */
void queue_narrow(struct core *c, const uint32_t room[CORE_DEVICES]);
/* From now on the walk also leaves out jobs of j's user that need more than `allowed` slots. */
void queue_narrow_user(struct core *c, const struct jobrec *j, uint32_t allowed);
/* Would `waits` come before `runs` if both waited? As of queue_begin. */
bool queue_before(const struct jobrec *waits, const struct jobrec *runs);
/* device: one of core_devices. */
const struct queue_head *queue_head_of(const struct core *c, const char *device);
/* Does a job wait that could use free slots of this device? */
bool queue_wants(const struct core *c, const char *device);
/* Slots that the user's limit allows the job; UINT32_MAX = no limit. *ret_others (may be NULL): slots of the user's
 * other jobs. */
uint32_t queue_allows(const struct core *c, const struct jobrec *j, uint32_t *ret_others);
void queue_took(struct jobrec *j, uint32_t slots); /* counts slots that the job took since queue_begin */
struct user *queue_user(struct core *c, const char *name);
const char *queue_user_name(const struct user *u);
size_t queue_user_pending(const struct core *c, const char *name);
void queue_count(const struct core *c, struct core_queue *ret);
void queue_free(struct core *c);

#endif
