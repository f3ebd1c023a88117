/* SPDX-License-Identifier: Apache-2.0 */
/* test_identity.c - calls of two uids over one socket: thousands of short connections, so that descriptors' numbers
 * come again and again, and no call is taken for one of the other uid. Then more uids than there is place for, what
 * they may hold together, and connections without a call. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "proto/rpc/server.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "tests/support/sets.h"
#include "tests/unit/proto/raw_http2.h"
#include "titan/v1/titan.pb-c.h"

#define METHOD "/titan.v1.Titan/ResizeJob"
static int connects; /* of each uid */

static struct {
    uv_loop_t loop;
    uv_signal_t child;
    struct rpc_server *server;
    char dir[40], socket[64], target[80];
    int port; /* connections go there; 0 = to the socket */
    unsigned calls, wrong, unnamed;
    bool down;
} f;

/* The request says which uid its client has. */
static void on_call(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    (void)data;
    const Titan__V1__ResizeJobRequest *request = (const Titan__V1__ResizeJobRequest *)message;
    const struct rpc_identity *identity = rpc_call_identity(call);
    f.calls++;
    f.wrong += identity->kind != RPC_ID_UID || identity->uid != request->job_id;
    f.unnamed += identity->name[0] == '\0';
    Titan__V1__ResizeJobResponse reply = TITAN__V1__RESIZE_JOB_RESPONSE__INIT;
    rpc_call_reply(call, &reply.base);
}

static const struct rpc_method methods[] = {
    {.path = METHOD, .request = &titan__v1__resize_job_request__descriptor, .on_request = on_call}};

static void set_true(void *data)
{
    *(bool *)data = true;
}

/* In a process of its own: one call on each connection. */
static int client(uid_t uid)
{
    uint8_t message[16];
    Titan__V1__ResizeJobRequest request = TITAN__V1__RESIZE_JOB_REQUEST__INIT;
    request.job_id = uid;
    uint32_t n = (uint32_t)titan__v1__resize_job_request__pack(&request, message);
    struct raw raw = {.len = 0};
    raw_preface(&raw);
    raw_call(&raw, 1, METHOD, message, n);
    if (uid != geteuid() && (setgid(uid) != 0 || setuid(uid) != 0))
        return 2;
    for (int i = 0; i < connects; i++) {
        int fd = raw_connect(f.socket);
        if (fd < 0 || !raw_send(fd, &raw) || !raw_await(fd, RAW_HEADERS, NULL))
            return 3;
        (void)close(fd);
    }
    return 0;
}

static pid_t client_start(uid_t uid)
{
    pid_t pid = child_fork();
    if (pid == 0)
        _exit(client(uid));
    assert_true(pid > 0);
    return pid;
}

static void on_child(uv_signal_t *handle, int signal)
{
    (void)handle;
    (void)signal; /* the loop has turned: the children are looked at */
}

static void start(const struct rpc_server_options *options)
{
    memset(&f, 0, sizeof(f));
    assert_int_equal(uv_loop_init(&f.loop), 0);
    (void)snprintf(f.dir, sizeof(f.dir), "/tmp/titan-identity-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    assert_int_equal(chmod(f.dir, 0755), 0);
    (void)snprintf(f.socket, sizeof(f.socket), "%s/s.sock", f.dir);
    (void)snprintf(f.target, sizeof(f.target), "unix:%s", f.socket);
    struct rpc_server_options serves = *options;
    serves.methods = methods;
    serves.n_methods = ARRAY_SIZE(methods);
    assert_int_equal(rpc_server_open(&f.loop, &serves, &f.server, NULL), TITAN_OK);
    assert_int_equal(rpc_server_listen(f.server, f.target, NULL, NULL, NULL), TITAN_OK);
}

/* Serve until these processes have ended well. They were forked before there was a thread, and wait in the socket. */
static void serve(pid_t *clients, size_t n)
{
    (void)uv_signal_init(&f.loop, &f.child);
    (void)uv_signal_start(&f.child, on_child, SIGCHLD);
    assert_int_equal(rpc_server_start(f.server, NULL), TITAN_OK);
    for (size_t left = n; left > 0;) {
        for (size_t i = 0; i < n; i++) {
            int status = 0;
            if (clients[i] == 0 || waitpid(clients[i], &status, WNOHANG) == 0)
                continue;
            clients[i] = 0;
            left--;
            assert_int_equal(status, 0);
        }
        if (left > 0)
            (void)uv_run(&f.loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&f.child, NULL);
}

static void end(void)
{
    rpc_server_shutdown(f.server, 0, set_true, &f.down);
    while (!f.down)
        (void)uv_run(&f.loop, UV_RUN_ONCE);
    rpc_server_free(f.server);
    (void)rmdir(f.dir);
    assert_int_equal(uv_loop_close(&f.loop), 0);
}

static void test_two_uids(void **state)
{
    (void)state;
    bool root = geteuid() == 0;
    if (!root)
        print_message("not root: one uid only\n");
    connects = (int)sliced(600, 5000);
    const uid_t uids[] = {root ? 65534 : geteuid(), root ? 4242424 : geteuid()};
    const struct rpc_server_options options = {.socket_mode = 0666};
    start(&options);
    struct stat st;
    assert_int_equal(stat(f.socket, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0666);
    pid_t clients[ARRAY_SIZE(uids)];
    for (size_t i = 0; i < ARRAY_SIZE(uids); i++)
        clients[i] = client_start(uids[i]);
    serve(clients, ARRAY_SIZE(clients));
    assert_int_equal(f.calls, (size_t)connects * ARRAY_SIZE(uids));
    assert_int_equal(f.wrong, 0);
    assert_int_equal(f.unnamed, 0);
    end();
}

static int connect_tcp(int port)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

/* A connection of this uid, from a process of root; below 0: there is none. */
static int connect_as(uid_t uid)
{
    struct timeval limit = {.tv_sec = patience_ms(60) / 1000};
    if (seteuid(uid) != 0)
        _exit(2);
    int fd = f.port ? connect_tcp(f.port) : raw_connect(f.socket);
    if (seteuid(0) != 0)
        _exit(2);
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    return fd;
}

/* A connection of this uid with a call that was answered; below 0: it was closed. */
static int let_in(uid_t uid)
{
    uint8_t message[16];
    struct raw raw = {.len = 0};
    Titan__V1__ResizeJobRequest request = TITAN__V1__RESIZE_JOB_REQUEST__INIT;
    request.job_id = uid;
    raw_preface(&raw);
    raw_call(&raw, 1, METHOD, message, (uint32_t)titan__v1__resize_job_request__pack(&request, message));
    int fd = connect_as(uid);
    if (fd >= 0 && raw_send(fd, &raw) && raw_await(fd, RAW_HEADERS, NULL))
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

enum { USERS = 3, PASSING = 40, FIRST = 70000 };

/* Which step failed. */
static int crowd(void)
{
    for (uid_t i = 0; i < PASSING; i++) {
        int fd = let_in(FIRST + i);
        if (fd < 0)
            return 10;
        (void)close(fd);
    }
    int held[USERS];
    for (uid_t i = 0; i < USERS; i++)
        if ((held[i] = let_in(FIRST + 100 + i)) < 0)
            return 11;
    int again = let_in(FIRST + 100); /* another one of a user that is there */
    if (again < 0)
        return 12;
    if (let_in(FIRST + 200) >= 0)
        return 13;
    int root = let_in(0);
    if (root < 0)
        return 14;
    (void)close(held[1]);
    int late = -1;
    if (!AWAITED((late = let_in(FIRST + 200)) >= 0) || let_in(FIRST + 101) >= 0)
        return 15;
    return 0;
}

/* Of all those that come only so many find place at a time; one that has gone is given up, and root is not kept out. */
static void test_more_users_than_places(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    const struct rpc_server_options options = {.socket_mode = 0666, .max_users = USERS};
    start(&options);
    pid_t pid = child_fork();
    if (pid == 0)
        _exit(crowd());
    serve(&pid, 1);
    assert_int_equal(f.calls, PASSING + USERS + 3);
    assert_int_equal(f.wrong, 0);
    assert_int_equal(f.unnamed, 0);
    end();
}

enum { HOLDERS = 40, HELD_BYTES = 4 << 20, MEMORY_BYTES = 8 << 20 };

struct holder {
    int fd;          /* below 0: the server has broken it off */
    int64_t room[2]; /* of the connection and of its stream */
    int64_t left;
};

/* Take in what has come: windows, or the end. */
static void holder_read(struct holder *h)
{
    uint8_t head[9], body[16384];
    while (h->fd >= 0 && recv(h->fd, head, sizeof(head), MSG_PEEK | MSG_DONTWAIT) == sizeof(head)) {
        size_t n = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        bool read = n <= sizeof(body) && raw_read(h->fd, head, sizeof(head)) && raw_read(h->fd, body, n);
        if (head[3] == RAW_WINDOW)
            h->room[head[8] == 1] += (int64_t)body[0] << 24 | body[1] << 16 | body[2] << 8 | body[3];
        for (size_t i = 0; head[3] == RAW_SETTINGS && i + 6 <= n; i += 6)
            if (body[i] == 0 && body[i + 1] == 4)
                h->room[1] += ((int64_t)body[i + 2] << 24 | body[i + 3] << 16 | body[i + 4] << 8 | body[i + 5]) - 65535;
        if (!read || head[3] == RAW_RST || head[3] == RAW_GOAWAY)
            h->fd = -1;
    }
}

/* What is taken of it now. */
static int64_t holder_send(struct holder *h)
{
    static uint8_t zero[8192];
    struct raw frame = {.len = 0};
    const int64_t now = MIN(MIN(h->left, (int64_t)sizeof(zero)), MIN(h->room[0], h->room[1]));
    if (h->fd < 0 || now <= 0)
        return 0;
    raw_frame(&frame, (uint32_t)now, RAW_DATA, 0, 1);
    if (!raw_send(h->fd, &frame) || send(h->fd, zero, (size_t)now, MSG_NOSIGNAL) != now)
        h->fd = -1;
    h->room[0] -= now;
    h->room[1] -= now;
    h->left -= now;
    return now;
}

/* Each uid begins a message of 4 MiB and sends as much of it as is taken, but its last byte. */
static void hold(void)
{
    static struct holder holders[HOLDERS];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uid_t i = 0; i < HOLDERS; i++) {
        struct raw raw = {.len = 0}, block = {.len = 0};
        const uint32_t n = HELD_BYTES - 64;
        const uint8_t length[] = {0, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
        raw_preface(&raw);
        raw_headers(&block, METHOD);
        raw_frame(&raw, (uint32_t)block.len, RAW_HEADERS, RAW_END_HEADERS, 1);
        raw_put(&raw, block.bytes, block.len);
        raw_frame(&raw, sizeof(length), RAW_DATA, 0, 1);
        raw_put(&raw, length, sizeof(length));
        holders[i] = (struct holder){.fd = connect_as(FIRST + i), .room = {65530, 65530}, .left = n - 1};
        if (holders[i].fd < 0 || !raw_send(holders[i].fd, &raw))
            _exit(30);
    }
    for (int still = 0; still < 50; still++) { /* half a second in which nothing more is taken */
        int64_t sent = 0;
        for (int i = 0; i < HOLDERS; i++) {
            holder_read(&holders[i]);
            sent += holder_send(&holders[i]);
        }
        if (sent > 0)
            still = 0;
        else
            patience_pause_ms(10, "the server takes more, or does not");
    }
    (void)kill(getppid(), SIGUSR1);
    for (;;)
        (void)pause();
}

static uint64_t resident(void)
{
    unsigned long pages = 0, all = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    assert_non_null(statm);
    assert_int_equal(fscanf(statm, "%lu %lu", &all, &pages), 2);
    (void)fclose(statm);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void on_usr1(uv_signal_t *handle, int signal)
{
    (void)signal;
    *(bool *)handle->data = true;
}

/* What many users hold of messages that do not end is bounded by what four of them may. */
static void test_memory_of_many_users(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    bool full = false;
    uv_signal_t usr1;
    const struct rpc_server_options options = {.socket_mode = 0666, .memory_bytes = MEMORY_BYTES};
    start(&options);
    (void)uv_signal_init(&f.loop, &usr1);
    usr1.data = &full;
    (void)uv_signal_start(&usr1, on_usr1, SIGUSR1);
    pid_t pid = child_fork();
    if (pid == 0)
        hold();
    assert_int_equal(rpc_server_start(f.server, NULL), TITAN_OK);
    const uint64_t before = resident();
    while (!full)
        (void)uv_run(&f.loop, UV_RUN_ONCE);
    const uint64_t more = resident() - before;
    print_message("%u users: %" PRIu64 " MiB more\n", HOLDERS, more >> 20);
#ifndef __SANITIZE_ADDRESS__                            /* keeps what is freed */
    assert_true(more < 2 * 4 * (uint64_t)MEMORY_BYTES); /* each alone: 96 MiB */
#endif
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    uv_close((uv_handle_t *)&usr1, NULL);
    end();
}

static uint32_t idle_ms; /* a call is begun within this after its connection */

static int other_port; /* 0 = the socket: of a listener where the limit is another */

/* One without a call is closed after its limit, one with a call stays. It is closed with what there is for it, before
 * one that has a first frame to send yet: it has no time of its own to leave. */
static int idle(void)
{
    int quiet = let_in(0), busy = connect_as(0);
    const int port = f.port;
    f.port = other_port;
    int silent = connect_as(0);
    f.port = port;
    struct raw raw = {.len = 0}, block = {.len = 0};
    raw_preface(&raw);
    raw_headers(&block, METHOD);
    raw_frame(&raw, (uint32_t)block.len, RAW_HEADERS, RAW_END_HEADERS, 1);
    raw_put(&raw, block.bytes, block.len);
    if (quiet < 0 || busy < 0 || silent < 0 || !raw_send(busy, &raw))
        return 20;
    if (!raw_await(quiet, RAW_GOAWAY, NULL) || raw_await(quiet, RAW_HEADERS, NULL) || errno == EAGAIN)
        return 21;
    ssize_t n;
    while ((n = recv(silent, block.bytes, sizeof(block.bytes), MSG_DONTWAIT)) > 0)
        ;
    if (n == 0 || errno != EAGAIN)
        return 23;
    struct timeval limit = {.tv_usec = 3 * idle_ms * 1000 % 1000000, .tv_sec = 3 * idle_ms / 1000};
    (void)setsockopt(busy, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (raw_await(busy, RAW_GOAWAY, NULL) || errno != EAGAIN)
        return 22;
    return 0;
}

static void idle_connections(const struct rpc_server_options *options, bool tcp)
{
    if (geteuid() != 0)
        skip();
    start(options);
    int port = 0;
    assert_int_equal(rpc_server_listen(f.server, "127.0.0.1:0", NULL, &port, NULL), TITAN_OK);
    f.port = tcp ? port : 0;
    other_port = tcp ? 0 : port;
    pid_t pid = child_fork();
    if (pid == 0)
        _exit(idle());
    serve(&pid, 1);
    end();
}

static void test_idle_connections(void **state)
{
    (void)state;
    idle_ms = patience_stretched(300);
    const struct rpc_server_options options = {
        .socket_mode = 0666, .idle_ms = idle_ms, .request_ms = (uint32_t)patience_ms(600)};
    idle_connections(&options, false);
}

static void test_idle_tcp_connections(void **state)
{
    (void)state;
    idle_ms = patience_stretched(300);
    const struct rpc_server_options options = {
        .socket_mode = 0666, .tcp_idle_ms = idle_ms, .request_ms = (uint32_t)patience_ms(600)};
    idle_connections(&options, true);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);

    const struct CMUnitTest tests[] = {longer(test_two_uids), quick(test_more_users_than_places),
                                       quick(test_memory_of_many_users), quick(test_idle_connections),
                                       quick(test_idle_tcp_connections)};
    return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
