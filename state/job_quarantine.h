/* SPDX-License-Identifier: Apache-2.0 */
/* job_quarantine.h - ends a job with contradictory rows, from the stored rows alone. */
#ifndef TITAN_STATE_JOB_QUARANTINE_H
#define TITAN_STATE_JOB_QUARANTINE_H

#include "state/change.h"

/* Fails the job (a waiting or cancelling job is cancelled), with its run, its live epoch and its live workers. Each
 * moves from its stored state, with an event. A finished job stays unchanged. Call inside a transaction. */
titan_status job_quarantine(struct db *db, uint64_t job_id, const char *reason, int64_t at_ms,
                            struct titan_error *err) TITAN_MUST_USE;

/* The job that the change concerns; 0 = none. */
uint64_t change_job(const struct change *c);

#endif
