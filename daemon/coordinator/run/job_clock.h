/* SPDX-License-Identifier: Apache-2.0 */
/* job_clock.h - a job's deadlines: leave an epoch, make the first or next step, have enough workers. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_JOB_CLOCK_H
#define TITAN_DAEMON_COORDINATOR_RUN_JOB_CLOCK_H

#include "daemon/coordinator/records/core_record.h"

/* The job has made a step. So the time until it counts as hanging starts again. */
void job_clock_moved_on(struct core *c, struct jobrec *j);
void job_clock_tries(struct core *c, struct jobrec *j); /* restarts the time: the job reports why it makes no step */
int64_t job_clock_quiesce_ms(const struct core *c, const struct jobrec *j);
int64_t job_clock_form_ms(const struct core *c, const struct jobrec *j);
/* Deadline for the epoch to be quiet, or to make its first or next step; INT64_MAX = none. */
void job_clock_limit(struct jobrec *j, int64_t at);
/* Moves the deadlines by ms, because members could not answer for that long. */
void job_clock_shift(struct jobrec *j, int64_t ms);
/* Sets when the job gives its slots back for lack of workers; INT64_MAX = it has enough workers. */
void job_clock_starves(struct jobrec *j, int64_t at);
/* An epoch was formed here, or (taken) by agents. Sets the deadline for its first step. */
void job_clock_formed(const struct core *c, struct jobrec *j);
void job_clock_taken(const struct core *c, struct jobrec *j);
/* The epoch has its state. The time this took sets the deadlines of later epochs. */
void job_clock_state_ready(const struct core *c, struct jobrec *j);
void job_clock_missed(struct jobrec *j); /* gives the next epoch as much time as a first epoch */
void job_clock_stepped(struct jobrec *j);

#endif
