/* SPDX-License-Identifier: Apache-2.0 */
/* job_quarantine.h - a job that the store contradicts: ended by what is stored alone. */
#ifndef TITAN_STATE_JOB_QUARANTINE_H
#define TITAN_STATE_JOB_QUARANTINE_H

#include "state/change.h"

/* The job fails (one that waits or is being cancelled is cancelled), with its run, its live epoch and its live workers;
 * each from the state that is stored, with an event. Nothing happens to one that has ended. Inside a transaction. */
titan_status job_quarantine(struct db *db, uint64_t job_id, const char *reason, int64_t at_ms,
                            struct titan_error *err) TITAN_MUST_USE;

/* The job it is about; 0 = none. */
uint64_t change_job(const struct change *c);

#endif
