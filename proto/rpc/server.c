/* SPDX-License-Identifier: Apache-2.0 */
/* server.c - see server.h.
 *
 * A call is one reusable allocation. It starts as a slot offered to gRPC for the next call of a method, and is returned
 * when all its tags are back:
 *
 *   request_tag  a call took the slot (or the server shuts down)
 *   close_tag    RECV_CLOSE_ON_SERVER: the call has ended on the wire, in any way; informs the handler
 *   recv_tag     one RECV_MESSAGE at a time; the first after the caller is authorized
 *   send_tag     one batch at a time: headers, a message, the final status, as many of them as are due
 *  */
#include "proto/rpc/server.h"

#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/slowest.h"
#include "proto/rpc/common.h"
#include "proto/rpc/tenant.h"

enum {
    SLOTS_SERVED = 64, /* most per method and tenant */
    SLOTS_OWN = 2,
    SPARE_CALLS = 1024,
    REQUEST_MS = 30000,
    IDLE_MS = 600000,
    TCP_IDLE_MS = 120000,
    USERS_MAX = 512,
};

struct message {
    struct message *next;
    grpc_byte_buffer *buffer;
};

struct rpc_call {
    struct rpc_server *server;
    struct endpoint *endpoint;
    struct tenant *tenant;
    struct caller *caller; /* counts against this caller's limit; NULL: the tenant's */
    bool charged;
    grpc_call *call;
    unsigned pending; /* tags in flight */
    struct rpc_tag request_tag, close_tag, recv_tag, send_tag;
    struct rpc_call *next, *prev; /* in server->open; in server->spare only next */

    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_call_details details; /* for methods that are not served */
    grpc_byte_buffer *incoming;
    int cancelled;
    uint64_t opened_ms; /* loop's clock */

    bool begun;        /* its first message has arrived */
    bool opened;       /* known to the handler */
    bool over;         /* no further exchange with the handler */
    bool sent_headers; /* sent, or in flight */
    bool sending, receiving, recv_held;
    bool finishing; /* status is set; sent after the queue */
    bool finished;  /* status is in flight */
    bool want_drain;

    struct message *out, **out_last;
    uint32_t out_n;
    size_t out_bytes;
    grpc_byte_buffer *out_now; /* in the batch of send_tag */
    titan_status status;
    grpc_slice status_text;

    void *user;
    struct rpc_identity identity;
    uint64_t connection; /* TCP: its id; 0: it ended before the call arrived */
    char *peer, *header; /* header: value of the last request */
};

static void pump(struct rpc_call *call);

/* --- call memory -------------------------------------------------------------------------------------------------- */

static void request_tag(struct rpc_tag *tag, bool ok);
static void close_tag(struct rpc_tag *tag, bool ok);
static void recv_tag(struct rpc_tag *tag, bool ok);
static void send_tag(struct rpc_tag *tag, bool ok);

static struct rpc_call *call_alloc(struct rpc_server *server)
{
    titan_assert(!server->spare == !server->n_spare);
    struct rpc_call *call = server->spare;
    if (call) {
        server->spare = call->next;
        server->n_spare--;
        memset(call, 0, sizeof(*call));
    } else {
        call = calloc(1, sizeof(*call));
        if (!call)
            return NULL;
    }
    server->n_calls++;
    call->server = server;
    call->request_tag = (struct rpc_tag){.fn = request_tag, .owner = call};
    call->close_tag = (struct rpc_tag){.fn = close_tag, .owner = call};
    call->recv_tag = (struct rpc_tag){.fn = recv_tag, .owner = call};
    call->send_tag = (struct rpc_tag){.fn = send_tag, .owner = call};
    call->out_last = &call->out;
    call->status_text = grpc_empty_slice();
    grpc_metadata_array_init(&call->metadata);
    return call;
}

static void out_clear(struct rpc_call *call)
{
    while (call->out) {
        struct message *message = call->out;
        call->out = message->next;
        grpc_byte_buffer_destroy(message->buffer);
        free(message);
    }
    call->out_last = &call->out;
    call->out_n = 0;
    call->out_bytes = 0;
}

static void call_free(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    struct tenant *tenant = call->tenant;
    titan_assert(call->pending == 0 && server->n_calls > 0 && tenant->n_alive > 0);
    if (call->prev)
        call->prev->next = call->next;
    else if (server->open == call)
        server->open = call->next;
    if (call->next)
        call->next->prev = call->prev;
    out_clear(call);
    if (call->incoming)
        grpc_byte_buffer_destroy(call->incoming);
    grpc_metadata_array_destroy(&call->metadata);
    if (!call->endpoint->method.path)
        grpc_call_details_destroy(&call->details);
    grpc_slice_unref(call->status_text);
    free(call->peer);
    free(call->header);
    if (call->call)
        grpc_call_unref(call->call);
    server->n_calls--;
    if (server->n_spare < SPARE_CALLS && !server->stopping) {
        call->next = server->spare;
        server->spare = call;
        server->n_spare++;
    } else {
        free(call);
    }
    tenant->n_alive--;
    rpc_tenant_gone(tenant);
    rpc_shutdown_advance(server);
}

static void call_unref(struct rpc_call *call)
{
    titan_assert(call->pending > 0);
    if (--call->pending == 0)
        call_free(call);
}

static void batch(struct rpc_call *call, const grpc_op *ops, size_t n, struct rpc_tag *tag)
{
    titan_assert(n > 0);
    call->pending++;
    grpc_call_error rc = grpc_call_start_batch(call->call, ops, n, tag, NULL);
    titan_assert(rc == GRPC_CALL_OK); /* fails only on misuse of the API */
}

/* --- incoming ----------------------------------------------------------------------------------------------------- */

static void recv_next(struct rpc_call *call)
{
    if (call->receiving || call->over || call->finishing)
        return;
    /* The server stops reading a client that does not read its answers. */
    call->recv_held = call->out_n >= call->server->options.max_queue;
    if (call->recv_held)
        return;
    titan_assert(!call->incoming);
    call->receiving = true;
    grpc_op op = rpc_op(GRPC_OP_RECV_MESSAGE);
    op.data.recv_message.recv_message = &call->incoming;
    batch(call, &op, 1, &call->recv_tag);
}

/* Decodes call->incoming; NULL: the call was ended because of it. */
static ProtobufCMessage *take_message(struct rpc_call *call)
{
    struct titan_error err;
    ProtobufCMessage *message = NULL;
    const size_t most = call->tenant->message_max; /* the proxy passes no longer one */
    titan_assert(grpc_byte_buffer_length(call->incoming) <= most);
    if (rpc_unpack(call->incoming, call->endpoint->method.request, most * 8, &message, &err) != TITAN_OK)
        rpc_call_finish(call, err.status, err.msg);
    grpc_byte_buffer_destroy(call->incoming);
    call->incoming = NULL;
    return message;
}

static titan_status check(struct rpc_call *call, const ProtobufCMessage *request, struct titan_error *err)
{
    const struct endpoint *endpoint = call->endpoint;
    const struct rpc_server_options *options = &call->server->options;
    if (endpoint->own || call->begun || !options->check)
        return TITAN_OK;
    return options->check(call, &endpoint->method, request, endpoint->data, err);
}

static void recv_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    titan_assert(call->receiving);
    const struct endpoint *endpoint = call->endpoint;
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
        if (check(call, message, &err) == TITAN_OK) {
            if (!call->begun)
                rpc_connection_count(call->server, call->connection, &call->identity, 1);
            call->opened = call->begun = true;
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

/* Ends late requests: an incomplete one holds a slot of its user's calls. */
static void look_for_late(uv_timer_t *timer)
{
    struct rpc_server *server = timer->data;
    const uint64_t now = uv_now(server->loop);
    bool waits = false;
    for (struct rpc_call *call = server->open; call; call = call->next) {
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

/* --- limits ------------------------------------------------------------------------------------------------------- */

static struct caller **caller_bucket(struct rpc_server *server, const char *name)
{
    return &server->callers[hash_index(hash_text(HASH_INIT, name), CALLER_BUCKETS)];
}

/* The counter of this certificate or token; NULL: out of memory. */
static struct caller *caller_get(struct rpc_server *server, const struct rpc_identity *identity)
{
    struct caller **bucket = caller_bucket(server, identity->name);
    for (struct caller *c = *bucket; c; c = c->next)
        if (c->kind == identity->kind && strcmp(c->name, identity->name) == 0)
            return c;
    struct caller *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    *c = (struct caller){.next = *bucket, .kind = identity->kind};
    memcpy(c->name, identity->name, sizeof(c->name));
    return *bucket = c;
}

/* Counts the call against its known caller. Not NULL: the reason for refusing it. */
static const char *charge(struct rpc_call *call)
{
    struct tenant *tenant = call->tenant;
    const struct rpc_server_options *options = &call->server->options;
    const bool named = call->identity.kind == RPC_ID_CERT || call->identity.kind == RPC_ID_TOKEN;
    if (tenant->trusted)
        return NULL;
    if (call->endpoint->own && tenant->n_own_calls >= options->max_own_calls)
        return "too many calls of health and reflection are open from here";
    struct caller *caller = named ? caller_get(call->server, &call->identity) : NULL;
    uint32_t *n = caller ? &caller->n_calls : &tenant->n_calls;
    if ((named && !caller) || *n >= options->max_user_calls)
        return "too many calls of this user are open";
    ++*n;
    tenant->n_own_calls += call->endpoint->own;
    call->caller = caller;
    call->charged = true;
    return NULL;
}

static void uncharge(struct rpc_call *call)
{
    if (!call->charged)
        return;
    struct caller *caller = TAKE(call->caller);
    call->charged = false;
    call->tenant->n_own_calls -= call->endpoint->own;
    titan_assert((caller ? caller->n_calls : call->tenant->n_calls) > 0);
    if (!caller) {
        call->tenant->n_calls--;
    } else if (--caller->n_calls == 0) {
        struct caller **at = caller_bucket(call->server, caller->name);
        while (*at != caller)
            at = &(*at)->next;
        *at = caller->next;
        free(caller);
    }
}

static void close_tag(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_call *call = tag->owner;
    titan_assert(!call->over);
    call->over = true;
    uncharge(call);
    if (call->begun)
        rpc_connection_count(call->server, call->connection, &call->identity, -1);
    out_clear(call);
    if (call->opened && call->endpoint->method.on_close)
        call->endpoint->method.on_close(call, call->cancelled != 0, call->endpoint->data);
    call_unref(call);
}

static titan_status authorize(struct rpc_call *call, struct titan_error *err)
{
    const struct endpoint *endpoint = call->endpoint;
    const struct rpc_server_options *options = &call->server->options;
    if (endpoint->own || !options->authorize)
        return TITAN_OK;
    return options->authorize(call, &endpoint->method, endpoint->data, err);
}

static void call_begin(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    struct endpoint *endpoint = call->endpoint;
    struct titan_error err;
    const char *beyond;
    if (call->tenant->tcp) {
        const struct connection *connection = rpc_connection_of(server, &call->metadata);
        call->connection = connection ? connection->id : 0;
        call->peer = connection ? strdup(connection->address) : NULL;
        rpc_tenant_identify(call->tenant, connection, &call->identity);
    } else {
        rpc_tenant_identify(call->tenant, NULL, &call->identity);
    }
    call->next = server->open;
    if (call->next)
        call->next->prev = call;
    server->open = call;

    grpc_op op = rpc_op(GRPC_OP_RECV_CLOSE_ON_SERVER);
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    batch(call, &op, 1, &call->close_tag);

    if (!endpoint->method.path) {
        rpc_call_finish(call, TITAN_EUNSUPPORTED, "no such method");
    } else if (server->stopping || call->tenant->shutting) {
        rpc_call_finish(call, TITAN_EUNREACHABLE, "the server is shutting down");
    } else if (authorize(call, &err) != TITAN_OK) {
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
}

static void request_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    if (ok) {
        size_t endpoint = (size_t)(call->endpoint - call->server->endpoints);
        struct tenant_method *method = &call->tenant->methods[endpoint];
        rpc_slot_offer(call->tenant, endpoint);
        call_begin(call);
        /* A used tenant gets more slots; other tenants, and tenants of callers without rights, stay small. */
        if (!call->finishing && method->slots < (call->endpoint->own ? SLOTS_OWN : SLOTS_SERVED)) {
            method->slots++;
            rpc_slot_offer(call->tenant, endpoint);
        }
    } else {
        call->call = NULL;
    }
    call_unref(call);
}

void rpc_slot_offer(struct tenant *tenant, size_t endpoint)
{
    struct rpc_server *server = tenant->owner;
    titan_assert(endpoint < server->n_endpoints);
    if (server->stopping || tenant->shutting)
        return;
    struct rpc_call *call = call_alloc(server);
    if (!call)
        return; /* one slot fewer; its calls wait for another */
    call->endpoint = &server->endpoints[endpoint];
    call->tenant = tenant;
    tenant->n_alive++;
    call->pending = 1;
    call->recv_tag.costly = call->endpoint->method.costly;
    grpc_completion_queue *cq = server->queue.cq;
    grpc_call_error rc;
    if (call->endpoint->method.path) {
        rc = grpc_server_request_registered_call(tenant->server, tenant->methods[endpoint].registered, &call->call,
                                                 &call->deadline, &call->metadata, NULL, cq, cq, &call->request_tag);
    } else {
        grpc_call_details_init(&call->details);
        rc = grpc_server_request_call(tenant->server, &call->call, &call->details, &call->metadata, cq, cq,
                                      &call->request_tag);
    }
    titan_assert(rc == GRPC_CALL_OK);
}

/* --- outgoing ----------------------------------------------------------------------------------------------------- */

/* Starts the next batch if none is in flight and something is due. */
static void pump(struct rpc_call *call)
{
    if (call->sending || call->finished || call->over || (!call->out && !call->finishing))
        return;
    grpc_op ops[3];
    size_t n = 0;
    grpc_metadata trailer;
    if (!call->sent_headers) {
        ops[n++] = rpc_op(GRPC_OP_SEND_INITIAL_METADATA);
        call->sent_headers = true;
    }
    if (call->out) {
        struct message *message = call->out;
        call->out = message->next;
        if (!call->out)
            call->out_last = &call->out;
        call->out_n--;
        call->out_bytes -= grpc_byte_buffer_length(message->buffer);
        call->out_now = message->buffer;
        free(message);
        ops[n] = rpc_op(GRPC_OP_SEND_MESSAGE);
        ops[n].flags = call->out ? GRPC_WRITE_BUFFER_HINT : 0; /* the next message follows at once */
        ops[n++].data.send_message.send_message = call->out_now;
    }
    if (call->finishing && !call->out) {
        call->finished = true;
        ops[n] = rpc_op(GRPC_OP_SEND_STATUS_FROM_SERVER);
        ops[n].data.send_status_from_server.status = (grpc_status_code)titan_status_grpc(call->status);
        ops[n].data.send_status_from_server.status_details = &call->status_text;
        if (call->status != TITAN_OK) {
            memset(&trailer, 0, sizeof(trailer));
            trailer.key = grpc_slice_from_static_string(RPC_STATUS_TRAILER);
            trailer.value = rpc_status_name(call->status);
            ops[n].data.send_status_from_server.trailing_metadata_count = 1;
            ops[n].data.send_status_from_server.trailing_metadata = &trailer;
        }
        n++;
    }
    titan_assert(n > 0 && n <= ARRAY_SIZE(ops));
    call->sending = true;
    batch(call, ops, n, &call->send_tag);
}

static void send_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    titan_assert(call->sending);
    call->sending = false;
    if (call->out_now) {
        grpc_byte_buffer_destroy(call->out_now);
        call->out_now = NULL;
    }
    if (!ok) {
        /* The stream is broken; close_tag will follow. */
        call->finished = true;
        out_clear(call);
    } else if (!call->over) {
        pump(call);
        if (call->recv_held && call->out_n < call->server->options.max_queue)
            recv_next(call);
        const uint32_t most = call->endpoint->method.max_queue_bytes;
        if (call->want_drain && !call->finishing && call->out_n <= call->server->options.max_queue / 2 &&
            (!most || call->out_bytes <= most / 2)) {
            call->want_drain = false;
            if (call->endpoint->method.on_drain)
                call->endpoint->method.on_drain(call, call->endpoint->data);
        }
    }
    call_unref(call);
}

/* Takes ownership of the buffer. */
static titan_status out_append(struct rpc_call *call, grpc_byte_buffer *buffer)
{
    struct message *node = malloc(sizeof(*node));
    if (!node) {
        grpc_byte_buffer_destroy(buffer);
        return TITAN_ENOMEM;
    }
    *node = (struct message){.buffer = buffer};
    titan_assert(!*call->out_last);
    *call->out_last = node;
    call->out_last = &node->next;
    call->out_n++;
    call->out_bytes += grpc_byte_buffer_length(buffer);
    return TITAN_OK;
}

static titan_status has_room(struct rpc_call *call)
{
    if (call->over || call->finishing || call->finished)
        return TITAN_ECANCELLED;
    const uint32_t most = call->endpoint->method.max_queue_bytes;
    if (call->out_n >= call->server->options.max_queue || (most && call->out_bytes >= most)) {
        call->want_drain = true;
        return TITAN_EAGAIN;
    }
    return TITAN_OK;
}

titan_status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    TRY(has_room(call));
    TRY(out_append(call, rpc_pack(message)));
    pump(call);
    return TITAN_OK;
}

struct rpc_packed {
    grpc_byte_buffer *buffer;
};

struct rpc_packed *rpc_packed_new(const ProtobufCMessage *message)
{
    struct rpc_packed *packed = malloc(sizeof(*packed));
    titan_assert(packed);
    packed->buffer = rpc_pack(message);
    return packed;
}

void rpc_packed_free(struct rpc_packed *packed)
{
    if (packed)
        grpc_byte_buffer_destroy(packed->buffer);
    free(packed);
}

titan_status rpc_call_send_packed(struct rpc_call *call, const struct rpc_packed *packed)
{
    TRY(has_room(call));
    TRY(out_append(call, grpc_byte_buffer_copy(packed->buffer))); /* shares the bytes */
    pump(call);
    return TITAN_OK;
}

void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply)
{
    if (call->over || call->finishing || call->finished)
        return;
    if (out_append(call, rpc_pack(reply)) != TITAN_OK) {
        rpc_call_finish(call, TITAN_ENOMEM, NULL);
        return;
    }
    call->finishing = true;
    pump(call);
}

void rpc_call_finish(struct rpc_call *call, titan_status status, const char *message)
{
    if (call->over || call->finishing || call->finished)
        return;
    call->finishing = true;
    call->status = status;
    if (status != TITAN_OK)
        call->status_text = grpc_slice_from_copied_string(message ? message : titan_status_text(status));
    pump(call);
}

void rpc_call_fail(struct rpc_call *call, const struct titan_error *err)
{
    char text[sizeof(err->msg) + sizeof(err->hint) + 4];
    if (err->hint[0])
        (void)snprintf(text, sizeof(text), "%s (%s)", err->msg, err->hint);
    else
        (void)snprintf(text, sizeof(text), "%s", err->msg);
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
    struct rpc_call *self = (struct rpc_call *)(uintptr_t)call; /* cached after the first request */
    const struct rpc_identity *tenant = &call->tenant->identity;
    if (!self->peer && tenant->kind == RPC_ID_UID && asprintf(&self->peer, "unix:%s", tenant->name) < 0)
        self->peer = NULL;
    return self->peer ? self->peer : "?";
}

struct rpc_refusals rpc_call_refusals(const struct rpc_call *call)
{
    return call->server->refusals;
}

const struct rpc_identity *rpc_call_identity(const struct rpc_call *call)
{
    return &call->identity;
}

void rpc_call_renewed(struct rpc_call *call, int64_t until_ms)
{
    struct connection *connection = rpc_connection_get(call->server, call->connection);
    if (!connection)
        return;
    atomic_store(&connection->proxy.until_ms, until_ms);
    for (struct rpc_call *c = call->server->open; c; c = c->next)
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
    for (size_t i = 0; i < call->metadata.count && !call->header; i++) {
        const grpc_metadata *m = &call->metadata.metadata[i];
        if (grpc_slice_str_cmp(m->key, name) == 0)
            call->header = strndup((const char *)GRPC_SLICE_START_PTR(m->value), (size_t)GRPC_SLICE_LENGTH(m->value));
    }
    return call->header;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void endpoints_add(struct rpc_server *server, const struct rpc_method *methods, size_t n, void *data, bool own)
{
    for (size_t i = 0; i < n; i++) {
        titan_assert(!methods[i].on_request != !methods[i].on_message);
        server->endpoints[server->n_endpoints++] = (struct endpoint){.method = methods[i], .data = data, .own = own};
    }
}

titan_status rpc_server_open(uv_loop_t *loop, const struct rpc_method *methods, size_t n, void *data,
                             const void *descriptors, size_t descriptors_bytes,
                             const struct rpc_server_options *options, struct rpc_server **ret, struct titan_error *err)
{
    struct rpc_server *server = calloc(1, sizeof(*server));
    if (!server)
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a server");
    server->endpoints = calloc(n + RPC_HEALTH_METHODS + RPC_REFLECTION_METHODS + 1, sizeof(*server->endpoints));
    if (!server->endpoints) {
        free(server);
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a server");
    }
    server->loop = loop;
    server->methods_data = data;
    if (options)
        server->options = *options;
    struct rpc_server_options *o = &server->options;
    o->max_message_bytes = o->max_message_bytes ? MIN(o->max_message_bytes, (uint32_t)INT32_MAX) : 4 << 20;
    o->max_concurrent_streams = o->max_concurrent_streams ? MIN(o->max_concurrent_streams, (uint32_t)INT32_MAX) : 1024;
    o->max_queue = o->max_queue ? o->max_queue : 256;
    o->socket_mode = o->socket_mode ? o->socket_mode : 0600;
    o->max_connections = o->max_connections ? o->max_connections : 4096;
    o->max_user_connections = o->max_user_connections ? o->max_user_connections : 256;
    o->max_peer_connections = o->max_peer_connections ? o->max_peer_connections : 256;
    o->max_users = o->max_users ? o->max_users : USERS_MAX;
    o->idle_ms = o->idle_ms ? MIN(o->idle_ms, (uint32_t)INT32_MAX) : IDLE_MS;
    o->tcp_idle_ms = o->tcp_idle_ms ? MIN(o->tcp_idle_ms, (uint32_t)INT32_MAX) : TCP_IDLE_MS;
    o->max_user_calls = o->max_user_calls ? o->max_user_calls : 4096;
    o->max_own_calls = o->max_own_calls ? o->max_own_calls : 16;
    o->request_ms = o->request_ms ? o->request_ms : REQUEST_MS;
    o->max_user_message_bytes =
        o->max_user_message_bytes ? MIN(o->max_user_message_bytes, o->max_message_bytes) : o->max_message_bytes;
    o->memory_bytes = o->memory_bytes ? o->memory_bytes : 64 << 20;
    server->spare_fd = -1;
    server->health = (struct rpc_health){.methods = methods, .n = n};
    rpc_reflection_open(&server->reflection, descriptors, descriptors_bytes, methods, n);
    endpoints_add(server, methods, n, data, false);
    endpoints_add(server, rpc_health_methods, RPC_HEALTH_METHODS, &server->health, true);
    endpoints_add(server, rpc_reflection_methods, RPC_REFLECTION_METHODS, &server->reflection, true);
    server->endpoints[server->n_endpoints++] = (struct endpoint){.own = true};

    rpc_library_enter();
    server->queue.cq = rpc_cq_create();
    *ret = server;
    return TITAN_OK;
}

titan_status rpc_server_start(struct rpc_server *server, struct titan_error *err)
{
    titan_assert(!server->started);
    TRY(rpc_queue_start(&server->queue, server->loop, err));
    (void)uv_timer_init(server->loop, &server->timer);
    server->timer.data = server;
    server->started = true;
    return rpc_tenants_start(server, err);
}

static bool may_go_on(struct rpc_call *call, struct titan_error *err)
{
    const struct endpoint *endpoint = call->endpoint;
    return call->over || call->finishing || endpoint->own || !endpoint->method.path ||
           call->server->options.review(call, &endpoint->method, endpoint->data, err) == TITAN_OK;
}

void rpc_server_review(struct rpc_server *server)
{
    const struct rpc_server_options *options = &server->options;
    for (struct rpc_call *call = options->review ? server->open : NULL; call; call = call->next) {
        struct titan_error err = {0};
        if (may_go_on(call, &err))
            continue;
        out_clear(call);
        rpc_call_fail(call, &err);
    }
    for (size_t i = 0; i < CONNECTION_BUCKETS && options->review_connection; i++)
        for (struct connection *c = server->connections[i]; c; c = c->next) {
            struct rpc_identity identity;
            rpc_tenant_identify(c->tenant, c, &identity);
            if (identity.kind == RPC_ID_CERT && !options->review_connection(&identity, server->methods_data))
                rpc_proxy_cut(server->proxy, &c->proxy, RPC_CUT_SOON);
        }
}

void rpc_server_set_serving(struct rpc_server *server, bool serving)
{
    rpc_health_set(&server->health, serving);
}

void rpc_handle_closed(struct rpc_server *server)
{
    titan_assert(server->handles > 0);
    if (--server->handles == 0)
        server->done(server->data); /* may free the server */
}

static void queue_stopped(void *data)
{
    struct rpc_server *server = data;
    rpc_tenants_destroy(server);
    rpc_handle_closed(server);
}

static void timer_closed(uv_handle_t *handle)
{
    rpc_handle_closed(handle->data);
}

/* The last step of shutdown, after gRPC has released everything. */
void rpc_shutdown_advance(struct rpc_server *server)
{
    if (!server->stopping || server->stopped || server->tenants_up > 0 || server->n_calls > 0)
        return;
    server->stopped = true;
    server->handles = 2 + rpc_listeners_close(server);
    rpc_proxy_close(TAKE(server->proxy)); /* its ended tags must precede the queue's end */
    uv_close((uv_handle_t *)&server->timer, timer_closed);
    rpc_queue_stop(&server->queue, queue_stopped, server);
}

static void shutdown_tag(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct tenant *tenant = tag->owner;
    titan_assert(tenant->shutting && tenant->owner->tenants_up > 0);
    struct rpc_server *server = tenant->owner;
    server->tenants_up--;
    tenant->down = true;
    rpc_tenant_gone(tenant);
    rpc_shutdown_advance(server);
}

void rpc_tenant_advance(struct tenant *tenant)
{
    struct rpc_server *server = tenant->owner;
    if ((!server->stopping && !tenant->leaving) || tenant->shutting)
        return;
    tenant->shutting = true;
    tenant->shutdown_tag = (struct rpc_tag){.fn = shutdown_tag, .owner = tenant};
    grpc_server_shutdown_and_notify(tenant->server, server->queue.cq, &tenant->shutdown_tag);
    if (server->grace_is_over || tenant->leaving)
        grpc_server_cancel_all_calls(tenant->server);
}

static void grace_over(uv_timer_t *timer)
{
    struct rpc_server *server = timer->data;
    server->grace_is_over = true;
    for (struct tenant *tenant = server->tenants; tenant; tenant = tenant->next)
        if (tenant->shutting)
            grpc_server_cancel_all_calls(tenant->server);
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
    rpc_health_set(&server->health, false);
    rpc_listeners_stop(server);
    for (struct tenant *tenant = server->tenants; tenant; tenant = tenant->next)
        rpc_tenant_advance(tenant);
    /* Health watches and reflection streams never end by themselves. */
    for (struct rpc_call *call = server->open; call; call = call->next)
        if (call->endpoint->own)
            rpc_call_finish(call, TITAN_EUNREACHABLE, "the server is shutting down");
    (void)uv_timer_start(&server->timer, grace_over, grace_ms, 0);
    rpc_shutdown_advance(server);
}

/* Never started: no thread and no call exists, but gRPC requires a shutdown of its servers. */
static void unstarted_close(struct rpc_server *server)
{
    grpc_completion_queue *cq = server->queue.cq;
    gpr_timespec forever = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    for (struct tenant *tenant = server->tenants; tenant; tenant = tenant->next) {
        grpc_server_shutdown_and_notify(tenant->server, cq, NULL);
        (void)grpc_completion_queue_next(cq, forever, NULL);
    }
    rpc_tenants_destroy(server);
    grpc_completion_queue_shutdown(cq);
    while (grpc_completion_queue_next(cq, forever, NULL).type != GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(cq);
}

void rpc_server_free(struct rpc_server *server)
{
    if (!server)
        return;
    titan_assert(!server->started || (server->stopped && server->handles == 0));
    if (!server->started)
        unstarted_close(server);
    while (server->spare) {
        struct rpc_call *call = server->spare;
        server->spare = call->next;
        free(call);
    }
    rpc_listeners_free(server);
    rpc_reflection_close(&server->reflection);
    free(server->endpoints);
    free(server);
    rpc_library_leave();
}
