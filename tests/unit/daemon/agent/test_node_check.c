/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent finds out about its own node for an operator: its certificate's end, its program, its version. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/version.h"
#include "daemon/agent/shell/node_check.h"
#include "daemon/auth/certs.h"

#define HOUR INT64_C(3600000)

static char folder[64];
static struct rpc_tls files;

static const char *wanted; /* of the answer's findings */
static int wrong;          /* -1 = there is none of that name */
static char text[500];
static bool answered, closed;

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/titan-node-check-XXXXXX");
    return mkdtemp(folder) && certs_in(folder, &files, NULL) == TITAN_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dir_remove(folder, NULL) == TITAN_OK ? 0 : -1;
}

/* One that ends in life_ms, of a CA of its own. */
static void make_certificate(int64_t life_ms)
{
    const int64_t now = clock_wall_ms();
    const struct pki_spec spec = {.kind = PKI_NODE, .name = "n1", .from_ms = now - HOUR, .until_ms = now + life_ms};
    struct buf ca_key = BUF_INIT, ca = BUF_INIT, key = BUF_INIT, request = BUF_INIT, certificate = BUF_INIT;
    assert_int_equal(pki_key_make(&ca_key, NULL), TITAN_OK);
    assert_int_equal(pki_ca_make(&ca_key, "test", now - HOUR, now + 1000 * HOUR, &ca, NULL), TITAN_OK);
    assert_int_equal(pki_key_make(&key, NULL), TITAN_OK);
    assert_int_equal(pki_request_make(&key, "spiffe://titan/node/n1", &request, NULL), TITAN_OK);
    assert_int_equal(
        pki_issue(&(struct pki_issuer){&ca, &ca_key}, request.data, request.len, &spec, &certificate, NULL), TITAN_OK);
    assert_int_equal(certs_write(files.ca, &ca, false, NULL), TITAN_OK);
    assert_int_equal(certs_write(files.certificate, &certificate, false, NULL), TITAN_OK);
    assert_int_equal(certs_write(files.key, &key, true, NULL), TITAN_OK);
    struct buf *const all[] = {&ca_key, &ca, &key, &request, &certificate};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        buf_free(all[i]);
}

static bool reported(const Titan__Internal__NodeChecked *m, void *data)
{
    (void)data;
    for (size_t i = 0; i < m->n_findings; i++) {
        if (strcmp(m->findings[i]->what, wanted) != 0)
            continue;
        assert_int_equal(wrong, -1);
        wrong = m->findings[i]->wrong;
        (void)snprintf(text, sizeof(text), "%s", m->findings[i]->text);
    }
    answered = true;
    return true;
}

static void on_closed(void *data)
{
    (void)data;
    closed = true;
}

/* The finding of that name, in wrong and text. */
static void look(const char *what, const struct rpc_tls *tls, const char *program, const char *version)
{
    const struct node_checks_options options = {.node = "n1", .address = "127.0.0.1", .program = program, .tls = tls};
    Titan__Internal__CheckNode request = TITAN__INTERNAL__CHECK_NODE__INIT;
    struct node_checks *c;
    uv_loop_t loop;
    wanted = what;
    wrong = -1;
    text[0] = '\0';
    answered = closed = false;
    request.request_id = 1;
    request.jobs_dir = folder;
    request.wall_ms = clock_wall_ms();
    request.version = (char *)(uintptr_t)version;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(node_checks_open(&loop, &options, reported, NULL, &c, NULL), TITAN_OK);
    node_checks_ask(c, &request);
    while (!answered)
        uv_run(&loop, UV_RUN_ONCE);
    node_checks_close(c, on_closed, NULL);
    while (!closed)
        uv_run(&loop, UV_RUN_ONCE);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void test_certificate(void **state)
{
    (void)state;
    look("certificate", NULL, "/bin/true", titan_version);
    assert_int_equal(wrong, -1); /* there is no TLS */
    look("certificate", &files, "/bin/true", titan_version);
    assert_int_equal(wrong, 1);
    assert_non_null(strstr(text, folder));
    make_certificate(48 * HOUR);
    look("certificate", &files, "/bin/true", titan_version);
    assert_int_equal(wrong, 0);
    assert_int_equal(strncmp(text, "n1, good until 20", 17), 0);
    make_certificate(12 * HOUR); /* it should have been renewed long before */
    look("certificate", &files, "/bin/true", titan_version);
    assert_int_equal(wrong, 1);
    assert_int_equal(strncmp(text, "n1, good until 20", 17), 0);
    make_certificate(-HOUR / 2);
    look("certificate", &files, "/bin/true", titan_version);
    assert_int_equal(wrong, 1);
    assert_non_null(strstr(text, "expired"));
}

static void test_program(void **state)
{
    (void)state;
    look("worker", NULL, "/bin/true", titan_version);
    assert_int_equal(wrong, 0);
    assert_string_equal(text, "/bin/true");
    look("worker", NULL, "/nonexistent", titan_version);
    assert_int_equal(wrong, 1);
    assert_string_equal(text, "/nonexistent: No such file or directory");
}

static void test_version(void **state)
{
    (void)state;
    char other[100];
    look("version", NULL, "/bin/true", titan_version);
    assert_int_equal(wrong, 0);
    assert_string_equal(text, titan_version);
    look("version", NULL, "/bin/true", "0.0.0");
    assert_int_equal(wrong, 1);
    (void)snprintf(other, sizeof(other), "%s, the coordinator's is 0.0.0", titan_version);
    assert_string_equal(text, other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_certificate, setup, teardown),
        cmocka_unit_test_setup_teardown(test_program, setup, teardown),
        cmocka_unit_test_setup_teardown(test_version, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
