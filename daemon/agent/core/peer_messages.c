/* SPDX-License-Identifier: Apache-2.0 */
/* peer_messages.c - sends datagrams with proofs to other agents, and checks the proofs in other agents' datagrams
 * (daemon/common/proof.h). */
#include <string.h>

#include "base/cleanup.h"
#include "base/rng.h"
#include "daemon/agent/core/agent_core_internal.h"

uint64_t agent_draw(const struct agent_core *c, const char *name, uint64_t index)
{
    uint32_t words[4];
    rng_philox(rng_key(c->options.seed, name), index, 0, words);
    return (uint64_t)words[1] << 32 | words[0];
}

uint64_t agent_peer_send(struct agent_core *c, const char *to, peer_message *m, const struct proof_keys *keys,
                         struct agent_actions *out)
{
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    titan_assert(to && m->kind_case != TITAN__INTERNAL__PEER_MESSAGE__KIND__NOT_SET);
    if (m->id == 0) /* unique over all starts and nodes */
        m->id = agent_draw(c, "datagram", ++c->ids) | 1;
    m->from = c->node;
    m->term = c->seen.term;
    proof_make(m, keys, proofs);
    struct agent_action *a = agent_action_add(out, AGENT_PEER);
    a->text = agent_action_text(out, "%s", to);
    a->peer = agent_action_copy(out, &m->base);
    return m->id;
}

bool agent_proof_holds(const struct agent_core *c, const peer_message *m, const struct proof_keys *keys)
{
    size_t at;
    return keys->n == 0 || (!strcmp(m->to, c->node) && proof_find(m, keys, &at) >= 0);
}

void agent_unproved(struct agent_core *c, const char *from, struct agent_actions *out)
{
    c->counters.unproved++;
    if (!c->unproved_reported) /* logged once, because any process can send datagrams */
        agent_log(out, AGENT_WARN, "a datagram without the right proof, dropped", "from=%s", from);
    c->unproved_reported = true;
}
