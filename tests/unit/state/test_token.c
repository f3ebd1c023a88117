/* SPDX-License-Identifier: Apache-2.0 */
/* Bearer tokens: what is shown, what is stored, what is taken for one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "state/replay.h"
#include "state/schema.h"
#include "state/token.h"

static void test_make_and_parse(void **state)
{
    (void)state;
    struct token t = {.name = "alice", .role = TOKEN_USER}, other = {.name = "bob", .role = TOKEN_USER};
    char text[TOKEN_TEXT], second[TOKEN_TEXT], id[TOKEN_ID_TEXT];
    unsigned char hash[TOKEN_HASH_BYTES];
    struct titan_error err = {0};
    assert_int_equal(token_make(&t, text, &err), TITAN_OK);
    assert_int_equal(token_make(&other, second, &err), TITAN_OK);
    assert_string_not_equal(text, second);
    assert_int_equal(strlen(text), TOKEN_TEXT - 1);
    assert_int_equal(token_parse(text, id, hash, &err), TITAN_OK);
    assert_string_equal(id, t.id);
    assert_true(token_matches(&t, hash));
    assert_false(token_matches(&other, hash));
}

static void test_what_is_none(void **state)
{
    (void)state;
    struct token t = {.name = "alice", .role = TOKEN_USER};
    char text[TOKEN_TEXT], changed[TOKEN_TEXT + 8], id[TOKEN_ID_TEXT];
    unsigned char hash[TOKEN_HASH_BYTES];
    assert_int_equal(token_make(&t, text, NULL), TITAN_OK);
    for (size_t i = 0; i < sizeof(text) - 1; i++) { /* each byte counts: cut off there, or another one in its place */
        struct titan_error err = {0};
        (void)strcpy(changed, text);
        changed[i] = '\0';
        assert_int_equal(token_parse(changed, id, hash, &err), TITAN_EPERM);
        assert_null(strstr(err.msg, text + sizeof(TOKEN_PREFIX) + 2 * TOKEN_ID_BYTES));
        (void)strcpy(changed, text);
        changed[i] = changed[i] == '0' ? '1' : '0';
        if (token_parse(changed, id, hash, &err) == TITAN_OK)
            assert_true(strcmp(id, t.id) != 0 || !token_matches(&t, hash));
        changed[i] = 'G';
        assert_int_equal(token_parse(changed, id, hash, &err), TITAN_EPERM);
    }
    (void)strcpy(changed, text);
    (void)strcat(changed, "0");
    assert_int_equal(token_parse(changed, id, hash, NULL), TITAN_EPERM);
    assert_int_equal(token_parse("", id, hash, NULL), TITAN_EPERM);
}

static bool take(const struct token *t, void *data)
{
    struct token **at = data;
    *(*at)++ = *t;
    return true;
}

static void test_table(void **state)
{
    (void)state;
    struct db *db = NULL;
    struct token a = {
        .name = "alice", .role = TOKEN_USER, .created_at_ms = 1, .expires_at_ms = 100, .created_by = "root"};
    struct token b = {.name = "ci", .role = TOKEN_OPERATOR, .created_at_ms = 2, .expires_at_ms = 200}, read[4],
                 *at = read;
    const struct event event = {.at_ms = 5, .type = "audit.ok", .message = "m", .rank = -1, .actor = "root"};
    char text[TOKEN_TEXT];
    int64_t found = 0;
    assert_int_equal(db_open(":memory:", DB_WRITER, false, &db, NULL), TITAN_OK);
    assert_int_equal(schema_migrate(&schema_store, db, NULL), TITAN_OK);
    assert_int_equal(token_make(&a, text, NULL), TITAN_OK);
    assert_int_equal(token_add(db, &a, &event, NULL), TITAN_OK);
    /* The secret is in no column, and in no event. */
    assert_int_equal(db_int(db, &found, NULL,
                            "SELECT count(*) FROM tokens WHERE instr(id || name || hex(hash) || created_by, ?1) UNION"
                            " SELECT count(*) FROM events WHERE instr(change || detail || message, ?1) ORDER BY 1 DESC",
                            "t", text + sizeof(TOKEN_PREFIX) + 2 * TOKEN_ID_BYTES),
                     TITAN_OK);
    assert_int_equal(found, 0);
    assert_int_equal(token_make(&b, text, NULL), TITAN_OK);
    assert_int_equal(token_add(db, &b, &event, NULL), TITAN_OK);
    assert_int_equal(token_revoke(db, b.id, 50, &event, NULL), TITAN_OK);
    assert_int_equal(token_revoke(db, b.id, 60, &event, NULL), TITAN_OK);
    assert_int_equal(token_revoke(db, "nothing", 60, &event, NULL), TITAN_ENOTFOUND);
    assert_int_equal(token_list(db, take, &at, NULL), TITAN_OK);
    assert_int_equal(at - read, 2);
    assert_string_equal(read[0].name, "alice");
    assert_string_equal(read[0].created_by, "root");
    assert_int_equal(read[0].revoked_at_ms, 0);
    assert_memory_equal(read[0].hash, a.hash, sizeof(a.hash));
    assert_int_equal(read[1].role, TOKEN_OPERATOR);
    assert_int_equal(read[1].revoked_at_ms, 50);
    assert_int_equal(replay_check(db, NULL, NULL, NULL, NULL), TITAN_OK);
    db_close(db);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_make_and_parse),
        cmocka_unit_test(test_what_is_none),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
