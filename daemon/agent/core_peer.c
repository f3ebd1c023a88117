/* core_peer.c - datagrams: pings of other agents, the probes a coordinator asks for, its answers to beats (core.h). */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/rng.h"
#include "daemon/agent/core_internal.h"

#define PINGS 3
#define PING_MS 20
#define PROBES_MAX 1024

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
    if (m->id == 0) /* unlike those of an earlier start and of other nodes */
        m->id = agent_draw(c, "datagram", ++c->ids) | 1;
    m->from = c->node;
    m->term = c->seen.term;
    proof_make(m, keys, proofs);
    struct agent_action *a = agent_action_add(out, AGENT_PEER);
    a->text = agent_action_text(out, "%s", to);
    a->peer = agent_action_copy(out, &m->base);
    return m->id;
}

void agent_probe_free(struct probe *p)
{
    free(p->node);
    free(p->address);
    free(p);
}

static void probe_end(struct agent_core *c, struct probe *p, bool reached, struct agent_actions *out)
{
    Titan__Internal__ProbeResult result = TITAN__INTERNAL__PROBE_RESULT__INIT;
    agent_message m = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    result.probe_id = p->probe_id;
    result.node = p->node;
    result.reached = reached;
    m.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROBE_RESULT;
    m.probe_result = &result;
    agent_send(c, &m, out);
    struct probe **at = &c->probes;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    agent_probe_free(p);
}

static void probe_ping(struct agent_core *c, struct probe *p, int64_t now, struct agent_actions *out)
{
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
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
    if (c->options.peer_port == 0) /* it has no socket to ask with */
        probe_end(c, p, false, out);
    else
        probe_ping(c, p, now, out);
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

/* Is it for this node, and proved under one of the keys, if there are any? */
static bool right(const struct agent_core *c, const peer_message *m, const struct proof_keys *keys)
{
    size_t at;
    return keys->n == 0 || (!strcmp(m->to, c->node) && proof_find(m, keys, &at) >= 0);
}

static void on_pong(struct agent_core *c, const peer_message *m, const char *from, struct agent_actions *out)
{
    for (struct probe *p = c->probes, *next; p; p = next) {
        next = p->next;
        if (p->id != m->id || strcmp(p->node, m->from) != 0) /* whoever has its address now is not it */
            continue;
        if (right(c, m, &p->keys))
            probe_end(c, p, true, out);
        else
            agent_unproved(c, from, out);
    }
}

/* Of another agent that the coordinator has asked to: it has a key for this once, out of that of our session. */
static void on_ping(struct agent_core *c, const peer_message *m, const char *from, struct agent_actions *out)
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
    if (k < 0 && (keys.n || !c->session_term)) { /* without a key only where the coordinator gives none */
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

void agent_unproved(struct agent_core *c, const char *from, struct agent_actions *out)
{
    c->counters.unproved++;
    if (!c->unproved_said) /* once: anybody can send datagrams */
        agent_say(out, AGENT_WARN, "a datagram without the right proof, dropped", "from=%s", from);
    c->unproved_said = true;
}

void agent_core_peer(struct agent_core *c, const peer_message *m, const char *from, int64_t now,
                     struct agent_actions *out)
{
    struct titan_error why;
    if (!agent_fence_range(c, &m->base, &why)) {
        if (!c->range_said)
            agent_say(out, AGENT_WARN, "a datagram that cannot be, dropped", "from=%s reason=\"%s\"", from, why.msg);
        c->range_said = true;
        return;
    }
    if (!strcmp(m->from, c->node)) {
        c->counters.imposters++;
        if (!c->imposter_said)
            agent_say(out, AGENT_WARN, "a datagram in the name of this node, dropped", "from=%s", from);
        c->imposter_said = true;
        return;
    }
    switch (m->kind_case) {
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PONG:
        on_pong(c, m, from, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_BEAT_ANSWER:
        if (right(c, m, &c->session_keys))
            agent_beat_answered(c, m);
        else
            agent_unproved(c, from, out);
        break;
    case TITAN__INTERNAL__PEER_MESSAGE__KIND_PING:
        on_ping(c, m, from, out);
        break;
    default:
        agent_delegate_peer(c, m, from, now, out);
    }
}
