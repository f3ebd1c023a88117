/* SPDX-License-Identifier: Apache-2.0 */
/* job_end.h - how workers are stopped, and how a job ends. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_JOB_END_H
#define TITAN_DAEMON_COORDINATOR_RUN_JOB_END_H

#include "daemon/coordinator/records/core_record.h"

void worker_stop(struct core *c, struct workrec *w, uint32_t grace_ms, const char *reason);
void job_cancel(struct core *c, struct jobrec *j, const char *reason, uint32_t grace_ms);
void job_fail(struct core *c, struct jobrec *j, const char *reason);
void job_stop_all(struct core *c, struct jobrec *j, uint32_t grace_ms, const char *reason);
void job_end(struct core *c, struct jobrec *j, enum job_state to, const char *reason);
/* Sets the grace of stopping workers; why NULL = the reason stays. */
void job_end_because(struct jobrec *j, uint32_t grace_ms, const char *why);
/* Sets the cause of a stopping worker's end; LOSS_NONE = the end is no loss. */
void worker_set_exit_cause(struct workrec *w, enum loss_cause cause);
void worker_grant(struct workrec *w, int64_t ms); /* extends its deadline */

#endif
