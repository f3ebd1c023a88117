/* SPDX-License-Identifier: Apache-2.0 */
/* failover_messages.c - an epoch's agents: their addresses and keys, and messages to them and to the coordinator. */
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/failover/failover_internal.h"

struct peer *failover_peer_of(const struct failover_state *s, const char *node)
{
    for (size_t i = 0; i < s->n_peers; i++)
        if (!strcmp(s->peers[i].node, node))
            return &s->peers[i];
    return NULL;
}

const char *failover_address_of(const struct failover *f, const char *node)
{
    const job_record *r = f->job->record;
    const Titan__Internal__Member *m = failover_member_on(r->accepted, node);
    for (size_t i = r->n_before; i-- > 0 && !m;)
        m = failover_member_on(r->before[i], node);
    return m && *m->peer_address ? m->peer_address : NULL;
}

/* Every agent that may have promised or accepted an epoch has a quorum configuration in common with this agent. So they
 * have a key in common. */
void failover_keys(const struct failover *f, struct proof_keys *ret)
{
    const job_record *r = f->job->record;
    ret->n = 0;
    proof_add_epoch(ret, r->accepted);
    if (r->n_before)
        proof_add_epoch(ret, r->before[0]);
    for (size_t i = r->n_before; i-- > 0;)
        proof_add_epoch(ret, r->before[i]);
    titan_assert(ret->n <= PROOF_KEYS_MAX);
}

uint64_t failover_send(const struct failover *f, const char *node, peer_message *m)
{
    struct proof_keys keys;
    const char *address = failover_address_of(f, node);
    titan_assert(m->kind_case != TITAN__INTERNAL__PEER_MESSAGE__KIND__NOT_SET);
    if (!address)
        return 0;
    m->job_id = f->job->id;
    m->to = (char *)node;
    failover_keys(f, &keys);
    return agent_peer_send(f->core, address, m, &keys, f->out);
}

/* The epoch's key is never sent openly. A copy is sent for each key that the receiver may have, covered by that key. */
void failover_send_commit(const struct failover *f, const char *node)
{
    uint8_t covered[PROOF_KEYS_MAX * MAC_BYTES];
    struct proof_keys keys;
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    form_epoch form = *f->job->record->accepted;
    failover_keys(f, &keys);
    for (size_t i = 0; i < keys.n && form.key.len == MAC_BYTES; i++) {
        memcpy(covered + i * MAC_BYTES, form.key.data, MAC_BYTES);
        proof_cover(keys.key[i], &form, covered + i * MAC_BYTES);
        m.covered_key = (ProtobufCBinaryData){(i + 1) * MAC_BYTES, covered};
    }
    form.key = (ProtobufCBinaryData){0};
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT;
    m.commit = &form;
    (void)failover_send(f, node, &m);
}

void failover_report(const struct failover *f)
{
    titan_assert(failover_by_leader(f));
    MESSAGE(m, LEADER_EPOCH, leader_epoch, f->job->record->leader_epochs[f->job->record->n_leader_epochs - 1]);
    agent_send(f->core, &m, f->out);
}
