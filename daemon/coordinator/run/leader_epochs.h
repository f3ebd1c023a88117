/* SPDX-License-Identifier: Apache-2.0 */
/* leader_epochs.h - epochs that agents formed while the coordinator was away. The coordinator stores these epochs as
 * they are, and the run goes on from them. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_LEADER_EPOCHS_H
#define TITAN_DAEMON_COORDINATOR_RUN_LEADER_EPOCHS_H

#include "daemon/coordinator/records/core_record.h"

void leader_epochs_register(struct core *c, struct noderec *n, const Titan__Internal__AgentRegistration *m);
void leader_epochs_report(struct core *c, struct noderec *n, const Titan__Internal__LeaderEpoch *d);
typedef bool leader_epochs_knows(const struct core *c, struct jobrec *j, const Titan__Internal__Member *m);
/* Can f be an epoch of the job? knows() must accept each member and departing rank, and each is named once. */
bool leader_epochs_sound(const struct core *c, struct jobrec *j, const Titan__Internal__FormEpoch *f,
                         leader_epochs_knows *knows) TITAN_MUST_USE;
/* Takes over a sound epoch that others have formed. leader: the acting leader's node; NULL = a coordinator with a lost
 * store formed it. */
void leader_epochs_take(struct core *c, struct jobrec *j, const Titan__Internal__FormEpoch *f, const char *leader);
/* An agent has already taken another epoch of that number. Returns the job to advance; NULL = none. */
struct jobrec *leader_epochs_refused(struct core *c, struct noderec *n, const Titan__Internal__EpochRefused *m);

#endif
