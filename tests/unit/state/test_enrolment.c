/* SPDX-License-Identifier: Apache-2.0 */
/* enrolment.h: a token is good for one node, once, for a while; revocations are found again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "state/enrolment.h"
#include "state/event.h"
#include "state/schema.h"

static struct db *db;
static char path[64];

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/titan-test-enrolment-%d.db", (int)getpid());
    (void)unlink(path);
    return db_open(path, DB_WRITER, false, &db, NULL) == TITAN_OK && schema_migrate(&schema_store, db, NULL) == TITAN_OK
               ? 0
               : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char other[80];
    db_close(db);
    (void)unlink(path);
    (void)snprintf(other, sizeof(other), "%s-wal", path);
    (void)unlink(other);
    (void)snprintf(other, sizeof(other), "%s-shm", path);
    (void)unlink(other);
    return 0;
}

static const unsigned char secret[ENROLMENT_HASH] = {1}, other_secret[ENROLMENT_HASH] = {2}, key[ENROLMENT_HASH] = {3},
                           other_key[ENROLMENT_HASH] = {4};

static titan_status use(const char *id, const unsigned char *hash, const char *node, const unsigned char *with,
                        int64_t now, struct titan_error *refusal)
{
    struct titan_error err = {0};
    int64_t made = 0;
    if (enrolment_join_use(db, &(struct join_use){id, node, hash, with, now}, &made, refusal, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    if (refusal->status == TITAN_OK)
        assert_int_equal(made, 1000);
    return refusal->status;
}

static bool each_event(const struct event *e, void *data)
{
    char *text = data;
    strcat(strcat(text, e->type), " ");
    return true;
}

static void test_join(void **state)
{
    (void)state;
    struct titan_error r;
    struct join j = {.id = "0011223344556677",
                     .node = "n1",
                     .created_by = "root",
                     .hash = secret,
                     .created_at_ms = 1000,
                     .expires_at_ms = 2000};
    char events[512] = "";
    assert_int_equal(enrolment_join_add(db, &j, NULL), TITAN_OK);
    assert_int_equal(use("ffffffffffffffff", secret, "n1", key, 1500, &r), TITAN_EPERM);
    assert_non_null(strstr(r.msg, "no such"));
    assert_int_equal(use(j.id, other_secret, "n1", key, 1500, &r), TITAN_EPERM);
    assert_non_null(strstr(r.msg, "no such")); /* the same words */
    assert_int_equal(use(j.id, secret, "n2", key, 1500, &r), TITAN_EPERM);
    assert_non_null(strstr(r.msg, "for node n1"));
    assert_int_equal(use(j.id, secret, "n1", key, 2000, &r), TITAN_EPERM);
    assert_non_null(strstr(r.msg, "expired"));
    assert_int_equal(use(j.id, secret, "n1", key, 1999, &r), TITAN_OK);
    assert_int_equal(use(j.id, secret, "n1", key, 1999, &r), TITAN_OK); /* the answer was lost */
    assert_int_equal(use(j.id, secret, "n1", other_key, 1999, &r), TITAN_EPERM);
    assert_non_null(strstr(r.msg, "used already"));
    assert_int_equal(use(j.id, secret, "n1", key, 2000, &r), TITAN_EPERM); /* not for ever either */
    assert_int_equal(event_list(db, &(struct event_filter){.limit = 100}, each_event, events, NULL), TITAN_OK);
    assert_string_equal(events, "node.invited node.enrol_refused node.enrol_refused node.enrolled node.enrolled "
                                "node.enrol_refused node.enrol_refused ");
    assert_int_equal(event_verify(db, 0, NULL, NULL), TITAN_OK);
    /* Long after, another one clears it away. */
    struct join later = j;
    later.id = "8899aabbccddeeff";
    later.created_at_ms = 2000 + INT64_C(86400001);
    later.expires_at_ms = later.created_at_ms + 1;
    assert_int_equal(enrolment_join_add(db, &later, NULL), TITAN_OK);
    assert_int_equal(use(j.id, secret, "n1", key, 1500, &r), TITAN_EPERM);
    assert_non_null(strstr(r.msg, "no such"));
}

static bool each_join(const struct join *j, void *data)
{
    char *text = data;
    (void)sprintf(text + strlen(text), "%s:%s@%lld-%lld,%lld,%s ", j->id, j->node, (long long)j->created_at_ms,
                  (long long)j->expires_at_ms, (long long)j->used_at_ms, j->created_by);
    return true;
}

static void test_taken_back(void **state)
{
    (void)state;
    struct titan_error r;
    struct join j = {.id = "0011223344556677",
                     .node = "n1",
                     .created_by = "root",
                     .hash = secret,
                     .created_at_ms = 1000,
                     .expires_at_ms = 2000};
    char text[512] = "", events[512] = "", node[ENROLMENT_NODE];
    assert_int_equal(enrolment_join_add(db, &j, NULL), TITAN_OK);
    assert_int_equal(enrolment_join_find(db, j.id, secret, &r), TITAN_OK);
    assert_int_equal(enrolment_join_find(db, j.id, other_secret, &r), TITAN_EPERM);
    assert_int_equal(enrolment_join_find(db, "ffffffffffffffff", secret, &r), TITAN_EPERM);
    assert_int_equal(use(j.id, secret, "n1", key, 1500, &r), TITAN_OK);
    assert_int_equal(enrolment_join_list(db, each_join, text, NULL), TITAN_OK);
    assert_string_equal(text, "0011223344556677:n1@1000-2000,1500,root ");
    assert_int_equal(enrolment_join_revoke(db, "ffffffffffffffff", "ada", 1600, node, &r), TITAN_ENOTFOUND);
    assert_int_equal(enrolment_join_revoke(db, j.id, "ada", 1600, node, &r), TITAN_OK);
    assert_string_equal(node, "n1");
    assert_int_equal(use(j.id, secret, "n1", key, 1700, &r), TITAN_EPERM);
    assert_non_null(strstr(r.msg, "no such"));
    text[0] = '\0';
    assert_int_equal(enrolment_join_list(db, each_join, text, NULL), TITAN_OK);
    assert_string_equal(text, "");
    assert_int_equal(event_list(db, &(struct event_filter){.limit = 100}, each_event, events, NULL), TITAN_OK);
    assert_string_equal(events, "node.invited node.enrolled node.uninvited ");
    assert_int_equal(event_verify(db, 0, NULL, NULL), TITAN_OK);
}

static bool each_revocation(const struct revocation *r, void *data)
{
    char *text = data;
    (void)sprintf(text + strlen(text), "%s@%lld(%s,%s) ", r->uri, (long long)r->at_ms, r->reason, r->by);
    return true;
}

static void test_revocations(void **state)
{
    (void)state;
    char text[512] = "";
    struct revocation r = {.uri = "spiffe://titan/node/n1", .reason = "stolen", .by = "root", .at_ms = 5000};
    assert_int_equal(revocation_put(db, &r, NULL), TITAN_OK);
    r.at_ms = 4000; /* a clock that went back makes no certificate good again */
    r.reason = "again";
    assert_int_equal(revocation_put(db, &r, NULL), TITAN_OK);
    r.uri = "spiffe://titan/user/eva";
    r.reason = "";
    assert_int_equal(revocation_put(db, &r, NULL), TITAN_OK);
    assert_int_equal(revocation_list(db, each_revocation, text, NULL), TITAN_OK);
    assert_string_equal(text, "spiffe://titan/node/n1@5000(again,root) spiffe://titan/user/eva@4000(,root) ");
}

/* A revoked node's tokens are void, whether it used them or not; those of others stay. */
static void test_revoked_joins(void **state)
{
    (void)state;
    struct titan_error why;
    struct join j = {
        .id = "used", .node = "n1", .created_by = "root", .hash = secret, .created_at_ms = 1000, .expires_at_ms = 9000};
    struct revocation r = {.uri = "spiffe://titan/node/n1", .node = "n1", .reason = "", .by = "root", .at_ms = 5000};
    assert_int_equal(enrolment_join_add(db, &j, NULL), TITAN_OK);
    assert_int_equal(use("used", secret, "n1", key, 1500, &why), TITAN_OK);
    assert_int_equal(use("used", secret, "n1", key, 1600, &why), TITAN_OK);
    j.id = "unused";
    assert_int_equal(enrolment_join_add(db, &j, NULL), TITAN_OK);
    j.id = "other";
    j.node = "n2";
    assert_int_equal(enrolment_join_add(db, &j, NULL), TITAN_OK);
    assert_int_equal(revocation_put(db, &r, NULL), TITAN_OK);
    assert_int_equal(use("used", secret, "n1", key, 5500, &why), TITAN_EPERM);
    assert_int_equal(use("unused", secret, "n1", key, 5500, &why), TITAN_EPERM);
    assert_int_equal(use("other", secret, "n2", key, 5500, &why), TITAN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_join, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_taken_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_revocations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_revoked_joins, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
