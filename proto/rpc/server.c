/* SPDX-License-Identifier: Apache-2.0 */
/* server.c - see server.h.
 *
 * gRPC does not report a call's connection, and names an adopted connection by its descriptor's number, which is
 * reused. So each connection has a gRPC server of its own, with the memory quota of its user or address (tenant.h). A
 * connection is freed when the proxy has closed it, its gRPC server is down, and no call refers to it.
 *
 * A call starts as a slot offered to gRPC for the next call of a connection, and is freed when all its tags are back:
 *
 *   request_tag  a call took the slot (or the server shuts down)
 *   close_tag    RECV_CLOSE_ON_SERVER: the call has ended on the wire, in any way; informs the handler
 *   recv_tag     one RECV_MESSAGE at a time; the first after the caller is authorized
 *   send_tag     one batch at a time: headers, a message, the final status, as many of them as are due */
#include "proto/rpc/server.h"

#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/slowest.h"
#include "proto/rpc/common.h"
#include "proto/rpc/listener.h"
#include "proto/rpc/pair.h"
#include "proto/rpc/proxy.h"
#include "proto/rpc/services.h"
#include "proto/rpc/tenant.h"

enum {
    SLOTS_FIRST = 2,    /* calls accepted in one turn of the loop; further calls wait inside gRPC */
    SLOTS_MOST = 64,    /* the same limit for a connection that makes calls */
    FDS_RESERVED = 256, /* for the daemon's own work, never for connections */
    METADATA_MAX = 16384,
    STREAMS_MAX = 1024, /* concurrent calls of a connection */
    STREAMS_FACTOR = 4, /* a client may begin calls before it knows the limit */
    OWN_CALLS_MAX = 16, /* open calls of health and reflection, per uid or address */
    PAIR_BUFFER = 64 << 10,
    KEEPALIVE_MS = 30000,
    REFUSAL_SAID_MS = 60000,
};

struct endpoint {
    struct rpc_method method; /* path NULL: stands for all methods that are not served */
    void *data;
    bool own; /* health and reflection */
    uint64_t codes[RPC_CODES];
    struct histogram duration;
};

struct connection {
    struct rpc_proxy_connection proxy;
    LIST_ENTRY(connection) link; /* in server->connections, newest first */
    struct rpc_server *server;
    struct rpc_tenant *tenant;
    grpc_server *grpc;
    struct rpc_tag shutdown_tag;
    struct rpc_identity identity; /* identity of a client without a certificate */
    char peer[208];               /* "unix:USER", "ipv4:127.0.0.1:5000" */
    uint64_t named;               /* hash of the certificate or token of its calls; 0: none known */
    uint32_t n_begun;             /* calls whose first message has arrived and that have not ended */
    uint32_t n_slots;
    uint32_t n_alive;           /* slots and calls that refer to this connection */
    bool ended, shutting, down; /* closed by the proxy; gRPC's shutdown is requested, and done */
};

struct rpc_server {
    uv_loop_t *loop;
    struct rpc_queue queue;
    struct rpc_server_options options;
    struct rpc_listeners listeners;
    struct rpc_pair *pair;   /* files of the TLS listeners, or NULL */
    struct rpc_proxy *proxy; /* exists from the server's start to its end */
    struct rpc_tenants tenants;
    LIST_HEAD(connections, connection) connections;
    uint32_t n_up; /* connections that gRPC has not shut down */
    struct rpc_refusals refusals;
    int64_t refusal_reported_ms;
    struct endpoint *endpoints; /* the last endpoint stands for methods that are not served */
    struct rpc_services services;

    LIST_HEAD(open_calls, rpc_call) open;
    size_t n_calls; /* slots and calls alive */
    bool started, stopping, stopped;
    uv_timer_t timer;       /* finds late requests; during shutdown, ends the grace */
    uv_timer_t local_timer; /* ends local calls */
    int handles;            /* handles still open */
    void (*done)(void *);
    void *data;
};

struct rpc_call {
    struct rpc_server *server;
    struct connection *connection; /* NULL: a local call */
    const struct rpc_local *local; /* NULL: a call of gRPC */
    void *local_data;
    char *local_peer, *authorization;
    struct endpoint *endpoint;
    struct rpc_tenant *payer; /* the open call counts against this tenant; NULL: against none */
    grpc_call *call;
    unsigned pending; /* tags in flight */
    struct rpc_tag request_tag, close_tag, recv_tag, send_tag;
    LIST_ENTRY(rpc_call) link; /* in server->open, once its endpoint is known */

    grpc_metadata_array metadata;
    grpc_call_details details;
    grpc_byte_buffer *incoming;
    int cancelled;
    uint64_t opened_ms; /* loop's clock */
    int64_t taken_ns;   /* when the call came */

    bool begun;  /* its first message has arrived */
    bool opened; /* known to the handler */
    bool over;   /* no further exchange with the handler */
    bool left;   /* a local call without a client */
    bool receiving, recv_held;
    bool finishing; /* status is set; sent after the queue */
    bool finished;  /* status is in flight, or the stream is broken */
    bool want_drain;

    struct rpc_out out;
    titan_status status;
    grpc_slice status_text;

    void *user;
    struct rpc_identity identity;
    char *header; /* value of the last request */
};

/* --- call memory -------------------------------------------------------------------------------------------------- */

static void request_tag(struct rpc_tag *tag, bool ok);
static void close_tag(struct rpc_tag *tag, bool ok);
static void recv_tag(struct rpc_tag *tag, bool ok);
static void send_tag(struct rpc_tag *tag, bool ok);
static void connection_free(struct connection *c);
static void local_end_later(struct rpc_server *server);
static void shutdown_advance(struct rpc_server *server);

/* Offers gRPC a slot for the next call of the connection. Without memory the connection has one slot fewer, and its
 * calls wait for another slot. */
static void slot_offer(struct connection *c)
{
    struct rpc_server *server = c->server;
    struct rpc_call *call = c->shutting ? NULL : malloc(sizeof(*call));
    if (!call)
        return;
    *call = (struct rpc_call){.server = server, .connection = c, .pending = 1};
    call->request_tag = (struct rpc_tag){.fn = request_tag, .owner = call};
    call->close_tag = (struct rpc_tag){.fn = close_tag, .owner = call};
    call->recv_tag = (struct rpc_tag){.fn = recv_tag, .owner = call};
    call->send_tag = (struct rpc_tag){.fn = send_tag, .owner = call};
    rpc_out_clear(&call->out);
    call->status_text = grpc_empty_slice();
    grpc_metadata_array_init(&call->metadata);
    grpc_call_details_init(&call->details);
    server->n_calls++;
    c->n_alive++;
    const grpc_call_error rc = grpc_server_request_call(c->grpc, &call->call, &call->details, &call->metadata,
                                                        server->queue.cq, server->queue.cq, &call->request_tag);
    titan_assert(rc == GRPC_CALL_OK);
}

static void call_unref(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    struct connection *c = call->connection;
    titan_assert(call->pending > 0);
    if (--call->pending > 0)
        return;
    titan_assert(server->n_calls > 0 && c->n_alive > 0 && !call->payer);
    if (call->endpoint)
        LIST_REMOVE(call, link);
    rpc_out_clear(&call->out);
    if (call->incoming)
        grpc_byte_buffer_destroy(call->incoming);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    grpc_slice_unref(call->status_text);
    free(call->header);
    if (call->call)
        grpc_call_unref(call->call);
    server->n_calls--;
    free(call);
    c->n_alive--;
    connection_free(c);
}

static void batch(struct rpc_call *call, const grpc_op *ops, size_t n, struct rpc_tag *tag)
{
    call->pending++;
    rpc_batch(call->call, ops, n, tag);
}

static bool streams(const struct endpoint *e)
{
    return e->method.on_message || e->method.on_drain;
}

/* --- incoming ----------------------------------------------------------------------------------------------------- */

static void recv_next(struct rpc_call *call)
{
    if (call->receiving || call->over || call->finishing)
        return;
    /* If a client does not read its answers, the server stops reading from the client. */
    call->recv_held = call->out.n >= call->server->options.max_queue;
    if (call->recv_held)
        return;
    titan_assert(!call->incoming);
    call->receiving = true;
    const grpc_op ops[] = {{.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->incoming}};
    batch(call, ops, 1, &call->recv_tag);
}

static uint32_t message_max(const struct connection *c)
{
    const struct rpc_server_options *options = &c->server->options;
    return c->tenant->trusted ? options->max_message_bytes : options->max_user_message_bytes;
}

/* Decodes call->incoming; NULL: decoding has failed, and the call was ended. */
static ProtobufCMessage *take_message(struct rpc_call *call)
{
    struct titan_error err;
    ProtobufCMessage *message = NULL;
    const size_t most = message_max(call->connection); /* the proxy passes no message with more bytes */
    titan_assert(grpc_byte_buffer_length(call->incoming) <= most);
    if (rpc_unpack(call->incoming, call->endpoint->method.request, most * 8, &message, &err) != TITAN_OK)
        rpc_call_finish(call, err.status, err.msg);
    grpc_byte_buffer_destroy(TAKE(call->incoming));
    return message;
}

static void refused(struct rpc_server *server, const char *why)
{
    static const struct log log = {.subsystem = "rpc"};
    const int64_t now_ms = clock_mono_ms();
    server->refusals.connections++;
    if (server->refusal_reported_ms && now_ms - server->refusal_reported_ms < REFUSAL_SAID_MS)
        return;
    server->refusal_reported_ms = now_ms;
    tlog_warn(&log, "connections are refused", "reason=\"%s\" refused=%" PRIu64, why, server->refusals.connections);
}

/* Names a connection by the certificate or token of its calls. At one address, at most max_peer_connections connections
 * may have the same name; as many may have no name. */
static void connection_name(struct connection *c, const char *name)
{
    struct rpc_server *server = c->server;
    uint32_t n = 0;
    if (c->named || c->ended)
        return;
    c->named = hash_text(HASH_INIT, name) | 1;
    if (c->tenant->n_connections <= server->options.max_peer_connections)
        return;
    for (const struct connection *x = LIST_FIRST(&server->connections); x; x = LIST_NEXT(x, link))
        n += x->named == c->named && x->tenant == c->tenant && !x->ended;
    if (n <= server->options.max_peer_connections)
        return;
    refused(server, "too many connections of one certificate or token from one address");
    rpc_proxy_cut(server->proxy, &c->proxy, RPC_CUT_SOON);
}

static void recv_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    struct connection *c = call->connection;
    titan_assert(call->receiving);
    const struct endpoint *endpoint = call->endpoint;
    const struct rpc_server_options *options = &call->server->options;
    const bool streams = endpoint->method.on_message != NULL;
    ProtobufCMessage *message;
    struct titan_error err;
    call->receiving = false;
    if (call->over || call->finishing) {
        /* the caller is gone */
    } else if (!ok || !call->incoming) {
        if (streams)
            endpoint->method.on_message(call, NULL, endpoint->data);
        else
            rpc_call_finish(call, TITAN_EINVAL, "the request message is missing");
    } else if ((message = take_message(call))) {
        HANDLER(endpoint->method.path);
        const bool checks = !endpoint->own && !call->begun && options->check;
        if (!checks || options->check(call, &endpoint->method, message, endpoint->data, &err) == TITAN_OK) {
            call->opened = true;
            if (!call->begun) {
                const enum rpc_id_kind kind = call->identity.kind;
                call->begun = true;
                c->n_begun++;
                if (c->tenant->kind == RPC_ID_NONE && (kind == RPC_ID_CERT || kind == RPC_ID_TOKEN))
                    connection_name(c, call->identity.name);
            }
            (streams ? endpoint->method.on_message : endpoint->method.on_request)(call, message, endpoint->data);
        } else {
            rpc_call_fail(call, &err);
        }
        protobuf_c_message_free_unpacked(message, NULL);
        if (streams)
            recv_next(call);
    }
    call_unref(call);
}

static uint32_t first_ms(const struct rpc_call *call)
{
    return call->endpoint->method.first_ms ? call->endpoint->method.first_ms : call->server->options.request_ms;
}

/* Ends late requests, because an incomplete request counts against its user's calls. */
static void look_for_late(uv_timer_t *timer)
{
    struct rpc_server *server = timer->data;
    const uint64_t now = uv_now(server->loop);
    bool waits = false;
    for (struct rpc_call *call = LIST_FIRST(&server->open); call; call = LIST_NEXT(call, link)) {
        if (call->begun || !call->receiving || call->finishing || call->over)
            continue;
        if (now - call->opened_ms < first_ms(call)) {
            waits = true;
            continue;
        }
        char why[64];
        (void)snprintf(why, sizeof(why), "the request has not come whole within %g s", first_ms(call) / 1000.0);
        rpc_call_finish(call, TITAN_ETIMEDOUT, why);
    }
    if (!waits)
        (void)uv_timer_stop(timer);
}

/* Counts the call against its caller. Returns NULL, or the reason why the call is refused. */
static const char *charge(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    struct rpc_tenant *tenant = call->connection->tenant;
    const bool own = call->endpoint->own;
    if (tenant->trusted)
        return NULL;
    if (own && tenant->n_own_calls >= OWN_CALLS_MAX)
        return "too many calls of health and reflection are open from here";
    struct rpc_tenant *payer = rpc_tenant_of_call(&server->tenants, tenant, &call->identity);
    if (!payer || payer->n_calls >= server->options.max_user_calls) {
        if (payer)
            rpc_tenant_unref(&server->tenants, payer);
        return "too many calls of this user are open";
    }
    payer->n_calls++;
    tenant->n_own_calls += own;
    call->payer = payer;
    return NULL;
}

static void count_end(const struct rpc_call *call, int code)
{
    call->endpoint->codes[code >= 0 && code < RPC_CODES ? code : GRPC_STATUS_UNKNOWN]++;
    if (!streams(call->endpoint))
        histogram_add(&call->endpoint->duration, (double)(clock_mono_ns() - call->taken_ns) / 1e9);
}

static void close_tag(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_call *call = tag->owner;
    struct rpc_tenant *payer = TAKE(call->payer);
    titan_assert(!call->over);
    call->over = true;
    count_end(call, call->finished ? titan_status_grpc(call->status) : GRPC_STATUS_CANCELLED);
    if (payer) {
        titan_assert(payer->n_calls > 0);
        payer->n_calls--;
        call->connection->tenant->n_own_calls -= call->endpoint->own;
        rpc_tenant_unref(&call->server->tenants, payer);
    }
    if (call->begun) {
        titan_assert(call->connection->n_begun > 0);
        call->connection->n_begun--;
    }
    rpc_out_clear(&call->out);
    if (call->opened && call->endpoint->method.on_close)
        call->endpoint->method.on_close(call, call->cancelled != 0, call->endpoint->data);
    call_unref(call);
}

/* The identity that the client of a connection has proved. */
static void identify(const struct connection *c, struct rpc_identity *ret)
{
    *ret = atomic_load(&c->proxy.identified) ? c->proxy.identity : c->identity;
}

/* A call has taken the slot. */
static void request_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    struct connection *c = call->connection;
    struct rpc_server *server = call->server;
    const struct rpc_server_options *options = &server->options;
    struct endpoint *endpoint = server->endpoints;
    struct titan_error err;
    const char *beyond;
    if (!ok) {
        call->call = NULL;
        call_unref(call);
        return;
    }
    slot_offer(c);
    while (endpoint->method.path && grpc_slice_str_cmp(call->details.method, endpoint->method.path) != 0)
        endpoint++;
    call->endpoint = endpoint;
    call->taken_ns = clock_mono_ns();
    call->recv_tag.costly = endpoint->method.costly;
    identify(c, &call->identity);
    LIST_INSERT_HEAD(&server->open, call, link);

    const grpc_op ops[] = {
        {.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &call->cancelled}};
    batch(call, ops, 1, &call->close_tag);

    if (!endpoint->method.path) {
        rpc_call_finish(call, TITAN_EUNSUPPORTED, "no such method");
    } else if (c->shutting) {
        rpc_call_finish(call, TITAN_EUNREACHABLE, "the server is shutting down");
    } else if (!endpoint->own && options->authorize &&
               options->authorize(call, &endpoint->method, endpoint->data, &err) != TITAN_OK) {
        rpc_call_fail(call, &err);
    } else if ((beyond = charge(call))) {
        server->refusals.calls++;
        rpc_call_finish(call, TITAN_ELIMIT, beyond);
    } else {
        const uint32_t look_ms = first_ms(call) / 4;
        call->opened = endpoint->method.on_message != NULL;
        call->opened_ms = uv_now(server->loop);
        recv_next(call);
        if (!uv_is_active((uv_handle_t *)&server->timer) || uv_timer_get_repeat(&server->timer) > look_ms)
            (void)uv_timer_start(&server->timer, look_for_late, look_ms, look_ms);
    }

    /* A connection with rights gets more slots as it makes calls. */
    if (!call->finishing && !endpoint->own && c->n_slots < SLOTS_MOST) {
        c->n_slots++;
        slot_offer(c);
    }
    call_unref(call);
}

/* --- outgoing ----------------------------------------------------------------------------------------------------- */

/* Starts the next batch if none is in flight and something is due. */
static void pump(struct rpc_call *call)
{
    if (call->out.sending || call->finished || call->over || (!call->out.first && !call->finishing))
        return;
    grpc_op ops[3] = {0};
    size_t n = rpc_out_ops(&call->out, ops);
    grpc_metadata trailer;
    if (call->finishing && !call->out.first) {
        call->finished = true;
        ops[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[n].data.send_status_from_server.status = (grpc_status_code)titan_status_grpc(call->status);
        ops[n].data.send_status_from_server.status_details = &call->status_text;
        if (call->status != TITAN_OK) {
            trailer = (grpc_metadata){.key = grpc_slice_from_static_string(RPC_STATUS_TRAILER),
                                      .value = grpc_slice_from_static_string(titan_status_name(call->status))};
            ops[n].data.send_status_from_server.trailing_metadata_count = 1;
            ops[n].data.send_status_from_server.trailing_metadata = &trailer;
        }
        n++;
    }
    titan_assert(n > 0 && n <= ARRAY_SIZE(ops));
    call->out.sending = true;
    batch(call, ops, n, &call->send_tag);
}

static void send_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    rpc_out_sent(&call->out);
    if (!ok) {
        /* The stream is broken; close_tag will follow. */
        call->finishing = call->finished = true;
        rpc_out_clear(&call->out);
    } else if (!call->over) {
        pump(call);
        if (call->recv_held && call->out.n < call->server->options.max_queue)
            recv_next(call);
        const uint32_t most = call->endpoint->method.max_queue_bytes;
        if (call->want_drain && !call->finishing && call->out.n <= call->server->options.max_queue / 2 &&
            (!most || call->out.bytes <= most / 2)) {
            call->want_drain = false;
            if (call->endpoint->method.on_drain)
                call->endpoint->method.on_drain(call, call->endpoint->data);
        }
    }
    call_unref(call);
}

static titan_status has_room(struct rpc_call *call)
{
    if (call->over || call->finishing || call->left)
        return TITAN_ECANCELLED;
    if (call->local) {
        call->want_drain = call->local->has_room && !call->local->has_room(call->local_data);
        return call->want_drain ? TITAN_EAGAIN : TITAN_OK;
    }
    const uint32_t most = call->endpoint->method.max_queue_bytes;
    if (call->out.n >= call->server->options.max_queue || (most && call->out.bytes >= most)) {
        call->want_drain = true;
        return TITAN_EAGAIN;
    }
    return TITAN_OK;
}

titan_status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    TRY(has_room(call));
    if (call->local) {
        call->local->on_message(message, call->local_data);
        return TITAN_OK;
    }
    TRY(rpc_out_append(&call->out, rpc_pack(message)));
    pump(call);
    return TITAN_OK;
}

/* A packed message is really a buffer of gRPC; callers of the server do not see the buffer's type. */
struct rpc_packed *rpc_packed_new(const ProtobufCMessage *message)
{
    return (struct rpc_packed *)rpc_pack(message);
}

void rpc_packed_free(struct rpc_packed *packed)
{
    grpc_byte_buffer_destroy((grpc_byte_buffer *)packed);
}

titan_status rpc_call_send_packed(struct rpc_call *call, const struct rpc_packed *packed)
{
    TRY(has_room(call));
    if (call->local) {
        ProtobufCMessage *message;
        struct titan_error err;
        TRY(rpc_unpack((grpc_byte_buffer *)(uintptr_t)packed, call->local->reply, SIZE_MAX, &message, &err));
        call->local->on_message(message, call->local_data);
        protobuf_c_message_free_unpacked(message, NULL);
        return TITAN_OK;
    }
    grpc_byte_buffer *copy = grpc_byte_buffer_copy((grpc_byte_buffer *)(uintptr_t)packed); /* shares the bytes */
    TRY(rpc_out_append(&call->out, copy));
    pump(call);
    return TITAN_OK;
}

void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply)
{
    if (call->over || call->finishing)
        return;
    if (call->local && !call->left)
        call->local->on_message(reply, call->local_data);
    rpc_call_finish(call, call->local ? TITAN_OK : rpc_out_append(&call->out, rpc_pack(reply)), NULL);
}

void rpc_call_finish(struct rpc_call *call, titan_status status, const char *message)
{
    if (call->over || call->finishing)
        return;
    call->finishing = true;
    call->status = status;
    if (status != TITAN_OK)
        call->status_text = grpc_slice_from_copied_string(message ? message : titan_status_text(status));
    if (call->local)
        local_end_later(call->server);
    else
        pump(call);
}

void rpc_call_fail(struct rpc_call *call, const struct titan_error *err)
{
    char text[sizeof(err->msg) + sizeof(err->hint) + 4];
    const bool hint = err->hint[0] != '\0';
    (void)snprintf(text, sizeof(text), "%s%s%s%s", err->msg, hint ? " (" : "", err->hint, hint ? ")" : "");
    rpc_call_finish(call, err->status == TITAN_OK ? TITAN_EBUG : err->status, text);
}

void rpc_call_set_data(struct rpc_call *call, void *data)
{
    call->user = data;
}

void *rpc_call_data(const struct rpc_call *call)
{
    return call->user;
}

const char *rpc_call_peer(const struct rpc_call *call)
{
    return call->local ? call->local_peer : call->connection->peer;
}

struct rpc_refusals rpc_call_refusals(const struct rpc_call *call)
{
    return call->server->refusals;
}

struct rpc_refusals rpc_server_refusals(const struct rpc_server *server)
{
    return server->refusals;
}

const char *rpc_code_name(unsigned code)
{
    static const char *const names[RPC_CODES] = {
        "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
        "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
        "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
        "DATA_LOSS", "UNAUTHENTICATED"};
    titan_assert(code < RPC_CODES);
    return names[code];
}

void rpc_server_calls(const struct rpc_server *server, void (*each)(const struct rpc_method_calls *calls, void *data),
                      void *data)
{
    const struct endpoint *e = server->endpoints;
    for (bool last = false; !last; e++) {
        last = !e->method.path;
        const struct rpc_method_calls calls = {
            .path = last ? "unknown" : e->method.path, .codes = e->codes, .duration = streams(e) ? NULL : &e->duration};
        each(&calls, data);
    }
}

const struct rpc_identity *rpc_call_identity(const struct rpc_call *call)
{
    return &call->identity;
}

void rpc_call_renewed(struct rpc_call *call, int64_t until_ms)
{
    if (call->local)
        return; /* its transport knows of no renewal */
    if (atomic_load(&call->connection->proxy.identified))
        call->connection->proxy.identity.until_ms = until_ms;
    for (struct rpc_call *c = LIST_FIRST(&call->server->open); c; c = LIST_NEXT(c, link))
        if (c->connection == call->connection && c->identity.kind == RPC_ID_CERT)
            c->identity.until_ms = until_ms;
}

void rpc_call_set_identity(struct rpc_call *call, const struct rpc_identity *identity)
{
    call->identity = *identity;
}

const char *rpc_call_metadata(struct rpc_call *call, const char *name)
{
    free(call->header);
    call->header = NULL;
    if (call->local)
        return strcmp(name, "authorization") == 0 ? call->authorization : NULL;
    for (size_t i = 0; i < call->metadata.count && !call->header; i++) {
        const grpc_metadata *m = &call->metadata.metadata[i];
        if (grpc_slice_str_cmp(m->key, name) == 0)
            call->header = strndup((const char *)GRPC_SLICE_START_PTR(m->value), (size_t)GRPC_SLICE_LENGTH(m->value));
    }
    return call->header;
}

/* --- local calls -------------------------------------------------------------------------------------------------- */

static void local_free(struct rpc_call *call)
{
    grpc_slice_unref(call->status_text);
    free(call->local_peer);
    free(call->authorization);
    free(call);
}

/* Ends the local calls that are finished or left. A handler does not see its call end before it has returned. */
static void local_end(uv_timer_t *timer)
{
    struct rpc_server *server = timer->data;
    for (struct rpc_call *call = LIST_FIRST(&server->open), *next; call; call = next) {
        next = LIST_NEXT(call, link);
        if (!call->local || !(call->finishing || call->left))
            continue;
        call->over = true;
        count_end(call, call->finishing ? titan_status_grpc(call->status) : GRPC_STATUS_CANCELLED);
        if (call->opened && call->endpoint->method.on_close)
            call->endpoint->method.on_close(call, call->left, call->endpoint->data);
        if (!call->left) {
            char *const text = grpc_slice_to_c_string(call->status_text);
            call->local->on_end(call->status, text, call->local_data);
            gpr_free(text);
        }
        next = LIST_NEXT(call, link); /* the callbacks may have begun calls, but ended none */
        LIST_REMOVE(call, link);
        titan_assert(server->n_calls > 0);
        server->n_calls--;
        local_free(call);
    }
    shutdown_advance(server);
}

static void local_end_later(struct rpc_server *server)
{
    (void)uv_timer_start(&server->local_timer, local_end, 0, 0);
}

struct rpc_call *rpc_local_call(struct rpc_server *server, const char *path, const struct rpc_local_caller *caller,
                                const ProtobufCMessage *request, const struct rpc_local *local, void *data)
{
    const struct rpc_server_options *options = &server->options;
    struct endpoint *endpoint = server->endpoints;
    struct titan_error err;
    if (!server->started || server->stopped)
        return NULL;
    while (endpoint->method.path && strcmp(endpoint->method.path, path) != 0)
        endpoint++;
    titan_assert(endpoint->method.on_request && !endpoint->own && endpoint->method.request == request->descriptor);
    struct rpc_call *call = malloc(sizeof(*call));
    if (!call)
        return NULL;
    *call = (struct rpc_call){.server = server,
                              .endpoint = endpoint,
                              .local = local,
                              .local_data = data,
                              .local_peer = strdup(caller->peer),
                              .authorization = caller->authorization ? strdup(caller->authorization) : NULL,
                              .identity = caller->identity,
                              .opened_ms = uv_now(server->loop),
                              .taken_ns = clock_mono_ns(),
                              .begun = true,
                              .status_text = grpc_empty_slice()};
    if (!call->local_peer || (caller->authorization && !call->authorization)) {
        local_free(call);
        return NULL;
    }
    server->n_calls++;
    LIST_INSERT_HEAD(&server->open, call, link);
    HANDLER(endpoint->method.path);
    if (server->stopping) {
        rpc_call_finish(call, TITAN_EUNREACHABLE, "the server is shutting down");
    } else if ((options->authorize && options->authorize(call, &endpoint->method, endpoint->data, &err) != TITAN_OK) ||
               (options->check && options->check(call, &endpoint->method, request, endpoint->data, &err) != TITAN_OK)) {
        rpc_call_fail(call, &err);
    } else {
        call->opened = true;
        endpoint->method.on_request(call, request, endpoint->data);
    }
    return call;
}

void rpc_local_drained(struct rpc_call *call)
{
    titan_assert(call->local);
    if (!call->want_drain || call->over || call->finishing || call->left)
        return;
    call->want_drain = false;
    if (call->endpoint->method.on_drain)
        call->endpoint->method.on_drain(call, call->endpoint->data);
}

void rpc_local_leave(struct rpc_call *call)
{
    titan_assert(call->local && !call->left);
    call->left = true;
    local_end_later(call->server);
}

/* --- connections -------------------------------------------------------------------------------------------------- */

/* First descriptor number reserved for the daemon's own work. */
static int fd_max(void)
{
    struct rlimit limit = {.rlim_cur = 1024};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return (int)(MIN(limit.rlim_cur, (rlim_t)INT32_MAX) - MIN(limit.rlim_cur / 4, (rlim_t)FDS_RESERVED));
}

/* Frees a connection to which nothing refers any more. */
static void connection_free(struct connection *c)
{
    struct rpc_server *server = c->server;
    if (c->ended && c->down && c->n_alive == 0) {
        LIST_REMOVE(c, link);
        grpc_server_destroy(c->grpc);
        rpc_tenant_unref(&server->tenants, c->tenant);
        free(c);
    }
    shutdown_advance(server);
}

static void shutdown_tag(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct connection *c = tag->owner;
    titan_assert(c->shutting && !c->down && c->server->n_up > 0);
    c->server->n_up--;
    c->down = true;
    connection_free(c);
}

static void connection_shut(struct connection *c, bool at_once)
{
    if (!c->shutting)
        grpc_server_shutdown_and_notify(c->grpc, c->server->queue.cq, &c->shutdown_tag);
    c->shutting = true;
    if (at_once && !c->down)
        grpc_server_cancel_all_calls(c->grpc);
}

/* Called after the proxy has closed the connection. */
static void connection_ended(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct connection *c = tag->owner;
    struct rpc_server *server = c->server;
    c->ended = true;
    rpc_tenant_connected(&server->tenants, c->tenant, -1);
    if (server->options.rests)
        (void)atomic_fetch_sub(&server->queue.n_connections, 1);
    if (c->proxy.why.status != TITAN_OK)
        refused(server, c->proxy.why.msg);
    connection_shut(c, false); /* gRPC may not see the close: a forked process before its exec may still have a copy */
    connection_free(c);
}

/* Makes room for a connection of this address. If too many connections have shown neither certificate nor token, the
 * oldest connection without a call ends. False: every connection has a call. */
static bool make_room(struct rpc_server *server, const struct rpc_tenant *tenant)
{
    const uint32_t most = server->options.max_peer_connections;
    uint32_t n = 0;
    struct connection *silent = NULL;
    if (tenant->n_connections < most)
        return true;
    for (struct connection *c = LIST_FIRST(&server->connections); c; c = LIST_NEXT(c, link)) {
        if (c->tenant != tenant || c->ended || atomic_load(&c->proxy.cut) != RPC_CUT_NOT)
            continue;
        if (atomic_load(&c->proxy.identified))
            connection_name(c, c->proxy.identity.name);
        if (c->named)
            continue;
        n++;
        if (c->n_begun == 0)
            silent = c;
    }
    if (n >= most && silent)
        rpc_proxy_cut(server->proxy, &silent->proxy, RPC_CUT_NOW);
    return n < most || silent;
}

/* A connection's gRPC server. */
static grpc_server *grpc_open(const struct connection *c)
{
    const struct rpc_server_options *options = &c->server->options;
    grpc_arg args[] = {
        rpc_arg_int(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, message_max(c)),
        rpc_arg_int(GRPC_ARG_MAX_CONCURRENT_STREAMS, STREAMS_MAX),
        {.type = GRPC_ARG_POINTER,
         .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {c->tenant->pool->quota, grpc_resource_quota_arg_vtable()}},
        rpc_arg_int(GRPC_ARG_MAX_METADATA_SIZE, METADATA_MAX),
        rpc_arg_int(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                    c->tenant->kind == RPC_ID_UID ? options->idle_ms : options->tcp_idle_ms),
        /* No BDP pings: with pings on every connection 1,000 agents take 63 % of a core, without pings 23 %. */
        rpc_arg_int(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        rpc_arg_int(GRPC_ARG_ENABLE_CHANNELZ, 0),
        rpc_arg_int(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        rpc_arg_int(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, RPC_DEAD_MS),
        /* Titan's clients ping every 10 s, also when idle. */
        rpc_arg_int(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        rpc_arg_int(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000),
        rpc_arg_int(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, RPC_FRAME_MAX),
        /* Without a table, headers never refer to earlier answers. So the filter may drop an answer. */
        rpc_arg_int(GRPC_ARG_HTTP2_HPACK_TABLE_SIZE_ENCODER, 0),
        /* No compression: a small compressed message could exceed the limit when decompressed. */
        rpc_arg_int(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
    };
    grpc_channel_args list = {.num_args = ARRAY_SIZE(args), .args = args};
    grpc_server *grpc = grpc_server_create(&list, NULL);
    grpc_server_register_completion_queue(grpc, c->server->queue.cq, NULL);
    grpc_server_start(grpc);
    return grpc;
}

/* Gives gRPC one end of a socket pair, and the proxy the other end and fd. Returns NULL, or the reason why the
 * connection is refused. */
static const char *connection_open(struct connection *c, int fd, enum rpc_listener_kind kind)
{
    struct rpc_server *server = c->server;
    _cleanup_fd_ int outer = -1, inner = -1;
    int pair[2];
    const int buffer = PAIR_BUFFER;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        return "descriptors are short";
    outer = pair[0];
    inner = pair[1];
    if (inner > fd_max() && !c->tenant->trusted)
        return "descriptors are short";
    if (kind == RPC_LISTENER_TLS &&
        !(c->proxy.tls = rpc_pair_accept(server->pair, fd, RPC_HTTP_2, server->options.certificates_only)))
        return "there is no memory";
    for (int i = 0; i < 2; i++)
        (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    c->proxy.filter.limits = (struct rpc_filter_limits){
        .message_max = message_max(c),
        .header_max = METADATA_MAX,
        .streams_max = STREAMS_FACTOR * STREAMS_MAX,
    };
    c->proxy.ended = (struct rpc_tag){.fn = connection_ended, .owner = c};
    c->shutdown_tag = (struct rpc_tag){.fn = shutdown_tag, .owner = c};
    LIST_INSERT_HEAD(&server->connections, c, link);
    server->n_up++;
    rpc_tenant_connected(&server->tenants, c->tenant, 1);
    if (server->options.rests)
        (void)atomic_fetch_add(&server->queue.n_connections, 1);

    c->grpc = grpc_open(c);
    while (c->n_slots < SLOTS_FIRST) {
        c->n_slots++;
        slot_offer(c);
    }
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_server_add_channel_from_fd(c->grpc, TAKE_FD(inner), credentials); /* takes ownership */
    grpc_server_credentials_release(credentials);
    rpc_proxy_add(server->proxy, &c->proxy, fd, TAKE_FD(outer));
    return NULL;
}

/* Finds the tenant of a new connection. Returns NULL, or the reason why the connection is refused. A connection takes
 * three descriptors. TCP gets half of all descriptors, the Unix sockets the rest. */
static const char *refusal(struct connection *c, int fd, enum rpc_listener_kind kind)
{
    struct rpc_server *server = c->server;
    const struct rpc_server_options *options = &server->options;
    const bool local = kind == RPC_LISTENER_LOCAL;
    const uint32_t n = server->tenants.classes[local ? RPC_USERS : RPC_ADDRESSES].n_connections;
    c->tenant = local ? rpc_tenant_of_user(&server->tenants, fd)
                      : rpc_tenant_of_address(&server->tenants, fd, c->peer, sizeof(c->peer));
    if (!c->tenant)
        return local ? "too many users are connected" : "they are gone already";
    if (local)
        (void)snprintf(c->peer, sizeof(c->peer), "unix:%s", c->tenant->identity.name);
    c->identity = c->tenant->identity;
    c->identity.secure = kind != RPC_LISTENER_PLAIN;
    if (c->tenant->trusted)
        return NULL;
    if (fd > fd_max() || (!local && n >= (uint32_t)fd_max() / 6))
        return "descriptors are short";
    if (local && c->tenant->n_connections >= options->max_user_connections)
        return "too many connections of one user";
    if (n >= options->max_connections)
        return local ? "too many connections" : "too many connections over TCP";
    return local || make_room(server, c->tenant) ? NULL : "too many connections from one address";
}

static void connection_accepted(void *data, int fd, enum rpc_listener_kind kind)
{
    struct rpc_server *server = data;
    struct connection *c = fd < 0 ? NULL : calloc(1, sizeof(*c));
    if (!c) {
        refused(server, fd < 0 ? "descriptors are short" : "there is no memory");
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    c->server = server;
    const char *why = refusal(c, fd, kind);
    if (!why)
        why = connection_open(c, fd, kind);
    if (!why)
        return;
    if (c->tenant)
        rpc_tenant_unref(&server->tenants, c->tenant);
    free(c);
    (void)close(fd);
    refused(server, why);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void handle_closed(void *data)
{
    struct rpc_server *server = data;
    titan_assert(server->handles > 0);
    if (--server->handles == 0)
        server->done(server->data); /* may free the server */
}

titan_status rpc_server_open(uv_loop_t *loop, const struct rpc_server_options *options, struct rpc_server **ret,
                             struct titan_error *err)
{
    const size_t n = options->n_methods;
    struct rpc_server *server = calloc(1, sizeof(*server));
    if (server) /* the last endpoint stays empty */
        server->endpoints = calloc(n + RPC_SERVICES_METHODS + 1, sizeof(*server->endpoints));
    if (!server || !server->endpoints) {
        free(server);
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a server");
    }
    server->loop = loop;
    server->options = *options;
    struct rpc_server_options *o = &server->options;
#define DEFAULT(name, value) o->name = o->name ? o->name : (value)
    DEFAULT(max_message_bytes, 4 << 20);
    DEFAULT(max_queue, 256);
    DEFAULT(socket_mode, 0600);
    DEFAULT(max_connections, 4096);
    DEFAULT(max_user_connections, 256);
    DEFAULT(max_peer_connections, 256);
    DEFAULT(max_users, 512);
    DEFAULT(idle_ms, 600000);
    DEFAULT(tcp_idle_ms, 120000);
    DEFAULT(max_user_calls, 4096);
    DEFAULT(request_ms, 30000);
    DEFAULT(max_user_message_bytes, o->max_message_bytes);
    DEFAULT(memory_bytes, 64 << 20);
#undef DEFAULT
    o->max_user_message_bytes = MIN(o->max_user_message_bytes, o->max_message_bytes);
    server->tenants.options = o;
    server->listeners = (struct rpc_listeners){.spare_fd = -1, .accepted = connection_accepted, .data = server};
    server->services = (struct rpc_services){.methods = o->methods, .n = n};
    for (size_t i = 0; i < n + RPC_SERVICES_METHODS; i++) {
        const bool own = i >= n;
        struct endpoint *endpoint = &server->endpoints[i];
        *endpoint = (struct endpoint){.method = own ? rpc_services_methods[i - n] : o->methods[i],
                                      .data = own ? &server->services : o->data,
                                      .own = own};
        titan_assert(!endpoint->method.on_request != !endpoint->method.on_message);
    }
    server->endpoints[n + RPC_SERVICES_METHODS].own = true;

    rpc_library_enter();
    *ret = server;
    return TITAN_OK;
}

titan_status rpc_server_listen(struct rpc_server *server, const char *address, const struct rpc_tls *tls, int *ret_port,
                               struct titan_error *err)
{
    titan_assert(!server->started);
    if (strncmp(address, "unix:", 5) == 0)
        tls = NULL;
    if (tls && !tls->certificate[0])
        return titan_fail(err, TITAN_EINVAL, "tls: a server needs a certificate of its own");
    if (tls && !server->pair)
        TRY(rpc_pair_open(tls, &server->pair, err));
    return rpc_listeners_add(&server->listeners, address, tls, server->options.socket_mode, ret_port, err);
}

titan_status rpc_server_adopt(struct rpc_server *server, int fd, struct titan_error *err)
{
    titan_assert(!server->started);
    return rpc_listeners_adopt(&server->listeners, fd, err);
}

titan_status rpc_server_start(struct rpc_server *server, struct titan_error *err)
{
    titan_assert(!server->started);
    TRY(rpc_queue_start(&server->queue, server->loop, err));
    (void)uv_timer_init(server->loop, &server->timer);
    (void)uv_timer_init(server->loop, &server->local_timer);
    server->timer.data = server->local_timer.data = server;
    server->started = true;
    TRY(rpc_proxy_open(&server->queue, &server->proxy, err));
    return rpc_listeners_start(&server->listeners, server->loop, err);
}

void rpc_server_review(struct rpc_server *server)
{
    const struct rpc_server_options *options = &server->options;
    for (struct rpc_call *call = LIST_FIRST(&server->open); call && options->review; call = LIST_NEXT(call, link)) {
        const struct endpoint *endpoint = call->endpoint;
        struct titan_error err = {0};
        if (call->over || call->finishing || endpoint->own ||
            options->review(call, &endpoint->method, endpoint->data, &err) == TITAN_OK)
            continue;
        rpc_out_clear(&call->out);
        rpc_call_fail(call, &err);
    }
    for (struct connection *c = LIST_FIRST(&server->connections); c && options->review_connection;
         c = LIST_NEXT(c, link)) {
        struct rpc_identity identity;
        identify(c, &identity);
        if (!c->ended && identity.kind == RPC_ID_CERT && !options->review_connection(&identity, options->data))
            rpc_proxy_cut(server->proxy, &c->proxy, RPC_CUT_SOON);
    }
}

void rpc_server_set_serving(struct rpc_server *server, bool serving)
{
    if (server->services.serving == serving)
        return;
    server->services.serving = serving;
    for (struct rpc_call *call = LIST_FIRST(&server->open); call; call = LIST_NEXT(call, link))
        if (call->endpoint->own && call->endpoint->method.on_drain && call->opened && !call->over)
            call->endpoint->method.on_drain(call, call->endpoint->data); /* a watcher of health */
}

static void timer_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

/* The last step of shutdown, after gRPC has released everything. */
static void shutdown_advance(struct rpc_server *server)
{
    if (!server->stopping || server->stopped || server->n_up > 0 || server->n_calls > 0)
        return;
    server->stopped = true;
    server->handles = 3;
    rpc_proxy_close(TAKE(server->proxy)); /* its ended tags must precede the queue's end */
    uv_close((uv_handle_t *)&server->timer, timer_closed);
    uv_close((uv_handle_t *)&server->local_timer, timer_closed);
    rpc_queue_stop(&server->queue, handle_closed, server);
}

static void grace_over(uv_timer_t *timer)
{
    const struct rpc_server *server = timer->data;
    for (struct connection *c = LIST_FIRST(&server->connections); c; c = LIST_NEXT(c, link))
        connection_shut(c, true);
}

void rpc_server_shutdown(struct rpc_server *server, uint32_t grace_ms, void (*done)(void *), void *data)
{
    titan_assert(!server->stopping);
    server->stopping = true;
    server->done = done;
    server->data = data;
    if (!server->started) {
        server->stopped = true;
        done(data);
        return;
    }
    rpc_server_set_serving(server, false);
    rpc_listeners_close(&server->listeners);
    for (struct connection *c = LIST_FIRST(&server->connections); c; c = LIST_NEXT(c, link))
        connection_shut(c, false);
    /* Health watches, reflection streams and the streams of pages never end by themselves. */
    for (struct rpc_call *call = LIST_FIRST(&server->open); call; call = LIST_NEXT(call, link))
        if (call->endpoint->own || call->local)
            rpc_call_finish(call, TITAN_EUNREACHABLE, "the server is shutting down");
    (void)uv_timer_start(&server->timer, grace_over, grace_ms, 0);
    shutdown_advance(server);
}

void rpc_server_free(struct rpc_server *server)
{
    if (!server)
        return;
    titan_assert(!server->started || (server->stopped && server->handles == 0));
    titan_assert(LIST_EMPTY(&server->connections) && server->n_calls == 0);
    rpc_listeners_close(&server->listeners);
    rpc_tenants_free(&server->tenants);
    rpc_pair_free(server->pair);
    free(server->endpoints);
    free(server);
    rpc_library_leave();
}
