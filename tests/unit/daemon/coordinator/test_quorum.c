/* SPDX-License-Identifier: Apache-2.0 */
/* The right to decide, and what acting leaders have decided: five nodes with a worker each, over a store in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "daemon/coordinator/shell/store_restore.h"
#include "state/schema.h"
#include "support/core_bench.h"

#define N 5
#define LEASE 10000
#define MARGIN (LEASE / 20 + 500)
#define TRAINING TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING
#define QUIESCED TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED

static struct world {
    struct bench b;
    struct db *db;
    uint64_t term, session[N + 1]; /* of node 'a' + i - 1; 0 = silent */
    uint64_t next_session;
    int64_t beaten;
    struct {
        char types[4096], reason[256];
        uint64_t form_epoch; /* the newest FormEpoch that was sent, and to which */
        size_t form_members, form_sent, starts, stops, revokes, pauses;
        bool form_twice; /* a worker had two places in it */
    } seen;
} W;

static void start_core(void)
{
    struct core_options options = {.term = ++W.term,
                                   .seed = W.term,
                                   .jobs_dir = "/jobs",
                                   .next_worker_id = 100 * (W.term - 1) + 1,
                                   .leader_lease_ms = LEASE};
    assert_int_equal(core_new(&options, &W.b.core, NULL), TITAN_OK);
}

static uint64_t worker_at(const Titan__Internal__FormEpoch *f, size_t i)
{
    return i < f->n_members ? f->members[i]->worker_id : f->departing[i - f->n_members]->worker_id;
}

static bool worker_twice(const Titan__Internal__FormEpoch *f)
{
    for (size_t i = 0; i < f->n_members + f->n_departing; i++)
        for (size_t k = 0; k < i; k++)
            if (worker_at(f, i) == worker_at(f, k))
                return true;
    return false;
}

/* Store what came out, and look at it. */
static void commit(void)
{
    struct titan_error err = {0};
    for (const struct change *k = W.b.out.changes; k; k = k->next) {
        if (k->has_event && strlen(W.seen.types) + strlen(k->event.type) + 2 < sizeof(W.seen.types))
            (void)strcat(strcat(W.seen.types, " "), k->event.type);
        if (k->kind == CHANGE_JOB_REASON || k->kind == CHANGE_JOB_MOVE)
            (void)snprintf(W.seen.reason, sizeof(W.seen.reason), "%s", k->job.reason);
    }
    for (const struct batch_message *m = W.b.out.messages; m; m = m->next) {
        W.seen.starts += m->message->kind_case == START;
        W.seen.stops += m->message->kind_case == STOP;
        W.seen.revokes += m->message->kind_case == REVOKE;
        W.seen.pauses += m->message->kind_case == PAUSE;
        if (m->message->kind_case != FORM)
            continue;
        W.seen.form_epoch = m->message->form->epoch;
        W.seen.form_members = m->message->form->n_members;
        W.seen.form_twice |= worker_twice(m->message->form);
        W.seen.form_sent++;
    }
    assert_int_equal(db_exec(W.db, "BEGIN", &err), TITAN_OK);
    if (change_apply(W.db, W.b.out.changes, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(db_exec(W.db, "COMMIT", &err), TITAN_OK);
    batch_free(&W.b.out);
}

static void forget_seen(void)
{
    memset(&W.seen, 0, sizeof(W.seen));
}

static bool told_of(const char *type)
{
    return strstr(W.seen.types, type) != NULL;
}

/* Node i registers, with its worker i in that phase of an epoch, and an acting leader's epoch (or NULL). */
static void registers(int i, uint64_t epoch, int phase, Titan__Internal__LeaderEpoch *leader_epochs)
{
    char node[2] = {(char)('a' + i - 1), '\0'};
    Titan__Internal__LiveWorker live = TITAN__INTERNAL__LIVE_WORKER__INIT, *list = &live;
    Titan__Internal__WorkerQuiesced q = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    live.job_id = 1;
    live.worker_id = (uint64_t)i;
    live.epoch = q.epoch = q.installed_epoch = epoch;
    live.step = q.last_step = 7;
    q.job_id = 1;
    q.worker_id = live.worker_id;
    live.state = (uint32_t)phase;
    live.address = (char *)"h:1";
    live.quiesced = phase == QUIESCED ? &q : NULL;
    body.node = node;
    body.slots = 1;
    body.device = (char *)"cpu";
    body.incarnation = 1;
    body.address = (char *)"here";
    body.installation = (ProtobufCBinaryData){NODE_INSTALLATION, (uint8_t[NODE_INSTALLATION]){(uint8_t)i}};
    body.workers = &list;
    body.n_workers = epoch > 0;
    body.leader_epochs = &leader_epochs;
    body.n_leader_epochs = leader_epochs != NULL;
    MESSAGE(m, REGISTRATION, registration, body);
    W.session[i] = ++W.next_session;
    assert_int_equal(say(&W.b, W.session[i], &m), TITAN_OK);
    commit();
}

static void back(int i, uint64_t epoch, int phase, Titan__Internal__LeaderEpoch *leader_epochs)
{
    registers(i, epoch, phase, leader_epochs);
    heartbeat(&W.b, W.session[i]);
    commit();
}

static void open_world(uint32_t min)
{
    struct titan_error err = {0};
    memset(&W, 0, sizeof(W));
    W.b.now = 1000;
    batch_init(&W.b.out);
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &W.db, &err), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, W.db, &err), TITAN_OK);
    start_core();
    for (int i = 1; i <= N; i++)
        back(i, 0, 0, NULL);
    struct job job = job_of(1, min, N);
    job.spec.max_restarts = 10;
    uint64_t existing = 0;
    assert_int_equal(job_submit(W.db, &job, "recipe", &existing, &err), TITAN_OK);
    submit_job(&W.b, &job);
    commit();
    for (int i = 1; i <= N; i++) {
        ready(&W.b, .session = W.session[i], .worker = (uint64_t)i);
        commit();
    }
    assert_int_equal(W.seen.form_epoch, 1);
    progress(&W.b, .session = W.session[1], .worker = 1, .epoch = 1, .step = 7);
    commit();
    forget_seen();
}

static void close_world(void)
{
    close_bench(&W.b);
    db_close(W.db);
}

static void pass(int64_t ms)
{
    for (int64_t end = W.b.now + ms; W.b.now < end; W.b.now += 10) {
        for (int i = 1; i <= N && W.b.now - W.beaten >= 50; i++) {
            if (!W.session[i])
                continue;
            heartbeat(&W.b, W.session[i]);
            commit();
        }
        W.beaten = W.b.now - W.beaten >= 50 ? W.b.now : W.beaten;
        core_tick(W.b.core, at(&W.b), &W.b.out);
        commit();
    }
}

/* Nodes first to last fall silent, and the others leave the epoch. */
static void lose_some(int first, int last)
{
    pass(100);
    for (int i = first; i <= last; i++)
        W.session[i] = 0;
    pass(1200);
    assert_true(told_of("node.lost"));
    for (int i = 1; i <= N; i++) {
        if (!W.session[i])
            continue;
        quiesced(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 1, .step = 7);
        commit();
    }
}

static void lose(int first)
{
    lose_some(first, N);
}

static uint32_t restarts(void)
{
    struct job_status status;
    assert_true(core_job_status(W.b.core, 1, &status));
    return status.restarts;
}

/* Whichever they are of the job's workers: the last, the first. */
static void test_minority_lost(void **state)
{
    (void)state;
    for (int first = 1; first <= 4; first += 3) {
        open_world(2);
        lose_some(first, first + 1);
        assert_int_equal(W.seen.form_epoch, 2);
        assert_int_equal(W.seen.form_members, 3);
        assert_int_equal(restarts(), 2);
        close_world();
    }
}

static void test_majority_lost(void **state)
{
    (void)state;
    open_world(2);
    lose(3);
    assert_int_equal(W.seen.form_epoch, 0);
    assert_string_equal(W.seen.reason, "waiting 10 s: 3 of 5 members cannot be reached and may go on without us; "
                                       "`titanctl node forget e` if they are gone for sure");
    assert_true(told_of("job.waiting"));
    assert_int_equal(restarts(), 0);
    pass(LEASE + MARGIN - 1200 - 300);
    assert_int_equal(W.seen.form_epoch, 0);
    pass(400);
    assert_int_equal(W.seen.form_epoch, 1 << 20); /* above all that acting leaders can have made */
    assert_int_equal(W.seen.form_members, 2);
    assert_string_equal(W.seen.reason, "");
    assert_int_equal(restarts(), 3);
    /* A node that returns now has nothing to say any more. */
    pass(1000);
    forget_seen();
    back(3, 1024, TRAINING, NULL);
    assert_int_equal(W.seen.stops, 1);
    close_world();
}

/* One after the other, by a few milliseconds: what counts is which can be reached when it is decided. */
static void test_lost_in_turn(void **state)
{
    (void)state;
    open_world(2);
    pass(100);
    for (int i = N; i > 2; i--) {
        W.session[i] = 0;
        pass(30);
    }
    pass(1200);
    for (int i = 1; i <= 2; i++) {
        quiesced(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 1, .step = 7);
        commit();
    }
    assert_int_equal(W.seen.form_epoch, 0);
    assert_int_equal(restarts(), 0);
    close_world();
}

static void test_given_up(void **state)
{
    (void)state;
    open_world(2);
    lose(3);
    assert_int_equal(core_node_forget(W.b.core, "d", at(&W.b), &W.b.out, NULL), TITAN_OK);
    commit();
    /* Two of four others are left to be unknown: no majority without us. Before, the three were one. */
    assert_int_equal(W.seen.form_epoch, 1 << 20);
    assert_int_equal(W.seen.form_members, 2);
    close_world();
}

/* On another machine, without workers: is it taken? */
static bool replaced(int i)
{
    char node[2] = {(char)('a' + i - 1), '\0'};
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = node;
    body.slots = 1;
    body.device = (char *)"cpu";
    body.address = (char *)"elsewhere";
    body.incarnation = 2;
    body.installation = (ProtobufCBinaryData){NODE_INSTALLATION, (uint8_t[NODE_INSTALLATION]){N + 1}};
    MESSAGE(m, REGISTRATION, registration, body);
    const bool taken = say(&W.b, ++W.next_session, &m) == TITAN_OK;
    commit();
    if (taken)
        W.session[i] = W.next_session;
    return taken;
}

/* Other machines get the names of a majority when the leases are over. They cannot tell which epochs the agents before
 * them have formed. */
static void test_replaced(void **state)
{
    (void)state;
    open_world(2);
    lose(3);
    for (int n = 0; n < 3;) {
        n = 0;
        for (int i = 3; i <= N; i++)
            n += W.session[i] || replaced(i);
        assert_int_equal(W.seen.form_epoch, 0);
        pass(10);
    }
    pass(2000);
    assert_int_equal(W.seen.form_epoch, 1 << 20);
    close_world();
}

/* Connected or not, at once: the run goes on without its worker, the session is dropped. */
static void test_certificate_revoked(void **state)
{
    (void)state;
    open_world(2);
    core_node_revoke(W.b.core, "nowhere", "spiffe://titan/node/nowhere", at(&W.b), &W.b.out);
    commit();
    assert_int_equal(W.seen.types[0], '\0');
    core_node_revoke(W.b.core, "d", "spiffe://titan/node/d", at(&W.b), &W.b.out);
    bool dropped = false;
    for (const struct batch_drop *d = W.b.out.drops; d; d = d->next)
        dropped |= d->session == W.session[4];
    assert_true(dropped);
    commit();
    assert_int_equal(W.seen.stops,
                     1); /* an agent that obeys ends its workers, and no other branch of the run goes on */
    assert_true(told_of("node.lost") && told_of("epoch.revoked"));
    for (int i = 1; i <= N; i++)
        if (i != 4) {
            quiesced(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 1, .step = 7);
            commit();
        }
    assert_int_equal(W.seen.form_epoch, 2); /* nothing is waited for */
    assert_int_equal(W.seen.form_members, 4);
    close_world();
}

/* A worker that returns after an epoch was decided without it is stopped. Until its end is told it may be in an acting
 * leader's epoch: the command may never arrive. */
static void test_stopped_counts_until_it_has_ended(void **state)
{
    (void)state;
    open_world(2);
    lose(4);
    assert_int_equal(W.seen.form_epoch, 2);
    forget_seen();
    for (int i = 4; i <= N; i++)
        back(i, 1, TRAINING, NULL);
    assert_int_equal(W.seen.stops, 2);
    W.session[3] = 0;
    pass(1200);
    for (int i = 1; i <= 2; i++) {
        quiesced_with(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 2, .step = 7, .installed = 1);
        commit();
    }
    assert_int_equal(W.seen.form_epoch, 0);             /* three of epoch 1, which none of them may know to be over */
    exited(&W.b, .session = W.session[1], .worker = 4); /* not its agent */
    commit();
    assert_int_equal(W.seen.form_epoch, 0);
    exited(&W.b, .session = W.session[4], .worker = 4);
    commit();
    assert_int_equal(W.seen.form_epoch, 3);
    assert_int_equal(W.seen.form_members, 2);
    close_world();
}

/* ... and not at all when its agent does not list it any more. */
static void test_unlisted_has_ended(void **state)
{
    (void)state;
    open_world(2);
    lose(4);
    forget_seen();
    back(4, 0, 0, NULL);
    W.session[3] = 0;
    pass(1200);
    for (int i = 1; i <= 2; i++) {
        quiesced_with(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 2, .step = 7, .installed = 1);
        commit();
    }
    assert_int_equal(W.seen.form_epoch, 3);
    close_world();
}

static void test_cancel_does_not_wait(void **state)
{
    (void)state;
    open_world(2);
    lose(3);
    struct core_cancel request = {.reason = ""};
    assert_int_equal(core_cancel(W.b.core, 1, &request, at(&W.b), &W.b.out, NULL), TITAN_OK);
    commit();
    for (int i = 1; i <= 2; i++) {
        exited(&W.b, .session = W.session[i], .worker = (uint64_t)i);
        commit();
    }
    struct job_status status;
    assert_false(core_job_status(W.b.core, 1, &status));
    close_world();
}

/* One of those that were cut off is back: the other two are no majority without it. */
static void test_back_in_time(void **state)
{
    (void)state;
    open_world(2);
    lose(3);
    back(3, 1, QUIESCED, NULL);
    assert_int_equal(W.seen.form_epoch, 2);
    assert_int_equal(W.seen.form_members, 3);
    assert_int_equal(restarts(), 2);
    assert_string_equal(W.seen.reason, "");
    close_world();
}

static uint8_t comm_id[16] = "sixteen bytes...";
static Titan__Internal__Member member[3], *members[3];
static uint64_t holders[5] = {1, 2, 3, 4, 5};
static Titan__Internal__FormEpoch form;

/* Epoch 1024 of workers 3 to 5, by the agent of node c. */
static Titan__Internal__LeaderEpoch leader_epoch(void)
{
    static const char *const nodes[] = {"c", "d", "e"};
    for (int i = 0; i < 3; i++) {
        titan__internal__member__init(&member[i]);
        member[i].worker_id = 3 + (uint64_t)i;
        member[i].node = (char *)nodes[i];
        members[i] = &member[i];
    }
    titan__internal__form_epoch__init(&form);
    form.job_id = 1;
    form.epoch = 1024;
    form.comm_id = (ProtobufCBinaryData){16, comm_id};
    form.members = members;
    form.n_members = 3;
    form.source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    form.source_epoch = 1;
    form.state_holders = holders;
    form.n_state_holders = 5;
    form.resume_step = 7;
    Titan__Internal__LeaderEpoch d = TITAN__INTERNAL__LEADER_EPOCH__INIT;
    d.epoch = &form;
    d.term = 1;
    d.leader = (char *)"c";
    return d;
}

static void with_leader_epoch(const struct epoch *e, void *data)
{
    *(bool *)data = e->number == 1024 && e->world_size == 3 && e->workers[0] == 3 && strcmp(e->leader, "c") == 0 &&
                    memcmp(e->comm_id, comm_id, 16) == 0 && e->source_epoch == 1;
}

static void test_leader_epoch(void **state)
{
    (void)state;
    Titan__Internal__LeaderEpoch d = leader_epoch();
    open_world(2);
    lose(3);
    forget_seen();
    back(3, 1024, TRAINING, &d);
    assert_true(told_of("epoch.delegated"));
    bool as_it_was = false;
    assert_int_equal(epoch_get(W.db, 1, 1024, with_leader_epoch, &as_it_was, NULL), TITAN_OK);
    assert_true(as_it_was);
    pass(500); /* the others' agents are on their way */
    back(4, 1024, TRAINING, &d);
    back(5, 1024, TRAINING, &d);
    progress(&W.b, .session = W.session[3], .worker = 3, .epoch = 1024, .step = 30);
    commit();
    assert_true(told_of("epoch.formed"));
    assert_int_equal(W.seen.form_sent, 0); /* agents are not sent what they have decided themselves */
    assert_int_equal(W.seen.stops, 0);
    /* Then they grow to five again, which revokes nothing. */
    for (int i = 3; i <= N; i++) {
        quiesced(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 1024, .step = 31);
        commit();
    }
    assert_int_equal(W.seen.form_epoch, 1025);
    assert_int_equal(W.seen.form_members, 5);
    assert_int_equal(restarts(), 0);
    assert_int_equal(core_counters(W.b.core)->duplicate, 2);
    /* Heard again, by way of a slow link. */
    forget_seen();
    back(4, 1025, TRAINING, &d);
    assert_false(told_of("epoch.delegated"));
    assert_int_equal(core_counters(W.b.core)->old_epoch, 1);
    close_world();
}

/* Members that have not come back are waited for, before workers that are ready are taken in. */
static void test_no_resize_while_some_are_away(void **state)
{
    (void)state;
    Titan__Internal__LeaderEpoch d = leader_epoch();
    open_world(2);
    lose(3);
    back(3, 1024, TRAINING, &d);
    progress(&W.b, .session = W.session[3], .worker = 3, .epoch = 1024, .step = 30);
    commit();
    assert_true(told_of("epoch.formed"));
    pass(500);
    assert_int_equal(W.seen.pauses, 0);
    back(4, 1024, TRAINING, &d);
    assert_int_equal(W.seen.pauses, 0);
    back(5, 1024, TRAINING, &d);
    pass(500);
    assert_true(W.seen.pauses > 0);
    close_world();
}

/* What was waited for is over with the acting leader's epoch: nothing is due while the run goes on in it. */
static void test_nothing_due_in_leader_epoch(void **state)
{
    (void)state;
    Titan__Internal__LeaderEpoch d = leader_epoch();
    open_world(2);
    lose(1);
    assert_int_equal(W.seen.form_epoch, 0);
    assert_true(told_of("job.waiting"));
    for (int i = 3; i <= N; i++)
        back(i, 1024, TRAINING, &d);
    progress(&W.b, .session = W.session[3], .worker = 3, .epoch = 1024, .step = 30);
    commit();
    assert_true(told_of("epoch.formed"));
    pass(LEASE + MARGIN);
    assert_false(told_of("epoch.revoked") && W.seen.form_epoch);
    assert_true(core_deadline(W.b.core) > W.b.now);
    close_world();
}

/* A registration from before an acting leader's epoch, heard after it: what its agent says behind it comes first. */
static void test_old_registration(void **state)
{
    (void)state;
    Titan__Internal__LeaderEpoch d = leader_epoch();
    open_world(2);
    lose(3);
    forget_seen();
    registers(3, 1, QUIESCED, NULL);
    assert_int_equal(W.seen.form_epoch, 0);
    MESSAGE(m, LEADER_EPOCH, leader_epoch, d);
    assert_int_equal(say(&W.b, W.session[3], &m), TITAN_OK);
    commit();
    assert_true(told_of("epoch.delegated"));
    quiesced(&W.b, .session = W.session[3], .worker = 3, .epoch = 1, .step = 7); /* kept by its agent until now */
    commit();
    heartbeat(&W.b, W.session[3]);
    commit();
    assert_false(told_of("epoch.revoked"));
    assert_int_equal(W.seen.form_epoch, 0);
    close_world();
}

/* What only looks like an acting leader's epoch. */
static void test_leader_epoch_nonsense(void **state)
{
    (void)state;
    Titan__Internal__LeaderEpoch d = leader_epoch();
    open_world(2);
    member[1].worker_id = 77;
    back(3, 1, TRAINING, &d);
    member[1].worker_id = 4;
    form.checkpoint_path = (char *)"/c/../of/others";
    core_set_folder(W.b.core, 1, "/c");
    back(3, 1, TRAINING, &d);
    form.checkpoint_path = (char *)"";
    form.epoch = 1 + (UINT64_C(1) << 33);
    back(3, 1, TRAINING, &d);
    form.epoch = 1024;
    back(1, 1, TRAINING, &d); /* it is not in that epoch */
    assert_false(told_of("epoch.delegated"));
    assert_int_equal(core_counters(W.b.core)->unknown_rank, 1);
    assert_int_equal(core_counters(W.b.core)->implausible, 3);
    back(3, 1, TRAINING, &d);
    assert_true(told_of("epoch.delegated"));
    close_world();
}

/* Node c tells of it, and all workers leave what they are in: the run goes on as if nothing had been said. */
static void refuses(const Titan__Internal__LeaderEpoch *d)
{
    Titan__Internal__LeaderEpoch reported = *d;
    MESSAGE(m, LEADER_EPOCH, leader_epoch, reported);
    assert_int_equal(say(&W.b, W.session[3], &m), TITAN_OK);
    commit();
    for (int i = 1; i <= N; i++) {
        quiesced(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 1, .step = 7);
        commit();
        quiesced_with(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 1024, .step = 7, .installed = 1);
        commit();
    }
    pass(1000);
    assert_false(told_of("epoch.delegated"));
    assert_int_equal(W.seen.form_epoch, 2);
    assert_int_equal(W.seen.form_members, N);
    assert_false(W.seen.form_twice);
    assert_int_equal(core_counters(W.b.core)->unknown_rank, 1);
    close_world();
}

static void test_leader_epoch_one_in_all_places(void **state)
{
    (void)state;
    static Titan__Internal__Member *crowd[64];
    Titan__Internal__LeaderEpoch d = leader_epoch();
    for (size_t i = 0; i < 64; i++)
        crowd[i] = &member[0];
    form.members = crowd;
    form.n_members = 64;
    open_world(2);
    refuses(&d);
}

static void test_leader_epoch_member_that_leaves(void **state)
{
    (void)state;
    Titan__Internal__LeaderEpoch d = leader_epoch();
    form.departing = members;
    form.n_departing = 3;
    open_world(2);
    refuses(&d);
}

static void test_leader_epoch_unknown_departing(void **state)
{
    (void)state;
    Titan__Internal__LeaderEpoch d = leader_epoch();
    Titan__Internal__Member departing = member[0], *departing_rank = &departing;
    departing.worker_id = 77;
    form.departing = &departing_rank;
    form.n_departing = 1;
    open_world(2);
    refuses(&d);
}

static void test_leader_epoch_holders(void **state)
{
    (void)state;
    uint64_t twice[] = {3, 4, 3}, strange[] = {3, 77};
    Titan__Internal__LeaderEpoch d = leader_epoch();
    form.state_holders = twice;
    form.n_state_holders = 3;
    open_world(2);
    refuses(&d);
    form.state_holders = strange;
    form.n_state_holders = 2;
    open_world(2);
    refuses(&d);
    form.state_holders = holders;
    form.n_state_holders = 5;
    form.source_epoch = form.epoch;
    open_world(2);
    refuses(&d);
}

/* A number that an acting leader has asked promises for is taken, also when nothing came of it. */
static void test_refused(void **state)
{
    (void)state;
    open_world(2);
    lose(5);
    assert_int_equal(W.seen.form_epoch, 2);
    Titan__Internal__EpochRefused body = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    body.job_id = 1;
    body.epoch = 2;
    body.seen_epoch = 1024;
    body.seen_term = 1;
    MESSAGE(m, REFUSED, refused, body);
    assert_int_equal(say(&W.b, W.session[3], &m), TITAN_OK);
    commit();
    assert_true(told_of("epoch.refused"));
    assert_true(W.seen.revokes > 0);
    for (int i = 1; i < 5; i++) {
        quiesced_with(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 2, .step = 7, .installed = 1);
        commit();
    }
    assert_int_equal(W.seen.form_epoch, 1025);
    assert_int_equal(restarts(), 1); /* the lost node alone */
    close_world();
}

static void restart(void)
{
    struct titan_error err = {0};
    core_free(W.b.core);
    for (int i = 1; i <= N; i++)
        W.session[i] = 0;
    start_core();
    assert_int_equal(core_restore(W.b.core, W.db, at(&W.b), NULL, NULL, &err), TITAN_OK);
    forget_seen();
}

/* The coordinator dies while it waits: the next one counts by the same epochs, and waits anew. */
static void test_restart_while_waiting(void **state)
{
    (void)state;
    open_world(2);
    lose(3);
    pass(5000);
    restart();
    for (int i = 1; i <= 2; i++)
        back(i, 1, QUIESCED, NULL);
    pass(LEASE + MARGIN - 300);
    assert_int_equal(W.seen.form_epoch, 0);
    assert_int_equal(restarts(), 0);
    pass(400);
    assert_int_equal(W.seen.form_epoch, 1 << 20);
    assert_int_equal(W.seen.form_members, 2);
    assert_int_equal(restarts(), 3);
    /* Again: the epoch before still counts until the new one is complete, and of three nothing has been heard. */
    restart();
    for (int i = 1; i <= 2; i++)
        back(i, 1 << 20, QUIESCED, NULL);
    pass(1000);
    assert_int_equal(W.seen.form_epoch, 0);
    pass(LEASE + MARGIN);
    assert_int_equal(W.seen.form_epoch, 2 << 20);
    close_world();
}

/* And after a restart of the coordinator alone all go on as they were. */
static void test_restart(void **state)
{
    (void)state;
    open_world(2);
    restart();
    for (int i = 1; i <= N; i++)
        back(i, 1, TRAINING, NULL);
    progress(&W.b, .session = W.session[2], .worker = 2, .epoch = 1, .step = 9);
    commit();
    pass(1000);
    assert_int_equal(W.seen.form_sent + W.seen.revokes + W.seen.stops, 0);
    close_world();
}

/* A store in which one worker has all places of the newest epoch: it has the first. */
static void test_restart_one_in_all_places(void **state)
{
    (void)state;
    struct titan_error err = {0};
    open_world(2);
    assert_int_equal(db_exec(W.db, "UPDATE members SET worker_id = 3", &err), TITAN_OK);
    restart();
    for (int i = 1; i <= N; i++)
        back(i, 1, QUIESCED, NULL);
    pass(1000);
    assert_int_equal(W.seen.form_epoch, 2);
    assert_int_equal(W.seen.form_members, N);
    assert_false(W.seen.form_twice);
    close_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_minority_lost),
        cmocka_unit_test(test_majority_lost),
        cmocka_unit_test(test_lost_in_turn),
        cmocka_unit_test(test_certificate_revoked),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_stopped_counts_until_it_has_ended),
        cmocka_unit_test(test_unlisted_has_ended),
        cmocka_unit_test(test_cancel_does_not_wait),
        cmocka_unit_test(test_back_in_time),
        cmocka_unit_test(test_old_registration),
        cmocka_unit_test(test_leader_epoch),
        cmocka_unit_test(test_no_resize_while_some_are_away),
        cmocka_unit_test(test_nothing_due_in_leader_epoch),
        cmocka_unit_test(test_leader_epoch_nonsense),
        cmocka_unit_test(test_leader_epoch_one_in_all_places),
        cmocka_unit_test(test_leader_epoch_member_that_leaves),
        cmocka_unit_test(test_leader_epoch_unknown_departing),
        cmocka_unit_test(test_leader_epoch_holders),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_restart_while_waiting),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_restart_one_in_all_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
