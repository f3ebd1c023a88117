/* SPDX-License-Identifier: Apache-2.0 */
/* worker_end.h - how workers end, and what follows from it. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_WORKER_END_H
#define TITAN_DAEMON_COORDINATOR_RUN_WORKER_END_H

#include "daemon/coordinator/records/core_record.h"

/* A worker is no more: report is NULL when its node cannot say. Frees w. Does not advance the job. */
void worker_ended(struct core *c, struct workrec *w, const struct exit_report *report, const char *why);
/* Takes it out of the books, and frees it; nothing is said of it. */
void worker_forget(struct core *c, struct workrec *w);
/* Its agent does not list it: it counts as ended from then on; 0 = it is there. */
void worker_missing(struct workrec *w, int64_t from);
void worker_deadlines(struct core *c, struct jobrec *j);

#endif
