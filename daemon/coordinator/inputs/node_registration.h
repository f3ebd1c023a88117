/* SPDX-License-Identifier: Apache-2.0 */
/* node_registration.h - an agent registers. */
#ifndef TITAN_DAEMON_COORDINATOR_INPUTS_NODE_REGISTRATION_H
#define TITAN_DAEMON_COORDINATOR_INPUTS_NODE_REGISTRATION_H

#include "daemon/coordinator/records/core_record.h"

void node_checked(struct core *c, struct noderec *n, const Titan__Internal__NodeChecked *m);
titan_status node_registration(struct core *c, uint64_t session, const Titan__Internal__AgentMessage *message,
                               struct titan_error *err) TITAN_MUST_USE;

#endif
