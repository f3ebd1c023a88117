/* SPDX-License-Identifier: Apache-2.0 */
/* held_forms.c - commands to form an epoch that wait for the coordinator's answer to a heartbeat. */
#include "base/cleanup.h"
#include "base/vec.h"
#include "daemon/agent/core/agent_core_internal.h"

void agent_form_hold(struct agent_core *c, const form_epoch *m, int64_t now)
{
    titan_assert(c->registered);
    c->next_heartbeat_at = c->stream_heartbeat_at = now;
    VEC_MUST_PUSH(c->held, c->n_held, c->cap_held, agent_message_copy(&m->base));
}

void agent_forms_drop(struct agent_core *c)
{
    for (size_t i = 0; i < c->n_held; i++)
        titan__internal__form_epoch__free_unpacked(c->held[i], NULL);
    c->n_held = 0;
}
