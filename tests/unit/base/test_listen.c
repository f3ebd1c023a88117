/* SPDX-License-Identifier: Apache-2.0 */
/* listen.h: a socket that listens, and which process that is. */
#include <arpa/inet.h>
#include <fcntl.h>
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
        if (listen_tcp(hosts[i], NULL, 1, &fd, &port, NULL) != TITAN_OK) { /* no IPv6 here */
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

static int descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* A daemon that asks again and again, until the port is free, does not run out of descriptors. */
static void test_owner_keeps_nothing_open(void **state)
{
    (void)state;
    _cleanup_fd_ int fd = -1;
    uint16_t port = 0;
    char text[LISTEN_OWNER];
    assert_int_equal(listen_tcp("127.0.0.1", NULL, 1, &fd, &port, NULL), TITAN_OK);
    const int before = descriptors();
    listen_owner(port, text);
    assert_int_equal(descriptors(), before);
    listen_owner(0, text);
    assert_int_equal(descriptors(), before);
}

static void test_ranges(void **state)
{
    (void)state;
    static const char *const bad[] = {"",          "30000",       "30000-",      "-30000",       "30000-29999",
                                      "1023-2000", "1-2x",        "30000-70000", "30000 -30001", "30000-+30001",
                                      "a-b",       "30000-30001 "};
    struct listen_ports ports;
    char text[LISTEN_PORTS_TEXT];
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        if (listen_ports_parse(bad[i], &ports, NULL) == TITAN_OK)
            fail_msg("'%s' is taken", bad[i]);
    assert_int_equal(listen_ports_parse("1024-65535", &ports, NULL), TITAN_OK);
    listen_ports_print(&ports, text);
    assert_string_equal(text, "1024-65535");
}

/* Each of a range once, then none; one that is closed is free again, though its connections wait. */
static void test_in_range(void **state)
{
    (void)state;
    struct titan_error err = {0};
    int fds[3] = {-1, -1, -1}, more = -1;
    uint16_t port[3];
    struct listen_ports ports;
    for (uint16_t first = (uint16_t)(20000 + getpid() % 10000);;
         first = (uint16_t)(first + 3)) { /* others may have some */
        ports = (struct listen_ports){first, (uint16_t)(first + 2)};
        int n = 0;
        while (n < 3 && listen_tcp("127.0.0.1", &ports, 1, &fds[n], &port[n], &err) == TITAN_OK)
            n++;
        if (n == 3)
            break;
        while (n > 0)
            (void)close(fds[--n]);
    }
    for (int i = 0; i < 3; i++)
        assert_in_range(port[i], ports.first, ports.last);
    assert_true(port[0] != port[1] && port[1] != port[2] && port[0] != port[2]);
    assert_int_equal(listen_tcp("127.0.0.1", &ports, 1, &more, &port[0], &err), TITAN_ENOSPC);
    assert_true(titan_error_short(&err) && strstr(err.msg, "is free"));
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port[1]), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(out, (struct sockaddr *)&to, sizeof(to)), 0);
    int in = accept(fds[1], NULL, NULL);
    (void)close(in); /* this side ends it, and waits */
    (void)close(out);
    (void)close(fds[1]);
    assert_int_equal(listen_tcp("127.0.0.1", &ports, 1, &fds[1], &port[0], &err), TITAN_OK);
    assert_int_equal(port[0], port[1]);
    for (int i = 0; i < 3; i++)
        (void)close(fds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges), cmocka_unit_test(test_in_range),
                                       cmocka_unit_test(test_owner), cmocka_unit_test(test_owner_keeps_nothing_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
