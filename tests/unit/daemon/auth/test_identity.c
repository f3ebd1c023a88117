/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of a caller, and what roles that gives. */
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/auth/identity.h"

#define USER POLICY_BIT(POLICY_USER)
#define OPERATOR (USER | POLICY_BIT(POLICY_OPERATOR))
#define ADMIN (OPERATOR | POLICY_BIT(POLICY_ADMIN))
#define SCRAPER POLICY_BIT(POLICY_SCRAPER)
#define STRANGER POLICY_BIT(POLICY_UNAUTHENTICATED)

static struct rpc_identity by_uid(uid_t uid, const char *name)
{
    struct rpc_identity id = {.kind = RPC_ID_UID, .secure = true, .uid = uid, .gid = 65000};
    (void)snprintf(id.name, sizeof(id.name), "%s", name);
    return id;
}

static struct rpc_identity by_cert(const char *uri)
{
    struct rpc_identity id = {.kind = RPC_ID_CERT, .secure = true, .uid = (uid_t)-1, .gid = (gid_t)-1};
    (void)snprintf(id.name, sizeof(id.name), "%s", uri);
    return id;
}

static struct auth *make(struct auth_options o, const char *admin, const char *operates)
{
    if (admin)
        assert_int_equal(auth_list_add(&o.admins, admin, NULL), TITAN_OK);
    if (operates)
        assert_int_equal(auth_list_add(&o.operators, operates, NULL), TITAN_OK);
    return auth_new(&o);
}

static unsigned roles(struct auth *a, struct rpc_identity id)
{
    struct auth_user u;
    auth_resolve(a, &id, 1000, &u);
    return u.roles & ~STRANGER;
}

static void test_uids(void **state)
{
    (void)state;
    struct auth *a = make((struct auth_options){0}, "uid:4000000", "user:olga");
    struct auth_user u;
    struct rpc_identity alice = by_uid(1234567, "alice");
    assert_int_equal(roles(a, alice), USER);
    assert_int_equal(roles(a, by_uid(4000000, "uid:4000000")), ADMIN);
    assert_int_equal(roles(a, by_uid(1234568, "olga")), OPERATOR);
    assert_int_equal(roles(a, by_uid(geteuid(), "self")), ADMIN | POLICY_BIT(POLICY_NODE));
    assert_int_equal(roles(a, by_uid(0, "root")), ADMIN | POLICY_BIT(POLICY_NODE));
    auth_resolve(a, &alice, 1000, &u);
    assert_int_equal(u.uid, 1234567);
    assert_string_equal(u.name, "alice");
    assert_false(auth_trusted(&u) || auth_operates(&u));
    auth_free(a);
}

static void test_groups(void **state)
{
    (void)state;
    /* root's own group; of another uid only by its name in the list of the group */
    const struct group *g = getgrgid(0);
    char entry[AUTH_ENTRY_MAX];
    if (!g)
        skip();
    (void)snprintf(entry, sizeof(entry), "group:%s", g->gr_name);
    struct auth *a = make((struct auth_options){0}, entry, NULL);
    struct rpc_identity other = by_uid(3999999, "uid:3999999");
    assert_int_equal(roles(a, other), USER);
    other.uid = 3999998;
    other.gid = 0;
    assert_int_equal(roles(a, other), ADMIN);
    auth_free(a);
}

static void test_certificates(void **state)
{
    (void)state;
    struct auth *a = make((struct auth_options){0}, "user:carol", "uid:7");
    assert_int_equal(roles(a, by_cert("spiffe://titan/user/alice")), USER);
    assert_int_equal(roles(a, by_cert("spiffe://titan/user/carol")), ADMIN);
    assert_int_equal(roles(a, by_cert("spiffe://titan/node/n1")), POLICY_BIT(POLICY_NODE));
    /* Names that would pass for something else are no user's. */
    static const char *const nothing[] = {"spiffe://titan/user/",
                                          "spiffe://titan/user/uid:7",
                                          "spiffe://titan/user/a/b",
                                          "spiffe://titan/user/car\u202eol",
                                          "spiffe://titan/node/",
                                          "spiffe://titan/node/a/b",
                                          "spiffe://titan/coordinator/c1",
                                          "spiffe://other/user/carol",
                                          "spiffe://titan/admin/carol",
                                          "spiffe://titan.evil/user/carol",
                                          "carol",
                                          "",
                                          "spiffe://titan/",
                                          "user/carol"};
    for (size_t i = 0; i < sizeof(nothing) / sizeof(*nothing); i++)
        if (roles(a, by_cert(nothing[i])))
            fail_msg("'%s' has roles", nothing[i]);
    auth_free(a);
}

static void test_no_identity(void **state)
{
    (void)state;
    struct rpc_identity plain = {.kind = RPC_ID_NONE, .uid = (uid_t)-1}, secure = plain;
    secure.secure = true;
    struct auth *a = make((struct auth_options){0}, NULL, NULL);
    assert_int_equal(roles(a, secure), 0);
    assert_int_equal(roles(a, plain), POLICY_BIT(POLICY_ANONYMOUS));
    auth_free(a);
    a = make((struct auth_options){.nodes_by_address = true}, NULL, NULL);
    assert_int_equal(roles(a, secure), 0);
    assert_int_equal(roles(a, plain), POLICY_BIT(POLICY_ANONYMOUS) | POLICY_BIT(POLICY_NODE));
    auth_free(a);
}

/* Who is listed for metrics alone may read metrics, and nothing else. */
static void test_scrapers(void **state)
{
    (void)state;
    struct auth_options o = {.private_jobs = false};
    assert_int_equal(auth_list_add(&o.metrics, "user:prom", NULL), TITAN_OK);
    assert_int_equal(auth_list_add(&o.metrics, "user:olga", NULL), TITAN_OK);
    assert_int_equal(auth_list_add(&o.metrics, "uid:1234567", NULL), TITAN_OK);
    struct auth *a = make(o, "user:ada", "user:olga");
    assert_int_equal(roles(a, by_cert("spiffe://titan/user/prom")), SCRAPER);
    assert_int_equal(roles(a, by_cert("spiffe://titan/user/olga")), OPERATOR);
    assert_int_equal(roles(a, by_cert("spiffe://titan/user/eva")), USER);
    assert_int_equal(roles(a, by_uid(1234567, "prometheus")), SCRAPER);
    assert_true(policy_scrapes(SCRAPER) && policy_scrapes(OPERATOR) && policy_scrapes(ADMIN));
    assert_true(policy_scrapes(POLICY_BIT(POLICY_ANONYMOUS)));
    assert_false(policy_scrapes(USER) || policy_scrapes(STRANGER) || policy_scrapes(POLICY_BIT(POLICY_NODE)));

    static const struct {
        const char *name;
        enum token_role role;
        unsigned roles;
    } cases[] = {{"prom", TOKEN_USER, SCRAPER}, {"prom", TOKEN_OPERATOR, OPERATOR}, {"eva", TOKEN_USER, USER}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct token t = {.role = cases[i].role, .expires_at_ms = 5000};
        struct rpc_identity id = {.kind = RPC_ID_TOKEN, .secure = true};
        char text[TOKEN_TEXT];
        (void)snprintf(t.name, sizeof(t.name), "%s", cases[i].name);
        assert_int_equal(token_make(&t, text, NULL), TITAN_OK);
        auth_put_token(a, &t, 1000);
        (void)snprintf(id.name, sizeof(id.name), "%s", t.id);
        assert_int_equal(roles(a, id), cases[i].roles);
    }

    /* The list can be taken away. */
    auth_reload(a, &(struct auth_options){.private_jobs = false});
    assert_int_equal(roles(a, by_cert("spiffe://titan/user/prom")), USER);
    auth_free(a);
}

static void test_tokens(void **state)
{
    (void)state;
    struct auth *a = make((struct auth_options){0}, NULL, NULL);
    struct token t = {.name = "ci", .role = TOKEN_OPERATOR, .expires_at_ms = 5000};
    char text[TOKEN_TEXT], header[TOKEN_TEXT + 16];
    struct rpc_identity tls = {.kind = RPC_ID_NONE, .secure = true}, plain = {.kind = RPC_ID_NONE}, id;
    struct titan_error err = {0};
    struct auth_user u;
    assert_int_equal(token_make(&t, text, NULL), TITAN_OK);
    (void)snprintf(header, sizeof(header), "Bearer %s", text);
    assert_int_equal(auth_bearer(a, header, &tls, 1000, &id, &err), TITAN_EPERM); /* it is unknown */
    assert_int_equal(id.kind, RPC_ID_NONE);
    auth_put_token(a, &t, 5000); /* it has expired: nothing of it is kept */
    assert_int_equal(auth_bearer(a, header, &tls, 1000, &id, &err), TITAN_EPERM);
    auth_put_token(a, &t, 1000);
    assert_int_equal(auth_bearer(a, header, &tls, 1000, &id, &err), TITAN_OK);
    assert_int_equal(id.until_ms, 5000);
    auth_resolve(a, &id, 1000, &u);
    assert_int_equal(u.roles & ~STRANGER, OPERATOR);
    assert_string_equal(u.name, "ci");
    assert_null(strstr(u.actor, text + TOKEN_TEXT - 20)); /* its secret is in no record */
    header[strlen(header) - 1] ^= 1;
    assert_int_equal(auth_bearer(a, header, &tls, 1000, &id, &err), TITAN_EPERM);
    assert_int_equal(id.kind, RPC_ID_NONE); /* an id alone names its user on no record */
    assert_null(strstr(err.msg, text + TOKEN_TEXT - 20));
    header[strlen(header) - 1] ^= 1;
    assert_int_equal(auth_bearer(a, text, &tls, 1000, &id, &err), TITAN_EPERM);
    assert_int_equal(auth_bearer(a, header, &tls, 5000, &id, &err), TITAN_EPERM); /* expired */
    assert_non_null(strstr(err.msg, "of ci expired"));
    auth_resolve(a, &id, 5000, &u); /* no role is left, and the record names its user */
    assert_int_equal(u.roles & ~STRANGER, 0);
    assert_non_null(strstr(u.actor, "ci (token "));
    assert_int_equal(auth_admits(a, &id, 4999, &err), TITAN_OK);
    assert_int_equal(auth_admits(a, &id, 5000, &err), TITAN_EPERM);
    /* The same of a token that was let in before it was revoked. */
    assert_int_equal(auth_bearer(a, header, &tls, 1000, &id, &err), TITAN_OK);
    assert_int_equal(auth_revoke_token(a, t.id, 2000), 0);
    auth_resolve(a, &id, 1000, &u);
    assert_int_equal(u.roles & ~STRANGER, 0);
    assert_non_null(strstr(u.actor, "ci (token "));
    assert_int_equal(auth_admits(a, &id, 1000, &err), TITAN_EPERM);
    assert_int_equal(auth_bearer(a, header, &tls, 1000, &id, &err), TITAN_EPERM);
    assert_non_null(strstr(err.msg, "of ci was revoked"));
    assert_int_equal(id.kind, RPC_ID_TOKEN);
    /* That could not be stored: it counts again. */
    assert_int_equal(auth_revoke_token(a, t.id, 0), 2000);
    assert_int_equal(auth_admits(a, &id, 1000, &err), TITAN_OK);
    assert_int_equal(auth_revoke_token(a, "0000000000000000", 2000), 0);
    auth_free(a);
    /* Over plain TCP a token has been seen by all on the way. */
    a = make((struct auth_options){0}, NULL, NULL);
    auth_put_token(a, &t, 1000);
    assert_int_equal(auth_bearer(a, header, &plain, 1000, &id, &err), TITAN_EPERM);
    auth_free(a);
}

static void test_lists(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",      "root",     "uid:",     "uid:x",  "uid:-1", "uid:4294967295", "uid:99999999999",
        "user:", "user:a b", "user:a/b", "group:", "role:x", "uid:0 "};
    struct auth_list list = {.n = 0};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        if (auth_list_add(&list, bad[i], NULL) != TITAN_EINVAL)
            fail_msg("'%s' was taken", bad[i]);
    for (size_t i = 0; i < AUTH_LIST_MAX; i++)
        assert_int_equal(auth_list_add(&list, "group:titan-admin", NULL), TITAN_OK);
    assert_int_equal(auth_list_add(&list, "uid:0", NULL), TITAN_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uids),        cmocka_unit_test(test_groups),   cmocka_unit_test(test_certificates),
        cmocka_unit_test(test_no_identity), cmocka_unit_test(test_scrapers), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
