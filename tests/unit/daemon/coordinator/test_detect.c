/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes are taken for lost, when, and which are not; with the numbers of docs/membership.md for a LAN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "support/core_bench.h"
#include "daemon/common/proof.h"

#define NODES 5

struct cluster {
    struct bench b;
    bool silent[NODES + 1]; /* by session: node 'a' has session 1 */
    int deaf[NODES + 1];    /* a node that is asked for another one answers: 0 nothing, 1 reached, -1 not reached */
    int64_t beaten[NODES + 1], input; /* input: when the core had its last one */
    uint32_t promises[NODES + 1];     /* ms between a node's heartbeats, which each names; 0 = 50 ms, not named */
    unsigned probes;
    char seen[4096]; /* types of the events that were told, each behind a space */
};

static bool proving; /* agents of this version, and a coordinator that has keys */

static titan_status join(struct cluster *c, uint64_t session, char name, uint64_t incarnation, uint32_t slots)
{
    char node[2] = {name, '\0'}, address[16];
    (void)snprintf(address, sizeof(address), "10.0.0.%d", name - 'a' + 1);
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = node;
    body.address = address;
    body.slots = slots;
    body.device = (char *)"cpu";
    body.incarnation = incarnation;
    body.peer_port = 7000;
    body.proves = proving;
    MESSAGE(m, REGISTRATION, registration, body);
    return say(&c->b, session, &m);
}

static void open_cluster_with(struct cluster *c, int nodes, uint32_t slots, uint32_t lease_ms)
{
    memset(c, 0, sizeof(*c));
    static const uint8_t secret[MAC_BYTES] = {9};
    struct core_options options = {
        .term = 1, .seed = 1, .jobs_dir = "/jobs", .secret = proving ? secret : NULL, .leader_lease_ms = lease_ms};
    c->b.now = 1000;
    batch_init(&c->b.out);
    assert_int_equal(core_new(&options, &c->b.core, NULL), TITAN_OK);
    for (int i = 1; i <= nodes; i++)
        assert_int_equal(join(c, (uint64_t)i, (char)('a' + i - 1), 1, slots), TITAN_OK);
    for (int i = nodes + 1; i <= NODES; i++)
        c->silent[i] = true;
}

static void open_cluster(struct cluster *c, int nodes, uint32_t slots)
{
    open_cluster_with(c, nodes, slots, 0);
}

/* What came out: events are noted, probes answered by those that were asked. */
static void look(struct cluster *c)
{
    uint64_t ids[16], sessions[16];
    int about[16], n = 0;
    for (const struct change *k = c->b.out.changes; k; k = k->next)
        if (k->has_event && strlen(c->seen) + strlen(k->event.type) + 2 < sizeof(c->seen))
            (void)strcat(strcat(c->seen, " "), k->event.type);
    for (const struct batch_message *m = c->b.out.answers; m && n < 16; m = m->next) {
        if (m->message->kind_case != TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PROBE)
            continue;
        ids[n] = m->message->probe->probe_id;
        about[n] = m->message->probe->node[0] - 'a' + 1;
        sessions[n++] = m->session;
        c->probes++;
        assert_int_equal(m->message->probe->timeout_ms, 150);
    }
    for (int i = 0; i < n; i++) {
        Titan__Internal__ProbeResult body = TITAN__INTERNAL__PROBE_RESULT__INIT;
        body.probe_id = ids[i];
        body.node = (char[2]){(char)('a' + about[i] - 1), 0};
        body.reached = c->deaf[about[i]] > 0;
        MESSAGE(m, PROBE_RESULT, probe_result, body);
        if (c->deaf[about[i]] && !c->silent[sessions[i]])
            assert_int_equal(say(&c->b, sessions[i], &m), TITAN_OK);
    }
}

/* A heartbeat that says when the next one comes; 0 = as agents of older versions, and all that have workers. */
static void promise(struct cluster *c, uint64_t session, uint32_t next_ms)
{
    Titan__Internal__AgentHeartbeat body = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    body.next_ms = next_ms;
    MESSAGE(m, HEARTBEAT, heartbeat, body);
    assert_int_equal(say(&c->b, session, &m), TITAN_OK);
    look(c);
}

/* Let time pass until an event of that type is told, with ticks as seldom as they may be. Returns how long it took; -1:
 * it was not within ms. */
static int64_t until(struct cluster *c, const char *type, int64_t ms)
{
    int64_t begin = c->b.now;
    c->seen[0] = '\0';
    for (; c->b.now - begin <= ms; c->b.now += 10) {
        for (int i = 1; i <= NODES; i++) {
            if (c->silent[i] || c->b.now - c->beaten[i] < (c->promises[i] ? c->promises[i] : 50))
                continue;
            c->beaten[i] = c->input = c->b.now;
            promise(c, (uint64_t)i, c->promises[i]);
        }
        if (c->b.now >= core_deadline(c->b.core) || c->b.now - c->input >= core_tick_ms(c->b.core)) {
            c->input = c->b.now;
            batch_free(&c->b.out);
            core_tick(c->b.core, at(&c->b), &c->b.out);
            (void)core_deadline(c->b.core); /* as the shell that sets a timer for it */
            look(c);
        }
        if (strstr(c->seen, type))
            return c->b.now - begin;
    }
    return -1;
}

static void test_heartbeats_are_answered(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 1, 1);
    assert_int_equal(c.b.out.answers->message->kind_case, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK);
    assert_int_equal(c.b.out.answers->message->ack->heartbeat_ms, 50);
    Titan__Internal__AgentHeartbeat body = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    body.number = 77;
    MESSAGE(m, HEARTBEAT, heartbeat, body);
    assert_int_equal(say(&c.b, 1, &m), TITAN_OK);
    assert_null(c.b.out.messages); /* nothing of it waits for the store */
    assert_null(c.b.out.changes);
    assert_int_equal(c.b.out.answers->session, 1);
    assert_int_equal(c.b.out.answers->message->heartbeat_answer->number, 77);
    close_bench(&c.b);
}

static uint32_t next_datagram_ms; /* what the next datagrams promise */

static bool datagram(struct cluster *c, const char *node, uint64_t incarnation, uint64_t term, bool hears)
{
    Titan__Internal__PeerHeartbeat body = TITAN__INTERNAL__PEER_HEARTBEAT__INIT;
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    body.incarnation = incarnation;
    body.hears = hears;
    body.next_ms = next_datagram_ms;
    m.from = (char *)node;
    m.term = term;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT;
    m.heartbeat = &body;
    c->input = c->b.now;
    struct proof_keys keys;
    return core_heartbeat(c->b.core, &m, at(&c->b), &keys);
}

/* Until it is lost, at most ms; its datagrams come meanwhile. */
static int64_t until_lost(struct cluster *c, const char *node, uint64_t incarnation, uint64_t term, bool hears,
                          int64_t ms)
{
    const int64_t begin = c->b.now;
    while (c->b.now < begin + ms) {
        (void)datagram(c, node, incarnation, term, hears);
        if (until(c, "node.lost", 30) >= 0)
            return c->b.now - begin;
    }
    return -1;
}

/* Node a's stream stands still; no node can say anything about it. */
static void test_datagrams_are_signs_of_life(void **state)
{
    (void)state;
    const struct {
        const char *node;
        uint64_t incarnation, term;
        bool hears, closed;
        int64_t lo, hi; /* when it is lost; 0 = it is not */
    } cases[] = {
        {"a", 1, 1, true, false, 0, 0},        {"a", 1, 1, true, true, 0, 0},
        {"a", 1, 1, false, false, 4900, 5200}, /* it hears nothing: what is told to it is lost */
        {"a", 2, 1, true, false, 4900, 5200},  /* another start of it */
        {"a", 1, 2, true, false, 4900, 5200},  /* of another coordinator */
        {"x", 1, 1, true, false, 4900, 5200},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cluster c;
        open_cluster_with(&c, 3, 1, 60000);
        assert_int_equal(until(&c, "node.lost", 500), -1);
        c.silent[1] = true;
        if (cases[i].closed) {
            batch_free(&c.b.out);
            core_session_closed(c.b.core, 1, at(&c.b), &c.b.out);
        }
        const int64_t lost = until_lost(&c, cases[i].node, cases[i].incarnation, cases[i].term, cases[i].hears, 20000);
        if (cases[i].hi)
            assert_in_range(lost, cases[i].lo, cases[i].hi);
        else
            assert_int_equal(lost, -1);
        const bool known = strcmp(cases[i].node, "x") != 0 && cases[i].incarnation == 1 && cases[i].term == 1;
        assert_int_equal(datagram(&c, cases[i].node, cases[i].incarnation, cases[i].term, true), known && lost < 0);
        close_bench(&c.b);
    }
}

/* Without a stream it can be given no commands: it is kept for as long as its workers could train without any. */
static void test_datagrams_are_not_for_ever(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster_with(&c, 3, 1, 30000);
    assert_int_equal(until(&c, "node.lost", 500), -1);
    c.silent[1] = true;
    assert_in_range(until_lost(&c, "a", 1, 1, true, 60000), 30000 + 4700, 30000 + 5300);
    close_bench(&c.b);
}

/* When their heartbeats come as datagrams, a thousand nodes heartbeat every 250 ms. */
static void test_pace_of_datagrams(void **state)
{
    (void)state;
    struct cluster c;
    char name[16];
    uint32_t heartbeat_ms = 0;
    open_cluster(&c, 0, 1);
    for (uint64_t i = 1; i <= 1000; i++) {
        (void)snprintf(name, sizeof(name), "n%u", (unsigned)i);
        assert_int_equal(registration(&c.b, i, name, 1, NULL, 0), TITAN_OK);
    }
    for (int turn = 0; turn < 20; turn++) {
        for (uint64_t i = 1; i <= 1000; i++) {
            (void)snprintf(name, sizeof(name), "n%u", (unsigned)i);
            assert_true(datagram(&c, name, i, 1, true));
        }
        batch_free(&c.b.out);
        core_tick(c.b.core, at(&c.b), &c.b.out);
        for (const struct batch_message *m = c.b.out.answers; m; m = m->next)
            if (m->message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK)
                heartbeat_ms = m->message->ack->heartbeat_ms;
        c.b.now += 50;
    }
    assert_int_equal(heartbeat_ms, 250);
    close_bench(&c.b);
}

/* A thousand nodes heartbeat every 400 ms, and those that came when there were fewer are sent that. */
static void test_pace(void **state)
{
    (void)state;
    struct bench b;
    unsigned told = 0, slowest = 0;
    struct core_options options = {.term = 1, .seed = 1, .jobs_dir = "/jobs"};
    memset(&b, 0, sizeof(b));
    b.now = 1000;
    batch_init(&b.out);
    assert_int_equal(core_new(&options, &b.core, NULL), TITAN_OK);
    for (uint64_t i = 1; i <= 1000; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", (int)i);
        assert_int_equal(registration(&b, i, name, 1, NULL, 0), TITAN_OK);
        for (const struct batch_message *m = b.out.answers; m; m = m->next)
            if (m->session == 1 && m->message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK) {
                told++;
                slowest = m->message->ack->heartbeat_ms;
            }
    }
    assert_true(slowest >= 320 && slowest <= 400); /* a quarter less than it should be, at most */
    assert_true(told >= 2 && told <= 12);
    close_bench(&b);
}

/* Suspected after 250 ms, denied by all that are asked: lost then. */
static void test_nobody_reaches_it(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 5, 1);
    (void)until(&c, "never", 1000);
    c.silent[2] = true;
    c.deaf[2] = -1;
    int64_t took = until(&c, "node.lost", 5000);
    assert_true(took >= 200 && took <= 300); /* of silence: 250, and up to a heartbeat before */
    assert_int_equal(c.probes, 3);
    close_bench(&c.b);
}

/* Those that are asked say nothing: it is the network, or us, and it has the time of one that they reach. */
static void test_nobody_answers(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 3, 1);
    (void)until(&c, "never", 1000);
    c.silent[2] = true;
    int64_t took = until(&c, "node.lost", 10000);
    assert_true(took >= 4950 && took <= 5050);
    close_bench(&c.b);
}

static void say_denied(struct cluster *c, uint64_t session, uint64_t probe_id)
{
    Titan__Internal__ProbeResult body = TITAN__INTERNAL__PROBE_RESULT__INIT;
    body.probe_id = probe_id;
    body.node = (char *)"b";
    MESSAGE(m, PROBE_RESULT, probe_result, body);
    assert_int_equal(say(&c->b, session, &m), TITAN_OK);
    look(c);
}

/* What a node says that was not asked counts for nothing, and what one says that was asked counts once. */
static void test_unasked_answers(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 5, 1);
    (void)until(&c, "never", 1000);
    c.silent[2] = true;
    while (c.probes < 3) /* c, d and e are asked */
        (void)until(&c, "never", 20);
    for (int i = 0; i < 3; i++)
        say_denied(&c, 1, 1);
    assert_int_equal(core_counters(c.b.core)->implausible, 3);
    assert_int_equal(until(&c, "node.lost", 120), -1); /* three of three that were asked would be enough at once */
    say_denied(&c, 3, 1);
    say_denied(&c, 3, 1);
    assert_int_equal(core_counters(c.b.core)->implausible, 4);
    close_bench(&c.b);
}

static void test_nobody_to_ask(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 1, 1);
    (void)until(&c, "never", 1000);
    c.silent[1] = true;
    int64_t took = until(&c, "node.lost", 5000);
    assert_true(took >= 950 && took <= 1050);
    assert_int_equal(c.probes, 0);
    close_bench(&c.b);
}

/* A node reaches it: the link to us is bad, and it has 5 s. */
static void test_others_reach_it(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 3, 1);
    (void)until(&c, "never", 1000);
    c.silent[2] = true;
    c.deaf[2] = 1;
    int64_t took = until(&c, "node.lost", 10000);
    assert_true(took >= 4950 && took <= 5050);
    close_bench(&c.b);

    /* And when they reach it no longer, that is the end. */
    open_cluster(&c, 3, 1);
    (void)until(&c, "never", 1000);
    c.silent[2] = true;
    c.deaf[2] = 1;
    assert_int_equal(until(&c, "node.lost", 1500), -1);
    c.deaf[2] = -1;
    assert_in_range(until(&c, "node.lost", 5000), 0, 450);
    close_bench(&c.b);
}

/* An acknowledgement that is lost: a node that has not heard it says nothing. */
static void test_lost_ack(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 1, 1);
    (void)until(&c, "never", 1000);
    c.silent[1] = true;
    assert_int_equal(join(&c, 4, 'a', 1, 1), TITAN_OK);
    c.silent[4] = true;
    int64_t took = until(&c, "node.lost", 5000);
    assert_true(took >= 1900 && took <= 2050);
    close_bench(&c.b);
}

/* A pause that is over before the answers are in. */
static void test_it_was_only_slow(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 3, 1);
    for (int round = 0; round < 20; round++) {
        c.silent[2] = true;
        c.deaf[2] = 1;
        assert_int_equal(until(&c, "node.lost", 900), -1);
        c.silent[2] = false;
        assert_int_equal(until(&c, "node.lost", 200), -1);
    }
    assert_int_equal(core_counters(c.b.core)->silences, 20);
    assert_int_equal(core_counters(c.b.core)->nodes_lost, 0);
    close_bench(&c.b);
}

/* A closed stream: its machine lives. Others are asked at once; an agent has time to come back. */
static void test_closed_stream(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 3, 1);
    (void)until(&c, "never", 1000);
    c.silent[2] = true;
    c.deaf[2] = -1;
    batch_free(&c.b.out);
    core_session_closed(c.b.core, 2, at(&c.b), &c.b.out);
    assert_int_equal(until(&c, "node.lost", 100), -1);
    assert_int_equal(c.probes, 2);
    assert_int_equal(join(&c, 4, 'b', 2, 1), TITAN_OK);
    c.silent[4] = false;
    assert_int_equal(until(&c, "node.lost", 3000), -1);
    batch_free(&c.b.out);
    core_session_closed(c.b.core, 4, at(&c.b), &c.b.out);
    c.silent[4] = true;
    int64_t took = until(&c, "node.lost", 5000);
    assert_true(took >= 1900 && took <= 2050);
    assert_int_equal(core_counters(c.b.core)->nodes_lost, 1);
    close_bench(&c.b);
}

/* This process was stopped for ten seconds, or gets next to no time: the nodes are as they were. */
static void test_own_stall(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster(&c, 3, 1);
    for (int i = 1; i <= 3; i++)
        c.deaf[i] = -1;
    (void)until(&c, "never", 1000);
    c.b.now += 10000;
    assert_int_equal(until(&c, "node.lost", 2000), -1);
    for (int i = 0; i < 30; i++) { /* a little every 300 ms, the clock before what was received */
        c.b.now += 300;
        batch_free(&c.b.out);
        core_tick(c.b.core, at(&c.b), &c.b.out);
        look(&c);
        assert_null(strstr(c.seen, "node.lost"));
        for (uint64_t s = 1; s <= 3; s++)
            heartbeat(&c.b, s);
    }
    c.silent[3] = true; /* and one that dies is still found */
    assert_in_range(until(&c, "node.lost", 10000), 200, 5100);
    close_bench(&c.b);
}

/* The same agent comes and goes: new work only after a while of good heartbeats, and each time after a longer one. */
static void test_flapping(void **state)
{
    (void)state;
    struct cluster c;
    uint64_t session = 2;
    open_cluster(&c, 1, 1);
    struct job job = job_of(1, 1, 1);
    static const int64_t quiet[] = {0, 2000, 10000, 20000, 40000, 60000, 60000};
    for (int round = 0; round < 7; round++) {
        c.silent[2] = c.silent[3] = true;
        if (round > 0) {
            c.deaf[2] = -1;
            assert_true(until(&c, "node.lost", 5000) > 0);
        }
        session = 2 + (uint64_t)(round % 2); /* sessions of the same agent */
        assert_int_equal(join(&c, session, 'b', 1, 1), TITAN_OK);
        c.silent[session] = false;
        c.beaten[session] = c.b.now;
        job.id = (uint64_t)round + 2;
        submit_job(&c.b, &job);
        if (round == 0) { /* node a has one slot, b the other */
            assert_non_null(told(&c.b, START, 1));
            job.id = 100;
            submit_job(&c.b, &job);
            assert_non_null(told(&c.b, START, 2));
            continue;
        }
        assert_null(told(&c.b, START, session));
        int64_t took = until(&c, "worker.starting", 100000);
        assert_in_range(took, quiet[round] - 10, quiet[round] + 50);
    }
    close_bench(&c.b);

    /* Another agent, say of a machine that was started again, is another matter. */
    open_cluster(&c, 2, 1);
    c.silent[2] = true;
    c.deaf[2] = -1;
    assert_true(until(&c, "node.lost", 5000) > 0);
    c.silent[1] = true; /* so that there is one slot alone */
    assert_true(until(&c, "node.lost", 5000) > 0);
    assert_int_equal(join(&c, 3, 'b', 2, 1), TITAN_OK);
    submit(&c.b, 1, 1, 1);
    assert_non_null(told(&c.b, START, 3));
    close_bench(&c.b);
}

/* --- idle nodes --------------------------------------------------------------------------------------------------- */

/* Three nodes that have promised a heartbeat every next_ms, each as late as it may be. */
static void open_idle(struct cluster *c, uint32_t next_ms)
{
    open_cluster(c, 3, 1);
    assert_int_equal(c->b.out.answers->message->ack->idle_heartbeat_ms, 3000);
    for (int i = 1; i <= 3; i++) {
        c->promises[i] = next_ms;
        c->beaten[i] = c->b.now;
        promise(c, (uint64_t)i, next_ms);
    }
    assert_int_equal(until(c, "node.lost", 30000), -1);
    assert_int_equal(core_counters(c->b.core)->silences, 0);
}

/* Node b dies. Returns the time from its last heartbeat until it is lost, as `deaf` has its peers' answers. */
static int64_t idle_death(struct cluster *c, int deaf)
{
    c->silent[2] = true;
    c->deaf[2] = deaf;
    assert_true(until(c, "node.lost", 60000) >= 0);
    return c->b.now - c->beaten[2];
}

/* An idle node's silence counts from the third heartbeat that did not come. */
static void test_idle_node_dies(void **state)
{
    (void)state;
    const struct {
        uint32_t next_ms;
        int deaf;
        int64_t lo, hi;
    } cases[] = {
        {3000, -1, 9090, 9110},  /* no peer reaches it: 3 x 2950 + 250 */
        {3000, 0, 13840, 13900}, /* no peer answers: 3 x 2950 + 5000 */
        {200, -1, 690, 710},     /* 3 x 150 + 250 */
        {50, -1, 240, 260},      /* a promise of what all agents do */
        {0, -1, 240, 260},       /* an older agent */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cluster c;
        open_idle(&c, cases[i].next_ms);
        assert_in_range(idle_death(&c, cases[i].deaf), cases[i].lo, cases[i].hi);
        close_bench(&c.b);
    }
}

/* A longer promise than was offered counts as the longest. */
static void test_promise_beyond_bounds(void **state)
{
    (void)state;
    struct cluster c;
    open_idle(&c, 3000);
    promise(&c, 2, 3600000);
    c.beaten[2] = c.b.now;
    assert_in_range(idle_death(&c, -1), 9090, 9110);
    assert_int_not_equal(join(&c, 4, 'b', 2, 1), TITAN_EINVAL);
    Titan__Internal__AgentHeartbeat body = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    body.next_ms = 3600001; /* never possible: the session ends */
    MESSAGE(m, HEARTBEAT, heartbeat, body);
    assert_int_equal(say(&c.b, 4, &m), TITAN_EINVAL);
    close_bench(&c.b);
}

/* The idle cluster costs the coordinator a tick in three seconds, and none is due before a node can be suspected. */
static void test_idle_coordinator(void **state)
{
    (void)state;
    struct cluster c;
    open_idle(&c, 3000);
    assert_int_equal(core_tick_ms(c.b.core), 3000);
    c.b.now += 3000; /* within two ticks: as seldom as it may be */
    batch_free(&c.b.out);
    core_tick(c.b.core, at(&c.b), &c.b.out);
    assert_int_equal(core_counters(c.b.core)->silences, 0);
    promise(&c, 1, 0); /* a node that has got work somewhere else, or leaves */
    assert_int_equal(core_tick_ms(c.b.core), 50);
    assert_in_range(core_deadline(c.b.core), c.b.now, c.b.now + 250);
    close_bench(&c.b);
}

/* A node that is given a worker is judged as all others from the command on, whether its agent knows that or not. */
static void test_idle_node_gets_a_worker(void **state)
{
    (void)state;
    for (int alive = 0; alive <= 1; alive++) {
        struct cluster c;
        open_idle(&c, 3000);
        for (int i = 1; i <= 3; i++) {
            c.silent[i] = true;
            c.deaf[i] = -1;
        }
        submit(&c.b, 1, 1, 1);
        const struct batch_message *m = c.b.out.messages;
        while (m && m->message->kind_case != START)
            m = m->next;
        assert_non_null(m);
        const uint64_t session = m->session;
        for (int i = 1; i <= 3; i++)
            c.silent[i] = (uint64_t)i == session; /* the others are asked */
        const int64_t begin = c.b.now;
        if (alive) {
            promise(&c, session, 3000); /* was under way, and says nothing of the worker */
            assert_int_equal(until(&c, "node.lost", 200), -1);
            promise(&c, session, 0);
            c.promises[session] = 0;
            c.silent[session] = false;
            assert_int_equal(until(&c, "node.lost", 10000), -1);
            promise(&c, session, 3000); /* no such promise counts while it has a worker */
            c.beaten[session] = c.b.now;
            c.silent[session] = true;
            assert_true(until(&c, "node.lost", 10000) >= 0);
            assert_in_range(c.b.now - c.beaten[session], 240, 260); /* as ever */
        } else {
            assert_true(until(&c, "node.lost", 10000) >= 0);
            assert_in_range(c.b.now - begin, 500, 560); /* 250 ms for the command, 250 of silence */
        }
        close_bench(&c.b);
    }
}

/* While the store has not taken the decision, the agent cannot know of its worker. */
static void test_promise_outlasts_the_store(void **state)
{
    (void)state;
    struct cluster c;
    open_idle(&c, 3000);
    submit(&c.b, 1, 3, 3);
    assert_non_null(told(&c.b, START, 2));
    for (int i = 0; i < 60; i++) { /* three seconds, with ticks as a job has them */
        c.b.now += 50;
        c.b.held += 50;
        batch_free(&c.b.out);
        core_tick(c.b.core, at(&c.b), &c.b.out);
        if (i % 39 == 0)
            for (uint64_t s = 1; s <= 3; s++)
                promise(&c, s, 3000);
    }
    assert_int_equal(core_counters(c.b.core)->silences, 0);
    c.b.held = 0;
    for (int i = 1; i <= 3; i++) {
        c.silent[i] = true;
        c.deaf[i] = -1;
    }
    const int64_t begin = c.b.now;
    c.silent[1] = false; /* it is asked for the others */
    c.promises[1] = 60;  /* with ticks in between */
    assert_true(until(&c, "node.lost", 10000) >= 0);
    assert_in_range(c.b.now - begin, 500, 610);
    close_bench(&c.b);
}

/* A message of an idle node's agent is fresh, though the last answer is older than away_ms; a worker's command does not
 * make it old. */
static void test_idle_node_is_no_stale_stream(void **state)
{
    (void)state;
    struct cluster c;
    open_cluster_with(&c, 3, 1, 60000);
    for (int i = 1; i <= 3; i++)
        c.promises[i] = 9000; /* counts as 3000; its heartbeats are late, and within its slack */
    promise(&c, 1, 3000);
    for (int i = 2; i <= 3; i++)
        c.silent[i] = true;
    c.silent[1] = true;
    c.b.now += 6000; /* the away_ms is 2000 */
    promise(&c, 1, 3000);
    c.b.now += 3900;
    submit(&c.b, 1, 1, 1);
    c.b.now += 50;
    batch_free(&c.b.out);
    core_tick(c.b.core, at(&c.b), &c.b.out);
    c.b.now += 100;
    promise(&c, 1, 0);
    close_bench(&c.b);
}

/* The stream of an idle node closes: the promise ends with it, and silence counts from then. */
static void test_idle_node_leaves(void **state)
{
    (void)state;
    for (int deaf = -1; deaf <= 0; deaf++) {
        struct cluster c;
        open_idle(&c, 3000);
        c.silent[2] = true;
        c.deaf[2] = deaf;
        (void)until(&c, "never", 1500);
        batch_free(&c.b.out);
        core_session_closed(c.b.core, 2, at(&c.b), &c.b.out);
        const int64_t took = until(&c, "node.lost", 60000);
        assert_in_range(took, deaf ? 1990 : 4990, deaf ? 2020 : 5020); /* as of every node */
        close_bench(&c.b);
    }
}

/* A node that came back has to heartbeat as often as all before it gets work, and only then may promise another. */
static void test_returned_node_is_not_idle(void **state)
{
    (void)state;
    struct cluster c;
    open_idle(&c, 3000);
    (void)idle_death(&c, -1);
    assert_int_equal(join(&c, 4, 'b', 1, 1), TITAN_OK);
    assert_int_equal(c.b.out.answers->message->ack->idle_heartbeat_ms, 0);
    promise(&c, 4, 3000); /* not offered: 50 ms hold */
    c.silent[4] = true;
    c.deaf[2] = 1;
    const uint64_t before = core_counters(c.b.core)->silences;
    (void)until(&c, "never", 400);
    assert_int_equal(core_counters(c.b.core)->silences, before + 1);
    c.silent[4] = false;
    uint32_t offered = 0;
    for (int i = 0; i < 60 && !offered; i++) {
        promise(&c, 4, 0);
        c.b.now += 50;
        batch_free(&c.b.out);
        core_tick(c.b.core, at(&c.b), &c.b.out);
        for (const struct batch_message *m = c.b.out.answers; m; m = m->next)
            if (m->session == 4 && m->message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK)
                offered = m->message->ack->idle_heartbeat_ms;
    }
    assert_int_equal(offered, 3000);
    close_bench(&c.b);
}

/* A datagram promises as a heartbeat of the stream does. */
static void test_promise_by_datagram(void **state)
{
    (void)state;
    struct cluster c;
    open_idle(&c, 50);
    next_datagram_ms = 3000;
    assert_true(datagram(&c, "b", 1, 1, true));
    next_datagram_ms = 0;
    c.beaten[2] = c.b.now;
    assert_in_range(idle_death(&c, -1), 9090, 9110);
    close_bench(&c.b);
    open_idle(&c, 3000);
    assert_true(core_deadline(c.b.core) > c.b.now + 3000);
    assert_true(datagram(&c, "b", 1, 1, true)); /* and ends the promise */
    c.beaten[2] = c.b.now;
    assert_in_range(core_deadline(c.b.core), c.b.now, c.b.now + 250);
    assert_in_range(idle_death(&c, -1), 240, 260);
    close_bench(&c.b);
}

static void stalled(struct bench *b, uint64_t worker, uint64_t epoch)
{
    Titan__Internal__WorkerStalled body = TITAN__INTERNAL__WORKER_STALLED__INIT;
    body.job_id = 1;
    body.worker_id = worker;
    body.epoch = epoch;
    body.step = 7;
    body.actions = 123;
    body.for_ms = 310;
    body.stopped = true;
    MESSAGE(m, STALLED, stalled, body);
    assert_int_equal(say(b, 1, &m), TITAN_OK);
}

static void test_hang(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    stalled(&b, 3, 0); /* of an epoch that is over */
    assert_null(b.out.changes);
    stalled(&b, 3, 1);
    assert_string_equal(event(&b, "worker.stalled")->detail,
                        "{\"worker\":3,\"step\":7,\"actions\":123,\"for_ms\":310,\"stopped\":true}");
    assert_ids(told(&b, STOP, 1)->stop->worker_ids, 1, 1, 3);
    assert_int_equal(told(&b, STOP, 1)->stop->grace_ms, 0);
    assert_int_equal(told(&b, REVOKE, 1)->revoke->epoch, 1);
    progress(&b, .worker = 3, .epoch = 1, .step = 8); /* SIGCONT: too late */
    assert_null(b.out.changes);
    for (uint64_t w = 1; w <= 4; w++)
        if (w != 3)
            quiesced(&b, .worker = w, .epoch = 1, .step = 7);
    assert_members(told(&b, FORM, 1)->form, 3, 1, 2, 4); /* it is not waited for */
    progress(&b, .worker = 3, .epoch = 1, .step = 8);
    assert_null(b.out.changes);
    assert_true(core_counters(b.core)->old_epoch >= 2);
    assert_int_equal(core_counters(b.core)->workers_hung, 1);
    state_ready(&b, .worker = 1, .epoch = 2, .recovery_source = TITAN__INTERNAL__RECOVERY_SOURCE__SOURCE_REPLICA,
                .step = 7);
    progress(&b, .worker = 1, .epoch = 2, .step = 8);
    assert_non_null(strstr(event(&b, "recovery.finished")->detail, "\"detect_ms\":310"));
    exited(&b, .worker = 3, .code = -1);
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.restarts, 1);
    close_bench(&b);
}

static void test_straggler(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    Titan__Internal__WorkerStraggles body = TITAN__INTERNAL__WORKER_STRAGGLES__INIT;
    body.job_id = 1;
    body.worker_id = 2;
    body.epoch = 1;
    body.busy_ms = 30;
    body.median_ms = 12.25;
    body.steps = 20;
    MESSAGE(m, STRAGGLES, straggles, body);
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    assert_string_equal(event(&b, "worker.straggler")->detail,
                        "{\"worker\":2,\"busy_ms\":30.000,\"median_ms\":12.250,\"steps\":20}");
    assert_null(b.out.messages); /* nothing is done about it */
    close_bench(&b);
}

/* The key of that session's acknowledgement; false: it has none. */
static bool ack_key(struct cluster *c, uint64_t session, struct proof_keys *ret)
{
    ret->n = 0;
    for (const struct batch_message *m = c->b.out.answers; m; m = m->next)
        if (m->session == session && m->message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK &&
            m->message->ack->key.len == MAC_BYTES)
            proof_add_key(ret, m->message->ack->key.data);
    return ret->n > 0;
}

/* Is it answered, under the same key? */
static bool heartbeat_under(struct cluster *c, const char *node, const char *to, const struct proof_keys *keys)
{
    Titan__Internal__PeerHeartbeat body = TITAN__INTERNAL__PEER_HEARTBEAT__INIT;
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    struct proof_keys answer;
    body.incarnation = 1;
    body.hears = true;
    m.from = (char *)node;
    m.to = (char *)to;
    m.term = 1;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT;
    m.heartbeat = &body;
    proof_make(&m, keys, proofs);
    if (!core_heartbeat(c->b.core, &m, at(&c->b), &answer))
        return false;
    assert_int_equal(answer.n, keys->n);
    if (keys->n)
        assert_true(mac_equal(answer.key[0], keys->key[0]));
    return true;
}

static void test_heartbeats_are_proved(void **state)
{
    (void)state;
    struct cluster c;
    struct proof_keys first, second, other, none = {0};
    proving = true;
    open_cluster_with(&c, 0, 1, 20000);
    assert_int_equal(join(&c, 1, 'a', 1, 1), TITAN_OK);
    assert_true(ack_key(&c, 1, &first));
    assert_int_equal(join(&c, 2, 'b', 1, 1), TITAN_OK);
    assert_true(ack_key(&c, 2, &other));
    assert_false(heartbeat_under(&c, "a", "", &none));
    assert_false(heartbeat_under(&c, "a", "", &other)); /* another node's */
    assert_false(heartbeat_under(&c, "a", "a", &first));
    assert_true(heartbeat_under(&c, "a", "", &first));
    assert_int_equal(core_counters(c.b.core)->unproved, 3);
    assert_int_equal(join(&c, 3, 'a', 1, 1), TITAN_OK); /* the same agent: its acknowledgement may lie in the link */
    assert_true(ack_key(&c, 3, &second));
    assert_false(mac_equal(first.key[0], second.key[0]));
    assert_true(heartbeat_under(&c, "a", "", &first));
    assert_true(heartbeat_under(&c, "a", "", &second));
    assert_false(heartbeat_under(&c, "a", "", &first)); /* it has the newer one */
    proving = false;
    assert_int_equal(join(&c, 4, 'a', 1, 1), TITAN_OK); /* of an older version */
    assert_false(ack_key(&c, 4, &none));
    assert_true(heartbeat_under(&c, "a", "", &none));
    close_bench(&c.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heartbeats_are_proved),
        cmocka_unit_test(test_heartbeats_are_answered),
        cmocka_unit_test(test_pace),
        cmocka_unit_test(test_nobody_reaches_it),
        cmocka_unit_test(test_nobody_answers),
        cmocka_unit_test(test_unasked_answers),
        cmocka_unit_test(test_nobody_to_ask),
        cmocka_unit_test(test_others_reach_it),
        cmocka_unit_test(test_lost_ack),
        cmocka_unit_test(test_it_was_only_slow),
        cmocka_unit_test(test_closed_stream),
        cmocka_unit_test(test_own_stall),
        cmocka_unit_test(test_flapping),
        cmocka_unit_test(test_idle_node_dies),
        cmocka_unit_test(test_promise_beyond_bounds),
        cmocka_unit_test(test_idle_coordinator),
        cmocka_unit_test(test_idle_node_gets_a_worker),
        cmocka_unit_test(test_promise_outlasts_the_store),
        cmocka_unit_test(test_idle_node_is_no_stale_stream),
        cmocka_unit_test(test_idle_node_leaves),
        cmocka_unit_test(test_returned_node_is_not_idle),
        cmocka_unit_test(test_promise_by_datagram),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_straggler),
        cmocka_unit_test(test_datagrams_are_signs_of_life),
        cmocka_unit_test(test_datagrams_are_not_for_ever),
        cmocka_unit_test(test_pace_of_datagrams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
