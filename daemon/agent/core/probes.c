/* SPDX-License-Identifier: Apache-2.0 */
/* probes.c - probes: the coordinator has this node ping another, and other agents ping this node. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"

#define PINGS 3
#define PING_MS 20
#define PROBES_MAX 1024

static void probe_free(struct probe *p)
{
    free(p->node);
    free(p->address);
    free(p);
}

static void probe_end(struct agent_core *c, struct probe *p, bool reached, struct agent_actions *out)
{
    Titan__Internal__ProbeResult result = TITAN__INTERNAL__PROBE_RESULT__INIT;
    result.probe_id = p->probe_id;
    result.node = p->node;
    result.reached = reached;
    MESSAGE(m, PROBE_RESULT, probe_result, &result);
    agent_send(c, &m, out);
    struct probe **at = &c->probes;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    probe_free(p);
}

static void probe_ping(struct agent_core *c, struct probe *p, int64_t now, struct agent_actions *out)
{
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    titan_assert(p->sent < PINGS);
    m.id = p->id;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PING;
    m.ping = true;
    m.to = p->node;
    m.number = p->probe_id;
    p->id = agent_peer_send(c, p->address, &m, &p->keys, out);
    p->sent++;
    p->next_at = now + PING_MS;
}

void agent_probe_start(struct agent_core *c, const Titan__Internal__ProbeNode *m, int64_t now,
                       struct agent_actions *out)
{
    size_t n = 0;
    for (const struct probe *p = c->probes; p; p = p->next) {
        if (p->probe_id == m->probe_id)
            return;
        n++;
    }
    struct probe *p = n < PROBES_MAX ? calloc(1, sizeof(*p)) : NULL;
    if (!p)
        return;
    p->probe_id = m->probe_id;
    p->node = strdup(m->node);
    p->address = strdup(m->address);
    titan_assert(p->node && p->address);
    p->until = now + MAX(m->timeout_ms, 1u);
    if (m->key.len == MAC_BYTES)
        proof_add_key(&p->keys, m->key.data);
    p->next = c->probes;
    c->probes = p;
    if (c->options.peer_port == 0) /* there is no socket for pings */
        probe_end(c, p, false, out);
    else
        probe_ping(c, p, now, out);
}

void agent_probes_drop(struct agent_core *c)
{
    for (struct probe *p = c->probes, *next; p; p = next) {
        next = p->next;
        probe_free(p);
    }
    c->probes = NULL;
}

void agent_probes_tick(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    for (struct probe *p = c->probes, *next; p; p = next) {
        next = p->next;
        if (now >= p->until)
            probe_end(c, p, false, out);
        else if (p->sent < PINGS && now >= p->next_at)
            probe_ping(c, p, now, out);
    }
}

int64_t agent_probes_deadline(const struct agent_core *c)
{
    int64_t due = INT64_MAX;
    for (const struct probe *p = c->probes; p; p = p->next)
        due = MIN(due, p->sent < PINGS ? MIN(p->next_at, p->until) : p->until);
    return due;
}

void agent_on_pong(struct agent_core *c, const peer_message *m, const char *from, struct agent_actions *out)
{
    for (struct probe *p = c->probes, *next; p; p = next) {
        next = p->next;
        /* the node's address may now belong to another node */
        if (p->id != m->id || strcmp(p->node, m->from) != 0)
            continue;
        if (agent_proof_holds(c, m, &p->keys))
            probe_end(c, p, true, out);
        else
            agent_unproved(c, from, out);
    }
}

/* Another agent pings at the coordinator's request. The coordinator gave that agent a key for the ping, derived from
 * this session's key. */
void agent_on_ping(struct agent_core *c, const peer_message *m, const char *from, struct agent_actions *out)
{
    peer_message pong = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    struct proof_keys keys = {0};
    size_t at;
    for (size_t i = 0; i < c->session_keys.n; i++) {
        uint8_t key[MAC_BYTES];
        proof_probe(c->session_keys.key[i], m->number, key);
        proof_add_key(&keys, key);
    }
    const int k = keys.n && !strcmp(m->to, c->node) ? proof_find(m, &keys, &at) : -1;
    if (k < 0 && (keys.n || !c->session_term)) { /* a missing key is fine only if the coordinator gives no keys */
        agent_unproved(c, from, out);
        return;
    }
    if (k > 0)
        memcpy(keys.key[0], keys.key[k], MAC_BYTES);
    keys.n = MIN(keys.n, (size_t)1);
    pong.id = m->id;
    pong.number = m->number;
    pong.to = m->from;
    pong.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PONG;
    pong.pong = true;
    (void)agent_peer_send(c, from, &pong, &keys, out);
}
