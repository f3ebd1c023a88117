/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/cluster/failure_detector.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/cluster/fencing.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/common/proof.h"

#define QUIET_MS 2000        /* how long a returned node must send good heartbeats before it gets work again */
#define QUIET_AGAIN_MS 10000 /* at the second return; doubled each further time */
#define QUIET_MAX_MS 60000
#define FLAPS_FORGOTTEN_MS 600000
#define IDLE_MISSES 3                /* promised heartbeats that may be missing */
#define HEARTBEATS_PER_S 4000        /* limit for all nodes together */
#define STREAM_HEARTBEATS_PER_S 2500 /* limit for nodes without heartbeats by datagram */

static uint32_t scaled(uint32_t ms, uint32_t interval, uint32_t heartbeat_ms)
{
    return (uint32_t)MIN((uint64_t)ms * interval / heartbeat_ms, (uint64_t)UINT32_MAX);
}

void detector_set_interval(struct core *c)
{
    const struct core_options *asked = &c->asked;
    struct core_options *o = &c->options;
    const uint32_t by_stream = c->connected - MIN(c->by_datagram, c->connected);
    uint32_t interval = MAX(c->connected * 1000 / HEARTBEATS_PER_S, by_stream * 1000 / STREAM_HEARTBEATS_PER_S);
    interval = MAX(interval, asked->heartbeat_ms);
    if (4 * interval <= 5 * o->heartbeat_ms && 3 * interval >= 2 * o->heartbeat_ms)
        return; /* close enough */
    o->heartbeat_ms = interval;
    o->idle_heartbeat_ms = MAX(asked->idle_heartbeat_ms, interval);
    o->suspect_ms = scaled(asked->suspect_ms, interval, asked->heartbeat_ms);
    o->confirm_ms = scaled(asked->confirm_ms, interval, asked->heartbeat_ms);
    o->node_timeout_ms = scaled(asked->node_timeout_ms, interval, asked->heartbeat_ms);
    o->reachable_ms = scaled(asked->reachable_ms, interval, asked->heartbeat_ms);
    o->away_ms = scaled(asked->away_ms, interval, asked->heartbeat_ms);
    for (struct noderec *n = c->nodes; n; n = n->next)
        if (n->session)
            send_registration_ack(c, n);
}

static bool peer_of(const struct core *c, const struct noderec *n, uint64_t probe_id, struct core_peer *ret)
{
    *ret = (struct core_peer){.port = n->peer_port, .keyed = n->keyed};
    if (n->keyed)
        proof_probe(n->key_had ? n->had : n->key, probe_id, ret->key);
    return n->peer_port && (!c->secret_set || n->keyed || n->unkeyed);
}

bool core_node_peer(const struct core *c, const char *node, uint64_t probe_id, struct core_peer *ret)
{
    const struct noderec *n = core_find_node(c, node);
    return n && peer_of(c, n, probe_id, ret);
}

void detector_probe_result(struct core *c, struct noderec *n, const Titan__Internal__ProbeResult *m)
{
    struct noderec *about = c->nodes;
    uint32_t i = 0;
    while (about && (!about->probe.at || about->probe.id != m->probe_id))
        about = about->next;
    if (!about)
        return; /* the node has been heard meanwhile */
    struct probe *p = &about->probe;
    while (i < p->asked && p->sessions[i] != n->session)
        i++;
    if (i == p->asked && !MUTANT(PROBE_UNASKED)) {
        fence_implausible(c, n, 0, batch_printf(c->out, "it was not asked for node %s, or has answered", about->name));
        return;
    }
    if (i < p->asked)
        p->sessions[i] = 0;
    if (m->reached)
        p->reached++;
    else
        p->denied++;
}

/* The time until which silence may be due to a standstill of this process; INT64_MIN = there was no standstill. */
static int64_t late_until(const struct core *c)
{
    const int64_t until = c->late_mono + c->options.node_timeout_ms;
    return c->late_mono && c->now.mono_ms < until ? until : INT64_MIN;
}

int64_t detector_expected(const struct noderec *n)
{
    return n->seen_mono + n->slack_ms;
}

/* The time at which the node is lost if nothing more is heard from it. */
static int64_t lost_at(const struct core *c, const struct noderec *n)
{
    const struct core_options *o = &c->options;
    const struct probe *p = &n->probe;
    const int64_t expected = detector_expected(n);
    /* An agent sends no heartbeats before its acknowledgement. It has as much time as an agent without a session. */
    int64_t alone = n->session && !n->unconfirmed ? o->node_timeout_ms : 2 * (int64_t)o->node_timeout_ms;
    const bool denied = p->denied > 0;
    bool kept = p->reached || (p->held && !denied) || late_until(c) > INT64_MIN;
    /* Silence of the other nodes that could probe this node is no evidence, because these nodes may be partitioned
     * too. */
    for (const struct noderec *other = c->nodes; other && n->peer_port && !denied && !kept; other = other->next)
        kept = other != n && other->session && other->peer_port && other->state == NODE_READY;
    if (kept)
        return expected + MAX(alone, (int64_t)o->reachable_ms);
    if (!n->session || !denied)
        return expected + alone;
    titan_assert(p->denied <= p->asked);
    return p->denied == p->asked ? p->at : MIN(p->at + o->confirm_ms + o->heartbeat_ms, expected + alone);
}

/* The time at which silence makes a node suspect: at once if its session is closed and no datagram has come since. */
static int64_t suspect_at(const struct core *c, const struct noderec *n)
{
    return detector_expected(n) + (n->session || n->seen_mono > n->stream_mono ? c->options.suspect_ms : 1);
}

static int64_t ask_again_at(const struct core *c, const struct noderec *n)
{
    return n->probe.at + c->options.confirm_ms + c->options.suspect_ms;
}

void detector_received(struct core *c, struct noderec *n)
{
    n->seen_mono = c->now.mono_ms;
    n->seen_wall = c->now.wall_ms;
    n->probe.at = 0;
}

void detector_shift(struct core *c, int64_t ms)
{
    for (struct noderec *n = c->nodes; n; n = n->next) {
        n->seen_mono += ms;
        n->stream_mono += ms;
        n->probe.at += n->probe.at ? ms : 0;
    }
}

bool detector_datagram(struct core *c, struct noderec *n, bool hears)
{
    /* A datagram proves that the agent lives, not that commands reach it. Without a stream message the datagram counts
     * only as long as workers may train without a coordinator. */
    const int64_t patience = (int64_t)MAX(c->options.leader_lease_ms, c->options.reachable_ms) + n->slack_ms;
    if (n->state != NODE_READY || c->now.mono_ms - n->stream_mono >= patience)
        return false;
    if (hears) {
        if (n->probe.at) /* the probe's deadline may be later than the node's next suspicion */
            c->due.node = 0;
        detector_received(c, n);
        n->datagram_mono = c->now.mono_ms;
    }
    return true;
}

bool detector_proved(struct core *c, struct noderec *n, const Titan__Internal__PeerMessage *m, struct proof_keys *keys)
{
    size_t at;
    keys->n = 0;
    if (!c->secret_set || n->unkeyed)
        return true;
    if (n->keyed)
        proof_add_key(keys, n->key);
    if (n->key_had)
        proof_add_key(keys, n->had);
    const int k = *m->to ? -1 : proof_find(m, keys, &at);
    if (k < 0) {
        c->counters.unproved++;
        return false;
    }
    if (k == 0 && n->keyed)
        detector_has_key(n);
    if (k > 0)
        memcpy(keys->key[0], keys->key[k], MAC_BYTES);
    keys->n = 1; /* this key proves the answer */
    return true;
}

void detector_has_key(struct noderec *n)
{
    memcpy(n->had, n->key, MAC_BYTES);
    n->key_had = n->keyed;
}

bool detector_by_datagram(const struct core *c, const struct noderec *n)
{
    return n->session && c->now.mono_ms - n->datagram_mono < c->options.suspect_ms + n->slack_ms;
}

void detector_promised(struct core *c, struct noderec *n, uint32_t next_ms)
{
    const int64_t heartbeat_ms = c->options.heartbeat_ms;
    const int64_t next = MIN(next_ms, node_idle_ms(c, n)); /* a longer promise counts as the longest */
    if (n->used > 0 && next_ms)
        return; /* its agent does not know its worker yet */
    n->slack_ms = n->session && next > heartbeat_ms ? IDLE_MISSES * (next - heartbeat_ms) : 0;
    titan_assert(!n->slack_ms || (n->session && n->used == 0));
}

/* The promise ends now, though its agent may not know yet. The node's silence counts from now + grace_ms. */
static void end_promise(struct core *c, struct noderec *n, int64_t grace_ms)
{
    n->slack_ms = n->called_mono = 0;
    n->seen_mono = MAX(n->seen_mono, c->now.mono_ms + grace_ms);
    n->probe.at = 0;
}

void detector_closed(struct core *c, struct noderec *n)
{
    if (!n->slack_ms)
        return;
    end_promise(c, n, 0);
    n->stream_mono = n->seen_mono;
}

bool detector_calm(const struct core *c)
{
    for (const struct noderec *n = c->nodes; n; n = n->next)
        if ((n->session && !n->slack_ms) || n->probe.at || n->called_mono)
            return false;
    return true;
}

void detector_round(struct core *c)
{
    c->by_datagram = 0;
}

const char *detector_look(struct core *c, struct noderec *n)
{
    const int64_t now = c->now.mono_ms;
    c->by_datagram += detector_by_datagram(c, n);
    if (n->state != NODE_READY)
        return NULL;
    /* Its agent learns of the worker when the store has the decision. From then on it sends heartbeats as often
     * as all others. The agent has heard nothing of us since its last heartbeat. This is no reason to end its stream.
     */
    if (!n->slack_ms || n->used == 0) {
        n->called_mono = 0;
    } else {
        n->called_mono = n->called_mono ? n->called_mono : now;
        if (now - c->now.held_ms >= n->called_mono) {
            end_promise(c, n, c->options.suspect_ms);
            n->answered_mono = MAX(n->answered_mono, now);
        }
    }
    if (n->steady_at && now >= detector_expected(n) + c->options.suspect_ms) {
        n->steady_at = now + n->quiet_ms; /* heartbeats are not steady yet, so the node waits longer */
    } else if (n->steady_at && now >= n->steady_at) {
        n->steady_at = 0;
        c->slots_changed = true;
        if (n->session)
            send_registration_ack(c, n); /* with the interval that its agent may promise */
    }
    if (now < suspect_at(c, n))
        return NULL;
    c->counters.silences += n->probe.at == 0;
    if (!n->probe.at || now >= ask_again_at(c, n)) {
        const bool held = n->probe.at && (n->probe.reached || (n->probe.held && !n->probe.denied));
        n->probe = (struct probe){.id = ++c->last_probe, .at = now, .held = held};
        struct core_peer peer;
        const bool provable = peer_of(c, n, n->probe.id, &peer); /* without a key nothing could prove the node's pong */
        /* The next nodes in the list that send heartbeats are asked. So different nodes probe different silent
         * nodes. */
        for (const struct noderec *o = n->next ? n->next : c->nodes;
             provable && o != n && n->probe.asked < PROBE_ASKED_MAX; o = o->next ? o->next : c->nodes) {
            if (!o->peer_port || o->state != NODE_READY || !o->session ||
                now - detector_expected(o) >= c->options.suspect_ms)
                continue;
            Titan__Internal__ProbeNode *m = batch_alloc(c->out, sizeof(*m));
            titan__internal__probe_node__init(m);
            m->probe_id = n->probe.id;
            m->node = batch_strdup(c->out, n->name);
            m->address = batch_printf(c->out, "%s:%u", n->address, n->peer_port);
            m->timeout_ms = c->options.confirm_ms;
            if (peer.keyed) {
                m->key.len = MAC_BYTES;
                m->key.data = batch_alloc(c->out, MAC_BYTES);
                memcpy(m->key.data, peer.key, MAC_BYTES);
            }
            batch_answer(c->out, o->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PROBE, m);
            n->probe.sessions[n->probe.asked++] = o->session;
        }
    }
    if (now < lost_at(c, n))
        return NULL;
    return batch_printf(c->out, "is lost: no sign of life for %lld ms", (long long)(now - n->seen_mono));
}

int64_t detector_deadline(const struct core *c)
{
    int64_t at = INT64_MAX, late = late_until(c);
    for (const struct noderec *n = c->nodes; n; n = n->next) {
        if (n->state != NODE_READY)
            continue;
        at = MIN(at, n->probe.at ? MIN(lost_at(c, n), ask_again_at(c, n)) : suspect_at(c, n));
        if (n->probe.at && late > INT64_MIN)
            at = MIN(at, late); /* from this time on other nodes may be lost */
        if (n->steady_at)
            at = MIN(at, n->steady_at);
    }
    return at;
}

void detector_lost(struct core *c, struct noderec *n)
{
    titan_assert(n->state == NODE_LOST && !n->session);
    c->counters.nodes_lost++;
    if (n->lost_mono && c->now.mono_ms - n->lost_mono > FLAPS_FORGOTTEN_MS)
        n->flaps = 0;
    n->lost_mono = c->now.mono_ms;
    n->probe.at = n->steady_at = 0;
}

/* A node returns. If its agent is the same as before, the network had failed. The node then gets no work before a time
 * of good heartbeats. A restarted agent gets work at once. */
void detector_returned(struct core *c, struct noderec *n, bool same_agent)
{
    if (!n->lost_mono || !same_agent)
        return;
    int64_t quiet = QUIET_MS;
    if (n->flaps > 0)
        quiet = MIN((int64_t)QUIET_AGAIN_MS << MIN(n->flaps - 1, 8u), (int64_t)QUIET_MAX_MS);
    n->flaps++;
    n->quiet_ms = quiet;
    n->steady_at = c->now.mono_ms + quiet;
}

void detector_answered(struct core *c, struct noderec *n)
{
    n->answered_mono = c->now.mono_ms;
}

void detector_streams(struct core *c, struct noderec *n)
{
    detector_received(c, n);
    n->stream_mono = c->now.mono_ms;
}
