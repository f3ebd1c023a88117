/* SPDX-License-Identifier: Apache-2.0 */
/* What is refused: old terms, names and workers of others, what was said before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "daemon/common/proof.h"
#include "support/core_bench.h"

static const uint8_t store_secret[MAC_BYTES] = {3}, other_secret[MAC_BYTES] = {4};

/* Under the secret of that store; it lies in a buffer of its own until the next. */
static ProtobufCBinaryData proof_of(const uint8_t secret[MAC_BYTES], uint64_t term)
{
    static uint8_t proof[MAC_BYTES];
    proof_term(secret, term, proof);
    return (ProtobufCBinaryData){sizeof(proof), proof};
}

static titan_status registration_proving(struct bench *b, uint64_t session, const char *node, uint64_t seen_term,
                                         ProtobufCBinaryData proof, struct titan_error *err)
{
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = (char *)node;
    body.address = (char *)"10.0.0.9";
    body.slots = 2;
    body.device = (char *)"cpu";
    body.incarnation = 1;
    body.seen_term = seen_term;
    body.seen_proof = proof;
    MESSAGE(m, REGISTRATION, registration, body);
    m.term = seen_term;
    batch_free(&b->out);
    return core_agent(b->core, session, &m, at(b), &b->out, err);
}

static titan_status registration_from(struct bench *b, uint64_t session, const char *node, const char *address,
                                      uint64_t incarnation, uint64_t seen_term, struct titan_error *err)
{
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = (char *)node;
    body.address = (char *)address;
    body.slots = 2;
    body.device = (char *)"cpu";
    body.incarnation = incarnation;
    body.seen_term = seen_term;
    MESSAGE(m, REGISTRATION, registration, body);
    m.term = seen_term;
    batch_free(&b->out);
    return core_agent(b->core, session, &m, at(b), &b->out, err);
}

static void open_term(struct bench *b, uint64_t term)
{
    struct core_options options = {.term = term, .seed = 1, .jobs_dir = "/jobs", .term_secret = store_secret};
    memset(b, 0, sizeof(*b));
    b->now = 1000;
    batch_init(&b->out);
    assert_int_equal(core_new(&options, &b->core, NULL), TITAN_OK);
}

/* A store from an old backup: a node has obeyed a later coordinator. */
static void test_higher_term(void **state)
{
    (void)state;
    struct bench b;
    struct titan_error err = {0};
    open_term(&b, 3);
    assert_int_equal(registration_from(&b, 1, "a", "10.0.0.1", 1, 2, &err), TITAN_OK); /* has seen the one before us */
    submit(&b, 1, 2, 2);
    assert_non_null(told(&b, START, 1));
    assert_int_equal(registration_proving(&b, 2, "b", 7, proof_of(store_secret, 7), &err), TITAN_EUNREACHABLE);
    assert_true(core_fenced(b.core));
    assert_string_equal(event(&b, "coordinator.fenced")->detail, "{\"term\":3,\"seen_term\":7}");
    assert_null(b.out.messages);
    assert_non_null(strstr(err.msg, "its term is 3, and node b has obeyed one of term 7"));
    assert_non_null(strstr(err.hint, "titanctl admin restore"));
    /* From here on nothing is decided: not by reports, not by time, not on request. */
    Titan__Internal__WorkerReady body = TITAN__INTERNAL__WORKER_READY__INIT;
    body.job_id = body.worker_id = 1;
    body.address = (char *)"h:1";
    MESSAGE(m, WORKER_READY, worker_ready, body);
    assert_int_equal(say(&b, 1, &m), TITAN_EUNREACHABLE);
    assert_true(batch_empty(&b.out));
    tick(&b, 600000);
    assert_true(batch_empty(&b.out));
    assert_int_equal(core_deadline(b.core), INT64_MAX);
    struct core_cancel request = {.reason = ""};
    err = (struct titan_error){0};
    assert_int_equal(core_cancel(b.core, 1, &request, at(&b), &b.out, &err), TITAN_EUNREACHABLE);
    assert_non_null(strstr(err.hint, "titanctl admin restore"));
    submit(&b, 2, 1, 1);
    core_session_closed(b.core, 1, at(&b), &b.out);
    assert_true(batch_empty(&b.out));
    assert_int_equal(core_accepts(b.core, NULL), TITAN_EUNREACHABLE);
    close_bench(&b);
}

static void test_refusal_for_the_term(void **state)
{
    (void)state;
    struct bench b;
    open_term(&b, 3);
    assert_int_equal(registration_from(&b, 1, "a", "10.0.0.1", 1, 0, NULL), TITAN_OK);
    Titan__Internal__EpochRefused body = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    body.seen_term = 4;
    body.seen_proof = proof_of(store_secret, 4);
    MESSAGE(m, REFUSED, refused, body);
    m.term = 3;
    assert_int_equal(say(&b, 1, &m), TITAN_EUNREACHABLE);
    assert_true(core_fenced(b.core));
    close_bench(&b);
}

/* A term that no coordinator over this store has had: a node that tells of it is refused, and the others are served. */
static void test_terms_without_a_proof(void **state)
{
    (void)state;
    struct bench b;
    struct titan_error err = {0};
    uint8_t flipped[MAC_BYTES];
    open_term(&b, 3);
    assert_int_equal(registration_from(&b, 1, "a", "10.0.0.1", 1, 3, &err), TITAN_OK); /* ours needs none */
    ProtobufCBinaryData registered = {0};
    for (const struct batch_message *m = b.out.answers; m; m = m->next)
        if (m->message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK)
            registered = m->message->ack->term_proof;
    assert_int_equal(registered.len, MAC_BYTES);
    assert_memory_equal(registered.data, proof_of(store_secret, 3).data, MAC_BYTES);
    memcpy(flipped, proof_of(store_secret, 4).data, MAC_BYTES);
    flipped[MAC_BYTES - 1] ^= 1;
    const struct {
        uint64_t term;
        ProtobufCBinaryData proof;
    } lies[] = {{4, {0}}, {4, {MAC_BYTES, flipped}}, {UINT64_C(1) << 40, {MAC_BYTES, flipped}}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(registration_proving(&b, 2 + i, "evil", lies[i].term, lies[i].proof, &err), TITAN_EPERM);
        assert_int_equal(event(&b, "report.refused") != NULL, i == 0); /* told once a minute */
    }
    assert_int_equal(registration_proving(&b, 8, "evil", 4, proof_of(store_secret, 3), &err),
                     TITAN_EPERM); /* another's */
    assert_int_equal(registration_proving(&b, 9, "evil", 4, proof_of(other_secret, 4), &err), TITAN_EPERM);
    assert_non_null(strstr(err.msg, "node evil tells of a coordinator of term 4, this one's is 3"));
    assert_non_null(strstr(err.hint, "run/term"));
    /* Behind a registration, and as the term of a message. */
    Titan__Internal__EpochRefused body = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    body.seen_term = 5;
    MESSAGE(m, REFUSED, refused, body);
    m.term = 3;
    assert_int_equal(say(&b, 1, &m), TITAN_EPERM);
    body.seen_term = 3;
    m.term = 5;
    assert_int_equal(say(&b, 1, &m), TITAN_EPERM);
    assert_int_equal(core_counters(b.core)->term_unproved, 7);
    assert_false(core_fenced(b.core));
    assert_int_equal(registration_from(&b, 10, "b", "10.0.0.2", 1, 2, &err), TITAN_OK);
    submit(&b, 1, 4, 4);
    assert_true(told(&b, START, 1) && told(&b, START, 10));
    b.now += 60000;
    assert_int_equal(registration_proving(&b, 11, "evil", 4, lies[0].proof, &err), TITAN_EPERM);
    assert_string_equal(event(&b, "report.refused")->detail, "{\"term\":3,\"seen_term\":4}");
    close_bench(&b);
}

/* Said to the coordinator before us, and heard now. */
static void test_lower_term(void **state)
{
    (void)state;
    struct bench b;
    open_term(&b, 3);
    assert_int_equal(registration_from(&b, 1, "a", "10.0.0.1", 1, 0, NULL), TITAN_OK);
    submit(&b, 1, 1, 1);
    Titan__Internal__WorkerReady body = TITAN__INTERNAL__WORKER_READY__INIT;
    body.job_id = body.worker_id = 1;
    body.address = (char *)"h:1";
    MESSAGE(m, WORKER_READY, worker_ready, body);
    m.term = 2;
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    assert_true(batch_empty(&b.out));
    assert_int_equal(core_counters(b.core)->old_term, 1);
    m.term = 3;
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    assert_non_null(told(&b, FORM, 1));
    close_bench(&b);
}

static void test_name_taken(void **state)
{
    (void)state;
    struct bench b;
    struct titan_error err = {0};
    open_term(&b, 1);
    assert_int_equal(registration_from(&b, 1, "a", "10.0.0.1", 1, 0, &err), TITAN_OK);
    b.now += 100;
    assert_int_equal(registration_from(&b, 2, "a", "10.0.0.2", 9, 0, &err), TITAN_EEXIST);
    assert_string_equal(err.msg,
                        "registration from 10.0.0.2: the name 'a' is taken by the node at 10.0.0.1, which is alive");
    assert_null(b.out.drops);
    assert_int_equal(core_node_session(b.core, "a"), 1);
    assert_int_equal(core_counters(b.core)->name_taken, 1);
    /* The same machine with a new agent, or the same agent on a new stream: fine. */
    assert_int_equal(registration_from(&b, 3, "a", "10.0.0.1", 2, 0, &err), TITAN_OK);
    assert_int_equal(registration_from(&b, 4, "a", "10.0.0.1", 2, 0, &err), TITAN_OK);
    assert_int_equal(core_node_session(b.core, "a"), 4);
    /* It has moved to another address, and nothing is heard from the old one. */
    tick(&b, 300);
    assert_int_equal(registration_from(&b, 5, "a", "10.0.0.3", 3, 0, &err), TITAN_OK);
    assert_int_equal(core_node_session(b.core, "a"), 5);
    close_bench(&b);
}

/* "a" at another address, by an agent of its own; number 0: it does not tell its installation. */
static titan_status comes_elsewhere(struct bench *b, uint64_t session, uint8_t number, struct titan_error *err)
{
    uint8_t installation[NODE_INSTALLATION] = {number};
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    char address[32];
    (void)snprintf(address, sizeof(address), "10.0.1.%u", (unsigned)session);
    body.node = (char *)"a";
    body.address = address;
    body.slots = 2;
    body.device = (char *)"cpu";
    body.incarnation = session;
    if (number)
        body.installation = (ProtobufCBinaryData){sizeof(installation), installation};
    MESSAGE(m, REGISTRATION, registration, body);
    batch_free(&b->out);
    return core_agent(b->core, session, &m, at(b), &b->out, err);
}

static void falls_silent(struct bench *b, uint64_t session)
{
    core_session_closed(b->core, session, at(b), &b->out);
    tick(b, 1000);
}

/* It comes back at another address, and an agent at the old one may go on without us for as long as its lease lasts. */
static void test_moved(void **state)
{
    (void)state;
    enum { LEASE = 20000 };
    struct core_options options = {.term = 1, .seed = 1, .jobs_dir = "/jobs", .leader_lease_ms = LEASE};
    struct bench b = {.now = 1000};
    struct titan_error err = {0};
    batch_init(&b.out);
    assert_int_equal(core_new(&options, &b.core, NULL), TITAN_OK);
    assert_int_equal(comes_elsewhere(&b, 1, 7, &err), TITAN_OK);
    /* Without a worker there is nothing to wait for, but that the old one is silent. */
    assert_int_equal(comes_elsewhere(&b, 2, 8, &err), TITAN_EEXIST);
    assert_non_null(strstr(err.msg, "is taken by the node at 10.0.1.1, which is alive"));
    falls_silent(&b, 1);
    assert_int_equal(comes_elsewhere(&b, 3, 8, &err), TITAN_OK);
    assert_int_equal(core_node_session(b.core, "a"), 3);
    submit(&b, 1, 2, 2);
    assert_non_null(told(&b, START, 3));                             /* on their way: they may be there */
    assert_int_equal(comes_elsewhere(&b, 4, 8, &err), TITAN_EEXIST); /* a copy, while the other answers */
    falls_silent(&b, 3);
    err = (struct titan_error){0};
    assert_int_equal(comes_elsewhere(&b, 5, 9, &err), TITAN_EEXIST);
    assert_non_null(strstr(err.msg, "node a was at 10.0.1.3 until "));
    assert_non_null(strstr(err.msg, ", and its workers may train there until "));
    assert_non_null(strstr(err.hint, "titanctl node forget a ends the wait"));
    assert_int_equal(comes_elsewhere(&b, 6, 0, &err), TITAN_EEXIST);
    assert_int_equal(core_node_session(b.core, "a"), 0);
    /* The same installation has taken the workers over. */
    assert_int_equal(comes_elsewhere(&b, 7, 8, &err), TITAN_OK);
    assert_int_equal(core_node_session(b.core, "a"), 7);
    core_session_closed(b.core, 7, at(&b), &b.out);
    assert_int_equal(comes_elsewhere(&b, 11, 8, &err), TITAN_OK); /* at once: the session is over */
    heartbeat(&b, 11);
    falls_silent(&b, 11);
    assert_int_equal(comes_elsewhere(&b, 8, 9, &err), TITAN_OK); /* it listed none: they have ended */
    submit(&b, 2, 2, 2);
    falls_silent(&b, 8);
    assert_int_equal(comes_elsewhere(&b, 9, 10, &err), TITAN_EEXIST);
    tick(&b, LEASE + LEASE / 20 + 500);
    assert_int_equal(comes_elsewhere(&b, 10, 10, &err), TITAN_OK);
    close_bench(&b);
}

/* The one from before our start is waited for: no other node gets its name, and its workers, meanwhile. */
static void test_name_of_who_is_to_come(void **state)
{
    (void)state;
    struct bench b;
    struct node saved = {.name = "a",
                         .state = NODE_READY,
                         .slots = 2,
                         .device = "cpu",
                         .address = "10.0.0.1",
                         .version = "",
                         .incarnation = 1};
    open_term(&b, 2);
    core_restore_node(b.core, &saved, at(&b));
    assert_int_equal(registration_from(&b, 1, "a", "10.0.0.2", 9, 1, NULL), TITAN_EEXIST);
    assert_int_equal(registration_from(&b, 1, "a", "10.0.0.1", 1, 1, NULL), TITAN_OK);
    close_bench(&b);
    open_term(&b, 2);
    core_restore_node(b.core, &saved, at(&b));
    tick(&b, 7000);
    assert_int_equal(registration_from(&b, 1, "a", "10.0.0.2", 9, 1, NULL), TITAN_OK);
    close_bench(&b);
}

/* Node b speaks of a worker of node a, of one that never was, and of its own for an epoch it has no place in. */
static void test_others_workers(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    assert_int_equal(registration(&b, 2, "b", 1, NULL, 0), TITAN_OK);
    progress(&b, .session = 2, .worker = 1, .epoch = 1, .step = 50);
    assert_null(told(&b, STOP, 0)); /* it is not b's to be stopped */
    assert_string_equal(event(&b, "report.refused")->detail, "{\"job\":1,\"worker\":1}");
    exited(&b, .session = 2, .worker = 1, .code = -1);
    assert_null(told(&b, REVOKE, 0));
    progress(&b, .session = 2, .job = 7, .worker = 7, .epoch = 1, .step = 50);
    assert_non_null(told(&b, STOP, 2));
    assert_null(event(&b, "report.refused")); /* once */
    const struct core_counters *counters = core_counters(b.core);
    assert_int_equal(counters->unknown_worker, 2);
    assert_int_equal(counters->duplicate, 1);
    progress(&b, .worker = 2, .epoch = 9, .step = 50); /* of an epoch to come */
    assert_null(b.out.changes);
    assert_int_equal(counters->unknown_rank, 1);
    progress(&b, .worker = 2, .epoch = 0, .step = 50);
    assert_int_equal(counters->old_epoch, 1);
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_int_equal(status.step, 7);
    close_bench(&b);
}

static void refusals(struct bench *b, uint64_t session, uint64_t old_terms, uint64_t forged)
{
    Titan__Internal__AgentHeartbeat body = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    body.old_terms = old_terms;
    body.forged = forged;
    MESSAGE(m, HEARTBEAT, heartbeat, body);
    assert_int_equal(say(b, session, &m), TITAN_OK);
}

/* Agents tell of all they have refused since they started: counted once, whatever session it is said on. */
static void test_refused_by_agents(void **state)
{
    (void)state;
    struct bench b;
    open_term(&b, 3);
    const struct core_counters *counters = core_counters(b.core);
    assert_int_equal(registration_from(&b, 1, "a", "10.0.0.1", 1, 0, NULL), TITAN_OK);
    assert_int_equal(registration_from(&b, 2, "b", "10.0.0.2", 1, 0, NULL), TITAN_OK);
    refusals(&b, 1, 2, 0);
    refusals(&b, 1, 2, 1);
    refusals(&b, 2, 5, 0);
    assert_int_equal(counters->agents_old_term, 7);
    assert_int_equal(counters->agents_imposter, 1);
    assert_int_equal(registration_from(&b, 3, "a", "10.0.0.1", 1, 0, NULL), TITAN_OK);
    refusals(&b, 3, 3, 1);
    assert_int_equal(counters->agents_old_term, 8);
    assert_int_equal(counters->agents_imposter, 1);
    assert_int_equal(registration_from(&b, 4, "a", "10.0.0.1", 2, 0, NULL), TITAN_OK); /* a new agent begins at 0 */
    refusals(&b, 4, 1, 1);
    assert_int_equal(counters->agents_old_term, 9);
    assert_int_equal(counters->agents_imposter, 2);
    close_bench(&b);
}

static void test_said_twice(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    assert_int_equal(registration(&b, 1, "a", 4, NULL, 0), TITAN_ECONFLICT);
    assert_int_equal(core_counters(b.core)->duplicate, 1);
    exited(&b, .worker = 3, .code = -1);
    exited(&b, .worker = 3, .code = -1);
    assert_null(b.out.changes);
    assert_int_equal(core_counters(b.core)->duplicate, 2);
    Titan__Internal__AgentHeartbeat body = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    MESSAGE(m, HEARTBEAT, heartbeat, body);
    assert_int_equal(say(&b, 99, &m), TITAN_ECONFLICT);
    assert_int_equal(core_counters(b.core)->unknown_node, 1);
    close_bench(&b);
}

/* A number of an epoch that no run comes to, and a word about one from where nothing of it is. */
static void test_refused_epochs(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    assert_int_equal(registration(&b, 2, "evil", 1, NULL, 0), TITAN_OK);
    Titan__Internal__EpochRefused body = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    body.job_id = 1;
    body.epoch = 1;
    body.seen_epoch = 2;
    MESSAGE(m, REFUSED, refused, body);
    assert_int_equal(say(&b, 2, &m), TITAN_OK);
    assert_null(event(&b, "epoch.refused"));
    assert_non_null(event(&b, "report.refused"));
    body.seen_epoch = 1 + (UINT64_C(1) << 33);
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    assert_null(event(&b, "epoch.refused"));
    assert_int_equal(core_counters(b.core)->implausible, 2);
    body.seen_epoch = 2;
    assert_int_equal(say(&b, 1, &m), TITAN_OK);
    assert_non_null(event(&b, "epoch.refused"));
    close_bench(&b);
}

/* What a field can never be ends the session, and nothing else. */
static void test_out_of_range(void **state)
{
    (void)state;
    struct bench b;
    struct titan_error err = {0};
    running_job(&b);
    Titan__Internal__EpochRefused body = TITAN__INTERNAL__EPOCH_REFUSED__INIT;
    body.job_id = 1;
    body.epoch = 1;
    body.seen_epoch = UINT64_MAX;
    MESSAGE(m, REFUSED, refused, body);
    batch_free(&b.out);
    assert_int_equal(core_agent(b.core, 1, &m, at(&b), &b.out, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, "node a: AgentMessage.refused.seen_epoch = 18446744073709551615: 0 to "
                                 "4611686018427387903");
    assert_non_null(event(&b, "report.refused"));
    assert_null(told(&b, REVOKE, 0));
    assert_int_equal(core_counters(b.core)->out_of_range, 1);
    progress(&b, .worker = 1, .epoch = 1, .step = 8);
    close_bench(&b);
}

/* A term counts when the name of its node is its own, and when it is proved. */
static void test_terms_of_unknown_senders(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    Titan__Internal__AgentHeartbeat heartbeat = TITAN__INTERNAL__AGENT_HEARTBEAT__INIT;
    MESSAGE(m, HEARTBEAT, heartbeat, heartbeat);
    m.term = 2;
    assert_int_equal(say(&b, 9, &m), TITAN_ECONFLICT); /* no registration */
    assert_false(core_fenced(b.core));
    m.term = (UINT64_C(1) << 33);
    assert_int_equal(say(&b, 1, &m), TITAN_EPERM);
    assert_false(core_fenced(b.core));
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = (char *)"a";
    body.slots = 1;
    body.device = (char *)"cpu";
    body.address = (char *)"elsewhere";
    body.incarnation = 77;
    body.seen_term = 2;
    body.seen_proof = proof_of((const uint8_t[MAC_BYTES]){0}, 2);
    MESSAGE(thief, REGISTRATION, registration, body);
    assert_int_equal(say(&b, 10, &thief), TITAN_EEXIST);
    assert_false(core_fenced(b.core));
    body.address = (char *)"h";
    body.incarnation = 1;
    assert_int_equal(say(&b, 10, &thief), TITAN_EUNREACHABLE);
    assert_true(core_fenced(b.core));
    close_bench(&b);
}

static titan_status registration_as(struct bench *b, uint64_t session, const char *identity, uint64_t incarnation)
{
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = (char *)"n";
    body.slots = 1;
    body.device = (char *)"cpu";
    body.address = (char *)"here";
    body.incarnation = incarnation;
    MESSAGE(m, REGISTRATION, registration, body);
    core_session_opened(b->core, session, identity);
    return say(b, session, &m);
}

/* The address is what the registration says: it is no proof. */
static void test_identities(void **state)
{
    (void)state;
    struct bench b;
    running_job(&b);
    assert_int_equal(registration_as(&b, 5, "spiffe://titan/node/n", 1), TITAN_OK);
    assert_int_equal(registration_as(&b, 6, "spiffe://titan/node/m", 2), TITAN_EEXIST);
    assert_int_equal(core_node_session(b.core, "n"), 5);
    assert_int_equal(core_counters(b.core)->name_taken, 1);
    assert_int_equal(registration_as(&b, 7, "", 2), TITAN_EEXIST);
    assert_int_equal(registration_as(&b, 8, "spiffe://titan/node/n", 2), TITAN_OK); /* it was started again */
    assert_int_equal(core_node_session(b.core, "n"), 8);
    core_session_closed(b.core, 7, at(&b), &b.out);
    close_bench(&b);
}

/* The session that registered, and one that was only open; another identity's goes on. */
static void test_revoked(void **state)
{
    static const char node_n[] = "spiffe://titan/node/n";
    (void)state;
    struct bench b;
    struct titan_error err;
    Titan__Internal__AgentRegistration held = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    held.node = (char *)"n";
    held.slots = 1;
    held.device = (char *)"cpu";
    held.address = (char *)"elsewhere";
    held.incarnation = 2;
    MESSAGE(m, REGISTRATION, registration, held);
    running_job(&b);
    assert_int_equal(registration_as(&b, 5, node_n, 1), TITAN_OK);
    core_session_opened(b.core, 6, node_n);
    core_session_opened(b.core, 7, "spiffe://titan/node/m");
    core_node_revoke(b.core, "n", node_n, at(&b), &b.out);
    assert_int_equal(core_node_session(b.core, "n"), 0);
    assert_int_equal(core_agent(b.core, 6, &m, at(&b), &b.out, &err), TITAN_EPERM);
    assert_non_null(strstr(err.msg, "revoked after the session was opened"));
    assert_int_equal(core_node_session(b.core, "n"), 0);
    held.node = (char *)"m";
    assert_int_equal(core_agent(b.core, 7, &m, at(&b), &b.out, &err), TITAN_OK);
    assert_int_equal(core_node_session(b.core, "m"), 7);
    core_node_revoke(b.core, "absent", node_n, at(&b), &b.out);    /* there is no such node */
    assert_int_equal(registration_as(&b, 8, node_n, 3), TITAN_OK); /* with a certificate of a new join */
    close_bench(&b);
}

/* Where the job keeps its checkpoints, and steps it can have made. */
static void test_implausible_reports(void **state)
{
    (void)state;
    struct bench b;
    static const char *const bad[] = {"/c/../d/step-00000008", "/c/step-00000009", "/c/x/../step-00000008",
                                      "/d/step-00000008", "/c/step-00000008/.."};
    running_job(&b);
    assert_true(core_wants_folder(b.core, 1));
    core_set_folder(b.core, 1, "/c/");
    assert_false(core_wants_folder(b.core, 1));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        checkpoint(&b, .worker = 1, .epoch = 1, .step = 8, .path = bad[i]);
        assert_null(event(&b, "checkpoint.committed"));
    }
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 101, .path = "/c/step-00000101"); /* the job has 100 */
    assert_null(event(&b, "checkpoint.committed"));
    assert_int_equal(core_counters(b.core)->implausible, 6);
    checkpoint(&b, .worker = 1, .epoch = 1, .step = 8, .path = "/c/step-00000008");
    assert_non_null(event(&b, "checkpoint.committed"));
    finished(&b, .worker = 1, .epoch = 1, .step = 99);
    progress(&b, .worker = 1, .epoch = 1, .step = 101);
    assert_int_equal(core_counters(b.core)->implausible, 8);
    /* What a worker holds is said by a registration, too. */
    Titan__Internal__LiveWorker live = TITAN__INTERNAL__LIVE_WORKER__INIT, *list = &live;
    Titan__Internal__WorkerQuiesced holds = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    live.job_id = holds.job_id = live.worker_id = holds.worker_id = 1;
    live.epoch = holds.epoch = holds.installed_epoch = 1;
    live.step = 8;
    live.state = TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED;
    live.address = (char *)"h:1";
    holds.last_step = 101;
    live.quiesced = &holds;
    assert_int_equal(registration(&b, 9, "a", 4, &list, 1), TITAN_OK);
    assert_int_equal(core_counters(b.core)->implausible, 9);
    assert_non_null(told(&b, STOP, 0));
    struct job_status status;
    assert_true(core_job_status(b.core, 1, &status));
    assert_true(status.step <= 8);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_higher_term),
        cmocka_unit_test(test_terms_without_a_proof),
        cmocka_unit_test(test_refusal_for_the_term),
        cmocka_unit_test(test_lower_term),
        cmocka_unit_test(test_name_taken),
        cmocka_unit_test(test_name_of_who_is_to_come),
        cmocka_unit_test(test_others_workers),
        cmocka_unit_test(test_refused_by_agents),
        cmocka_unit_test(test_said_twice),
        cmocka_unit_test(test_refused_epochs),
        cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_terms_of_unknown_senders),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_identities),
        cmocka_unit_test(test_revoked),
        cmocka_unit_test(test_implausible_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
