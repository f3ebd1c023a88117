/* SPDX-License-Identifier: Apache-2.0 */
/* loans.h - jobs that have passed another one: they run on slots that it lacks, until those are enough for it. Then
 * they give them back as a job of lower priority does (preemption.h). A loan is due as if the job that has it waited
 * still: to each one that would come before it. */
#ifndef TITAN_DAEMON_COORDINATOR_SCHED_LOANS_H
#define TITAN_DAEMON_COORDINATOR_SCHED_LOANS_H

#include "daemon/coordinator/records/core_record.h"

/* The job is placed on its device. */
void loan_begin(const struct core *c, struct jobrec *j);
/* This one is the next in order for the device, in a walk of the queue. */
void loans_fall_due(struct core *c, const struct jobrec *next, const char *device);
/* Those for jobs that do not wait any more are over. */
void loans_end(struct core *c);

#endif
