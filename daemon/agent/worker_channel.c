/* SPDX-License-Identifier: Apache-2.0 */
/* worker_channel.c - the agent's socket for its workers; see worker_channel.h. */
#include "daemon/agent/worker_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"

#define REGISTRATION_TIMEOUT_MS 5000
#define REGISTRATION_BYTES_MAX 4096
#define UNREGISTERED_MAX 64 /* connections that have not registered */

struct channel_link {
    struct channel *channel;
    struct channel_link *next, *prev;
    uv_poll_t poll;
    uv_timer_t registration_timer;
    int fd, open_handles;
    bool closing, busy; /* busy: a callback of this link is on the stack */
    void *owner;        /* NULL until registration was accepted */
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
    struct channel_link *links;
    bool closing, listener_closed;
    void (*done)(void *);
    void *done_data;
};

static void channel_finish(struct channel *c)
{
    if (!c->closing || !c->listener_closed || c->links)
        return;
    titan_assert(c->unregistered == 0);
    void (*done)(void *) = c->done;
    void *data = c->done_data;
    free(c->path);
    free(c);
    if (done)
        done(data);
}

static void link_freed(uv_handle_t *handle)
{
    struct channel_link *link = handle->data;
    if (--link->open_handles > 0)
        return;
    struct channel *c = link->channel;
    *(link->prev ? &link->prev->next : &c->links) = link->next;
    if (link->next)
        link->next->prev = link->prev;
    (void)close(link->fd);
    frame_reader_clear(&link->in);
    frame_writer_clear(&link->out);
    free(link);
    channel_finish(c);
}

void channel_drop(struct channel_link *link)
{
    if (!link || link->closing)
        return;
    link->closing = true;
    titan_assert(link->open_handles == 2);
    if (!link->owner)
        link->channel->unregistered--;
    titan_assert(link->channel->unregistered >= 0);
    link->owner = NULL;
    (void)uv_poll_stop(&link->poll);
    uv_close((uv_handle_t *)&link->poll, link_freed);
    uv_close((uv_handle_t *)&link->registration_timer, link_freed);
}

/* The connection is over: tell the owner, once. */
static void link_lost(struct channel_link *link, const struct titan_error *why)
{
    if (link->closing)
        return;
    struct channel *c = link->channel;
    void *owner = link->owner;
    if (why && why->status != TITAN_OK && why->status != TITAN_EPEER)
        tlog_warn(&c->log, "worker connection closed", "reason=\"%s\"", why->msg);
    channel_drop(link);
    if (owner)
        c->events.on_close(owner, c->data);
}

static void link_greet(struct channel_link *link, const Titan__Internal__WorkerToAgent *message,
                       struct titan_error *err)
{
    struct channel *c = link->channel;
    titan_assert(!link->owner && !link->closing);
    if (message->kind_case != TITAN__INTERNAL__WORKER_TO_AGENT__KIND_REGISTRATION) {
        (void)titan_fail(err, TITAN_EPERM, "first message is not a registration");
        return;
    }
    void *owner = c->events.on_registration(link, message->registration, c->data, err);
    if (!owner)
        return;
    if (link->closing) { /* lost while it was being greeted */
        c->events.on_close(owner, c->data);
        return;
    }
    c->unregistered--;
    titan_assert(c->unregistered >= 0);
    link->owner = owner;
    (void)uv_timer_stop(&link->registration_timer);
}

/* Read all that the socket holds, and hand out every whole message. */
static void link_read(struct channel_link *link)
{
    struct channel *c = link->channel;
    struct titan_error err = {0};
    const uint8_t *data;
    size_t len;
    int fd;
    titan_assert(!link->busy);
    link->busy = true;
    while (!link->closing && err.status == TITAN_OK && frame_receive(&link->in, link->fd, &err) == TITAN_OK)
        while (!link->closing && err.status == TITAN_OK &&
               frame_next(&link->in, link->owner ? FRAME_MAX : REGISTRATION_BYTES_MAX, &data, &len, &fd, &err) ==
                   TITAN_OK) {
            if (fd >= 0)
                (void)close(fd); /* workers send none */
            Titan__Internal__WorkerToAgent *message = titan__internal__worker_to_agent__unpack(NULL, len, data);
            if (!message)
                (void)titan_fail(&err, TITAN_ECORRUPT, "%zu bytes that are no message", len);
            else if (!link->owner)
                link_greet(link, message, &err);
            else if (message->kind_case != TITAN__INTERNAL__WORKER_TO_AGENT__KIND_REGISTRATION)
                c->events.on_message(link->owner, message, c->events.message_data);
            if (message)
                titan__internal__worker_to_agent__free_unpacked(message, NULL);
        }
    link->busy = false;
    if (err.status != TITAN_OK)
        link_lost(link, &err);
}

static void on_link(uv_poll_t *handle, int status, int events);

static void link_flush(struct channel_link *link)
{
    struct titan_error err = {0};
    titan_status status = frame_flush(&link->out, link->fd, &err);
    if (status == TITAN_OK || status == TITAN_EAGAIN)
        (void)uv_poll_start(&link->poll, UV_READABLE | (status == TITAN_EAGAIN ? UV_WRITABLE : 0), on_link);
    /* A broken pipe shows on the reading side too, with whatever the worker said last. */
}

static void on_link(uv_poll_t *handle, int status, int events)
{
    struct channel_link *link = handle->data;
    if (status < 0 || events & (UV_READABLE | UV_DISCONNECT))
        link_read(link);
    if (!link->closing && events & UV_WRITABLE)
        link_flush(link);
}

static void on_registration_timeout(uv_timer_t *timer)
{
    struct titan_error err;
    (void)titan_fail(&err, TITAN_ETIMEDOUT, "no registration within %d ms", REGISTRATION_TIMEOUT_MS);
    link_lost(timer->data, &err);
}

/* Only the agent's own user and root may speak here; the token then says which worker it is. */
static bool peer_allowed(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && (peer.uid == geteuid() || peer.uid == 0);
}

static void link_accept(struct channel *c, int fd)
{
    struct channel_link *link = calloc(1, sizeof(*link));
    if (!link || c->unregistered >= UNREGISTERED_MAX || !peer_allowed(fd) ||
        uv_poll_init(c->loop, &link->poll, fd) != 0) {
        tlog_warn(&c->log, "worker connection refused", "unregistered=%d", c->unregistered);
        free(link);
        (void)close(fd);
        return;
    }
    link->channel = c;
    link->fd = fd;
    link->open_handles = 2;
    (void)uv_timer_init(c->loop, &link->registration_timer);
    link->poll.data = link->registration_timer.data = link;
    link->next = c->links;
    if (c->links)
        c->links->prev = link;
    c->links = link;
    c->unregistered++;
    (void)uv_timer_start(&link->registration_timer, on_registration_timeout, REGISTRATION_TIMEOUT_MS, 0);
    (void)uv_poll_start(&link->poll, UV_READABLE, on_link);
}

static void on_listener(uv_poll_t *handle, int status, int events)
{
    struct channel *c = handle->data;
    (void)events;
    for (int i = 0; status == 0 && i < 64; i++) {
        int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        link_accept(c, fd);
    }
}

titan_status channel_open(uv_loop_t *loop, const char *path, const struct channel_events *events, void *data,
                          struct channel **ret, struct titan_error *err)
{
    _cleanup_fd_ int fd = -1;
    TRY(frame_listen(path, &fd, err));
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
    for (struct channel_link *link = c->links; link; link = link->next)
        channel_drop(link);
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

void channel_send(struct channel_link *link, const Titan__Internal__AgentToWorker *message, int fd)
{
    if (link->closing)
        return;
    struct titan_error err = {0};
    if (channel_pack(&link->out, message, fd, &err) != TITAN_OK) {
        link_lost(link, &err);
        return;
    }
    link_flush(link);
}

void channel_send_queue(struct channel_link *link, struct frame_writer *queue)
{
    if (link->closing)
        return;
    frame_move(&link->out, queue);
    link_flush(link);
}

void channel_drain(struct channel_link *link)
{
    if (!link->busy && !link->closing)
        link_read(link);
}
