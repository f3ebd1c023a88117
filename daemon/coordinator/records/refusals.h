/* SPDX-License-Identifier: Apache-2.0 */
/* refusals.h - nodes that have refused to start workers of a job: a node and a job that do not fit together, such as a
 * user with another number there. The node is left out for the job until it registers anew. Kept in memory only: after
 * a restart of the coordinator every node registers anew. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_REFUSALS_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_REFUSALS_H

#include "daemon/coordinator/records/core_record.h"

bool refusal_holds(const struct jobrec *j, const struct noderec *n);
/* False: it was there already. */
bool refusal_add(struct core *c, struct jobrec *j, const struct noderec *n);
void refusals_lift(struct core *c, const struct noderec *n); /* of all jobs: it has registered anew, or is gone */
void refusals_forget(struct core *c, struct jobrec *j);      /* of a job that goes */
/* Most slots of one device on nodes that have not refused the job, with nodes that are away or out of service
 * for now. */
uint32_t refusals_room(const struct core *c, const struct jobrec *j);

#endif
