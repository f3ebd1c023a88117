/* job_clock.h - a job's deadlines: to leave an epoch, to make the first or next step, to have enough workers. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_JOB_CLOCK_H
#define TITAN_DAEMON_COORDINATOR_RUN_JOB_CLOCK_H

#include "daemon/coordinator/records/core_record.h"

/* It has made a step: it may take as long again before somebody asks whether it hangs. */
void clock_tries(struct core *c, struct jobrec *j); /* it cannot go on for now, and says so */
void clock_moved_on(struct core *c, struct jobrec *j);
int64_t clock_quiesce_ms(const struct core *c, const struct jobrec *j);
int64_t clock_form_ms(const struct core *c, const struct jobrec *j);

#endif
