/* SPDX-License-Identifier: Apache-2.0 */
/* worker_end.h - how workers end, and the consequences. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_WORKER_END_H
#define TITAN_DAEMON_COORDINATOR_RUN_WORKER_END_H

#include "daemon/coordinator/records/core_record.h"

/* A worker has ended. report NULL = nobody can tell how: its node is lost, or its agent does not know it. Frees w. Does
 * not advance the job. */
void worker_ended(struct core *c, struct workrec *w, struct exit_report *report, const char *why);
/* Removes the worker's record and frees it, without an event. */
void worker_forget(struct core *c, struct workrec *w);
/* The agent did not list the worker, so the worker counts as ended from the time `from` on. from 0: the agent lists the
 * worker again. */
void worker_missing(struct workrec *w, int64_t from);
/* The node's agent has sent all reports from before its registration. */
void worker_reports_complete(struct core *c, const struct noderec *n);
void worker_deadlines(struct core *c, struct jobrec *j);

#endif
