/* SPDX-License-Identifier: Apache-2.0 */
/* reach.c - see reach.h. */
#include "daemon/agent/shell/reach.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/listen.h"

#define BACKLOG 64
#define CONNECTIONS_MAX 64 /* most connections that one listener answers */
#define TARGETS_MAX 64
#define AGAIN_MS 200

/* --- the side that listens ---------------------------------------------------------------------------------------- */

titan_status reach_listen(const char *host, const struct listen_ports *ports, int *ret_fd, uint16_t *ret_port,
                          struct titan_error *err)
{
    /* Listens as a worker does (worker/elastic/agent_connection.c). */
    if (listen_tcp(host, ports, BACKLOG, ret_fd, ret_port, err) == TITAN_OK)
        return TITAN_OK;
    return listen_tcp("0.0.0.0", ports, BACKLOG, ret_fd, ret_port, err);
}

struct reach_listener {
    uv_loop_t *loop;
    uv_tcp_t socket;
    uv_timer_t timer;
    uint8_t token[REACH_TOKEN_BYTES];
    int left, handles; /* left: connections still to be answered; handles: to be closed */
    bool ending;
    void (*closed)(struct reach_listener *l, void *data);
    void *data;
};

static void on_closed(uv_handle_t *handle)
{
    struct reach_listener *l = handle->data;
    if (handle != (uv_handle_t *)&l->socket && handle != (uv_handle_t *)&l->timer)
        free(handle);
    titan_assert(l->handles > 0);
    if (--l->handles > 0)
        return;
    void (*closed)(struct reach_listener *, void *) = l->closed;
    void *data = l->data;
    closed(l, data);
    free(l);
}

void reach_end(struct reach_listener *l)
{
    if (l->ending)
        return;
    l->ending = true;
    uv_close((uv_handle_t *)&l->socket, on_closed);
    uv_close((uv_handle_t *)&l->timer, on_closed);
}

static void on_timer(uv_timer_t *timer)
{
    reach_end(timer->data);
}

/* The token fits into the buffer of a new connection. So the kernel still sends it after the close. */
static void on_connection(uv_stream_t *socket, int status)
{
    struct reach_listener *l = socket->data;
    uv_tcp_t *connection = status == 0 && !l->ending ? calloc(1, sizeof(*connection)) : NULL;
    const uv_buf_t token = uv_buf_init((char *)l->token, sizeof(l->token));
    if (!connection)
        return;
    if (uv_tcp_init(l->loop, connection) != 0) {
        free(connection);
        return;
    }
    connection->data = l;
    l->handles++;
    if (uv_accept(socket, (uv_stream_t *)connection) == 0)
        (void)uv_try_write((uv_stream_t *)connection, &token, 1);
    uv_close((uv_handle_t *)connection, on_closed);
    if (--l->left == 0)
        reach_end(l);
}

struct reach_listener *reach_serve(uv_loop_t *loop, int fd, const uint8_t token[REACH_TOKEN_BYTES], uint32_t for_ms,
                                   void (*closed)(struct reach_listener *l, void *data), void *data)
{
    struct reach_listener *l = calloc(1, sizeof(*l));
    if (!l) {
        (void)close(fd);
        return NULL;
    }
    l->loop = loop;
    l->closed = closed;
    l->data = data;
    l->left = CONNECTIONS_MAX;
    l->handles = 2;
    memcpy(l->token, token, sizeof(l->token));
    (void)uv_tcp_init(loop, &l->socket);
    (void)uv_timer_init(loop, &l->timer);
    l->socket.data = l->timer.data = l;
    if (uv_tcp_open(&l->socket, fd) != 0)
        (void)close(fd);
    else if (uv_listen((uv_stream_t *)&l->socket, BACKLOG, on_connection) == 0)
        (void)uv_timer_start(&l->timer, on_timer, for_ms, 0);
    if (!uv_is_active((uv_handle_t *)&l->timer))
        reach_end(l);
    return l;
}

/* --- the side that connects --------------------------------------------------------------------------------------- */

static void close_target(struct reach_target *t, const char *problem, bool again)
{
    if (t->fd >= 0)
        (void)close(t->fd);
    t->fd = -1;
    t->again_ms = again ? clock_mono_ms() + AGAIN_MS : 0;
    (void)snprintf(t->problem, sizeof(t->problem), "%s", problem);
}

static void begin(struct reach_target *t)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    char host[sizeof(t->address)];
    const char *colon = strrchr(t->address, ':');
    t->fd = -1;
    t->got = 0;
    if (!colon) {
        close_target(t, "no HOST:PORT", false);
        return;
    }
    const bool bracket = t->address[0] == '[' && colon[-1] == ']';
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - t->address) - (bracket ? 2 : 0), t->address + bracket);
    const int rc = getaddrinfo(host, colon + 1, &hints, &list);
    if (rc != 0) {
        close_target(t, gai_strerror(rc), false);
        return;
    }
    t->fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (t->fd < 0 || (connect(t->fd, list->ai_addr, list->ai_addrlen) != 0 && errno != EINPROGRESS))
        close_target(t, strerror(errno), true);
    freeaddrinfo(list);
}

void reach_try(struct reach_target *targets, size_t n, int timeout_ms)
{
    struct pollfd polls[TARGETS_MAX];
    const int64_t until = clock_mono_ms() + timeout_ms;
    titan_assert(n <= TARGETS_MAX);
    for (size_t i = 0; i < n; i++)
        begin(&targets[i]);
    for (int64_t now; (now = clock_mono_ms()) < until;) {
        int64_t wake = 0; /* 0 = no connection is open */
        for (size_t i = 0; i < n; i++) {
            struct reach_target *t = &targets[i];
            if (t->again_ms && now >= t->again_ms) {
                t->again_ms = 0;
                begin(t);
            }
            polls[i] = (struct pollfd){.fd = t->fd, .events = POLLIN}; /* poll ignores -1 */
            if (t->fd >= 0 || t->again_ms)
                wake = MIN(wake ? wake : until, t->again_ms ? t->again_ms : until);
        }
        if (!wake)
            break;
        if (poll(polls, n, (int)MAX(wake - now, INT64_C(1))) <= 0)
            continue;
        for (size_t i = 0; i < n; i++) {
            struct reach_target *t = &targets[i];
            if (t->fd < 0 || !polls[i].revents)
                continue;
            /* Data arrived, or the connection failed. */
            const ssize_t got = recv(t->fd, t->received + t->got, sizeof(t->received) - t->got, 0);
            t->got += got > 0 ? (size_t)got : 0;
            titan_assert(t->got <= sizeof(t->received));
            if (got < 0 && errno != EAGAIN && errno != EINTR)
                close_target(t, strerror(errno), true);
            else if (t->got == sizeof(t->received))
                close_target(t,
                             memcmp(t->received, t->token, sizeof(t->token)) ? "another machine has that address" : "",
                             false);
            else if (got == 0)
                close_target(t, "another machine or program has that address", false);
        }
    }
    for (size_t i = 0; i < n; i++) {
        char before[sizeof(targets[i].problem)]; /* problem of the previous try */
        memcpy(before, targets[i].problem, sizeof(before));
        if (targets[i].fd >= 0)
            close_target(&targets[i], before[0] ? before : "no answer", false);
    }
}
