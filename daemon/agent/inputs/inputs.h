/* SPDX-License-Identifier: Apache-2.0 */
/* inputs.h - functions shared between files of inputs/; agent_core.h has the functions for the shell. */
#ifndef TITAN_DAEMON_AGENT_INPUTS_INPUTS_H
#define TITAN_DAEMON_AGENT_INPUTS_INPUTS_H

#include "daemon/agent/core/agent_core_internal.h"

/* --- registration.c ----------------------------------------------------------------------------------------------- */
void agent_on_registration_ack(struct agent_core *c, const Titan__Internal__RegistrationAck *m, int64_t now,
                               struct agent_actions *out);
void agent_on_list_epochs(struct agent_core *c, uint64_t term, uint64_t restored_term, int64_t now,
                          struct agent_actions *out);

/* --- worker_watch.c ----------------------------------------------------------------------------------------------- */
void agent_revoke_tick(struct agent_core *c, int64_t now, struct agent_actions *out);
int64_t agent_revoke_deadline(const struct agent_core *c);
void agent_revoke_shift(struct agent_core *c, int64_t ms); /* extends the deadline of revoked workers by ms */

#endif
