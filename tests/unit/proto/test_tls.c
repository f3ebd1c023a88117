/* SPDX-License-Identifier: Apache-2.0 */
/* test_tls.c - TLS between server and clients with a CA made here: which client is taken for what, which does not get
 * in, and rotation, also half of one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "daemon/auth/pki.h"
#include "proto/rpc/client.h"
#include "proto/rpc/pair.h"
#include "proto/rpc/server.h"
#include "tests/support/patience.h"
#include "titan/v1/titan.pb-c.h"

#define METHOD "/titan.v1.Titan/Version"
#define HOUR_MS INT64_C(3600000)

struct ca {
    struct buf key, certificate;
};

struct fixture {
    uv_loop_t loop;
    uv_timer_t watchdog;
    struct rpc_server *server;
    int port, second_port;
    char dir[32];
    struct ca ca, other;
    struct rpc_tls serving;
    /* what the handler saw */
    struct rpc_identity identity;
    char token[64];
    /* what the client got */
    int replies;
    struct titan_error error;
    bool down;
};

static void on_version(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    (void)message;
    struct fixture *f = data;
    const char *header = rpc_call_metadata(call, "authorization");
    f->identity = *rpc_call_identity(call);
    (void)snprintf(f->token, sizeof(f->token), "%s", header ? header : "");
    Titan__V1__VersionResponse reply = TITAN__V1__VERSION_RESPONSE__INIT;
    rpc_call_reply(call, &reply.base);
}

static const struct rpc_method methods[] = {
    {.path = METHOD, .request = &titan__v1__version_request__descriptor, .on_request = on_version}};

static void watchdog_bite(uv_timer_t *timer)
{
    (void)timer;
    fprintf(stderr, "# a test waited for something that did not come\n");
    abort();
}

static void set_true(void *data)
{
    *(bool *)data = true;
}

/* --- certificates ------------------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    return (int64_t)time(NULL) * 1000;
}

static void ca_make(struct ca *ca, const char *name)
{
    assert_int_equal(pki_key_make(&ca->key, NULL), TITAN_OK);
    assert_int_equal(
        pki_ca_make(&ca->key, name, now_ms() - 24 * HOUR_MS, now_ms() + 24 * HOUR_MS, &ca->certificate, NULL),
        TITAN_OK);
}

static void ca_free(struct ca *ca)
{
    buf_free(&ca->key);
    buf_free(&ca->certificate);
}

static void write_file(const char *path, const struct buf *text)
{
    assert_int_equal(file_replace(path, text->data, text->len, NULL), TITAN_OK);
    assert_int_equal(chmod(path, 0600), 0);
}

/* A key and a certificate of this CA in NAME.key and NAME.cert. */
static void issue(struct fixture *f, const struct ca *ca, enum pki_kind kind, const char *name, int64_t until_ms,
                  struct rpc_tls *ret)
{
    static const char hosts[][256] = {"127.0.0.1"};
    struct buf key = BUF_INIT, request = BUF_INIT, certificate = BUF_INIT;
    char uri[128];
    (void)snprintf(uri, sizeof(uri), "spiffe://titan/%s/%s", pki_kind_name(kind), name);
    const struct pki_spec spec = {.kind = kind,
                                  .name = name,
                                  .hosts = hosts,
                                  .n_hosts = kind == PKI_COORDINATOR,
                                  .from_ms = until_ms - 12 * HOUR_MS,
                                  .until_ms = until_ms};
    assert_int_equal(pki_key_make(&key, NULL), TITAN_OK);
    assert_int_equal(pki_request_make(&key, uri, &request, NULL), TITAN_OK);
    assert_int_equal(pki_issue(&(struct pki_issuer){&ca->certificate, &ca->key}, request.data, request.len, &spec,
                               &certificate, NULL),
                     TITAN_OK);
    (void)snprintf(ret->ca, sizeof(ret->ca), "%s/ca-of-%s", f->dir, name);
    (void)snprintf(ret->certificate, sizeof(ret->certificate), "%s/%s.cert", f->dir, name);
    (void)snprintf(ret->key, sizeof(ret->key), "%s/%s.key", f->dir, name);
    write_file(ret->ca, &f->ca.certificate);
    write_file(ret->certificate, &certificate);
    write_file(ret->key, &key);
    buf_free(&key);
    buf_free(&request);
    buf_free(&certificate);
}

/* --- fixture ------------------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_int_equal(uv_loop_init(&f->loop), 0);
    (void)uv_timer_init(&f->loop, &f->watchdog);
    (void)uv_timer_start(&f->watchdog, watchdog_bite, (uint64_t)patience_ms(120), 0);
    uv_unref((uv_handle_t *)&f->watchdog);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/titan-tls-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    ca_make(&f->ca, "ours");
    ca_make(&f->other, "theirs");
    issue(f, &f->ca, PKI_COORDINATOR, "c1", now_ms() + HOUR_MS, &f->serving);
    const struct rpc_server_options options = {.methods = methods, .n_methods = ARRAY_SIZE(methods), .data = f};
    assert_int_equal(rpc_server_open(&f->loop, &options, &f->server, NULL), TITAN_OK);
    struct titan_error err;
    assert_int_equal(rpc_server_listen(f->server, "127.0.0.1:0", &f->serving, &f->port, &err), TITAN_OK);
    assert_int_equal(rpc_server_listen(f->server, "127.0.0.1:0", &f->serving, &f->second_port, &err), TITAN_OK);
    assert_int_equal(rpc_server_start(f->server, NULL), TITAN_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    rpc_server_shutdown(f->server, 0, set_true, &f->down);
    while (!f->down)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    rpc_server_free(f->server);
    assert_int_equal(dir_remove(f->dir, NULL), TITAN_OK);
    ca_free(&f->ca);
    ca_free(&f->other);
    uv_close((uv_handle_t *)&f->watchdog, NULL);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
    return 0;
}

static void on_reply(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    (void)reply;
    struct fixture *f = data;
    f->replies++;
    f->error = *err;
}

static struct rpc_client *client_open(struct fixture *f, const char *host, int port, const struct rpc_tls *tls)
{
    char target[64];
    struct rpc_client *client = NULL;
    (void)snprintf(target, sizeof(target), "%s:%d", host, port);
    struct titan_error err;
    if (rpc_client_open(&f->loop, target, tls, &client, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return client;
}

static titan_status call(struct fixture *f, struct rpc_client *client)
{
    Titan__V1__VersionRequest request = TITAN__V1__VERSION_REQUEST__INIT;
    int before = f->replies;
    f->identity = (struct rpc_identity){.uid = 12345};
    rpc_client_call(client,
                    &(struct rpc_request){METHOD, &request.base, &titan__v1__version_response__descriptor,
                                          (uint32_t)patience_ms(60)},
                    on_reply, f);
    while (f->replies == before)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    return f->error.status;
}

static void client_close(struct fixture *f, struct rpc_client *client)
{
    bool down = false;
    rpc_client_close(client, set_true, &down);
    while (!down)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
}

/* One call over a connection of its own. */
static titan_status once(struct fixture *f, const char *host, int port, const struct rpc_tls *tls)
{
    struct rpc_client *client = client_open(f, host, port, tls);
    titan_status status = call(f, client);
    client_close(f, client);
    return status;
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void test_identity(void **state)
{
    struct fixture *f = *state;
    struct rpc_tls node, user, none;
    issue(f, &f->ca, PKI_NODE, "n1", now_ms() + HOUR_MS, &node);
    issue(f, &f->ca, PKI_USER, "alice", now_ms() + HOUR_MS, &user);
    assert_int_equal(once(f, "127.0.0.1", f->port, &node), TITAN_OK);
    assert_int_equal(f->identity.kind, RPC_ID_CERT);
    assert_true(f->identity.secure);
    assert_int_equal(f->identity.uid, (uid_t)-1);
    assert_string_equal(f->identity.name, "spiffe://titan/node/n1");
    assert_int_equal(once(f, "127.0.0.1", f->second_port, &user), TITAN_OK);
    assert_string_equal(f->identity.name, "spiffe://titan/user/alice");
    /* Without a certificate: let in, as anonymous, and a token can be sent. */
    none = (struct rpc_tls){0};
    memcpy(none.ca, node.ca, sizeof(none.ca));
    struct rpc_client *client = client_open(f, "127.0.0.1", f->port, &none);
    assert_int_equal(rpc_client_token(client, "titan_1_secret", NULL), TITAN_OK);
    assert_int_equal(call(f, client), TITAN_OK);
    assert_int_equal(f->identity.kind, RPC_ID_NONE);
    assert_true(f->identity.secure);
    assert_string_equal(f->token, "Bearer titan_1_secret");
    client_close(f, client);
    /* Never in plain text. */
    client = client_open(f, "127.0.0.1", f->port, NULL);
    assert_int_equal(rpc_client_token(client, "titan_1_secret", NULL), TITAN_EPERM);
    assert_int_equal(call(f, client), TITAN_EUNREACHABLE);
    assert_non_null(strstr(f->error.hint, "a server with TLS"));
    client_close(f, client);
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    struct rpc_tls tls;
    issue(f, &f->other, PKI_NODE, "foreign", now_ms() + HOUR_MS, &tls);
    assert_int_equal(once(f, "127.0.0.1", f->port, &tls), TITAN_EUNREACHABLE);
    assert_int_equal(f->identity.uid, 12345); /* the handler was not asked */
    issue(f, &f->ca, PKI_NODE, "expired", now_ms() - 60000, &tls);
    assert_int_equal(once(f, "127.0.0.1", f->port, &tls), TITAN_EUNREACHABLE);
    assert_int_equal(f->identity.uid, 12345);
    /* The server must be what it is taken for: of this authority, and for this host. */
    issue(f, &f->ca, PKI_NODE, "n1", now_ms() + HOUR_MS, &tls);
    assert_int_equal(once(f, "localhost", f->port, &tls), TITAN_EUNREACHABLE);
    assert_non_null(strstr(f->error.msg, "localhost is not in peer certificate"));
    assert_non_null(strstr(f->error.hint, "a name its certificate has"));
    write_file(tls.ca, &f->other.certificate);
    assert_int_equal(once(f, "127.0.0.1", f->port, &tls), TITAN_EUNREACHABLE);
    assert_non_null(strstr(f->error.msg, "TLS: certificate verify failed"));
    assert_int_equal(f->identity.uid, 12345);
}

static titan_status files_check(const struct rpc_tls *tls, struct titan_error *err)
{
    struct rpc_pair *pair = NULL;
    const titan_status status = rpc_pair_open(tls, &pair, err);
    rpc_pair_free(pair);
    return status;
}

static void test_files(void **state)
{
    struct fixture *f = *state;
    struct rpc_tls a, b;
    struct titan_error err;
    issue(f, &f->ca, PKI_NODE, "a", now_ms() + HOUR_MS, &a);
    issue(f, &f->ca, PKI_NODE, "b", now_ms() + HOUR_MS, &b);
    assert_int_equal(files_check(&a, &err), TITAN_OK);
    memcpy(a.key, b.key, sizeof(a.key));
    assert_int_equal(files_check(&a, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "is not that of the certificate"));
    const mode_t loose[] = {0644, 0640, 0610};
    for (size_t i = 0; i < ARRAY_SIZE(loose); i++) {
        assert_int_equal(chmod(b.key, loose[i]), 0);
        assert_int_equal(files_check(&b, &err), TITAN_EPERM);
        assert_non_null(strstr(err.hint, "chmod 600"));
    }
    assert_int_equal(unlink(b.key), 0);
    assert_int_equal(files_check(&b, &err), TITAN_ENOTFOUND);
    memcpy(b.key, b.ca, sizeof(b.key));
    assert_int_equal(files_check(&b, &err), TITAN_EINVAL);
    b.ca[0] = '\0';
    assert_int_equal(files_check(&b, &err), TITAN_EINVAL);
}

/* The server's next pair is of the other authority: a client that trusts one of them sees which is served. */
static void test_rotation(void **state)
{
    struct fixture *f = *state;
    struct rpc_tls client, next, trusts_other;
    issue(f, &f->ca, PKI_NODE, "n1", now_ms() + HOUR_MS, &client);
    trusts_other = client;
    (void)snprintf(trusts_other.ca, sizeof(trusts_other.ca), "%s/other", f->dir);
    write_file(trusts_other.ca, &f->other.certificate);
    struct rpc_client *standing = client_open(f, "127.0.0.1", f->port, &client);
    assert_int_equal(call(f, standing), TITAN_OK);
    issue(f, &f->other, PKI_COORDINATOR, "next", now_ms() + HOUR_MS, &next);

    /* Half of a rotation: the old pair serves on. */
    assert_int_equal(rename(next.key, f->serving.key), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(once(f, "127.0.0.1", f->port, &client), TITAN_OK);
        assert_string_equal(f->identity.name, "spiffe://titan/node/n1");
        assert_int_equal(once(f, "127.0.0.1", f->port, &trusts_other), TITAN_EUNREACHABLE);
    }
    /* The other half: at both listeners the new one, at once; a connection that stands goes on. */
    assert_int_equal(rename(next.certificate, f->serving.certificate), 0);
    assert_int_equal(once(f, "127.0.0.1", f->port, &trusts_other), TITAN_OK);
    assert_int_equal(once(f, "127.0.0.1", f->second_port, &trusts_other), TITAN_OK);
    assert_int_equal(once(f, "127.0.0.1", f->port, &client), TITAN_EUNREACHABLE);
    assert_int_equal(call(f, standing), TITAN_OK);
    client_close(f, standing);
}

/* A client's next certificate is used from its next call on. */
static void test_client_rotation(void **state)
{
    struct fixture *f = *state;
    struct rpc_tls tls, next;
    issue(f, &f->ca, PKI_NODE, "n1", now_ms() + HOUR_MS, &tls);
    struct rpc_client *client = client_open(f, "127.0.0.1", f->port, &tls);
    assert_int_equal(call(f, client), TITAN_OK);
    assert_string_equal(f->identity.name, "spiffe://titan/node/n1");
    issue(f, &f->ca, PKI_NODE, "n2", now_ms() + HOUR_MS, &next);
    assert_int_equal(rename(next.certificate, tls.certificate), 0);
    assert_int_equal(call(f, client), TITAN_OK);
    assert_string_equal(f->identity.name, "spiffe://titan/node/n1");
    assert_int_equal(rename(next.key, tls.key), 0);
    assert_int_equal(call(f, client), TITAN_OK);
    assert_string_equal(f->identity.name, "spiffe://titan/node/n2");
    client_close(f, client);
}

#define WITH_SERVER(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {WITH_SERVER(test_identity), WITH_SERVER(test_refused), WITH_SERVER(test_files),
                                       WITH_SERVER(test_rotation), WITH_SERVER(test_client_rotation)};
    return cmocka_run_group_tests_name("tls", tests, NULL, NULL);
}
