/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between an agent and titan-spawnd: what is packed is parsed; what is cut, long, or says what may not be, is
 * not. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/spawn/spawn_child.h"
#include "daemon/spawn/spawn_frames.h"

static char data[SPAWN_FRAME_MAX];

static struct spawn_request start_request(void)
{
    return (struct spawn_request){.kind = SPAWN_START,
                                  .worker_id = 7,
                                  .job_id = 3,
                                  .uid = 1001,
                                  .memory = 1 << 20,
                                  .cpus = 1500,
                                  .page = "/dev/shm/titan-1/w7.page",
                                  .host = "10.0.0.1",
                                  .directory = "/jobs/3",
                                  .run = "job-3-01",
                                  .ports = "30000-30999",
                                  .env = {"TZ=Europe/Berlin", "NCCL_DEBUG=INFO"},
                                  .n_env = 2};
}

static titan_status parse(const struct spawn_request *r, size_t n_fds, struct spawn_request *ret, char message[384])
{
    struct titan_error err = {0};
    const size_t len = spawn_request_pack(r, data, sizeof(data));
    assert_true(len > 0);
    const titan_status status = spawn_request_parse(data, len, n_fds, ret, &err);
    (void)snprintf(message, 384, "%s", err.msg);
    return status;
}

static void test_round_trip(void **state)
{
    (void)state;
    char message[384];
    struct spawn_request out, r = start_request();
    assert_int_equal(parse(&r, SPAWN_FDS, &out, message), TITAN_OK);
    assert_int_equal(out.worker_id, 7);
    assert_int_equal(out.job_id, 3);
    assert_int_equal(out.uid, 1001);
    assert_int_equal(out.memory, 1 << 20);
    assert_int_equal(out.cpus, 1500);
    assert_string_equal(out.page, r.page);
    assert_string_equal(out.host, r.host);
    assert_string_equal(out.directory, r.directory);
    assert_string_equal(out.run, r.run);
    assert_string_equal(out.ports, r.ports);
    assert_int_equal(out.n_env, 2);
    assert_string_equal(out.env[1], "NCCL_DEBUG=INFO");
    assert_int_equal(parse(&r, SPAWN_FLIGHT, &out, message), TITAN_OK);
    const struct spawn_request kill = {.kind = SPAWN_SIGNAL, .worker_id = 7, .signal = SIGKILL};
    assert_int_equal(parse(&kill, 0, &out, message), TITAN_OK);
    assert_int_equal(out.signal, SIGKILL);
    const struct spawn_request ask = {.kind = SPAWN_ASK, .worker_id = 7, .forget = true};
    assert_int_equal(parse(&ask, 0, &out, message), TITAN_OK);
    assert_true(out.forget);
    const struct spawn_request limits = {.kind = SPAWN_LIMITS};
    assert_int_equal(parse(&limits, 0, &out, message), TITAN_OK);
    assert_int_equal(out.kind, SPAWN_LIMITS);
}

/* Every length but the right one. */
static void test_cut(void **state)
{
    (void)state;
    const struct spawn_request r = start_request();
    struct spawn_request out;
    const size_t len = spawn_request_pack(&r, data, sizeof(data));
    for (size_t n = 0; n < len; n++)
        assert_int_equal(spawn_request_parse(data, n, SPAWN_FDS, &out, NULL), TITAN_EINVAL);
    data[len] = '\0';
    assert_int_equal(spawn_request_parse(data, len + 1, SPAWN_FDS, &out, NULL), TITAN_EINVAL);
    assert_int_equal(spawn_request_pack(&r, data, len - 1), 0);
}

#define REFUSED(text, fds, ...)                                                                                        \
    do {                                                                                                               \
        struct spawn_request in_ = start_request(), out_;                                                              \
        char message_[384];                                                                                            \
        __VA_ARGS__;                                                                                                   \
        assert_int_equal(parse(&in_, (fds), &out_, message_), TITAN_EINVAL);                                           \
        assert_non_null(strstr(message_, (text)));                                                                     \
    } while (0)

static void test_refused(void **state)
{
    (void)state;
    REFUSED("descriptors", 2, (void)0);
    REFUSED("uid 0", SPAWN_FDS, in_.uid = 0);
    REFUSED("uid -1", SPAWN_FDS, in_.uid = (uid_t)-1);
    REFUSED("no job", SPAWN_FDS, in_.job_id = 0);
    REFUSED("no worker", SPAWN_FDS, in_.worker_id = UINT64_C(1) << 53);
    REFUSED("without page", SPAWN_FDS, in_.page = "w7.page");
    REFUSED("without page", SPAWN_FDS, in_.directory = "jobs/3");
    REFUSED("without page", SPAWN_FDS, in_.host = "");
    REFUSED("variable 1", SPAWN_FDS, in_.env[0] = "LD_PRELOAD=/x.so");
    REFUSED("variable 2", SPAWN_FDS, in_.env[1] = "nccl_x=1");
    REFUSED("processor", SPAWN_FDS, in_.cpus = UINT32_MAX);
    REFUSED("no worker", SPAWN_FDS, in_.worker_id = 0);
    REFUSED("no worker", 0, in_.kind = SPAWN_LIMITS);
    REFUSED("1 descriptors", 1, in_.kind = SPAWN_LIMITS, in_.worker_id = 0);
    REFUSED("signal 19", 0, in_.kind = SPAWN_SIGNAL, in_.signal = SIGSTOP);
    REFUSED("kind 9", 0, in_.kind = 9);
    REFUSED("1 descriptors", 1, in_.kind = SPAWN_ASK);
}

static void test_env(void **state)
{
    (void)state;
    static const char *const yes[] = {"TZ=Europe/Berlin", "LC_ALL=C", "TITAN_X=", "NCCL_NET_PLUGIN=ofi",
                                      "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"};
    static const char *const no[] = {"",
                                     "=",
                                     "PATH",
                                     "LD_LIBRARY_PATH=/x",
                                     "HOME=/root",
                                     "1X=2",
                                     "NCCL X=",
                                     "TITAN_-=1",
                                     "BASH_ENV=/x",
                                     "PYTHONPATH=/x",
                                     "PATH=/bin",
                                     "GCONV_PATH=/x",
                                     "NCCL_NET_PLUGIN=/x.so",
                                     "TITAN_PLUGIN_DIR=./x",
                                     "CUDA_INJECTION64_PATH=/x.so",
                                     "NCCL_CONF_FILE=/x"};
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++)
        assert_true(spawn_env_allowed(yes[i]));
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        assert_false(spawn_env_allowed(no[i]));
}

static void test_policy(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct spawn_policy p = {.agent = 900, .uid_min = 1000, .memory = 1 << 30, .cpus = 4, .worker = "/bin/true"};
    struct spawn_request r = start_request();
    p.group = SPAWN_NO_GROUP;
    assert_int_equal(spawn_policy_check(&p, &r, &err), TITAN_OK);
    r.uid = 999;
    assert_int_equal(spawn_policy_check(&p, &r, &err), TITAN_EPERM);
    p.uid_min = 1;
    r.uid = 900;
    assert_int_equal(spawn_policy_check(&p, &r, &err), TITAN_EPERM);
    r.uid = 1001;
    r.memory = (1 << 30) + 1;
    assert_int_equal(spawn_policy_check(&p, &r, &err), TITAN_EINVAL);
    r.memory = 0;
    r.cpus = 4001;
    assert_int_equal(spawn_policy_check(&p, &r, &err), TITAN_EINVAL);
    r.cpus = 4000;
    (void)snprintf(p.worker, sizeof(p.worker), "/tmp");
    assert_int_equal(spawn_policy_check(&p, &r, &err), TITAN_EPERM);
    (void)snprintf(p.worker, sizeof(p.worker), "/nonexistent/titan-worker");
    assert_int_equal(spawn_policy_check(&p, &r, &err), TITAN_ENOTFOUND);
}

/* Descriptors that are too many are closed, and so are those of a packet that is too long. */
static void test_packets(void **state)
{
    (void)state;
    int pair[2], many[8];
    size_t len;
    struct spawn_fds fds;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(many))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(many)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(spawn_send(pair[0], "abc", 3, &(struct spawn_fds){2, {pair[0], pair[1]}}, NULL), TITAN_OK);
    assert_int_equal(spawn_receive(pair[1], data, sizeof(data), &len, &fds, NULL), TITAN_OK);
    assert_int_equal(len, 3);
    assert_int_equal(fds.n, 2);
    (void)close(fds.fd[0]);
    (void)close(fds.fd[1]);
    const int next = dup(0);
    (void)close(next);
    for (size_t i = 0; i < 8; i++)
        many[i] = pair[0];
    memcpy(CMSG_DATA(&control.header), many, sizeof(many));
    struct iovec iov = {(void *)"x", 1};
    const struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space)};
    assert_int_equal(sendmsg(pair[0], &m, 0), 1);
    assert_int_equal(spawn_receive(pair[1], data, sizeof(data), &len, &fds, NULL), TITAN_EINVAL);
    assert_int_equal(fds.n, 0);
    assert_int_equal(spawn_send(pair[0], "abcdef", 6, &(struct spawn_fds){1, {pair[0]}}, NULL), TITAN_OK);
    assert_int_equal(spawn_receive(pair[1], data, 3, &len, &fds, NULL), TITAN_EINVAL);
    const int same = dup(0);
    assert_int_equal(same, next);
    (void)close(same);
    (void)close(pair[0]);
    assert_int_equal(spawn_receive(pair[1], data, sizeof(data), &len, &fds, NULL), TITAN_EPEER);
    (void)close(pair[1]);
}

static void test_replies(void **state)
{
    (void)state;
    struct spawn_reply r = {.version = SPAWN_VERSION, .kind = SPAWN_END, .worker_id = 7, .state = SPAWN_ENDED};
    assert_int_equal(spawn_reply_check(&r, sizeof(r), 7, NULL), TITAN_OK);
    assert_int_equal(spawn_reply_check(&r, sizeof(r) - 1, 7, NULL), TITAN_ECORRUPT);
    assert_int_equal(spawn_reply_check(&r, sizeof(r), 8, NULL), TITAN_ECORRUPT);
    memset(r.text, 'x', sizeof(r.text));
    assert_int_equal(spawn_reply_check(&r, sizeof(r), 7, NULL), TITAN_ECORRUPT);
    r.text[0] = '\0';
    r.state = 4;
    assert_int_equal(spawn_reply_check(&r, sizeof(r), 7, NULL), TITAN_ECORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_cut),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_env),        cmocka_unit_test(test_policy), cmocka_unit_test(test_packets),
        cmocka_unit_test(test_replies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
