/* SPDX-License-Identifier: Apache-2.0 */
/* backfill.h - jobs that have started before one that comes first, on slots that are not enough for it. Those are on
 * loan: they are given back when they are enough, as by a job of lower priority (preemption.h). A loan is due as if the
 * job that has it waited still: to each one that would come before it. */
#ifndef TITAN_DAEMON_COORDINATOR_SCHED_BACKFILL_H
#define TITAN_DAEMON_COORDINATOR_SCHED_BACKFILL_H

#include "daemon/coordinator/records/core_record.h"

/* What is said of it, with the id of the other one. */
#define BACKFILL_WORDS "backfill: job %llu comes first, and gets these slots when they are enough for it"
/* The job is placed on its device. */
void backfill_begin(const struct core *c, struct jobrec *j);
/* This one is the next in order for the device, in a walk of the queue. */
void backfills_fall_due(struct core *c, const struct jobrec *next, const char *device);
/* The slots of jobs that have passed none that waits still are their own. */
void backfills_end(struct core *c);

#endif
