/* SPDX-License-Identifier: Apache-2.0 */
/* peers.c - see peers.h. */
#include "daemon/common/peers.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/slowest.h"

#define DATAGRAM_MAX 65536
#define NAMES_MAX 1024

/* A peer's address, once it is known. */
struct name {
    struct name *next;
    struct peers *peers;
    uv_getaddrinfo_t lookup;
    /* looking: a lookup is in progress. old: the name is looked up again; meanwhile the known address is used. */
    bool looking, known, old;
    struct sockaddr_storage address;
    char text[];
};

struct peers {
    uv_loop_t *loop;
    struct log log;
    uv_udp_t socket;
    uint16_t port;
    int family; /* address family of its socket */
    peers_message_cb on_message;
    void *data;
    struct name *names;
    size_t n_names;
    bool refused_reported, closing, closed;
    int lookups;
    void (*done)(void *);
    void *done_data;
    char buffer[DATAGRAM_MAX];
};

/* --- addresses ---------------------------------------------------------------------------------------------------- */

/* "host:port", "[v6]:port" -> parts. False: neither form. */
static bool split(const char *text, char host[256], uint16_t *ret_port)
{
    const char *colon = strrchr(text, ':');
    char *end;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    if (!colon || port < 0 || port > 65535 || end == colon + 1 || *end || colon - text >= 256 || colon == text)
        return false;
    bool bracket = text[0] == '[' && colon[-1] == ']';
    (void)snprintf(host, 256, "%.*s", (int)(colon - text) - (bracket ? 2 : 0), text + (bracket ? 1 : 0));
    *ret_port = (uint16_t)port;
    return true;
}

static bool numeric(const char *host, uint16_t port, struct sockaddr_storage *ret)
{
    return uv_ip4_addr(host, port, (struct sockaddr_in *)ret) == 0 ||
           uv_ip6_addr(host, port, (struct sockaddr_in6 *)ret) == 0;
}

static bool print_address(const struct sockaddr *a, char out[80])
{
    char host[64];
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        return uv_ip4_name(in, host, sizeof(host)) == 0 && snprintf(out, 80, "%s:%u", host, ntohs(in->sin_port)) < 80;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)a;
    return a->sa_family == AF_INET6 && uv_ip6_name(in6, host, sizeof(host)) == 0 &&
           snprintf(out, 80, "[%s]:%u", host, ntohs(in6->sin6_port)) < 80;
}

static void finish(struct peers *p)
{
    titan_assert(p->lookups >= 0);
    if (!p->closed || p->lookups)
        return;
    for (struct name *n = p->names, *next; n; n = next) {
        next = n->next;
        free(n);
    }
    void (*done)(void *) = p->done;
    void *data = p->done_data;
    free(p);
    if (done)
        done(data);
}

static void on_lookup(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    struct name *n = request->data;
    n->looking = false;
    titan_assert(n->peers->lookups > 0);
    n->peers->lookups--;
    if (status == 0 && found && found->ai_addrlen <= sizeof(n->address)) {
        memcpy(&n->address, found->ai_addr, found->ai_addrlen);
        n->known = true;
    }
    uv_freeaddrinfo(found);
    finish(n->peers);
}

void peers_look_again(struct peers *p)
{
    for (struct name *n = p->names; n; n = n->next)
        n->old = true;
}

/* --- datagrams ---------------------------------------------------------------------------------------------------- */

void peers_send(struct peers *p, const char *to, const Titan__Internal__PeerMessage *message)
{
    char host[256], service[8];
    uint16_t port;
    struct sockaddr_storage address;
    titan_assert(p->family == AF_INET || p->family == AF_INET6);
    if (p->closing || !split(to, host, &port) || port == 0)
        return;
    if (!numeric(host, port, &address)) {
        struct name *n = p->names;
        while (n && strcmp(n->text, to) != 0)
            n = n->next;
        if (!n && p->n_names < NAMES_MAX && (n = calloc(1, sizeof(*n) + strlen(to) + 1))) {
            memcpy(n->text, to, strlen(to) + 1);
            n->peers = p;
            n->lookup.data = n;
            n->next = p->names;
            p->names = n;
            p->n_names++;
        }
        const struct addrinfo hints = {
            .ai_family = p->family, .ai_socktype = SOCK_DGRAM, .ai_flags = p->family == AF_INET6 ? AI_V4MAPPED : 0};
        (void)snprintf(service, sizeof(service), "%u", port);
        if (n && (!n->known || n->old) && !n->looking &&
            uv_getaddrinfo(p->loop, &n->lookup, on_lookup, host, service, &hints) == 0) {
            n->looking = true;
            n->old = false;
            p->lookups++;
        }
        if (!n || !n->known)
            return;
        address = n->address;
    }

    size_t len = titan__internal__peer_message__get_packed_size(message);
    _cleanup_free_ uint8_t *bytes = malloc(len ? len : 1);
    if (!bytes)
        return;
    (void)titan__internal__peer_message__pack(message, bytes);
    const uv_buf_t buf = uv_buf_init((char *)bytes, (unsigned)len);
    /* a failed send is a lost datagram */
    (void)uv_udp_try_send(&p->socket, &buf, 1, (const struct sockaddr *)&address);
}

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
    struct peers *p = handle->data;
    (void)size;
    *buf = uv_buf_init(p->buffer, sizeof(p->buffer));
}

static void on_datagram(uv_udp_t *socket, ssize_t n, const uv_buf_t *buf, const struct sockaddr *from, unsigned flags)
{
    HANDLER("datagram");
    titan_assert(n <= DATAGRAM_MAX);
    struct peers *p = socket->data;
    char sender[80];
    if (n <= 0 || !from || p->closing)
        return;
    Titan__Internal__PeerMessage *m =
        flags & UV_UDP_PARTIAL ? NULL
                               : titan__internal__peer_message__unpack(NULL, (size_t)n, (const uint8_t *)buf->base);
    if (m && print_address(from, sender)) {
        p->on_message(m, sender, p->data);
    } else {
        if (!p->refused_reported && print_address(from, sender)) /* logged once: any host can send datagrams */
            tlog_warn(&p->log, "datagram refused", "from=%s reason=\"no message\"", sender);
        p->refused_reported = true;
    }
    if (m)
        titan__internal__peer_message__free_unpacked(m, NULL);
}

static void on_socket_closed(uv_handle_t *handle)
{
    struct peers *p = handle->data;
    titan_assert(p->closing && !p->closed);
    p->closed = true;
    finish(p);
}

static titan_status bind_socket(struct peers *p, const char *listen, struct titan_error *err)
{
    char host[256];
    uint16_t port;
    struct sockaddr_storage address = {0};
    if (!split(listen, host, &port))
        return titan_fail(err, TITAN_EINVAL, "'%s' is not HOST:PORT", listen);
    if (!numeric(host, port, &address)) {
        uv_getaddrinfo_t request = {0};
        const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
        if (uv_getaddrinfo(p->loop, &request, NULL, host, NULL, &hints) != 0 || !request.addrinfo)
            return titan_fail(err, TITAN_EINVAL, "cannot find the address of '%s' to listen for other agents on", host);
        memcpy(&address, request.addrinfo->ai_addr, request.addrinfo->ai_addrlen);
        uv_freeaddrinfo(request.addrinfo);
        if (address.ss_family == AF_INET)
            ((struct sockaddr_in *)&address)->sin_port = htons(port);
        else
            ((struct sockaddr_in6 *)&address)->sin6_port = htons(port);
    }
    int rc = uv_udp_bind(&p->socket, (const struct sockaddr *)&address, 0);
    /* Lets the socket bind before the machine has the address, because at boot the daemon may start earlier. */
    const bool v4 = address.ss_family == AF_INET;
    const int on = 1;
    uv_os_fd_t fd;
    if (rc == UV_EADDRNOTAVAIL && uv_fileno((uv_handle_t *)&p->socket, &fd) == 0 &&
        setsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_FREEBIND : IPV6_FREEBIND, &on, sizeof(on)) == 0) {
        rc = uv_udp_bind(&p->socket, (const struct sockaddr *)&address, 0);
        tlog_warn(&p->log, "the machine does not have the address yet: other agents reach it once it has",
                  "reason=\"%s\"", uv_strerror(UV_EADDRNOTAVAIL));
    }
    if (rc == 0)
        rc = uv_udp_recv_start(&p->socket, on_alloc, on_datagram);
    struct sockaddr_storage bound;
    int len = sizeof(bound);
    if (rc == 0)
        rc = uv_udp_getsockname(&p->socket, (struct sockaddr *)&bound, &len);
    if (rc != 0)
        return titan_fail(err, rc == UV_EADDRINUSE ? TITAN_EEXIST : TITAN_EIO,
                          "cannot listen for other agents on %s: %s", listen, uv_strerror(rc));
    p->family = bound.ss_family;
    p->port = ntohs(bound.ss_family == AF_INET ? ((struct sockaddr_in *)&bound)->sin_port
                                               : ((struct sockaddr_in6 *)&bound)->sin6_port);
    return TITAN_OK;
}

titan_status peers_open(uv_loop_t *loop, const char *listen, peers_message_cb on_message, void *data,
                        struct peers **ret, struct titan_error *err)
{
    struct peers *p = calloc(1, sizeof(*p));
    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the agents' socket");
    p->loop = loop;
    p->on_message = on_message;
    p->data = data;
    log_init(&p->log, "peers", "listen=%s", listen);
    if (uv_udp_init(loop, &p->socket) != 0) {
        free(p);
        return titan_fail(err, TITAN_EIO, "cannot make a socket for other agents");
    }
    p->socket.data = p;
    titan_status status = bind_socket(p, listen, err);
    if (status != TITAN_OK) {
        peers_close(p, NULL, NULL);
        return status;
    }
    *ret = p;
    return TITAN_OK;
}

bool peers_address_is_here(const char *host)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        return false;
    _cleanup_fd_ int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool here = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
    return here;
}

uint16_t peers_port(const struct peers *p)
{
    return p->port;
}

void peers_close(struct peers *p, void (*done)(void *), void *data)
{
    if (!p) {
        if (done)
            done(data);
        return;
    }
    p->closing = true;
    p->done = done;
    p->done_data = data;
    for (struct name *n = p->names; n; n = n->next)
        if (n->looking)
            (void)uv_cancel((uv_req_t *)&n->lookup);
    uv_close((uv_handle_t *)&p->socket, on_socket_closed);
}
