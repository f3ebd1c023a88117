/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's part in the protocol, without a process: sequences of commands that are duplicated, reordered and old,
 * with a model beside it, and its deadlines on a clock of the test's own. TITAN_TEST_SEED repeats a run. */
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/support/seeded.h"
#include "worker/elastic/member.h"

#define JOB 3
#define WORKER 7
#define KIND(k) TITAN__INTERNAL__AGENT_TO_WORKER__KIND_##k
#define SAID(k) TITAN__INTERNAL__WORKER_TO_AGENT__KIND_##k
#define PHASE(p) TITAN__INTERNAL__WORKER_PHASE__WORKER_##p

static uint64_t seed;

/* --- a host that writes down what it is told ---------------------------------------------------------------------- */

static struct {
    struct member *m;
    int reported[16], outputs; /* by kind; calls of any kind */
    struct quiesced quiesced;
    uint64_t refused_epoch, revoked, checkpoint_step;
    int revokes, ends, notes, next_world;
    bool has_address; /* in its last registration */
    enum member_end why;
    char words[256];
    int64_t now;
} h;

static void host_say(void *arg, const Titan__Internal__WorkerToAgent *m)
{
    (void)arg;
    assert_true(member_state(h.m)->connected);
    h.outputs++;
    h.reported[m->kind_case]++;
    if (m->kind_case == SAID(QUIESCED))
        h.quiesced = (struct quiesced){.epoch = m->quiesced->epoch,
                                       .last_step = m->quiesced->last_step,
                                       .paused = m->quiesced->paused,
                                       .installed_epoch = m->quiesced->installed_epoch};
    if (m->kind_case == SAID(REGISTRATION))
        h.has_address = *m->registration->address;
    if (m->kind_case == SAID(REFUSED))
        h.refused_epoch = m->refused->epoch;
    if (m->kind_case == SAID(CHECKPOINT))
        h.checkpoint_step = m->checkpoint->step;
}

static void host_expect(void *arg, int world)
{
    (void)arg;
    h.next_world = world;
}

static void host_revoke(void *arg, uint64_t epoch)
{
    (void)arg;
    h.outputs++;
    h.revokes++;
    h.revoked = epoch;
}

static void host_end(void *arg, enum member_end why, const char *words)
{
    (void)arg;
    h.outputs++;
    h.ends++;
    h.why = why;
    (void)snprintf(h.words, sizeof h.words, "%s", words);
}

static void host_note(void *arg, const char *sentence, const char *pairs)
{
    (void)arg;
    (void)sentence;
    (void)pairs;
    h.notes++;
}

static void begin_opening(void)
{
    const struct member_options options = {.job_id = JOB, .worker_id = WORKER, .pid = 1, .address = "10.0.0.1:5"};
    const struct member_host host = {
        .send = host_say, .expect = host_expect, .revoke = host_revoke, .end = host_end, .note = host_note};

    memset(&h, 0, sizeof h);
    h.now = 1000;
    h.m = member_open(&options, &host, h.now);
    assert_non_null(h.m);
    member_connected(h.m, h.now);
}

static void begin(void)
{
    begin_opening();
    member_opened(h.m);
}

/* --- what an agent says ------------------------------------------------------------------------------------------- */

static bool hear(uint64_t term, Titan__Internal__AgentToWorker__KindCase kind, void *part)
{
    Titan__Internal__AgentToWorker m = TITAN__INTERNAL__AGENT_TO_WORKER__INIT;
    m.term = term;
    m.kind_case = kind;
    m.form = part;
    return member_hear(h.m, &m, h.now);
}

struct form_options {
    uint64_t job;
    int world, rank, departing;
    size_t id_len;
    const char *node[4];
};

static bool hear_form_of(uint64_t term, uint64_t epoch, int id, const struct form_options *o)
{
    Titan__Internal__FormEpoch form = TITAN__INTERNAL__FORM_EPOCH__INIT;
    Titan__Internal__Member members[4], *list[4];
    unsigned char comm_id[16];
    uint64_t holders[2] = {WORKER, 4242};

    memset(comm_id, id, sizeof comm_id);
    for (int i = 0; i < o->world + o->departing; i++) {
        titan__internal__member__init(&members[i]);
        members[i].worker_id = i == o->rank ? WORKER : 100 + (uint64_t)i;
        members[i].address = (char *)(i % 2 ? "10.0.0.1:5" : "10.0.0.2:6");
        if (o->node[i])
            members[i].node = (char *)o->node[i];
        list[i] = &members[i];
    }
    form.job_id = o->job;
    form.epoch = epoch;
    form.comm_id.data = comm_id;
    form.comm_id.len = o->id_len;
    form.members = list;
    form.n_members = (size_t)o->world;
    form.departing = list + o->world;
    form.n_departing = (size_t)o->departing;
    form.state_holders = holders;
    form.n_state_holders = 2;
    form.source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    return hear(term, KIND(FORM), &form);
}

static bool hear_form(uint64_t term, uint64_t epoch, int id)
{
    return hear_form_of(term, epoch, id, &(struct form_options){.job = JOB, .world = 2, .rank = 1, .id_len = 16});
}

static void hear_revoke(uint64_t term, uint64_t epoch)
{
    Titan__Internal__RevokeEpoch revoke = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    revoke.job_id = JOB;
    revoke.epoch = epoch;
    (void)hear(term, KIND(REVOKE), &revoke);
}

static void hear_pause(uint64_t term, uint64_t epoch, bool checkpoint, bool go_on)
{
    Titan__Internal__PauseJob o = TITAN__INTERNAL__PAUSE_JOB__INIT;
    o.job_id = JOB;
    o.epoch = epoch;
    o.checkpoint = checkpoint;
    o.go_on = go_on;
    (void)hear(term, KIND(PAUSE), &o);
}

static void hear_leases(uint64_t term, uint32_t ms, int64_t epoch_until)
{
    Titan__Internal__WorkerLease lease = TITAN__INTERNAL__WORKER_LEASE__INIT;
    lease.lease_ms = ms;
    lease.epoch_until_ms = epoch_until;
    (void)hear(term, KIND(LEASE), &lease);
}

static void hear_lease(uint64_t term, uint32_t ms)
{
    hear_leases(term, ms, 0);
}

static void hear_committed(uint64_t step)
{
    Titan__Internal__CheckpointCommitted c = TITAN__INTERNAL__CHECKPOINT_COMMITTED__INIT;
    c.job_id = JOB;
    c.step = step;
    (void)hear(0, KIND(CHECKPOINT_COMMITTED), &c);
}

static void enter(uint64_t epoch)
{
    struct epoch_view view;
    assert_true(hear_form(0, epoch, 1));
    assert_int_equal(member_next(h.m, &view), MEMBER_FORM);
    assert_int_equal(view.epoch, epoch);
}

static void leave(uint64_t epoch, uint64_t step)
{
    member_quiesced(h.m, &(struct quiesced){.epoch = epoch, .last_step = step, .installed_epoch = epoch});
}

/* --- random commands ---------------------------------------------------------------------------------------------- */

enum { EPOCHS = 64, COMMANDS_PER_RUN = 200, RUNS = 400 };

/* What the protocol asks of a worker, in as few words as possible. */
struct model {
    uint64_t term, seen, revoked, offered, epoch;
    int ids[EPOCHS + 8]; /* communicator of every epoch that was taken on */
    bool in, in_revoked;
};

enum verb { FORM, REVOKE, PAUSE, VERBS };
struct command {
    enum verb verb;
    uint64_t term, epoch;
    int id;
};

static uint32_t draw(struct rng_key key, uint64_t *counter, uint32_t below)
{
    uint32_t words[4];
    rng_philox(key, (*counter)++, 0, words);
    return words[0] % below;
}

static void deliver(const struct command *o)
{
    if (o->verb == FORM)
        (void)hear_form(o->term, o->epoch, o->id);
    else if (o->verb == REVOKE)
        hear_revoke(o->term, o->epoch);
    else
        hear_pause(o->term, o->epoch, false, false);
}

static void model_hear(struct model *m, const struct command *o)
{
    if (o->term < m->term)
        return;
    m->term = o->term;
    if (o->verb == FORM && o->epoch > m->seen) {
        m->seen = m->offered = o->epoch;
        m->ids[o->epoch] = o->id;
        m->in_revoked = m->in;
    }
    if (o->verb == REVOKE && o->epoch > m->revoked && o->epoch >= m->epoch) {
        m->revoked = o->epoch;
        m->seen = o->epoch > m->seen ? o->epoch : m->seen;
        m->in_revoked = m->in;
        if (m->offered <= o->epoch)
            m->offered = 0;
    }
}

static void compare(const struct model *m)
{
    const struct member_state *s = member_state(h.m);
    assert_int_equal(s->term, m->term);
    assert_int_equal(s->seen, m->seen);
    assert_int_equal(s->revoked, m->revoked);
    assert_int_equal(s->offered, m->offered);
    assert_int_equal(s->epoch, m->epoch);
    assert_int_equal(s->in, m->in);
    assert_int_equal(s->in_revoked, m->in_revoked);
}

/* The same command once more, and one of an older term, leave everything as it is and say nothing but a refusal. */
static void no_effect(const struct command *o, const char *what)
{
    struct member_state before = *member_state(h.m), after;
    const int outputs = h.outputs - h.reported[SAID(REFUSED)];

    deliver(o);
    after = *member_state(h.m);
    before.counters = after.counters;
    if (memcmp(&before, &after, sizeof before) != 0 || outputs != h.outputs - h.reported[SAID(REFUSED)])
        fail_msg("%s command had an effect: verb %d term %" PRIu64 " epoch %" PRIu64, what, (int)o->verb, o->term,
                 o->epoch);
}

static void model_next(struct model *m)
{
    struct epoch_view view;
    const enum member_answer answer = member_next(h.m, &view);

    if (!m->offered) {
        assert_int_equal(answer, MEMBER_WAIT);
        return;
    }
    assert_int_equal(answer, MEMBER_FORM);
    assert_int_equal(view.epoch, m->offered);
    assert_true(view.epoch > m->epoch && view.epoch > m->revoked);
    assert_int_equal(view.comm_id[0], m->ids[m->offered]);
    m->epoch = m->offered;
    m->offered = 0;
    m->in = true;
    m->in_revoked = false;
}

/* Out of its epoch, and of any that was taken back since: the newest of them is what it says last. */
static void model_leave(struct model *m, uint64_t step)
{
    leave(m->epoch, step);
    m->in = m->in_revoked = false;
    if (!member_state(h.m)->connected)
        return;
    assert_int_equal(h.quiesced.epoch, m->revoked > m->epoch ? m->revoked : m->epoch);
    assert_int_equal(h.quiesced.last_step, step);
}

static void one_run(struct rng_key key, uint64_t *counter)
{
    struct model m = {0};
    struct command received[COMMANDS_PER_RUN];
    int n = 0;

    begin();
    while (n < COMMANDS_PER_RUN) {
        const uint32_t what = draw(key, counter, 10);
        const uint64_t step = draw(key, counter, 1000);
        if (what < 5) { /* around where it stands: a little ahead, or behind */
            struct command *o = &received[n++];
            const uint64_t from = m.seen > 3 ? m.seen - 3 : 0;
            *o = (struct command){.verb = (enum verb)draw(key, counter, VERBS),
                                  .term = m.term + draw(key, counter, 12) / 11,
                                  .epoch = from + 1 + draw(key, counter, 5),
                                  .id = 1 + (int)draw(key, counter, 2)};
            if (m.term > 0 && draw(key, counter, 6) == 0)
                o->term = m.term - 1;
            const int revokes = h.revokes;
            const bool was_revoked = m.in_revoked;
            if (o->term < m.term)
                no_effect(o, "older");
            deliver(o);
            model_hear(&m, o);
            assert_int_equal(h.revokes - revokes, m.in_revoked && !was_revoked ? 1 : 0);
            no_effect(o, "repeated");
        } else if (what < 6 && n > 0) { /* one from long ago */
            const struct command *o = &received[draw(key, counter, (uint32_t)n)];
            deliver(o);
            model_hear(&m, o);
        } else if (what < 7) {
            if (!m.in)
                model_next(&m);
        } else if (what < 8) {
            if (m.in)
                model_leave(&m, step);
        } else if (what < 9) {
            if (member_state(h.m)->connected)
                member_disconnected(h.m);
            else
                member_connected(h.m, h.now);
        } else {
            hear_lease(0, 1000);
            h.now += 10;
            member_tick(h.m, h.now, (uint64_t)h.now); /* it moves */
        }
        compare(&m);
        if (m.seen >= EPOCHS)
            break;
    }
    assert_int_equal(h.ends, 0);
    member_close(h.m);
}

static void test_random_commands(void **state)
{
    (void)state;
    const struct rng_key key = rng_key(seed, "member");
    uint64_t counter = 0;

    for (int i = 0; i < RUNS; i++)
        one_run(key, &counter);
}

/* --- one by one --------------------------------------------------------------------------------------------------- */

static void test_fencing(void **state)
{
    (void)state;
    begin();
    assert_true(hear_form(5, 3, 1));
    assert_int_equal(h.notes, 0);
    assert_false(hear_form(4, 4, 1)); /* an older term */
    hear_revoke(4, 3);
    hear_revoke(0, 3);
    assert_int_equal(member_state(h.m)->counters.fenced, 3);
    assert_int_equal(h.notes, 1); /* once */
    assert_int_equal(member_state(h.m)->offered, 3);
    assert_false(hear_form(5, 3, 1)); /* again */
    assert_int_equal(member_state(h.m)->counters.duplicates, 1);
    assert_int_equal(h.reported[SAID(REFUSED)], 0);
    assert_false(hear_form(6, 3, 2)); /* the number is taken, whatever the term */
    assert_int_equal(h.reported[SAID(REFUSED)], 1);
    assert_int_equal(h.refused_epoch, 3);
    assert_int_equal(member_state(h.m)->counters.conflicts, 1);
    assert_int_equal(member_state(h.m)->term, 6);
    assert_false(hear_form(6, 2, 1)); /* over */
    assert_int_equal(member_state(h.m)->counters.stale, 1);
    member_disconnected(h.m);
    member_connected(h.m, h.now); /* another sender, perhaps: told of again */
    const int notes = h.notes;
    hear_revoke(4, 3);
    hear_revoke(4, 3);
    assert_int_equal(h.notes, notes + 1);
    member_close(h.m);
}

static void test_nonsense(void **state)
{
    (void)state;
    const struct form_options bad[] = {
        {.job = JOB + 1, .world = 2, .id_len = 16},
        {.job = JOB, .world = 0, .rank = 0, .id_len = 16},
        {.job = JOB, .world = 2, .rank = 3, .id_len = 16},
        {.job = JOB, .world = 2, .id_len = 15},
    };
    begin();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(hear_form_of(1, 1, 1, &bad[i]));
    assert_false(hear_form(1, 0, 1));
    assert_int_equal(member_state(h.m)->counters.nonsense, 5);
    assert_int_equal(h.notes, 1);
    assert_int_equal(member_state(h.m)->seen, 0);
    assert_true(hear_form(1, 1, 1));
    member_close(h.m);
}

static void test_view(void **state)
{
    (void)state;
    struct epoch_view v;
    const struct form_options o = {
        .job = JOB, .world = 2, .departing = 2, .rank = 3, .id_len = 16, .node = {"a", "b", "a", "b"}};
    begin();
    assert_true(hear_form_of(1, 9, 4, &o));
    assert_int_equal(member_next(h.m, &v), MEMBER_FORM);
    assert_int_equal(v.epoch, 9);
    assert_int_equal(v.rank, 3);
    assert_int_equal(v.world, 2);
    assert_int_equal(v.departing, 2);
    assert_string_equal(v.addresses[3], "10.0.0.1:5");
    assert_string_equal(v.addresses[2], "10.0.0.2:6");
    assert_int_equal(v.nodes[0], v.nodes[2]);
    assert_int_equal(v.nodes[1], v.nodes[3]);
    assert_int_not_equal(v.nodes[0], v.nodes[1]);
    assert_int_equal(v.holders, 2);
    assert_int_equal(v.holder_ranks[0], 3);
    assert_int_equal(v.holder_ranks[1], -1);
    assert_int_equal(v.source, STATE_FROM_MEMORY);
    member_close(h.m);
}

#define MANY 900 /* members and departing ranks */

/* Of many: which is on which node, and which ranks the holders have, by looking at all pairs. */
static void test_view_of_many(void **state)
{
    (void)state;
    static Titan__Internal__Member members[MANY], *list[MANY];
    static uint64_t holders[MANY];
    static char names[MANY][16];
    const struct rng_key key = rng_key(seed, "many");
    uint64_t counter = 0;
    struct epoch_view v;
    Titan__Internal__FormEpoch form = TITAN__INTERNAL__FORM_EPOCH__INIT;
    unsigned char comm_id[16] = {1};
    const int nodes = 1 + (int)draw(key, &counter, MANY);

    for (int r = 0; r < MANY; r++) {
        titan__internal__member__init(&members[r]);
        (void)snprintf(names[r], sizeof names[r], "n%u", draw(key, &counter, (uint32_t)nodes));
        members[r].worker_id = r == 7 ? WORKER : 1000 + 16 * (uint64_t)r;
        members[r].node = names[r];
        members[r].address = (char *)"10.0.0.1:5";
        list[r] = &members[r];
        holders[r] = 1000 + 8 * (uint64_t)draw(key, &counter, 2 * MANY); /* half of them are of no worker */
    }
    form.job_id = JOB;
    form.epoch = 9;
    form.comm_id = (ProtobufCBinaryData){.data = comm_id, .len = sizeof comm_id};
    form.members = list;
    form.n_members = MANY - 100;
    form.departing = list + MANY - 100;
    form.n_departing = 100;
    form.state_holders = holders;
    form.n_state_holders = MANY;
    form.source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    begin();
    assert_true(hear(1, KIND(FORM), &form));
    assert_int_equal(member_next(h.m, &v), MEMBER_FORM);
    for (int r = 0; r < MANY; r++) {
        int node = 0, rank = 0;
        while (strcmp(names[node], names[r]) != 0)
            node++;
        while (rank < MANY && members[rank].worker_id != holders[r])
            rank++;
        assert_int_equal(v.nodes[r], node);
        assert_int_equal(v.holder_ranks[r], rank < MANY ? rank : -1);
    }
    member_close(h.m);
}

/* Two epochs are over before the first is left: both are said to be. */
static void test_revoked_on_offer(void **state)
{
    (void)state;
    struct epoch_view v;
    begin();
    enter(5);
    assert_true(hear_form(0, 6, 1));
    assert_int_equal(h.revoked, 5);
    hear_revoke(0, 6);
    assert_int_equal(h.revokes, 1);
    assert_int_equal(h.reported[SAID(QUIESCED)], 0); /* it is still in 5 */
    leave(5, 41);
    assert_int_equal(h.reported[SAID(QUIESCED)], 2);
    assert_int_equal(h.quiesced.epoch, 6);
    assert_int_equal(h.quiesced.last_step, 41);
    assert_int_equal(h.quiesced.installed_epoch, 5);
    assert_int_equal(member_next(h.m, &v), MEMBER_WAIT);
    hear_revoke(0, 7); /* out of everything: at once */
    assert_int_equal(h.quiesced.epoch, 7);
    assert_true(hear_form(0, 8, 1));
    assert_int_equal(member_next(h.m, &v), MEMBER_FORM);
    member_close(h.m);
}

static void test_commands(void **state)
{
    (void)state;
    struct epoch_view v;
    const struct form_options first = {.job = JOB, .world = 2, .rank = 0, .id_len = 16};
    begin();
    assert_true(hear_form(0, 1, 1));
    hear_pause(0, 1, true, false); /* on offer: not lost */
    assert_int_equal(member_next(h.m, &v), MEMBER_FORM);
    assert_int_equal(member_commands(h.m), COMMAND_PAUSE | COMMAND_CHECKPOINT | COMMAND_MUST);
    leave(1, 10);
    enter(2);
    assert_int_equal(member_commands(h.m), 0);
    hear_pause(0, 1, false, false); /* over */
    assert_int_equal(member_commands(h.m), 0);
    hear_pause(0, 2, true, true); /* this is rank 1 */
    assert_int_equal(member_commands(h.m), 0);
    leave(2, 20);
    assert_true(hear_form_of(0, 3, 1, &first));
    assert_int_equal(member_next(h.m, &v), MEMBER_FORM);
    hear_pause(0, 3, true, true);
    assert_int_equal(member_commands(h.m), COMMAND_CHECKPOINT | COMMAND_MUST);
    assert_int_equal(member_commands(h.m), 0); /* once */
    Titan__Internal__WorkerStop stop = TITAN__INTERNAL__WORKER_STOP__INIT;
    stop.reason = (char *)"enough";
    (void)hear(0, KIND(STOP), &stop);
    assert_int_equal(member_commands(h.m), COMMAND_STOP);
    stop.checkpoint = true; /* as the recipe says */
    (void)hear(0, KIND(STOP), &stop);
    assert_int_equal(member_commands(h.m), COMMAND_STOP | COMMAND_CHECKPOINT);
    stop.must_checkpoint = true;
    (void)hear(0, KIND(STOP), &stop);
    stop.must_checkpoint = stop.checkpoint =
        false; /* said again by a coordinator that knows less: nothing is taken back */
    (void)hear(0, KIND(STOP), &stop);
    assert_int_equal(member_commands(h.m), COMMAND_STOP | COMMAND_CHECKPOINT | COMMAND_MUST);
    assert_int_equal(member_next(h.m, &v), MEMBER_STOPPED);
    assert_string_equal(member_stop_reason(h.m), "enough");
    member_close(h.m);
}

/* The size of the epoch to come is for its members and for those that join them: a pause means nothing else to these.
 */
static void test_next_world(void **state)
{
    (void)state;
    Titan__Internal__PauseJob o = TITAN__INTERNAL__PAUSE_JOB__INIT;
    o.job_id = JOB;
    o.epoch = 4;
    begin();
    o.world = 3;
    (void)hear(0, KIND(PAUSE), &o);
    assert_int_equal(h.next_world, 3);
    assert_int_equal(h.notes, 0);
    assert_int_equal(member_state(h.m)->counters.stale, 0);
    enter(5);
    assert_int_equal(member_commands(h.m), 0);
    o.epoch = 5;
    o.world = 2;
    (void)hear(0, KIND(PAUSE), &o);
    assert_int_equal(h.next_world, 2);
    assert_int_equal(member_commands(h.m), COMMAND_PAUSE);
    hear_pause(0, 5, false, false); /* it is unknown */
    assert_int_equal(h.next_world, 2);
    member_close(h.m);
}

/* A worker that still opens its data and its device is not ready, whichever agent it meets. */
static void test_ready_once_opened(void **state)
{
    (void)state;
    begin_opening();
    assert_false(h.has_address);
    member_disconnected(h.m);
    member_connected(h.m, h.now);
    assert_int_equal(h.reported[SAID(REGISTRATION)], 2);
    assert_int_equal(h.reported[SAID(READY)], 0);
    member_opened(h.m);
    assert_int_equal(h.reported[SAID(READY)], 1);
    member_disconnected(h.m);
    member_connected(h.m, h.now);
    assert_true(h.has_address);
    assert_int_equal(h.reported[SAID(READY)], 2);
    member_close(h.m);

    begin_opening();
    member_disconnected(h.m);
    member_opened(h.m); /* no one to tell */
    assert_int_equal(h.reported[SAID(READY)], 0);
    member_connected(h.m, h.now);
    assert_int_equal(h.reported[SAID(READY)], 1);
    member_close(h.m);

    begin_opening();
    hear_revoke(0, 3); /* it goes to all of the job's workers on a node */
    member_disconnected(h.m);
    member_opened(h.m);
    member_connected(h.m, h.now);
    assert_int_equal(h.reported[SAID(READY)], 1);
    member_close(h.m);
}

/* The agent dies with what it was told: the next one hears it. */
static void test_said_again(void **state)
{
    (void)state;
    begin();
    assert_int_equal(h.reported[SAID(READY)], 1);
    member_disconnected(h.m);
    member_connected(h.m, h.now);
    assert_int_equal(h.reported[SAID(READY)], 2); /* still idle */
    enter(1);
    member_state_ready(h.m, &(struct state_ready){.epoch = 1, .damaged_checkpoint = ""});
    for (uint64_t step = 1; step <= MEMBER_UNCONFIRMED_MAX + 2; step++)
        member_checkpoint_written(h.m, &(struct checkpoint_report){.step = step, .bytes = 1, .path = "/c", .world = 2});
    member_evaluated(h.m, &(struct evaluation_report){.step = 4, .tokens = 7, .loss = 2});
    assert_int_equal(h.reported[SAID(EVALUATED)], 1);
    memset(h.reported, 0, sizeof h.reported);
    member_disconnected(h.m);
    member_progress(h.m, &(struct step_report){.step = 8}, 0);
    member_connected(h.m, h.now);
    assert_int_equal(h.reported[SAID(REGISTRATION)], 1);
    assert_int_equal(h.reported[SAID(READY)], 0);
    assert_int_equal(h.reported[SAID(STATE_READY)], 1);
    assert_int_equal(h.reported[SAID(EVALUATED)], 1);
    assert_int_equal(h.reported[SAID(PROGRESS)], 0); /* only worth something fresh */
    assert_int_equal(h.reported[SAID(CHECKPOINT)], MEMBER_UNCONFIRMED_MAX);
    assert_int_equal(h.checkpoint_step, MEMBER_UNCONFIRMED_MAX + 2);
    hear_committed(MEMBER_UNCONFIRMED_MAX + 1);
    leave(1, 8);
    memset(h.reported, 0, sizeof h.reported);
    member_connected(h.m, h.now);
    assert_int_equal(h.reported[SAID(CHECKPOINT)], 1);
    assert_int_equal(h.reported[SAID(QUIESCED)], 1);
    assert_int_equal(h.reported[SAID(STATE_READY)], 0);
    enter(2);
    memset(h.reported, 0, sizeof h.reported);
    member_connected(h.m, h.now);
    assert_int_equal(h.reported[SAID(EVALUATED)], 0); /* of an epoch that is over: its step may be trained again */
    member_finished(h.m, 99);
    member_connected(h.m, h.now);
    assert_int_equal(h.reported[SAID(FINISHED)], 2);
    assert_false(hear_form(0, 3, 1)); /* it has nothing left to do */
    member_close(h.m);
}

/* --- time --------------------------------------------------------------------------------------------------------- */

/* Tick at every deadline until the time has come; actions move with the time when told so. */
static void run_until(int64_t until, bool moving)
{
    while (!h.ends && member_deadline(h.m) <= until) {
        h.now = member_deadline(h.m);
        member_tick(h.m, h.now, moving ? (uint64_t)h.now : 17);
    }
    if (!h.ends)
        h.now = until;
}

static void test_lease(void **state)
{
    (void)state;
    begin();
    enter(1);
    hear_lease(0, 500);
    run_until(1400, false);
    hear_lease(0, 500); /* renewed */
    run_until(1899, false);
    assert_int_equal(member_commands(h.m), 0);
    member_disconnected(h.m);
    member_connected(h.m, h.now); /* a connection alone does not keep it */
    run_until(1900, false);
    assert_int_equal(member_commands(h.m), COMMAND_STOP | COMMAND_CHECKPOINT);
    assert_true(member_state(h.m)->lease_over);
    run_until(1900 + MEMBER_LEASE_GRACE_MS - 1, false);
    assert_int_equal(h.ends, 0);
    run_until(1900 + MEMBER_LEASE_GRACE_MS, false);
    assert_int_equal(h.ends, 1);
    assert_int_equal(h.why, MEMBER_END_LEASE);
    member_close(h.m);
}

/* The machine stands still for ten leases: what its agent said or would have said meanwhile comes right behind. */
static void test_lease_on_a_machine_that_stood_still(void **state)
{
    (void)state;
    begin();
    enter(1);
    hear_lease(0, 800);
    run_until(h.now + 300, false);
    member_tick(h.m, h.now += 8000, 17);
    assert_int_equal(member_commands(h.m), 0);
    const int64_t from = h.now;
    run_until(from + 399, false);
    assert_int_equal(member_commands(h.m), 0);
    /* An agent that says nothing all the same is gone: what was left of the lease counts from there. */
    run_until(from + 400, false);
    assert_int_equal(member_commands(h.m), COMMAND_STOP | COMMAND_CHECKPOINT);
    member_close(h.m);
}

/* Its agent cannot say that the epoch is over: it leaves by itself, and stays. */
static void test_epoch_lease(void **state)
{
    (void)state;
    begin();
    hear_leases(0, 100000, 1500);
    enter(1);
    run_until(1400, false);
    hear_leases(0, 100000, 2000); /* the coordinator was heard */
    run_until(1999, false);
    assert_int_equal(h.revokes, 0);
    run_until(2000, false);
    assert_int_equal(h.revoked, 1);
    leave(1, 7);
    run_until(20000, false);
    assert_int_equal(h.revokes, 1);
    assert_false(member_state(h.m)->stopped);
    /* Neither does it enter another one that came too late. */
    struct epoch_view view;
    assert_true(hear_form(0, 2, 1));
    member_tick(h.m, h.now, 17);
    assert_int_equal(member_next(h.m, &view), MEMBER_WAIT);
    assert_int_equal(h.quiesced.epoch, 2);
    assert_int_equal(h.quiesced.installed_epoch, 1);
    hear_leases(0, 100000, h.now + 500);
    enter(3);
    hear_leases(0, 100000, 0); /* epochs have none */
    run_until(h.now + 50000, false);
    assert_int_equal(h.revokes, 1);
    member_close(h.m);
}

/* From the revoke to the end, and how the worker behaves in between. */
static int64_t killed_after(double step_ms, bool moving)
{
    begin();
    hear_lease(0, 1000000);
    enter(1);
    member_progress(h.m, &(struct step_report){.step = 1, .step_ms = 100 * step_ms}, 0); /* one long step */
    member_progress(h.m, &(struct step_report){.step = 2, .step_ms = step_ms}, 0);
    member_tick(h.m, h.now += 5, 17);
    const int64_t from = h.now;
    hear_revoke(0, 1);
    run_until(from + 900000, moving);
    assert_int_equal(h.ends, 1);
    assert_int_equal(h.why, MEMBER_END_UNQUIESCED);
    assert_int_equal(member_deadline(h.m), INT64_MAX);
    return h.now - from;
}

static void test_never_quiesces(void **state)
{
    (void)state;
    assert_int_equal(killed_after(10, false), MEMBER_QUIESCE_MS);
    assert_string_equal(h.words, "did not leave epoch 1 in 1000 ms; at action 17");
    member_close(h.m);
    /* What is under way on a device may take a step. */
    assert_int_equal(killed_after(2000, false), 3000);
    member_close(h.m);
    /* It moves, but recovery does not wait for ever. */
    assert_int_equal(killed_after(10, true), MEMBER_QUIESCE_MOVING * MEMBER_QUIESCE_MS);
    member_close(h.m);
    /* It left: nothing happens. */
    begin();
    hear_lease(0, 1000000);
    enter(1);
    hear_revoke(0, 1);
    run_until(h.now + 900, false);
    leave(1, 3);
    run_until(h.now + 100000, false);
    assert_int_equal(h.ends, 0);
    member_close(h.m);
}

/* The machine stands still while the epoch is left: the training thread has not had that time either. */
static void test_quiesces_on_a_machine_that_stood_still(void **state)
{
    (void)state;
    begin();
    hear_lease(0, 1000000);
    enter(1);
    hear_revoke(0, 1);
    run_until(h.now + 500, false);
    member_tick(h.m, h.now += 8000, 17);
    assert_int_equal(h.ends, 0);
    const int64_t from = h.now;
    run_until(from + 100000, false);
    assert_int_equal(h.why, MEMBER_END_UNQUIESCED);
    assert_in_range(h.now - from, 1, MEMBER_QUIESCE_MS - 500);
    member_close(h.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_commands),
        cmocka_unit_test(test_fencing),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_view),
        cmocka_unit_test(test_view_of_many),
        cmocka_unit_test(test_revoked_on_offer),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_next_world),
        cmocka_unit_test(test_ready_once_opened),
        cmocka_unit_test(test_said_again),
        cmocka_unit_test(test_lease),
        cmocka_unit_test(test_lease_on_a_machine_that_stood_still),
        cmocka_unit_test(test_epoch_lease),
        cmocka_unit_test(test_quiesces_on_a_machine_that_stood_still),
        cmocka_unit_test(test_never_quiesces),
    };

    seed = seeded_seed(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
