/* SPDX-License-Identifier: Apache-2.0 */
/* proxy.c - see proxy.h. Sockets are level-triggered. Bytes for which an end has no room stay in the socket, which is
 * then not watched. */
#include "proto/rpc/proxy.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

enum {
    READ_BYTES = 32 << 10,
    BACKLOG_BYTES = 64 << 10, /* limit of bytes waiting for a side; beyond this limit the other side is not read */
    READS = 4,                /* reads from one client before other clients have their turn */
    EVENTS = 128,
    BEGIN_MS = 10000, /* time limit for TLS and the first frame, or the first byte of other protocols */
    LEAVE_MS = 10000, /* time limit for a client to take the server's remaining output */
    CUT_MS = 1000,    /* the same limit for a client that has lost its rights */
    LOOK_MS = 1000,   /* interval between searches for late connections */
};

struct rpc_proxy {
    struct rpc_queue *queue;
    pthread_t thread;
    pthread_mutex_t lock;
    struct rpc_proxy_connection *arrivals; /* guarded by lock */
    bool closing;                          /* guarded by lock */
    atomic_bool cuts;                      /* some connections are marked for cutting */
    int wake, epoll;
    /* Used by the thread alone. */
    LIST_HEAD(proxy_connections, rpc_proxy_connection) connections;
    struct rpc_proxy_connection *ended;
    uint32_t n_deadlines;
    uint8_t bytes[READ_BYTES];
};

/* --- connections -------------------------------------------------------------------------------------------------- */

static void deadline_set(struct rpc_proxy *proxy, struct rpc_proxy_connection *c, int64_t ms)
{
    if (c->cutting && c->deadline_ns > 0 && !c->gone)
        return; /* nothing extends this deadline */
    proxy->n_deadlines += (uint32_t)(ms > 0) - (uint32_t)(c->deadline_ns > 0);
    c->deadline_ns = ms > 0 ? clock_mono_ns() + ms * 1000000 : 0;
}

/* Removes the descriptor from epoll explicitly: a forked process before its exec has a copy, and epoll would keep
 * watching a closed descriptor. */
static void end_close(struct rpc_proxy *proxy, struct rpc_proxy_end *end)
{
    titan_assert(end->fd >= 0);
    (void)epoll_ctl(proxy->epoll, EPOLL_CTL_DEL, end->fd, NULL);
    (void)close(end->fd);
    end->fd = -1;
}

static void connection_end(struct rpc_proxy *proxy, struct rpc_proxy_connection *c)
{
    titan_assert(!c->gone);
    c->gone = true;
    deadline_set(proxy, c, 0);
    /* Closing with unread input would send a reset, and hide the reason from the client. */
    (void)shutdown(c->client.fd, SHUT_WR);
    for (int i = 0; i < READS && recv(c->client.fd, proxy->bytes, sizeof(proxy->bytes), MSG_DONTWAIT) > 0; i++)
        ;
    end_close(proxy, &c->client);
    SSL_free(TAKE(c->tls));
    if (!c->left)
        end_close(proxy, &c->inner);
    buf_free(&c->client.out);
    buf_free(&c->inner.out);
    rpc_filter_free(&c->filter);
    LIST_REMOVE(c, link);
    c->next_arrival = proxy->ended;
    proxy->ended = c;
}

/* --- reading and writing ------------------------------------------------------------------------------------------ */

static size_t backlog(const struct rpc_proxy_end *end)
{
    return end->out.len - end->sent;
}

/* Can OpenSSL's last call be repeated later? A client that leaves during the handshake, such as a port scanner, does
 * not count as a failed client. */
static bool tls_waits(struct rpc_proxy_connection *c, int rc)
{
    const int error = SSL_get_error(c->tls, rc);
    const bool waits = error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ;
    const unsigned long first = ERR_peek_last_error();
    const char *reason = first ? ERR_reason_error_string(first) : NULL;
    c->client.waits_out = c->client.waits_out || error == SSL_ERROR_WANT_WRITE;
    if (!waits && error != SSL_ERROR_ZERO_RETURN && !SSL_is_init_finished(c->tls) && reason &&
        ERR_GET_REASON(first) != SSL_R_UNEXPECTED_EOF_WHILE_READING)
        (void)titan_fail(&c->why, TITAN_EPERM, "a TLS handshake failed: %s", reason);
    ERR_clear_error();
    return waits;
}

/* Sends waiting bytes of this side. False: the side is gone. */
static bool end_flush(struct rpc_proxy_end *end)
{
    struct rpc_proxy_connection *c = end->connection;
    SSL *tls = end == &c->client ? c->tls : NULL;
    while (backlog(end) > 0) {
        const char *at = end->out.data + end->sent;
        const ssize_t n = tls ? SSL_write(tls, at, (int)MIN(backlog(end), (size_t)INT32_MAX))
                              : send(end->fd, at, backlog(end), MSG_NOSIGNAL);
        if (n <= 0 && tls)
            return tls_waits(c, (int)n);
        if (n < 0) {
            end->waits_out = true;
            return errno == EAGAIN || errno == EINTR;
        }
        end->sent += (size_t)n;
        if (backlog(end) == 0 || end->sent > BACKLOG_BYTES) {
            buf_consume(&end->out, end->sent);
            end->sent = 0;
        }
    }
    return true;
}

static int64_t time_ms(const ASN1_TIME *t)
{
    struct tm tm = {0};
    return ASN1_TIME_to_tm(t, &tm) == 1 ? (int64_t)timegm(&tm) * 1000 : 0;
}

/* Reads the one SPIFFE URI of a client's certificate, and its validity. A certificate without validity counts as
 * expired. */
static void identify(struct rpc_proxy_connection *c)
{
    X509 *x = SSL_get0_peer_certificate(c->tls);
    GENERAL_NAMES *names = x ? X509_get_ext_d2i(x, NID_subject_alt_name, NULL, NULL) : NULL;
    const ASN1_IA5STRING *uri = NULL;
    int n_uris = 0;
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != GEN_URI)
            continue;
        uri = name->d.uniformResourceIdentifier;
        n_uris++;
    }
    const int len = n_uris == 1 ? ASN1_STRING_length(uri) : 0;
    const char *text = len > 0 ? (const char *)ASN1_STRING_get0_data(uri) : "";
    if (len > 9 && (size_t)len < sizeof(c->identity.name) && !memchr(text, 0, (size_t)len) &&
        memcmp(text, "spiffe://", 9) == 0) {
        c->identity = (struct rpc_identity){.kind = RPC_ID_CERT,
                                            .secure = true,
                                            .uid = (uid_t)-1,
                                            .gid = (gid_t)-1,
                                            .from_ms = time_ms(X509_get0_notBefore(x)),
                                            .until_ms = MAX(time_ms(X509_get0_notAfter(x)), INT64_C(1))};
        memcpy(c->identity.name, text, (size_t)len);
        atomic_store(&c->identified, true);
    }
    GENERAL_NAMES_free(names);
}

/* --- carrying ----------------------------------------------------------------------------------------------------- */

/* Is there room for more of the client's bytes on their way to gRPC? */
static bool has_room(const struct rpc_proxy_connection *c)
{
    return !c->left && backlog(&c->client) < BACKLOG_BYTES && backlog(&c->inner) < BACKLOG_BYTES;
}

/* Carries the client's bytes. False: the client is gone, or must not continue. */
static bool from_client(struct rpc_proxy *proxy, struct rpc_proxy_connection *c)
{
    ssize_t n = sizeof(proxy->bytes);
    for (int i = 0; i < READS && has_room(c) && (c->tls || n == (ssize_t)sizeof(proxy->bytes)); i++) {
        n = c->tls ? SSL_read(c->tls, proxy->bytes, sizeof(proxy->bytes))
                   : recv(c->client.fd, proxy->bytes, sizeof(proxy->bytes), 0);
        if (n <= 0)
            return c->tls ? tls_waits(c, (int)n) : n < 0 && (errno == EAGAIN || errno == EINTR);
        if (c->tls && !c->begun && c->filter.n_preface == 0) {
            const unsigned char *protocol;
            unsigned len;
            SSL_get0_alpn_selected(c->tls, &protocol, &len);
            if (!c->plain && (len != 2 || memcmp(protocol, "h2", 2) != 0)) {
                (void)titan_fail(&c->why, TITAN_EPERM, "a client that does not offer HTTP/2 in its handshake");
                return false;
            }
            identify(c);
        }
        const titan_status passed =
            c->plain ? buf_append(&c->inner.out, proxy->bytes, (size_t)n)
                     : rpc_filter_client(&c->filter, proxy->bytes, (size_t)n, &c->inner.out, &c->client.out, &c->why);
        if (passed != TITAN_OK) {
            (void)end_flush(&c->client);
            return false;
        }
        if ((c->plain || c->filter.begun) && !c->begun) {
            c->begun = true;
            deadline_set(proxy, c, 0);
        }
    }
    return true;
}

/* Carries the server's bytes. all: to the end, because it has written its last byte. False: end the connection. */
static bool from_inner(struct rpc_proxy *proxy, struct rpc_proxy_connection *c, bool all)
{
    ssize_t n;
    do {
        n = recv(c->inner.fd, proxy->bytes, sizeof(proxy->bytes), 0);
        if (n > 0 && (c->plain ? buf_append(&c->client.out, proxy->bytes, (size_t)n)
                               : rpc_filter_server(&c->filter, proxy->bytes, (size_t)n, &c->client.out)) != TITAN_OK) {
            (void)titan_fail(&c->why, TITAN_ENOMEM, "there is no memory for an answer");
            return false;
        }
    } while (n > 0 && (all || (n == (ssize_t)sizeof(proxy->bytes) && backlog(&c->client) < BACKLOG_BYTES)));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) { /* the server has left: the client gets the rest */
        end_close(proxy, &c->inner);
        c->left = true;
        deadline_set(proxy, c, LEAVE_MS);
    }
    return true;
}

static bool watch(struct rpc_proxy *proxy, struct rpc_proxy_end *end, bool in)
{
    const uint32_t events = (in ? EPOLLIN : 0) | (end->waits_out ? EPOLLOUT : 0);
    struct epoll_event event = {.events = events, .data.ptr = end};
    if (end->watched && events == end->events)
        return true;
    const int operation = end->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    end->watched = true;
    end->events = events;
    return epoll_ctl(proxy->epoll, operation, end->fd, &event) == 0;
}

static bool watch_both(struct rpc_proxy *proxy, struct rpc_proxy_connection *c)
{
    return watch(proxy, &c->client, has_room(c)) &&
           (c->left || watch(proxy, &c->inner, backlog(&c->client) < BACKLOG_BYTES));
}

/* Carries the bytes that have arrived at one end. */
static void end_seen(struct rpc_proxy *proxy, struct rpc_proxy_end *end, uint32_t events)
{
    struct rpc_proxy_connection *c = end->connection;
    const bool hung_up = events & (EPOLLHUP | EPOLLERR), in = hung_up || (events & EPOLLIN);
    bool goes_on = true;
    if (c->gone || end->fd < 0)
        return;
    c->client.waits_out = c->inner.waits_out = false;
    if (end == &c->inner)
        goes_on = !in || from_inner(proxy, c, hung_up);
    else if (in || (c->tls && !SSL_is_init_finished(c->tls)))
        goes_on = has_room(c) ? from_client(proxy, c) : !hung_up;
    if (goes_on && !c->left && !end_flush(&c->inner))
        goes_on = from_inner(proxy, c, true); /* gRPC takes no more input; its earlier output is still read */
    if (!goes_on || !end_flush(&c->client) || (c->left && backlog(&c->client) == 0) || !watch_both(proxy, c))
        connection_end(proxy, c);
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

static void cut_take(struct rpc_proxy *proxy, struct rpc_proxy_connection *c)
{
    const enum rpc_cut how = atomic_load(&c->cut);
    if (how == RPC_CUT_NOW) {
        (void)titan_fail(&c->why, TITAN_ELIMIT, "too many connections from one address: the oldest silent one ends");
        connection_end(proxy, c);
    } else if (how == RPC_CUT_SOON && !c->cutting) {
        deadline_set(proxy, c, CUT_MS);
        c->cutting = true;
    }
}

/* Takes new connections. False: the proxy closes. */
static bool arrivals_take(struct rpc_proxy *proxy)
{
    uint64_t n;
    (void)!read(proxy->wake, &n, sizeof(n));
    (void)pthread_mutex_lock(&proxy->lock);
    struct rpc_proxy_connection *c = TAKE(proxy->arrivals);
    const bool closing = proxy->closing;
    (void)pthread_mutex_unlock(&proxy->lock);
    while (c) {
        struct rpc_proxy_connection *next = c->next_arrival;
        LIST_INSERT_HEAD(&proxy->connections, c, link);
        deadline_set(proxy, c, BEGIN_MS);
        cut_take(proxy, c);
        if (!c->gone && !watch_both(proxy, c)) {
            (void)titan_fail(&c->why, TITAN_ENOMEM, "there is no memory to watch a connection");
            connection_end(proxy, c);
        }
        c = next;
    }
    if (atomic_exchange(&proxy->cuts, false))
        for (struct rpc_proxy_connection *next = LIST_FIRST(&proxy->connections); (c = next);) {
            next = LIST_NEXT(c, link);
            cut_take(proxy, c);
        }
    return !closing;
}

/* Called after a turn, because the turn's events may name connections that ended during the turn. */
static void ended_post(struct rpc_proxy *proxy)
{
    while (proxy->ended) {
        struct rpc_proxy_connection *c = proxy->ended;
        proxy->ended = c->next_arrival;
        rpc_queue_post(proxy->queue, &c->ended, true); /* from here on the caller may free it */
    }
}

static void *proxy_thread(void *arg)
{
    struct rpc_proxy *proxy = arg;
    struct epoll_event events[EVENTS];
    int64_t paused_at = 0, looked_ns = 0;
    for (bool open = true; open;) {
        rpc_queue_rest(proxy->queue, &paused_at);
        const int wait_ms = proxy->n_deadlines > 0 ? LOOK_MS : -1;
        const int n = epoll_wait(proxy->epoll, events, EVENTS, wait_ms);
        for (int i = 0; i < n; i++)
            if (events[i].data.ptr)
                end_seen(proxy, events[i].data.ptr, events[i].events);
            else
                open = arrivals_take(proxy);
        const int64_t now = clock_mono_ns();
        const bool look = proxy->n_deadlines > 0 && now - looked_ns >= LOOK_MS * INT64_C(1000000);
        looked_ns = look ? now : looked_ns;
        for (struct rpc_proxy_connection *c = LIST_FIRST(&proxy->connections), *next; c && look; c = next) {
            next = LIST_NEXT(c, link);
            if (c->deadline_ns == 0 || now < c->deadline_ns)
                continue;
            if (!c->begun)
                (void)titan_fail(&c->why, TITAN_ETIMEDOUT, "nothing came within %d s", BEGIN_MS / 1000);
            connection_end(proxy, c);
        }
        ended_post(proxy);
    }
    for (struct rpc_proxy_connection *c; (c = LIST_FIRST(&proxy->connections));) {
        if (!c->left && from_inner(proxy, c, true)) /* gRPC has written its last byte */
            (void)end_flush(&c->client);
        connection_end(proxy, c);
    }
    ended_post(proxy);
    return NULL;
}

/* --- for the loop's thread ---------------------------------------------------------------------------------------- */

static void proxy_free(struct rpc_proxy *proxy)
{
    if (proxy->wake >= 0)
        (void)close(proxy->wake);
    if (proxy->epoll >= 0)
        (void)close(proxy->epoll);
    (void)pthread_mutex_destroy(&proxy->lock);
    free(proxy);
}

titan_status rpc_proxy_open(struct rpc_queue *queue, struct rpc_proxy **ret, struct titan_error *err)
{
    struct rpc_proxy *proxy = calloc(1, sizeof(*proxy));
    if (!proxy)
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for the thread of connections");
    proxy->queue = queue;
    (void)pthread_mutex_init(&proxy->lock, NULL);
    proxy->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    proxy->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    int rc = 0;
    if (proxy->wake < 0 || proxy->epoll < 0 || epoll_ctl(proxy->epoll, EPOLL_CTL_ADD, proxy->wake, &event) != 0)
        rc = errno;
    else
        rc = rpc_thread_start(&proxy->thread, "titan-proxy", proxy_thread, proxy);
    if (rc == 0) {
        *ret = proxy;
        return TITAN_OK;
    }
    proxy_free(proxy);
    return titan_fail(err, titan_status_from_errno(rc), "rpc: cannot start the thread of connections: %s",
                      strerror(rc));
}

static void wake(struct rpc_proxy *proxy)
{
    const uint64_t one = 1;
    (void)!write(proxy->wake, &one, sizeof(one));
}

void rpc_proxy_close(struct rpc_proxy *proxy)
{
    if (!proxy)
        return;
    (void)pthread_mutex_lock(&proxy->lock);
    proxy->closing = true;
    (void)pthread_mutex_unlock(&proxy->lock);
    wake(proxy);
    (void)pthread_join(proxy->thread, NULL);
    proxy_free(proxy);
}

void rpc_proxy_add(struct rpc_proxy *proxy, struct rpc_proxy_connection *c, int client, int inner)
{
    titan_assert(client >= 0 && inner >= 0 && c->ended.fn && !proxy->closing);
    c->client = (struct rpc_proxy_end){.connection = c, .fd = client};
    c->inner = (struct rpc_proxy_end){.connection = c, .fd = inner};
    (void)pthread_mutex_lock(&proxy->lock);
    const bool first = !proxy->arrivals;
    c->next_arrival = proxy->arrivals;
    proxy->arrivals = c;
    (void)pthread_mutex_unlock(&proxy->lock);
    if (first)
        wake(proxy);
}

void rpc_proxy_cut(struct rpc_proxy *proxy, struct rpc_proxy_connection *c, enum rpc_cut how)
{
    atomic_store(&c->cut, how);
    if (!atomic_exchange(&proxy->cuts, true))
        wake(proxy);
}
