/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_client.c - see spawn_client.h. */
#include "daemon/agent/shell/spawn_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"

#define START_MS 60000 /* for a name service or a file server; the file pool gives up earlier */

static titan_status spawn_connect(const char *path, int wait_ms, int *ret, struct titan_error *err)
{
    const struct timeval wait = {.tv_sec = wait_ms / 1000, .tv_usec = wait_ms % 1000 * 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (snprintf(address.sun_path, sizeof(address.sun_path), "%s", path) >= (int)sizeof(address.sun_path))
        return titan_fail(err, TITAN_EINVAL, "agent.spawnd '%s' is too long a path", path);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) != 0)
        return titan_fail_errno(err, "cannot make a socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)titan_fail(err, TITAN_EAGAIN, "titan-spawnd does not answer at '%s': %s", path, strerror(errno));
        titan_error_hint(err, "systemctl status titan-spawnd");
        return TITAN_EAGAIN;
    }
    *ret = TAKE_FD(fd);
    return TITAN_OK;
}

/* *ret_fd: the descriptor in the reply; -1 = none. */
static titan_status exchange(const char *path, int wait_ms, const struct spawn_request *request, const int *fds,
                             size_t n_fds, struct spawn_reply *ret, int *ret_fd, struct titan_error *err)
{
    _cleanup_free_ char *data = malloc(SPAWN_FRAME_MAX);
    _cleanup_fd_ int socket = -1;
    int got[SPAWN_FDS];
    size_t n_got = 0, len = data ? spawn_request_pack(request, data, SPAWN_FRAME_MAX) : 0;
    if (!len)
        return titan_fail(err, TITAN_ELIMIT, "a request to titan-spawnd of more than %d bytes", SPAWN_FRAME_MAX);
    TRY(spawn_connect(path, wait_ms, &socket, err));
    TRY(spawn_send(socket, data, len, fds, n_fds, err));
    TRY(spawn_receive(socket, ret, sizeof(*ret), &len, got, &n_got, err));
    titan_status status = spawn_reply_check(ret, len, request->worker_id, err);
    *ret_fd = status == TITAN_OK && n_got == 1 ? got[--n_got] : -1;
    while (n_got > 0)
        (void)close(got[--n_got]);
    if (status == TITAN_OK && ret->kind == SPAWN_REFUSED)
        status = titan_fail(err, ret->code < TITAN_OK && ret->code >= TITAN_EBUG ? (titan_status)ret->code : TITAN_EIO,
                            "titan-spawnd refuses: %s", ret->text);
    if (status != TITAN_OK && *ret_fd >= 0)
        (void)close(TAKE_FD(*ret_fd));
    return status;
}

titan_status spawn_client_start(const char *socket, const struct spawn_request *request, const int *fds, size_t n_fds,
                                pid_t *ret_pid, int *ret_pidfd, struct titan_error *err)
{
    struct spawn_reply reply;
    int fd = -1;
    titan_assert(request->kind == SPAWN_START);
    TRY(exchange(socket, START_MS, request, fds, n_fds, &reply, &fd, err));
    if (reply.kind != SPAWN_STARTED || reply.pid <= 1 || fd < 0) {
        if (fd >= 0)
            (void)close(fd);
        return titan_fail(err, TITAN_ECORRUPT, "titan-spawnd answers a start with a frame of kind %u", reply.kind);
    }
    *ret_pid = reply.pid;
    *ret_pidfd = fd;
    return TITAN_OK;
}

static titan_status ask(const char *socket, int wait_ms, const struct spawn_request *request, struct spawn_reply *ret,
                        struct titan_error *err)
{
    int fd = -1;
    TRY(exchange(socket, wait_ms, request, NULL, 0, ret, &fd, err));
    if (fd >= 0)
        (void)close(fd);
    return TITAN_OK;
}

titan_status spawn_client_signal(const char *socket, uint64_t worker_id, int signal, struct titan_error *err)
{
    struct spawn_reply reply;
    return ask(socket, SPAWN_LOOP_MS,
               &(struct spawn_request){.kind = SPAWN_SIGNAL, .worker_id = worker_id, .signal = signal}, &reply, err);
}

titan_status spawn_client_ask(const char *socket, int wait_ms, uint64_t worker_id, bool forget, struct spawn_reply *ret,
                              struct titan_error *err)
{
    TRY(ask(socket, wait_ms, &(struct spawn_request){.kind = SPAWN_ASK, .worker_id = worker_id, .forget = forget}, ret,
            err));
    if (ret->kind != SPAWN_END)
        return titan_fail(err, TITAN_ECORRUPT, "titan-spawnd answers with a frame of kind %u", ret->kind);
    return TITAN_OK;
}

titan_status spawn_client_holds(const char *socket, struct cgroup_holds *ret, char why[SPAWN_TEXT],
                                struct titan_error *err)
{
    struct spawn_reply reply;
    TRY(ask(socket, SPAWN_WAIT_MS, &(struct spawn_request){.kind = SPAWN_LIMITS}, &reply, err));
    if (reply.kind != SPAWN_HELD)
        return titan_fail(err, TITAN_ECORRUPT, "titan-spawnd answers with a frame of kind %u", reply.kind);
    *ret = (struct cgroup_holds){.memory = reply.held & SPAWN_HELD_MEMORY, .cpus = reply.held & SPAWN_HELD_CPUS};
    (void)snprintf(why, SPAWN_TEXT, "%.*s", SPAWN_TEXT - 1, reply.text);
    return TITAN_OK;
}
