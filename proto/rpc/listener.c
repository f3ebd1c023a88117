/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/slowest.h"
#include "proto/rpc/targets.h"

enum {
    BACKLOG = 4096,
    ACCEPTS = 64, /* connections accepted per turn of the loop */
};

struct rpc_listener {
    struct rpc_listener *next;
    struct rpc_listeners *all;
    int fd;
    enum rpc_listener_kind kind;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* "" = none */
    bool owned; /* false: the service manager's socket, which stays open at exit */
    bool polled;
    uv_poll_t poll;
};

/* Takes ownership of fd on success. */
static titan_status add(struct rpc_listeners *all, int fd, enum rpc_listener_kind kind, const char *path, bool owned,
                        struct titan_error *err)
{
    struct rpc_listener *l = calloc(1, sizeof(*l));
    if (!l)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a listener");
    *l = (struct rpc_listener){.next = all->first, .all = all, .fd = fd, .kind = kind, .owned = owned};
    (void)snprintf(l->path, sizeof(l->path), "%s", path);
    all->first = l;
    return TITAN_OK;
}

/* Replaces the file only if it is a socket on which no process listens. */
static titan_status listen_local(struct rpc_listeners *all, const char *path, mode_t mode, struct titan_error *err)
{
    struct stat st;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    _cleanup_fd_ int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || probe < 0 || (lstat(path, &st) != 0 && errno != ENOENT))
        return titan_fail_errno(err, "socket %s", path);
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode))
            return titan_fail(err, TITAN_EEXIST, "%s is there already and is not a socket", path);
        if (connect(probe, (struct sockaddr *)&address, sizeof(address)) == 0 ||
            (errno != ECONNREFUSED && errno != ENOENT))
            return titan_fail(err, TITAN_EEXIST, "socket %s is in use by another process", path);
        (void)unlink(path);
    }

    /* No client can connect before listen(); by then the file has its mode, under any umask. */
    titan_status status = TITAN_OK;
    const bool bound = bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    if (!bound || chmod(path, mode) != 0 || listen(fd, BACKLOG) != 0)
        status = titan_fail_errno(err, "cannot listen on unix:%s", path);
    if (status == TITAN_OK)
        status = add(all, fd, RPC_LISTENER_LOCAL, path, true, err);
    if (status == TITAN_OK)
        (void)TAKE_FD(fd);
    else if (bound)
        (void)unlink(path);
    return status;
}

static uint16_t *port_of(struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
                                          : &((struct sockaddr_in *)address)->sin_port;
}

/* text is for messages; *port: 0 = any; gets the chosen port. A connection inherits its listener's options. */
static titan_status listen_at(struct rpc_listeners *all, const struct addrinfo *at, enum rpc_listener_kind kind,
                              const char *text, in_port_t *port, struct titan_error *err)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof(address);
    int on = 1, off = 0;
    unsigned dead_ms = RPC_DEAD_MS;
    _cleanup_fd_ int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return titan_fail_errno(err, "cannot listen on %s", text);
    memcpy(&address, at->ai_addr, at->ai_addrlen);
    *port_of(&address) = *port;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof(dead_ms));
    if (bind(fd, (struct sockaddr *)&address, at->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        if (errno == EADDRINUSE)
            return titan_fail(err, TITAN_EEXIST, "address %s is in use by another process", text);
        if (errno == EADDRNOTAVAIL)
            return titan_fail(err, TITAN_EINVAL, "cannot listen on %s: not an address of this machine", text);
        return titan_fail_errno(err, "cannot listen on %s", text);
    }
    if (getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return titan_fail_errno(err, "cannot listen on %s", text);
    TRY(add(all, fd, kind, "", true, err));
    *port = *port_of(&address);
    (void)TAKE_FD(fd);
    return TITAN_OK;
}

titan_status rpc_listeners_add(struct rpc_listeners *all, const char *address, bool tls, mode_t socket_mode,
                               int *ret_port, struct titan_error *err)
{
    TRY(rpc_target_check(address, err));
    if (ret_port)
        *ret_port = 0;
    if (strncmp(address, "unix:", 5) == 0)
        return listen_local(all, address + 5, socket_mode, err);
    const char *colon = strrchr(address, ':');
    const bool brackets = address[0] == '[' && colon[-1] == ']';
    char host[256];
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - address) - 2 * brackets, address + brackets);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    const int rc = getaddrinfo(host, colon + 1, &hints, &found);
    if (rc != 0)
        return titan_fail(err, TITAN_EINVAL, "cannot listen on %s: %s", address, gai_strerror(rc));

    /* Listens on each address of the name that this machine has, all with one port. */
    in_port_t port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    titan_status last = TITAN_OK;
    bool listening = false;
    for (const struct addrinfo *at = found; at && last != TITAN_EEXIST; at = at->ai_next) {
        last = listen_at(all, at, tls ? RPC_LISTENER_TLS : RPC_LISTENER_PLAIN, address, &port, err);
        listening = listening || last == TITAN_OK;
    }
    freeaddrinfo(found);
    if (last == TITAN_EEXIST || !listening)
        return last;
    if (ret_port)
        *ret_port = ntohs(port);
    return TITAN_OK;
}

titan_status rpc_listeners_adopt(struct rpc_listeners *all, int fd, struct titan_error *err)
{
    int listens = 0, domain = 0;
    const int flags = fcntl(fd, F_GETFL);
    socklen_t len = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) < 0 || !listens)
        return titan_fail(err, TITAN_EINVAL, "descriptor %d is not a socket that listens", fd);
    len = sizeof(domain);
    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 ||
        fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return titan_fail_errno(err, "cannot use socket %d", fd);
    return add(all, fd, domain == AF_UNIX ? RPC_LISTENER_LOCAL : RPC_LISTENER_PLAIN, "", false, err);
}

static int spare_open(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    HANDLER("connection");
    struct rpc_listener *l = poll->data;
    struct rpc_listeners *all = l->all;
    (void)events;
    for (int i = 0; status == 0 && i < ACCEPTS; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            all->accepted(all->data, fd, l->kind);
            continue;
        }
        if ((errno != EMFILE && errno != ENFILE) || all->spare_fd < 0)
            return;
        /* Accepts and closes a connection when no descriptor is free. Otherwise waiting clients would wake the loop
         * forever. */
        (void)close(all->spare_fd);
        fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            (void)close(fd);
        all->spare_fd = spare_open();
        all->accepted(all->data, -1, l->kind);
        if (fd < 0)
            return;
    }
}

titan_status rpc_listeners_start(struct rpc_listeners *all, uv_loop_t *loop, struct titan_error *err)
{
    all->spare_fd = spare_open();
    for (struct rpc_listener *l = all->first; l; l = l->next) {
        if (uv_poll_init(loop, &l->poll, l->fd) != 0)
            return titan_fail(err, TITAN_EIO, "cannot watch socket %d", l->fd);
        l->poll.data = l;
        l->polled = true;
        (void)uv_poll_start(&l->poll, UV_READABLE, on_connection);
    }
    return TITAN_OK;
}

static void poll_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void rpc_listeners_close(struct rpc_listeners *all)
{
    while (all->first) {
        struct rpc_listener *l = all->first;
        struct stat st;
        all->first = l->next;
        if (l->owned && l->path[0] && lstat(l->path, &st) == 0 && S_ISSOCK(st.st_mode))
            (void)unlink(l->path);
        if (l->polled)
            uv_close((uv_handle_t *)&l->poll,
                     poll_closed); /* later clients wait for the next process, or are refused */
        if (l->owned)
            (void)close(l->fd);
        if (!l->polled)
            free(l);
    }
    if (all->spare_fd >= 0)
        (void)close(TAKE_FD(all->spare_fd));
}
