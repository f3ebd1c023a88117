/* SPDX-License-Identifier: Apache-2.0 */
/* phase.h - what a job is about, beside the state that is stored of it. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_PHASE_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_PHASE_H

#include "base/sm.h"
#include "daemon/coordinator/records/job_record.h"

extern const struct sm phase_sm;

/* Of a job that goes on: by its newest epoch. */
enum job_phase phase_by_epoch(const struct jobrec *j);
/* Only exits of its workers are waited for: it finishes, is cancelled, or has ended. */
bool phase_ends(const struct jobrec *j);
bool phase_stops(const struct jobrec *j); /* the same, or it stops to be queued again */

#endif
