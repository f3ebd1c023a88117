/* SPDX-License-Identifier: Apache-2.0 */
/* What rows hold follows from the facts of events, or the difference is named: row, value, event. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "state/enrolment.h"
#include "state/job.h"
#include "state/job_removal.h"
#include "state/replay.h"
#include "state/schema.h"
#include "state/token.h"

#define ZEROS_31 "00000000000000000000000000000000000000000000000000000000000000"
static const unsigned char hash_a[ENROLMENT_HASH] = {0xaa}, hash_b[ENROLMENT_HASH] = {0xbb};
static struct db *db;

static void run_sql(const char *sql)
{
    struct titan_error err = {0};
    if (db_exec(db, sql, &err) != TITAN_OK)
        fail_msg("%s: %s", sql, err.msg);
}

static struct event event_of(const char *type, const char *message)
{
    return (struct event){.at_ms = 7, .type = type, .message = message, .rank = -1, .actor = "root"};
}

static void add_job(uint64_t id, const char *user, const char *recipe)
{
    struct job job = {.id = id, .name = "n", .user = user, .uid = 1001, .gid = 100, .submitted_at_ms = 5};
    uint64_t existing = 0;
    strcpy(job.spec.device, "cpu");
    job.spec.max_workers = 1;
    assert_int_equal(job_submit(db, &job, recipe, &existing, NULL), TITAN_OK);
}

static void end_job(uint64_t id)
{
    struct event e = event_of("job.state", "m");
    e.job_id = id;
    assert_int_equal(
        job_move(db, &(struct job){.id = id, .state = JOB_CANCELLED, .status = (struct job_status){0}}, &e, NULL),
        TITAN_OK);
    e = event_of("job.removed", "m");
    e.job_id = id;
    assert_int_equal(job_remove(db, id, "/jobs", &e, NULL), TITAN_OK);
}

/* Events: 1 to 5 jobs, 6 to 9 tokens, 10 to 13 join tokens, 14 and 15 revocations, 16 the end of a join token. */
static int set_up(void **state)
{
    (void)state;
    struct token t = {.id = "00000000000000a1",
                      .name = "alice",
                      .role = TOKEN_USER,
                      .created_at_ms = 10,
                      .expires_at_ms = 90,
                      .created_by = "root"};
    struct join j = {
        .id = "j1", .node = "n1", .created_by = "root", .hash = hash_a, .created_at_ms = 10, .expires_at_ms = 900};
    struct titan_error refusal;
    struct event e = event_of("audit.ok", "CreateToken: 00000000000000a1 for alice");
    int64_t made = 0;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    add_job(1, "alice", "text of 1");
    add_job(2, "bob", "text of 2");
    add_job(3, "eva \"e\" \xc3\xa9", "text of 3");
    end_job(3);
    assert_int_equal(token_add(db, &t, &e, NULL), TITAN_OK);
    strcpy(t.id, "00000000000000a2");
    t.role = TOKEN_ADMIN;
    e = event_of("audit.ok", "CreateToken: 00000000000000a2 for alice");
    assert_int_equal(token_add(db, &t, &e, NULL), TITAN_OK);
    e = event_of("audit.ok", "RevokeToken: 00000000000000a2");
    assert_int_equal(token_revoke(db, t.id, 50, &e, NULL), TITAN_OK);
    assert_int_equal(token_revoke(db, t.id, 60, &e, NULL), TITAN_OK);
    assert_int_equal(enrolment_join_add(db, &j, NULL), TITAN_OK);
    j.id = "j2";
    j.node = "n2";
    assert_int_equal(enrolment_join_add(db, &j, NULL), TITAN_OK);
    j.id = "j3";
    assert_int_equal(enrolment_join_add(db, &j, NULL), TITAN_OK);
    assert_int_equal(enrolment_join_use(db, &(struct join_use){"j2", "n2", hash_a, hash_b, 20}, &made, &refusal, NULL),
                     TITAN_OK);
    struct revocation r = {
        .uri = "spiffe://titan/node/n1", .node = "n1", .reason = "stolen", .by = "root", .at_ms = 500};
    assert_int_equal(revocation_put(db, &r, NULL), TITAN_OK);
    r.at_ms = 400;
    r.reason = "again";
    assert_int_equal(revocation_put(db, &r, NULL), TITAN_OK);
    char node[ENROLMENT_NODE];
    assert_int_equal(enrolment_join_revoke(db, "j3", "root", 30, node, NULL), TITAN_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    db_close(db);
    return 0;
}

static void take_line(const char *line, void *data)
{
    char *text = data;
    (void)snprintf(text + strlen(text), 4096 - strlen(text), "%s\n", line);
}

static void expect(const char *lines)
{
    char is[4096] = "";
    const titan_status status = replay_check(db, NULL, take_line, is, NULL);
    assert_string_equal(is, lines);
    assert_int_equal(status, *lines ? TITAN_ECORRUPT : TITAN_OK);
}

static void test_rows_follow(void **state)
{
    (void)state;
    struct replay_report r;
    expect("");
    assert_int_equal(replay_check(db, &r, NULL, NULL, NULL), TITAN_OK);
    assert_int_equal(r.unknown, 0);
    assert_int_equal(r.facts_from, 1);
    assert_int_equal(event_verify(db, 0, NULL, NULL), TITAN_OK);
}

/* Each case is undone by its second statement. */
static void test_what_was_changed_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *change, *undo, *line;
    } cases[] = {
        {"UPDATE jobs SET user = 'bob' WHERE id = 1", "UPDATE jobs SET user = 'alice' WHERE id = 1",
         "job 1: its owner is bob, event 1 states alice\n"},
        {"UPDATE jobs SET uid = 0 WHERE id = 2", "UPDATE jobs SET uid = 1001 WHERE id = 2",
         "job 2: its uid is 0, event 2 states 1001\n"},
        {"UPDATE jobs SET gid = 0 WHERE id = 2", "UPDATE jobs SET gid = 100 WHERE id = 2",
         "job 2: its gid is 0, event 2 states 100\n"},
        {"UPDATE recipes SET text = 'text' WHERE job_id = 1", "UPDATE recipes SET text = 'text of 1' WHERE job_id = 1",
         "job 1: its recipe is 982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1, event 1 states "
         "bb14a4d7bb892824d0b753144bfb76ea0cfad991e241f05582860d3c7966799a\n"},
        {"DELETE FROM recipes WHERE job_id = 2", "INSERT INTO recipes VALUES (2, 'text of 2')", NULL},
        {"UPDATE jobs SET removed_at_ms = 8 WHERE id = 1", "UPDATE jobs SET removed_at_ms = 0 WHERE id = 1",
         "job 1: its removed_at_ms is 8, no event states that\n"},
        {"UPDATE jobs SET removed_at_ms = 0 WHERE id = 3", "UPDATE jobs SET removed_at_ms = 7 WHERE id = 3", NULL},
        {"UPDATE tokens SET role = 3 WHERE role = 1", "UPDATE tokens SET role = 1 WHERE revoked_at_ms = 0",
         "token 00000000000000a1: its role is 3, event 6 states 1\n"},
        {"UPDATE tokens SET expires_at_ms = 91 WHERE role = 3", "UPDATE tokens SET expires_at_ms = 90",
         "token 00000000000000a2: its expires_at_ms is 91, event 7 states 90\n"},
        {"UPDATE tokens SET revoked_at_ms = 0 WHERE role = 3", "UPDATE tokens SET revoked_at_ms = 50 WHERE role = 3",
         "token 00000000000000a2: its revoked_at_ms is 0, event 9 states 50\n"},
        {"UPDATE tokens SET name = 'root' WHERE role = 1", "UPDATE tokens SET name = 'alice'",
         "token 00000000000000a1: its name is root, event 6 states alice\n"},
        {"INSERT INTO tokens SELECT 'a3', name, 3, hash, 1, expires_at_ms, 0, created_by FROM tokens WHERE role = 1",
         "DELETE FROM tokens WHERE id = 'a3'", "token a3: no event of the log has made it\n"},
        {"UPDATE joins SET node = 'n9' WHERE id = 'j2'", "UPDATE joins SET node = 'n2'",
         "join j2: its node is n9, event 11 states n2\n"},
        {"UPDATE joins SET used_at_ms = 0, key_hash = x''",
         "UPDATE joins SET used_at_ms = 20, key_hash = x'bb" ZEROS_31 "'", NULL},
        {"INSERT INTO joins SELECT 'j3', node, hash, created_at_ms, expires_at_ms, 0, x'', created_by FROM joins",
         "DELETE FROM joins WHERE id = 'j3'", "join j3: its taken_back is 0, event 16 states 1\n"},
        {"INSERT INTO joins SELECT 'j1', 'n1', hash, created_at_ms, expires_at_ms, 0, x'', created_by FROM joins",
         "DELETE FROM joins WHERE id = 'j1'", "join j1: its taken_back is 0, event 15 states 1\n"},
        {"INSERT INTO joins SELECT 'j9', node, hash, 11, expires_at_ms, 0, x'', created_by FROM joins",
         "DELETE FROM joins WHERE id = 'j9'", "join j9: no event of the log has made it\n"},
        {"UPDATE revocations SET at_ms = 1", "UPDATE revocations SET at_ms = 500",
         "certificate spiffe://titan/node/n1: its at_ms is 1, event 15 states 500\n"},
        {"DELETE FROM revocations", "INSERT INTO revocations VALUES ('spiffe://titan/node/n1', 500, 'again', 'root')",
         "certificate spiffe://titan/node/n1 is missing, event 15 has made it\n"},
        {"UPDATE events SET change = replace(change, '{', '') WHERE id = 6",
         "UPDATE events SET change = replace(change, '\"token\"', '{\"token\"') WHERE id = 6", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char is[4096] = "";
        run_sql(cases[i].change);
        if (replay_check(db, NULL, take_line, is, NULL) != TITAN_ECORRUPT || !*is)
            fail_msg("not found: %s", cases[i].change);
        if (cases[i].line)
            assert_string_equal(is, cases[i].line);
        run_sql(cases[i].undo);
        expect("");
    }
}

/* A log from before there were facts: what it made is there, whatever it holds; what it did not make was put in. */
static void test_older_logs(void **state)
{
    (void)state;
    struct replay_report r;
    run_sql("UPDATE events SET change = iif(instr(change, char(10)), substr(change, 1, instr(change, char(10)) - 1), "
            "change)");
    expect("");
    assert_int_equal(replay_check(db, &r, NULL, NULL, NULL), TITAN_OK);
    assert_int_equal(r.unknown, 3 + 2 + 1 + 1);
    assert_int_equal(r.facts_from, 0);
    run_sql("UPDATE jobs SET user = 'mallory' WHERE id = 1"); /* not known */
    expect("");
    run_sql("UPDATE tokens SET revoked_at_ms = 0");
    expect("token 00000000000000a2: its revoked_at_ms is 0, event 8 has set it\n");
    run_sql("UPDATE tokens SET revoked_at_ms = 50 WHERE role = 3");
    run_sql(
        "INSERT INTO tokens SELECT 'a3', name, 3, hash, 1, expires_at_ms, 0, created_by FROM tokens WHERE role = 1");
    expect("token a3: no event of the log has made it\n");
    run_sql("DELETE FROM tokens WHERE id = 'a3'");
    run_sql("DELETE FROM revocations");
    expect("certificate spiffe://titan/node/n1: its revocation is missing, event 14 has made it\n"
           "certificate spiffe://titan/node/n1: its revocation is missing, event 15 has made it\n");
    run_sql("INSERT INTO revocations VALUES ('spiffe://titan/node/n1', 500, 'again', 'root')");
    run_sql("INSERT INTO joins SELECT 'j9', node, hash, 11, expires_at_ms, 0, x'', created_by FROM joins");
    expect("join j9: no event of the log has made it\n");
    run_sql("DELETE FROM joins WHERE id = 'j9'");
    /* From here on it is known. */
    add_job(4, "alice", "text of 4");
    assert_int_equal(replay_check(db, &r, NULL, NULL, NULL), TITAN_OK);
    assert_int_equal(r.unknown, 7);
    assert_int_equal(r.facts_from, 17);
    run_sql("UPDATE jobs SET user = 'mallory' WHERE id = 4");
    expect("job 4: its owner is mallory, event 17 states alice\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rows_follow, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_was_changed_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_older_logs, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
