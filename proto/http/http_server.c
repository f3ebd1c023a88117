/* SPDX-License-Identifier: Apache-2.0 */
/* http_server.c - see http_server.h. A connection is freed when libmicrohttpd has closed it and, with TLS, the proxy
 * has ended it. */
#include "proto/http/http_server.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/slowest.h"
#include "base/utf8.h"
#include "proto/rpc/listener.h"
#include "proto/rpc/pair.h"
#include "proto/rpc/proxy.h"

enum {
    REFUSAL_SAID_MS = 60000,
    SPARE_CONNECTIONS = 8, /* libmicrohttpd's own limit is never reached */
    PAIR_BUFFER = 64 << 10,
    STREAM_BLOCK = 4096,
};

struct connection {
    struct rpc_proxy_connection proxy; /* used with TLS only */
    LIST_ENTRY(connection) link;
    struct http_server *server;
    int fd; /* libmicrohttpd's descriptor */
    struct sockaddr_storage peer;
    uint8_t address[16];          /* the peer's, of IPv6 the first half */
    struct rpc_identity identity; /* of a client without a certificate */
    bool tls;
    bool ended, closed;             /* by the proxy; by libmicrohttpd */
    bool asking;                    /* a request line has come, and no answer has gone yet */
    bool answered;                  /* a request was answered */
    bool cut;                       /* its time was over, or its client has left */
    int64_t until_ms;               /* monotonic */
    struct http_exchange *exchange; /* NULL = the last request was answered at once */
};

struct http_exchange {
    struct connection *connection;
    struct MHD_Connection *mhd;
    const struct http_later *later;
    void *data;
    struct http_body *body; /* of an answer; NULL = none yet */
    unsigned status;
    struct MHD_Response *stream; /* until it is queued */
    struct buf queue;            /* of a stream; bytes up to `at` are libmicrohttpd's */
    size_t at;
    bool answered;  /* libmicrohttpd has the answer, or the head of the stream */
    bool suspended; /* libmicrohttpd leaves the connection alone */
    bool over;      /* the stream ends behind its queue */
    bool full;      /* drained() is due when there is room */
};

struct http_server {
    uv_loop_t *loop;
    struct log log;
    struct http_server_options options;
    struct MHD_Daemon *daemon;
    struct connection *adding; /* the connection that libmicrohttpd is being given */
    struct rpc_listeners listeners;
    struct rpc_pair *pair; /* NULL = no TLS */
    struct rpc_queue queue;
    struct rpc_proxy *proxy; /* with TLS */
    LIST_HEAD(http_connections, connection) connections;
    struct http_counters counters;
    int64_t refusal_reported_ms;
    uint32_t n_exchanges;
    bool resumed;       /* a connection waits for libmicrohttpd's next run */
    int64_t look_at_ms; /* the next look for clients that have left */
    struct http_body *not_allowed, *no_body, *broken;
    uv_poll_t poll;
    uv_timer_t timer;
    int open_handles;
    bool tls; /* the queue runs */
    bool listening, closing;
    void (*done)(void *);
    void *done_data;
};

/* --- bodies ------------------------------------------------------------------------------------------------------- */
/* A body is a response of libmicrohttpd, which counts its references. It has none for a further owner, so we count. */

struct http_body {
    struct MHD_Response *response;
    uint32_t n;
};

static bool response_headers(struct MHD_Response *r, const char *type)
{
    return MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES &&
           MHD_add_response_header(r, "X-Content-Type-Options", "nosniff") == MHD_YES &&
           MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store") == MHD_YES;
}

static struct MHD_Response *response_new(const char *text, size_t len, enum MHD_ResponseMemoryMode mode,
                                         const char *type)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(len, (void *)(uintptr_t)text, mode);
    if (r && !response_headers(r, type)) {
        MHD_destroy_response(r);
        r = NULL;
    }
    return r;
}

struct http_body *http_body_new(struct buf *text, const char *type)
{
    struct http_body *body = buf_failed(text) ? NULL : calloc(1, sizeof(*body));
    const size_t len = text->len;
    if (body && len > 0)
        body->response = response_new(text->data, len, MHD_RESPMEM_MUST_FREE, type);
    else if (body)
        body->response = response_new("", 0, MHD_RESPMEM_PERSISTENT, type);
    if (!body || !body->response) {
        free(body);
        buf_free(text);
        return NULL;
    }
    if (len > 0)
        *text = BUF_INIT; /* libmicrohttpd frees the memory */
    body->n = 1;
    return body;
}

struct http_body *http_body_static(const char *text, size_t len, const char *type)
{
    struct http_body *body = calloc(1, sizeof(*body));
    if (body && !(body->response = response_new(text, len, MHD_RESPMEM_PERSISTENT, type))) {
        free(body);
        return NULL;
    }
    if (body)
        body->n = 1;
    return body;
}

bool http_body_header(struct http_body *body, const char *name, const char *value)
{
    const char *const old = MHD_get_response_header(body->response, name);
    if (old)
        (void)MHD_del_response_header(body->response, name, old);
    return MHD_add_response_header(body->response, name, value) == MHD_YES;
}

struct http_body *http_body_ref(struct http_body *body)
{
    body->n++;
    return body;
}

void http_body_unref(struct http_body *body)
{
    titan_assert(!body || body->n > 0);
    if (!body || --body->n > 0)
        return;
    MHD_destroy_response(body->response);
    free(body);
}

static struct http_body *line(const char *text)
{
    struct buf b = BUF_INIT;
    buf_puts(&b, text);
    return http_body_new(&b, "text/plain; charset=utf-8");
}

/* --- connections -------------------------------------------------------------------------------------------------- */

static void connection_free(struct connection *c)
{
    struct http_server *s = c->server;
    if (!c->closed || (c->tls && !c->ended))
        return;
    titan_assert(s->counters.open > 0 && !c->exchange);
    s->counters.open--;
    if (c->tls && !c->cut && c->proxy.why.status == TITAN_ETIMEDOUT)
        s->counters.late++;
    else if (c->tls && c->proxy.why.status == TITAN_EPERM)
        s->counters.handshakes++;
    else if ((c->asking || !c->answered) && !c->cut && !s->closing)
        s->counters.malformed++;
    LIST_REMOVE(c, link);
    free(c);
}

static void connection_ended(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct connection *c = tag->owner;
    c->ended = true;
    connection_free(c);
}

/* Runs libmicrohttpd's timers and our own deadlines at their times. */
static void schedule(struct http_server *s);

static void run(struct http_server *s)
{
    s->resumed = false;
    (void)MHD_run(s->daemon);
    schedule(s);
}

static void on_timer(uv_timer_t *timer);

/* libmicrohttpd goes on with the connection in the next turn of the loop: its epoll descriptor does not tell of it. */
static void resume(struct http_exchange *x)
{
    struct http_server *s = x->connection->server;
    if (!x->suspended)
        return;
    x->suspended = false;
    MHD_resume_connection(x->mhd);
    s->resumed = true;
    if (!s->closing)
        (void)uv_timer_start(&s->timer, on_timer, 0, 0);
}

static void suspend(struct http_exchange *x)
{
    titan_assert(!x->suspended);
    x->suspended = true;
    MHD_suspend_connection(x->mhd);
}

static void on_timer(uv_timer_t *timer)
{
    HANDLER("http.timer");
    struct http_server *s = timer->data;
    const int64_t now_ms = clock_mono_ms();
    const bool looks = s->n_exchanges > 0 && now_ms >= s->look_at_ms;
    for (struct connection *c = LIST_FIRST(&s->connections); c; c = LIST_NEXT(c, link)) {
        const bool late = now_ms >= c->until_ms, waits = c->exchange && c->exchange->suspended;
        char byte;
        ssize_t n;
        if (c->cut || c->closed || !(late || (looks && waits)))
            continue;
        /* libmicrohttpd does not look at the socket of a suspended connection */
        if (!late && ((n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT)) > 0 || (n < 0 && errno == EAGAIN)))
            continue;
        c->cut = true;
        s->counters.late += late;
        (void)shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd sees a client that has left */
        if (waits)
            resume(c->exchange);
    }
    if (looks)
        s->look_at_ms = now_ms + s->options.look_ms;
    run(s);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    HANDLER("http");
    (void)status;
    (void)events;
    run(poll->data);
}

static void schedule(struct http_server *s)
{
    MHD_UNSIGNED_LONG_LONG due_ms = 0;
    int64_t wait_ms = MHD_get_timeout(s->daemon, &due_ms) == MHD_YES ? (int64_t)due_ms : INT64_MAX;
    const int64_t now_ms = clock_mono_ms();
    for (const struct connection *c = LIST_FIRST(&s->connections); c; c = LIST_NEXT(c, link))
        if (!c->cut && !c->closed)
            wait_ms = MIN(wait_ms, MAX(c->until_ms - now_ms, INT64_C(0)));
    if (s->resumed)
        wait_ms = 0;
    if (s->n_exchanges > 0)
        wait_ms = MIN(wait_ms, MAX(s->look_at_ms - now_ms, INT64_C(0)));
    if (s->closing || wait_ms == INT64_MAX)
        (void)uv_timer_stop(&s->timer);
    else
        (void)uv_timer_start(&s->timer, on_timer, (uint64_t)wait_ms, 0);
}

static void on_notify(void *data, struct MHD_Connection *m, void **context, enum MHD_ConnectionNotificationCode what)
{
    struct http_server *s = data;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        titan_assert(s->adding);
        *context = s->adding;
        s->adding->fd = MHD_get_connection_info(m, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        return;
    }
    struct connection *c = *context;
    titan_assert(c && !c->closed);
    c->closed = true;
    if (c != s->adding)
        connection_free(c);
}

static void refused(struct http_server *s, const char *why)
{
    const int64_t now_ms = clock_mono_ms();
    s->counters.beyond_limit++;
    if (s->refusal_reported_ms && now_ms - s->refusal_reported_ms < REFUSAL_SAID_MS)
        return;
    s->refusal_reported_ms = now_ms;
    tlog_warn(&s->log, "connections are refused", "reason=\"%s\" refused=%" PRIu64, why, s->counters.beyond_limit);
}

/* Fills in the peer's address. Returns NULL, or the reason why the connection is refused. */
static const char *look_at_peer(struct connection *c, int fd)
{
    struct http_server *s = c->server;
    socklen_t len = sizeof(c->peer);
    uint32_t n = 0;
    if (getpeername(fd, (struct sockaddr *)&c->peer, &len) != 0)
        return "they are gone already";
    if (c->peer.ss_family == AF_INET6) {
        const struct in6_addr *a = &((struct sockaddr_in6 *)&c->peer)->sin6_addr;
        memcpy(c->address, a, IN6_IS_ADDR_V4MAPPED(a) ? 16 : 8); /* one host can choose the second half */
    } else {
        memcpy(c->address, &((struct sockaddr_in *)&c->peer)->sin_addr, 4);
    }
    for (const struct connection *x = LIST_FIRST(&s->connections); x; x = LIST_NEXT(x, link))
        n += memcmp(x->address, c->address, sizeof(c->address)) == 0;
    if (n >= s->options.max_peer_connections)
        return "too many connections from one address";
    return s->counters.open >= s->options.max_connections ? "too many connections" : NULL;
}

/* Gives libmicrohttpd the connection: with TLS, one end of a socket pair whose other end is the proxy's. Takes fd. */
static const char *connection_open(struct connection *c, int fd)
{
    struct http_server *s = c->server;
    _cleanup_fd_ int own = fd, outer = -1;
    int pair[2];
    const int buffer = PAIR_BUFFER;
    int inner = fd;
    if (c->tls) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
            return "descriptors are short";
        outer = pair[0];
        inner = pair[1];
        for (int i = 0; i < 2; i++)
            (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
        c->proxy.plain = true;
        c->proxy.ended = (struct rpc_tag){.fn = connection_ended, .owner = c};
        c->proxy.tls = rpc_pair_accept(s->pair, fd, RPC_HTTP_1_1, false);
        if (!c->proxy.tls) {
            (void)close(inner);
            return "there is no memory";
        }
    } else {
        (void)TAKE_FD(own);
    }
    s->counters.open++;
    s->counters.connections++;
    LIST_INSERT_HEAD(&s->connections, c, link);
    s->adding = c;
    const enum MHD_Result added =
        MHD_add_connection(s->daemon, inner, (struct sockaddr *)&c->peer,
                           c->peer.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
    s->adding = NULL;
    if (added != MHD_YES) { /* inner is closed */
        SSL_free(TAKE(c->proxy.tls));
        LIST_REMOVE(c, link);
        s->counters.open--;
        return "there is no memory";
    }
    if (c->tls)
        rpc_proxy_add(s->proxy, &c->proxy, TAKE_FD(own), TAKE_FD(outer));
    return NULL;
}

static void connection_accepted(void *data, int fd, enum rpc_listener_kind kind)
{
    struct http_server *s = data;
    struct connection *c = fd < 0 ? NULL : calloc(1, sizeof(*c));
    if (!c) {
        refused(s, fd < 0 ? "descriptors are short" : "there is no memory");
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    c->server = s;
    c->tls = kind == RPC_LISTENER_TLS;
    c->identity = (struct rpc_identity){.secure = c->tls, .uid = (uid_t)-1, .gid = (gid_t)-1, .name = "anonymous"};
    c->until_ms = clock_mono_ms() + s->options.head_ms;
    const char *why = look_at_peer(c, fd);
    if (why)
        (void)close(fd);
    else
        why = connection_open(c, fd);
    if (why) {
        free(c);
        refused(s, why);
    }
    run(s);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static struct connection *connection_of(struct MHD_Connection *m)
{
    return MHD_get_connection_info(m, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* Leaves "%2e" as it is: no page has such a name. */
static size_t not_decoded(void *data, struct MHD_Connection *m, char *text)
{
    (void)data;
    (void)m;
    return strlen(text);
}

/* A request line has come. */
static void *on_uri(void *data, const char *uri, struct MHD_Connection *m)
{
    (void)data;
    (void)uri;
    connection_of(m)->asking = true;
    return NULL;
}

static void peer_text(const struct sockaddr_storage *peer, char *out, size_t cap)
{
    char host[INET6_ADDRSTRLEN] = "";
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)peer;
    const struct sockaddr_in *four = (const struct sockaddr_in *)peer;
    const bool is_six = peer->ss_family == AF_INET6;
    (void)inet_ntop(peer->ss_family, is_six ? (const void *)&six->sin6_addr : &four->sin_addr, host, sizeof(host));
    (void)snprintf(out, cap, is_six ? "http:[%s]:%u" : "http:%s:%u", host,
                   ntohs(is_six ? six->sin6_port : four->sin_port));
}

static void on_completed(void *data, struct MHD_Connection *m, void **request, enum MHD_RequestTerminationCode code)
{
    struct http_server *s = data;
    struct connection *c = connection_of(m);
    struct http_exchange *x = TAKE(c->exchange);
    (void)request;
    if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        c->until_ms = clock_mono_ms() + s->options.idle_ms;
    if (!x)
        return;
    titan_assert(s->n_exchanges > 0 && !x->suspended);
    s->n_exchanges--;
    if (x->later->ended)
        x->later->ended(x->data);
    if (x->stream)
        MHD_destroy_response(x->stream);
    http_body_unref(x->body);
    buf_free(&x->queue);
    free(x);
}

static enum MHD_Result reply(struct MHD_Connection *m, unsigned status, struct http_body *body)
{
    struct connection *c = connection_of(m);
    c->asking = false;
    c->answered = true;
    c->until_ms = clock_mono_ms() + c->server->options.send_ms;
    if (status == MHD_HTTP_UNAUTHORIZED && !MHD_get_response_header(body->response, MHD_HTTP_HEADER_WWW_AUTHENTICATE) &&
        MHD_add_response_header(body->response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer") != MHD_YES)
        return MHD_NO;
    return MHD_queue_response(m, status, body->response);
}

/* The answer that has come, if it has. */
static enum MHD_Result answer_later(struct MHD_Connection *m, struct http_exchange *x)
{
    struct connection *c = x->connection;
    if (c->cut)
        return MHD_NO;
    if (!x->stream && !x->body) {
        c->asking = false;
        c->answered = true;
        c->until_ms = clock_mono_ms() + c->server->options.send_ms;
        suspend(x);
        return MHD_YES;
    }
    x->answered = true;
    if (x->body)
        return reply(m, x->status, x->body);
    c->until_ms = clock_mono_ms() + c->server->options.send_ms;
    const enum MHD_Result rc = MHD_queue_response(m, MHD_HTTP_OK, x->stream);
    MHD_destroy_response(TAKE(x->stream)); /* libmicrohttpd has its own reference */
    return rc;
}

/* libmicrohttpd asks for more of a stream: what it had is with the kernel. */
static ssize_t on_read(void *data, uint64_t position, char *out, size_t max)
{
    struct http_exchange *x = data;
    struct connection *c = x->connection;
    const size_t n = MIN(max, x->queue.len - x->at);
    (void)position;
    if (c->cut)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n == 0 && x->over)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0) {
        c->until_ms = INT64_MAX;
        suspend(x);
        return 0;
    }
    memcpy(out, x->queue.data + x->at, n);
    x->at += n;
    c->until_ms = clock_mono_ms() + c->server->options.send_ms;
    if (x->at == x->queue.len) {
        buf_clear(&x->queue);
        x->at = 0;
    }
    if (x->full && x->queue.len - x->at <= HTTP_QUEUE_MAX / 2) {
        x->full = false;
        if (x->later->drained)
            x->later->drained(x->data);
    }
    return (ssize_t)n;
}

struct http_exchange *http_answer_later(const struct http_request *r, struct http_answer *a,
                                        const struct http_later *later, void *data)
{
    struct MHD_Connection *const m = r->of;
    struct connection *c = connection_of(m);
    struct http_exchange *x = calloc(1, sizeof(*x));
    titan_assert(!c->exchange);
    if (!x)
        return NULL;
    *x = (struct http_exchange){.connection = c, .mhd = m, .later = later, .data = data};
    if (c->server->n_exchanges++ == 0)
        c->server->look_at_ms = clock_mono_ms() + c->server->options.look_ms;
    c->exchange = a->later = x;
    return x;
}

void http_exchange_answer(struct http_exchange *x, unsigned status, struct http_body *body)
{
    titan_assert(!x->body && !x->stream && !x->answered);
    x->status = body ? status : MHD_HTTP_INTERNAL_SERVER_ERROR;
    x->body = body ? body : http_body_ref(x->connection->server->broken);
    resume(x);
}

bool http_exchange_stream(struct http_exchange *x, const char *type)
{
    titan_assert(!x->body && !x->stream && !x->answered);
    x->stream = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, on_read, x, NULL);
    if (x->stream && !response_headers(x->stream, type))
        MHD_destroy_response(TAKE(x->stream));
    if (!x->stream)
        return false;
    resume(x);
    return true;
}

bool http_exchange_write(struct http_exchange *x, const char *text, size_t len)
{
    struct connection *c = x->connection;
    if (x->queue.len == x->at) /* its reader has all else */
        c->until_ms = clock_mono_ms() + c->server->options.send_ms;
    if (x->at > x->queue.len / 2) {
        buf_consume(&x->queue, x->at);
        x->at = 0;
    }
    const bool taken = buf_append(&x->queue, text, len) == TITAN_OK;
    c->cut = c->cut || !taken;
    if (x->answered)
        resume(x);
    return taken;
}

bool http_exchange_has_room(struct http_exchange *x)
{
    x->full = x->queue.len - x->at >= HTTP_QUEUE_MAX;
    return !x->full;
}

void http_exchange_end(struct http_exchange *x)
{
    x->over = true;
    if (x->answered)
        resume(x);
}

/* Decodes %XX in place. False: no UTF-8 without NUL. */
static bool decode(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++) {
        char two[3] = {0};
        if (*at != '%') {
            *to++ = *at;
            continue;
        }
        if (!isxdigit((unsigned char)at[1]) || !isxdigit((unsigned char)at[2]))
            return false;
        memcpy(two, at + 1, 2);
        *to = (char)strtol(two, NULL, 16);
        if (!*to++)
            return false;
        at += 2;
    }
    *to = '\0';
    return utf8_check(text, (size_t)(to - text)) == (size_t)(to - text);
}

struct fields {
    bool (*each)(const char *name, const char *value, void *data);
    void *data;
    bool ok;
};

static enum MHD_Result on_field(void *data, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct fields *f = data;
    (void)kind;
    _cleanup_free_ char *own_name = strdup(name), *own_value = strdup(value ? value : "");
    f->ok = own_name && own_value && decode(own_name) && decode(own_value) && f->each(own_name, own_value, f->data);
    return f->ok ? MHD_YES : MHD_NO;
}

bool http_request_fields(const struct http_request *r, bool (*each)(const char *name, const char *value, void *data),
                         void *data)
{
    struct fields f = {each, data, true};
    (void)MHD_get_connection_values(r->of, MHD_GET_ARGUMENT_KIND, on_field, &f);
    return f.ok;
}

static const char *header(struct MHD_Connection *m, const char *name)
{
    return MHD_lookup_connection_value(m, MHD_HEADER_KIND, name);
}

static enum MHD_Result on_request(void *data, struct MHD_Connection *m, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_size, void **request)
{
    static char begun;
    struct http_server *s = data;
    struct connection *c = connection_of(m);
    (void)version;
    (void)upload;
    if (*request != &begun) { /* the head is there; an answer now ends the connection behind it */
        const char *length = header(m, MHD_HTTP_HEADER_CONTENT_LENGTH);
        *request = &begun;
        if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
            return reply(m, MHD_HTTP_METHOD_NOT_ALLOWED, s->not_allowed);
        if ((length && strcmp(length, "0") != 0) || header(m, MHD_HTTP_HEADER_TRANSFER_ENCODING))
            return reply(m, MHD_HTTP_BAD_REQUEST, s->no_body);
        return MHD_YES;
    }
    if (*upload_size > 0)
        return MHD_NO;
    if (c->exchange)
        return answer_later(m, c->exchange);
    const bool proved = c->tls && atomic_load(&c->proxy.identified);
    char peer[sizeof("http:[]:65535") + INET6_ADDRSTRLEN];
    peer_text(&c->peer, peer, sizeof(peer));
    const struct http_request r = {.path = url,
                                   .host = header(m, MHD_HTTP_HEADER_HOST),
                                   .accept = header(m, MHD_HTTP_HEADER_ACCEPT),
                                   .authorization = header(m, MHD_HTTP_HEADER_AUTHORIZATION),
                                   .if_none_match = header(m, MHD_HTTP_HEADER_IF_NONE_MATCH),
                                   .last_event_id = header(m, "Last-Event-ID"),
                                   .peer = peer,
                                   .identity = proved ? &c->proxy.identity : &c->identity,
                                   .of = m};
    struct http_answer a = {.status = MHD_HTTP_INTERNAL_SERVER_ERROR};
    s->options.answer(&r, &a, s->options.data);
    if (c->exchange)
        return answer_later(m, c->exchange);
    const enum MHD_Result rc =
        reply(m, a.body ? a.status : MHD_HTTP_INTERNAL_SERVER_ERROR, a.body ? a.body : s->broken);
    http_body_unref(a.body); /* libmicrohttpd has its own reference */
    return rc;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void server_free(struct http_server *s)
{
    http_body_unref(s->not_allowed);
    http_body_unref(s->no_body);
    http_body_unref(s->broken);
    rpc_pair_free(s->pair);
    free(s);
}

titan_status http_server_open(uv_loop_t *loop, const struct http_server_options *options, struct http_server **ret,
                              struct titan_error *err)
{
    struct http_server *s = calloc(1, sizeof(*s));
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "http: no memory");
    s->loop = loop;
    s->options = *options;
    struct http_server_options *o = &s->options;
#define DEFAULT(name, value) o->name = o->name ? o->name : (value)
    DEFAULT(max_connections, 64);
    DEFAULT(max_peer_connections, 16);
    DEFAULT(head_ms, 10000);
    DEFAULT(send_ms, 30000);
    DEFAULT(idle_ms, 120000);
    DEFAULT(look_ms, 5000);
#undef DEFAULT
    log_init(&s->log, "http", "%s", "");
    s->listeners = (struct rpc_listeners){.spare_fd = -1, .accepted = connection_accepted, .data = s};
    s->not_allowed = line("only GET and HEAD are served here\n");
    s->no_body = line("a request with a body is not taken here\n");
    s->broken = line("there is no memory for an answer\n");
    if (s->not_allowed &&
        MHD_add_response_header(s->not_allowed->response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD") == MHD_YES &&
        s->no_body && s->broken)
        s->daemon = MHD_start_daemon(
            MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, s,
            MHD_OPTION_CONNECTION_LIMIT, (unsigned)(o->max_connections + SPARE_CONNECTIONS),
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_HEAD_MAX, MHD_OPTION_NOTIFY_CONNECTION, on_notify, s,
            MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_URI_LOG_CALLBACK, on_uri, s,
            MHD_OPTION_UNESCAPE_CALLBACK, not_decoded, NULL, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!s->daemon) {
        server_free(s);
        return titan_fail(err, TITAN_ENOMEM, "http: libmicrohttpd does not start");
    }
    (void)uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    s->open_handles = 1;
    *ret = s;
    return TITAN_OK;
}

titan_status http_server_listen(struct http_server *s, const char *address, const struct rpc_tls *tls, int *ret_port,
                                struct titan_error *err)
{
    titan_assert(!s->listening && !s->closing && strncmp(address, "unix:", 5) != 0);
    if (tls && !tls->certificate[0])
        return titan_fail(err, TITAN_EINVAL, "tls: a server needs a certificate of its own");
    if (tls)
        TRY(rpc_pair_open(tls, &s->pair, err));
    TRY(rpc_listeners_add(&s->listeners, address, tls != NULL, 0, ret_port, err));
    if (tls) {
        rpc_library_enter();
        const titan_status status = rpc_queue_start(&s->queue, s->loop, err);
        if (status != TITAN_OK) {
            rpc_library_leave();
            return status;
        }
        s->tls = true;
        s->open_handles++; /* the queue */
        TRY(rpc_proxy_open(&s->queue, &s->proxy, err));
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info || uv_poll_init(s->loop, &s->poll, info->epoll_fd) != 0)
        return titan_fail(err, TITAN_EIO, "http: cannot watch libmicrohttpd");
    s->poll.data = s;
    s->open_handles++;
    s->listening = true;
    (void)uv_poll_start(&s->poll, UV_READABLE, on_readable);
    return rpc_listeners_start(&s->listeners, s->loop, err);
}

static void part_closed(void *data)
{
    struct http_server *s = data;
    titan_assert(s->open_handles > 0);
    if (--s->open_handles > 0)
        return;
    titan_assert(LIST_EMPTY(&s->connections));
    void (*done)(void *) = s->done;
    void *done_data = s->done_data;
    if (s->tls)
        rpc_library_leave();
    server_free(s);
    done(done_data);
}

static void handle_closed(uv_handle_t *handle)
{
    part_closed(handle->data);
}

void http_server_close(struct http_server *s, void (*done)(void *), void *data)
{
    titan_assert(!s->closing);
    s->closing = true;
    s->done = done;
    s->done_data = data;
    rpc_listeners_close(&s->listeners);
    if (s->listening)
        uv_close((uv_handle_t *)&s->poll, handle_closed); /* before libmicrohttpd closes the descriptor */
    for (struct connection *c = LIST_FIRST(&s->connections); c; c = LIST_NEXT(c, link))
        if (c->exchange) {
            c->cut = true;
            resume(c->exchange);
        }
    MHD_stop_daemon(TAKE(s->daemon));
    uv_close((uv_handle_t *)&s->timer, handle_closed);
    if (s->tls) {
        rpc_proxy_close(TAKE(s->proxy)); /* its ended tags must precede the queue's end */
        rpc_queue_stop(&s->queue, part_closed, s);
    }
}

struct http_counters http_server_counters(const struct http_server *s)
{
    return s->counters;
}
