/* server.c - see server.h.
 *
 * A call is one allocation that is used again. It starts as a slot offered to gRPC for the next call of a method, and
 * goes back when all its tags are back:
 *
 *   request_tag  the slot was taken by a call (or the server shuts down)
 *   close_tag    RECV_CLOSE_ON_SERVER: the call is over on the wire, well or not; tells the handler
 *   recv_tag     one RECV_MESSAGE at a time (client streaming only; otherwise the message comes with the call)
 *   send_tag     one batch at a time: headers, a message, the final status, as many of them as are due
 *
 * Unprivileged TCP listeners are a gRPC server of their own ("front"), because gRPC does not say by which listener a
 * call came. */
#include "proto/rpc/server.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "proto/rpc/common.h"
#include "proto/rpc/health.h"
#include "proto/rpc/reflection.h"

enum {
    FRONTS = 2, /* by privilege: 0 is restricted */
    /* Calls of a method that can be taken in one turn of the loop; further ones wait inside gRPC. */
    SLOTS_SERVED = 64,
    SLOTS_OWN = 2,
    SPARE_CALLS = 1024,
};

struct endpoint {
    struct rpc_method method; /* path NULL: whatever is not served */
    void *data;
    void *registered[FRONTS];
    bool own; /* health and reflection */
    int slots;
};

struct front {
    struct rpc_server *owner;
    grpc_server *server; /* NULL without a listener of this kind */
    struct rpc_tag shutdown_tag;
};

struct message {
    struct message *next;
    grpc_byte_buffer *buffer;
};

struct rpc_call {
    struct rpc_server *server;
    struct endpoint *endpoint;
    int front;
    grpc_call *call;
    unsigned pending; /* tags out */
    struct rpc_tag request_tag, close_tag, recv_tag, send_tag;
    struct rpc_call *next, *prev; /* in server->open, or next in server->spare */

    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_call_details details; /* of what is not served */
    grpc_byte_buffer *incoming;
    int cancelled;

    bool opened;       /* the handler knows it */
    bool over;         /* nothing more to or from the handler */
    bool sent_headers; /* or they are on their way */
    bool sending, receiving, recv_held;
    bool finishing; /* status is set; goes out after what is queued */
    bool finished;  /* status is on its way */
    bool want_drain;

    struct message *out, **out_last;
    uint32_t out_n;
    grpc_byte_buffer *out_now; /* in the batch of send_tag */
    titan_status status;
    grpc_slice status_text;

    void *user;
    char *peer;
};

/* A listening socket that is not gRPC's: connections are accepted here and handed over. */
struct adopted {
    struct adopted *next;
    struct rpc_server *server;
    int fd, front;
    uv_poll_t poll;
};

struct rpc_server {
    uv_loop_t *loop;
    struct rpc_queue queue;
    struct front fronts[FRONTS];
    struct adopted *adopted;
    struct endpoint *endpoints;
    size_t n_endpoints;
    struct rpc_server_options options;
    struct rpc_health health;
    struct rpc_reflection reflection;

    struct rpc_call *open, *spare;
    size_t n_calls, n_spare; /* slots and calls alive; spare ones not counted */
    bool started, stopping, stopped;
    int fronts_up;
    uv_timer_t grace;
    int handles; /* still to be closed */
    void (*done)(void *);
    void *data;
};

static void pump(struct rpc_call *call);
static void slot_offer(struct rpc_server *server, struct endpoint *endpoint, int front);
static void shutdown_advance(struct rpc_server *server);

/* --- call memory -------------------------------------------------------------------------------------------------- */

static void request_tag(struct rpc_tag *tag, bool ok);
static void close_tag(struct rpc_tag *tag, bool ok);
static void recv_tag(struct rpc_tag *tag, bool ok);
static void send_tag(struct rpc_tag *tag, bool ok);

static struct rpc_call *call_alloc(struct rpc_server *server)
{
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
}

static void call_free(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
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
    gpr_free(call->peer);
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
    shutdown_advance(server);
}

static void call_unref(struct rpc_call *call)
{
    if (--call->pending == 0)
        call_free(call);
}

static void batch(struct rpc_call *call, const grpc_op *ops, size_t n, struct rpc_tag *tag)
{
    call->pending++;
    grpc_call_error rc = grpc_call_start_batch(call->call, ops, n, tag, NULL);
    titan_assert(rc == GRPC_CALL_OK); /* only misuse of the API fails */
}

/* --- incoming ----------------------------------------------------------------------------------------------------- */

static void recv_next(struct rpc_call *call)
{
    if (call->receiving || call->over || call->finishing)
        return;
    /* Who does not read its answers is not read from either. */
    call->recv_held = call->out_n >= call->server->options.max_queue;
    if (call->recv_held)
        return;
    call->receiving = true;
    grpc_op op = rpc_op(GRPC_OP_RECV_MESSAGE);
    op.data.recv_message.recv_message = &call->incoming;
    batch(call, &op, 1, &call->recv_tag);
}

/* Decode call->incoming; NULL when the call was ended because of it. */
static ProtobufCMessage *take_message(struct rpc_call *call)
{
    struct titan_error err;
    ProtobufCMessage *message = NULL;
    if (rpc_unpack(call->incoming, call->endpoint->method.request, (size_t)call->server->options.max_message_bytes * 8,
                   &message, &err) != TITAN_OK)
        rpc_call_finish(call, err.status, err.msg);
    grpc_byte_buffer_destroy(call->incoming);
    call->incoming = NULL;
    return message;
}

static void recv_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    const struct endpoint *endpoint = call->endpoint;
    call->receiving = false;
    if (call->over || call->finishing) {
        /* nobody listens any more */
    } else if (!ok || !call->incoming) {
        endpoint->method.on_message(call, NULL, endpoint->data);
    } else {
        ProtobufCMessage *message = take_message(call);
        if (message) {
            endpoint->method.on_message(call, message, endpoint->data);
            protobuf_c_message_free_unpacked(message, NULL);
            recv_next(call);
        }
    }
    call_unref(call);
}

static void close_tag(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_call *call = tag->owner;
    call->over = true;
    out_clear(call);
    if (call->opened && call->endpoint->method.on_close)
        call->endpoint->method.on_close(call, call->cancelled != 0, call->endpoint->data);
    call_unref(call);
}

static void call_begin(struct rpc_call *call)
{
    struct rpc_server *server = call->server;
    struct endpoint *endpoint = call->endpoint;
    call->next = server->open;
    if (call->next)
        call->next->prev = call;
    server->open = call;

    grpc_op op = rpc_op(GRPC_OP_RECV_CLOSE_ON_SERVER);
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    batch(call, &op, 1, &call->close_tag);

    if (!endpoint->method.path) {
        rpc_call_finish(call, TITAN_EUNSUPPORTED, "no such method");
    } else if (server->stopping) {
        rpc_call_finish(call, TITAN_EUNREACHABLE, "the server is shutting down");
    } else if (endpoint->method.privileged && call->front == 0) {
        rpc_call_finish(call, TITAN_EPERM, "this listener does not serve privileged methods");
    } else if (endpoint->method.on_message) {
        call->opened = true;
        recv_next(call);
    } else if (!call->incoming) {
        rpc_call_finish(call, TITAN_EINVAL, "the request message is missing");
    } else {
        ProtobufCMessage *message = take_message(call);
        if (message) {
            call->opened = true;
            endpoint->method.on_request(call, message, endpoint->data);
            protobuf_c_message_free_unpacked(message, NULL);
        }
    }
}

static void request_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    if (ok) {
        slot_offer(call->server, call->endpoint, call->front);
        call_begin(call);
    } else {
        call->call = NULL;
    }
    call_unref(call);
}

static void slot_offer(struct rpc_server *server, struct endpoint *endpoint, int front)
{
    if (server->stopping)
        return;
    struct rpc_call *call = call_alloc(server);
    if (!call)
        return; /* one slot fewer; the calls in it wait for another */
    call->endpoint = endpoint;
    call->front = front;
    call->pending = 1;
    call->request_tag.costly = endpoint->method.costly;
    grpc_server *to = server->fronts[front].server;
    grpc_completion_queue *cq = server->queue.cq;
    grpc_call_error rc;
    if (endpoint->method.path) {
        rc = grpc_server_request_registered_call(to, endpoint->registered[front], &call->call, &call->deadline,
                                                 &call->metadata, endpoint->method.on_message ? NULL : &call->incoming,
                                                 cq, cq, &call->request_tag);
    } else {
        grpc_call_details_init(&call->details);
        rc = grpc_server_request_call(to, &call->call, &call->details, &call->metadata, cq, cq, &call->request_tag);
    }
    titan_assert(rc == GRPC_CALL_OK);
}

/* --- outgoing ----------------------------------------------------------------------------------------------------- */

/* Start the next batch if none is out and something is due. */
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
        call->out_now = message->buffer;
        free(message);
        ops[n] = rpc_op(GRPC_OP_SEND_MESSAGE);
        ops[n].flags = call->out ? GRPC_WRITE_BUFFER_HINT : 0; /* the next one follows at once */
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
    call->sending = true;
    batch(call, ops, n, &call->send_tag);
}

static void send_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    call->sending = false;
    if (call->out_now) {
        grpc_byte_buffer_destroy(call->out_now);
        call->out_now = NULL;
    }
    if (!ok) {
        /* The stream is broken; close_tag is on its way. */
        call->finished = true;
        out_clear(call);
    } else if (!call->over) {
        pump(call);
        if (call->recv_held && call->out_n < call->server->options.max_queue)
            recv_next(call);
        if (call->want_drain && !call->finishing && call->out_n <= call->server->options.max_queue / 2) {
            call->want_drain = false;
            if (call->endpoint->method.on_drain)
                call->endpoint->method.on_drain(call, call->endpoint->data);
        }
    }
    call_unref(call);
}

/* Takes the buffer. */
static titan_status out_append(struct rpc_call *call, grpc_byte_buffer *buffer)
{
    struct message *node = malloc(sizeof(*node));
    if (!node) {
        grpc_byte_buffer_destroy(buffer);
        return TITAN_ENOMEM;
    }
    *node = (struct message){.buffer = buffer};
    *call->out_last = node;
    call->out_last = &node->next;
    call->out_n++;
    return TITAN_OK;
}

static titan_status has_room(struct rpc_call *call)
{
    if (call->over || call->finishing || call->finished)
        return TITAN_ECANCELLED;
    if (call->out_n >= call->server->options.max_queue) {
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
    TRY(out_append(call, grpc_byte_buffer_copy(packed->buffer))); /* the bytes are shared */
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
    struct rpc_call *self = (struct rpc_call *)(uintptr_t)call; /* asked for once, kept */
    if (!self->peer)
        self->peer = grpc_call_get_peer(self->call);
    return self->peer;
}

/* --- listeners ---------------------------------------------------------------------------------------------------- */

static titan_status front_open(struct rpc_server *server, int which, struct titan_error *err)
{
    struct front *front = &server->fronts[which];
    if (front->server)
        return TITAN_OK;
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_ALLOW_REUSEPORT, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER,
         .key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
         .value.integer = (int)server->options.max_message_bytes},
        {.type = GRPC_ARG_INTEGER,
         .key = GRPC_ARG_MAX_CONCURRENT_STREAMS,
         .value.integer = (int)server->options.max_concurrent_streams},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_KEEPALIVE_TIME_MS, .value.integer = 30000},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_KEEPALIVE_TIMEOUT_MS, .value.integer = 10000},
        /* Clients of ours ping every 10 s, also when idle. */
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, .value.integer = 1},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, .value.integer = 5000},
        {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, .value.integer = 10000},
        /* Identity only: a small compressed message could otherwise become one beyond the limit. */
        {.type = GRPC_ARG_INTEGER,
         .key = GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET,
         .value.integer = 1 << GRPC_COMPRESS_NONE},
    };
    grpc_channel_args list = {.num_args = ARRAY_SIZE(args), .args = args};
    front->server = grpc_server_create(&list, NULL);
    grpc_server_register_completion_queue(front->server, server->queue.cq, NULL);
    for (size_t i = 0; i < server->n_endpoints; i++) {
        struct endpoint *endpoint = &server->endpoints[i];
        if (!endpoint->method.path)
            continue;
        endpoint->registered[which] = grpc_server_register_method(
            front->server, endpoint->method.path, NULL,
            endpoint->method.on_message ? GRPC_SRM_PAYLOAD_NONE : GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        if (!endpoint->registered[which])
            return titan_fail(err, TITAN_EBUG, "rpc: method %s is in the table twice", endpoint->method.path);
    }
    return TITAN_OK;
}

/* A listener may replace a socket file nobody listens on, and nothing else. (gRPC itself would unlink any socket.) */
static titan_status socket_check(const char *path, struct titan_error *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? TITAN_OK : titan_fail_errno(err, "socket %s", path);
    if (!S_ISSOCK(st.st_mode))
        return titan_fail(err, TITAN_EEXIST, "%s is there already and is not a socket", path);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return titan_fail_errno(err, "socket %s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 && (errno == ECONNREFUSED || errno == ENOENT))
        return TITAN_OK;
    return titan_fail(err, TITAN_EEXIST, "socket %s is in use by another process", path);
}

/* gRPC does not say why it could not listen: try the same and read errno. */
static titan_status listen_reason(const char *address, struct titan_error *err)
{
    if (strncmp(address, "unix:", 5) == 0) {
        struct sockaddr_un unix_address = {.sun_family = AF_UNIX};
        (void)snprintf(unix_address.sun_path, sizeof(unix_address.sun_path), "%s", address + 5);
        _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && bind(fd, (struct sockaddr *)&unix_address, sizeof(unix_address)) != 0)
            return titan_fail_errno(err, "cannot listen on %s", address);
        (void)unlink(address + 5);
        return titan_fail(err, TITAN_EIO, "cannot listen on %s", address);
    }
    const char *colon = strrchr(address, ':');
    char host[256];
    size_t len = MIN((size_t)(colon - address), sizeof(host) - 1);
    const char *from = address;
    if (len >= 2 && from[0] == '[' && from[len - 1] == ']') {
        from++;
        len -= 2;
    }
    memcpy(host, from, len);
    host[len] = '\0';
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    int rc = getaddrinfo(host, colon + 1, &hints, &found);
    if (rc != 0)
        return titan_fail(err, TITAN_EINVAL, "cannot listen on %s: %s", address, gai_strerror(rc));
    titan_status status = titan_fail(err, TITAN_EIO, "cannot listen on %s", address);
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        _cleanup_fd_ int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int on = 1;
        if (fd < 0)
            continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1) == 0)
            continue;
        if (errno == EADDRINUSE)
            status = titan_fail(err, TITAN_EEXIST, "address %s is in use by another process", address);
        else if (errno == EADDRNOTAVAIL)
            status = titan_fail(err, TITAN_EINVAL, "cannot listen on %s: not an address of this machine", address);
        else
            status = titan_fail_errno(err, "cannot listen on %s", address);
        break;
    }
    freeaddrinfo(found);
    return status;
}

titan_status rpc_server_listen(struct rpc_server *server, const char *address, bool privileged, int *ret_port,
                               struct titan_error *err)
{
    titan_assert(!server->started);
    TRY(rpc_target_check(address, err));
    bool local = strncmp(address, "unix:", 5) == 0;
    if (local)
        TRY(socket_check(address + 5, err));
    int which = local || privileged;
    TRY(front_open(server, which, err));
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    int port = grpc_server_add_http2_port(server->fronts[which].server, address, credentials);
    grpc_server_credentials_release(credentials);
    if (port == 0)
        return listen_reason(address, err);
    if (ret_port)
        *ret_port = local ? 0 : port;
    return TITAN_OK;
}

titan_status rpc_server_adopt(struct rpc_server *server, int fd, bool privileged, struct titan_error *err)
{
    titan_assert(!server->started);
    int listens = 0, flags = fcntl(fd, F_GETFL);
    socklen_t len = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) < 0 || !listens)
        return titan_fail(err, TITAN_EINVAL, "descriptor %d is not a socket that listens", fd);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return titan_fail_errno(err, "cannot use socket %d", fd);
    TRY(front_open(server, privileged, err));
    struct adopted *a = calloc(1, sizeof(*a));
    if (!a)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a listener");
    *a = (struct adopted){.next = server->adopted, .server = server, .fd = fd, .front = privileged};
    server->adopted = a;
    return TITAN_OK;
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct adopted *a = poll->data;
    (void)events;
    for (int i = 0; status == 0 && i < 64; i++) {
        int fd = accept4(a->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
        grpc_server_add_channel_from_fd(a->server->fronts[a->front].server, fd, credentials); /* takes it */
        grpc_server_credentials_release(credentials);
    }
}

static titan_status adopted_start(struct rpc_server *server, struct titan_error *err)
{
    for (struct adopted *a = server->adopted; a; a = a->next) {
        if (uv_poll_init(server->loop, &a->poll, a->fd) != 0)
            return titan_fail(err, TITAN_EIO, "cannot watch socket %d", a->fd);
        a->poll.data = a;
        (void)uv_poll_start(&a->poll, UV_READABLE, on_connection);
    }
    return TITAN_OK;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void endpoints_add(struct rpc_server *server, const struct rpc_method *methods, size_t n, void *data, bool own)
{
    for (size_t i = 0; i < n; i++) {
        titan_assert(!methods[i].on_request != !methods[i].on_message);
        server->endpoints[server->n_endpoints++] =
            (struct endpoint){.method = methods[i], .data = data, .own = own, .slots = own ? SLOTS_OWN : SLOTS_SERVED};
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
    if (options)
        server->options = *options;
    struct rpc_server_options *o = &server->options;
    o->max_message_bytes = o->max_message_bytes ? MIN(o->max_message_bytes, (uint32_t)INT32_MAX) : 4 << 20;
    o->max_concurrent_streams = o->max_concurrent_streams ? MIN(o->max_concurrent_streams, (uint32_t)INT32_MAX) : 1024;
    o->max_queue = o->max_queue ? o->max_queue : 256;
    server->health = (struct rpc_health){.methods = methods, .n = n};
    server->reflection = (struct rpc_reflection){descriptors, descriptors_bytes, methods, n};
    endpoints_add(server, methods, n, data, false);
    endpoints_add(server, rpc_health_methods, RPC_HEALTH_METHODS, &server->health, true);
    endpoints_add(server, rpc_reflection_methods, RPC_REFLECTION_METHODS, &server->reflection, true);
    server->endpoints[server->n_endpoints++] = (struct endpoint){.own = true, .slots = SLOTS_OWN};

    rpc_library_enter();
    server->queue.cq = rpc_cq_create();
    *ret = server;
    return TITAN_OK;
}

titan_status rpc_server_start(struct rpc_server *server, struct titan_error *err)
{
    titan_assert(!server->started);
    TRY(rpc_queue_start(&server->queue, server->loop, err));
    (void)uv_timer_init(server->loop, &server->grace);
    server->grace.data = server;
    server->started = true;
    for (int f = 0; f < FRONTS; f++) {
        if (!server->fronts[f].server)
            continue;
        grpc_server_start(server->fronts[f].server);
        server->fronts_up++;
        for (size_t i = 0; i < server->n_endpoints; i++)
            for (int k = 0; k < server->endpoints[i].slots; k++)
                slot_offer(server, &server->endpoints[i], f);
    }
    return adopted_start(server, err);
}

void rpc_server_set_serving(struct rpc_server *server, bool serving)
{
    rpc_health_set(&server->health, serving);
}

static void handle_closed(struct rpc_server *server)
{
    if (--server->handles == 0)
        server->done(server->data); /* may free the server */
}

static void queue_stopped(void *data)
{
    struct rpc_server *server = data;
    for (int f = 0; f < FRONTS; f++)
        if (server->fronts[f].server)
            grpc_server_destroy(server->fronts[f].server);
    memset(server->fronts, 0, sizeof(server->fronts));
    handle_closed(server);
}

static void grace_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

static void adopted_closed(uv_handle_t *handle)
{
    handle_closed(((struct adopted *)handle->data)->server);
}

/* The last step of shutdown, when gRPC has let go of everything. */
static void shutdown_advance(struct rpc_server *server)
{
    if (!server->stopping || server->stopped || server->fronts_up > 0 || server->n_calls > 0)
        return;
    server->stopped = true;
    server->handles = 2;
    uv_close((uv_handle_t *)&server->grace, grace_closed);
    for (struct adopted *a = server->adopted; a; a = a->next) {
        server->handles++;
        uv_close((uv_handle_t *)&a->poll, adopted_closed);
    }
    rpc_queue_stop(&server->queue, queue_stopped, server);
}

static void shutdown_tag(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct front *front = tag->owner;
    front->owner->fronts_up--;
    shutdown_advance(front->owner);
}

static void grace_over(uv_timer_t *timer)
{
    struct rpc_server *server = timer->data;
    for (int f = 0; f < FRONTS; f++)
        if (server->fronts[f].server)
            grpc_server_cancel_all_calls(server->fronts[f].server);
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
    for (struct adopted *a = server->adopted; a; a = a->next)
        (void)uv_poll_stop(&a->poll); /* who comes now waits for the next of us */
    for (int f = 0; f < FRONTS; f++) {
        struct front *front = &server->fronts[f];
        if (!front->server)
            continue;
        front->owner = server;
        front->shutdown_tag = (struct rpc_tag){.fn = shutdown_tag, .owner = front};
        grpc_server_shutdown_and_notify(front->server, server->queue.cq, &front->shutdown_tag);
    }
    /* Health watches and reflection never end by themselves. */
    for (struct rpc_call *call = server->open; call; call = call->next)
        if (call->endpoint->own)
            rpc_call_finish(call, TITAN_EUNREACHABLE, "the server is shutting down");
    (void)uv_timer_start(&server->grace, grace_over, grace_ms, 0);
    shutdown_advance(server);
}

/* Never started: there is no thread and no call, but gRPC wants its servers shut down all the same. */
static void unstarted_close(struct rpc_server *server)
{
    grpc_completion_queue *cq = server->queue.cq;
    gpr_timespec forever = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    for (int f = 0; f < FRONTS; f++) {
        if (!server->fronts[f].server)
            continue;
        grpc_server_shutdown_and_notify(server->fronts[f].server, cq, NULL);
        (void)grpc_completion_queue_next(cq, forever, NULL);
        grpc_server_destroy(server->fronts[f].server);
    }
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
    while (server->adopted) {
        struct adopted *a = server->adopted;
        server->adopted = a->next;
        free(a);
    }
    free(server->endpoints);
    free(server);
    rpc_library_leave();
}
