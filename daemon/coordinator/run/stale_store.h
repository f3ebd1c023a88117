/* SPDX-License-Identifier: Apache-2.0 */
/* stale_store.h - a store restored from a backup knows less than the agents: epochs, workers and checkpoints since then
 * are missing (docs/membership.md, "A store from a backup").
 *
 * Before its acknowledgement, each agent is asked for the epochs it knows (ListEpochs). These epochs are stored as they
 * are, and runs go on in them. Until all known nodes have answered, or no worker can go on without a coordinator,
 * nothing starts or forms, so that no run begins twice. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_STALE_STORE_H
#define TITAN_DAEMON_COORDINATOR_RUN_STALE_STORE_H

#include "daemon/coordinator/records/core_record.h"

/* Must the agent first be asked what it knows? */
bool stale_asks(const struct core *c, const Titan__Internal__AgentRegistration *m);
/* Takes over the agent's report. Call it before its workers are looked at. */
void stale_registration(struct core *c, struct noderec *n, const Titan__Internal__AgentRegistration *m);
void stale_tick(struct core *c);
/* A node that has not yet reported what it knows; NULL = all have. */
const struct noderec *stale_awaits(const struct core *c);

#endif
