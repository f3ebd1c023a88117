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

uint64_t agent_peer_send(struct agent_core *c, const char *to, peer_message *m, struct agent_actions *out)
{
    if (m->id == 0) /* unlike those of an earlier start and of other nodes */
        m->id = agent_draw(c, "datagram", ++c->ids) | 1;
    m->from = c->node;
    m->term = c->term;
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
    p->id = agent_peer_send(c, p->address, &m, out);
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

static void on_pong(struct agent_core *c, const peer_message *m, struct agent_actions *out)
{
    for (struct probe *p = c->probes, *next; p; p = next) {
        next = p->next;
        if (p->id == m->id && !strcmp(p->node, m->from)) /* whoever has its address now is not it */
            probe_end(c, p, true, out);
    }
}

void agent_core_peer(struct agent_core *c, const peer_message *m, const char *from, int64_t now,
                     struct agent_actions *out)
{
    if (!strcmp(m->from, c->node)) {
        c->counters.imposters++;
        if (!c->imposter_said)
            agent_say(out, AGENT_WARN, "a datagram in the name of this node, dropped", "from=%s", from);
        c->imposter_said = true;
        return;
    }
    if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_PONG) {
        on_pong(c, m, out);
    } else if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_BEAT_ANSWER) {
        agent_beat_answered(c, m);
    } else if (m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_PING && m->job_id == 0) {
        peer_message pong = TITAN__INTERNAL__PEER_MESSAGE__INIT;
        pong.id = m->id;
        pong.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PONG;
        pong.pong = true;
        (void)agent_peer_send(c, from, &pong, out);
    } else {
        agent_delegate_peer(c, m, from, now, out);
    }
}
