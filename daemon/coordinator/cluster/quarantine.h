/* SPDX-License-Identifier: Apache-2.0 */
/* quarantine.h - nodes on which workers crash too often, or do not start, get no new ones for a while. */
#ifndef TITAN_DAEMON_COORDINATOR_CLUSTER_QUARANTINE_H
#define TITAN_DAEMON_COORDINATOR_CLUSTER_QUARANTINE_H

#include "daemon/coordinator/records/core_record.h"

/* A worker of the job has crashed there: too many in too short a time put the node in quarantine. */
void quarantine_crashed(struct core *c, struct noderec *n, const struct jobrec *j);
/* The job's workers crash there so often that its next ones are rather started elsewhere. */
bool quarantine_avoids(const struct core *c, const struct noderec *n, const struct jobrec *j);
/* A command to start a worker there is not answered, though the node is: it gets no more of them, until it says
 * anything of a worker. */
void quarantine_silent(struct core *c, struct noderec *n);
void quarantine_answered(struct core *c, struct noderec *n);
void quarantine_lift(struct noderec *n); /* by an operator: it starts over */
void quarantine_over(struct core *c, struct noderec *n);
void quarantine_restore(struct core *c, struct noderec *n); /* as its policy says */

#endif
