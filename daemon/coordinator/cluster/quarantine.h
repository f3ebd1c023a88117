/* SPDX-License-Identifier: Apache-2.0 */
/* quarantine.h - a node where workers crash too often, or do not start, gets no new workers for a while. */
#ifndef TITAN_DAEMON_COORDINATOR_CLUSTER_QUARANTINE_H
#define TITAN_DAEMON_COORDINATOR_CLUSTER_QUARANTINE_H

#include "daemon/coordinator/records/core_record.h"

/* A worker of the job has crashed on the node. Too many crashes in too short a time put the node in quarantine. */
void quarantine_crashed(struct core *c, struct noderec *n, const struct jobrec *j);
/* True: the job's workers crash on this node so often that its next workers rather start elsewhere. */
bool quarantine_avoids(const struct core *c, const struct noderec *n, const struct jobrec *j);
/* The node is alive but did not answer a command to start a worker. The node gets no more such commands until it
 * reports any worker. */
void quarantine_silent(struct core *c, struct noderec *n);
void quarantine_answered(struct core *c, struct noderec *n);
void quarantine_lift(struct noderec *n); /* an operator lifts the quarantine, and counting starts over */
void quarantine_over(struct core *c, struct noderec *n);
void quarantine_restore(struct core *c, struct noderec *n); /* takes the quarantine from the node's stored policy */

#endif
