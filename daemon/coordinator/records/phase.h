/* SPDX-License-Identifier: Apache-2.0 */
/* phase.h - what a job is doing now, beside its stored state. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_PHASE_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_PHASE_H

#include "base/sm.h"
#include "daemon/coordinator/records/job_record.h"

extern const struct sm phase_sm;

/* The phase of a continuing job, from its newest epoch. */
enum job_phase phase_by_epoch(const struct jobrec *j);
/* The job only awaits exits of its workers: it finishes, is cancelled, or has ended. */
bool phase_ends(const struct jobrec *j);
bool phase_stops(const struct jobrec *j); /* phase_ends, or the job stops to be queued again */

#endif
