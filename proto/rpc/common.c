/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/common.h"

#include <dlfcn.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/log.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/slowest.h"
#include "base/utf8.h"

enum {
    COSTLY_SLICE_NS = 100000,
    PAUSE_CONNECTIONS = 256,
    PAUSE_EACH_NS = 5000,
    PAUSE_MOST_NS = 5000000,
};

/* --- library ------------------------------------------------------------------------------------------------------ */

/* Logs gRPC's messages for debugging only: its errors about peers and addresses also return as statuses, which the
 * caller logs. */
static void grpc_log(gpr_log_func_args *args)
{
    static const struct log log = {.subsystem = "grpc"};
    tlog_debug(&log, "library", "message=\"%s\"", args->message);
}

/* Debian builds Abseil with assertions: each lock taken by gRPC then searches a graph of all locks for deadlocks, under
 * one lock. With 1,000 agents this was a fifth of the coordinator's work. */
static void library_prepare(void)
{
    static const char name[] = "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE";
    void (*set_mode)(int) = NULL;
    void *found = dlsym(RTLD_DEFAULT, name); /* another version lacks this function: the checks stay on */
    memcpy(&set_mode, &found, sizeof(set_mode));
    if (set_mode)
        set_mode(0 /* kIgnore */);
    gpr_set_log_function(grpc_log);
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

/* The queue's own thread passes tag NULL when no more events will come. */
void rpc_queue_post(struct rpc_queue *queue, struct rpc_tag *tag, bool ok)
{
    pthread_mutex_lock(&queue->lock);
    bool wake = queue->first == NULL;
    titan_assert(!queue->drained && (!tag || (tag->fn && !*queue->last)));
    if (tag) {
        tag->ok = ok;
        tag->next = NULL;
        *queue->last = tag;
        queue->last = &tag->next;
    } else {
        queue->drained = true;
    }
    /* Wakes the loop under the lock: after the loop sees drained, it closes the handle. */
    if (wake)
        (void)uv_async_send(&queue->async);
    pthread_mutex_unlock(&queue->lock);
}

/* A poll of gRPC looks at every connection, even if only one has an event. With many connections a pause lets one look
 * take all events. The events then come one by one without another look. No pause follows within an eighth of the
 * pause's length. */
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
        rpc_queue_post(queue, drained ? NULL : event.tag, event.success != 0);
    }
    return NULL;
}

static void queue_closed(uv_handle_t *handle)
{
    struct rpc_queue *queue = handle->data;
    pthread_mutex_destroy(&queue->lock);
    queue->done(queue->data);
}

static void run_tag(struct rpc_tag *tag)
{
    HANDLER("grpc");
    tag->fn(tag, tag->ok);
}

/* Runs all cheap tags, then some costly tags. Then the loop's other events have their turn. */
static void queue_wake(uv_async_t *async)
{
    struct rpc_queue *queue = async->data;
    pthread_mutex_lock(&queue->lock);
    struct rpc_tag *tag = queue->first, *next;
    const bool drained = queue->drained;
    queue->first = NULL;
    queue->last = &queue->first;
    pthread_mutex_unlock(&queue->lock);

    for (; tag; tag = next) {
        next = tag->next; /* fn may free or reuse the tag */
        if (!tag->costly) {
            run_tag(tag);
            continue;
        }
        tag->next = NULL;
        *queue->costly_last = tag;
        queue->costly_last = &tag->next;
    }
    const int64_t until_ns = clock_mono_ns() + COSTLY_SLICE_NS;
    while ((tag = queue->costly)) {
        queue->costly = tag->next;
        if (!queue->costly)
            queue->costly_last = &queue->costly;
        run_tag(tag);
        if (clock_mono_ns() >= until_ns)
            break;
    }
    if (queue->costly) {
        (void)uv_async_send(&queue->async);
    } else if (drained) {
        (void)pthread_join(queue->thread, NULL);
        grpc_completion_queue_destroy(queue->cq);
        uv_close((uv_handle_t *)&queue->async, queue_closed);
    }
}

/* Blocks signals, because they belong to the program's own threads. */
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
    *queue = (struct rpc_queue){
        .cq = grpc_completion_queue_create_for_next(NULL), .last = &queue->first, .costly_last = &queue->costly};
    (void)pthread_mutex_init(&queue->lock, NULL);

    int rc = rpc_thread_start(&queue->thread, "titan-rpc", queue_thread, queue);
    if (rc != 0) {
        pthread_mutex_destroy(&queue->lock);
        grpc_completion_queue_shutdown(queue->cq);
        grpc_completion_queue_destroy(queue->cq);
        return titan_fail(err, titan_status_from_errno(rc), "rpc: cannot start a thread: %s", strerror(rc));
    }

    /* Initialise the handle second, because only the loop can close it. No event can wake it earlier: nothing is in
     * flight yet. The call cannot fail: all such handles of a loop share a descriptor that each loop already has. */
    rc = uv_async_init(loop, &queue->async, queue_wake);
    titan_assert(rc == 0);
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

static grpc_byte_buffer *out_take(struct rpc_out *out)
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
        grpc_byte_buffer_destroy(out_take(out));
    out->last = &out->first;
}

size_t rpc_out_ops(struct rpc_out *out, grpc_op ops[2])
{
    size_t n = 0;
    titan_assert(!out->sending && !out->now);
    if (!out->sent_headers)
        ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    out->sent_headers = true;
    if (out->first) {
        out->now = out_take(out);
        ops[n].op = GRPC_OP_SEND_MESSAGE;
        ops[n].flags = out->first ? GRPC_WRITE_BUFFER_HINT : 0; /* the next message follows at once */
        ops[n++].data.send_message.send_message = out->now;
    }
    return n;
}

void rpc_out_sent(struct rpc_out *out)
{
    titan_assert(out->sending);
    out->sending = false;
    if (out->now)
        grpc_byte_buffer_destroy(TAKE(out->now));
}

static void *budget_alloc(void *data, size_t size)
{
    size_t *budget = data;
    size_t cost = size + 16; /* the allocator's own overhead */
    if (cost < size || cost > *budget)
        return NULL;
    *budget -= cost;
    return malloc(size);
}

static void budget_free(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

static bool wire_varint(struct rpc_wire *w, uint64_t *ret)
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

bool rpc_wire_take(struct rpc_wire *w, uint32_t *ret_field, struct rpc_wire *ret_inside)
{
    uint64_t tag, len = 0;
    if (!wire_varint(w, &tag))
        return false;
    const unsigned kind = tag & 7;
    const bool fixed = kind == PROTOBUF_C_WIRE_TYPE_64BIT || kind == PROTOBUF_C_WIRE_TYPE_32BIT;
    const bool prefixed = kind == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
    if (fixed)
        len = kind == PROTOBUF_C_WIRE_TYPE_64BIT ? 8 : 4;
    else if ((!prefixed && kind != PROTOBUF_C_WIRE_TYPE_VARINT) || !wire_varint(w, &len))
        return false;
    if (!fixed && !prefixed)
        len = 0;
    if (len > (uint64_t)(w->end - w->at))
        return false;
    *ret_field = (uint32_t)(tag >> 3);
    *ret_inside = (struct rpc_wire){w->at, w->at + (prefixed ? len : 0)};
    w->at += len;
    return true;
}

/* protobuf-c accepts any bytes as a string and loses their number, so only the text before a NUL would be checked.
 * proto3 allows only UTF-8, and clients in other languages could not read other bytes. Returns the first field with a
 * NUL or invalid UTF-8. */
static const ProtobufCFieldDescriptor *bad_string(const ProtobufCMessageDescriptor *type, struct rpc_wire w)
{
    struct rpc_wire inside;
    for (uint32_t id; rpc_wire_take(&w, &id, &inside);) { /* protobuf-c decodes no more fields than this loop */
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(type, id);
        const size_t len = (size_t)(inside.end - inside.at);
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
    const size_t size = grpc_byte_buffer_length(buffer);
    grpc_slice all = grpc_empty_slice(), *one;
    const bool whole = size > 0 && grpc_byte_buffer_reader_peek(&reader, &one) && GRPC_SLICE_LENGTH(*one) == size;
    if (size > 0 && !whole) {
        grpc_byte_buffer_reader_destroy(&reader);
        (void)grpc_byte_buffer_reader_init(&reader, buffer); /* reads from the beginning */
        all = grpc_byte_buffer_reader_readall(&reader);
    }
    const uint8_t *bytes = whole ? GRPC_SLICE_START_PTR(*one) : GRPC_SLICE_START_PTR(all);
    ProtobufCAllocator allocator = {.alloc = budget_alloc, .free = budget_free, .allocator_data = &budget};
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, size, bytes);
    const ProtobufCFieldDescriptor *bad = message ? bad_string(type, (struct rpc_wire){bytes, bytes + size}) : NULL;
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

/* --- operations --------------------------------------------------------------------------------------------------- */

grpc_arg rpc_arg_int(const char *key, uint32_t value)
{
    const int most = (int)MIN(value, (uint32_t)INT32_MAX);
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = most};
}

void rpc_batch(grpc_call *call, const grpc_op *ops, size_t n, void *tag)
{
    titan_assert(n > 0);
    const grpc_call_error rc = grpc_call_start_batch(call, ops, n, tag, NULL);
    titan_assert(rc == GRPC_CALL_OK); /* fails only on misuse of the API */
}
