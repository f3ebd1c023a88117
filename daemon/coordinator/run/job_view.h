/* SPDX-License-Identifier: Apache-2.0 */
/* job_view.h - core_jobs(): jobs as metrics show them. The last jobs that ended stay for a while, so that a scraper
 * sees how they ended. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_JOB_VIEW_H
#define TITAN_DAEMON_COORDINATOR_RUN_JOB_VIEW_H

#include "daemon/coordinator/records/core_record.h"

#define ENDED_JOBS 256 /* remembered at most, the newest */

void job_view_keep(struct core *c, const struct jobrec *j); /* the job has ended, and is about to be forgotten */
void job_view_free(struct core *c);

#endif
