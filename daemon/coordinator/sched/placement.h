/* SPDX-License-Identifier: Apache-2.0 */
/* placement.h - slots have changed hands: running jobs, then the queue, get them. */
#ifndef TITAN_DAEMON_COORDINATOR_SCHED_PLACEMENT_H
#define TITAN_DAEMON_COORDINATOR_SCHED_PLACEMENT_H

#include "daemon/coordinator/records/core_record.h"

/* A job is in the queue: where it may have a place, it is looked for. */
void sched_submitted(struct core *c, struct jobrec *j);
/* Slots have changed hands: let waiting jobs, then the queue, have them. */
void sched_settle(struct core *c);

#endif
