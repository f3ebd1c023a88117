/* SPDX-License-Identifier: Apache-2.0 */
/* refusals.h - nodes that have refused to start workers of a job, for example because the user has another number
 * there. The job avoids such a node until the node registers again. Kept in memory only, because after a restart of the
 * coordinator every node registers again. */
#ifndef TITAN_DAEMON_COORDINATOR_RECORDS_REFUSALS_H
#define TITAN_DAEMON_COORDINATOR_RECORDS_REFUSALS_H

#include "daemon/coordinator/records/core_record.h"

bool refusal_holds(const struct jobrec *j, const struct noderec *n);
/* False: the refusal existed already. */
bool refusal_add(struct core *c, struct jobrec *j, const struct noderec *n);
void refusals_lift(struct core *c, const struct noderec *n); /* the node is gone or registers again */
void refusals_forget(struct core *c, struct jobrec *j);      /* drops the refusals of a removed job */
/* Most slots of one device on nodes that have not refused the job. Absent nodes and nodes out of service count too. */
uint32_t refusals_room(const struct core *c, const struct jobrec *j);

#endif
