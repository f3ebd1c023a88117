/* SPDX-License-Identifier: Apache-2.0 */
/* client.c - see client.h. Every call is a stream. A unary call keeps its one reply until the status has arrived. */
#include "proto/rpc/client.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/rpc/common.h"
#include "proto/rpc/pair.h"
#include "proto/rpc/targets.h"

enum {
    SEND_QUEUE = 8192,
    MESSAGE_MAX = 64 << 20,
    LOOKUP_MS = 5000,    /* for a name server: an unresponsive server must not block the other addresses */
    LOOKAHEAD = 1 << 20, /* bytes a client accepts before reading; enough for logs at 10 MB/s from 100 ms away */
};

#define TRUSTED_USER "titan" /* systemd/titan.sysusers */

struct rpc_stream {
    struct rpc_client *client;
    LIST_ENTRY(rpc_stream) link; /* in client->open */
    const char *path, *target;   /* borrowed; the client owns the target */
    const ProtobufCMessageDescriptor *reply;
    grpc_call *call;
    struct rpc_tag send_tag, recv_tag, status_tag;
    unsigned pending; /* tags in flight */
    struct rpc_stream_events events;
    rpc_reply_cb cb;          /* of a unary call; NULL: a stream */
    ProtobufCMessage *answer; /* of a unary call */
    void *data;

    struct rpc_out out;
    grpc_metadata header;
    grpc_metadata_array headers, trailers;
    grpc_status_code code;
    grpc_slice details;
    grpc_byte_buffer *incoming;

    bool close_send, closed_send;
    bool received_all, has_status, over;
    bool cancelled; /* by this side */
    bool bad_message;
    struct titan_error error; /* valid with bad_message */
};

struct rpc_client {
    struct rpc_queue queue;
    struct rpc_targets targets;
    const char *target;    /* the address of calls; points into targets */
    char *authorization;   /* header for each call, or NULL */
    struct rpc_pair *pair; /* NULL: without TLS */
    grpc_channel *channel;
    int socket; /* socket of the one-time connection to a Unix socket with a token; -1 = none */
    LIST_HEAD(open_streams, rpc_stream) open;
    bool closing, stopped;
    bool kept; /* the callback that runs keeps its reply */
    void (*done)(void *);
    void *data;
};

static bool is_local(const char *target)
{
    return strncmp(target, "unix:", 5) == 0;
}

/* --- statuses ----------------------------------------------------------------------------------------------------- */

static titan_status outcome(const struct rpc_stream *stream, struct titan_error *err)
{
    static const titan_status all[] = {
#define X(name, value, text, grpc, code) TITAN_##name,
        TITAN_STATUS_MAP(X)
#undef X
    };
    const grpc_status_code code = stream->code;
    const grpc_slice details = stream->details;
    const char *what = stream->path, *target = stream->target;
    if (stream->bad_message) {
        *err = stream->error;
        return err->status;
    }
    if (stream->cancelled && code == GRPC_STATUS_CANCELLED)
        return titan_fail(err, TITAN_ECANCELLED, "%s: cancelled", what);
    if (stream->cb && code == GRPC_STATUS_OK && !stream->answer)
        return titan_fail(err, TITAN_EIO, "%s: the server's answer has no message", what);
    if (code == GRPC_STATUS_OK)
        return titan_error_set(err, TITAN_OK, 0, __FILE__, __LINE__, "ok");
    char text[512];
    size_t n = MIN(GRPC_SLICE_LENGTH(details), sizeof(text) - 1);
    memcpy(text, GRPC_SLICE_START_PTR(details), n);
    text[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20)
            text[i] = ' ';

    for (size_t i = 0; i < stream->trailers.count; i++) {
        const grpc_metadata *m = &stream->trailers.metadata[i];
        for (size_t k = 0; grpc_slice_str_cmp(m->key, RPC_STATUS_TRAILER) == 0 && k < ARRAY_SIZE(all); k++)
            if (grpc_slice_str_cmp(m->value, titan_status_name(all[k])) == 0 && titan_status_grpc(all[k]) == (int)code)
                return titan_fail(err, all[k], "%s", text[0] ? text : titan_status_text(all[k])); /* Titan's own text */
    }
    const titan_status status = titan_status_from_grpc((int)code);
    /* This side has not cancelled the call, and the answer lacks Titan's status: a stopping server drops late calls. */
    if (code == GRPC_STATUS_CANCELLED)
        return titan_error_set(err, TITAN_EUNREACHABLE, ENOTCONN, __FILE__, __LINE__,
                               RPC_NO_ANSWER "%s: it dropped the call", target);
    if (code == GRPC_STATUS_UNAVAILABLE) {
        /* gRPC's text lists all steps; the cause is last. OpenSSL's cause follows its own numbers. */
        const char *tls = strstr(text, "routines::"), *cause = strrchr(text, ':');
        cause = tls ? tls + strlen("routines::") : cause && cause[1] == ' ' ? cause + 2 : text;
        (void)titan_error_set(err, status, ENOTCONN, __FILE__, __LINE__, RPC_NO_ANSWER "%s: %s%s", target,
                              tls ? "TLS: " : "", cause);
        if (tls || strstr(text, "not in peer certificate"))
            titan_error_hint(err,
                             "is that a server of this cluster, at a name its certificate has, and are both clocks "
                             "right?");
        else if (strcmp(cause, "Socket closed") == 0 && !is_local(target))
            titan_error_hint(err,
                             "a server with TLS closes connections without it, and those with a certificate that has "
                             "expired or is of another cluster");
        return status;
    }
    if (code == GRPC_STATUS_UNIMPLEMENTED)
        return titan_fail(err, status, "the server at %s does not have %s", target, what);
    if (code == GRPC_STATUS_DEADLINE_EXCEEDED)
        return titan_fail(err, status, "%s: the server at %s did not answer in time", what, target);
    return titan_fail(err, status, "%s: %s", what, text[0] ? text : titan_status_text(status));
}

/* --- channels ----------------------------------------------------------------------------------------------------- */

/* Creates a channel with Titan's settings: back-off, limits, no proxy, its own connection. fd: an open connection to
 * use, or -1. */
static grpc_channel *channel_create(const char *target, struct rpc_pair *pair, int fd)
{
    grpc_arg args[] = {
        /* Back-off 50 ms .. 2 s; "min" is really the least duration of a connection attempt. */
        rpc_arg_int(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50),
        rpc_arg_int(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000),
        rpc_arg_int(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000),
        rpc_arg_int(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, LOOKUP_MS),
        rpc_arg_int(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MESSAGE_MAX),
        rpc_arg_int(GRPC_ARG_HTTP2_BDP_PROBE, 0), /* see server.c */
        rpc_arg_int(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LOOKAHEAD),
        rpc_arg_int(GRPC_ARG_KEEPALIVE_TIME_MS, 10000),
        rpc_arg_int(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000),
        rpc_arg_int(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        rpc_arg_int(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        /* gRPC must not repeat calls: callers repeat submits, by idempotency key. */
        rpc_arg_int(GRPC_ARG_ENABLE_RETRIES, 0),
        rpc_arg_int(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        rpc_arg_int(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        /* One connection per channel: two channels to a target share neither failures nor throughput. */
        rpc_arg_int(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        {.type = GRPC_ARG_STRING,
         .key = (char *)(uintptr_t)GRPC_ARG_DEFAULT_AUTHORITY,
         .value.string = (char *)(uintptr_t) "localhost"}, /* the authority that gRPC sets for its own sockets */
    };
    grpc_channel_args list = {.num_args = ARRAY_SIZE(args) - (fd < 0), .args = args};
    grpc_channel_credentials *insecure = pair ? NULL : grpc_insecure_credentials_create();
    grpc_channel_credentials *credentials = pair ? rpc_pair_client(pair) : insecure;
    grpc_channel *channel = fd < 0 ? grpc_channel_create(target, credentials, &list)
                                   : grpc_channel_create_from_fd(target, fd, credentials, &list);
    if (insecure)
        grpc_channel_credentials_release(insecure);
    titan_assert(channel);
    return channel;
}

/* Connects to a server that may have the token. The kernel reports the server's user: SO_PEERCRED names the user of
 * listen(2), under systemd root. TITAN_EPERM names a user that may not have it; TITAN_EUNREACHABLE: no server. *ret_fd
 * is non-blocking. */
static titan_status trusted_connect(const char *path, int *ret_fd, struct titan_error *err)
{
    char room[16384], name[64];
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t len = sizeof(peer);
    struct passwd entry, *user = NULL;
    if (snprintf(to.sun_path, sizeof(to.sun_path), "%s", path) >= (int)sizeof(to.sun_path))
        return titan_fail(err, TITAN_EINVAL, "'%s' is too long for a socket", path);
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0)
        return titan_fail(err, TITAN_EUNREACHABLE, "'%s': %s", path, strerror(errno));
    if (peer.uid != 0 && peer.uid != geteuid() &&
        (getpwnam_r(TRUSTED_USER, &entry, room, sizeof(room), &user) != 0 || !user || user->pw_uid != peer.uid)) {
        (void)snprintf(name, sizeof(name), "uid %u", (unsigned)peer.uid);
        const bool named = getpwuid_r(peer.uid, &entry, room, sizeof(room), &user) == 0 && user;
        (void)titan_fail(err, TITAN_EPERM,
                         "a token is not sent to unix:%s: its server runs as %s, not as root, %s or this user", path,
                         named ? user->pw_name : name, TRUSTED_USER);
        titan_error_hint(err, "unset TITAN_TOKEN to come as the user of this process, or name the server by HOST:PORT");
        return TITAN_EPERM;
    }
    *ret_fd = TAKE_FD(fd);
    return TITAN_OK;
}

/* Opens a channel over its own connection to a server that may have the token. If the server may not have it, opens a
 * channel that fails all calls. */
static titan_status connect_trusted(struct rpc_client *client, struct titan_error *err)
{
    struct pollfd ended = {.fd = client->socket, .events = POLLRDHUP};
    if (client->socket >= 0 && poll(&ended, 1, 0) == 0)
        return TITAN_OK;
    grpc_channel_destroy(client->channel);
    if (client->socket >= 0)
        (void)close(client->socket);
    int fd = -1;
    titan_status status = trusted_connect(client->target + strlen("unix:"), &fd, err);
    client->socket = status == TITAN_OK ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (status == TITAN_OK && client->socket < 0) {
        status = titan_fail_errno(err, "a socket");
        (void)close(fd);
    }
    client->channel = status == TITAN_OK
                          ? channel_create(client->target, NULL, fd)
                          : grpc_lame_client_channel_create(client->target,
                                                            status == TITAN_EPERM ? GRPC_STATUS_PERMISSION_DENIED
                                                                                  : GRPC_STATUS_UNAVAILABLE,
                                                            err->msg);
    return status;
}

titan_status rpc_client_token(struct rpc_client *client, const char *token, struct titan_error *err)
{
    char *text = NULL;
    if (!client->pair && !is_local(client->target)) {
        (void)titan_fail(err, TITAN_EPERM, "a token is not sent to %s without TLS", client->target);
        titan_error_hint(err, "name the file of the authority's certificate");
        return TITAN_EPERM;
    }
    for (const char *c = token; *c; c++)
        if (*c <= ' ' || *c > '~')
            return titan_fail(err, TITAN_EINVAL, "a token has no spaces and no control characters");
    if (asprintf(&text, "Bearer %s", token) < 0)
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a token");
    titan_assert(!client->authorization); /* calls borrow it */
    client->authorization = text;
    struct titan_error refused;
    if (!is_local(client->target) || connect_trusted(client, &refused) != TITAN_EPERM)
        return TITAN_OK; /* a missing server may start later */
    if (err)
        *err = refused;
    return TITAN_EPERM;
}

static void reconnect(struct rpc_client *client)
{
    grpc_channel_destroy(client->channel); /* the calls of this channel continue */
    client->channel = channel_create(client->target, client->pair, -1);
}

void rpc_client_reconnect(struct rpc_client *client, bool next)
{
    if (client->closing)
        return;
    titan_assert(client->targets.n > 0);
    const size_t at = (size_t)(client->target - client->targets.at[0]) / RPC_TARGET_MAX;
    client->target = client->targets.at[(at + next) % client->targets.n];
    if (!client->authorization || !is_local(client->target)) /* otherwise stream_open() checks the connection */
        reconnect(client);
}

const char *rpc_client_target(const struct rpc_client *client)
{
    return client->target;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void batch(struct rpc_stream *stream, const grpc_op *ops, size_t n, struct rpc_tag *tag)
{
    titan_assert(!stream->client->stopped);
    stream->pending++;
    rpc_batch(stream->call, ops, n, tag);
}

static void stream_pump(struct rpc_stream *stream)
{
    if (stream->out.sending || stream->over || stream->closed_send)
        return;
    const char *authorization = stream->client->authorization;
    grpc_op ops[3] = {0};
    size_t n = rpc_out_ops(&stream->out, ops);
    if (n > 0 && ops[0].op == GRPC_OP_SEND_INITIAL_METADATA && authorization) {
        stream->header = (grpc_metadata){
            .key = grpc_slice_from_static_string("authorization"),
            .value = grpc_slice_from_static_string(authorization), /* the text outlives the call */
        };
        ops[0].data.send_initial_metadata.count = 1;
        ops[0].data.send_initial_metadata.metadata = &stream->header;
    }
    if (stream->close_send && !stream->out.first) {
        ops[n++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
        stream->closed_send = true;
    }
    if (n == 0)
        return;
    stream->out.sending = true;
    batch(stream, ops, n, &stream->send_tag);
}

static void stream_recv(struct rpc_stream *stream)
{
    const grpc_op ops[] = {{.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &stream->incoming}};
    batch(stream, ops, 1, &stream->recv_tag);
}

static void stream_cancel(struct rpc_stream *stream)
{
    if (!stream->cancelled)
        (void)grpc_call_cancel(stream->call, NULL);
    stream->cancelled = true;
}

static void client_advance(struct rpc_client *client);

/* Ends the work of a tag. Closes the stream once the server's status has arrived and all earlier messages were
 * delivered. */
static void stream_unref(struct rpc_stream *stream)
{
    struct rpc_client *client = stream->client;
    titan_assert(stream->pending > 0);
    if (!stream->over && stream->has_status && stream->received_all) {
        struct titan_error err;
        stream->over = true;
        rpc_out_clear(&stream->out);
        const bool fine = outcome(stream, &err) == TITAN_OK;
        client->kept = false;
        if (stream->cb)
            stream->cb(fine ? stream->answer : NULL, &err, stream->data);
        else
            stream->events.on_close(stream, &err, stream->data);
        if (client->kept)
            stream->answer = NULL;
    }
    if (--stream->pending > 0)
        return;
    LIST_REMOVE(stream, link);
    if (stream->answer)
        protobuf_c_message_free_unpacked(stream->answer, NULL);
    grpc_metadata_array_destroy(&stream->headers);
    grpc_metadata_array_destroy(&stream->trailers);
    grpc_slice_unref(stream->details);
    grpc_call_unref(stream->call);
    free(stream);
    client_advance(client);
}

static void send_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = tag->owner;
    rpc_out_sent(&stream->out);
    if (ok)
        stream_pump(stream);
    else
        stream->closed_send = true; /* the stream is broken; the status has the reason */
    stream_unref(stream);
}

static void recv_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = tag->owner;
    titan_assert(!stream->received_all);
    ProtobufCMessage *message = NULL;
    if (!ok || !stream->incoming) {
        stream->received_all = true;
    } else {
        if (!stream->bad_message &&
            rpc_unpack(stream->incoming, stream->reply, SIZE_MAX, &message, &stream->error) != TITAN_OK) {
            stream->bad_message = true;
            stream_cancel(stream);
        }
        grpc_byte_buffer_destroy(TAKE(stream->incoming));
        if (message && stream->cb && !stream->answer)
            stream->answer = TAKE(message);
        else if (message && !stream->cb && !stream->cancelled)
            stream->events.on_message(stream, message, stream->data);
        if (message)
            protobuf_c_message_free_unpacked(message, NULL);
        stream_recv(stream);
    }
    stream_unref(stream);
}

static void status_tag(struct rpc_tag *tag, bool ok)
{
    (void)ok; /* a batch with RECV_STATUS always succeeds; the status has the outcome */
    struct rpc_stream *stream = tag->owner;
    titan_assert(!stream->has_status);
    stream->has_status = true;
    stream_unref(stream);
}

/* Opens a call. It uses a new connection if the TLS files have changed, or if the server of a Unix socket may have the
 * token and the previous connection has ended. */
static struct rpc_stream *stream_open(struct rpc_client *client, const struct rpc_request *request,
                                      struct titan_error *err)
{
    titan_assert(!client->stopped && request->path[0] == '/');
    struct rpc_stream *stream = calloc(1, sizeof(*stream));
    if (stream)
        rpc_out_clear(&stream->out);
    if (!stream || (request->message && rpc_out_append(&stream->out, rpc_pack(request->message)) != TITAN_OK)) {
        free(stream);
        (void)titan_fail(err, TITAN_ENOMEM, "%s: no memory for the call", request->path);
        return NULL;
    }
    if (client->pair && rpc_pair_refresh(client->pair))
        reconnect(client);
    struct titan_error refused;
    if (client->authorization && is_local(client->target))
        (void)connect_trusted(client, &refused); /* the call reports the refusal */
    const gpr_timespec deadline =
        request->deadline_ms == 0
            ? gpr_inf_future(GPR_CLOCK_MONOTONIC)
            : gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(request->deadline_ms, GPR_TIMESPAN));
    const grpc_slice method = grpc_slice_from_copied_string(request->path);
    stream->client = client;
    stream->path = request->path;
    stream->target = client->target;
    stream->reply = request->reply;
    stream->call = grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->queue.cq, method,
                                            NULL, deadline, NULL);
    grpc_slice_unref(method);
    stream->close_send = request->message != NULL;
    stream->send_tag = (struct rpc_tag){.fn = send_tag, .owner = stream};
    stream->recv_tag = (struct rpc_tag){.fn = recv_tag, .owner = stream};
    stream->status_tag = (struct rpc_tag){.fn = status_tag, .owner = stream};
    stream->details = grpc_empty_slice();
    grpc_metadata_array_init(&stream->headers);
    grpc_metadata_array_init(&stream->trailers);
    LIST_INSERT_HEAD(&client->open, stream, link);

    stream_pump(stream);
    const grpc_op ending[] = {
        {.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata.recv_initial_metadata = &stream->headers},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &stream->trailers,
                                        .status = &stream->code,
                                        .status_details = &stream->details}},
    };
    batch(stream, ending, ARRAY_SIZE(ending), &stream->status_tag);
    stream_recv(stream);
    return stream;
}

void rpc_client_call(struct rpc_client *client, const struct rpc_request *request, rpc_reply_cb cb, void *data)
{
    struct titan_error err;
    struct rpc_stream *stream = stream_open(client, request, &err);
    if (!stream) {
        cb(NULL, &err, data);
        return;
    }
    stream->cb = cb;
    stream->data = data;
    if (client->closing)
        stream_cancel(stream);
}

void rpc_client_keep(struct rpc_client *client)
{
    client->kept = true;
}

titan_status rpc_client_stream(struct rpc_client *client, const struct rpc_request *request,
                               const struct rpc_stream_events *events, void *data, struct rpc_stream **ret,
                               struct titan_error *err)
{
    struct titan_error why;
    titan_assert(events->on_message && events->on_close);
    if (client->closing)
        return titan_fail(err, TITAN_ECANCELLED, "%s: the client is closing", request->path);
    struct rpc_stream *stream = stream_open(client, request, err ? err : &why);
    if (!stream)
        return TITAN_ENOMEM;
    stream->events = *events;
    stream->data = data;
    *ret = stream;
    return TITAN_OK;
}

titan_status rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message)
{
    if (stream->over || stream->has_status || stream->close_send || stream->closed_send || stream->cancelled)
        return TITAN_ECANCELLED;
    if (stream->out.n >= SEND_QUEUE)
        return TITAN_EAGAIN;
    TRY(rpc_out_append(&stream->out, rpc_pack(message)));
    stream_pump(stream);
    return TITAN_OK;
}

size_t rpc_stream_queued(const struct rpc_stream *stream)
{
    return stream->out.n;
}

void rpc_stream_close_send(struct rpc_stream *stream)
{
    if (stream->close_send)
        return;
    stream->close_send = true;
    stream_pump(stream);
}

void rpc_stream_cancel(struct rpc_stream *stream)
{
    if (!stream->over)
        stream_cancel(stream);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

titan_status rpc_client_open(uv_loop_t *loop, const char *target, const struct rpc_tls *tls, struct rpc_client **ret,
                             struct titan_error *err)
{
    struct rpc_client *client = calloc(1, sizeof(*client));
    if (!client)
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a client");
    client->socket = -1;
    titan_status status = rpc_targets_parse(target, &client->targets, err);
    client->target = client->targets.at[0];
    if (status == TITAN_OK && tls && !is_local(client->target))
        status = rpc_pair_open(tls, &client->pair, err);
    if (status == TITAN_OK) {
        rpc_library_enter();
        status = rpc_queue_start(&client->queue, loop, err);
        if (status != TITAN_OK)
            rpc_library_leave();
    }
    if (status != TITAN_OK) {
        rpc_pair_free(client->pair);
        free(client);
        return status;
    }
    client->channel = channel_create(client->target, client->pair, -1);
    *ret = client;
    return TITAN_OK;
}

static void client_stopped(void *data)
{
    struct rpc_client *client = data;
    titan_assert(client->stopped && LIST_EMPTY(&client->open));
    void (*done)(void *) = client->done;
    void *done_data = client->data;
    grpc_channel_destroy(client->channel);
    rpc_pair_free(client->pair);
    if (client->socket >= 0)
        (void)close(client->socket);
    if (client->authorization)
        explicit_bzero(client->authorization, strlen(client->authorization));
    free(client->authorization);
    free(client);
    rpc_library_leave();
    if (done)
        done(done_data);
}

static void client_advance(struct rpc_client *client)
{
    if (!client->closing || client->stopped || !LIST_EMPTY(&client->open))
        return;
    client->stopped = true;
    rpc_queue_stop(&client->queue, client_stopped, client);
}

void rpc_client_close(struct rpc_client *client, void (*done)(void *), void *data)
{
    titan_assert(!client->closing);
    client->closing = true;
    client->done = done;
    client->data = data;
    for (struct rpc_stream *stream = LIST_FIRST(&client->open); stream; stream = LIST_NEXT(stream, link))
        stream_cancel(stream);
    client_advance(client);
}
