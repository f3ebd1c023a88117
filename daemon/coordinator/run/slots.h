/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - slots: which are free, and which are reserved for a job. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_SLOTS_H
#define TITAN_DAEMON_COORDINATOR_RUN_SLOTS_H

#include "daemon/coordinator/records/core_record.h"

/* May new workers start there, on this device? */
bool slots_usable(const struct noderec *n, const char *device);
/* Free slots of the nodes that take workers; *ret_all (may be NULL): all of their slots. */
uint32_t slots_free(const struct core *c, const char *device, uint32_t *ret_all);
bool slots_held(const struct jobrec *j); /* its slots stay its own while a worker is replaced */
/* Slots of this device that running jobs of this priority or a higher one wait for. */
uint32_t slots_claimed(const struct core *c, const char *device, int32_t priority);
/* The device on which the job can have at least its minimum now; false: there is none. */
bool slots_choose_device(const struct core *c, struct jobrec *j, bool respect_claims);
/* Slots that this job may not take, as they are kept for a job of higher priority at the head of the queue. */
uint32_t slots_held_back(const struct core *c, const struct jobrec *j);

#endif
