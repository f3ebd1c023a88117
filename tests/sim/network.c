/* SPDX-License-Identifier: Apache-2.0 */
/* Streams between agents and the coordinator keep their order and break; datagrams between agents are lost, doubled
 * and overtake each other; a host's own sockets only take their time. A cut holds what is on a stream until it heals or
 * a time-out ends it. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define RETRANSMIT (200 * MS)

bool net_reaches(int from, int to)
{
    bool up = (from == SIM_COORD || S->hosts[from].up) && (to == SIM_COORD || S->hosts[to].up);
    return from == to || (up && (S->cuts == 0 || S->links[from][to].cuts == 0));
}

static usec delay(int from, int to, bool stream)
{
    const struct link *l = &S->links[from][to];
    usec d = chance(CHANCE_NET, 10) ? between(CHANCE_NET, 2 * MS, 60 * MS) : between(CHANCE_NET, 50, 2 * MS);
    if (S->now < l->slow_until)
        d += between(CHANCE_NET, l->extra / 2, l->extra);
    if (stream && S->now < l->lossy_until && chance(CHANCE_NET, l->loss))
        d += RETRANSMIT;
    return d;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static struct stream *stream_of(uint64_t session)
{
    CHECK("sim", session < SIM_SESSIONS, "more sessions than the simulator keeps");
    return &S->streams[session];
}

/* Is this still the process that opened its end? */
static bool agent_end_open(const struct stream *s)
{
    return s->agent_open && S->hosts[s->host].alive && S->hosts[s->host].life == s->agent_life;
}
static bool coord_end_open(const struct stream *s)
{
    return s->coord_open && !s->dropped && S->coord.core && S->coord.life == s->coord_life;
}

static void held_free(struct stream *s)
{
    for (int d = 0; d < 2; d++) {
        for (struct held *h = d ? s->down : s->up, *next; h; h = next) {
            next = h->next;
            bytes_drop(h->bytes);
            free(h);
        }
    }
    s->up = s->down = NULL;
    s->up_tail = &s->up;
    s->down_tail = &s->down;
}

/* What was under way when a cut healed comes behind what had been stuck in it. */
static bool comes_later(const struct ev *e, usec free_at)
{
    if (S->now >= free_at)
        return false;
    struct ev *later = at(free_at, e->handler, e->a, e->b);
    later->bytes = bytes_keep(e->bytes);
    later->len = e->len;
    return true;
}

static void hold(struct held ***tail, const struct ev *e)
{
    struct held *h = calloc(1, sizeof(*h));
    titan_assert(h);
    h->bytes = bytes_keep(e->bytes);
    h->len = e->len;
    **tail = h;
    *tail = &h->next;
}

static void remember(int kind, int host, const struct ev *e)
{
    uint32_t i = S->n_old[kind]++ % 16;
    bytes_drop(S->old[kind][i].bytes);
    S->old[kind][i].bytes = bytes_keep(e->bytes);
    S->old[kind][i].len = e->len;
    S->old[kind][i].host = host;
}

static void on_up(const struct ev *e)
{
    struct stream *s = stream_of(e->b);
    if (!coord_end_open(s) || comes_later(e, s->up_free))
        return;
    if (!net_reaches(s->host, SIM_COORD) || s->up) {
        hold(&s->up_tail, e);
        return;
    }
    if (draw(CHANCE_NET) % 8 == 0)
        remember(OLD_UP, s->host, e);
    S->hosts[s->host].heard_at = S->now;
    const struct core *c = S->coord.core;
    const uint64_t refused = core_counters(c)->out_of_range;
    (void)coord_hears(e->b, e->bytes, e->len);
    CHECK("I12", S->coord.core != c || core_counters(c)->out_of_range == refused, "%s has passed on what cannot be",
          S->hosts[s->host].name);
}
static const struct handler up = {"up", on_up, TARGET_COORD};

static void on_down(const struct ev *e)
{
    struct stream *s = stream_of(e->b);
    if (!agent_end_open(s) || S->hosts[s->host].session != e->b || comes_later(e, s->down_free))
        return;
    if (!net_reaches(SIM_COORD, s->host) || s->down) {
        hold(&s->down_tail, e);
        return;
    }
    coord_message *m = titan__internal__coordinator_message__unpack(&event_memory, e->len, e->bytes);
    titan_assert(m);
    if (draw(CHANCE_NET) % 4 == 0)
        remember(OLD_DOWN, s->host, e);
    agent_hears(s->host, m);
}
static const struct handler down = {"down", on_down, TARGET_AGENT};

static void on_closed_at_coord(const struct ev *e)
{
    struct stream *s = stream_of(e->b);
    if (!s->coord_open || !S->coord.core || S->coord.life != s->coord_life)
        return;
    s->coord_open = false;
    coord_session_closed(e->b);
}
static const struct handler closed_at_coord = {"closed at coordinator", on_closed_at_coord, TARGET_COORD};

static void on_closed_at_agent(const struct ev *e)
{
    struct stream *s = stream_of(e->b);
    struct host *h = &S->hosts[s->host];
    if (!agent_end_open(s))
        return;
    s->agent_open = false;
    held_free(s);
    if (h->session != e->b)
        return;
    h->session = 0;
    agent_session(s->host, false, true);
}
static const struct handler closed_at_agent = {"closed at agent", on_closed_at_agent, TARGET_AGENT};

static void close_both(uint64_t session)
{
    struct stream *s = stream_of(session);
    (void)at(S->now + between(CHANCE_NET, 0, 2 * MS), &closed_at_coord, SIM_COORD, session);
    (void)at(S->now + between(CHANCE_NET, 0, 2 * MS), &closed_at_agent, (uint64_t)s->host, session);
}

static void on_keepalive(const struct ev *e)
{
    const struct stream *s = stream_of(e->b);
    if (!net_reaches(s->host, SIM_COORD) || !net_reaches(SIM_COORD, s->host))
        close_both(e->b);
}
static const struct handler keepalive = {"keepalive", on_keepalive, TARGET_WORLD};

static void on_connected(const struct ev *e)
{
    int host = (int)e->a;
    struct host *h = &S->hosts[host];
    if (!h->alive || h->life != e->b)
        return;
    h->connecting = false;
    if (!S->coord.core || !net_reaches(host, SIM_COORD) || !net_reaches(SIM_COORD, host)) {
        agent_session(host, false, false);
        return;
    }
    uint64_t session = S->next_session++;
    struct stream *s = stream_of(session);
    *s = (struct stream){.host = host,
                         .agent_life = h->life,
                         .coord_life = S->coord.life,
                         .agent_open = true,
                         .coord_open = true,
                         .up_last = S->now,
                         .down_last = S->now};
    held_free(s);
    h->session = session;
    totals->sessions++;
    agent_session(host, true, false);
}
static const struct handler connected = {"connected", on_connected, TARGET_AGENT};

void net_connect(int host)
{
    struct host *h = &S->hosts[host];
    if (h->connecting || h->session)
        return;
    h->connecting = true;
    bool there = net_reaches(host, SIM_COORD) && net_reaches(SIM_COORD, host);
    usec takes = there ? 2 * delay(host, SIM_COORD, true) : between(CHANCE_NET, 200 * MS, 1000 * MS);
    (void)at(S->now + takes, &connected, (uint64_t)host, h->life);
}

void net_up(int host, const ProtobufCMessage *m)
{
    uint64_t session = S->hosts[host].session;
    if (!session)
        return;
    struct stream *s = stream_of(session);
    usec when = S->now + delay(host, SIM_COORD, true);
    s->up_last = when > s->up_last ? when : s->up_last;
    struct ev *e = at(s->up_last, &up, SIM_COORD, session);
    e->bytes = packed(m, &e->len);
}

void net_down(uint64_t session, const ProtobufCMessage *m)
{
    uint32_t len;
    void *bytes = packed(m, &len);
    net_down_packed(session, bytes, len);
    bytes_drop(bytes);
}

void net_down_packed(uint64_t session, void *bytes, uint32_t len)
{
    struct stream *s = stream_of(session);
    if (!coord_end_open(s))
        return;
    usec when = S->now + delay(SIM_COORD, s->host, true);
    s->down_last = when > s->down_last ? when : s->down_last;
    struct ev *e = at(s->down_last, &down, (uint64_t)s->host, session);
    e->bytes = bytes_keep(bytes);
    e->len = len;
}

void net_drop(uint64_t session)
{
    struct stream *s = stream_of(session);
    if (!coord_end_open(s))
        return;
    s->dropped = true;
    (void)at(S->now + between(CHANCE_NET, 0, MS), &closed_at_coord, SIM_COORD, session);
    if (!s->agent_open)
        return; /* a stranger's */
    if (net_reaches(SIM_COORD, s->host))
        (void)at(s->down_last + delay(SIM_COORD, s->host, true), &closed_at_agent, (uint64_t)s->host, session);
    else
        (void)at(S->now + between(CHANCE_NET, SEC, 5 * SEC), &closed_at_agent, (uint64_t)s->host, session);
}

void net_break(int host)
{
    if (S->hosts[host].session)
        close_both(S->hosts[host].session);
}

void net_end(int host)
{
    uint64_t session = S->hosts[host].session;
    if (!session)
        return;
    (void)at(S->now, &closed_at_agent, (uint64_t)host, session);
    if (net_reaches(host, SIM_COORD))
        (void)at(stream_of(session)->up_last + between(CHANCE_NET, 0, 2 * MS), &closed_at_coord, SIM_COORD, session);
}

void net_agent_gone(int host, bool power)
{
    struct host *h = &S->hosts[host];
    uint64_t session = h->session;
    h->session = 0;
    h->connecting = false;
    if (!session)
        return;
    stream_of(session)->agent_open = false;
    if (!power && net_reaches(host, SIM_COORD))
        (void)at(stream_of(session)->up_last + between(CHANCE_NET, 0, 2 * MS), &closed_at_coord, SIM_COORD, session);
}

void net_coord_gone(void)
{
    for (int h = 0; h < S->plan->nodes; h++) {
        uint64_t session = S->hosts[h].session;
        if (session)
            (void)at(S->now + (net_reaches(SIM_COORD, h) ? between(CHANCE_NET, 0, 5 * MS)
                                                         : between(CHANCE_NET, SEC, 5 * SEC)),
                     &closed_at_agent, (uint64_t)h, session);
    }
}

/* --- cuts --------------------------------------------------------------------------------------------------------- */

void net_cut(int from, int to)
{
    S->links[from][to].cuts++;
    S->cuts++;
    int host = from == SIM_COORD ? to : from;
    if ((from != SIM_COORD && to != SIM_COORD) || host >= S->plan->nodes || !S->hosts[host].session)
        return;
    (void)at(S->now + between(CHANCE_NET, SEC, 5 * SEC), &keepalive, (uint64_t)host, S->hosts[host].session);
}

static void release(struct held **first, struct held ***tail, usec *last, usec *free_at, const struct handler *h,
                    uint64_t a, uint64_t session)
{
    if (!*first)
        return;
    *last = S->now + RETRANSMIT > *last ? S->now + RETRANSMIT : *last;
    *free_at = *last;
    for (struct held *k = *first, *next; k; k = next) {
        next = k->next;
        struct ev *e = at(*last, h, a, session);
        e->bytes = k->bytes;
        e->len = k->len;
        free(k);
    }
    *first = NULL;
    *tail = first;
}

void net_heal(int from, int to)
{
    struct link *l = &S->links[from][to];
    l->cuts--;
    S->cuts--;
    uint64_t session = from == SIM_COORD ? S->hosts[to].session : to == SIM_COORD ? S->hosts[from].session : 0;
    if (l->cuts == 0 && session) {
        struct stream *s = stream_of(session);
        if (to == SIM_COORD)
            release(&s->up, &s->up_tail, &s->up_last, &s->up_free, &up, SIM_COORD, session);
        else
            release(&s->down, &s->down_tail, &s->down_last, &s->down_free, &down, (uint64_t)s->host, session);
    }
}

/* --- datagrams ---------------------------------------------------------------------------------------------------- */

static void on_peer(const struct ev *e)
{
    int to = (int)e->a, from = (int)e->b;
    if (S->hosts[to].alive && net_reaches(from, to))
        agent_hears_peer(to, from, e->bytes, e->len);
}
static const struct handler peer = {"peer", on_peer, TARGET_AGENT};

static void on_heartbeat(const struct ev *e)
{
    if (S->coord.core && net_reaches((int)e->b, SIM_COORD))
        coord_hears_heartbeat((int)e->b, e->bytes, e->len);
}
static const struct handler heartbeat = {"beat", on_heartbeat, TARGET_COORD};

/* An attacker that hears everything and has no key says that a proposal is decided, in the acting leader's name. */
static void forge(int from, int to, const Titan__Internal__PeerMessage *m)
{
    unsigned char anything[64] = {0};
    if (m->kind_case != TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE || !chance(CHANCE_FORGER, 50))
        return;
    Titan__Internal__PeerMessage forged = *m;
    Titan__Internal__FormEpoch commit = *m->propose;
    commit.source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    forged.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT;
    forged.commit = &commit;
    forged.covered_key = (ProtobufCBinaryData){sizeof(anything), anything};
    struct ev *e = at(S->now + between(CHANCE_FORGER, MS, 20 * MS), &peer, (uint64_t)to, (uint64_t)from);
    e->bytes = packed(&forged.base, &e->len);
    totals->forged++;
}

void net_peer(int from, int to, const ProtobufCMessage *m)
{
    const struct link *l = &S->links[from][to];
    totals->datagrams++;
    forge(from, to, (const Titan__Internal__PeerMessage *)m);
    byzantine_peer(from, to, (const Titan__Internal__PeerMessage *)m);
    if (!net_reaches(from, to) || chance(CHANCE_NET, S->now < l->lossy_until ? l->loss : 1))
        return;
    int copies = S->now < l->doubles_until && chance(CHANCE_NET, 50) ? 2 : 1;
    for (int i = 0; i < copies; i++) {
        const struct handler *h = to == SIM_COORD ? &heartbeat : &peer;
        struct ev *e = at(S->now + delay(from, to, false), h, (uint64_t)to, (uint64_t)from);
        e->bytes = packed(m, &e->len);
    }
}

/* --- an agent and its workers ------------------------------------------------------------------------------------- */

static void on_local_up(const struct ev *e)
{
    const struct proc *p = &S->procs[e->b >> 32];
    const struct host *h = &S->hosts[e->a];
    if (!h->alive || h->life != (uint32_t)e->b)
        return;
    worker_message *m = titan__internal__worker_to_agent__unpack(&event_memory, e->len, e->bytes);
    titan_assert(m);
    agent_hears_worker((int)e->a, p->id, m);
}
static const struct handler local_up = {"worker says", on_local_up, TARGET_AGENT};

void net_local_up(uint64_t worker, const ProtobufCMessage *m)
{
    struct proc *p = &S->procs[worker];
    const struct host *h = &S->hosts[p->host];
    if (!p->connected)
        return;
    usec when = S->now + between(CHANCE_NET, 10, 200);
    p->up_last = when > p->up_last ? when : p->up_last;
    struct ev *e = at(p->up_last, &local_up, (uint64_t)p->host, worker << 32 | h->life);
    e->bytes = packed(m, &e->len);
}

static void on_local_down(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    if (!p->alive || !p->connected || S->hosts[p->host].life != e->b)
        return;
    worker_command *m = titan__internal__agent_to_worker__unpack(&event_memory, e->len, e->bytes);
    titan_assert(m);
    if (m->kind_case != TITAN__INTERNAL__AGENT_TO_WORKER__KIND_LEASE && draw(CHANCE_NET) % 3 == 0)
        remember(OLD_WORKER, (int)p->id, e);
    worker_hears(p, m);
}
static const struct handler local_down = {"worker hears", on_local_down, TARGET_WORKER};

void net_local_down(uint64_t worker, const ProtobufCMessage *m)
{
    struct proc *p = &S->procs[worker];
    usec when = S->now + between(CHANCE_NET, 10, 200);
    p->down_last = when > p->down_last ? when : p->down_last;
    struct ev *e = at(p->down_last, &local_down, worker, S->hosts[p->host].life);
    e->bytes = packed(m, &e->len);
}

/* --- old messages ------------------------------------------------------------------------------------------------- */

static struct ev *again(int kind, int host)
{
    uint64_t session = kind == OLD_WORKER ? 0 : S->hosts[host].session;
    if (kind == OLD_WORKER) {
        const struct proc *p = &S->procs[host];
        return p->alive && p->connected ? at(p->down_last, &local_down, p->id, S->hosts[p->host].life) : NULL;
    }
    if (!session)
        return NULL;
    const struct stream *s = stream_of(session);
    return kind == OLD_UP ? at(s->up_last, &up, SIM_COORD, session) : at(s->down_last, &down, (uint64_t)host, session);
}

void net_replay(int kind, uint32_t pick)
{
    uint32_t n = S->n_old[kind] < 16 ? S->n_old[kind] : 16;
    if (!n)
        return;
    typeof(&S->old[0][0]) old = &S->old[kind][pick % n];
    struct ev *e = again(kind, old->host);
    if (!e)
        return;
    e->bytes = bytes_keep(old->bytes);
    e->len = old->len;
}

void net_reset(void)
{
    for (uint64_t i = 1; i < S->next_session && i < SIM_SESSIONS; i++)
        held_free(&S->streams[i]);
    for (int d = 0; d < OLD_KINDS; d++)
        for (int i = 0; i < 16; i++)
            bytes_drop(S->old[d][i].bytes);
}
