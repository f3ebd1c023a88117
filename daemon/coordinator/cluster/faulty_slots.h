/* SPDX-License-Identifier: Apache-2.0 */
/* faulty_slots.h - slots that agents take out of use, as their GPUs are faulty. Kept in memory only: an agent says it
 * again with every registration. */
#ifndef TITAN_DAEMON_COORDINATOR_CLUSTER_FAULTY_SLOTS_H
#define TITAN_DAEMON_COORDINATOR_CLUSTER_FAULTY_SLOTS_H

#include "daemon/coordinator/records/core_record.h"

/* What its agent says of the node's GPUs, with a registration or later; NULL = it knows nothing of them. Slots that
 * fail, and those that are well again, are events. */
void faulty_slots_registered(struct core *c, struct noderec *n, const Titan__Internal__NodeGpus *m);
void faulty_slots_report(struct core *c, struct noderec *n, const Titan__Internal__NodeGpus *m);
/* By an operator: its agent is to look at them again, when it is back if it is away. */
void faulty_slots_lift(struct core *c, struct noderec *n);

#endif
