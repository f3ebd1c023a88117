/* SPDX-License-Identifier: Apache-2.0 */
/* A node's record goes: asked for, or by itself where it is ephemeral; not while it is there, or a job may have workers
 * on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "state/replay.h"
#include "tests/support/core_store.h"

static struct core_store s;

static void commit(void)
{
    commit_store(&s);
}

static void pass(uint64_t session, int64_t ms)
{
    pass_time(&s, session, ms, commit);
}

static void comes(uint64_t session, const char *node, bool ephemeral)
{
    Titan__Internal__AgentRegistration body = TITAN__INTERNAL__AGENT_REGISTRATION__INIT;
    body.node = (char *)(uintptr_t)node;
    body.slots = 1;
    body.device = (char *)"cpu";
    body.incarnation = session;
    body.ephemeral = ephemeral;
    MESSAGE(m, REGISTRATION, registration, body);
    assert_int_equal(say(&s.b, session, &m), TITAN_OK);
    commit();
}

static void goes(uint64_t session)
{
    core_session_closed(s.b.core, session, at(&s.b), &s.b.out);
    commit();
}

static void take_name(const struct core_node *n, void *data)
{
    char *names = data;
    (void)snprintf(names + strlen(names), 64 - strlen(names), "%s ", n->name);
}

/* By their names, in the order they came. */
static const char *nodes(void)
{
    static char names[64];
    names[0] = '\0';
    core_nodes(s.b.core, take_name, names);
    return names;
}

static titan_status remove_node(const char *node, struct titan_error *err)
{
    *err = (struct titan_error){0};
    const titan_status status = core_node_remove(s.b.core, node, at(&s.b), &s.b.out, err);
    commit();
    return status;
}

static int setup(void **state)
{
    (void)state;
    open_store(&s);
    comes(1, "a", false);
    return 0;
}

/* What is stored is what the events say. */
static int teardown(void **state)
{
    (void)state;
    struct titan_error err = {0};
    if (replay_check(s.db, NULL, NULL, NULL, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    close_store(&s);
    return 0;
}

static void test_asked_for(void **state)
{
    (void)state;
    struct titan_error err;
    const struct core_drain drain = {.reason = "a new disk"};
    comes(2, "b", false);
    comes(3, "c", false);
    assert_int_equal(remove_node("nowhere", &err), TITAN_ENOTFOUND);
    assert_int_equal(remove_node("b", &err), TITAN_ECONFLICT);
    assert_non_null(strstr(err.msg, "node b is connected"));
    assert_int_equal(core_drain(s.b.core, "b", &drain, at(&s.b), &s.b.out, &err), TITAN_OK);
    commit();
    goes(2);
    assert_int_equal(remove_node("b", &err), TITAN_ECONFLICT);
    assert_non_null(strstr(err.msg, "node b is not lost yet"));
    goes(3);
    pass(1, 3000);
    assert_int_equal(remove_node("c", &err), TITAN_OK); /* the last of the list */
    assert_int_equal(core_undrain(s.b.core, "b", at(&s.b), &s.b.out, &err), TITAN_OK);
    assert_non_null(strstr(event(&s.b, "node.undrained")->message, "is not here: it is in service when it comes back"));
    commit();
    assert_int_equal(core_drain(s.b.core, "b", &drain, at(&s.b), &s.b.out, &err), TITAN_OK);
    commit();
    comes(4, "d", false);
    assert_int_equal(remove_node("b", &err), TITAN_OK);
    assert_string_equal(nodes(), "a d ");
    restart_store(&s, 2);
    assert_string_equal(nodes(), "a d ");
    comes(5, "b", false); /* the drain went with the record */
    pass(5, 1000);
    assert_string_equal(nodes(), "a d b ");
    int64_t policies = -1;
    assert_int_equal(db_int(s.db, &policies, NULL, "SELECT count(*) FROM node_policies", ""), TITAN_OK);
    assert_int_equal(policies, 0);
}

/* The node of a worker that may train on under an acting leader. */
static void test_with_workers(void **state)
{
    (void)state;
    struct titan_error err;
    comes(2, "b", true);
    struct job job = job_of(1, 1, 2);
    submit_store(&s, &job);
    commit();
    for (uint64_t w = 1; w <= 2; w++) {
        ready(&s.b, .session = w, .worker = w);
        commit();
    }
    for (uint64_t w = 1; w <= 2; w++) {
        progress(&s.b, .session = w, .worker = w, .epoch = 1, .step = 7);
        commit();
    }
    goes(2);
    pass(1, 90000);
    assert_string_equal(nodes(), "a b ");
    assert_int_equal(remove_node("b", &err), TITAN_ECONFLICT);
    assert_non_null(strstr(err.msg, "workers of job 1 may run on node b still"));
    assert_non_null(strstr(err.hint, "titanctl node forget b"));
    assert_int_equal(core_node_forget(s.b.core, "b", at(&s.b), &s.b.out, &err), TITAN_OK);
    commit();
    pass(1, 200); /* by itself: it was gone for longer than a minute */
    assert_string_equal(nodes(), "a ");
    pass(1, 5000);
    restart_store(&s, 2);
    assert_string_equal(nodes(), "a ");
}

static void test_ephemeral(void **state)
{
    (void)state;
    Titan__Internal__AgentLeaves leaves = TITAN__INTERNAL__AGENT_LEAVES__INIT;
    comes(2, "b", true);
    comes(3, "c", true);
    MESSAGE(m, LEAVES, leaves, leaves);
    assert_int_equal(say(&s.b, 2, &m), TITAN_OK); /* in order */
    commit();
    goes(2);
    goes(3);
    pass(1, 3000);
    assert_string_equal(nodes(), "a c ");
    pass(1, 50000);
    assert_string_equal(nodes(), "a c "); /* it may only seem to be gone */
    pass(1, 10000);
    assert_string_equal(nodes(), "a ");
    /* What was stored of it has outlived a restart. */
    comes(4, "d", true);
    goes(4);
    pass(1, 3000);
    restart_store(&s, 2);
    comes(5, "a", false);
    pass(5, 65000);
    assert_string_equal(nodes(), "a ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_with_workers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ephemeral, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
