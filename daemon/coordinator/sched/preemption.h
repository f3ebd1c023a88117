/* SPDX-License-Identifier: Apache-2.0 */
/* preemption.h - slots for the first job in the queue. Elastic jobs of lower priority, or jobs that have passed this
 * job (backfill.h), first shrink towards their minimum without losing a step. If the slots are still too few, some of
 * these jobs are stopped with a checkpoint. Jobs of equal priority that have not passed it give no slots. */
#ifndef TITAN_DAEMON_COORDINATOR_SCHED_PREEMPTION_H
#define TITAN_DAEMON_COORDINATOR_SCHED_PREEMPTION_H

#include "daemon/coordinator/records/core_record.h"

/* The first job in the queue lacks slots on this device. Jobs that yield to it give some back. Returns false if not
 * even all their slots would suffice. Running jobs that do not yield first get the slots that they await, also from the
 * slots given back. */
bool preempt_for(struct core *c, const struct jobrec *j, const char *device);
/* Jobs that gave way to a job that no longer waits may grow again. */
void preempt_over(struct core *c);

#endif
