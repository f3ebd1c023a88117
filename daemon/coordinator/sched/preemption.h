/* SPDX-License-Identifier: Apache-2.0 */
/* preemption.h - slots for the first in the queue: elastic jobs of lower priority, or that have passed it (backfill.h),
 * shrink first, towards their minimum and without losing a step; only when that is not enough are some stopped, with a
 * checkpoint. Among equals none else gives way. */
#ifndef TITAN_DAEMON_COORDINATOR_SCHED_PREEMPTION_H
#define TITAN_DAEMON_COORDINATOR_SCHED_PREEMPTION_H

#include "daemon/coordinator/records/core_record.h"

/* The first in the queue lacks slots on this device: make jobs that yield to it give some back. False when all they
 * have would not do. What running jobs that do not yield wait for is theirs first, also of what comes back. */
bool preempt_for(struct core *c, const struct jobrec *j, const char *device);
/* Jobs that gave way to one that does not wait any more may grow again. */
void preempt_over(struct core *c);

#endif
