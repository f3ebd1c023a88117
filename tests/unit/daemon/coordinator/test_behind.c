/* SPDX-License-Identifier: Apache-2.0 */
/* A store from a backup: what agents know better is taken over. Five nodes over a store in memory, which stays as it
 * was at the backup while the test says what has happened since. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/coordinator/shell/store_restore.h"
#include "state/backup.h"
#include "state/replay.h"
#include "state/schema.h"
#include "support/core_bench.h"

#define N 5
#define LEASE 10000
#define MARGIN (LEASE / 20 + 500)
#define ADOPT 6000
#define RESTORED_TERM (3 * BACKUP_TERM_STEP + 7)
#define FIRST_EPOCH (UINT64_C(3) << 32)
#define TELL TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LIST_EPOCHS
#define ACK TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK
#define TRAINING TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING
#define QUIESCED TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED

static struct world {
    struct bench b;
    struct db *db;
    bool restored;
    uint64_t session[N + 1]; /* of node 'a' + i - 1; 0 = silent */
    uint64_t next_session;
    char types[8192];
    Titan__Internal__StopWorkers stop; /* the newest */
    size_t starts, stops, forms, answers[16];
    uint64_t form_epoch, form_resume, stopped; /* bits of workers below 64 */
    bool turned, one;                          /* the members are in the other order; all of them are the first */
    bool led;                                  /* by an acting leader, and the workers have left it */
    uint64_t departs;                          /* worker on a that hands over its state and goes; 0 = none */
    const char *from;                          /* the checkpoint that the epoch begins from; NULL = none */
} W;

static void commit(void)
{
    struct titan_error err = {0};
    for (const struct change *k = W.b.out.changes; k; k = k->next)
        if (k->has_event && strlen(W.types) + strlen(k->event.type) + 2 < sizeof(W.types))
            (void)strcat(strcat(W.types, " "), k->event.type);
    for (const struct batch_message *m = W.b.out.messages; m; m = m->next) {
        W.starts += m->message->kind_case == START;
        W.stops += m->message->kind_case == STOP;
        W.forms += m->message->kind_case == FORM;
        if (m->message->kind_case == STOP)
            W.stop = *m->message->stop;
        if (m->message->kind_case == STOP && m->message->stop->worker_ids[0] < 64)
            W.stopped |= UINT64_C(1) << m->message->stop->worker_ids[0];
        if (m->message->kind_case == FORM) {
            W.form_epoch = m->message->form->epoch;
            W.form_resume = m->message->form->resume_step;
        }
    }
    for (const struct batch_message *m = W.b.out.answers; m; m = m->next)
        W.answers[m->message->kind_case]++;
    assert_int_equal(db_exec(W.db, "BEGIN", &err), TITAN_OK);
    if (change_apply(W.db, W.b.out.changes, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(db_exec(W.db, "COMMIT", &err), TITAN_OK);
    batch_free(&W.b.out);
}

static void forget_seen(void)
{
    W.types[0] = '\0';
    W.starts = W.stops = W.forms = 0;
    memset(W.answers, 0, sizeof(W.answers));
}

static bool told_of(const char *type)
{
    return strstr(W.types, type) != NULL;
}

/* --- what an agent says ------------------------------------------------------------------------------------------- */

struct known {                  /* one job, one epoch of it, and the workers that live here */
    uint64_t job, epoch, first; /* members first, first + 1, ... one on each of nodes from.. */
    int from, members;
    const char *checkpoint;
    uint64_t here; /* worker that lives here; 0 = none */
    uint64_t step;
};

static const char *const node_names[N + 1] = {"", "a", "b", "c", "d", "e"};

static void registers(int i, bool told, const struct known *k)
{
    static unsigned char id[16] = {1, 2, 3};
    Titan__Internal__Member members[N], *list[N], departs = TITAN__INTERNAL__MEMBER__INIT, *departing = &departs;
    Titan__Internal__FormEpoch form = TITAN__INTERNAL__FORM_EPOCH__INIT, *forms = &form;
    Titan__Internal__EpochsKnown known = TITAN__INTERNAL__EPOCHS_KNOWN__INIT, *knowns = &known;
    Titan__Internal__LeaderEpoch led = TITAN__INTERNAL__LEADER_EPOCH__INIT, *leds = &led;
    Titan__Internal__LiveWorker live = TITAN__INTERNAL__LIVE_WORKER__INIT, *lives = &live;
    Titan__Internal__WorkerQuiesced holds = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = (char *)node_names[i];
    body.slots = 1;
    body.device = (char *)"cpu";
    body.incarnation = 1;
    body.lists_epochs = told;
    body.seen_term = W.restored ? 9 : 0;
    if (k && told) {
        form.job_id = known.job_id = k->job;
        form.epoch = k->epoch;
        form.comm_id.len = 16;
        form.comm_id.data = id;
        form.source = TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
        form.source_epoch = k->epoch - 1; /* of which the store knows nothing */
        for (int m = 0; m < k->members; m++) {
            titan__internal__member__init(&members[m]);
            members[m].worker_id = k->first + (uint64_t)(W.one ? 0 : W.turned ? k->members - 1 - m : m);
            members[m].node = (char *)node_names[k->from + m];
            members[m].address = (char *)"h:1";
            list[m] = &members[m];
        }
        form.checkpoint_path = (char *)(W.from ? W.from : "");
        form.members = list;
        form.n_members = (size_t)k->members;
        departs.worker_id = W.departs;
        departs.node = (char *)"a";
        form.departing = &departing;
        form.n_departing = W.departs != 0;
        known.epochs = &forms;
        known.n_epochs = 1;
        known.checkpoint_path = (char *)(k->checkpoint ? k->checkpoint : "");
        body.known = &knowns;
        body.n_known = 1;
        led.epoch = &form;
        led.leader = (char *)"a";
        body.leader_epochs = &leds;
        body.n_leader_epochs = W.led;
    }
    if (k && k->here) {
        live.job_id = k->job;
        live.worker_id = k->here;
        live.epoch = k->epoch;
        live.step = k->step;
        live.state = W.led ? QUIESCED : TRAINING;
        live.address = (char *)"h:1";
        holds.job_id = k->job;
        holds.worker_id = k->here;
        holds.epoch = holds.installed_epoch = k->epoch;
        holds.last_step = k->step;
        live.quiesced = W.led ? &holds : NULL;
        body.workers = &lives;
        body.n_workers = 1;
    }
    MESSAGE(m, REGISTRATION, registration, body);
    if (!told)
        W.session[i] = ++W.next_session;
    assert_int_equal(say(&W.b, W.session[i], &m), TITAN_OK);
    commit();
    if (W.answers[ACK] == 0)
        return;
    heartbeat(&W.b, W.session[i]);
    commit();
}

/* As an agent does: once, and once more when it is asked. */
static void back(int i, const struct known *k)
{
    forget_seen();
    registers(i, false, k);
    assert_int_equal(W.answers[TELL], 1);
    assert_int_equal(W.answers[ACK], 0); /* nothing is decided about what it has not told yet */
    assert_int_equal(W.stops, 0);
    registers(i, true, k);
    assert_int_equal(W.answers[ACK], 1);
}

static void pass(int64_t ms)
{
    for (int64_t end = W.b.now + ms; W.b.now < end; W.b.now += 50) {
        for (int i = 1; i <= N; i++)
            if (W.session[i]) {
                heartbeat(&W.b, W.session[i]);
                commit();
            }
        core_tick(W.b.core, at(&W.b), &W.b.out);
        commit();
    }
}

/* --- the world at the backup -------------------------------------------------------------------------------------- */

static void start_core(bool restored, uint64_t term)
{
    struct titan_error err = {0};
    struct core_options options = {
        .term = term, .seed = term, .jobs_dir = "/jobs", .next_worker_id = 1, .leader_lease_ms = LEASE};
    if (restored) {
        struct backup_origin origin;
        assert_int_equal(backup_origin(W.db, &origin, &err), TITAN_OK);
        options.restored_term = origin.term;
        options.backup_worker = origin.backup_worker;
        options.gone_worker = origin.gone_worker;
        options.settled = origin.settled;
        options.next_worker_id = origin.gone_worker + 1;
    }
    assert_int_equal(core_new(&options, &W.b.core, NULL), TITAN_OK);
    assert_int_equal(core_restore(W.b.core, W.db, at(&W.b), NULL, NULL, &err), TITAN_OK);
}

static void submit_stored(uint64_t id, uint32_t min, uint32_t max)
{
    struct job job = job_of(id, min, max);
    uint64_t existing = 0;
    assert_int_equal(job_submit(W.db, &job, "recipe", &existing, NULL), TITAN_OK);
    submit_job(&W.b, &job);
    commit();
}

static void restart_restored(uint64_t term)
{
    core_free(W.b.core);
    memset(W.session, 0, sizeof(W.session));
    W.b.now += 1000;
    W.restored = true;
    start_core(true, term);
    forget_seen();
}

/* Job 1 trains in epoch 1 with worker 1 on a and worker 2 on b; job 2 waits for more slots than there are. Then the
 * backup, and its return. */
static void open_world(void)
{
    struct titan_error err = {0};
    memset(&W, 0, sizeof(W));
    W.b.now = 1000;
    batch_init(&W.b.out);
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &W.db, &err), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, W.db, &err), TITAN_OK);
    start_core(false, 1);
    for (int i = 1; i <= 2; i++)
        registers(i, false, NULL);
    submit_stored(1, 2, 2);
    for (int i = 1; i <= 2; i++) {
        ready(&W.b, .session = W.session[i], .worker = (uint64_t)i);
        commit();
    }
    progress(&W.b, .session = W.session[1], .worker = 1, .epoch = 1, .step = 7);
    commit();
    submit_stored(2, 3, 3);
    assert_int_equal(db_exec(W.db,
                             "INSERT INTO meta VALUES ('restored_term', 3000007), ('backup_worker', 2),"
                             " ('last_worker', 1000002), ('settled', 0)",
                             &err),
                     TITAN_OK);
    restart_restored(RESTORED_TERM + 1);
}

static void close_world(void)
{
    struct titan_error err = {0};
    if (replay_check(W.db, NULL, NULL, NULL, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    close_bench(&W.b);
    db_close(W.db);
}

static struct job_status status_of(uint64_t job)
{
    struct job_status status;
    assert_true(core_job_status(W.b.core, job, &status));
    return status;
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

/* The run has moved to workers and a node that the store has never heard of. */
static void test_newer_epoch(void **state)
{
    (void)state;
    const struct known on_b = {1, 5, 11, 2, 2, "/c/step-00000040", 11, 50}, on_c = {1, 5, 11, 2, 2, "", 12, 51};
    open_world();
    back(1, NULL); /* where its workers were */
    assert_int_equal(W.starts + W.forms + W.stops, 0);
    back(2, &on_b);
    assert_true(told_of("epoch.restored"));
    assert_true(told_of("epoch.formed"));
    assert_true(told_of("checkpoint.committed"));
    back(3, &on_c);
    assert_false(told_of("epoch.restored")); /* once */
    assert_int_equal(W.starts + W.forms, 0);
    struct job_status s = status_of(1);
    assert_int_equal(s.epoch, 5);
    assert_int_equal(s.step, 51);
    assert_int_equal(s.world_size, 2);
    pass(ADOPT + 500);
    assert_true(told_of("store.settled"));
    s = status_of(1);
    assert_int_equal(s.epoch, 5);
    assert_int_equal(s.restarts, 0); /* those that were gone are no loss */
    assert_int_equal(W.starts + W.forms, 0);
    assert_int_equal(W.stopped & ~UINT64_C(6), 0); /* but for workers 1 and 2, should they be there */
    /* A loss: the next number is above all that were given before the restore. */
    forget_seen();
    exited(&W.b, .session = W.session[3], .worker = 12, .code = -1);
    commit();
    assert_int_equal(status_of(1).restarts, 1);
    quiesced(&W.b, .session = W.session[2], .worker = 11, .epoch = 5, .step = 51);
    commit();
    pass(400);
    assert_true(W.starts > 0);
    ready(&W.b, .session = W.session[1], .worker = 1000003);
    commit();
    pass(100);
    assert_int_equal(W.form_epoch, FIRST_EPOCH + 1);
    assert_int_equal(W.form_resume, 51);
    close_world();
}

/* The store has the epoch that agents told of, not the members of its source: it cannot be sent as it was. */
static void test_newer_epoch_is_not_sent_again(void **state)
{
    (void)state;
    const struct known told = {1, 5, 11, 2, 2, "", 0, 0}, behind = {1, 4, 11, 2, 2, "", 11, 50};
    open_world();
    back(2, &told);
    assert_true(told_of("epoch.restored"));
    restart_restored(RESTORED_TERM + 2);
    back(2, &behind); /* its worker has not heard of epoch 5 */
    assert_int_equal(W.forms, 0);
    assert_true(told_of("epoch.revoked"));
    close_world();
}

/* Another node tells of a worker on a, which has registered before and without it. */
static void test_newer_epoch_with_one_that_has_ended(void **state)
{
    (void)state;
    const struct known on_b = {1, 5, 11, 1, 2, "", 12, 50};
    open_world();
    back(1, NULL);
    back(2, &on_b);
    assert_true(told_of("epoch.restored"));
    assert_int_equal(W.starts, 0);
    pass(ADOPT + 500);
    assert_int_equal(W.starts, 1); /* in its place */
    close_world();
}

/* The node that the run has left is back first, and says at once that its worker has ended: the run goes on elsewhere.
 */
static void test_newer_epoch_with_a_departing_worker_gone(void **state)
{
    (void)state;
    const struct known of_a = {1, 5, 11, 2, 2, "", 0, 0}, on_b = {1, 5, 11, 2, 2, "", 11, 50},
                       on_c = {1, 5, 11, 2, 2, "", 12, 51};
    open_world();
    W.departs = 1;
    back(1, &of_a);
    assert_true(told_of("epoch.restored"));
    exited(&W.b, .session = W.session[1], .worker = 1, .code = -1);
    commit();
    assert_false(strstr(strstr(W.types, "epoch.restored"), "epoch.revoked"));
    back(2, &on_b);
    assert_true(told_of("epoch.formed"));
    back(3, &on_c);
    pass(ADOPT + 500);
    assert_true(told_of("store.settled"));
    assert_int_equal(status_of(1).epoch, 5);
    assert_int_equal(status_of(1).restarts, 0);
    assert_int_equal(W.starts + W.forms, 0);
    close_world();
}

/* No member tells that the epoch runs, and its departing worker is gone: once all is settled, that is a loss. */
static void test_newer_epoch_that_nobody_trains(void **state)
{
    (void)state;
    const struct known of_a = {1, 5, 11, 2, 2, "", 0, 0}, waits = {1, 4, 11, 2, 2, "", 0, 0};
    open_world();
    W.departs = 1;
    back(1, &of_a);
    exited(&W.b, .session = W.session[1], .worker = 1, .code = -1);
    commit();
    back(2, &waits);
    back(3, &waits);
    assert_false(told_of("epoch.revoked"));
    pass(ADOPT + 500);
    assert_true(told_of("store.settled"));
    assert_true(told_of("epoch.revoked"));
    close_world();
}

/* The coordinator ends between storing its first epoch and sending it, and the members train under an acting leader,
 * below that number: the stored epoch is revoked, and the next goes on from the leader's. */
static void test_leader_epoch_below_the_stored_one(void **state)
{
    (void)state;
    const struct known on_a = {1, 2, 1, 1, 2, "", 1, 12}, on_b = {1, 2, 1, 1, 2, "", 2, 12};
    const struct known led_a = {1, 1024, 1, 1, 2, "", 1, 13}, led_b = {1, 1024, 1, 1, 2, "", 2, 13};
    open_world();
    back(1, &on_a);
    back(2, &on_b);
    pass(ADOPT + 500);
    assert_int_equal(status_of(1).epoch, 2);
    for (int i = 1; i <= 2; i++) {
        quiesced(&W.b, .session = W.session[i], .worker = (uint64_t)i, .epoch = 2, .step = 12);
        commit();
    }
    assert_int_equal(W.form_epoch, FIRST_EPOCH + 1);
    restart_restored(RESTORED_TERM + 2);
    W.led = true;
    back(1, &led_a);
    assert_true(told_of("epoch.revoked"));
    assert_int_equal(W.forms, 0); /* no worker is to enter the stored one any more */
    back(2, &led_b);
    assert_int_equal(core_counters(W.b.core)->old_epoch, 1); /* the same leader's, once more */
    pass(ADOPT + 500);
    assert_int_equal(W.form_epoch, FIRST_EPOCH + 2);
    assert_int_equal(W.form_resume, 13);
    assert_int_equal(status_of(1).restarts, 1); /* the members left epoch 2 together, before */
    close_world();
}

/* A job in the queue is told what it waits for, with slots free. */
static void test_says_why_it_waits(void **state)
{
    char text[512];
    (void)state;
    open_world();
    assert_true(core_job_reason(W.b.core, 2, text, sizeof(text)));
    assert_non_null(strstr(text, "nothing starts before store.settled: node "));
    back(1, NULL);
    back(2, NULL);
    assert_true(core_job_reason(W.b.core, 2, text, sizeof(text)));
    assert_non_null(strstr(text, "nothing starts before store.settled"));
    assert_null(strstr(text, "has not said"));
    pass(ADOPT + 500);
    assert_false(core_job_reason(W.b.core, 2, text, sizeof(text)) && strstr(text, "store.settled"));
    close_world();
}

/* Ranks go by nodes: a worker of higher number may be in front of one of a lower. */
static void test_newer_epoch_in_any_order(void **state)
{
    (void)state;
    const struct known on_b = {1, 5, 11, 2, 2, "", 12, 50};
    open_world();
    W.turned = true;
    back(2, &on_b);
    assert_true(told_of("epoch.restored"));
    assert_int_equal(status_of(1).world_size, 2);
    exited(&W.b, .session = W.session[2], .worker = 12, .code = -1); /* it is found */
    commit();
    assert_int_equal(status_of(1).restarts, 1);
    close_world();
}

static void test_newer_epoch_from_elsewhere(void **state)
{
    (void)state;
    const struct known on_b = {1, 5, 11, 2, 2, "", 11, 50};
    open_world();
    core_set_folder(W.b.core, 1, "/c");
    W.from = "/d/step-00000040";
    back(2, &on_b);
    assert_false(told_of("epoch.restored"));
    W.from = "/c/step-00000040";
    back(2, &on_b);
    assert_true(told_of("epoch.restored"));
    close_world();
}

static void test_newer_epoch_of_one_twice(void **state)
{
    (void)state;
    const struct known on_b = {1, 5, 11, 2, 2, "", 11, 50};
    open_world();
    W.one = true;
    back(2, &on_b);
    assert_false(told_of("epoch.restored"));
    assert_int_equal(core_counters(W.b.core)->unknown_rank, 1);
    close_world();
}

/* Of one worker, in a job of two: no coordinator has formed that. */
static void test_newer_epoch_of_a_wrong_size(void **state)
{
    (void)state;
    const struct known alone = {1, 5, 11, 2, 1, "", 11, 50}, many = {1, 6, 11, 1, 3, "", 12, 50};
    open_world();
    back(2, &alone);
    back(1, &many);
    assert_false(told_of("epoch.restored"));
    assert_int_equal(core_counters(W.b.core)->unknown_rank, 2);
    assert_int_equal(status_of(1).epoch, 1);
    close_world();
}

/* A node that tells of one epoch after the other, each of workers never heard of: it is not believed without end. */
static void test_newer_epochs_without_end(void **state)
{
    (void)state;
    uint64_t taken = 0;
    open_world();
    for (uint64_t i = 0; i < 100; i++) {
        const struct known k = {1, 5 + i, 11 + 2 * i, 2, 2, "", 11 + 2 * i, 50};
        back(2, &k);
        taken += told_of("epoch.restored");
    }
    assert_int_equal(taken, 12); /* 24 workers, of a job that may have two */
    assert_int_equal(core_counters(W.b.core)->implausible, 88);
    assert_int_equal(status_of(1).epoch, 16);
    close_world();
}

/* No agent tells of anything newer: what the store says holds, but nothing is begun before all have spoken. */
static void test_waits_for_all(void **state)
{
    (void)state;
    open_world();
    back(1, NULL);
    back(3, NULL);
    submit_stored(3, 1, 1); /* there is a slot for it */
    pass(ADOPT + 1000);     /* b, where worker 2 may train on, is silent */
    assert_false(told_of("store.settled"));
    assert_int_equal(W.starts + W.forms, 0);
    pass(LEASE + MARGIN - ADOPT - 1000 + 200);
    assert_true(told_of("store.settled"));
    assert_true(W.starts > 0);
    assert_int_equal(status_of(1).restarts, 0); /* worker 1 was gone before, it is unknown how */
    close_world();
}

/* Asked for before it is settled: nothing is begun for that job any more, and nothing else is decided. */
static void test_cancelled_meanwhile(void **state)
{
    struct core_cancel request = {.reason = "changed my mind", .grace_ms = 500};
    struct job_status status;
    struct titan_error err = {0};
    (void)state;
    open_world();
    back(1, NULL);
    assert_int_equal(core_cancel(W.b.core, 1, &request, at(&W.b), &W.b.out, &err), TITAN_OK);
    assert_int_equal(request.state, JOB_CANCELLING);
    commit();
    back(2, NULL);
    pass(ADOPT + 500);
    assert_true(told_of("store.settled"));
    assert_false(core_job_status(W.b.core, 1, &status)); /* it has ended: its workers are nowhere */
    assert_int_equal(W.starts + W.forms, 0);
    close_world();
}

/* The same store, after a restart: it is asked again, and not stored twice. */
static void test_restart(void **state)
{
    (void)state;
    const struct known on_b = {1, 5, 11, 2, 2, "", 11, 50}, on_c = {1, 5, 11, 2, 2, "", 12, 51};
    open_world();
    back(2, &on_b);
    assert_true(told_of("epoch.restored"));
    restart_restored(RESTORED_TERM + 2);
    back(2, &on_b);
    assert_false(told_of("epoch.restored"));
    back(3, &on_c);
    back(1, NULL);
    assert_int_equal(W.stopped & ~UINT64_C(6), 0);
    pass(ADOPT + 500);
    assert_true(told_of("store.settled"));
    assert_int_equal(status_of(1).epoch, 5);
    /* Once settled it decides at once after a start. Worker 12 has ended since: an epoch with it is not taken. */
    exited(&W.b, .session = W.session[3], .worker = 12);
    commit();
    restart_restored(RESTORED_TERM + 3);
    const struct known odd = {1, 6, 11, 2, 2, "", 11, 60};
    back(2, &odd);
    assert_false(told_of("epoch.restored"));
    close_world();
}

/* It waited in the queue when the backup was made. */
static void test_queued(void **state)
{
    (void)state;
    const struct known k = {2, 3, 21, 1, 3, "", 21, 30};
    open_world();
    back(1, &k);
    assert_true(told_of("run.started"));
    assert_true(told_of("epoch.restored"));
    const struct job_status s = status_of(2);
    assert_int_equal(s.epoch, 3);
    assert_int_equal(s.step, 30);
    assert_int_equal(s.world_size, 3);
    assert_int_equal(W.stops, 0);
    close_world();
}

/* The store knows none of its nodes, and the first member's is the last to come: it runs where they are. */
static void test_queued_on_new_nodes(void **state)
{
    (void)state;
    const struct known on_c = {2, 3, 21, 3, 3, "", 21, 30}, on_d = {2, 3, 21, 3, 3, "", 22, 30},
                       on_e = {2, 3, 21, 3, 3, "", 23, 30};
    open_world();
    back(1, NULL);
    back(2, NULL);
    back(5, &on_e);
    back(4, &on_d);
    back(3, &on_c);
    pass(ADOPT + 500);
    assert_true(told_of("store.settled"));
    assert_int_equal(status_of(2).world_size, 3);
    forget_seen();
    exited(&W.b, .session = W.session[3], .job = 2, .worker = 21, .code = -1);
    commit();
    quiesced(&W.b, .session = W.session[4], .job = 2, .worker = 22, .epoch = 3, .step = 30);
    quiesced(&W.b, .session = W.session[5], .job = 2, .worker = 23, .epoch = 3, .step = 30);
    commit();
    pass(2000);
    assert_true(W.starts > 0);
    close_world();
}

/* One of them never comes: its worker is lost, and stored as lost is a node that was never there. */
static void test_queued_on_a_node_that_is_gone(void **state)
{
    (void)state;
    const struct known on_d = {2, 3, 21, 3, 3, "", 22, 30}, on_e = {2, 3, 21, 3, 3, "", 23, 30};
    open_world();
    back(1, NULL);
    back(2, NULL);
    back(4, &on_d);
    back(5, &on_e);
    pass(2 * (LEASE + MARGIN));
    assert_true(told_of("store.settled"));
    assert_true(told_of("node.lost"));
    close_world();
}

/* A job the store does not know: its workers stop, and have the time to write a checkpoint. */
static void test_unknown_job(void **state)
{
    (void)state;
    const struct known k = {7, 3, 31, 1, 2, "", 31, 30};
    open_world();
    back(1, &k);
    assert_true(told_of("job.unknown"));
    assert_int_equal(W.stops, 1);
    assert_true(W.stop.must_checkpoint);
    assert_int_equal(W.stop.grace_ms, 120000);
    forget_seen();
    checkpoint(&W.b, .session = W.session[1], .job = 7, .worker = 31, .epoch = 3,
               .step = 31); /* that is no reason to kill it */
    assert_true(told(&W.b, STOP, 0)->stop->grace_ms > 0);
    commit();
    /* Of a job that it knows: there is nothing that its worker could save for it. */
    checkpoint(&W.b, .session = W.session[1], .job = 1, .worker = 32, .epoch = 3, .step = 31);
    assert_int_equal(told(&W.b, STOP, 0)->stop->worker_ids[0], 32);
    assert_int_equal(told(&W.b, STOP, 0)->stop->grace_ms, 0);
    commit();
    close_world();
}

/* Numbers and workers that cannot be. */
static void test_nonsense(void **state)
{
    (void)state;
    const struct known bad[] = {
        {1, FIRST_EPOCH + 1, 11, 1, 2, "", 0, 0}, /* of a coordinator after the restore */
        {1, 5, 2000000, 1, 2, "", 0, 0},          /* a worker that cannot have been started */
        {1, 5, 11, 2, 2, "", 0, 0},               /* of nodes that this agent is not */
    };
    open_world();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        back(1, &bad[i]);
        assert_false(told_of("epoch.restored"));
    }
    assert_int_equal(core_counters(W.b.core)->unknown_rank, 3);
    close_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_newer_epoch),
        cmocka_unit_test(test_newer_epoch_is_not_sent_again),
        cmocka_unit_test(test_newer_epoch_with_one_that_has_ended),
        cmocka_unit_test(test_newer_epoch_with_a_departing_worker_gone),
        cmocka_unit_test(test_newer_epoch_that_nobody_trains),
        cmocka_unit_test(test_leader_epoch_below_the_stored_one),
        cmocka_unit_test(test_says_why_it_waits),
        cmocka_unit_test(test_newer_epoch_in_any_order),
        cmocka_unit_test(test_newer_epoch_of_one_twice),
        cmocka_unit_test(test_newer_epoch_of_a_wrong_size),
        cmocka_unit_test(test_newer_epochs_without_end),
        cmocka_unit_test(test_newer_epoch_from_elsewhere),
        cmocka_unit_test(test_waits_for_all),
        cmocka_unit_test(test_cancelled_meanwhile),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_queued),
        cmocka_unit_test(test_queued_on_new_nodes),
        cmocka_unit_test(test_queued_on_a_node_that_is_gone),
        cmocka_unit_test(test_unknown_job),
        cmocka_unit_test(test_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
