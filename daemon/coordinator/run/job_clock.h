/* SPDX-License-Identifier: Apache-2.0 */
/* job_clock.h - a job's deadlines: to leave an epoch, to make the first or next step, to have enough workers. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_JOB_CLOCK_H
#define TITAN_DAEMON_COORDINATOR_RUN_JOB_CLOCK_H

#include "daemon/coordinator/records/core_record.h"

/* It has made a step: the time until it counts as hanging begins again. */
void job_clock_moved_on(struct core *c, struct jobrec *j);
void job_clock_tries(struct core *c, struct jobrec *j); /* the same for one that reports why it makes no step */
int64_t job_clock_quiesce_ms(const struct core *c, const struct jobrec *j);
int64_t job_clock_form_ms(const struct core *c, const struct jobrec *j);
/* When the epoch has to be quiet, or to have made its first or next step; INT64_MAX = there is no limit. */
void job_clock_limit(struct jobrec *j, int64_t at);
/* So much later: members could not answer for that long. */
void job_clock_shift(struct jobrec *j, int64_t ms);
/* When it gives its slots back because it has too few workers; INT64_MAX = it has enough. */
void job_clock_starves(struct jobrec *j, int64_t at);
/* An epoch was formed here, or (taken) by agents: sets the time until its first step. */
void job_clock_formed(const struct core *c, struct jobrec *j);
void job_clock_taken(const struct core *c, struct jobrec *j);
/* Its epoch has its state: how long that took sets the time that later epochs get. */
void job_clock_state_ready(const struct core *c, struct jobrec *j);
void job_clock_missed(struct jobrec *j); /* its epoch: the next has as long as the first */
void job_clock_stepped(struct jobrec *j);

#endif
