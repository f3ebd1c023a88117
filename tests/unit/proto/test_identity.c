/* SPDX-License-Identifier: Apache-2.0 */
/* test_identity.c - calls of two uids over one socket: thousands of short connections, so that descriptors' numbers
 * come again and again, and no call is taken for one of the other uid. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "proto/rpc/server.h"
#include "tests/unit/proto/raw_http2.h"
#include "titan/v1/titan.pb-c.h"

#define METHOD "/titan.v1.Titan/ResizeJob"
enum { CONNECTS = 5000 }; /* of each uid */

static struct {
    uv_loop_t loop;
    struct rpc_server *server;
    char dir[40], socket[64], target[80];
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
    for (int i = 0; i < CONNECTS; i++) {
        int fd = raw_connect(f.socket);
        if (fd < 0 || !raw_send(fd, &raw) || !raw_await(fd, RAW_HEADERS, NULL))
            return 3;
        (void)close(fd);
    }
    return 0;
}

static pid_t client_start(uid_t uid)
{
    pid_t pid = fork();
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

static void test_two_uids(void **state)
{
    (void)state;
    bool root = geteuid() == 0;
    if (!root)
        print_message("not root: one uid only\n");
    const uid_t uids[] = {root ? 65534 : geteuid(), root ? 4242424 : geteuid()};
    assert_int_equal(uv_loop_init(&f.loop), 0);
    (void)snprintf(f.dir, sizeof(f.dir), "/tmp/titan-identity-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    assert_int_equal(chmod(f.dir, 0755), 0);
    (void)snprintf(f.socket, sizeof(f.socket), "%s/s.sock", f.dir);
    (void)snprintf(f.target, sizeof(f.target), "unix:%s", f.socket);
    const struct rpc_server_options options = {.socket_mode = 0666};
    assert_int_equal(rpc_server_open(&f.loop, methods, ARRAY_SIZE(methods), NULL, NULL, 0, &options, &f.server, NULL),
                     TITAN_OK);
    assert_int_equal(rpc_server_listen(f.server, f.target, NULL, NULL, NULL), TITAN_OK);
    struct stat st;
    assert_int_equal(stat(f.socket, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0666);
    uv_signal_t child;
    (void)uv_signal_init(&f.loop, &child);
    (void)uv_signal_start(&child, on_child, SIGCHLD);
    pid_t clients[ARRAY_SIZE(uids)]; /* before there is a thread; they wait in the socket */
    for (size_t i = 0; i < ARRAY_SIZE(uids); i++)
        clients[i] = client_start(uids[i]);
    assert_int_equal(rpc_server_start(f.server, NULL), TITAN_OK);
    for (size_t left = ARRAY_SIZE(uids); left > 0;) {
        (void)uv_run(&f.loop, UV_RUN_ONCE);
        for (size_t i = 0; i < ARRAY_SIZE(uids); i++) {
            int status = 0;
            if (clients[i] == 0 || waitpid(clients[i], &status, WNOHANG) == 0)
                continue;
            clients[i] = 0;
            left--;
            assert_int_equal(status, 0);
        }
    }
    uv_close((uv_handle_t *)&child, NULL);
    assert_int_equal(f.calls, CONNECTS * ARRAY_SIZE(uids));
    assert_int_equal(f.wrong, 0);
    assert_int_equal(f.unnamed, 0);
    rpc_server_shutdown(f.server, 0, set_true, &f.down);
    while (!f.down)
        (void)uv_run(&f.loop, UV_RUN_ONCE);
    rpc_server_free(f.server);
    (void)rmdir(f.dir);
    assert_int_equal(uv_loop_close(&f.loop), 0);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_uids)};
    return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
