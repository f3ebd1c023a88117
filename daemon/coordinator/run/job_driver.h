/* SPDX-License-Identifier: Apache-2.0 */
/* job_driver.h - what a job does next. job_advance() looks at the job's whole state, not at the last event, so lost,
 * repeated or restored inputs do no harm. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_JOB_DRIVER_H
#define TITAN_DAEMON_COORDINATOR_RUN_JOB_DRIVER_H

#include "daemon/coordinator/records/core_record.h"

/* Looks again at each job with workers on the node, because such a job may have to act. */
void job_driver_look_again(struct core *c, const struct noderec *n);
/* Does whatever the job's state calls for now. May free j when the job is over. */
void job_advance(struct core *c, struct jobrec *j);
/* job_advance() after an agent's message, perhaps only in the next tick, see core_options.at_once. */
void job_received(struct core *c, struct jobrec *j);
/* Sends again everything in force for the job's workers on this node. */
void job_resend(struct core *c, struct jobrec *j, struct noderec *n);
void job_tick(struct core *c, struct jobrec *j); /* checks deadlines, then calls job_advance */
int64_t job_deadline(const struct jobrec *j, int64_t now);

#endif
