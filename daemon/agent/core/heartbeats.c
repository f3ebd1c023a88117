/* SPDX-License-Identifier: Apache-2.0 */
/* heartbeats.c - heartbeats to the coordinator, and the time of its last answer.
 *
 * A node without workers is idle. Its heartbeats are rare: each promises when the next comes, and the coordinator
 * judges the node's silence by that promise. A command to start a worker ends the promise at once. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"

#define STREAM_HEARTBEATS 4 /* number of stream heartbeats in away_ms while datagrams are answered */
#define DEAF_MS 10000       /* silence of a coordinator that answered before, until the agent opens another session */

void agent_core_restore_contact(struct agent_core *c, int64_t at, int64_t epoch_until)
{
    titan_assert(!c->contact && c->sessions == 0);
    c->contact_at = at;
    c->contact = true;
    c->leader_lease_ms = epoch_until > at ? (uint32_t)MIN(epoch_until - at, (int64_t)UINT32_MAX) : 0;
}

int64_t agent_core_contact(const struct agent_core *c)
{
    return c->contact ? c->contact_at : INT64_MIN;
}

void agent_coordinator_received(struct agent_core *c, int64_t at)
{
    c->contact_at = c->contact ? MAX(c->contact_at, at) : at;
    c->contact = true;
    titan_assert(c->contact_at >= at);
}

/* Was there a recent answer, by stream or datagram? */
static bool coordinator_answers(const struct agent_core *c, int64_t now)
{
    return MAX(c->contact ? c->contact_at : INT64_MIN, c->datagram_at) > now - (int64_t)c->away_ms - c->contact_slack;
}

int64_t agent_away_at(const struct agent_core *c)
{
    titan_assert(c->contact);
    return c->contact_at + (int64_t)c->away_ms + c->contact_slack;
}

/* A coordinator that has answered a heartbeat of this session knows this node's state. */
static bool is_idle(const struct agent_core *c)
{
    return c->idle_ms > c->heartbeat_ms && c->registered && c->answered && !c->ending && !c->workers && c->n_held == 0;
}

/* Heartbeats also go out between two sessions, because an open takes long when many packets are lost. */
static bool sends_heartbeats(const struct agent_core *c, int64_t now)
{
    return (c->registered && !c->ending) || (c->coordinator && c->session_term && coordinator_answers(c, now));
}

/* A datagram shows that the node lives. A heartbeat on the stream shows that commands and reports get through. While
 * the coordinator answers the datagrams, few stream heartbeats suffice. */
void agent_heartbeat(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    const bool answered = c->datagram_at > now - 3 * (int64_t)c->heartbeat_ms;
    titan_assert(c->heartbeat_ms > 0);
    c->heartbeat++;
    c->heartbeats[c->heartbeat % HEARTBEATS_KEPT].number = c->heartbeat;
    c->heartbeats[c->heartbeat % HEARTBEATS_KEPT].at = now;
    c->promised_ms = is_idle(c) ? c->idle_ms : 0;
    c->heartbeats[c->heartbeat % HEARTBEATS_KEPT].promised_ms = c->promised_ms;
    if (c->coordinator) {
        Titan__Internal__PeerHeartbeat b = TITAN__INTERNAL__PEER_HEARTBEAT__INIT;
        peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
        struct proof_keys newest = {0};
        b.incarnation = c->options.incarnation;
        b.number = c->heartbeat;
        b.hears = coordinator_answers(c, now);
        b.next_ms = c->promised_ms;
        if (c->session_keys.n) {
            newest.n = 1;
            memcpy(newest.key[0], c->session_keys.key[0], MAC_BYTES);
        }
        m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT;
        m.heartbeat = &b;
        (void)agent_peer_send(c, c->coordinator, &m, &newest, out);
    }
    if (c->registered && !c->ending && (!answered || now >= c->stream_heartbeat_at)) {
        Titan__Internal__AgentHeartbeat h = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
        h.slots_used = agent_workers_alive(c);
        h.number = c->heartbeat;
        h.old_terms = c->counters.fenced_terms;
        h.old_epochs = c->counters.fenced_epochs;
        h.other_epochs = c->counters.refused;
        h.forged = c->counters.forged;
        h.out_of_range = c->counters.out_of_range;
        h.unproved = c->counters.unproved;
        h.next_ms = c->promised_ms;
        MESSAGE(m, HEARTBEAT, heartbeat, &h);
        agent_send(c, &m, out);
        c->stream_heartbeat_at = now + c->away_ms / STREAM_HEARTBEATS;
    }
    /* at least every heartbeat_ms, or as promised, even with a late timer */
    c->next_heartbeat_at =
        now + (c->promised_ms ? c->promised_ms - c->heartbeat_ms / 4 : MAX(c->heartbeat_ms * 3 / 4, 1u));
    titan_assert(c->next_heartbeat_at > now);
}

void agent_heartbeat_resume(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    if (!c->promised_ms || is_idle(c))
        return;
    c->stream_heartbeat_at = now;
    agent_heartbeat(c, now, out);
    titan_assert(c->promised_ms == 0);
}

/* The promise was about the session. The agent looks for another one, with heartbeats every heartbeat_ms. */
void agent_heartbeat_session_down(struct agent_core *c, int64_t now)
{
    if (c->promised_ms)
        c->next_heartbeat_at = MIN(c->next_heartbeat_at, now + (int64_t)c->heartbeat_ms);
    c->promised_ms = 0;
}

void agent_on_heartbeat_datagram(struct agent_core *c, const peer_message *m)
{
    const uint64_t number = m->heartbeat_answer->number;
    if (m->term == c->session_term && number && c->heartbeats[number % HEARTBEATS_KEPT].number == number)
        c->datagram_at = MAX(c->datagram_at, c->heartbeats[number % HEARTBEATS_KEPT].at);
}

bool agent_on_heartbeat_answer(struct agent_core *c, const Titan__Internal__HeartbeatAnswer *m)
{
    if (m->number == 0 || c->heartbeats[m->number % HEARTBEATS_KEPT].number != m->number)
        return false;
    c->answered = true;
    agent_coordinator_received(c, c->heartbeats[m->number % HEARTBEATS_KEPT].at);
    c->contact_slack = c->heartbeats[m->number % HEARTBEATS_KEPT].promised_ms;
    return true;
}

void agent_heartbeat_tick(struct agent_core *c, int64_t now, struct agent_actions *out)
{
    if (!sends_heartbeats(c, now) || now < c->next_heartbeat_at)
        return;
    agent_reports_expire(c, now);
    agent_heartbeat(c, now, out);
    /* The coordinator leaves this session's heartbeats without an answer. A new session may help. */
    if (c->registered && c->answered && !c->ending && now - c->contact_at >= DEAF_MS + (int64_t)c->contact_slack) {
        c->ending = true;
        agent_action_add(out, AGENT_END_SESSION)->text = "the coordinator does not answer heartbeats";
    }
}

int64_t agent_heartbeat_deadline(const struct agent_core *c)
{
    return sends_heartbeats(c, c->ticked_at) ? c->next_heartbeat_at : INT64_MAX;
}
