/* SPDX-License-Identifier: Apache-2.0 */
/* worker_channel.c - the agent's socket for its workers; see worker_channel.h. */
#include "daemon/agent/shell/worker_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/slowest.h"

#define REGISTRATION_TIMEOUT_MS 5000
#define REGISTRATION_BYTES_MAX 4096
#define UNREGISTERED_MAX 64 /* connections without a registration */

struct channel_connection {
    struct channel *channel;
    struct channel_connection *next, *prev;
    uv_poll_t poll;
    uv_timer_t registration_timer;
    int fd, open_handles;
    bool closing, busy; /* busy: a callback of this connection is on the stack */
    void *owner;        /* NULL until the registration is accepted */
    struct frame_reader in;
    struct frame_writer out;
};

struct channel {
    uv_loop_t *loop;
    struct channel_events events;
    void *data;
    struct log log;
    uv_poll_t listener;
    int fd, unregistered;
    char *path;
    struct channel_connection *connections;
    bool closing, listener_closed;
    void (*done)(void *);
    void *done_data;
};

static void channel_finish(struct channel *c)
{
    if (!c->closing || !c->listener_closed || c->connections)
        return;
    titan_assert(c->unregistered == 0);
    void (*done)(void *) = c->done;
    void *data = c->done_data;
    free(c->path);
    free(c);
    if (done)
        done(data);
}

static void connection_freed(uv_handle_t *handle)
{
    struct channel_connection *connection = handle->data;
    if (--connection->open_handles > 0)
        return;
    struct channel *c = connection->channel;
    *(connection->prev ? &connection->prev->next : &c->connections) = connection->next;
    if (connection->next)
        connection->next->prev = connection->prev;
    (void)close(connection->fd);
    frame_reader_clear(&connection->in);
    frame_writer_clear(&connection->out);
    free(connection);
    channel_finish(c);
}

void channel_drop(struct channel_connection *connection)
{
    if (!connection || connection->closing)
        return;
    connection->closing = true;
    titan_assert(connection->open_handles == 2);
    if (!connection->owner)
        connection->channel->unregistered--;
    titan_assert(connection->channel->unregistered >= 0);
    connection->owner = NULL;
    (void)uv_poll_stop(&connection->poll);
    uv_close((uv_handle_t *)&connection->poll, connection_freed);
    uv_close((uv_handle_t *)&connection->registration_timer, connection_freed);
}

/* The connection ended: notifies the owner, once. */
static void connection_lost(struct channel_connection *connection, const struct titan_error *why)
{
    if (connection->closing)
        return;
    struct channel *c = connection->channel;
    void *owner = connection->owner;
    if (why && why->status != TITAN_OK && why->status != TITAN_EPEER)
        tlog_warn(&c->log, "worker connection closed", "reason=\"%s\"", why->msg);
    channel_drop(connection);
    if (owner)
        c->events.on_close(owner, c->data);
}

/* Reads all that the socket holds, and delivers every complete message. */
static void connection_read(struct channel_connection *connection)
{
    struct channel *c = connection->channel;
    struct titan_error err = {0};
    const uint8_t *data;
    size_t len;
    int fd;
    titan_assert(!connection->busy);
    connection->busy = true;
    while (!connection->closing && err.status == TITAN_OK &&
           frame_receive(&connection->in, connection->fd, &err) == TITAN_OK)
        while (!connection->closing && err.status == TITAN_OK &&
               frame_next(&connection->in, connection->owner ? FRAME_MAX : REGISTRATION_BYTES_MAX, &data, &len, &fd,
                          &err) == TITAN_OK) {
            if (fd >= 0)
                (void)close(fd); /* workers send no descriptors */
            Titan__Internal__WorkerToAgent *message = titan__internal__worker_to_agent__unpack(NULL, len, data);
            const bool registers = message && message->kind_case == TITAN__INTERNAL__WORKER_TO_AGENT__KIND_REGISTRATION;
            void *owner = NULL;
            if (!message) {
                (void)titan_fail(&err, TITAN_ECORRUPT, "%zu bytes that are no message", len);
            } else if (connection->owner) {
                if (!registers)
                    c->events.on_message(connection->owner, message, c->events.message_data);
            } else if (!registers) {
                (void)titan_fail(&err, TITAN_EPERM, "first message is not a registration");
            } else if ((owner = c->events.on_registration(connection, message->registration, c->data, &err)) &&
                       connection->closing) { /* the connection was lost during its greeting */
                c->events.on_close(owner, c->data);
            } else if (owner) {
                c->unregistered--;
                titan_assert(c->unregistered >= 0);
                connection->owner = owner;
                (void)uv_timer_stop(&connection->registration_timer);
            }
            if (message)
                titan__internal__worker_to_agent__free_unpacked(message, NULL);
        }
    connection->busy = false;
    if (err.status != TITAN_OK)
        connection_lost(connection, &err);
}

static void on_connection_ready(uv_poll_t *handle, int status, int events);

static void connection_flush(struct channel_connection *connection)
{
    struct titan_error err = {0};
    titan_status status = frame_flush(&connection->out, connection->fd, &err);
    if (status == TITAN_OK || status == TITAN_EAGAIN)
        (void)uv_poll_start(&connection->poll, UV_READABLE | (status == TITAN_EAGAIN ? UV_WRITABLE : 0),
                            on_connection_ready);
    /* A broken pipe is left to the reading side, which sees it too, but only after the worker's last messages. */
}

static void on_connection_ready(uv_poll_t *handle, int status, int events)
{
    HANDLER("worker.message");
    struct channel_connection *connection = handle->data;
    if (status < 0 || events & (UV_READABLE | UV_DISCONNECT))
        connection_read(connection);
    if (!connection->closing && events & UV_WRITABLE)
        connection_flush(connection);
}

static void on_registration_timeout(uv_timer_t *timer)
{
    struct titan_error err;
    (void)titan_fail(&err, TITAN_ETIMEDOUT, "no registration within %d ms", REGISTRATION_TIMEOUT_MS);
    connection_lost(timer->data, &err);
}

static bool own_user(const struct ucred *peer)
{
    return peer->uid == geteuid() || peer->uid == 0;
}

static bool peer_of(int fd, struct ucred *ret)
{
    socklen_t len = sizeof(*ret);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret, &len) == 0;
}

bool channel_speaks_for(const struct channel_connection *connection, pid_t pid)
{
    struct ucred peer;
    return peer_of(connection->fd, &peer) && (own_user(&peer) || peer.pid == pid);
}

static void on_listener(uv_poll_t *handle, int status, int events)
{
    struct channel *c = handle->data;
    (void)events;
    for (int i = 0; status == 0 && i < 64; i++) {
        int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        /* If workers run as the agent's user, only this user and root may connect. Otherwise all users may. The token
         * then identifies the worker; for a process of another user, the process is checked too. */
        struct ucred peer;
        const bool allowed = peer_of(fd, &peer) && (c->events.any_user || own_user(&peer));
        struct channel_connection *connection =
            allowed && c->unregistered < UNREGISTERED_MAX ? calloc(1, sizeof(*connection)) : NULL;
        if (!connection || uv_poll_init(c->loop, &connection->poll, fd) != 0) {
            tlog_warn(&c->log, "worker connection refused", "unregistered=%d", c->unregistered);
            free(connection);
            (void)close(fd);
            continue;
        }

        connection->channel = c;
        connection->fd = fd;
        connection->open_handles = 2;
        (void)uv_timer_init(c->loop, &connection->registration_timer);
        connection->poll.data = connection->registration_timer.data = connection;
        connection->next = c->connections;
        if (c->connections)
            c->connections->prev = connection;
        c->connections = connection;
        c->unregistered++;
        (void)uv_timer_start(&connection->registration_timer, on_registration_timeout, REGISTRATION_TIMEOUT_MS, 0);
        (void)uv_poll_start(&connection->poll, UV_READABLE, on_connection_ready);
    }
}

titan_status channel_open(uv_loop_t *loop, const char *path, const struct channel_events *events, void *data,
                          struct channel **ret, struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    TRY(frame_listen(path, &fd, err));
    if (events->any_user && chmod(path, 0666) != 0)
        return titan_fail_errno(err, "cannot open '%s' to workers of other users", path);
    struct channel *c = calloc(1, sizeof(*c));
    char *copy = strdup(path);
    if (!c || !copy || uv_poll_init(loop, &c->listener, fd) != 0) {
        free(c);
        free(copy);
        return titan_fail(err, TITAN_ENOMEM, "no memory to listen on '%s'", path);
    }
    c->loop = loop;
    c->events = *events;
    c->data = data;
    c->fd = TAKE_FD(fd);
    c->path = copy;
    c->listener.data = c;
    log_init(&c->log, "agent", "socket=\"%s\"", path);
    (void)uv_poll_start(&c->listener, UV_READABLE, on_listener);
    *ret = c;
    return TITAN_OK;
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct channel *c = handle->data;
    (void)close(c->fd);
    c->listener_closed = true;
    channel_finish(c);
}

void channel_close(struct channel *c, void (*done)(void *), void *data)
{
    if (!c) {
        if (done)
            done(data);
        return;
    }
    titan_assert(!c->closing);
    c->closing = true;
    c->done = done;
    c->done_data = data;
    (void)unlink(c->path);
    for (struct channel_connection *connection = c->connections; connection; connection = connection->next)
        channel_drop(connection);
    (void)uv_poll_stop(&c->listener);
    uv_close((uv_handle_t *)&c->listener, on_listener_closed);
}

titan_status channel_pack(struct frame_writer *queue, const Titan__Internal__AgentToWorker *message, int fd,
                          struct titan_error *err)
{
    size_t len = titan__internal__agent_to_worker__get_packed_size(message);
    if (len > FRAME_MAX)
        return titan_fail(err, TITAN_ELIMIT, "message of %zu bytes to a worker, at most %u are allowed", len,
                          FRAME_MAX);
    _cleanup_free_ uint8_t *bytes = malloc(len ? len : 1);
    if (!bytes)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a message of %zu bytes", len);
    (void)titan__internal__agent_to_worker__pack(message, bytes);
    return frame_put(queue, bytes, len, fd, err);
}

void channel_send(struct channel_connection *connection, const Titan__Internal__AgentToWorker *message, int fd)
{
    if (connection->closing)
        return;
    struct titan_error err = {0};
    if (channel_pack(&connection->out, message, fd, &err) != TITAN_OK) {
        connection_lost(connection, &err);
        return;
    }
    connection_flush(connection);
}

void channel_send_queue(struct channel_connection *connection, struct frame_writer *queue)
{
    if (connection->closing)
        return;
    frame_move(&connection->out, queue);
    connection_flush(connection);
}

void channel_drain(struct channel_connection *connection)
{
    if (!connection->busy && !connection->closing)
        connection_read(connection);
}
