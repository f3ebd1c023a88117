/* SPDX-License-Identifier: Apache-2.0 */
/* log.h, notify.h */
#include <poll.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "base/notify.h"
#include "tests/support/child.h"

/* What fn writes to stderr, in a child of its own; every read is one write(2) as the pipe keeps datagrams apart. */
static int capture(void (*fn)(void), char out[][9000], int max)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
    pid_t child = child_fork();
    if (child == 0) {
        dup2(pair[1], STDERR_FILENO);
        fn();
        _exit(0);
    }
    close(pair[1]);
    int status, n = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (ssize_t len; n < max && (len = recv(pair[0], out[n], sizeof(out[n]) - 1, MSG_DONTWAIT)) >= 0; n++)
        out[n][len] = '\0';
    close(pair[0]);
    return n;
}

static void assert_matches(const char *text, const char *pattern)
{
    regex_t re;
    assert_int_equal(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int rc = regexec(&re, text, 0, NULL, 0);
    regfree(&re);
    if (rc != 0)
        fail_msg("'%s' does not match %s", text, pattern);
}

#define TIME "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "

static void write_lines(void)
{
    struct log log;
    log_init(&log, "agent", "job=%d rank=%d", 12, 2);
    tlog_info(&log, "worker exited", "signal=%d path=\"%s\"", 9, "/a b");
    tlog_debug(&log, "not shown", "%s", "");
    tlog_error(NULL, "no log", "%s", "");
    struct log plain;
    log_init(&plain, "store", "%s", "");
    tlog_warn(&plain, "hostile", "name=\"%s\"", "x\n2026-01-01T00:00:00.000Z error fake line\x1b[31m");
    tlog_warn(&plain, "forged", "text=\"%s\"", "/x\" level=error text=\"by root");
    log_set_level(LOG_LEVEL_DEBUG);
    tlog_debug(&plain, "shown", "%s", "");
    char longer[20000];
    memset(longer, 'z', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    tlog_info(&plain, "long", "x=%s", longer);
}

static void test_lines(void **state)
{
    (void)state;
    static char out[8][9000];
    unsetenv("JOURNAL_STREAM");
    int n = capture(write_lines, out, 8);
    assert_int_equal(n, 6); /* one write(2) a line */
    assert_matches(out[0], TIME "info agent worker exited job=12 rank=2 signal=9 path=\"/a b\"\n$");
    assert_matches(out[1], TIME "error titan no log\n$");
    assert_matches(out[2], TIME "warn store hostile name=\"x 2026-01-01T00:00:00.000Z error fake line \\[31m\"\n$");
    assert_matches(out[3], TIME "warn store forged text=\"/x\\\\\" level=error text=\\\\\"by root\"\n$");
    assert_matches(out[4], TIME "debug store shown\n$");
    assert_matches(out[5], "\\.\\.\\.\n$");
    for (int i = 0; i < n; i++)
        assert_ptr_equal(strchr(out[i], '\n'), out[i] + strlen(out[i]) - 1);
}

static void test_levels(void **state)
{
    (void)state;
    assert_int_equal(log_get_level(), LOG_LEVEL_INFO);
    log_set_level(LOG_LEVEL_DEBUG);
    assert_int_equal(log_get_level(), LOG_LEVEL_DEBUG);
    log_set_level(LOG_LEVEL_INFO);
}

static char socket_path[64];

static int listen_datagrams(const char *name)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    memcpy(address.sun_path, name, len);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    return fd;
}

static void write_journal(void)
{
    struct stat st;
    char stream[64];
    fstat(STDERR_FILENO, &st);
    snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    setenv("TITAN_JOURNAL_SOCKET", socket_path, 1);
    struct log log;
    log_init(&log, "agent", "job=%d", 12);
    tlog_warn(&log, "worker exited", "exit-code=%d path=\"%s\" last", 3, "/a \"b\\");
}

static void test_journal(void **state)
{
    (void)state;
    snprintf(socket_path, sizeof(socket_path), "/tmp/titan-journal-%d", (int)getpid());
    int fd = listen_datagrams(socket_path);
    static char out[2][9000];
    assert_int_equal(capture(write_journal, out, 2), 0); /* nothing on stderr */
    ssize_t n = recv(fd, out[0], sizeof(out[0]) - 1, MSG_DONTWAIT);
    assert_true(n > 0);
    out[0][n] = '\0';
    assert_matches(out[0], "^PRIORITY=4\nSYSLOG_IDENTIFIER=[^\n]+\n"
                           "MESSAGE=worker exited job=12 exit-code=3 path=\"/a \\\\\"b\\\\\\\\\" last\n"
                           "TITAN_SUBSYSTEM=agent\nTITAN_JOB=12\nTITAN_EXIT_CODE=3\nTITAN_PATH=/a \"b\\\\\n$");
    close(fd);
    unlink(socket_path);
}

/* JOURNAL_STREAM of another process (stderr was redirected): plain lines. */
static void write_redirected(void)
{
    setenv("JOURNAL_STREAM", "1:1", 1);
    tlog_error(NULL, "plain", "%s", "");
}

static void test_journal_redirected(void **state)
{
    (void)state;
    static char out[2][9000];
    assert_int_equal(capture(write_redirected, out, 2), 1);
    assert_matches(out[0], TIME "error titan plain\n$");
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

#define FLOOD 100000 /* lines, far more than queue and pipe hold */

/* Logs into a pipe that is not read until it says so. */
static void flood(int told, bool more)
{
    struct titan_error err = {0};
    struct log log;
    log_init(&log, "flood", "%s", "");
    if (log_start_thread(&err) != TITAN_OK)
        _exit(1);
    for (int i = 0; i < FLOOD; i++)
        tlog_info(&log, "line", "n=%d", i);
    if (write(told, "x", 1) != 1)
        _exit(2);
    log_flush(60000);
    if (more)
        tlog_info(&log, "last", "%s", "");
    log_flush(60000);
}

/* A log that is not read holds up nothing; lines that found no room are told where they are missing, also when none
 * comes behind them (more). */
static void unread(bool more)
{
    int out[2], told[2], status, next = 0, lost = 0, last = 0;
    static char line[9000];
    unsetenv("JOURNAL_STREAM");
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(told), 0);
    pid_t child = child_fork();
    if (child == 0) {
        dup2(out[1], STDERR_FILENO);
        close(out[0]);
        close(out[1]);
        flood(told[1], more);
        _exit(0);
    }
    close(out[1]);
    close(told[1]);
    struct pollfd wait = {.fd = told[0], .events = POLLIN};
    assert_int_equal(poll(&wait, 1, 60000), 1);
    FILE *in = fdopen(out[0], "r");
    while (fgets(line, sizeof(line), in)) {
        const char *n = strstr(line, "line n="), *gone = strstr(line, "lines are lost");
        if (n)
            assert_int_equal(atoi(n + strlen("line n=")), next++);
        if (gone)
            next += atoi(strstr(gone, "lines=") + strlen("lines=")), lost++;
        last += strstr(line, "flood last") != NULL;
    }
    (void)fclose(in);
    close(told[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(next, FLOOD);
    assert_true(lost > 0);
    assert_int_equal(last, more);
}

static void test_unread(void **state)
{
    (void)state;
    unread(false);
    unread(true);
}

static void check_notify(const char *name)
{
    char text[128];
    int fd = listen_datagrams(name);
    setenv("NOTIFY_SOCKET", name, 1);
    assert_int_equal(notify("READY=1"), 1);
    assert_int_equal(notify_printf("STATUS=%d jobs", 3), 1);
    ssize_t n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);
    assert_int_equal(n, 7);
    assert_memory_equal(text, "READY=1", 7);
    n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);
    assert_int_equal(n, 13);
    assert_memory_equal(text, "STATUS=3 jobs", 13);
    close(fd);
}

static void test_notify(void **state)
{
    (void)state;
    char name[64];
    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(notify("READY=1"), 0);
    snprintf(name, sizeof(name), "@titan-notify-%d", (int)getpid());
    check_notify(name);
    snprintf(name, sizeof(name), "/tmp/titan-notify-%d", (int)getpid());
    check_notify(name);
    unlink(name);
    assert_int_equal(notify("READY=1"), -1); /* no service manager there */
    setenv("NOTIFY_SOCKET", "relative", 1);
    assert_int_equal(notify("READY=1"), -1);
    unsetenv("NOTIFY_SOCKET");
}

static void test_watchdog(void **state)
{
    (void)state;
    char pid[32];
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    assert_int_equal(notify_watchdog_us(), 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    assert_int_equal(notify_watchdog_us(), 30000000);
    setenv("WATCHDOG_PID", "1", 1);
    assert_int_equal(notify_watchdog_us(), 0);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(notify_watchdog_us(), 30000000);
    setenv("WATCHDOG_USEC", "soon", 1);
    assert_int_equal(notify_watchdog_us(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),    cmocka_unit_test(test_levels),
        cmocka_unit_test(test_journal),  cmocka_unit_test(test_journal_redirected),
        cmocka_unit_test(test_unread),   cmocka_unit_test(test_notify),
        cmocka_unit_test(test_watchdog),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
