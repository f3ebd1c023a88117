/* SPDX-License-Identifier: Apache-2.0 */
/* Epochs without a coordinator: five agents' cores in one process, workers made of a few rules, a network that loses,
 * delays and repeats datagrams and falls apart, and a coordinator that goes away and comes back.
 *
 *   SEED=n       draw from that seed; that schedule only      SCHEDULES=n  how many (300, or 60)        TRACE=1, 2 what
 * is said, and sent
 *
 * Checked all the time: an epoch has one communicator and one membership whatever agent accepts it; no step is trained
 * in two epochs; an epoch goes on from the furthest step any of its members holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "daemon/agent/agent_core.h"
#include "daemon/common/proof.h"
#include "tests/support/sets.h"

enum { N = 5, EPOCHS_MAX = 256, STEPS_MAX = 100000, NETWORK_MAX = 4096 };
#define JOB 7
#define AWAY_MS 1000
#define LEASE_MS 20000
#define TICK_MS 5

typedef Titan__Internal__FormEpoch form_epoch;

struct node {
    bool alive, session;
    int side; /* of a partition */
    struct agent_core *core;
    uint64_t term; /* on disk */
    Titan__Internal__AgentJobRecord *record;
    char name[8], address[16];
    int64_t restart_at;
    int64_t contact, epoch_until; /* in its worker's page; 0 = not said */
    /* its worker, with the node's index + 1 as id */
    bool worker, told_hang, paused;
    uint64_t epoch, revoked, installed, step;
    uint32_t phase;
    int64_t quiet_at; /* 0 = not asked */
};
struct datagram {
    int64_t at;
    int from, to;
    Titan__Internal__PeerMessage *m;
};
struct seen {
    uint64_t epoch, members;
    unsigned char id[16];
    int n_members;
    uint64_t source;
    bool trained, ready;
    ProtobufCBinaryData keys[2]; /* agents', workers' */
};

static struct {
    int64_t now;
    uint64_t random;
    struct node nodes[N];
    bool coordinator;
    uint64_t term, commanded_epoch;
    double loss;
    bool keyed;
    int deaf; /* does not hear the next order to form; -1 = none */
    struct datagram network[NETWORK_MAX];
    int n_network;
    struct seen seen[EPOCHS_MAX];
    int n_seen;
    uint64_t committed_by[STEPS_MAX], furthest;
    uint64_t reported; /* highest epoch in a registration or a report */
    size_t refused;
} w;

static uint64_t draw(void)
{
    return hash_draw(&w.random);
}
static uint64_t below(uint64_t n)
{
    return draw() % n;
}
static bool chance(double p)
{
    return (double)(draw() >> 11) / (double)(UINT64_C(1) << 53) < p;
}

/* --- what all may see --------------------------------------------------------------------------------------------- */

/* All have the same key of it, agents one and workers another. */
static void note_key(struct seen *s, const form_epoch *f, bool worker)
{
    ProtobufCBinaryData *key = &s->keys[worker];
    assert_int_equal(f->key.len, w.keyed ? MAC_BYTES : 0);
    if (!w.keyed)
        return;
    if (!key->data) {
        key->data = malloc(MAC_BYTES);
        memcpy(key->data, f->key.data, MAC_BYTES);
    }
    assert_memory_equal(key->data, f->key.data, MAC_BYTES);
    if (s->keys[!worker].data)
        assert_memory_not_equal(key->data, s->keys[!worker].data, MAC_BYTES);
}

static struct seen *note_form(const form_epoch *f)
{
    uint64_t members = 0;
    for (size_t i = 0; i < f->n_members; i++)
        members |= UINT64_C(1) << f->members[i]->worker_id;
    for (int i = 0; i < w.n_seen; i++) {
        if (w.seen[i].epoch != f->epoch)
            continue;
        assert_memory_equal(w.seen[i].id, f->comm_id.data, 16);
        assert_int_equal(w.seen[i].members, members);
        return &w.seen[i];
    }
    assert_true(w.n_seen < EPOCHS_MAX);
    struct seen *s = &w.seen[w.n_seen++];
    *s =
        (struct seen){.epoch = f->epoch, .members = members, .n_members = (int)f->n_members, .source = f->source_epoch};
    assert_int_equal(f->comm_id.len, 16);
    memcpy(s->id, f->comm_id.data, 16);
    return s;
}

/* --- workers ------------------------------------------------------------------------------------------------------ */

static void carry_out(int n, struct agent_actions *out);

#define INPUT(n, call, ...)                                                                                            \
    do {                                                                                                               \
        struct agent_actions out_;                                                                                     \
        agent_actions_init(&out_);                                                                                     \
        call(w.nodes[n].core, ##__VA_ARGS__, w.now, &out_);                                                            \
        (void)agent_core_check(w.nodes[n].core);                                                                       \
        carry_out(n, &out_);                                                                                           \
        agent_actions_free(&out_);                                                                                     \
    } while (0)

static void worker_quiet(int n)
{
    struct node *x = &w.nodes[n];
    Titan__Internal__WorkerQuiesced q = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    Titan__Internal__WorkerToAgent m = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    x->quiet_at = 0;
    x->phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED;
    q.job_id = JOB;
    q.worker_id = (uint64_t)n + 1;
    q.epoch = x->epoch;
    q.installed_epoch = x->installed;
    q.last_step = x->step;
    q.paused = x->paused;
    m.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED;
    m.quiesced = &q;
    INPUT(n, agent_core_worker, q.worker_id, &m);
}

static void worker_hear(int n, const Titan__Internal__AgentToWorker *m)
{
    struct node *x = &w.nodes[n];
    switch (m->kind_case) {
    case TITAN__INTERNAL__AGENT_TO_WORKER__KIND_FORM:
        note_key(note_form(m->form), m->form, true);
        if (m->form->epoch > x->epoch && m->form->epoch > x->revoked) {
            x->epoch = m->form->epoch;
            x->phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING;
            x->quiet_at = 0;
            x->paused = false;
        }
        break;
    case TITAN__INTERNAL__AGENT_TO_WORKER__KIND_REVOKE:
        x->revoked = MAX(x->revoked, m->revoke->epoch);
        if (x->epoch <= m->revoke->epoch && x->phase != TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED)
            x->quiet_at = w.now + 1 + (int64_t)below(40);
        break;
    case TITAN__INTERNAL__AGENT_TO_WORKER__KIND_PAUSE:
        if (x->epoch == m->pause->epoch && x->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING)
            x->quiet_at = w.now + 1 + (int64_t)below(40);
        x->paused = true;
        break;
    default:
        break;
    }
}

/* Members reach each other and have been told: they train. A step is theirs together. */
static void group_advance(struct seen *s)
{
    int first = -1, n = 0;
    bool all_training = true;
    uint64_t step = 0;
    for (int i = 0; i < N; i++) {
        struct node *x = &w.nodes[i];
        if (!(s->members >> (i + 1) & 1))
            continue;
        if (!x->worker || !x->alive || x->epoch != s->epoch || x->quiet_at ||
            x->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED)
            return;
        if (first >= 0 && w.nodes[first].side != x->side)
            return;
        first = i;
        n++;
        all_training &= x->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING;
        if (x->installed && (x->installed == s->source || x->installed == s->epoch))
            step = MAX(step, x->step);
    }
    assert_int_equal(n, s->n_members);
    if (!all_training) { /* the state has moved: the barrier */
        assert_int_equal(step, w.furthest);
        for (int i = 0; i < N; i++)
            if (s->members >> (i + 1) & 1) {
                w.nodes[i].phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING;
                w.nodes[i].installed = s->epoch;
                w.nodes[i].step = step;
            }
        return;
    }
    s->trained = true;
    step++;
    assert_true(step < STEPS_MAX);
    assert_int_equal(w.committed_by[step], 0);
    w.committed_by[step] = s->epoch;
    w.furthest = step;
    for (int i = 0; i < N; i++)
        if (s->members >> (i + 1) & 1)
            w.nodes[i].step = step;
}

static void workers_advance(void)
{
    for (int i = 0; i < N; i++)
        if (w.nodes[i].alive && w.nodes[i].worker && w.nodes[i].quiet_at && w.now >= w.nodes[i].quiet_at)
            worker_quiet(i);
    for (int i = 0; i < w.n_seen; i++)
        group_advance(&w.seen[i]);
}

static struct agent_sample sample_of(const struct node *x)
{
    bool training = x->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING;
    return (struct agent_sample){.epoch = x->epoch,
                                 .step = x->step,
                                 .actions = x->step,
                                 .phase = x->phase,
                                 .waiting = !training || x->step, /* for peers, as a rule */
                                 .process_state = 'S'};
}

/* --- agents ------------------------------------------------------------------------------------------------------- */

static void agent_up(int n)
{
    struct node *x = &w.nodes[n];
    struct titan_error err = {0};
    const struct agent_core_options options = {.node = x->name,
                                               .device = "cpu",
                                               .address = "10.0.0.1",
                                               .version = "1",
                                               .slots = 1,
                                               .incarnation = draw(),
                                               .seed = draw(),
                                               .peer_port = 1};
    assert_int_equal(agent_core_new(&options, &x->core, &err), TITAN_OK);
    agent_core_restore_term(x->core, &(struct seen_term){.term = x->term});
    if (x->record)
        agent_core_restore_job(x->core, x->record);
    if (x->worker) {
        if (x->contact)
            agent_core_restore_contact(x->core, x->contact, x->epoch_until);
        struct agent_sample s = sample_of(x);
        agent_core_adopted(x->core, JOB, (uint64_t)n + 1, &s, w.now);
    }
    x->alive = true;
}

static void agent_dies(int n, bool with_worker)
{
    struct node *x = &w.nodes[n];
    x->contact = MAX(agent_core_contact(x->core), 0);
    x->epoch_until = agent_core_epoch_until(x->core);
    agent_core_free(x->core);
    x->core = NULL;
    x->alive = x->session = false;
    x->worker &= !with_worker;
}

static void coordinator_hears(const Titan__Internal__AgentMessage *m)
{
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REGISTRATION)
        for (size_t i = 0; i < m->registration->n_leader_epochs; i++)
            w.reported = MAX(w.reported, m->registration->leader_epochs[i]->epoch->epoch);
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_LEADER_EPOCH)
        w.reported = MAX(w.reported, m->leader_epoch->epoch->epoch);
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED) {
        w.refused++;
        w.commanded_epoch = MAX(w.commanded_epoch, m->refused->seen_epoch);
    }
}

static void coordinator_says(int n, Titan__Internal__CoordinatorMessage *m)
{
    m->term = w.term;
    INPUT(n, agent_core_coordinator, m);
}

static void answer_heartbeat(int n, uint64_t number)
{
    Titan__Internal__HeartbeatAnswer answer = TITAN__INTERNAL__HEARTBEAT_ANSWER__INIT;
    Titan__Internal__CoordinatorMessage m = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    answer.number = number;
    m.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_HEARTBEAT_ANSWER;
    m.heartbeat_answer = &answer;
    coordinator_says(n, &m);
}

static void post(int from, const char *to, const Titan__Internal__PeerMessage *m)
{
    for (int copies = chance(0.05) ? 2 : 1; copies > 0; copies--) {
        if (chance(w.loss) || w.n_network == NETWORK_MAX)
            continue;
        for (int i = 0; i < N; i++)
            if (!strcmp(w.nodes[i].address, to)) {
                size_t len = titan__internal__peer_message__get_packed_size(m);
                uint8_t *bytes = malloc(len + 1);
                (void)titan__internal__peer_message__pack(m, bytes);
                for (int k = 0; k < w.n_seen; k++) /* no key is ever to be read on the way */
                    for (int which = 0; which < 2 && w.seen[k].keys[which].data; which++)
                        assert_null(memmem(bytes, len, w.seen[k].keys[which].data, MAC_BYTES));
                w.network[w.n_network++] =
                    (struct datagram){w.now + 1 + (int64_t)below(chance(0.02) ? 900 : 30), from, i,
                                      titan__internal__peer_message__unpack(NULL, len, bytes)};
                free(bytes);
            }
    }
}

static void kill_worker(int n)
{
    const struct agent_exit how = {.code = -1, .signal = 9, .last_step = w.nodes[n].step};
    if (!w.nodes[n].worker)
        return;
    w.nodes[n].worker = false;
    if (w.nodes[n].alive)
        INPUT(n, agent_core_exited, (uint64_t)n + 1, &how);
}

static void carry_out(int n, struct agent_actions *out)
{
    struct node *x = &w.nodes[n];
    for (const struct agent_action *a = out->first; a; a = a->next) {
        switch (a->kind) {
        case AGENT_RECORD_TERM:
            x->term = a->seen.term;
            break;
        case AGENT_RECORD_JOB:
            if (x->record)
                titan__internal__agent_job_record__free_unpacked(x->record, NULL);
            size_t len = titan__internal__agent_job_record__get_packed_size(a->record);
            uint8_t *bytes = malloc(len + 1);
            (void)titan__internal__agent_job_record__pack(a->record, bytes);
            x->record = titan__internal__agent_job_record__unpack(NULL, len, bytes);
            free(bytes);
            if (x->record->accepted)
                note_key(note_form(x->record->accepted), x->record->accepted, false);
            break;
        case AGENT_SEND:
            if (!w.coordinator || !x->session)
                break;
            if (a->send->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_HEARTBEAT)
                answer_heartbeat(n, a->send->heartbeat->number);
            else
                coordinator_hears(a->send);
            break;
        case AGENT_COMMAND:
            assert_int_equal(a->worker_id, n + 1);
            if (x->worker)
                worker_hear(n, a->command);
            break;
        case AGENT_STOP_WORKER:
            kill_worker(n);
            break;
        case AGENT_LOG:
            if (getenv("TRACE"))
                print_message("# %6" PRId64 " %s: %s %s\n", w.now, x->name, a->text, a->pairs);
            break;
        case AGENT_PEER:
            if (getenv("TRACE") && strcmp(getenv("TRACE"), "2") == 0)
                print_message("# %6" PRId64 " %s -> %s: %d\n", w.now, x->name, a->text, a->peer->kind_case);
            post(n, a->text, a->peer);
            break;
        default:
            break;
        }
    }
}

static void deliver(void)
{
    for (int i = 0; i < w.n_network; i++) {
        struct datagram d = w.network[i];
        if (d.at > w.now)
            continue;
        w.network[i--] = w.network[--w.n_network];
        if (w.nodes[d.to].alive && w.nodes[d.from].side == w.nodes[d.to].side)
            INPUT(d.to, agent_core_peer, d.m, w.nodes[d.from].address);
        titan__internal__peer_message__free_unpacked(d.m, NULL);
    }
}

/* --- the coordinator ---------------------------------------------------------------------------------------------- */

static void say_ack(int n)
{
    Titan__Internal__RegistrationAck ack = TITAN__INTERNAL__REGISTRATION_ACK__INIT;
    Titan__Internal__CoordinatorMessage m = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    ack.term = w.term;
    ack.heartbeat_ms = 50;
    ack.away_ms = AWAY_MS;
    ack.leader_lease_ms = LEASE_MS;
    m.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK;
    m.ack = &ack;
    coordinator_says(n, &m);
}

static void ack(int n)
{
    w.nodes[n].session = true;
    INPUT(n, agent_core_session_up);
    say_ack(n);
}

static void form(uint64_t epoch, uint64_t source)
{
    static uint32_t worlds[] = {1, 2, 3, 4};
    Titan__Internal__Member members[N], *list[N];
    uint64_t holders[N];
    uint64_t id[2] = {draw(), draw()}, key[4] = {epoch, id[0], w.term, 77};
    form_epoch f = TITAN__INTERNAL__FORM_EPOCH__INIT;
    Titan__Internal__CoordinatorMessage m = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    for (int i = 0; i < N; i++) {
        if (!w.nodes[i].worker || !w.nodes[i].session)
            continue;
        Titan__Internal__Member *x = &members[f.n_members];
        titan__internal__member__init(x);
        x->worker_id = (uint64_t)i + 1;
        x->node = w.nodes[i].name;
        x->address = w.nodes[i].address;
        x->peer_address = w.nodes[i].address;
        list[f.n_members] = x;
        holders[f.n_members++] = x->worker_id;
    }
    f.job_id = JOB;
    f.epoch = epoch;
    f.comm_id = (ProtobufCBinaryData){16, (uint8_t *)id};
    f.key = (ProtobufCBinaryData){w.keyed ? sizeof(key) : 0, (uint8_t *)key};
    f.members = list;
    f.worlds = worlds;
    f.n_worlds = f.n_members - 1;
    f.source = source ? TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY : TITAN__INTERNAL__STATE_SOURCE__STATE_INIT;
    f.source_epoch = source;
    f.state_holders = holders;
    f.n_state_holders = source ? f.n_members : 0;
    m.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM;
    m.form = &f;
    w.commanded_epoch = epoch;
    for (int i = 0; i < N; i++)
        if (w.nodes[i].session && i != w.deaf)
            coordinator_says(i, &m);
}

static void revoke_epoch(uint64_t epoch)
{
    Titan__Internal__RevokeEpoch r = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    Titan__Internal__CoordinatorMessage m = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    r.job_id = JOB;
    r.epoch = epoch;
    m.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE;
    m.revoke = &r;
    for (int i = 0; i < N; i++)
        if (w.nodes[i].session)
            coordinator_says(i, &m);
}

static void coordinator_goes(void)
{
    w.coordinator = false;
    for (int i = 0; i < N; i++)
        if (w.nodes[i].session) {
            w.nodes[i].session = false;
            INPUT(i, agent_core_session_down);
        }
}

static void coordinator_comes(void)
{
    w.coordinator = true;
    w.term++;
    for (int i = 0; i < N; i++)
        if (w.nodes[i].alive)
            ack(i);
}

/* --- the world ---------------------------------------------------------------------------------------------------- */

static void advance(int64_t ms)
{
    for (int64_t until = w.now + ms; w.now < until; w.now += TICK_MS) {
        deliver();
        workers_advance();
        for (int i = 0; i < N; i++) {
            struct node *x = &w.nodes[i];
            if (!x->alive && x->restart_at && w.now >= x->restart_at) {
                x->restart_at = 0;
                agent_up(i);
                if (w.coordinator)
                    ack(i);
            }
            if (!x->alive)
                continue;
            if (x->worker && w.now % 25 == 0) {
                struct agent_sample s = sample_of(x);
                INPUT(i, agent_core_sample, (uint64_t)i + 1, &s);
            }
            if (agent_core_deadline(x->core) <= w.now)
                INPUT(i, agent_core_tick);
        }
    }
}

static void world_new(uint64_t seed)
{
    memset(&w, 0, sizeof(w));
    w.random = seed;
    w.keyed = seed % 4 != 3; /* the others: of an older version */
    w.deaf = -1;
    w.now = 1000;
    w.coordinator = true;
    w.term = 1;
    for (int i = 0; i < N; i++) {
        struct node *x = &w.nodes[i];
        (void)snprintf(x->name, sizeof(x->name), "n%d", i);
        (void)snprintf(x->address, sizeof(x->address), "10.0.0.%d:1", i);
        x->worker = true;
        agent_up(i);
        ack(i);
    }
    form(1, 0);
    advance(2000);
    assert_true(w.furthest > 10);
}

static void world_free(void)
{
    for (int i = 0; i < N; i++) {
        agent_core_free(w.nodes[i].core);
        if (w.nodes[i].record)
            titan__internal__agent_job_record__free_unpacked(w.nodes[i].record, NULL);
    }
    for (int i = 0; i < w.n_network; i++)
        titan__internal__peer_message__free_unpacked(w.network[i].m, NULL);
    for (int i = 0; i < w.n_seen; i++)
        for (int k = 0; k < 2; k++)
            free(w.seen[i].keys[k].data);
}

static void part(unsigned others)
{
    for (int i = 0; i < N; i++)
        w.nodes[i].side = others >> i & 1;
}

static uint64_t newest_trained(void)
{
    return w.committed_by[w.furthest];
}

/* A coordinator that is back forms the next epoch of all that live, above what it was told of and what was refused. */
static void coordinator_takes_over(void)
{
    part(0);
    coordinator_comes();
    assert_true(w.reported == 0 || w.reported >= newest_trained());
    revoke_epoch(MAX(w.reported, w.commanded_epoch));
    advance(1500);
    for (int tries = 0; tries < 3; tries++) {
        size_t refused = w.refused;
        form(MAX(w.reported, w.commanded_epoch) + 1, newest_trained());
        if (w.refused == refused)
            break;
    }
    uint64_t before = w.furthest;
    advance(1000);
    assert_true(w.furthest > before + 10);
    assert_int_equal(newest_trained(), w.commanded_epoch);
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void test_death_without_coordinator(void **state)
{
    (void)state;
    world_new(1);
    coordinator_goes();
    advance(3000); /* it goes on as if nothing were */
    assert_int_equal(newest_trained(), 1);
    uint64_t before = w.furthest;
    kill_worker(0); /* the acting leader's own */
    int64_t begin = w.now;
    while (w.furthest == before && w.now < begin + 10000)
        advance(TICK_MS);
    print_message("# a worker dies while the coordinator is away: training again after %" PRId64 " ms\n",
                  w.now - begin);
    assert_true(w.now < begin + 1500);
    assert_int_equal(newest_trained(), 1024);
    kill_worker(3);
    advance(2000);
    assert_int_equal(newest_trained(), 2048);
    coordinator_takes_over();
    assert_true(w.reported == 2048 && w.commanded_epoch == 2049);
    world_free();
}

/* A registration lies in a link while an epoch is formed: its acknowledgement is answered with what it does not tell.
 */
static void test_old_registration(void **state)
{
    (void)state;
    world_new(9);
    coordinator_goes();
    for (int i = 0; i < N; i++) {
        w.nodes[i].session = true;
        INPUT(i, agent_core_session_up);
    }
    kill_worker(0);
    advance(3000);
    assert_int_equal(newest_trained(), 1024);
    assert_int_equal(w.reported, 0);
    w.coordinator = true;
    w.term++;
    say_ack(1);
    assert_int_equal(w.reported, 1024);
    world_free();
}

/* others: the side without node 0. */
static void partition(unsigned others, uint64_t seed)
{
    world_new(seed);
    w.loss = 0.2;
    coordinator_goes();
    advance(1500);
    part(others);
    advance(4000);
    unsigned bigger = __builtin_popcount(others) >= 3 ? others : ~others & ((1u << N) - 1);
    assert_int_equal(newest_trained() % 1024, 0);
    assert_true(newest_trained() >= 1024);
    for (int i = 0; i < w.n_seen; i++)
        if (w.seen[i].epoch == newest_trained())
            assert_int_equal(w.seen[i].members, (uint64_t)bigger << 1);
    coordinator_takes_over();
    world_free();
}

static void test_partitions(void **state)
{
    (void)state;
    partition(0x18, 2);      /* 3, 4 | 0, 1, 2: the acting leader with the majority */
    partition(0x07 << 2, 3); /* 2, 3, 4 | 0, 1: and without */
}

static void test_no_majority(void **state)
{
    (void)state;
    world_new(4);
    coordinator_goes();
    advance(1500);
    part(0x04); /* 2 | 0, 1, 3, 4, of which then only two are left */
    kill_worker(1);
    agent_dies(3, true);
    advance(6000);
    assert_int_equal(newest_trained(), 1);
    coordinator_takes_over();
    world_free();
}

static void test_lease_ends(void **state)
{
    (void)state;
    world_new(5);
    coordinator_goes();
    advance(1500);
    kill_worker(4);
    advance(3000);
    assert_int_equal(newest_trained(), 1024);
    advance(LEASE_MS / 4);
    agent_dies(0, false); /* the next agent of its node does not begin another lease */
    agent_up(0);
    advance(LEASE_MS - LEASE_MS / 4);
    uint64_t at = w.furthest;
    advance(3000);
    assert_int_equal(w.furthest, at); /* paused, all of them */
    for (int i = 0; i < 4; i++)
        assert_int_equal(w.nodes[i].phase, TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED);
    coordinator_takes_over();
    world_free();
}

static void test_not_while_heard(void **state)
{
    (void)state;
    world_new(6);
    kill_worker(2);
    advance(5000);
    assert_int_equal(newest_trained(), 1); /* the coordinator's to decide */
    for (int i = 0; i < N; i++)
        assert_int_equal(agent_core_counters(w.nodes[i].core)->promises, 0);
    world_free();
}

/* A run that ends while there is no coordinator: its members leave one after the other, and none is missed. */
static void test_finished(void **state)
{
    (void)state;
    world_new(7);
    coordinator_goes();
    advance(1500);
    for (int i = 0; i < N; i++) {
        Titan__Internal__WorkerFinished done = TITAN__INTERNAL__WORKER_FINISHED__INIT;
        Titan__Internal__WorkerToAgent m = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
        const struct agent_exit how = {.reason = ""};
        done.job_id = JOB;
        done.worker_id = (uint64_t)i + 1;
        m.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FINISHED;
        m.finished = &done;
        INPUT(i, agent_core_worker, done.worker_id, &m);
        advance(500);
        w.nodes[i].worker = false;
        INPUT(i, agent_core_exited, done.worker_id, &how);
        advance(500);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(agent_core_counters(w.nodes[i].core)->promises, 0);
    world_free();
}

/* The acting leader dies at every moment of its work. */
static void test_leader_dies(void **state)
{
    (void)state;
    int64_t slowest = 0;
    for (int64_t after = 0; after < 1200; after += 15) {
        world_new(100 + (uint64_t)after);
        w.loss = 0.1;
        coordinator_goes();
        advance(1500);
        kill_worker(4);
        advance(after);
        agent_dies(0, true);
        uint64_t before = w.furthest;
        int64_t begin = w.now;
        advance(TICK_MS);
        while (w.furthest <= before + 1 && w.now < begin + 20000)
            advance(TICK_MS);
        slowest = MAX(slowest, w.now - begin);
        assert_true(w.now < begin + 10000);
        coordinator_takes_over();
        world_free();
    }
    print_message("# an acting leader dies at any moment: the others train again after %" PRId64 " ms at most\n",
                  slowest);
}

static void random_fault(void)
{
    switch (below(6)) {
    case 0:
        kill_worker((int)below(N));
        break;
    case 1: {
        int n = (int)below(N);
        if (w.nodes[n].alive) {
            agent_dies(n, chance(0.3));
            w.nodes[n].restart_at = w.now + 1 + (int64_t)below(2000);
        }
        break;
    }
    case 2:
    case 3:
        part((unsigned)below(1u << N));
        break;
    case 4:
        part(0);
        break;
    default:
        if (w.coordinator)
            coordinator_goes();
    }
}

/* --- messages without authority ----------------------------------------------------------------------------------- */

/* Node 4 hears this, as if node 1 had said it, unless from says otherwise. */
static struct proof_keys keys_of_4(void)
{
    struct proof_keys keys = {0};
    proof_add_epoch(&keys, w.nodes[4].record->accepted);
    return keys;
}

static void say_under(Titan__Internal__PeerMessage *m, const struct proof_keys *keys, const char *from)
{
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    m->job_id = JOB;
    m->from = w.nodes[1].name;
    m->to = m->to && *m->to ? m->to : w.nodes[4].name;
    m->term = w.term;
    proof_make(m, keys, proofs);
    INPUT(4, agent_core_peer, m, from ? from : w.nodes[1].address);
}

/* from: elsewhere, and without a key. */
static void say_as(Titan__Internal__PeerMessage *m, const char *from)
{
    struct proof_keys keys = keys_of_4();
    keys.n = from ? 0 : keys.n;
    say_under(m, &keys, from);
}

/* The accepted epoch with another number, as a commit or a proposal. The caller's form may be changed. */
static form_epoch *copy_of_accepted(uint64_t epoch)
{
    const form_epoch *accepted = w.nodes[4].record->accepted;
    size_t len = titan__internal__form_epoch__get_packed_size(accepted);
    uint8_t *bytes = malloc(len + 1);
    (void)titan__internal__form_epoch__pack(accepted, bytes);
    form_epoch *f = titan__internal__form_epoch__unpack(NULL, len, bytes);
    free(bytes);
    f->epoch = epoch;
    f->source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    f->source_epoch = accepted->epoch;
    memset(f->comm_id.data, 0x5a, f->comm_id.len);
    return f;
}

static void say_form(Titan__Internal__PeerMessage__KindCase kind, form_epoch *f, const char *from)
{
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    m.id = 99;
    m.kind_case = kind;
    if (kind == TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT)
        m.commit = f;
    else
        m.propose = f;
    uint8_t key[MAC_BYTES] = "the key of that epoch, covered";
    struct proof_keys keys = keys_of_4();
    proof_cover(keys.key[0], f, key);
    if (kind == TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT && keys.n)
        m.covered_key = (ProtobufCBinaryData){sizeof(key), key};
    say_as(&m, from);
}
#define SAY_COMMIT(f, from) say_form(TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT, f, from)
#define SAY_PROPOSE(f, from) say_form(TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE, f, from)

static void say_revoke(uint64_t number, const char *from)
{
    Titan__Internal__RevokeEpoch r = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    r.job_id = JOB;
    r.epoch = agent_core_epoch(w.nodes[4].core, JOB);
    m.number = number;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_REVOKE;
    m.revoke = &r;
    say_as(&m, from);
}

static uint64_t promised_by_4(void)
{
    return w.nodes[4].record->promised_epoch;
}

static bool is_held(const struct datagram *d)
{
    return d->to == 0 && d->m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_QUIESCED;
}

/* Node 0 leads, has revoked the epoch, and waits for what workers hold: that stays in the network. */
static void lead_until_revoked(uint64_t seed)
{
    bool revoked = false;
    world_new(seed);
    coordinator_goes();
    kill_worker(4);
    for (int64_t until = w.now + 10000; w.now < until && !revoked;) {
        advance(TICK_MS);
        for (int i = 0; i < w.n_network; i++)
            revoked |=
                w.network[i].from == 0 && w.network[i].m->kind_case == TITAN__INTERNAL__PEER_MESSAGE__KIND_REVOKE;
    }
    assert_true(revoked);
    for (int64_t until = w.now + 200; w.now < until;) {
        for (int i = 0; i < w.n_network; i++)
            if (is_held(&w.network[i]))
                w.network[i].at = w.now + 1000;
        advance(TICK_MS);
    }
}

static void deliver_held(void)
{
    int held = 0;
    for (int i = 0; i < w.n_network; i++)
        if (is_held(&w.network[i])) {
            w.network[i].at = w.now;
            held++;
        }
    assert_true(held >= 3);
    deliver();
}

/* The leader hears a coordinator and accepts its epoch: what comes late does not bring the leader's own, which is
 * older. */
static void test_heard_while_revoking(void **state)
{
    (void)state;
    lead_until_revoked(8);
    coordinator_comes();
    form(UINT64_C(1) << 20, 1);
    assert_int_equal(agent_core_epoch(w.nodes[0].core, JOB), UINT64_C(1) << 20);
    deliver_held();
    assert_int_equal(agent_core_epoch(w.nodes[0].core, JOB), UINT64_C(1) << 20);
    world_free();
}

/* The leader promises a higher number to another one: it does not commit its own any more. */
static void test_promised_while_revoking(void **state)
{
    (void)state;
    lead_until_revoked(8);
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    struct proof_keys keys = keys_of_4();
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    m.id = 99;
    m.job_id = JOB;
    m.from = w.nodes[1].name;
    m.to = w.nodes[0].name;
    m.term = w.term;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE;
    m.propose = copy_of_accepted(UINT64_C(1) << 20);
    proof_make(&m, &keys, proofs);
    INPUT(0, agent_core_peer, &m, w.nodes[1].address);
    titan__internal__form_epoch__free_unpacked(m.propose, NULL);
    assert_int_equal(w.nodes[0].record->promised_epoch, UINT64_C(1) << 20);
    deliver_held();
    assert_int_equal(agent_core_epoch(w.nodes[0].core, JOB), 1);
    world_free();
}

/* While the coordinator is heard nothing that a peer says moves a run, also where the number was promised before. */
static void test_said_while_heard(void **state)
{
    (void)state;
    world_new(11);
    uint64_t numbers[] = {1024, 1025, UINT64_C(1) << 33, UINT64_MAX - 1023, UINT64_MAX};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        form_epoch *f = copy_of_accepted(numbers[i]);
        SAY_PROPOSE(f, NULL);
        assert_int_equal(promised_by_4(), 0);
        SAY_COMMIT(f, NULL);
        f->source = TITAN__INTERNAL__STATE_SOURCE__STATE_INIT;
        SAY_COMMIT(f, NULL);
        say_revoke(numbers[i], NULL);
        assert_int_equal(agent_core_epoch(w.nodes[4].core, JOB), 1);
        titan__internal__form_epoch__free_unpacked(f, NULL);
    }
    uint64_t before = w.furthest;
    advance(1000);
    assert_true(w.furthest > before + 10);
    assert_int_equal(newest_trained(), 1);
    world_free();
}

/* Without a coordinator: what was promised, of a member's agent, within the numbers there can be. */
static void test_said_while_away(void **state)
{
    (void)state;
    world_new(12);
    w.loss = 1; /* the others say nothing: this is about one agent */
    coordinator_goes();
    advance(AWAY_MS + 200);
    const uint64_t far[] = {(UINT64_C(1) << 32) + 2, UINT64_C(1) << 33, UINT64_MAX - 1023, UINT64_MAX};
    for (size_t i = 0; i < sizeof(far) / sizeof(far[0]); i++) {
        form_epoch *f = copy_of_accepted(far[i]);
        SAY_PROPOSE(f, NULL);
        SAY_COMMIT(f, NULL);
        assert_int_equal(promised_by_4(), 0);
        titan__internal__form_epoch__free_unpacked(f, NULL);
    }
    form_epoch *f = copy_of_accepted(UINT64_C(1) << 20);
    SAY_COMMIT(f, NULL);          /* not promised */
    SAY_PROPOSE(f, "10.0.0.9:1"); /* from elsewhere */
    f->members[0]->worker_id = 77;
    SAY_PROPOSE(f, NULL); /* with an unknown sender in it */
    f->members[0]->worker_id = f->members[1]->worker_id;
    SAY_PROPOSE(f, NULL); /* with one that is there twice */
    f->members[0]->worker_id = 1;
    f->job_id = JOB + 1;
    SAY_PROPOSE(f, NULL);
    f->job_id = JOB;
    f->comm_id.len = 15;
    SAY_PROPOSE(f, NULL);
    f->comm_id.len = 16;
    assert_int_equal(promised_by_4(), 0);
    SAY_PROPOSE(f, NULL);
    assert_int_equal(promised_by_4(), UINT64_C(1) << 20);
    say_revoke((UINT64_C(1) << 20) - 1, NULL);
    assert_int_equal(w.nodes[4].quiet_at, 0);
    say_revoke(UINT64_C(1) << 20, "10.0.0.9:1");
    assert_int_equal(w.nodes[4].quiet_at, 0);
    say_revoke(UINT64_C(1) << 20, NULL);
    assert_int_not_equal(w.nodes[4].quiet_at, 0);
    f->comm_id.data[0] ^= 1;
    SAY_COMMIT(f, NULL); /* another communicator */
    f->comm_id.data[0] ^= 1;
    f->epoch++;
    SAY_COMMIT(f, NULL); /* above the promise */
    f->epoch--;
    size_t n = f->n_members;
    f->n_members = 2;
    SAY_COMMIT(f, NULL); /* a minority */
    f->n_members = n;
    SAY_COMMIT(f, "10.0.0.9:1");
    assert_int_equal(agent_core_epoch(w.nodes[4].core, JOB), 1);
    world_free();
    titan__internal__form_epoch__free_unpacked(f, NULL);
}

/* A commit of what was promised is taken, and of it only the members: not where from, nor which files. */
static void test_commit_believed(void **state)
{
    (void)state;
    world_new(13);
    w.loss = 1;
    coordinator_goes();
    advance(AWAY_MS + 200);
    form_epoch *f = copy_of_accepted(UINT64_C(1) << 20);
    f->members[0]->worker_id = 1;
    SAY_PROPOSE(f, NULL);
    f->source = TITAN__INTERNAL__STATE_SOURCE__STATE_CHECKPOINT;
    f->checkpoint_path = strdup("/x/another/step-00000009");
    free(f->members[0]->address);
    f->members[0]->address = strdup("10.6.6.6:1");
    f->memory_only = false;
    SAY_COMMIT(f, NULL);
    const form_epoch *accepted = w.nodes[4].record->accepted;
    assert_int_equal(accepted->epoch, UINT64_C(1) << 20);
    assert_int_equal(accepted->source, TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY);
    assert_true(accepted->memory_only);
    assert_string_equal(accepted->checkpoint_path, "");
    assert_string_equal((char *)accepted->key.data, "the key of that epoch, covered");
    assert_string_equal(accepted->members[0]->address, w.nodes[0].address);
    for (size_t i = 0; i < accepted->n_worlds; i++)
        assert_true(accepted->worlds[i] < accepted->n_members);
    world_free();
    titan__internal__form_epoch__free_unpacked(f, NULL);
}

/* An agent that has promised and hears the coordinator again takes neither a revocation nor a commit: its commands come
 * from there.
 */
static void test_promised_then_heard(void **state)
{
    (void)state;
    world_new(14);
    w.loss = 1;
    coordinator_goes();
    advance(AWAY_MS + 200);
    form_epoch *f = copy_of_accepted(UINT64_C(1) << 20);
    SAY_PROPOSE(f, NULL);
    assert_int_equal(promised_by_4(), UINT64_C(1) << 20);
    coordinator_comes();
    advance(200);
    f->members[0]->worker_id = 1;
    say_revoke(UINT64_C(1) << 20, NULL);
    SAY_COMMIT(f, NULL);
    assert_int_equal(w.nodes[4].quiet_at, 0);
    assert_int_equal(agent_core_epoch(w.nodes[4].core, JOB), 1);
    world_free();
    titan__internal__form_epoch__free_unpacked(f, NULL);
}

static size_t answers_to(const char *name, const char *from, const struct proof_keys *keys)
{
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    Titan__Internal__PeerState s = TITAN__INTERNAL__PEER_STATE__INIT;
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    struct agent_actions out;
    size_t n = 0;
    agent_actions_init(&out);
    m.id = 5;
    m.job_id = JOB;
    m.from = (char *)name;
    m.term = w.term;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_ASK;
    m.ask = &s;
    m.to = w.nodes[4].name;
    proof_make(&m, keys, proofs);
    agent_core_peer(w.nodes[4].core, &m, from, w.now, &out);
    for (const struct agent_action *a = out.first; a; a = a->next) {
        if (a->kind != AGENT_PEER)
            continue;
        assert_string_equal(a->text, w.nodes[1].address);
        n++;
    }
    agent_actions_free(&out);
    return n;
}

/* Where a job stands is told to its members' agents only, where those are. */
static void test_ask(void **state)
{
    const struct proof_keys none = {0};
    struct proof_keys other = {.n = 1};
    (void)state;
    world_new(15); /* of an older version */
    assert_false(w.keyed);
    assert_int_equal(answers_to("zz", "10.0.0.9:1", &none), 0);
    assert_int_equal(answers_to("zz", w.nodes[1].address, &none), 0);
    assert_int_equal(answers_to("n1", "10.0.0.9:1", &none), 0);
    assert_int_equal(answers_to("n1", w.nodes[1].address, &none), 1);
    world_free();
    world_new(16);
    assert_true(w.keyed);
    struct proof_keys right = keys_of_4();
    assert_int_equal(answers_to("n1", w.nodes[1].address, &none), 0);
    assert_int_equal(answers_to("n1", w.nodes[1].address, &other), 0);
    assert_int_equal(answers_to("zz", w.nodes[1].address, &right), 0);
    assert_int_equal(answers_to("n1", "10.0.0.9:1", &right), 1); /* sent where n1 is */
    assert_int_equal(agent_core_counters(w.nodes[4].core)->unproved, 3);
    world_free();
}

/* What counts is the key of the accepted epoch, for this node, for just this message. */
static void test_proofs(void **state)
{
    (void)state;
    world_new(17);
    w.loss = 1;
    const struct proof_keys right = keys_of_4(), none = {0};
    revoke_epoch(1);
    advance(500);
    form(2, 1); /* its key is another */
    advance(500);
    const struct proof_keys newer = keys_of_4();
    assert_false(mac_equal(right.key[0], newer.key[0]));
    coordinator_goes();
    advance(AWAY_MS + 200);
    form_epoch *f = copy_of_accepted(UINT64_C(1) << 20);
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    uint8_t root[MAC_BYTES], proofs[PROOF_KEYS_MAX * MAC_BYTES];
    struct proof_keys wrong = {0};
    m.id = 99;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE;
    m.propose = f;
    memcpy(root, w.nodes[4].record->accepted->key.data, MAC_BYTES);
    proof_add_key(&wrong, root);
    say_under(&m, &none, NULL);
    say_under(&m, &wrong, NULL); /* the epoch's key itself, which is for no datagram */
    proof_mesh(w.nodes[4].record->accepted, root);
    wrong.n = 0;
    proof_add_key(&wrong, root);
    say_under(&m, &wrong, NULL); /* what workers have */
    m.to = w.nodes[3].name;
    say_under(&m, &newer, NULL); /* said to another */
    m.to = w.nodes[4].name;
    proof_make(&m, &newer, proofs);
    f->epoch += 1024; /* changed on the way */
    INPUT(4, agent_core_peer, &m, w.nodes[1].address);
    f->epoch -= 1024;
    assert_int_equal(promised_by_4(), 0);
    assert_int_equal(agent_core_counters(w.nodes[4].core)->unproved, 5);
    say_under(&m, &newer, "10.0.0.9:1"); /* wherever it comes from */
    assert_int_equal(promised_by_4(), UINT64_C(1) << 20);
    world_free();
    titan__internal__form_epoch__free_unpacked(f, NULL);
}

/* An epoch of a coordinator that one member has not heard of; the next is agreed on under the key of the one before,
 * and that member gets its key with the commit. */
static void test_key_of_an_epoch_missed(void **state)
{
    (void)state;
    world_new(18);
    revoke_epoch(1);
    advance(500);
    w.deaf = 4;
    form(2, 1);
    advance(200);
    coordinator_goes();
    advance(1500);
    assert_int_equal(agent_core_epoch(w.nodes[0].core, JOB), 2);
    assert_int_equal(agent_core_epoch(w.nodes[4].core, JOB), 1);
    kill_worker(0);
    advance(3000);
    assert_int_equal(newest_trained(), 1024);
    for (int i = 1; i < N; i++)
        assert_int_equal(agent_core_epoch(w.nodes[i].core, JOB), 1024);
    kill_worker(1);
    advance(3000);
    assert_int_equal(newest_trained(), 2048);
    w.deaf = -1;
    coordinator_takes_over();
    world_free();
}

/* An epoch without a key, of an older coordinator, out of which the next one has none either; the proof is under the
 * key of the epoch before. */
static void test_commit_without_key(void **state)
{
    (void)state;
    world_new(20);
    revoke_epoch(1);
    advance(500);
    form(2, 1);
    advance(200);
    coordinator_goes();
    w.loss = 1;
    agent_dies(4, false);
    ProtobufCBinaryData *key = &w.nodes[4].record->accepted->key;
    free(key->data);
    *key = (ProtobufCBinaryData){0};
    w.keyed = false;
    agent_up(4);
    advance(AWAY_MS + 200);
    struct proof_keys keys = {0};
    assert_int_equal(w.nodes[4].record->n_before, 1);
    proof_add_epoch(&keys, w.nodes[4].record->before[0]);
    form_epoch *f = copy_of_accepted(UINT64_C(1) << 20);
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    m.id = 99;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PROPOSE;
    m.propose = f;
    say_under(&m, &keys, NULL);
    assert_int_equal(promised_by_4(), UINT64_C(1) << 20);
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_COMMIT;
    m.commit = f;
    say_under(&m, &keys, NULL);
    assert_int_equal(w.nodes[4].record->accepted->epoch, UINT64_C(1) << 20);
    assert_int_equal(w.nodes[4].record->accepted->key.len, 0);
    w.keyed = true;
    world_free();
    titan__internal__form_epoch__free_unpacked(f, NULL);
}

/* An answer of long ago brings no node back to life. */
static void test_old_state(void **state)
{
    (void)state;
    world_new(20);
    coordinator_goes();
    advance(1500);
    Titan__Internal__PeerState s = TITAN__INTERNAL__PEER_STATE__INIT;
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    uint64_t alive = 1;
    s.epoch = 1;
    s.alive = &alive;
    s.n_alive = 1;
    m.id = 12345;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_STATE;
    m.state = &s;
    agent_dies(0, true);
    for (int i = 0; i < 600; i++) { /* again and again, in the name of the agent of the lowest rank */
        for (int n = 1; n < N; n++) {
            uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
            struct proof_keys keys = {0};
            proof_add_epoch(&keys, w.nodes[n].record->accepted);
            m.job_id = JOB;
            m.from = w.nodes[0].name;
            m.to = w.nodes[n].name;
            m.term = w.term;
            proof_make(&m, &keys, proofs);
            INPUT(n, agent_core_peer, &m, w.nodes[0].address);
        }
        advance(TICK_MS);
    }
    assert_int_equal(newest_trained(), 1024);
    world_free();
}

static uint64_t n_leader_epochs, last_seed;

static int say_seed(void **state)
{
    (void)state;
    print_message("# the last schedule was of SEED=%" PRIu64 "\n", last_seed);
    return 0;
}

static void schedule(uint64_t seed)
{
    world_new(seed);
    w.loss = (double)below(40) / 100;
    coordinator_goes();
    advance((int64_t)below(2500));
    for (int i = 0; i < 8 && w.now < 14000; i++) {
        random_fault();
        advance((int64_t)below(2000));
    }
    n_leader_epochs += newest_trained() > 1;
    int living = 0;
    for (int i = 0; i < N; i++)
        living += w.nodes[i].worker;
    advance(2500); /* an agent that restarts is back */
    if (living > 0) {
        bool holder = false; /* of the furthest step */
        for (int i = 0; i < N; i++)
            holder |= w.nodes[i].worker && w.nodes[i].step == w.furthest && w.nodes[i].installed == newest_trained();
        if (holder)
            coordinator_takes_over();
    }
    world_free();
}

static void test_random(void **state)
{
    (void)state;
    const char *seed = getenv("SEED"), *count = getenv("SCHEDULES");
    uint64_t n = seed ? 1 : count ? strtoull(count, NULL, 10) : (uint64_t)sliced(60, 300);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t s = seed ? strtoull(seed, NULL, 10) : 1000 + i;
        last_seed = s;
        schedule(s);
    }
    print_message("# %" PRIu64 " of %" PRIu64 " schedules trained epochs of acting leaders\n", n_leader_epochs, n);
    assert_true(seed || n_leader_epochs > n / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        quick(test_death_without_coordinator),
        quick(test_old_registration),
        quick(test_partitions),
        quick(test_no_majority),
        quick(test_lease_ends),
        quick(test_not_while_heard),
        quick(test_finished),
        quick(test_leader_dies),
        quick(test_heard_while_revoking),
        quick(test_promised_while_revoking),
        quick(test_said_while_heard),
        quick(test_said_while_away),
        quick(test_commit_believed),
        quick(test_promised_then_heard),
        quick(test_ask),
        quick(test_proofs),
        quick(test_key_of_an_epoch_missed),
        quick(test_commit_without_key),
        quick(test_old_state),
        longer(test_random, .teardown_func = say_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
