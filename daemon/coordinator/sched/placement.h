/* SPDX-License-Identifier: Apache-2.0 */
/* placement.h - slots have changed hands: running jobs get them first, then the queue. */
#ifndef TITAN_DAEMON_COORDINATOR_SCHED_PLACEMENT_H
#define TITAN_DAEMON_COORDINATOR_SCHED_PLACEMENT_H

#include "daemon/coordinator/records/core_record.h"

/* A job has entered the queue: place it if possible. */
void sched_submitted(struct core *c, struct jobrec *j);
/* Slots have changed hands: give them to waiting running jobs, then to the queue. */
void sched_settle(struct core *c);

#endif
