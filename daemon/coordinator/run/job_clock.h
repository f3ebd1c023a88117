/* SPDX-License-Identifier: Apache-2.0 */
/* job_clock.h - a job's deadlines: to leave an epoch, to make the first or next step, to have enough workers. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_JOB_CLOCK_H
#define TITAN_DAEMON_COORDINATOR_RUN_JOB_CLOCK_H

#include "daemon/coordinator/records/core_record.h"

/* It has made a step: it may take as long again before it counts as hanging. */
void job_clock_tries(struct core *c, struct jobrec *j); /* it cannot go on for now, and says so */
void job_clock_moved_on(struct core *c, struct jobrec *j);
int64_t job_clock_quiesce_ms(const struct core *c, const struct jobrec *j);
int64_t job_clock_form_ms(const struct core *c, const struct jobrec *j);
/* When the epoch has to be quiet, or to have made its first or next step; INT64_MAX = there is no limit. */
void job_clock_limit(struct jobrec *j, int64_t at);
/* When it gives its slots back, since it has too few workers; INT64_MAX = not for that. */
void job_clock_starves(struct jobrec *j, int64_t at);
/* It has formed an epoch: until the first step. The state of one that others have formed has come from elsewhere. */
void job_clock_formed(const struct core *c, struct jobrec *j);
void job_clock_taken(const struct core *c, struct jobrec *j);
/* Where the state of its epoch came from is known: it has taken this long. */
void job_clock_state_ready(const struct core *c, struct jobrec *j);
void job_clock_missed(struct jobrec *j); /* its epoch: the next has as long as the first */
void job_clock_stepped(struct jobrec *j);

#endif
