/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <poll.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"

enum {
    LOOKUP_MS = 5000,    /* for a name server: an unresponsive server must not block the other addresses */
    LOOKAHEAD = 1 << 20, /* bytes a client accepts before reading: logs from a coordinator 100 ms away, 10 MB/s */
};

#define TRUSTED_USER "titan" /* systemd/titan.sysusers */

static bool is_local(const char *target)
{
    return strncmp(target, "unix:", 5) == 0;
}

/* --- statuses ----------------------------------------------------------------------------------------------------- */

static titan_status trailer_status(const grpc_metadata_array *trailers, int grpc_code)
{
    static const titan_status all[] = {
#define X(name, value, text, grpc, code) TITAN_##name,
        TITAN_STATUS_MAP(X)
#undef X
    };
    for (size_t i = 0; i < trailers->count; i++) {
        if (grpc_slice_str_cmp(trailers->metadata[i].key, RPC_STATUS_TRAILER) != 0)
            continue;
        for (size_t k = 0; k < ARRAY_SIZE(all); k++)
            if (grpc_slice_str_cmp(trailers->metadata[i].value, titan_status_name(all[k])) == 0 &&
                titan_status_grpc(all[k]) == grpc_code)
                return all[k];
    }
    return TITAN_OK;
}

titan_status rpc_exchange_outcome(const struct rpc_exchange *x, struct titan_error *err)
{
    const grpc_status_code code = x->code;
    const grpc_slice details = x->details;
    const char *what = x->path, *target = x->target;
    if (code == GRPC_STATUS_OK)
        return titan_error_set(err, TITAN_OK, 0, __FILE__, __LINE__, "ok");
    char text[512];
    size_t n = MIN(GRPC_SLICE_LENGTH(details), sizeof(text) - 1);
    memcpy(text, GRPC_SLICE_START_PTR(details), n);
    text[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20)
            text[i] = ' ';

    titan_status status = trailer_status(&x->trailers, (int)code);
    if (status != TITAN_OK) /* the message is Titan's own */
        return titan_fail(err, status, "%s", text[0] ? text : titan_status_text(status));
    status = titan_status_from_grpc((int)code);
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

/* Creates a channel with Titan's settings: back-off, limits, no proxy, its own connection. fd: that connection, or
 * -1. */
static grpc_channel *channel_create(const char *target, struct rpc_pair *pair, int fd)
{
    grpc_arg args[] = {
        /* Back-off 50 ms .. 2 s; "min" is really the least duration of a connection attempt. */
        rpc_arg_int(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50),
        rpc_arg_int(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000),
        rpc_arg_int(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000),
        rpc_arg_int(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, LOOKUP_MS),
        rpc_arg_int(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_CLIENT_MESSAGE_MAX),
        rpc_arg_int(GRPC_ARG_HTTP2_BDP_PROBE, 0), /* see server.c */
        rpc_arg_int(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LOOKAHEAD),
        rpc_arg_int(GRPC_ARG_KEEPALIVE_TIME_MS, 10000),
        rpc_arg_int(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000),
        rpc_arg_int(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        rpc_arg_int(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        /* Only callers repeat submits, by idempotency key. */
        rpc_arg_int(GRPC_ARG_ENABLE_RETRIES, 0),
        rpc_arg_int(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        rpc_arg_int(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        /* One connection per channel: two channels to a target share neither failures nor throughput. */
        rpc_arg_int(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        {.type = GRPC_ARG_STRING,
         .key = (char *)(uintptr_t)GRPC_ARG_DEFAULT_AUTHORITY,
         .value.string = (char *)(uintptr_t) "localhost"}, /* as gRPC sets it for its own sockets */
    };
    grpc_channel_args list = {.num_args = ARRAY_SIZE(args) - (fd < 0), .args = args};
    grpc_channel_credentials *credentials = pair ? rpc_pair_client(pair) : grpc_insecure_credentials_create();
    grpc_channel *channel = fd < 0 ? grpc_channel_create(target, credentials, &list)
                                   : grpc_channel_create_from_fd(target, fd, credentials, &list);
    grpc_channel_credentials_release(credentials);
    titan_assert(channel);
    return channel;
}

titan_status rpc_remote_open(const char *target, const struct rpc_tls *tls, struct rpc_remote *ret,
                             struct titan_error *err)
{
    *ret = (struct rpc_remote){.socket = -1};
    TRY(rpc_targets_parse(target, &ret->targets, err));
    ret->target = ret->targets.at[0];
    if (tls && !is_local(ret->target))
        TRY(rpc_pair_open(tls, &ret->pair, err));
    rpc_library_enter();
    ret->channel = channel_create(ret->target, ret->pair, -1);
    return TITAN_OK;
}

void rpc_remote_reconnect(struct rpc_remote *remote, bool next)
{
    titan_assert(remote->targets.n > 0);
    const size_t at = (size_t)(remote->target - remote->targets.at[0]) / RPC_TARGET_MAX;
    remote->target = remote->targets.at[(at + next) % remote->targets.n];
    if (remote->authorization && is_local(remote->target))
        return;                            /* rpc_exchange_begin() checks that connection itself */
    grpc_channel_destroy(remote->channel); /* the calls of this channel continue */
    remote->channel = channel_create(remote->target, remote->pair, -1);
}

/* The kernel reports the server's user: SO_PEERCRED names the user of listen(2), under systemd root. TITAN_EPERM names
 * another user; TITAN_EUNREACHABLE: no server. *ret_fd is non-blocking. */
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
static titan_status connect_trusted(struct rpc_remote *remote, struct titan_error *err)
{
    struct pollfd ended = {.fd = remote->socket, .events = POLLRDHUP};
    if (remote->socket >= 0 && poll(&ended, 1, 0) == 0)
        return TITAN_OK;
    grpc_channel_destroy(remote->channel);
    if (remote->socket >= 0)
        (void)close(remote->socket);
    int fd = -1;
    titan_status status = trusted_connect(remote->target + strlen("unix:"), &fd, err);
    remote->socket = status == TITAN_OK ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (status == TITAN_OK && remote->socket < 0) {
        status = titan_fail_errno(err, "a socket");
        (void)close(fd);
    }
    remote->channel = status == TITAN_OK
                          ? channel_create(remote->target, NULL, fd)
                          : grpc_lame_client_channel_create(remote->target,
                                                            status == TITAN_EPERM ? GRPC_STATUS_PERMISSION_DENIED
                                                                                  : GRPC_STATUS_UNAVAILABLE,
                                                            err->msg);
    return status;
}

void rpc_remote_close(struct rpc_remote *remote)
{
    titan_assert(remote->channel && remote->target);
    grpc_channel_destroy(remote->channel);
    rpc_pair_free(remote->pair);
    if (remote->socket >= 0)
        (void)close(remote->socket);
    if (remote->authorization)
        explicit_bzero(remote->authorization, strlen(remote->authorization));
    free(remote->authorization);
    rpc_library_leave();
}

void rpc_exchange_begin(struct rpc_exchange *ret, struct rpc_remote *remote, grpc_completion_queue *cq,
                        const char *path, uint32_t deadline_ms)
{
    titan_assert(remote->channel && path[0] == '/');
    if (remote->pair && rpc_pair_refresh(remote->pair)) {
        grpc_channel_destroy(remote->channel); /* the calls of this channel continue */
        remote->channel = channel_create(remote->target, remote->pair, -1);
    }
    struct titan_error refused;
    if (remote->authorization && is_local(remote->target))
        (void)connect_trusted(remote, &refused); /* the call reports the refusal */
    grpc_slice method = grpc_slice_from_copied_string(path);
    *ret = (struct rpc_exchange){.remote = remote, .path = path, .target = remote->target};
    ret->details = grpc_empty_slice();
    grpc_metadata_array_init(&ret->headers);
    grpc_metadata_array_init(&ret->trailers);
    ret->call = grpc_channel_create_call(remote->channel, NULL, GRPC_PROPAGATE_DEFAULTS, cq, method, NULL,
                                         rpc_deadline(deadline_ms), NULL);
    grpc_slice_unref(method);
}

const grpc_op_type rpc_unary[RPC_UNARY] = {
    GRPC_OP_SEND_INITIAL_METADATA, GRPC_OP_SEND_MESSAGE, GRPC_OP_SEND_CLOSE_FROM_CLIENT,
    GRPC_OP_RECV_INITIAL_METADATA, GRPC_OP_RECV_MESSAGE, GRPC_OP_RECV_STATUS_ON_CLIENT,
};

void rpc_exchange_start(struct rpc_exchange *x, const grpc_op_type *types, size_t n, void *tag)
{
    grpc_op ops[6];
    titan_assert(n <= ARRAY_SIZE(ops));
    for (size_t i = 0; i < n; i++) {
        grpc_op *op = &ops[i];
        *op = rpc_op(types[i]);
        if (types[i] == GRPC_OP_SEND_INITIAL_METADATA && x->remote->authorization) {
            x->header = (grpc_metadata){
                .key = grpc_slice_from_static_string("authorization"),
                .value = grpc_slice_from_static_string(x->remote->authorization), /* the text outlives the call */
            };
            op->data.send_initial_metadata.count = 1;
            op->data.send_initial_metadata.metadata = &x->header;
        } else if (types[i] == GRPC_OP_SEND_MESSAGE) {
            op->flags = x->more ? GRPC_WRITE_BUFFER_HINT : 0;
            op->data.send_message.send_message = x->outgoing;
        } else if (types[i] == GRPC_OP_RECV_INITIAL_METADATA) {
            op->data.recv_initial_metadata.recv_initial_metadata = &x->headers;
        } else if (types[i] == GRPC_OP_RECV_MESSAGE) {
            op->data.recv_message.recv_message = &x->incoming;
        } else if (types[i] == GRPC_OP_RECV_STATUS_ON_CLIENT) {
            op->data.recv_status_on_client.trailing_metadata = &x->trailers;
            op->data.recv_status_on_client.status = &x->code;
            op->data.recv_status_on_client.status_details = &x->details;
        }
    }
    rpc_batch(x->call, ops, n, tag);
}

void rpc_exchange_end(struct rpc_exchange *x)
{
    if (x->outgoing)
        grpc_byte_buffer_destroy(x->outgoing);
    if (x->incoming)
        grpc_byte_buffer_destroy(x->incoming);
    grpc_metadata_array_destroy(&x->headers);
    grpc_metadata_array_destroy(&x->trailers);
    grpc_slice_unref(x->details);
    grpc_call_unref(x->call);
}

titan_status rpc_remote_token(struct rpc_remote *remote, const char *token, struct titan_error *err)
{
    char *text = NULL;
    if (!remote->pair && !is_local(remote->target)) {
        (void)titan_fail(err, TITAN_EPERM, "a token is not sent to %s without TLS", remote->target);
        titan_error_hint(err, "name the file of the authority's certificate");
        return TITAN_EPERM;
    }
    for (const char *c = token; *c; c++)
        if (*c <= ' ' || *c > '~')
            return titan_fail(err, TITAN_EINVAL, "a token has no spaces and no control characters");
    if (asprintf(&text, "Bearer %s", token) < 0)
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a token");
    titan_assert(!remote->authorization); /* calls borrow it */
    remote->authorization = text;
    struct titan_error refused;
    if (!is_local(remote->target) || connect_trusted(remote, &refused) != TITAN_EPERM)
        return TITAN_OK; /* a missing server may start later */
    if (err)
        *err = refused;
    return TITAN_EPERM;
}

gpr_timespec rpc_deadline(uint32_t deadline_ms)
{
    if (deadline_ms == 0)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(deadline_ms, GPR_TIMESPAN));
}
