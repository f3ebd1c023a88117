/* SPDX-License-Identifier: Apache-2.0 */
/* join.h, certs.h: what a node is given as a file, and files that keep a secret. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/rng.h"
#include "daemon/auth/certs.h"
#include "daemon/auth/join.h"
#include "state/token.h"
#include "tests/support/seeded.h"
#include "tests/support/sets.h"

#define NOW INT64_C(1800000000000)
#define DAY INT64_C(86400000)
#define _cleanup_buf_ _cleanup_(buf_free)

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof(dir), "/tmp/titan-test-join-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return dir_remove(dir, NULL) == TITAN_OK ? 0 : -1;
}

static const char *in(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void make_ca(struct buf *key, struct buf *certificate)
{
    assert_int_equal(pki_key_make(key, NULL), TITAN_OK);
    assert_int_equal(pki_ca_make(key, "test", NOW - DAY, NOW + DAY, certificate, NULL), TITAN_OK);
}

static void make_text(struct buf *out)
{
    struct join_file j = {.node = "n1",
                          .coordinator = "head.example:7070",
                          .token = "titan_0011223344556677_00112233445566778899aabbccddeeff",
                          .expires_at_ms = NOW};
    _cleanup_buf_ struct buf key = BUF_INIT;
    make_ca(&key, &j.ca);
    join_print(&j, out);
    join_free(&j);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct join_file back;
    _cleanup_buf_ struct buf text = BUF_INIT, again = BUF_INIT;
    make_text(&text);
    if (join_parse(text.data, text.len, "n1.join", &back, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_string_equal(back.node, "n1");
    assert_string_equal(back.coordinator, "head.example:7070");
    assert_int_equal(back.expires_at_ms, NOW);
    join_print(&back, &again);
    assert_string_equal(text.data, again.data);
    /* Of a coordinator that has a port for agents. */
    (void)snprintf(back.agents, sizeof(back.agents), "head.example:7071");
    again.len = 0;
    join_print(&back, &again);
    join_free(&back);
    if (join_parse(again.data, again.len, "n1.join", &back, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_string_equal(back.agents, "head.example:7071");
    assert_string_equal(back.coordinator, "head.example:7070");
    join_free(&back);
}

/* What a node keeps: where the coordinator is, and nothing secret. */
static void test_place(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct join_file join, back;
    _cleanup_buf_ struct buf text = BUF_INIT, place = BUF_INIT;
    make_text(&text);
    assert_int_equal(join_parse(text.data, text.len, "n1.join", &join, &err), TITAN_OK);
    (void)snprintf(join.coordinator, sizeof(join.coordinator), "a.example:7070,b.example:7070");
    (void)snprintf(join.agents, sizeof(join.agents), "a.example:7071,b.example:7071");
    join_print_place(&join, &place);
    assert_null(strstr(place.data, join.token));
    const char *path = in(JOIN_PLACE_FILE);
    assert_int_equal(file_replace(path, place.data, place.len, &err), TITAN_OK);
    if (join_load_place(path, &back, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_string_equal(back.node, "n1");
    assert_string_equal(back.coordinator, join.coordinator);
    assert_string_equal(back.agents, join.agents);
    join_free(&join);
    static const char wrong[] = "node = \"n1\"\ncoordinator = \"a:1,b\"\n";
    assert_int_equal(file_replace(path, wrong, strlen(wrong), &err), TITAN_OK);
    assert_int_equal(join_load_place(path, &back, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, ":2: coordinator: address 2, 'b', is not HOST:PORT"));
}

static void test_wrong_files(void **state)
{
    (void)state;
    struct titan_error err;
    struct join_file back;
    static const char *const texts[] = {
        "",
        "node = \"n1\"\n",
        "node = 1\ncoordinator = \"a:1\"\ntoken = \"t\"\nexpires_at_ms = 1\nca = \"\"\n",
        "node = \"a/b\"\ncoordinator = \"a:1\"\ntoken = \"t\"\nexpires_at_ms = 1\nca = \"\"\n",
        "node = \"n1\"\ncoordinator = \"a:1\"\ntoken = \"t\"\nexpires_at_ms = -1\nca = \"\"\n",
        "node = \"n1\"\ncoordinator = \"a:1\"\ntoken = \"t\"\nexpires_at_ms = 1\nca = \"no certificate\"\n",
        "node = \"n1\"\ncoordinator = \"a\\nb\"\ntoken = \"t\"\nexpires_at_ms = 1\nca = \"\"\n",
        "[[[",
    };
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        err = (struct titan_error){0};
        assert_int_not_equal(join_parse(texts[i], strlen(texts[i]), "n1.join", &back, &err), TITAN_OK);
        assert_non_null(strstr(err.msg, "n1.join"));
    }
    char *big = calloc(1, JOIN_FILE_MAX + 1);
    assert_int_equal(join_parse(big, JOIN_FILE_MAX + 1, "n1.join", &back, &err), TITAN_EINVAL);
    free(big);
}

/* Whatever passes is a node's name and a CA's certificate; the token is in no message. */
static void test_mutations(void **state)
{
    (void)state;
    const long rounds = seeded_rounds(1000, 5000);
    const struct rng_key key = rng_key(seeded_seed(0), "join");
    uint64_t drawn = 0;
    struct titan_error err = {0};
    struct join_file back;
    _cleanup_buf_ struct buf text = BUF_INIT, bad = BUF_INIT;
    make_text(&text);
    for (long i = 0; i < rounds; i++) {
        uint32_t w[4];
        buf_clear(&bad);
        assert_int_equal(buf_append(&bad, text.data, text.len), TITAN_OK);
        for (int n = 0; n < 3; n++) {
            rng_philox(key, drawn++, 0, w);
            size_t at = w[0] % bad.len;
            if (w[1] % 4 == 0 && at > 0)
                bad.len = at;
            else
                bad.data[at] = w[1] % 4 == 1 ? "\"\\\n=[]#\0"[w[2] % 8] : (char)w[2];
        }
        if (join_parse(bad.data, bad.len, "n1.join", &back, &err) == TITAN_OK) {
            assert_true(pki_name_ok(back.node) && back.expires_at_ms > 0);
            join_free(&back);
        }
    }
}

/* What passes for a token is one, whatever was done to it; and it is another one than before. */
static void test_token_mutations(void **state)
{
    (void)state;
    const struct rng_key key = rng_key(seeded_seed(0), "token");
    struct token token;
    char text[TOKEN_TEXT], bad[TOKEN_TEXT + 8], id[TOKEN_ID_TEXT];
    unsigned char hash[TOKEN_HASH_BYTES];
    assert_int_equal(token_make(&token, text, NULL), TITAN_OK);
    assert_int_equal(token_parse(text, id, hash, NULL), TITAN_OK);
    assert_true(token_matches(&token, hash));
    for (uint64_t i = 0; i < 20000; i++) {
        struct titan_error err = {0};
        uint32_t w[4];
        rng_philox(key, i, 0, w);
        (void)snprintf(bad, sizeof(bad), "%s", text);
        size_t at = w[0] % (TOKEN_TEXT - 1);
        if (w[1] % 8 == 0)
            bad[at] = '\0';
        else if (w[1] % 8 == 1)
            (void)snprintf(bad + TOKEN_TEXT - 1, 8, "%x", w[2] & 0xffff);
        else
            bad[at] = (char)w[2];
        if (token_parse(bad, id, hash, &err) != TITAN_OK)
            assert_null(strstr(err.msg, text + 24)); /* the secret is in no message */
        else
            assert_true(strcmp(bad, text) == 0 || !token_matches(&token, hash) || strcmp(id, token.id) != 0);
    }
}

static void test_secrets(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct join_file back;
    struct authority a;
    struct stat st;
    char path[128];
    _cleanup_buf_ struct buf text = BUF_INIT, key = BUF_INIT, certificate = BUF_INIT;
    make_text(&text);
    (void)snprintf(path, sizeof(path), "%s", in("n1.join"));
    assert_int_equal(certs_write(path, &text, true, &err), TITAN_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(join_load(path, &back, &err), TITAN_OK);
    join_free(&back);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(join_load(path, &back, &err), TITAN_EPERM);
    assert_non_null(strstr(err.hint, "chmod 600"));
    assert_int_equal(join_load("/nonexistent/n1.join", &back, &err), TITAN_EINVAL);
    assert_int_equal(err.status, TITAN_EINVAL);

    make_ca(&key, &certificate);
    (void)snprintf(path, sizeof(path), "%s", in("pki"));
    assert_int_equal(certs_dir(path, &err), TITAN_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(authority_load(path, &a, &err), TITAN_ENOTFOUND);
    assert_int_equal(certs_write(in("pki/ca.pem"), &certificate, false, &err), TITAN_OK);
    assert_int_equal(authority_load(path, &a, &err), TITAN_ENOTFOUND); /* its key is kept elsewhere */
    assert_int_equal(certs_write(in("pki/ca.key"), &key, true, &err), TITAN_OK);
    assert_int_equal(authority_load(path, &a, &err), TITAN_OK);
    authority_free(&a);
    assert_int_equal(chmod(in("pki/ca.key"), 0644), 0);
    assert_int_equal(authority_load(path, &a, &err), TITAN_EPERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        quick(test_round_trip),
        quick(test_wrong_files),
        longer(test_mutations),
        quick(test_token_mutations),
        cmocka_unit_test_setup_teardown(test_secrets, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_place, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
