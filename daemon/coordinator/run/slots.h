/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - slots: which are free, and which are reserved for a job. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_SLOTS_H
#define TITAN_DAEMON_COORDINATOR_RUN_SLOTS_H

#include "daemon/coordinator/records/core_record.h"

/* May new workers of this job (NULL = of any) start there, on this device? */
bool slots_usable(const struct noderec *n, const char *device, const struct jobrec *j);
/* Free slots of the nodes that take such workers; *ret_all (may be NULL): all of their slots. */
uint32_t slots_free(const struct core *c, const char *device, const struct jobrec *j, uint32_t *ret_all);
bool slots_held(const struct jobrec *j); /* its slots stay its own while a worker is replaced */
/* Slots of this device that running jobs wait for which give none to this one. */
uint32_t slots_claimed(const struct core *c, const char *device, const struct jobrec *j);
/* The device on which the job can have at least its minimum now; false: there is none. */
bool slots_choose_device(const struct core *c, struct jobrec *j);
void slots_set_device(struct jobrec *j, const char *device); /* that it runs on from now on */
/* Slots that this job may not take, as they are kept for the head of the queue, to which it yields. */
uint32_t slots_held_back(const struct core *c, const struct jobrec *j);

#endif
