/* SPDX-License-Identifier: Apache-2.0 */
/* worker_reports.h - what agents report of workers. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_WORKER_REPORTS_H
#define TITAN_DAEMON_COORDINATOR_RUN_WORKER_REPORTS_H

#include "daemon/coordinator/records/core_record.h"

/* The worker a report is about; false when it is about no worker. */
bool worker_subject(const Titan__Internal__AgentMessage *m, struct subject *ret);
void worker_report(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__AgentMessage *m);
/* A worker listed in a registration, seen alive. */
void worker_adopt(struct core *c, struct workrec *w, const Titan__Internal__LiveWorker *live);

#endif
