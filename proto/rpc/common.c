/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/common.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/slowest.h"
#include "base/utf8.h"
#include "proto/rpc/trusted_socket.h"

enum {
    COSTLY_SLICE_NS = 100000,
    PAUSE_CONNECTIONS = 256,
    PAUSE_EACH_NS = 5000,
    PAUSE_MOST_NS = 5000000,
    LOOKUP_MS = 5000,    /* for a name server: an unresponsive one must not block the other addresses */
    LOOKAHEAD = 1 << 20, /* bytes a client accepts before reading: logs from a coordinator 100 ms away, 10 MB/s */
};

/* --- library ------------------------------------------------------------------------------------------------------ */

/* gRPC's errors about peers and addresses also return as statuses, which the caller logs. */
static void grpc_log(gpr_log_func_args *args)
{
    static const struct log log = {.subsystem = "grpc"};
    tlog_debug(&log, "library", "message=\"%s\"", args->message);
}

/* Debian builds Abseil with assertions: each lock taken by gRPC then searches a graph of all locks for deadlocks, under
 * one lock. With 1,000 agents this was a fifth of the coordinator's work. */
static void lock_checks_off(void)
{
    static const char name[] = "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE";
    void (*set_mode)(int) = NULL;
    void *found = dlsym(RTLD_DEFAULT, name); /* missing in another version: checks stay on */
    memcpy(&set_mode, &found, sizeof(set_mode));
    if (set_mode)
        set_mode(0 /* kIgnore */);
}

static void library_prepare(void)
{
    gpr_set_log_function(grpc_log);
    lock_checks_off();
}

void rpc_library_enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, library_prepare);
    grpc_init();
}

void rpc_library_leave(void)
{
    grpc_shutdown_blocking();
}

/* --- queue -------------------------------------------------------------------------------------------------------- */

grpc_completion_queue *rpc_cq_create(void)
{
    grpc_completion_queue *cq = grpc_completion_queue_create_for_next(NULL);
    titan_assert(cq);
    return cq;
}

/* tag NULL: no more events will come. */
static void queue_append(struct rpc_queue *queue, struct rpc_tag *tag, bool ok)
{
    pthread_mutex_lock(&queue->lock);
    bool wake = queue->first == NULL && !queue->mute;
    titan_assert(!queue->drained && (!tag || (tag->fn && !*queue->last)));
    if (tag) {
        tag->ok = ok;
        tag->next = NULL;
        *queue->last = tag;
        queue->last = &tag->next;
    } else {
        queue->drained = true;
    }
    /* Under the lock: after it sees drained, the loop closes the handle. */
    if (wake)
        (void)uv_async_send(&queue->async);
    pthread_mutex_unlock(&queue->lock);
}

/* gRPC's poll looks at every connection for an event on any. With many connections a pause lets one look take all its
 * events. The events then come one by one without another look: no pause follows within an eighth of its length. */
void rpc_queue_rest(const struct rpc_queue *queue, int64_t *paused_at)
{
    const uint32_t n = atomic_load_explicit(&queue->n_connections, memory_order_relaxed);
    const int64_t pause_ns = MIN((int64_t)n * PAUSE_EACH_NS, PAUSE_MOST_NS);
    if (n < PAUSE_CONNECTIONS || clock_mono_ns() - *paused_at < pause_ns / 8)
        return;
    (void)nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
    *paused_at = clock_mono_ns();
}

static void *queue_thread(void *arg)
{
    struct rpc_queue *queue = arg;
    int64_t paused_at = 0;
    for (bool drained = false; !drained;) {
        rpc_queue_rest(queue, &paused_at);
        grpc_event event = grpc_completion_queue_next(queue->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        drained = event.type == GRPC_QUEUE_SHUTDOWN;
        queue_append(queue, drained ? NULL : event.tag, event.success != 0);
    }
    return NULL;
}

void rpc_queue_post(struct rpc_queue *queue, struct rpc_tag *tag)
{
    queue_append(queue, tag, true);
}

static void queue_closed(uv_handle_t *handle)
{
    struct rpc_queue *queue = handle->data;
    pthread_mutex_destroy(&queue->lock);
    if (queue->done)
        queue->done(queue->data);
}

static void run_tag(struct rpc_tag *tag)
{
    HANDLER("grpc");
    tag->fn(tag, tag->ok);
}

/* Runs cheap tags, and appends costly ones to the waiting list. */
static void queue_run(struct rpc_queue *queue, struct rpc_tag *tag)
{
    while (tag) {
        struct rpc_tag *next = tag->next; /* fn may free or reuse the tag */
        if (tag->costly) {
            tag->next = NULL;
            *queue->costly_last = tag;
            queue->costly_last = &tag->next;
        } else {
            run_tag(tag);
        }
        tag = next;
    }
}

/* Runs some costly tags; then other calls have their turn. */
static void queue_run_costly(struct rpc_queue *queue)
{
    int64_t until_ns = clock_mono_ns() + COSTLY_SLICE_NS;
    while (queue->costly) {
        struct rpc_tag *tag = queue->costly;
        queue->costly = tag->next;
        if (!queue->costly)
            queue->costly_last = &queue->costly;
        run_tag(tag);
        if (clock_mono_ns() >= until_ns)
            break;
    }
    if (queue->costly)
        (void)uv_async_send(&queue->async);
}

static void queue_wake(uv_async_t *async)
{
    struct rpc_queue *queue = async->data;
    pthread_mutex_lock(&queue->lock);
    struct rpc_tag *tags = queue->first;
    bool drained = queue->drained;
    queue->first = NULL;
    queue->last = &queue->first;
    pthread_mutex_unlock(&queue->lock);

    queue_run(queue, tags);
    queue_run_costly(queue);
    if (drained && !queue->costly) {
        (void)pthread_join(queue->thread, NULL);
        grpc_completion_queue_destroy(queue->cq);
        queue->cq = NULL;
        uv_close((uv_handle_t *)&queue->async, queue_closed);
    }
}

/* Blocks signals: they belong to the program's own threads. */
int rpc_thread_start(pthread_t *ret, const char *name, void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(ret, NULL, fn, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0)
        (void)pthread_setname_np(*ret, name);
    return rc;
}

titan_status rpc_queue_start(struct rpc_queue *queue, uv_loop_t *loop, struct titan_error *err)
{
    queue->first = NULL;
    queue->last = &queue->first;
    queue->costly = NULL;
    queue->costly_last = &queue->costly;
    queue->drained = false;
    queue->mute = false;
    (void)pthread_mutex_init(&queue->lock, NULL);

    int rc = rpc_thread_start(&queue->thread, "titan-rpc", queue_thread, queue);
    if (rc != 0) {
        pthread_mutex_destroy(&queue->lock);
        return titan_fail(err, titan_status_from_errno(rc), "rpc: cannot start a thread: %s", strerror(rc));
    }

    /* Initialise the handle second, because only the loop can close it. No event can wake it earlier: nothing is in
     * flight yet. */
    rc = uv_async_init(loop, &queue->async, queue_wake);
    if (rc != 0) {
        pthread_mutex_lock(&queue->lock);
        queue->mute = true;
        pthread_mutex_unlock(&queue->lock);
        grpc_completion_queue_shutdown(queue->cq);
        (void)pthread_join(queue->thread, NULL);
        pthread_mutex_destroy(&queue->lock);
        return titan_fail(err, titan_status_from_errno(-rc), "rpc: cannot watch the loop: %s", uv_strerror(rc));
    }
    queue->async.data = queue;
    return TITAN_OK;
}

void rpc_queue_stop(struct rpc_queue *queue, void (*done)(void *), void *data)
{
    titan_assert(done);
    queue->done = done;
    queue->data = data;
    grpc_completion_queue_shutdown(queue->cq);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message)
{
    titan_assert(message->descriptor);
    size_t size = protobuf_c_message_get_packed_size(message);
    grpc_slice slice = grpc_slice_malloc(size);
    size_t packed = protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    titan_assert(packed == size);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

struct rpc_message {
    struct rpc_message *next;
    grpc_byte_buffer *buffer;
};

titan_status rpc_out_append(struct rpc_out *out, grpc_byte_buffer *buffer)
{
    struct rpc_message *message = malloc(sizeof(*message));
    if (!message) {
        grpc_byte_buffer_destroy(buffer);
        return TITAN_ENOMEM;
    }
    *message = (struct rpc_message){.buffer = buffer};
    titan_assert(!*out->last);
    *out->last = message;
    out->last = &message->next;
    out->n++;
    out->bytes += grpc_byte_buffer_length(buffer);
    return TITAN_OK;
}

grpc_byte_buffer *rpc_out_take(struct rpc_out *out)
{
    struct rpc_message *message = out->first;
    grpc_byte_buffer *buffer = message->buffer;
    titan_assert(out->n > 0);
    out->first = message->next;
    if (!out->first)
        out->last = &out->first;
    out->n--;
    out->bytes -= grpc_byte_buffer_length(buffer);
    free(message);
    return buffer;
}

void rpc_out_clear(struct rpc_out *out)
{
    while (out->first)
        grpc_byte_buffer_destroy(rpc_out_take(out));
    out->last = &out->first;
}

struct budget {
    size_t left;
};

static void *budget_alloc(void *data, size_t size)
{
    struct budget *budget = data;
    size_t cost = size + 16; /* the allocator's own overhead */
    if (cost < size || cost > budget->left)
        return NULL;
    budget->left -= cost;
    return malloc(size);
}

static void budget_free(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

struct wire {
    const uint8_t *at, *end;
};

static bool wire_varint(struct wire *w, uint64_t *ret)
{
    titan_assert(w->at <= w->end);
    *ret = 0;
    for (unsigned shift = 0; shift < 64 && w->at < w->end; shift += 7) {
        uint8_t byte = *w->at++;
        *ret |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* Skips a field of fixed or varint type; false at the end of readable input. */
static bool wire_skip(struct wire *w, unsigned wire_type)
{
    uint64_t ignored;
    size_t n = wire_type == PROTOBUF_C_WIRE_TYPE_64BIT ? 8 : wire_type == PROTOBUF_C_WIRE_TYPE_32BIT ? 4 : 0;
    if (wire_type == PROTOBUF_C_WIRE_TYPE_VARINT)
        return wire_varint(w, &ignored);
    if (n == 0 || (size_t)(w->end - w->at) < n)
        return false;
    w->at += n;
    return true;
}

/* protobuf-c accepts any bytes as a string and loses their number. proto3 does not, other languages' clients could not
 * read them, and the checked text must be the sent one. Returns the first field with a NUL or invalid UTF-8. */
static const ProtobufCFieldDescriptor *bad_string(const ProtobufCMessageDescriptor *type, struct wire w)
{
    uint64_t tag, len;
    while (w.at < w.end && wire_varint(&w, &tag)) {
        if ((tag & 7) != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) {
            if (!wire_skip(&w, tag & 7))
                return NULL; /* it was not decoded either */
            continue;
        }
        if (!wire_varint(&w, &len) || len > (uint64_t)(w.end - w.at))
            return NULL;
        const struct wire inside = {w.at, w.at + len};
        w.at = inside.end;
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3));
        if (field && field->type == PROTOBUF_C_TYPE_STRING &&
            (memchr(inside.at, 0, len) || utf8_check((const char *)inside.at, len) != len))
            return field;
        if (field && field->type == PROTOBUF_C_TYPE_MESSAGE) {
            const ProtobufCFieldDescriptor *bad = bad_string(field->descriptor, inside);
            if (bad)
                return bad;
        }
    }
    return NULL;
}

titan_status rpc_unpack(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type, size_t budget,
                        ProtobufCMessage **ret, struct titan_error *err)
{
    titan_assert(buffer && type && ret);
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer))
        return titan_fail(err, TITAN_EINVAL, "%s: message cannot be read", type->name);
    size_t size = grpc_byte_buffer_length(buffer);
    grpc_slice all = grpc_empty_slice();
    const uint8_t *bytes = (const uint8_t *)"";
    grpc_slice *one;
    if (size > 0) {
        if (grpc_byte_buffer_reader_peek(&reader, &one) && GRPC_SLICE_LENGTH(*one) == size) {
            bytes = GRPC_SLICE_START_PTR(*one);
        } else {
            grpc_byte_buffer_reader_destroy(&reader);
            if (!grpc_byte_buffer_reader_init(&reader, buffer))
                return titan_fail(err, TITAN_EINVAL, "%s: message cannot be read", type->name);
            all = grpc_byte_buffer_reader_readall(&reader);
            bytes = GRPC_SLICE_START_PTR(all);
        }
    }
    struct budget left = {budget};
    ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &left};
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, size, bytes);
    const ProtobufCFieldDescriptor *bad = message ? bad_string(type, (struct wire){bytes, bytes + size}) : NULL;
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    if (!message)
        return titan_fail(err, TITAN_EINVAL, "%zu bytes are not a %s", size, type->name);
    if (bad) {
        protobuf_c_message_free_unpacked(message, NULL);
        return titan_fail(err, TITAN_EINVAL, "%s: field %s has a NUL or is not UTF-8", type->name, bad->name);
    }
    *ret = message;
    return TITAN_OK;
}

static bool is_local(const char *target)
{
    return strncmp(target, "unix:", 5) == 0;
}

/* --- statuses ----------------------------------------------------------------------------------------------------- */

grpc_slice rpc_status_name(titan_status status)
{
    return grpc_slice_from_static_string(titan_status_name(status));
}

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
    /* Not cancelled by this side, and without Titan's status: a stopping server drops late calls. */
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

static grpc_arg arg_int(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

/* Creates a channel with Titan's settings: back-off, limits, no proxy, its own connection. fd: that connection, or
 * -1. */
static grpc_channel *channel_create(const char *target, struct rpc_pair *pair, int fd)
{
    grpc_arg args[] = {
        /* Back-off 50 ms .. 2 s; "min" is really the least duration of a connection attempt. */
        arg_int(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50),
        arg_int(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000),
        arg_int(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000),
        arg_int(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, LOOKUP_MS),
        arg_int(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_CLIENT_MESSAGE_MAX),
        arg_int(GRPC_ARG_HTTP2_BDP_PROBE, 0), /* see server.c */
        arg_int(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LOOKAHEAD),
        arg_int(GRPC_ARG_KEEPALIVE_TIME_MS, 10000),
        arg_int(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000),
        arg_int(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        arg_int(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        /* Only callers repeat submits, by idempotency key. */
        arg_int(GRPC_ARG_ENABLE_RETRIES, 0),
        arg_int(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        arg_int(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        /* One connection per channel: two channels to a target share neither failures nor throughput. */
        arg_int(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        {.type = GRPC_ARG_STRING,
         .key = (char *)(uintptr_t)GRPC_ARG_DEFAULT_AUTHORITY,
         .value.string = (char *)(uintptr_t) "localhost"}, /* gRPC's own value for sockets that it connects */
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
    grpc_channel_destroy(remote->channel); /* its calls continue */
    remote->channel = channel_create(remote->target, remote->pair, -1);
}

/* Opens a channel over an own connection to a server that may have the token; without one, a channel that fails all
 * calls. */
static titan_status connect_trusted(struct rpc_remote *remote, struct titan_error *err)
{
    struct pollfd ended = {.fd = remote->socket, .events = POLLRDHUP};
    if (remote->socket >= 0 && poll(&ended, 1, 0) == 0)
        return TITAN_OK;
    grpc_channel_destroy(remote->channel);
    if (remote->socket >= 0)
        (void)close(remote->socket);
    int fd = -1;
    titan_status status = trusted_socket_connect(remote->target + strlen("unix:"), &fd, err);
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
        grpc_channel_destroy(remote->channel); /* its calls continue */
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
                .value = grpc_slice_from_static_string(x->remote->authorization), /* outlives the call */
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

void rpc_batch(grpc_call *call, const grpc_op *ops, size_t n, void *tag)
{
    titan_assert(n > 0);
    const grpc_call_error rc = grpc_call_start_batch(call, ops, n, tag, NULL);
    titan_assert(rc == GRPC_CALL_OK); /* fails only on misuse of the API */
}

grpc_op rpc_op(grpc_op_type type)
{
    grpc_op op;
    memset(&op, 0, sizeof(op));
    op.op = type;
    return op;
}
