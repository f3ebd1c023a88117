/* SPDX-License-Identifier: Apache-2.0 */
/* stale_store.h - a store that was put back from a backup knows less than the agents: epochs, workers and checkpoints
 * of the time since (docs/membership.md, "A store from a backup").
 *
 * Before it is acknowledged each agent is asked for the epochs it knows (ListEpochs); they are stored as they are, and
 * runs go on in them. Until all known nodes have spoken, or no worker can go on without a coordinator any more, nothing
 * is started or formed, so that no run is begun twice. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_STALE_STORE_H
#define TITAN_DAEMON_COORDINATOR_RUN_STALE_STORE_H

#include "daemon/coordinator/records/core_record.h"

/* Has the agent to be asked first what it knows? */
bool stale_asks(const struct core *c, const Titan__Internal__AgentRegistration *m);
/* Take over what it has reported; before its workers are looked at. */
void stale_registration(struct core *c, struct noderec *n, const Titan__Internal__AgentRegistration *m);
void stale_tick(struct core *c);
/* A node that has not said yet what it knows; NULL = all have. */
const struct noderec *stale_awaits(const struct core *c);

#endif
