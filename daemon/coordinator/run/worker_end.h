/* SPDX-License-Identifier: Apache-2.0 */
/* worker_end.h - how workers end, and what follows from it. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_WORKER_END_H
#define TITAN_DAEMON_COORDINATOR_RUN_WORKER_END_H

#include "daemon/coordinator/records/core_record.h"

/* A worker has ended: report is NULL when its node is lost and cannot tell how. Frees w. Does not advance the job. */
void worker_ended(struct core *c, struct workrec *w, struct exit_report *report, const char *why);
/* Removes its record and frees it, without an event. */
void worker_forget(struct core *c, struct workrec *w);
/* Its agent did not list it: from that time on it counts as ended. 0 = it was listed again. */
void worker_missing(struct workrec *w, int64_t from);
/* All that the node's agent had to say of the time before its registration has come. */
void worker_reports_complete(struct core *c, const struct noderec *n);
void worker_deadlines(struct core *c, struct jobrec *j);

#endif
