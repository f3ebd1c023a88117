/* SPDX-License-Identifier: Apache-2.0 */
/* worker_reports.h - agents' reports about workers. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_WORKER_REPORTS_H
#define TITAN_DAEMON_COORDINATOR_RUN_WORKER_REPORTS_H

#include "daemon/coordinator/records/core_record.h"

/* The worker that the message is about. False: it is about no worker. */
bool worker_subject(const Titan__Internal__AgentMessage *m, struct subject *ret);
void worker_report(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__AgentMessage *m);
/* A registration lists the worker as alive. */
void worker_adopt(struct core *c, struct workrec *w, const Titan__Internal__LiveWorker *live);

#endif
