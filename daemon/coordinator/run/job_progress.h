/* SPDX-License-Identifier: Apache-2.0 */
/* job_progress.h - a job's steps and their metrics. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_JOB_PROGRESS_H
#define TITAN_DAEMON_COORDINATOR_RUN_JOB_PROGRESS_H

#include "daemon/coordinator/records/core_record.h"

/* Takes other ranks' metrics for the steps that rank 0 has not reported. Call it when rank 0 reports no more in this
 * epoch. */
void job_progress_spare(struct core *c, struct jobrec *j);
void job_progress_falls_back(struct jobrec *j, uint64_t step); /* later steps are repeated */
void job_progress_metric(struct core *c, struct jobrec *j, const struct rank_slot *rank_slot,
                         const Titan__Internal__WorkerProgress *p);
/* A member reports an evaluation. The first evaluation of each step is stored, with an event. */
void job_progress_evaluated(struct core *c, struct jobrec *j, const Titan__Internal__WorkerEvaluated *m);
void job_progress_reaches(struct jobrec *j, uint64_t step); /* moves the status to the step if it is below */
void job_progress_unsaved(struct jobrec *j);                /* marks the status to be stored */
void job_progress_restored(struct jobrec *j);

#endif
