/* SPDX-License-Identifier: Apache-2.0 */
/* Which events an endpoint wants, and its secret. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "daemon/coordinator/webhook_options.h"

static bool wants(const char *events, const char *type, const char *detail)
{
    struct webhook_options w = {.timeout_ms = 0};
    const struct event e = {.id = 1, .type = type, .detail = detail};
    (void)snprintf(w.events, sizeof(w.events), "%s", events);
    return webhook_wants(&w, &e);
}

static void test_words(void **state)
{
    (void)state;
    assert_true(wants("jobs", "job.state", "{}"));
    assert_false(wants("jobs", "job.stat", "{}"));
    assert_false(wants("jobs", "job.submitted", "{}"));
    assert_false(wants("jobs", "state", "{}"));
    assert_true(wants("nodes,job.submitted", "job.submitted", "{}"));
    assert_false(wants("job.submit", "job.submitted", "{}"));
    assert_true(wants("job.*", "job.submitted", "{}"));
    assert_false(wants("job.*", "jobs.submitted", "{}"));
    assert_true(wants("*", "epoch.formed", "{}"));
    assert_true(wants(WEBHOOK_EVENTS_DEFAULT, "checkpoint.failed", "{}"));
    assert_true(wants(WEBHOOK_EVENTS_DEFAULT, "node.lost", NULL));
    assert_true(wants(WEBHOOK_EVENTS_DEFAULT, "coordinator.fenced", "{}"));
    assert_false(wants(WEBHOOK_EVENTS_DEFAULT, "epoch.formed", "{}"));
    assert_false(wants(WEBHOOK_EVENTS_DEFAULT, "", "{}"));
    assert_false(wants("", "job.state", "{}"));
}

/* The end of a worker is a loss only if it counts; a type by its name is wanted anyway. */
static void test_losses(void **state)
{
    (void)state;
    assert_true(wants("losses", "worker.exited", "{\"worker\":1,\"counted\":true}"));
    assert_false(wants("losses", "worker.exited", "{\"worker\":1,\"counted\":false}"));
    assert_false(wants("losses", "worker.exited", "{\"worker\":1}"));
    assert_false(wants("losses", "worker.exited", "{\"counted\":1}"));
    assert_false(wants("losses", "worker.exited", "no JSON"));
    assert_false(wants("losses", "worker.exited", NULL));
    assert_true(wants("losses,worker.exited", "worker.exited", "{\"counted\":false}"));
    assert_true(wants("losses", "worker.lost", "{\"counted\":false}"));
}

static void test_secret(void **state)
{
    (void)state;
    char dir[] = "/tmp/titan-webhook-XXXXXX";
    struct webhook_options w = {.timeout_ms = 0};
    struct titan_error err = {0};
    assert_non_null(mkdtemp(dir));
    (void)snprintf(w.secret_file, sizeof(w.secret_file), "%s/secret", dir);
    const struct {
        const char *text;
        mode_t mode;
        titan_status status;
        size_t len;
    } rows[] = {{"0123456789abcdef", 0600, TITAN_OK, 16},
                {"0123456789abcdef\r\n\n", 0640, TITAN_OK, 16},
                {"0123456789abcde\n", 0600, TITAN_EINVAL, 0},
                {"", 0600, TITAN_EINVAL, 0},
                {"0123456789abcdef", 0644, TITAN_EPERM, 0}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        _cleanup_(buf_free) struct buf secret = BUF_INIT;
        assert_int_equal(file_replace(w.secret_file, rows[i].text, strlen(rows[i].text), NULL), TITAN_OK);
        assert_int_equal(chmod(w.secret_file, rows[i].mode), 0);
        assert_int_equal(webhook_secret(&w, &secret, &err), rows[i].status);
        if (rows[i].status == TITAN_OK)
            assert_int_equal(secret.len, rows[i].len);
        else
            assert_non_null(strstr(err.msg, w.secret_file));
    }
    assert_int_equal(dir_remove(dir, NULL), TITAN_OK);
    _cleanup_(buf_free) struct buf secret = BUF_INIT;
    assert_int_equal(webhook_secret(&w, &secret, &err), TITAN_ENOTFOUND);
}

static void test_place(void **state)
{
    (void)state;
    static const char *const urls[][2] = {{"https://h:1/secret/path", "https://h:1"},
                                          {"http://[::1]", "http://[::1]"},
                                          {"https://h?token=x", "https://h"}};
    for (size_t i = 0; i < ARRAY_SIZE(urls); i++) {
        struct webhook_options w = {.timeout_ms = 0};
        char place[256];
        (void)snprintf(w.url, sizeof(w.url), "%s", urls[i][0]);
        webhook_place(&w, place);
        assert_string_equal(place, urls[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_losses),
                                       cmocka_unit_test(test_secret), cmocka_unit_test(test_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
