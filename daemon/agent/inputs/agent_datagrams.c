/* SPDX-License-Identifier: Apache-2.0 */
/* agent_datagrams.c - handles other agents' datagrams by kind; only proved datagrams are accepted. */
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"
#include "daemon/agent/failover/failover.h"

void agent_core_peer(struct agent_core *c, const peer_message *m, const char *from, int64_t now,
                     struct agent_actions *out)
{
    struct titan_error why;
    if (!agent_fence_range(c, &m->base, &why)) {
        if (!c->range_reported)
            agent_log(out, AGENT_WARN, "invalid datagram dropped", "from=%s reason=\"%s\"", from, why.msg);
        c->range_reported = true;
        return;
    }
    if (!strcmp(m->from, c->node)) {
        c->counters.forged++;
        if (!c->forged_reported)
            agent_log(out, AGENT_WARN, "a datagram in the name of this node, dropped", "from=%s", from);
        c->forged_reported = true;
        return;
    }

    switch (m->kind_case) {
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PONG:
        agent_on_pong(c, m, from, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT_ANSWER:
        if (agent_proof_holds(c, m, &c->session_keys))
            agent_on_heartbeat_datagram(c, m);
        else
            agent_unproved(c, from, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PING:
        agent_on_ping(c, m, from, out);
        break;
    default:
        failover_on_datagram(c, m, from, now, out);
    }
}
