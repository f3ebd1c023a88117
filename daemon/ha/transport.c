/* SPDX-License-Identifier: Apache-2.0 */
/* transport.c - see transport.h.
 *
 * A connection is a `link` from its first byte until its handshakes are exchanged. Then libraft owns its stream, or it
 * carries frames: two bytes of length, little-endian, and the frame. A length of 0 is a sign of life. */
#include "daemon/ha/transport.h"

#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/slowest.h"
#include "daemon/auth/pki.h"
#include "proto/rpc/listener.h"
#include "proto/rpc/tunnel.h"

enum {
    ACCEPTING_MAX = 32,     /* accepted connections whose handshakes are not exchanged yet */
    HANDSHAKE_MS = 3000,    /* limit from connect() or accept() to the exchanged handshakes */
    RETRY_MS = 100,         /* from the end of a connection for frames to the next attempt */
    ALIVE_MS = 500,         /* interval of signs of life in a connection for frames */
    SILENT_MS = 3000,       /* a connection for frames without a byte for so long has ended */
    QUEUE_BYTES = 64 << 10, /* limit of waiting frames for one member */
    SAID_MS = 60000,        /* interval of one line about one kind of wrong peer */
    SAID = 8,               /* kinds that are remembered, and lines in that interval */
    FRAME_HEAD = 2,
    LEFT_OFTEN = 3,
};

/* BETWEEN: one of the member's addresses has failed, and the next is tried when its handle is closed. */
enum link_state { LINK_RESOLVES, LINK_CONNECTS, LINK_BETWEEN, LINK_HANDSHAKES, LINK_FRAMES, LINK_ENDS };

struct link {
    LIST_ENTRY(link) entry;
    struct transport *transport;
    enum link_state state;
    bool accepted;
    int member; /* -1: an accepted connection whose handshake has not come */
    enum handshake_purpose purpose;
    int parts; /* handles, requests and the tunnel that have to end before the link is freed */
    uv_timer_t timer;
    uv_getaddrinfo_t resolve;
    struct addrinfo *found, *at; /* addresses of the member, and the one that is tried */
    uv_connect_t connect;
    uv_tcp_t tcp;                 /* until it is connected */
    struct rpc_tunnel *tunnel;    /* NULL: no TLS, or released */
    uv_stream_t *stream;          /* plain bytes; from raft_malloc, because libraft frees it */
    struct raft_uv_connect *raft; /* libraft's request; NULL: none, or answered */
    raft_uv_connect_cb raft_cb;
    uint64_t raft_id;                /* the id that libraft connects to */
    char peer[INET6_ADDRSTRLEN + 8]; /* of an accepted connection, for the log */
    uint8_t in[FRAME_HEAD + TRANSPORT_FRAME_MAX];
    size_t n_in;
    int64_t heard_ms;
};

struct transport {
    uv_loop_t *loop;
    struct log log;
    struct ha_members members;
    int self;
    struct handshake own;
    struct transport_options options;
    struct raft_uv_transport raft;
    raft_uv_accept_cb accept; /* NULL: libraft does not listen */
    bool raft_closed;
    struct rpc_listeners listeners;
    struct rpc_tunnels *tunnels; /* NULL: no TLS */
    LIST_HEAD(links, link) links;
    int n_accepting;
    struct {
        struct link *out, *in;
        uint64_t id;
        int64_t retry_ms; /* time of the next attempt to connect */
        int left;         /* connections in a row that it closed without a handshake */
    } peers[HA_MEMBERS_MAX];
    uv_timer_t timer;
    struct {
        uint64_t kind;
        int64_t ms;
    } said[SAID];
    struct transport_counters counters;
    bool closing;
    int parts; /* the timer and the tunnels */
    void (*done)(void *);
    void *done_data;
};

/* --- wrong peers -------------------------------------------------------------------------------------------------- */

/* Counts a wrong peer, and logs its kind once a minute. */
static void refused(struct transport *t, const struct link *l, const char *why)
{
    const char *from = l && l->accepted ? l->peer : l && l->member >= 0 ? t->members.at[l->member].address : "";
    char host[sizeof(l->peer)];
    const int64_t now = clock_mono_ms();
    int oldest = 0;
    t->counters.refused++;
    (void)snprintf(host, sizeof(host), "%s", from);
    if (l && l->accepted && strrchr(host, ':'))
        *strrchr(host, ':') = '\0'; /* each attempt has another port */
    const uint64_t kind = hash_text(hash_text(HASH_INIT, host), why);
    for (int i = 0; i < SAID; i++) {
        if (t->said[i].kind == kind && now - t->said[i].ms < SAID_MS)
            return;
        if (t->said[i].ms < t->said[oldest].ms)
            oldest = i;
    }
    if (now - t->said[oldest].ms < SAID_MS && t->said[oldest].kind)
        return; /* a peer could choose many reasons */
    t->said[oldest].kind = kind;
    t->said[oldest].ms = now;
    tlog_warn(&t->log, !l || l->accepted ? "a coordinator is refused" : "no connection to a coordinator",
              "peer=%s reason=\"%s\" refused=%" PRIu64, from, why, t->counters.refused);
}

/* --- links -------------------------------------------------------------------------------------------------------- */

static void transport_part_over(struct transport *t);

static void link_part_over(struct link *l)
{
    struct transport *t = l->transport;
    titan_assert(l->parts > 0);
    if (--l->parts > 0)
        return;
    titan_assert(l->state == LINK_ENDS && !l->raft);
    if (l->found)
        uv_freeaddrinfo(l->found);
    LIST_REMOVE(l, entry);
    free(l);
    transport_part_over(t);
}

static void part_closed(uv_handle_t *handle)
{
    link_part_over(handle->data);
}

static void stream_closed(uv_handle_t *handle)
{
    struct link *l = handle->data;
    raft_free(handle);
    if (l)
        link_part_over(l);
}

/* Ends a link in any state. libraft's request gets its answer; the other parts end later. */
static void link_end(struct link *l)
{
    struct transport *t = l->transport;
    if (l->state == LINK_ENDS)
        return;
    if (l->accepted && l->state == LINK_HANDSHAKES)
        t->n_accepting--;
    if (l->state == LINK_RESOLVES)
        (void)uv_cancel((uv_req_t *)&l->resolve); /* its callback comes in any case */
    if (l->state == LINK_CONNECTS)
        uv_close((uv_handle_t *)&l->tcp, part_closed);
    const bool frames = l->state == LINK_FRAMES;
    l->state = LINK_ENDS;
    uv_close((uv_handle_t *)&l->timer, part_closed);
    if (l->stream)
        uv_close((uv_handle_t *)TAKE(l->stream), stream_closed);
    if (l->tunnel) {
        rpc_tunnel_release(TAKE(l->tunnel));
        link_part_over(l);
    }
    if (l->raft) {
        struct raft_uv_connect *request = TAKE(l->raft);
        l->raft_cb(request, NULL, t->raft_closed ? RAFT_CANCELED : RAFT_NOCONNECTION);
    }
    if (l->member >= 0 && t->peers[l->member].in == l)
        t->peers[l->member].in = NULL;
    if (l->member >= 0 && t->peers[l->member].out == l) {
        t->peers[l->member].out = NULL;
        t->peers[l->member].retry_ms = clock_mono_ms() + RETRY_MS;
        if (frames && t->options.reached && !t->closing)
            t->options.reached(t->options.data, l->member, false);
    }
}

/* The peer is wrong, or not there. */
static void link_fail(struct link *l, const char *why)
{
    if (l->state == LINK_ENDS)
        return;
    refused(l->transport, l, why);
    link_end(l);
}

static void on_link_timer(uv_timer_t *timer)
{
    HANDLER("ha.link");
    struct link *l = timer->data;
    if (l->state == LINK_HANDSHAKES)
        link_fail(l, "it sent no handshake in time");
    else if (l->state == LINK_FRAMES && !l->accepted)
        transport_send(l->transport, l->member, NULL, 0);
    else if (l->state != LINK_FRAMES || clock_mono_ms() - l->heard_ms >= SILENT_MS)
        link_end(l); /* a member that is away is no wrong peer */
}

static struct link *link_new(struct transport *t, bool accepted, int member, enum handshake_purpose purpose)
{
    struct link *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    *l = (struct link){.transport = t,
                       .accepted = accepted,
                       .member = member,
                       .purpose = purpose,
                       .parts = 1,
                       .state = accepted ? LINK_HANDSHAKES : LINK_RESOLVES};
    (void)uv_timer_init(t->loop, &l->timer);
    l->timer.data = l->resolve.data = l->connect.data = l->tcp.data = l;
    (void)uv_timer_start(&l->timer, on_link_timer, HANDSHAKE_MS, 0);
    t->n_accepting += accepted;
    t->parts++;
    LIST_INSERT_HEAD(&t->links, l, entry);
    return l;
}

static bool handshake_send(struct link *l)
{
    uint8_t bytes[HANDSHAKE_BYTES];
    struct handshake handshake = l->transport->own;
    handshake.purpose = l->purpose;
    handshake_encode(&handshake, bytes);
    const uv_buf_t buf = uv_buf_init((char *)bytes, sizeof(bytes));
    return uv_try_write(l->stream, &buf, 1) == HANDSHAKE_BYTES; /* the socket's buffer is empty */
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

struct frame_write {
    uv_write_t request;
    uint8_t bytes[];
};

static void on_written(uv_write_t *request, int status)
{
    (void)status; /* the stream's reader sees the end */
    free(request->data);
}

void transport_send(struct transport *t, int member, const void *bytes, size_t len)
{
    titan_assert(len <= TRANSPORT_FRAME_MAX && member >= 0 && member < t->members.n && member != t->self);
    struct link *l = t->peers[member].out;
    struct frame_write *w = NULL;
    if (l && l->state == LINK_FRAMES && uv_stream_get_write_queue_size(l->stream) < QUEUE_BYTES)
        w = malloc(sizeof(*w) + FRAME_HEAD + len);
    if (!w) {
        t->counters.dropped++;
        return;
    }
    w->bytes[0] = (uint8_t)len;
    w->bytes[1] = (uint8_t)(len >> 8);
    if (len > 0)
        memcpy(w->bytes + FRAME_HEAD, bytes, len);
    w->request.data = w;
    const uv_buf_t buf = uv_buf_init((char *)w->bytes, (unsigned)(FRAME_HEAD + len));
    if (uv_write(&w->request, l->stream, &buf, 1, on_written) != 0) {
        t->counters.dropped++;
        free(w);
    }
}

/* Takes whole frames of l->in. False: the peer sends no frames. */
static bool frames_take(struct link *l)
{
    struct transport *t = l->transport;
    size_t at = 0;
    while (l->n_in - at >= FRAME_HEAD && l->state == LINK_FRAMES) {
        const size_t len = (size_t)l->in[at] | (size_t)l->in[at + 1] << 8;
        if (len > TRANSPORT_FRAME_MAX)
            return false;
        if (l->n_in - at < FRAME_HEAD + len)
            break;
        if (len > 0)
            t->options.frame(t->options.data, l->member, l->in + at + FRAME_HEAD, len);
        at += FRAME_HEAD + len;
    }
    l->n_in -= at;
    memmove(l->in, l->in + at, l->n_in);
    return true;
}

/* --- handshakes --------------------------------------------------------------------------------------------------- */

/* The handshakes are exchanged: libraft gets the stream, or frames pass. */
static void link_begin(struct link *l)
{
    struct transport *t = l->transport;
    t->n_accepting -= l->accepted;
    t->counters.accepted += l->accepted;
    t->counters.connected += !l->accepted;
    if (l->tunnel) {
        rpc_tunnel_release(TAKE(l->tunnel));
        link_part_over(l);
    }
    if (l->purpose == HANDSHAKE_RAFT) {
        uv_stream_t *stream = TAKE(l->stream);
        const int member = l->member;
        const uint64_t id = t->peers[member].id;
        struct raft_uv_connect *request = TAKE(l->raft);
        raft_uv_connect_cb cb = l->raft_cb;
        (void)uv_read_stop(stream);
        stream->data = NULL;
        l->state = LINK_ENDS;
        uv_close((uv_handle_t *)&l->timer, part_closed);
        link_part_over(l); /* the stream */
        if (request)
            cb(request, stream, 0);
        else
            t->accept(&t->raft, id, t->members.at[member].address, stream);
        return;
    }
    l->state = LINK_FRAMES;
    l->n_in = 0;
    l->heard_ms = clock_mono_ms();
    (void)uv_timer_start(&l->timer, on_link_timer, ALIVE_MS, ALIVE_MS);
    if (l->accepted) {
        if (t->peers[l->member].in)
            link_end(t->peers[l->member].in);
        t->peers[l->member].in = l;
    } else if (t->options.reached) {
        t->options.reached(t->options.data, l->member, true);
    }
}

/* The peer's handshake has come. */
static void handshake_taken(struct link *l)
{
    struct transport *t = l->transport;
    struct titan_error err = {0};
    struct handshake theirs;
    const char *name;
    const char *uri = l->tunnel ? rpc_tunnel_peer(l->tunnel) : "";
    titan_status status = TITAN_OK;
    if (l->tunnel && pki_uri_parse(uri, &name) != PKI_COORDINATOR)
        status = titan_fail(&err, TITAN_EPERM, "its certificate is no coordinator's: '%s'", uri);
    if (status == TITAN_OK)
        status = handshake_decode(l->in, &theirs, &err);
    if (status != TITAN_OK) {
        link_fail(l, err.msg);
        return;
    }
    if (l->accepted && theirs.version == HANDSHAKE_VERSION)
        l->purpose = theirs.purpose;
    status = handshake_compare(&t->own, &t->members, &theirs, &err);
    const int member = status == TITAN_OK ? ha_members_find(&t->members, theirs.name) : -1;
    if (member >= 0 && t->peers[member].in && t->peers[member].in != l && t->peers[member].id != theirs.id) {
        (void)titan_fail(&err, TITAN_EINVAL, "two members have the name '%s'", theirs.name);
        link_fail(l, err.msg);
        return;
    }
    /* The other side gets the handshake also of a member that refuses it, so that it can say what differs. */
    if (l->accepted && !handshake_send(l)) {
        link_fail(l, "it takes no handshake");
        return;
    }
    /* A member's connection for frames comes first, and libraft listens later; the peer tries again. */
    if (member >= 0 && l->purpose == HANDSHAKE_RAFT &&
        (l->accepted ? !t->accept || theirs.id != t->peers[member].id : theirs.id != l->raft_id)) {
        link_end(l);
        return;
    }
    if (member >= 0 && !l->accepted && (member != l->member || theirs.purpose != l->purpose))
        status = titan_fail(&err, TITAN_EINVAL, "member '%s' answers at the address of '%s'", theirs.name,
                            t->members.at[l->member].name);
    if (status != TITAN_OK) {
        link_fail(l, err.msg);
        return;
    }
    if (l->purpose == HANDSHAKE_FRAMES) {
        t->peers[member].id = theirs.id;
    }
    l->member = member;
    t->peers[member].left = 0;
    link_begin(l);
}

/* The peer has closed the connection. A member that ends does so, too; one that refuses this member does it each time.
 */
static void link_left(struct link *l)
{
    struct transport *t = l->transport;
    if (l->accepted || l->state == LINK_ENDS || ++t->peers[l->member].left >= LEFT_OFTEN)
        link_fail(l, "it left without a handshake");
    else
        link_end(l);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct link *l = handle->data;
    (void)suggested;
    /* No byte behind the handshake is taken: it may be libraft's. */
    const size_t most = l->state == LINK_HANDSHAKES ? HANDSHAKE_BYTES : sizeof(l->in);
    *buf = uv_buf_init((char *)l->in + l->n_in, (unsigned)(most - l->n_in));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    HANDLER("ha.read");
    struct link *l = stream->data;
    (void)buf;
    if (n == 0 || l->state == LINK_ENDS)
        return;
    if (n < 0) {
        (void)uv_read_stop(stream);
        if (l->state == LINK_FRAMES)
            link_end(l);
        else if (!l->tunnel) /* tunnel_ended() has the tunnel's reason */
            link_left(l);
        return;
    }
    l->n_in += (size_t)n;
    l->heard_ms = clock_mono_ms();
    if (l->state == LINK_HANDSHAKES && l->n_in == HANDSHAKE_BYTES)
        handshake_taken(l);
    else if (l->state == LINK_FRAMES && (!l->accepted || !frames_take(l)))
        link_fail(l, "it sends other bytes than frames");
}

static void tunnel_ended(void *data, const struct titan_error *why)
{
    struct link *l = data;
    l->tunnel = NULL;
    if (why->status != TITAN_OK)
        link_fail(l, why->msg);
    else
        link_left(l);
    link_part_over(l);
}

/* A connection is there: TLS, then handshakes. Takes fd. */
static void link_handshake(struct link *l, int fd)
{
    struct transport *t = l->transport;
    struct titan_error err = {0};
    const int on = 1, interval_s = 1, probes = 3;
    const unsigned dead_ms = SILENT_MS;
    l->state = LINK_HANDSHAKES;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof(dead_ms));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    if (t->tunnels) {
        const enum rpc_tunnel_side side = l->accepted ? RPC_TUNNEL_ACCEPTS : RPC_TUNNEL_CONNECTS;
        int inner = -1;
        if (rpc_tunnel_open(t->tunnels, fd, side, tunnel_ended, l, &l->tunnel, &inner, &err) != TITAN_OK) {
            link_fail(l, err.msg);
            return;
        }
        l->parts++; /* the tunnel */
        fd = inner;
    }
    uv_pipe_t *pipe = t->tunnels ? raft_malloc(sizeof(*pipe)) : NULL;
    uv_tcp_t *tcp = t->tunnels ? NULL : raft_malloc(sizeof(*tcp));
    if (!pipe && !tcp) {
        (void)close(fd);
        link_fail(l, "no memory");
        return;
    }
    int rc;
    if (pipe) {
        (void)uv_pipe_init(t->loop, pipe, 0);
        rc = uv_pipe_open(pipe, fd);
        l->stream = (uv_stream_t *)pipe;
    } else {
        (void)uv_tcp_init(t->loop, tcp);
        rc = uv_tcp_open(tcp, fd);
        l->stream = (uv_stream_t *)tcp;
    }
    l->stream->data = l;
    l->parts++; /* the stream */
    if (rc != 0)
        (void)close(fd);
    if (rc != 0 || (!l->accepted && !handshake_send(l)) || uv_read_start(l->stream, on_alloc, on_read) != 0)
        link_fail(l, "its socket cannot be used");
}

/* --- accepting ---------------------------------------------------------------------------------------------------- */

static void on_accepted(void *data, int fd, enum rpc_listener_kind kind)
{
    struct transport *t = data;
    struct sockaddr_storage peer = {0};
    socklen_t len = sizeof(peer);
    (void)kind;
    struct link *l = fd >= 0 && t->n_accepting < ACCEPTING_MAX ? link_new(t, true, -1, HANDSHAKE_FRAMES) : NULL;
    if (!l) {
        refused(t, NULL, fd < 0 ? "descriptors are short" : "too many connections without a handshake");
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    char host[INET6_ADDRSTRLEN] = "", port[8] = "";
    if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0)
        (void)getnameinfo((struct sockaddr *)&peer, len, host, sizeof(host), port, sizeof(port),
                          NI_NUMERICHOST | NI_NUMERICSERV);
    (void)snprintf(l->peer, sizeof(l->peer), "%s:%s", host, port);
    link_handshake(l, fd);
}

/* --- connecting --------------------------------------------------------------------------------------------------- */

static void connect_next(struct link *l);

/* The address that was tried is closed. */
static void on_tried(uv_handle_t *handle)
{
    struct link *l = handle->data;
    if (l->state == LINK_BETWEEN)
        connect_next(l);
    link_part_over(l);
}

static void on_connected(uv_connect_t *request, int status)
{
    HANDLER("ha.connect");
    struct link *l = request->data;
    uv_os_fd_t fd;
    if (l->state != LINK_CONNECTS)
        return; /* link_end() has closed the handle */
    const int own = status == 0 && uv_fileno((uv_handle_t *)&l->tcp, &fd) == 0 ? dup(fd) : -1;
    l->at = l->at->ai_next;
    l->state = LINK_BETWEEN;
    uv_close((uv_handle_t *)&l->tcp, on_tried);
    if (own >= 0)
        link_handshake(l, own);
    else if (!l->at)
        link_end(l); /* a member that is not there is no wrong peer; the next attempt comes soon */
}

static void connect_next(struct link *l)
{
    l->state = LINK_CONNECTS;
    (void)uv_tcp_init(l->transport->loop, &l->tcp);
    l->parts++;
    if (uv_tcp_connect(&l->connect, &l->tcp, l->at->ai_addr, on_connected) != 0)
        link_end(l);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    HANDLER("ha.resolve");
    struct link *l = request->data;
    l->found = l->at = found;
    if (l->state == LINK_RESOLVES && status == 0 && found)
        connect_next(l);
    else if (l->state == LINK_RESOLVES)
        link_fail(l, uv_strerror(status ? status : UV_EAI_NONAME));
    link_part_over(l);
}

/* False: no memory. */
static bool connect_begin(struct transport *t, int member, struct raft_uv_connect *request, uint64_t raft_id,
                          raft_uv_connect_cb cb)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const char *address = t->members.at[member].address, *port = strrchr(address, ':') + 1;
    const bool brackets = address[0] == '[';
    char host[HA_ADDRESS_MAX];
    struct link *l = link_new(t, false, member, request ? HANDSHAKE_RAFT : HANDSHAKE_FRAMES);
    if (!l)
        return false;
    (void)snprintf(host, sizeof(host), "%.*s", (int)(port - 1 - address) - 2 * brackets, address + brackets);
    l->parts++; /* the request */
    if (uv_getaddrinfo(t->loop, &l->resolve, on_resolved, host, port, &hints) != 0) {
        l->state = LINK_BETWEEN;
        link_end(l);
        link_part_over(l);
        return false;
    }
    l->raft = request;
    l->raft_cb = cb;
    l->raft_id = raft_id;
    if (!request)
        t->peers[member].out = l;
    return true;
}

static void on_timer(uv_timer_t *timer)
{
    HANDLER("ha.timer");
    struct transport *t = timer->data;
    const int64_t now = clock_mono_ms();
    for (int i = 0; i < t->members.n; i++)
        if (i != t->self && !t->peers[i].out && now >= t->peers[i].retry_ms)
            (void)connect_begin(t, i, NULL, 0, NULL);
}

/* --- for libraft -------------------------------------------------------------------------------------------------- */

static int raft_side_init(struct raft_uv_transport *raft, raft_id id, const char *address)
{
    const struct transport *t = raft->impl;
    titan_assert(id == t->own.id && strcmp(address, t->members.at[t->self].address) == 0);
    return 0;
}

static int raft_side_listen(struct raft_uv_transport *raft, raft_uv_accept_cb cb)
{
    struct transport *t = raft->impl;
    t->accept = cb;
    return 0;
}

static int raft_side_connect(struct raft_uv_transport *raft, struct raft_uv_connect *request, raft_id id,
                             const char *address, raft_uv_connect_cb cb)
{
    struct transport *t = raft->impl;
    for (int i = 0; i < t->members.n; i++)
        if (i != t->self && strcmp(t->members.at[i].address, address) == 0)
            return connect_begin(t, i, request, id, cb) ? 0 : RAFT_NOMEM;
    (void)snprintf(raft->errmsg, sizeof(raft->errmsg), "no member has the address %.100s", address);
    return RAFT_NOCONNECTION;
}

static void raft_side_close(struct raft_uv_transport *raft, raft_uv_transport_close_cb cb)
{
    struct transport *t = raft->impl;
    t->accept = NULL;
    t->raft_closed = true;
    for (struct link *l = LIST_FIRST(&t->links), *next; l; l = next) {
        next = LIST_NEXT(l, entry); /* a link is freed later, by its handles */
        if (l->raft)
            link_end(l);
    }
    cb(raft);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

static void transport_part_over(struct transport *t)
{
    titan_assert(t->parts > 0);
    if (--t->parts > 0)
        return;
    titan_assert(t->closing && LIST_EMPTY(&t->links));
    void (*const done)(void *) = t->done;
    void *const done_data = t->done_data;
    free(t);
    if (done)
        done(done_data);
}

static void on_timer_closed(uv_handle_t *handle)
{
    transport_part_over(handle->data);
}

static void on_tunnels_closed(void *data)
{
    transport_part_over(data);
}

void transport_close(struct transport *t, void (*done)(void *), void *data)
{
    titan_assert(!t->closing && !t->accept);
    t->closing = true;
    t->done = done;
    t->done_data = data;
    rpc_listeners_close(&t->listeners);
    for (struct link *l = LIST_FIRST(&t->links), *next; l; l = next) {
        next = LIST_NEXT(l, entry);
        link_end(l);
    }
    uv_close((uv_handle_t *)&t->timer, on_timer_closed);
    if (t->tunnels) {
        t->parts++;
        rpc_tunnels_close(TAKE(t->tunnels), on_tunnels_closed, t);
    }
}

titan_status transport_open(uv_loop_t *loop, const struct transport_options *options, struct transport **ret,
                            struct titan_error *err)
{
    struct transport *t = calloc(1, sizeof(*t));
    if (!t)
        return titan_fail(err, TITAN_ENOMEM, "ha: no memory");
    *t = (struct transport){.loop = loop, .members = *options->members, .options = *options, .parts = 1};
    t->options.members = &t->members;
    t->self = ha_members_find(&t->members, options->name);
    titan_assert(t->self >= 0 && options->id > 0);
    t->own = (struct handshake){.version = HANDSHAKE_VERSION,
                                .id = options->id,
                                .members = ha_members_hash(&t->members),
                                .store_id = options->store_id};
    memcpy(t->own.name, t->members.at[t->self].name, HA_NAME_MAX);
    log_init(&t->log, "ha", "member=%s", t->own.name);
    t->raft =
        (struct raft_uv_transport){LIBRAFT_TRANSPORT_VERSION.impl = t, .init = raft_side_init,
                                   .listen = raft_side_listen, .connect = raft_side_connect, .close = raft_side_close};
    t->listeners = (struct rpc_listeners){.accepted = on_accepted, .data = t, .spare_fd = -1};
    titan_status status = rpc_listeners_add(&t->listeners, options->listen, options->tls != NULL, 0, NULL, err);
    if (status == TITAN_OK && options->tls)
        status = rpc_tunnels_open(loop, options->tls, &t->tunnels, err);
    (void)uv_timer_init(loop, &t->timer);
    t->timer.data = t;
    if (status == TITAN_OK)
        status = rpc_listeners_start(&t->listeners, loop, err);
    if (status != TITAN_OK) {
        transport_close(t, NULL, NULL);
        return status;
    }
    (void)uv_timer_start(&t->timer, on_timer, 0, RETRY_MS / 2);
    *ret = t;
    return TITAN_OK;
}

struct raft_uv_transport *transport_raft(struct transport *t)
{
    return &t->raft;
}

uint64_t transport_id(const struct transport *t, int member)
{
    return t->peers[member].id;
}

bool transport_reached(const struct transport *t, int member)
{
    return t->peers[member].out && t->peers[member].out->state == LINK_FRAMES;
}

struct transport_counters transport_counters(const struct transport *t)
{
    return t->counters;
}
