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

#define START_MS 60000 /* how long a start waits for a name service or file server; the file pool gives up earlier */

/* A request, and the reply that it waits for. */
struct call {
    const char *path;
    int wait_ms;
    const struct spawn_request *request;
    struct spawn_fds fds; /* descriptors of the request */
    struct spawn_reply reply;
    int fd; /* the descriptor in the reply; -1 = none */
};

static titan_status exchange(struct call *k, struct titan_error *err)
{
    const struct timeval wait = {.tv_sec = k->wait_ms / 1000, .tv_usec = k->wait_ms % 1000 * 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _cleanup_free_ char *data = malloc(SPAWN_FRAME_MAX);
    size_t len = data ? spawn_request_pack(k->request, data, SPAWN_FRAME_MAX) : 0;
    k->fd = -1;
    if (!len)
        return titan_fail(err, TITAN_ELIMIT, "a request to titan-spawnd of more than %d bytes", SPAWN_FRAME_MAX);
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (snprintf(address.sun_path, sizeof(address.sun_path), "%s", k->path) >= (int)sizeof(address.sun_path))
        return titan_fail(err, TITAN_EINVAL, "agent.spawnd '%s' is too long a path", k->path);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) != 0)
        return titan_fail_errno(err, "cannot make a socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)titan_fail(err, TITAN_EAGAIN, "titan-spawnd does not answer at '%s': %s", k->path, strerror(errno));
        titan_error_hint(err, "systemctl status titan-spawnd");
        return TITAN_EAGAIN;
    }

    struct spawn_fds got;
    struct spawn_reply *reply = &k->reply;
    TRY(spawn_send(fd, data, len, &k->fds, err));
    TRY(spawn_receive(fd, reply, sizeof(*reply), &len, &got, err));
    titan_status status = spawn_reply_check(reply, len, k->request->worker_id, err);
    if (status == TITAN_OK && reply->kind == SPAWN_REFUSED)
        status =
            titan_fail(err, reply->code < TITAN_OK && reply->code >= TITAN_EBUG ? (titan_status)reply->code : TITAN_EIO,
                       "titan-spawnd refuses: %s", reply->text);
    if (status == TITAN_OK && got.n == 1)
        k->fd = got.fd[--got.n];
    while (got.n > 0)
        (void)close(got.fd[--got.n]);
    return status;
}

titan_status spawn_client_start(const char *socket, const struct spawn_request *request, const struct spawn_fds *fds,
                                pid_t *ret_pid, int *ret_pidfd, struct titan_error *err)
{
    struct call k = {.path = socket, .wait_ms = START_MS, .request = request, .fds = *fds};
    titan_assert(request->kind == SPAWN_START);
    TRY(exchange(&k, err));
    if (k.reply.kind != SPAWN_STARTED || k.reply.pid <= 1 || k.fd < 0) {
        if (k.fd >= 0)
            (void)close(k.fd);
        return titan_fail(err, TITAN_ECORRUPT, "titan-spawnd answers a start with a frame of kind %u", k.reply.kind);
    }
    *ret_pid = k.reply.pid;
    *ret_pidfd = k.fd;
    return TITAN_OK;
}

static titan_status ask(const char *socket, int wait_ms, const struct spawn_request *request, struct spawn_reply *ret,
                        struct titan_error *err)
{
    struct call k = {.path = socket, .wait_ms = wait_ms, .request = request};
    TRY(exchange(&k, err));
    if (k.fd >= 0)
        (void)close(k.fd);
    *ret = k.reply;
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
