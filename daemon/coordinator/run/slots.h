/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - free slots, and slots reserved for a job. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_SLOTS_H
#define TITAN_DAEMON_COORDINATOR_RUN_SLOTS_H

#include "daemon/coordinator/records/core_record.h"

/* May new workers of job j (NULL = any job) start on the node, on this device? */
bool slots_usable(const struct noderec *n, const char *device, const struct jobrec *j);
/* Free slots of the nodes that take workers of job j (NULL = of any job). *ret_all (may be NULL): all slots of these
 * nodes. */
uint32_t slots_free(const struct core *c, const char *device, const struct jobrec *j, uint32_t *ret_all);
bool slots_held(const struct jobrec *j); /* the job keeps its slots while a worker is replaced */
/* Counts the slots of this device that running jobs await, except jobs that yield to j. */
uint32_t slots_claimed(const struct core *c, const char *device, const struct jobrec *j);
/* Chooses the device on which the job can have at least its minimum now. False: there is none. */
bool slots_choose_device(const struct core *c, struct jobrec *j);
void slots_set_device(struct jobrec *j, const char *device); /* the job runs on it from now on */
/* Slots that the job may not take, because they are kept for the head of the queue, to which the job yields. */
uint32_t slots_held_back(const struct core *c, const struct jobrec *j);

#endif
