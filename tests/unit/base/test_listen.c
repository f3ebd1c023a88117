/* SPDX-License-Identifier: Apache-2.0 */
/* listen.h: a socket that listens, and which process that is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/listen.h"

static void test_owner(void **state)
{
    static const char *const hosts[] = {"127.0.0.1", "0.0.0.0", "::1"};
    char text[LISTEN_OWNER], pid[32];
    int others = 0;

    (void)state;
    (void)snprintf(pid, sizeof(pid), "process %d (test_listen", (int)getpid());
    for (size_t i = 0; i < ARRAY_SIZE(hosts); i++) {
        _cleanup_fd_ int fd = -1;
        uint16_t port = 0;
        if (listen_tcp(hosts[i], 1, &fd, &port, NULL) != TITAN_OK) { /* no IPv6 here */
            assert_int_equal(i, 2);
            continue;
        }
        assert_true(port > 0);
        listen_owner(port, text);
        if (strncmp(text, pid, strlen(pid)) != 0)
            fail_msg("%s: %s", hosts[i], text);
        (void)close(TAKE_FD(fd));
        listen_owner(port, text);
        others += strcmp(text, "another process") == 0;
    }
    assert_true(others > 0);
    listen_owner(0, text);
    assert_string_equal(text, "another process");
}

static int next_descriptor(void)
{
    const int fd = dup(STDERR_FILENO);
    assert_true(fd >= 0);
    (void)close(fd);
    return fd;
}

/* A daemon that asks again and again, until the port is free, does not run out of descriptors. */
static void test_owner_keeps_nothing_open(void **state)
{
    (void)state;
    _cleanup_fd_ int fd = -1;
    uint16_t port = 0;
    char text[LISTEN_OWNER];
    assert_int_equal(listen_tcp("127.0.0.1", 1, &fd, &port, NULL), TITAN_OK);
    const int before = next_descriptor();
    listen_owner(port, text);
    assert_int_equal(next_descriptor(), before);
    listen_owner(0, text);
    assert_int_equal(next_descriptor(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_owner), cmocka_unit_test(test_owner_keeps_nothing_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
