/* SPDX-License-Identifier: Apache-2.0 */
/* backfill.h - jobs that started before an earlier job, on slots that are too few for the earlier job. Such slots are
 * on loan. As soon as they suffice for the earlier job, the borrower gives them back, as a job of lower priority does
 * (preemption.h). The loan is owed to every job that stands before the borrower in the queue's order. */
#ifndef TITAN_DAEMON_COORDINATOR_SCHED_BACKFILL_H
#define TITAN_DAEMON_COORDINATOR_SCHED_BACKFILL_H

#include "daemon/coordinator/records/core_record.h"

/* Reason text; the argument is the id of the earlier job. */
#define BACKFILL_WORDS "backfill: job %llu comes first, and gets these slots when they are enough for it"
/* The job is placed on its device. */
void backfill_begin(const struct core *c, struct jobrec *j);
/* A walk of the queue has reached job `next` as the next job for the device. */
void backfills_fall_due(struct core *c, const struct jobrec *next, const char *device);
/* Ends each loan whose earlier job does not wait any more. */
void backfills_end(struct core *c);

#endif
