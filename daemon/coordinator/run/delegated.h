/* SPDX-License-Identifier: Apache-2.0 */
/* delegated.h - epochs that agents have formed while the coordinator was away: they are stored as they are, and the run
 * goes on from there. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_DELEGATED_H
#define TITAN_DAEMON_COORDINATOR_RUN_DELEGATED_H

#include "daemon/coordinator/records/core_record.h"

void delegated_hello(struct core *c, struct noderec *n, const Titan__Internal__AgentHello *m);
void delegated_report(struct core *c, struct noderec *n, const Titan__Internal__EpochDelegated *d);
typedef bool delegated_knows(const struct core *c, struct jobrec *j, const Titan__Internal__Member *m);
/* Can it be an epoch of the job? Each member and departing rank is one that knows() accepts, and named once. */
bool delegated_sound(const struct core *c, struct jobrec *j, const Titan__Internal__FormEpoch *f,
                     delegated_knows *knows) TITAN_MUST_USE;
/* An epoch that others have formed is the job's, once it is sound. delegate: who; NULL = a coordinator whose store is
 * lost. */
void delegated_take(struct core *c, struct jobrec *j, const Titan__Internal__FormEpoch *f, const char *delegate);
/* An agent has taken another epoch of that number: the job it is about has to be advanced; NULL = none. */
struct jobrec *delegated_refused(struct core *c, struct noderec *n, const Titan__Internal__EpochRefused *m);

#endif
