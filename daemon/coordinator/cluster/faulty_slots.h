/* SPDX-License-Identifier: Apache-2.0 */
/* faulty_slots.h - slots out of use because their GPUs are faulty. Kept in memory only, because each registration of an
 * agent reports them again. */
#ifndef TITAN_DAEMON_COORDINATOR_CLUSTER_FAULTY_SLOTS_H
#define TITAN_DAEMON_COORDINATOR_CLUSTER_FAULTY_SLOTS_H

#include "daemon/coordinator/records/core_record.h"

/* An agent reports the node's GPUs, in a registration or later; NULL = the agent knows nothing of the GPUs. Slots that
 * fail or recover become events. */
void faulty_slots_registered(struct core *c, struct noderec *n, const Titan__Internal__NodeGpus *m);
void faulty_slots_report(struct core *c, struct noderec *n, const Titan__Internal__NodeGpus *m);
/* An operator asks the agent to check its faulty GPUs again. An absent agent is asked when it returns. */
void faulty_slots_lift(struct core *c, struct noderec *n);

#endif
