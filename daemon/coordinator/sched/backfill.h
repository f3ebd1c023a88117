/* SPDX-License-Identifier: Apache-2.0 */
/* backfill.h - jobs that started before an earlier job, on slots that are too few for the earlier job. Such slots are
 * on loan. The borrower gives them back once they are enough for the earlier job, as a job of lower priority does
 * (preemption.h). A loan is due to each job that would precede the borrower if the borrower still waited. */
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
