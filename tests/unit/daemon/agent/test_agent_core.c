/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's decisions, one input at a time: what is fenced, recorded before it is obeyed, reported, watched, killed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/agent/agent_core.h"
#include "daemon/common/proof.h"
#include "proto/ranges.h"

typedef Titan__Internal__CoordinatorMessage coordinator_message;
typedef Titan__Internal__PeerMessage peer_message;

static struct agent_core *c;
static struct agent_actions out; /* of the last input */
static int64_t now;
static uint64_t term;
static uint32_t idle_ms; /* what the coordinator lets an idle agent promise */

static void core_up_with(uint64_t seen, const char *coordinator)
{
    struct titan_error err = {0};
    const struct agent_core_options options = {.node = "here",
                                               .device = "cpu",
                                               .address = "10.0.0.1",
                                               .version = "1",
                                               .slots = 4,
                                               .incarnation = 5,
                                               .seed = 6,
                                               .peer_port = 7,
                                               .coordinator = coordinator};
    assert_int_equal(agent_core_new(&options, &c, &err), TITAN_OK);
    agent_core_restore_term(c, &(struct seen_term){.term = seen});
}

static void core_up(uint64_t seen)
{
    core_up_with(seen, NULL);
}

static int setup(void **state)
{
    (void)state;
    now = 1000;
    term = 3;
    idle_ms = 0;
    agent_actions_init(&out);
    core_up(0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    agent_actions_free(&out);
    agent_core_free(c);
    return 0;
}

#define INPUT(call, ...)                                                                                               \
    do {                                                                                                               \
        agent_actions_free(&out);                                                                                      \
        call(c, ##__VA_ARGS__, now, &out);                                                                             \
        (void)agent_core_check(c);                                                                                     \
    } while (0)

static size_t count(enum agent_action_kind kind)
{
    size_t n = 0;
    for (const struct agent_action *a = out.first; a; a = a->next)
        n += a->kind == kind;
    return n;
}

static const struct agent_action *action(enum agent_action_kind kind)
{
    const struct agent_action *a = out.first;
    while (a && a->kind != kind)
        a = a->next;
    return a;
}

static const Titan__Internal__AgentMessage *sent(Titan__Internal__AgentMessage__KindCase kind)
{
    for (const struct agent_action *a = out.first; a; a = a->next)
        if (a->kind == AGENT_SEND && a->send->kind_case == kind)
            return a->send;
    return NULL;
}
#define SENT(KIND) sent(TITAN__INTERNAL__AGENT_MESSAGE__KIND_##KIND)

static const Titan__Internal__AgentToWorker *told(Titan__Internal__AgentToWorker__KindCase kind)
{
    for (const struct agent_action *a = out.first; a; a = a->next)
        if (a->kind == AGENT_COMMAND && a->command->kind_case == kind)
            return a->command;
    return NULL;
}
#define TOLD(KIND) told(TITAN__INTERNAL__AGENT_TO_WORKER__KIND_##KIND)

static ProtobufCBinaryData term_proof;

static void hear(coordinator_message *m)
{
    m->term = term;
    INPUT(agent_core_coordinator, m);
}

#define MESSAGE(name, KIND, field, body)                                                                               \
    coordinator_message name = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;                                             \
    (name).kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_##KIND;                                              \
    (name).field = (body)

static void ack(void)
{
    Titan__Internal__RegistrationAck w = TITAN__INTERNAL__REGISTRATION_ACK__INIT;
    w.term = term;
    w.heartbeat_ms = 100;
    w.idle_heartbeat_ms = idle_ms;
    w.term_proof = term_proof;
    MESSAGE(m, ACK, ack, &w);
    hear(&m);
}

static void session(void)
{
    INPUT(agent_core_session_up);
    assert_non_null(SENT(REGISTRATION));
    ack();
}

static void list_epochs(uint64_t restored_term)
{
    Titan__Internal__ListEpochs t = {.base = PROTOBUF_C_MESSAGE_INIT(&titan__internal__list_epochs__descriptor),
                                     .restored_term = restored_term};
    MESSAGE(m, LIST_EPOCHS, list_epochs, &t);
    hear(&m);
}

static void answer(uint64_t number)
{
    Titan__Internal__HeartbeatAnswer a = TITAN__INTERNAL__HEARTBEAT_ANSWER__INIT;
    a.number = number;
    MESSAGE(m, HEARTBEAT_ANSWER, heartbeat_answer, &a);
    hear(&m);
}

static uint64_t heartbeat(void)
{
    now = MAX(now, agent_core_deadline(c));
    INPUT(agent_core_tick);
    assert_non_null(SENT(HEARTBEAT));
    return SENT(HEARTBEAT)->heartbeat->number;
}

static void start(uint64_t id)
{
    Titan__Internal__StartWorkers s = TITAN__INTERNAL__START_WORKERS__INIT;
    s.job_id = 1;
    s.worker_ids = &id;
    s.n_worker_ids = 1;
    s.directory = (char *)"/jobs/1";
    MESSAGE(m, START, start, &s);
    hear(&m);
}

static void form_with(uint64_t epoch, unsigned char id)
{
    unsigned char bytes[16] = {id};
    Titan__Internal__Member member = TITAN__INTERNAL__MEMBER__INIT, *list = &member;
    Titan__Internal__FormEpoch f = TITAN__INTERNAL__FORM_EPOCH__INIT;
    member.worker_id = 11;
    member.node = (char *)"here";
    f.job_id = 1;
    f.epoch = epoch;
    f.comm_id = (ProtobufCBinaryData){16, bytes};
    f.members = &list;
    f.n_members = 1;
    MESSAGE(m, FORM, form, &f);
    hear(&m);
}

/* Of workers 11 and second; as a departing rank, or as another member. */
static void form_of(uint64_t epoch, uint64_t second, bool leaves)
{
    unsigned char bytes[16] = {(unsigned char)epoch};
    Titan__Internal__Member one = TITAN__INTERNAL__MEMBER__INIT, two = one, *list[] = {&one, &two}, **last = list + 1;
    Titan__Internal__FormEpoch f = TITAN__INTERNAL__FORM_EPOCH__INIT;
    one.worker_id = 11;
    two.worker_id = second;
    one.node = two.node = (char *)"here";
    f.job_id = 1;
    f.epoch = epoch;
    f.comm_id = (ProtobufCBinaryData){16, bytes};
    f.members = list;
    f.n_members = leaves ? 1 : 2;
    f.departing = last;
    f.n_departing = leaves;
    MESSAGE(m, FORM, form, &f);
    hear(&m);
}

static void revoke_epoch(uint64_t epoch)
{
    Titan__Internal__RevokeEpoch r = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    r.job_id = 1;
    r.epoch = epoch;
    MESSAGE(m, REVOKE, revoke, &r);
    hear(&m);
}

static void say_quiesced(uint64_t worker, uint64_t epoch)
{
    Titan__Internal__WorkerQuiesced q = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    Titan__Internal__WorkerToAgent m = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    q.job_id = 1;
    q.worker_id = worker;
    q.epoch = epoch;
    q.last_step = 40;
    m.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_QUIESCED;
    m.quiesced = &q;
    INPUT(agent_core_worker, 11, &m);
}

static void look(uint64_t epoch, uint32_t phase, uint64_t actions)
{
    const struct agent_sample s = {
        .epoch = epoch, .phase = phase, .actions = actions, .step = actions, .process_state = 'S'};
    now += AGENT_SAMPLE_MS;
    INPUT(agent_core_sample, 11, &s);
}

static void in_training(void)
{
    session();
    start(11);
    INPUT(agent_core_started, 11, 4711);
    form_with(1, 1);
    look(1, TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING, 1);
}

static void ended(int code, int signal, bool oom)
{
    const struct agent_exit how = {.code = code, .signal = signal, .out_of_memory = oom, .reason = ""};
    INPUT(agent_core_exited, 11, &how);
}

/* --- terms -------------------------------------------------------------------------------------------------------- */

static void test_term_is_recorded_before_it_is_obeyed(void **state)
{
    (void)state;
    INPUT(agent_core_session_up);
    assert_int_equal(SENT(REGISTRATION)->registration->seen_term, 0);
    ack();
    assert_int_equal(out.first->kind, AGENT_RECORD_TERM);
    assert_int_equal(out.first->seen.term, 3);
    assert_false(out.first->seen.proved); /* of an older version */
    assert_true(agent_core_registered(c));
    INPUT(agent_core_session_down);
    session();
    assert_int_equal(count(AGENT_RECORD_TERM), 0); /* the same again */
    assert_int_equal(agent_core_term(c), 3);
}

static void test_lower_terms_are_refused(void **state)
{
    (void)state;
    in_training();
    term = 2; /* a message on the wrong stream */
    revoke_epoch(1);
    assert_null(TOLD(REVOKE));
    assert_int_equal(agent_core_counters(c)->fenced_terms, 1);
    assert_int_equal(SENT(REFUSED)->refused->seen_term, 3);
    assert_int_equal(count(AGENT_END_SESSION), 1);
    revoke_epoch(1); /* said once */
    assert_null(out.first);
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    assert_int_equal(SENT(REGISTRATION)->registration->seen_term, 3);
    ack(); /* a whole session of an older one */
    assert_false(agent_core_registered(c));
    assert_int_equal(SENT(REFUSED)->refused->seen_term, 3);
    assert_int_equal(count(AGENT_END_SESSION), 1);
    start(12);
    assert_null(out.first);
}

static void test_term_survives_a_restart(void **state)
{
    (void)state;
    agent_core_free(c);
    core_up(9);
    INPUT(agent_core_session_up);
    assert_int_equal(SENT(REGISTRATION)->registration->seen_term, 9);
    ack();
    assert_false(agent_core_registered(c));
}

/* What proves a term is kept with it, and handed back; a coordinator of the same store has another for its own. */
static void test_term_and_its_proof(void **state)
{
    (void)state;
    uint8_t first[MAC_BYTES] = {1}, second[MAC_BYTES] = {2};
    INPUT(agent_core_session_up);
    ack();
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    assert_int_equal(SENT(REGISTRATION)->registration->seen_proof.len, 0);
    term_proof = (ProtobufCBinaryData){MAC_BYTES, first};
    ack(); /* the same term, of a coordinator that is newer than the agent's record */
    assert_int_equal(out.first->kind, AGENT_RECORD_TERM);
    assert_true(out.first->seen.term == 3 && out.first->seen.proved);
    assert_memory_equal(out.first->seen.proof, first, MAC_BYTES);
    ack();
    assert_int_equal(count(AGENT_RECORD_TERM), 0); /* the same again */
    term = 4;
    term_proof.data = second;
    ack();
    assert_memory_equal(out.first->seen.proof, second, MAC_BYTES);
    const struct seen_term seen = out.first->seen;
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    assert_memory_equal(SENT(REGISTRATION)->registration->seen_proof.data, second, MAC_BYTES);
    agent_core_free(c);
    core_up(0);
    agent_core_restore_term(c, &seen);
    INPUT(agent_core_session_up);
    assert_int_equal(SENT(REGISTRATION)->registration->seen_term, 4);
    assert_memory_equal(SENT(REGISTRATION)->registration->seen_proof.data, second, MAC_BYTES);
    term = 3;
    term_proof.data = first;
    ack(); /* of one that is over */
    assert_false(agent_core_registered(c));
    assert_int_equal(SENT(REFUSED)->refused->seen_term, 4);
    assert_memory_equal(SENT(REFUSED)->refused->seen_proof.data, second, MAC_BYTES);
    term_proof = (ProtobufCBinaryData){0};
}

/* A coordinator over a backup asks before it is obeyed, and hears of what those before it have formed. */
static void test_epochs_are_listed_on_request(void **state)
{
    (void)state;
    in_training();
    form_with(2, 2); /* epoch 1 is complete, 2 not yet */
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    assert_false(SENT(REGISTRATION)->registration->lists_epochs);
    assert_int_equal(SENT(REGISTRATION)->registration->n_known, 0); /* it is not needed */
    term = 1000004;
    list_epochs(1000003);
    const Titan__Internal__AgentRegistration *h = SENT(REGISTRATION)->registration;
    assert_true(h->lists_epochs);
    assert_int_equal(h->n_known, 1);
    assert_int_equal(h->known[0]->job_id, 1);
    assert_int_equal(h->known[0]->n_epochs, 2);
    assert_int_equal(h->known[0]->epochs[0]->epoch, 1);
    assert_int_equal(h->known[0]->epochs[1]->epoch, 2);
    assert_int_equal(h->n_workers, 1);
    assert_int_equal(agent_core_term(c), 3); /* not before it is acknowledgement */
    ack();
    assert_int_equal(agent_core_term(c), 1000004);
    form_with(3, 3); /* the next one is that coordinator's own */
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    list_epochs(1000003);
    assert_true(SENT(REGISTRATION)->registration->lists_epochs);
    assert_int_equal(SENT(REGISTRATION)->registration->n_known, 0);
    term = 4; /* one that is over asks: refused, as everything it says */
    list_epochs(3);
    assert_null(SENT(REGISTRATION));
    assert_int_equal(SENT(REFUSED)->refused->seen_term, 1000004);
}

/* --- epochs ------------------------------------------------------------------------------------------------------- */

static void test_worker_in_two_places(void **state)
{
    (void)state;
    in_training();
    for (int leaves = 0; leaves < 2; leaves++) {
        form_of(2, 11, leaves);
        assert_null(TOLD(FORM));
        assert_int_equal(count(AGENT_RECORD_JOB), 0);
    }
    assert_int_equal(agent_core_counters(c)->out_of_range, 2);
    form_of(2, 12, true);
    assert_int_equal(count(AGENT_RECORD_JOB), 1);
}

static void test_epoch_is_recorded_before_it_is_formed(void **state)
{
    (void)state;
    session();
    start(11);
    form_with(4, 1);
    assert_int_equal(out.first->kind, AGENT_RECORD_JOB);
    assert_int_equal(out.first->record->accepted->epoch, 4);
    assert_int_equal(TOLD(FORM)->form->epoch, 4);
    assert_int_equal(TOLD(FORM)->term, 3);
    assert_int_equal(action(AGENT_RANK)->rank, 0);
    form_with(4, 1); /* sent again: nothing new to record */
    assert_int_equal(count(AGENT_RECORD_JOB), 0);
    assert_non_null(TOLD(FORM));
    assert_int_equal(agent_core_epoch(c, 1), 4);
}

static void test_older_epochs_are_dropped(void **state)
{
    (void)state;
    session();
    start(11);
    form_with(4, 1);
    form_with(3, 2);
    assert_null(TOLD(FORM));
    assert_int_equal(SENT(REFUSED)->refused->seen_epoch, 4);
    revoke_epoch(3);
    assert_null(TOLD(REVOKE));
    Titan__Internal__PauseJob p = TITAN__INTERNAL__PAUSE_JOB__INIT;
    p.job_id = 1;
    p.epoch = 3;
    MESSAGE(m, PAUSE, pause, &p);
    hear(&m);
    assert_null(out.first);
    assert_int_equal(agent_core_counters(c)->fenced_epochs, 3);
    revoke_epoch(4);
    assert_non_null(TOLD(REVOKE));
}

static void test_another_epoch_of_the_number_is_refused(void **state)
{
    (void)state;
    session();
    start(11);
    form_with(4, 1);
    Titan__Internal__AgentJobRecord *kept = NULL;
    for (const struct agent_action *a = out.first; a; a = a->next)
        if (a->kind == AGENT_RECORD_JOB) {
            size_t len = titan__internal__agent_job_record__get_packed_size(a->record);
            uint8_t *bytes = malloc(len);
            (void)titan__internal__agent_job_record__pack(a->record, bytes);
            kept = titan__internal__agent_job_record__unpack(NULL, len, bytes);
            free(bytes);
        }
    for (int restarted = 0; restarted < 2; restarted++) {
        form_with(4, 2);
        assert_null(TOLD(FORM));
        assert_int_equal(SENT(REFUSED)->refused->epoch, 4);
        assert_int_equal(SENT(REFUSED)->refused->seen_epoch, 4);
        assert_int_equal(agent_core_counters(c)->refused, 1);
        agent_core_free(c);
        core_up(3);
        agent_core_restore_job(c, kept);
        session();
    }
    titan__internal__agent_job_record__free_unpacked(kept, NULL);
}

/* --- reports ------------------------------------------------------------------------------------------------------ */

/* One faulty GPU, or one that is well, with this much of its memory in use. */
static void say_gpu(const char *reason, uint64_t used)
{
    Titan__Internal__GpuState gpu = TITAN__INTERNAL__GPU_STATE__INIT, *list[] = {&gpu};
    Titan__Internal__NodeGpus gpus = TITAN__INTERNAL__NODE_GPUS__INIT;
    gpu.slot = 1;
    gpu.health = *reason ? TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY : TITAN__INTERNAL__GPU_HEALTH__GPU_HEALTHY;
    gpu.reason = (char *)reason;
    gpu.memory_used = used;
    gpus.n_gpus = 1;
    gpus.gpus = list;
    INPUT(agent_core_gpus, &gpus);
}

static void test_gpus_are_said_when_they_change(void **state)
{
    (void)state;
    say_gpu("", 1);
    assert_null(out.first);
    INPUT(agent_core_session_up);
    assert_int_equal(SENT(REGISTRATION)->registration->gpus->n_gpus, 1);
    say_gpu("Xid 79", 1); /* not registered yet */
    assert_null(SENT(GPUS));
    assert_int_equal(count(AGENT_LOG), 1);
    ack();
    assert_string_equal(SENT(GPUS)->gpus->gpus[0]->reason, "Xid 79");
    say_gpu("Xid 79", 1);
    assert_null(out.first);
    say_gpu("Xid 79", 2);
    assert_int_equal(SENT(GPUS)->gpus->gpus[0]->memory_used, 2);
    assert_int_equal(count(AGENT_LOG), 0); /* it is said once */
    say_gpu("", 2);
    assert_int_equal(count(AGENT_LOG), 1);
    INPUT(agent_core_session_down);
    say_gpu("", 3);
    assert_null(SENT(GPUS));
    session();
    assert_null(SENT(GPUS)); /* the registration has them */
    uint32_t slot = 1;
    Titan__Internal__ReleaseGpus release = TITAN__INTERNAL__RELEASE_GPUS__INIT;
    release.n_slots = 1;
    release.slots = &slot;
    MESSAGE(m, RELEASE_GPUS, release_gpus, &release);
    hear(&m);
    assert_int_equal(action(AGENT_REQUEST)->request->release_gpus->slots[0], 1);
}

static void test_reports_are_said_again(void **state)
{
    (void)state;
    session();
    start(11);
    INPUT(agent_core_started, 11, 4711);
    assert_non_null(SENT(WORKER_STARTED));
    INPUT(agent_core_session_down);
    ended(1, 0, false);
    assert_null(out.first); /* there is no peer */
    term = 4;
    session(); /* of the next coordinator */
    assert_int_equal(SENT(WORKER_STARTED)->term, 4);
    assert_int_equal(SENT(WORKER_EXITED)->worker_exited->exit_code, 1);
    now += 6000; /* longer than they are kept for the next coordinator */
    answer(heartbeat());
    (void)heartbeat();
    INPUT(agent_core_session_down);
    session();
    assert_null(SENT(WORKER_EXITED));
    start(11); /* a command that was on its way: it has ended, which is said */
    assert_int_equal(count(AGENT_START_WORKER), 0);
    assert_int_equal(SENT(WORKER_EXITED)->worker_exited->exit_code, 1);
    uint64_t id = 11;
    Titan__Internal__StopWorkers stop = TITAN__INTERNAL__STOP_WORKERS__INIT;
    stop.job_id = 1;
    stop.worker_ids = &id;
    stop.n_worker_ids = 1;
    MESSAGE(m, STOP, stop, &stop);
    hear(&m);
    assert_int_equal(count(AGENT_STOP_WORKER), 0);
    assert_int_equal(SENT(WORKER_EXITED)->worker_exited->exit_code, 1);
}

/* Coordinators come and go, and each gives commands about a worker that has ended. */
static void test_reports_do_not_grow(void **state)
{
    (void)state;
    uint64_t id = 11;
    Titan__Internal__StopWorkers stop = TITAN__INTERNAL__STOP_WORKERS__INIT;
    stop.job_id = 1;
    stop.worker_ids = &id;
    stop.n_worker_ids = 1;
    session();
    start(11);
    INPUT(agent_core_started, 11, 4711);
    ended(1, 0, false);
    for (int i = 0; i < 20; i++) {
        now += 100;
        INPUT(agent_core_session_down);
        term++;
        session();
        assert_int_equal(count(AGENT_SEND), 3); /* that it had started, how it ended, a heartbeat */
        start(11);
        assert_int_equal(SENT(WORKER_EXITED)->worker_exited->exit_code, 1);
        MESSAGE(m, STOP, stop, &stop);
        hear(&m);
        assert_int_equal(SENT(WORKER_EXITED)->worker_exited->exit_code, 1);
    }
}

/* An acknowledgement that lay in the stream is an older coordinator's: what was said to it, the one at the other end
 * drops. */
static void test_reports_are_said_to_the_newest(void **state)
{
    (void)state;
    session();
    start(11);
    ended(1, 0, false);
    assert_int_equal(SENT(WORKER_EXITED)->term, 3);
    ack();
    assert_null(SENT(WORKER_EXITED)); /* heard twice */
    term = 4;
    ack();
    assert_int_equal(SENT(WORKER_EXITED)->term, 4);
}

static void test_worker_speaks_for_itself(void **state)
{
    (void)state;
    in_training();
    say_quiesced(12, 1);
    assert_null(SENT(WORKER_QUIESCED));
    assert_int_equal(count(AGENT_LOG), 1);
    say_quiesced(12, 1);
    assert_null(out.first); /* said once */
    assert_int_equal(agent_core_counters(c)->forged, 2);
    ack();
    assert_int_equal(SENT(HEARTBEAT)->heartbeat->forged, 2); /* and told */
    assert_int_equal(SENT(HEARTBEAT)->heartbeat->old_terms, 0);
}

static size_t place(Titan__Internal__AgentMessage__KindCase kind)
{
    size_t n = 0;
    for (const struct agent_action *a = out.first; a; a = a->next, n++)
        if (a->kind == AGENT_SEND && a->send->kind_case == kind)
            return n;
    return SIZE_MAX;
}

static void trained(uint64_t step)
{
    Titan__Internal__WorkerToAgent m = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    Titan__Internal__WorkerProgress p = TITAN__INTERNAL__WORKER_PROGRESS__INIT;
    m.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS;
    m.progress = &p;
    p.job_id = 1;
    p.worker_id = 11;
    p.epoch = 1;
    p.step = step;
    INPUT(agent_core_worker, 11, &m);
}

/* A session that ends may have swallowed it, so the newest is sent to the next one, before what followed it. */
static void test_newest_progress_is_sent_again(void **state)
{
    (void)state;
    in_training();
    trained(7);
    assert_int_equal(SENT(PROGRESS)->progress->step, 7);
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    ack();
    assert_int_equal(SENT(PROGRESS)->progress->step, 7);
    INPUT(agent_core_session_down);
    trained(8);
    trained(9);
    assert_null(SENT(PROGRESS));
    Titan__Internal__WorkerToAgent m = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    Titan__Internal__WorkerFinished finished = TITAN__INTERNAL__WORKER_FINISHED__INIT;
    m.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_FINISHED;
    m.finished = &finished;
    finished.job_id = 1;
    finished.worker_id = 11;
    finished.epoch = 1;
    finished.step = 9;
    INPUT(agent_core_worker, 11, &m);
    ended(0, 0, false);
    INPUT(agent_core_session_up);
    ack();
    assert_int_equal(SENT(PROGRESS)->progress->step, 9);
    assert_true(place(TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS) <
                place(TITAN__INTERNAL__AGENT_MESSAGE__KIND_FINISHED));
    assert_true(place(TITAN__INTERNAL__AGENT_MESSAGE__KIND_FINISHED) <
                place(TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED));
}

static Titan__Internal__ExitCause cause(void)
{
    return SENT(WORKER_EXITED)->worker_exited->cause;
}

/* What can never be costs the worker that says it, and its words go into its end. */
static void test_worker_says_what_cannot_be(void **state)
{
    (void)state;
    in_training();
    Titan__Internal__WorkerToAgent m = TITAN__INTERNAL__WORKER_TO_AGENT__INIT;
    Titan__Internal__WorkerProgress p = TITAN__INTERNAL__WORKER_PROGRESS__INIT;
    m.kind_case = TITAN__INTERNAL__WORKER_TO_AGENT__KIND_PROGRESS;
    m.progress = &p;
    p.job_id = 7;
    p.worker_id = 11;
    p.epoch = 1;
    p.step_ms = (double)NAN;
    INPUT(agent_core_worker, 11, &m);
    assert_null(SENT(PROGRESS));
    assert_int_equal(action(AGENT_STOP_WORKER)->grace_ms, 0);
    INPUT(agent_core_worker, 11, &m);
    assert_null(out.first);
    assert_int_equal(agent_core_counters(c)->out_of_range, 1);
    INPUT(agent_core_exited, 11, &((const struct agent_exit){.code = -1, .signal = 9, .reason = "x"}));
    assert_string_equal(SENT(WORKER_EXITED)->worker_exited->reason,
                        "it broke the protocol: WorkerToAgent.progress.step_ms = nan: 0 to 1e+12");
    assert_int_equal(cause(), TITAN__INTERNAL__EXIT_CAUSE__CAUSE_FAULTY);
}

/* Its page is its own to write; the registration tells of no more than can be. */
static void test_page_says_what_cannot_be(void **state)
{
    (void)state;
    const struct agent_sample sample = {.epoch = UINT64_MAX, .step = 3};
    in_training();
    INPUT(agent_core_sample, 11, &sample);
    assert_int_equal(count(AGENT_STOP_WORKER), 1);
    assert_int_equal(agent_core_counters(c)->out_of_range, 1);
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    assert_int_equal(SENT(REGISTRATION)->registration->workers[0]->epoch, 1);
}

static void test_last_words_are_fit_to_be_read(void **state)
{
    (void)state;
    in_training();
    INPUT(agent_core_exited, 11,
          &((const struct agent_exit){.code = 70000, .reason = "no \x1b[2Jfile\xff", .last_step = UINT64_MAX}));
    const Titan__Internal__WorkerExited *x = SENT(WORKER_EXITED)->worker_exited;
    assert_int_equal(x->exit_code, 255);
    assert_true(range_check(&x->base, NULL) == TITAN_OK);
}

static void test_coordinator_says_what_cannot_be(void **state)
{
    (void)state;
    in_training();
    Titan__Internal__RevokeEpoch r = TITAN__INTERNAL__REVOKE_EPOCH__INIT;
    r.job_id = 7;
    r.epoch = UINT64_MAX;
    MESSAGE(m, REVOKE, revoke, &r);
    INPUT(agent_core_coordinator, &m);
    assert_int_equal(count(AGENT_END_SESSION), 1);
    assert_int_equal(count(AGENT_COMMAND), 0);
    Titan__Internal__PeerMessage ping = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    ping.from = (char *)"a b";
    ping.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PING;
    INPUT(agent_core_peer, &ping, "10.0.0.2:9");
    assert_null(action(AGENT_PEER));
    assert_int_equal(count(AGENT_LOG), 1);
    assert_int_equal(agent_core_counters(c)->out_of_range, 2);
}

static void test_registration_lists_what_was_quiesced(void **state)
{
    (void)state;
    in_training();
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    const Titan__Internal__AgentRegistration *registration = SENT(REGISTRATION)->registration;
    assert_int_equal(registration->n_workers, 1);
    assert_int_equal(registration->workers[0]->epoch, 1);
    assert_null(registration->workers[0]->quiesced);
    assert_int_equal(registration->peer_port, 7);
    look(1, TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED, 40);
    say_quiesced(11, 1);
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    assert_int_equal(SENT(REGISTRATION)->registration->workers[0]->quiesced->last_step, 40);
    look(2, TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING, 41); /* it is in the next one */
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    assert_null(SENT(REGISTRATION)->registration->workers[0]->quiesced);
}

/* Jobs come and go: the records of the oldest that have no worker here are let go of. */
static void test_records_are_bounded(void **state)
{
    (void)state;
    static char place[4000], *places[16]; /* where checkpoints are: long, as lists of members are */
    size_t forgotten = 0;
    memset(place, 'x', sizeof(place) - 1);
    for (size_t i = 0; i < 16; i++)
        places[i] = place;
    session();
    for (uint64_t job = 1; job <= 300; job++) {
        unsigned char bytes[16] = {1};
        uint64_t id = 100 + job;
        Titan__Internal__StartWorkers s = TITAN__INTERNAL__START_WORKERS__INIT;
        Titan__Internal__FormEpoch f = TITAN__INTERNAL__FORM_EPOCH__INIT;
        const struct agent_exit how = {.reason = ""};
        s.job_id = f.job_id = job;
        s.worker_ids = &id;
        s.n_worker_ids = 1;
        MESSAGE(m, START, start, &s);
        hear(&m);
        f.epoch = 1;
        Titan__Internal__Member member = TITAN__INTERNAL__MEMBER__INIT, *members = &member;
        member.worker_id = id;
        member.node = (char *)"here";
        f.members = &members;
        f.n_members = 1;
        f.checkpoint_path = place;
        f.older_checkpoints = places;
        f.n_older_checkpoints = 16;
        f.comm_id = (ProtobufCBinaryData){16, bytes};
        MESSAGE(form, FORM, form, &f);
        hear(&form);
        INPUT(agent_core_exited, id, &how);
        if (count(AGENT_FORGET_JOB)) {
            forgotten++;
            assert_int_equal(action(AGENT_FORGET_JOB)->job_id, forgotten);
        }
    }
    assert_int_equal(forgotten, 300 - 256);
    assert_int_equal(agent_core_epoch(c, 1), 0);
    assert_int_equal(agent_core_epoch(c, 300), 1);
    /* Nor is more told of them than a message has room for: of the newest. */
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    list_epochs(term);
    const Titan__Internal__AgentRegistration *h = SENT(REGISTRATION)->registration;
    assert_int_equal(h->n_known, 15);
    assert_int_equal(h->known[0]->job_id, 300);
    assert_int_equal(h->known[14]->job_id, 286);
}

/* --- the end of workers ------------------------------------------------------------------------------------------- */

static void test_causes(void **state)
{
    (void)state;
    static const struct {
        int code, signal;
        bool oom, stop;
        Titan__Internal__ExitCause cause;
    } cases[] = {
        {0, 0, false, false, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NONE},
        {1, 0, false, false, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_EXIT},
        {7, 0, false, false, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_EXIT},
        {-1, 11, false, false, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_SIGNAL},
        {-1, 9, true, false, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_OUT_OF_MEMORY},
        {-1, 9, false, true, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_STOPPED},
    };
    session();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        (void)teardown(NULL);
        (void)setup(NULL);
        session();
        start(11);
        if (cases[i].stop) {
            Titan__Internal__StopWorkers stop = TITAN__INTERNAL__STOP_WORKERS__INIT;
            stop.job_id = 1;
            stop.grace_ms = 100;
            MESSAGE(m, STOP, stop, &stop);
            hear(&m);
            assert_int_equal(action(AGENT_STOP_WORKER)->grace_ms, 100);
        }
        ended(cases[i].code, cases[i].signal, cases[i].oom);
        assert_int_equal(cause(), cases[i].cause);
    }
}

/* A start that did not come about: the node's want goes before its refusal, which the coordinator would keep. */
static void test_causes_of_no_start(void **state)
{
    (void)state;
    static const struct {
        bool node_short, refused;
        Titan__Internal__ExitCause cause;
    } cases[] = {
        {false, false, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NOT_STARTED},
        {false, true, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_REFUSED},
        {true, true, TITAN__INTERNAL__EXIT_CAUSE__CAUSE_NODE_SHORT},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        (void)teardown(NULL);
        (void)setup(NULL);
        session();
        start(11);
        const struct agent_exit how = {.code = 5,
                                       .reason = "uid 7",
                                       .not_started = true,
                                       .node_short = cases[i].node_short,
                                       .refused = cases[i].refused};
        INPUT(agent_core_exited, 11, &how);
        assert_int_equal(cause(), cases[i].cause);
    }
}

static void test_revoked_and_not_quiet_is_killed(void **state)
{
    (void)state;
    in_training();
    int64_t begin = now;
    revoke_epoch(1);
    assert_int_equal(agent_core_deadline(c) <= begin + 1000, 1);
    for (; !count(AGENT_STOP_WORKER); now += 5) {
        assert_true(now < begin + 1100);
        INPUT(agent_core_tick);
    }
    assert_in_range(now - begin, 1000 - 10, 1000 + 10);
    assert_int_equal(action(AGENT_STOP_WORKER)->grace_ms, 0);
    assert_int_equal(agent_core_counters(c)->kills, 1);
    INPUT(agent_core_tick); /* once */
    assert_int_equal(count(AGENT_STOP_WORKER), 0);
    ended(-1, 9, false);
    assert_int_equal(cause(), TITAN__INTERNAL__EXIT_CAUSE__CAUSE_HANG);
    assert_non_null(strstr(SENT(WORKER_EXITED)->worker_exited->reason, "epoch 1"));
}

/* This agent stood still, and most likely the machine: the worker's answer lies in the queue. */
static void test_revoked_while_the_agent_stood_still(void **state)
{
    (void)state;
    in_training();
    revoke_epoch(1);
    for (int64_t begin = now; now < begin + 500; now += 5)
        INPUT(agent_core_tick);
    now += 8000;
    INPUT(agent_core_tick);
    assert_int_equal(count(AGENT_STOP_WORKER), 0);
    const int64_t begin = now;
    for (; !count(AGENT_STOP_WORKER); now += 5) {
        assert_true(now < begin + 1000);
        INPUT(agent_core_tick);
    }
    assert_in_range(now - begin, 400, 510);
}

static void test_quiet_in_time_is_not_killed(void **state)
{
    (void)state;
    in_training();
    revoke_epoch(5); /* higher than what it is in: it says its own */
    say_quiesced(11, 1);
    now += 20000;
    INPUT(agent_core_tick);
    assert_int_equal(count(AGENT_STOP_WORKER), 0);
}

/* A worker on its way out gets more time while it moves, but not for ever. */
static void test_moving_out_gets_more_time(void **state)
{
    (void)state;
    in_training();
    int64_t begin = now;
    revoke_epoch(1);
    uint64_t actions = 2;
    while (!count(AGENT_STOP_WORKER)) {
        assert_true(now < begin + 11000);
        look(1, TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING, actions++);
        INPUT(agent_core_tick);
    }
    assert_in_range(now - begin, 10000 - 50, 10000 + 50);
}

static void test_stall_is_reported(void **state)
{
    (void)state;
    in_training();
    for (uint64_t i = 2; i < 60; i++)
        look(1, TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING, i);
    int64_t begin = now;
    while (!SENT(STALLED)) {
        assert_true(now < begin + 1000);
        look(1, TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING, 59);
    }
    const Titan__Internal__WorkerStalled *s = SENT(STALLED)->stalled;
    assert_true(s->worker_id == 11 && s->epoch == 1 && s->actions == 59 && !s->stopped && s->for_ms > 300);
}

/* Three workers of a job here, one of which needs twice the time for its own work. */
static void test_straggler(void **state)
{
    (void)state;
    session();
    size_t told_of[2] = {0, 0};
    for (uint64_t id = 11; id <= 13; id++)
        start(id);
    for (uint64_t step = 1; step < 1200; step++) {
        now += AGENT_SAMPLE_MS;
        bool slow = step < 800;
        for (uint64_t id = 11; id <= 13; id++) {
            static uint64_t busy[14];
            busy[id] = step == 1 ? 0 : busy[id] + (id == 12 && slow ? 20000000 : 10000000);
            const struct agent_sample s = {.epoch = 1,
                                           .phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING,
                                           .step = step,
                                           .actions = step,
                                           .busy_ns = busy[id],
                                           .process_state = 'S'};
            INPUT(agent_core_sample, id, &s);
            if (!SENT(STRAGGLES))
                continue;
            const Titan__Internal__WorkerStraggles *m = SENT(STRAGGLES)->straggles;
            assert_int_equal(m->worker_id, 12);
            assert_true(m->busy_ms > 19.9 && m->busy_ms < 20.1 && m->median_ms > 9.9 && m->median_ms < 10.1);
            told_of[!slow]++;
        }
    }
    assert_int_equal(told_of[0], 1); /* not for each window */
    assert_int_equal(told_of[1], 0);
}

/* A worker makes 300 steps of an epoch; the first at which something is told of it, 0: none is. */
static uint64_t straggles_at(uint64_t id, uint64_t epoch, int64_t step_ms, uint64_t busy_ms, double *ret_median)
{
    uint64_t at = 0;
    for (uint64_t step = 0; step <= 300; step++) {
        const struct agent_sample s = {.epoch = epoch,
                                       .phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING,
                                       .step = step,
                                       .actions = step,
                                       .busy_ns = step * busy_ms * 1000000,
                                       .process_state = 'S'};
        INPUT(agent_core_sample, id, &s);
        now += step_ms;
        if (!SENT(STRAGGLES))
            continue;
        assert_int_equal(SENT(STRAGGLES)->straggles->worker_id, id);
        *ret_median = SENT(STRAGGLES)->straggles->median_ms;
        assert_int_equal(at, 0); /* once */
        at = step;
    }
    return at;
}

/* A worker is slow against the middle one of all, whichever worker that is. */
static void test_straggler_median(void **state)
{
    (void)state;
    static const uint64_t ms[][3] = {{10, 14, 30}, {14, 10, 30}, {10, 30, 14},
                                     {14, 30, 10}, {30, 10, 14}, {30, 14, 10}};
    double median = 0;
    session();
    for (uint64_t id = 11; id <= 13; id++)
        start(id);
    for (uint64_t k = 0; k < ARRAY_SIZE(ms); k++) {
        uint64_t slow = 0;
        for (uint64_t i = 0; i < 3; i++)
            if (ms[k][i] == 30)
                slow = i;
            else
                assert_int_equal(straggles_at(11 + i, k + 1, 50, ms[k][i], &median), 0);
        assert_true(straggles_at(11 + slow, k + 1, 50, 30, &median) > 0);
        assert_true(median > 13.9 && median < 14.1);
    }
}

/* It is judged by 20 steps at least, and by 5 s: short steps are noisy. */
static void test_straggler_window(void **state)
{
    (void)state;
    double median = 0;
    session();
    start(11);
    start(12);
    assert_int_equal(straggles_at(11, 1, 50, 10, &median), 0);
    assert_int_equal(straggles_at(12, 1, 50, 40, &median), 5000 / 50);
    assert_int_equal(straggles_at(11, 2, 1000, 10, &median), 0);
    assert_int_equal(straggles_at(12, 2, 1000, 40, &median), 20);
}

/* --- the coordinator's signs of life ------------------------------------------------------------------------------ */

static void test_heartbeats(void **state)
{
    (void)state;
    session();
    int64_t last = now;
    assert_int_equal(SENT(HEARTBEAT)->heartbeat->number, 1); /* right behind the acknowledgement */
    for (uint64_t i = 2; i <= 10; i++) {
        assert_int_equal(heartbeat(), i);
        assert_in_range(now - last, 1, 100);
        last = now;
    }
    answer(4);
    int64_t at = agent_core_contact(c);
    assert_true(at < now - 300 && at > now - 700); /* when it was sent, not when it was answered */
    answer(3);
    assert_int_equal(agent_core_contact(c), at);
    answer(11); /* never sent */
    assert_int_equal(agent_core_contact(c), at);
}

static const Titan__Internal__PeerHeartbeat *datagram(void)
{
    const struct agent_action *a = action(AGENT_PEER);
    if (!a || a->peer->kind_case != TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT)
        return NULL;
    assert_string_equal(a->text, "c:1");
    assert_string_equal(a->peer->from, "here");
    return a->peer->heartbeat;
}

static void answer_datagram(uint64_t number, uint64_t of_term)
{
    Titan__Internal__HeartbeatAnswer a = TITAN__INTERNAL__HEARTBEAT_ANSWER__INIT;
    peer_message m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    a.number = number;
    m.from = (char *)"";
    m.term = of_term;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_HEARTBEAT_ANSWER;
    m.heartbeat_answer = &a;
    INPUT(agent_core_peer, &m, "c:1");
}

static void tick_at_deadline(void)
{
    now = MAX(now, agent_core_deadline(c));
    INPUT(agent_core_tick);
}

/* Datagrams carry the heartbeats while they are answered, and the stream one now and then. */
static void test_heartbeats_as_datagrams(void **state)
{
    (void)state;
    agent_core_free(c);
    core_up_with(0, "c:1");
    session();
    assert_int_equal(datagram()->incarnation, 5);
    assert_int_equal(datagram()->number, SENT(HEARTBEAT)->heartbeat->number);
    assert_true(datagram()->hears); /* the acknowledgement */
    unsigned in_stream = 0;
    for (int i = 0; i < 100; i++) { /* no answer: both */
        tick_at_deadline();
        in_stream += SENT(HEARTBEAT) != NULL;
        assert_non_null(datagram());
        if (SENT(HEARTBEAT) && i % 2)
            answer(SENT(HEARTBEAT)->heartbeat->number);
    }
    assert_int_equal(in_stream, 100);
    const int64_t begin = now;
    for (in_stream = 0; now < begin + 10000;) {
        tick_at_deadline();
        assert_true(datagram()->hears);
        in_stream += SENT(HEARTBEAT) != NULL;
        answer_datagram(datagram()->number, term);
    }
    assert_in_range(in_stream, 30, 41); /* four a second, away_ms being one */
    answer(0);
    assert_true(agent_core_contact(c) <= begin); /* leases and commands rest on the stream alone */
}

static void test_datagrams_between_sessions(void **state)
{
    (void)state;
    agent_core_free(c);
    core_up_with(0, "c:1");
    INPUT(agent_core_tick);
    assert_null(datagram()); /* not before the first acknowledgement */
    session();
    INPUT(agent_core_session_down);
    int64_t begin = now;
    for (; now < begin + 5000; answer_datagram(datagram()->number, term)) {
        tick_at_deadline();
        assert_null(SENT(HEARTBEAT));
        assert_true(datagram()->hears);
    }
    begin = now;
    while (agent_core_deadline(c) < begin + 5000) {
        tick_at_deadline();
        answer_datagram(datagram() ? datagram()->number : 0, term - 1);
        answer_datagram(1000000, term); /* no heartbeat of ours */
    }
    assert_in_range(now, begin + 800, begin + 1100); /* then it is away, and the next session will tell */
    session();
    now += 2000;
    tick_at_deadline();
    assert_false(datagram()->hears); /* the stream is there and nothing comes back */
}

/* The time between answered heartbeats, and what each of them promises. */
static void assert_interval(int64_t lo, int64_t hi, uint32_t promised)
{
    for (int i = 0; i < 5; i++) {
        const int64_t before = now;
        const uint64_t number = heartbeat();
        assert_in_range(now - before, lo, hi);
        assert_int_equal(SENT(HEARTBEAT)->heartbeat->next_ms, promised);
        answer(number);
    }
}

/* An agent without workers promises rare heartbeats; a command to start a worker ends the promise at once. */
static void test_idle_heartbeats(void **state)
{
    (void)state;
    idle_ms = 2000;
    session();
    assert_int_equal(SENT(HEARTBEAT)->heartbeat->next_ms, 0); /* not before the coordinator has answered here */
    answer(1);
    (void)heartbeat();
    assert_int_equal(SENT(HEARTBEAT)->heartbeat->next_ms, 2000);
    answer(2);
    assert_interval(1900, 2000, 2000);
    now += 500;
    start(11);
    assert_non_null(SENT(HEARTBEAT)); /* before anything that the worker's start brings */
    assert_int_equal(SENT(HEARTBEAT)->heartbeat->next_ms, 0);
    assert_int_equal(SENT(HEARTBEAT)->heartbeat->slots_used, 1);
    answer(SENT(HEARTBEAT)->heartbeat->number);
    assert_interval(1, 100, 0);
    start(12);
    assert_null(SENT(HEARTBEAT)); /* it promises nothing already */
    ended(0, 0, false);
    assert_interval(1, 100, 0); /* one is left */
    const struct agent_exit how = {.reason = ""};
    INPUT(agent_core_exited, 12, &how);
    answer(heartbeat());
    assert_interval(1900, 2000, 2000);
    INPUT(agent_core_session_down);
    assert_true(agent_core_deadline(c) == INT64_MAX || agent_core_deadline(c) <= now + 100);
    session();
    assert_int_equal(SENT(HEARTBEAT)->heartbeat->next_ms, 0);
}

/* A coordinator of an older version allows no promise, nor does a coordinator that wants proofs of the link. */
static void test_no_idle_heartbeats(void **state)
{
    (void)state;
    session();
    answer(1);
    assert_interval(1, 100, 0);
    idle_ms = 100; /* as often as all */
    ack();
    assert_interval(1, 100, 0);
    idle_ms = 1000;
    ack();
    answer(heartbeat());
    assert_interval(900, 1000, 1000);
    idle_ms = 0; /* and takes it back */
    ack();
    assert_int_equal(SENT(HEARTBEAT)->heartbeat->next_ms, 0);
    assert_interval(1, 100, 0);
}

/* An idle agent's contact is as old as it has promised, and the coordinator is not away. */
static void test_idle_agent_is_in_contact(void **state)
{
    (void)state;
    agent_core_free(c);
    core_up_with(0, "c:1");
    idle_ms = 5000; /* away_ms is 1000 */
    session();
    answer(1);
    for (int i = 0; i < 10; i++) {
        tick_at_deadline();
        assert_true(datagram()->hears);
        assert_int_equal(datagram()->next_ms, 5000);
        assert_int_equal(SENT(HEARTBEAT)->heartbeat->next_ms, 5000);
        answer(SENT(HEARTBEAT)->heartbeat->number);
    }
    now += 4000;
    start(11);
    answer(SENT(HEARTBEAT)->heartbeat->number);
    form_with(1, 1);
    assert_int_equal(TOLD(FORM)->form->epoch, 1); /* not held as stale */
    now += 1001;
    form_with(2, 2);
    assert_null(TOLD(FORM)); /* with a worker it is, after away_ms */
}

/* A report stays until a heartbeat behind it has been answered. */
static void test_report_in_a_stalled_stream(void **state)
{
    (void)state;
    session();
    answer(heartbeat());
    start(11);
    now += 100;
    INPUT(agent_core_started, 11, 77);
    assert_non_null(SENT(WORKER_STARTED));
    for (int64_t begin = now; now < begin + 8000;)
        (void)heartbeat();
    INPUT(agent_core_session_down);
    session();
    assert_non_null(SENT(WORKER_STARTED));
    for (int64_t begin = now; now < begin + 8000;)
        answer(heartbeat());
    INPUT(agent_core_session_down);
    session();
    assert_null(SENT(WORKER_STARTED));
}

static void test_deaf_coordinator(void **state)
{
    (void)state;
    session();
    answer(heartbeat());
    int64_t begin = now;
    while (!count(AGENT_END_SESSION)) {
        assert_true(now < begin + 11000);
        (void)heartbeat();
    }
    assert_true(now >= begin + 10000);
}

/* What lay in the socket while the agent was stopped is obeyed when the coordinator has shown that it is there. */
static void test_stale_order_waits(void **state)
{
    (void)state;
    session();
    start(11);
    answer(heartbeat());
    now += 5000;
    form_with(1, 1);
    assert_null(TOLD(FORM));
    uint64_t fresh = heartbeat();
    answer(fresh - 1);
    assert_null(TOLD(FORM));
    answer(fresh);
    assert_int_equal(TOLD(FORM)->form->epoch, 1);
    now += 5000;
    form_with(2, 2);
    INPUT(agent_core_session_down); /* it will be said again, if it still holds */
    session();
    answer(heartbeat());
    assert_null(TOLD(FORM));
}

/* --- peers -------------------------------------------------------------------------------------------------------- */

static struct proof_keys probe_keys;

static void probe(uint64_t id)
{
    Titan__Internal__ProbeNode p = TITAN__INTERNAL__PROBE_NODE__INIT;
    if (probe_keys.n)
        p.key = (ProtobufCBinaryData){MAC_BYTES, probe_keys.key[0]};
    p.probe_id = id;
    p.node = (char *)"there";
    p.address = (char *)"10.0.0.2:9";
    p.timeout_ms = 150;
    MESSAGE(m, PROBE, probe, &p);
    hear(&m);
}

static void pong(uint64_t id, const char *from)
{
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    m.id = id;
    m.from = (char *)from;
    m.to = (char *)"here";
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PONG;
    m.pong = true;
    proof_make(&m, &probe_keys, proofs);
    INPUT(agent_core_peer, &m, "10.0.0.2:9");
}

static void test_probe(void **state)
{
    (void)state;
    session();
    probe(1);
    uint64_t id = action(AGENT_PEER)->peer->id;
    assert_string_equal(action(AGENT_PEER)->text, "10.0.0.2:9");
    for (int i = 0; i < 2; i++) { /* three pings, 20 ms apart, of one id */
        now = agent_core_deadline(c);
        INPUT(agent_core_tick);
        assert_int_equal(action(AGENT_PEER)->peer->id, id);
    }
    assert_int_equal(now, 1040);
    pong(id + 2, "there");
    pong(id, "elsewhere"); /* the address is another node's now */
    assert_null(SENT(PROBE_RESULT));
    pong(id, "there");
    assert_true(SENT(PROBE_RESULT)->probe_result->reached);
    probe(2);
    while (now < 1040 + 150 && !SENT(PROBE_RESULT)) {
        now += 10;
        INPUT(agent_core_tick);
    }
    assert_int_equal(now, 1040 + 150);
    assert_int_equal(SENT(PROBE_RESULT)->probe_result->probe_id, 2);
    assert_false(SENT(PROBE_RESULT)->probe_result->reached);
}

/* A peer that has answered had the key that came with the order. */
static void test_probe_is_proved(void **state)
{
    (void)state;
    struct proof_keys right = {.n = 1, .key = {{7}}}, wrong = {.n = 1, .key = {{8}}};
    size_t at;
    session();
    probe_keys = right;
    probe(1);
    const Titan__Internal__PeerMessage *ping = action(AGENT_PEER)->peer;
    uint64_t id = ping->id;
    assert_int_equal(proof_find(ping, &right, &at), 0);
    assert_int_equal(ping->number, 1);
    assert_string_equal(ping->to, "there");
    probe_keys.n = 0;
    pong(id, "there");
    probe_keys = wrong;
    pong(id, "there");
    assert_null(SENT(PROBE_RESULT));
    assert_int_equal(agent_core_counters(c)->unproved, 2);
    probe_keys = right;
    pong(id, "there");
    assert_true(SENT(PROBE_RESULT)->probe_result->reached);
    probe_keys.n = 0;
}

static bool pinged(const struct proof_keys *keys, const char *to)
{
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    uint8_t proofs[PROOF_KEYS_MAX * MAC_BYTES];
    m.id = 77;
    m.number = 5;
    m.from = (char *)"there";
    m.to = (char *)to;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PING;
    m.ping = true;
    proof_make(&m, keys, proofs);
    INPUT(agent_core_peer, &m, "10.0.0.2:9");
    return action(AGENT_PEER) != NULL;
}

static void ack_with(const uint8_t *key)
{
    Titan__Internal__RegistrationAck w = TITAN__INTERNAL__REGISTRATION_ACK__INIT;
    w.term = 5;
    w.heartbeat_ms = 50;
    w.key = (ProtobufCBinaryData){key ? MAC_BYTES : 0, (uint8_t *)(uintptr_t)key};
    MESSAGE(m, ACK, ack, &w);
    INPUT(agent_core_coordinator, &m);
}

/* An unknown sender does not even learn that there is an agent. */
static void test_ping_is_answered(void **state)
{
    (void)state;
    const uint8_t session_key[MAC_BYTES] = {3}, next_key[MAC_BYTES] = {4};
    struct proof_keys right = {.n = 1}, next = {.n = 1}, none = {0}, whole = {.n = 1};
    size_t at;
    proof_probe(session_key, 5, right.key[0]);
    proof_probe(next_key, 5, next.key[0]);
    memcpy(whole.key[0], session_key, MAC_BYTES);
    assert_false(pinged(&none, "here")); /* it has had no session yet */
    INPUT(agent_core_session_up);
    ack_with(session_key);
    assert_false(pinged(&none, "here"));
    assert_false(pinged(&next, "here"));
    assert_false(pinged(&whole, "here"));
    assert_false(pinged(&right, "there"));
    assert_true(pinged(&right, "here"));
    const Titan__Internal__PeerMessage *pong = action(AGENT_PEER)->peer;
    assert_int_equal(pong->id, 77);
    assert_int_equal(pong->kind_case, TITAN__INTERNAL__PEER_MESSAGE__KIND_PONG);
    assert_string_equal(pong->from, "here");
    assert_int_equal(proof_find(pong, &right, &at), 0);
    ack_with(next_key); /* the coordinator may not know yet that it has come */
    assert_true(pinged(&right, "here"));
    assert_int_equal(proof_find(action(AGENT_PEER)->peer, &right, &at), 0);
    assert_true(pinged(&next, "here"));
    ack_with(NULL); /* an older coordinator has none */
    assert_true(pinged(&none, "here"));
}

static void test_own_name(void **state)
{
    (void)state;
    Titan__Internal__PeerMessage m = TITAN__INTERNAL__PEER_MESSAGE__INIT;
    m.id = 77;
    m.kind_case = TITAN__INTERNAL__PEER_MESSAGE__KIND_PING;
    m.ping = true;
    m.from = (char *)"here";
    INPUT(agent_core_peer, &m, "10.0.0.2:9");
    assert_int_equal(count(AGENT_LOG), 1);
    assert_null(action(AGENT_PEER));
    INPUT(agent_core_peer, &m, "10.0.0.2:9");
    assert_null(out.first); /* said once */
    assert_int_equal(agent_core_counters(c)->forged, 2);
}

/* Each coordinator is asked to take the workers elsewhere, with the time that is left. */
static void test_leaves(void **state)
{
    (void)state;
    in_training();
    INPUT(agent_core_leave, 5000);
    assert_int_equal(SENT(LEAVES)->leaves->deadline_ms, 5000);
    INPUT(agent_core_session_down);
    INPUT(agent_core_session_up);
    assert_null(SENT(LEAVES));
    now += 2000;
    ack();
    assert_int_equal(SENT(LEAVES)->leaves->deadline_ms, 3000);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_term_is_recorded_before_it_is_obeyed),
        TEST(test_lower_terms_are_refused),
        TEST(test_term_and_its_proof),
        TEST(test_term_survives_a_restart),
        TEST(test_epochs_are_listed_on_request),
        TEST(test_epoch_is_recorded_before_it_is_formed),
        TEST(test_worker_in_two_places),
        TEST(test_older_epochs_are_dropped),
        TEST(test_worker_says_what_cannot_be),
        TEST(test_page_says_what_cannot_be),
        TEST(test_last_words_are_fit_to_be_read),
        TEST(test_coordinator_says_what_cannot_be),
        TEST(test_another_epoch_of_the_number_is_refused),
        TEST(test_gpus_are_said_when_they_change),
        TEST(test_newest_progress_is_sent_again),
        TEST(test_reports_are_said_again),
        TEST(test_reports_do_not_grow),
        TEST(test_reports_are_said_to_the_newest),
        TEST(test_worker_speaks_for_itself),
        TEST(test_registration_lists_what_was_quiesced),
        TEST(test_records_are_bounded),
        TEST(test_causes),
        TEST(test_causes_of_no_start),
        TEST(test_revoked_and_not_quiet_is_killed),
        TEST(test_revoked_while_the_agent_stood_still),
        TEST(test_quiet_in_time_is_not_killed),
        TEST(test_moving_out_gets_more_time),
        TEST(test_stall_is_reported),
        TEST(test_straggler),
        TEST(test_straggler_median),
        TEST(test_straggler_window),
        TEST(test_heartbeats),
        TEST(test_heartbeats_as_datagrams),
        TEST(test_datagrams_between_sessions),
        TEST(test_report_in_a_stalled_stream),
        TEST(test_deaf_coordinator),
        TEST(test_idle_heartbeats),
        TEST(test_no_idle_heartbeats),
        TEST(test_idle_agent_is_in_contact),
        TEST(test_stale_order_waits),
        TEST(test_probe),
        TEST(test_probe_is_proved),
        TEST(test_ping_is_answered),
        TEST(test_own_name),
        TEST(test_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
