/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/client.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/rpc/remote.h"

enum { SEND_QUEUE = 8192 };

/* Common part of a unary call and a stream. */
struct open_call {
    struct rpc_client *client;
    struct open_call *next, *prev;
    struct rpc_exchange x;
    char *path;
    const ProtobufCMessageDescriptor *reply;
    unsigned pending; /* tags in flight */
    bool cancelled;   /* cancelled by this side */
};

struct unary {
    struct open_call base;
    struct rpc_tag tag;
    rpc_reply_cb cb;
    void *data;
};

struct rpc_stream {
    struct open_call base;
    struct rpc_tag send_tag, recv_tag, status_tag;
    struct rpc_stream_events events;
    void *data;
    struct rpc_out out;
    bool sent_headers, sending, close_send, closed_send;
    bool received_all, has_status, over;
    bool bad_message;
    struct titan_error error; /* valid with bad_message */
};

struct rpc_client {
    uv_loop_t *loop;
    struct rpc_queue queue;
    struct rpc_remote remote;
    struct open_call *open;
    bool closing, stopped;
    void (*done)(void *);
    void *data;
};

/* --- what both kinds share ---------------------------------------------------------------------------------------- */

static titan_status call_open(struct rpc_client *client, struct open_call *call, const char *path,
                              const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms)
{
    titan_assert(!client->stopped);
    call->path = strdup(path);
    if (!call->path)
        return TITAN_ENOMEM;
    call->client = client;
    call->reply = reply;
    rpc_exchange_begin(&call->x, &client->remote, client->queue.cq, call->path, deadline_ms);
    call->next = client->open;
    if (call->next)
        call->next->prev = call;
    client->open = call;
    return TITAN_OK;
}

static void call_cancel(struct open_call *call)
{
    if (call->cancelled)
        return;
    call->cancelled = true;
    (void)grpc_call_cancel(call->x.call, NULL);
}

static void client_advance(struct rpc_client *client);

static void call_release(struct open_call *call)
{
    struct rpc_client *client = call->client;
    titan_assert(call->prev || client->open == call);
    if (call->prev)
        call->prev->next = call->next;
    else
        client->open = call->next;
    if (call->next)
        call->next->prev = call->prev;
    rpc_exchange_end(&call->x);
    free(call->path);
    free(call);
    client_advance(client);
}

static void start(struct open_call *call, const grpc_op_type *types, size_t n, struct rpc_tag *tag)
{
    titan_assert(!call->client->stopped);
    call->pending++;
    rpc_exchange_start(&call->x, types, n, tag);
}

static titan_status call_outcome(const struct open_call *call, struct titan_error *err)
{
    if (call->cancelled && call->x.code == GRPC_STATUS_CANCELLED)
        return titan_fail(err, TITAN_ECANCELLED, "%s: cancelled", call->path);
    return rpc_exchange_outcome(&call->x, err);
}

/* --- unary -------------------------------------------------------------------------------------------------------- */

static void unary_tag(struct rpc_tag *tag, bool ok)
{
    (void)ok; /* a batch with RECV_STATUS always succeeds; the status has the outcome */
    struct unary *unary = tag->owner;
    struct open_call *call = &unary->base;
    titan_assert(call->pending == 1);
    struct titan_error err;
    ProtobufCMessage *reply = NULL;
    if (call_outcome(call, &err) == TITAN_OK) {
        if (!call->x.incoming)
            (void)titan_fail(&err, TITAN_EIO, "%s: the server's answer has no message", call->path);
        else
            (void)!rpc_unpack(call->x.incoming, call->reply, SIZE_MAX, &reply, &err);
    }
    unary->cb(reply, &err, unary->data);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    call_release(call);
}

void rpc_client_call(struct rpc_client *client, const char *path, const ProtobufCMessage *request,
                     const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, rpc_reply_cb cb, void *data)
{
    struct unary *unary = calloc(1, sizeof(*unary));
    if (!unary || call_open(client, &unary->base, path, reply, deadline_ms) != TITAN_OK) {
        free(unary);
        struct titan_error err;
        (void)titan_fail(&err, TITAN_ENOMEM, "%s: no memory for the call", path);
        cb(NULL, &err, data);
        return;
    }
    unary->tag = (struct rpc_tag){.fn = unary_tag, .owner = unary};
    unary->cb = cb;
    unary->data = data;
    unary->base.x.outgoing = rpc_pack(request);
    start(&unary->base, rpc_unary, RPC_UNARY, &unary->tag);
    if (client->closing)
        call_cancel(&unary->base);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static const grpc_op_type ending = GRPC_OP_RECV_STATUS_ON_CLIENT,
                          receive[] = {GRPC_OP_RECV_INITIAL_METADATA, GRPC_OP_RECV_MESSAGE};

static void stream_pump(struct rpc_stream *stream)
{
    if (stream->sending || stream->over || stream->closed_send)
        return;
    struct rpc_exchange *x = &stream->base.x;
    grpc_op_type types[3];
    size_t n = 0;
    if (!stream->sent_headers) {
        types[n++] = GRPC_OP_SEND_INITIAL_METADATA;
        stream->sent_headers = true;
    }
    if (stream->out.first) {
        types[n++] = GRPC_OP_SEND_MESSAGE;
        x->outgoing = rpc_out_take(&stream->out);
        x->more = stream->out.first;
    }
    if (stream->close_send && !stream->out.first) {
        types[n++] = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
        stream->closed_send = true;
    }
    if (n == 0)
        return;
    stream->sending = true;
    start(&stream->base, types, n, &stream->send_tag);
}

/* Closes once the server's status is in and all earlier messages were delivered. */
static void stream_maybe_close(struct rpc_stream *stream)
{
    if (stream->over || !stream->has_status || !stream->received_all)
        return;
    stream->over = true;
    rpc_out_clear(&stream->out);
    struct titan_error err;
    (void)call_outcome(&stream->base, &err);
    stream->events.on_close(stream, stream->bad_message ? &stream->error : &err, stream->data);
}

static void stream_unref(struct rpc_stream *stream)
{
    titan_assert(stream->base.pending > 0);
    if (--stream->base.pending == 0)
        call_release(&stream->base);
}

static void stream_send_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = tag->owner;
    titan_assert(stream->sending);
    stream->sending = false;
    if (stream->base.x.outgoing)
        grpc_byte_buffer_destroy(TAKE(stream->base.x.outgoing));
    if (ok)
        stream_pump(stream);
    else
        stream->closed_send = true; /* the stream is broken; the status has the reason */
    stream_unref(stream);
}

static void stream_recv_tag(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = tag->owner;
    titan_assert(!stream->received_all);
    struct open_call *call = &stream->base;
    ProtobufCMessage *message = NULL;
    if (!ok || !call->x.incoming) {
        stream->received_all = true;
    } else {
        const titan_status read = stream->bad_message
                                      ? TITAN_ECANCELLED
                                      : rpc_unpack(call->x.incoming, call->reply, SIZE_MAX, &message, &stream->error);
        grpc_byte_buffer_destroy(TAKE(call->x.incoming));
        if (read == TITAN_OK) {
            if (!call->cancelled)
                stream->events.on_message(stream, message, stream->data);
            protobuf_c_message_free_unpacked(message, NULL);
        } else if (!stream->bad_message) {
            stream->bad_message = true;
            call_cancel(call);
        }
        start(call, &receive[1], 1, &stream->recv_tag);
    }
    stream_maybe_close(stream);
    stream_unref(stream);
}

static void stream_status_tag(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_stream *stream = tag->owner;
    titan_assert(!stream->has_status);
    stream->has_status = true;
    stream_maybe_close(stream);
    stream_unref(stream);
}

titan_status rpc_client_stream(struct rpc_client *client, const char *path, const ProtobufCMessage *request,
                               bool half_close, const ProtobufCMessageDescriptor *reply,
                               const struct rpc_stream_events *events, void *data, struct rpc_stream **ret,
                               struct titan_error *err)
{
    titan_assert(events->on_message && events->on_close);
    if (client->closing)
        return titan_fail(err, TITAN_ECANCELLED, "%s: the client is closing", path);
    struct rpc_stream *stream = calloc(1, sizeof(*stream));
    if (stream)
        rpc_out_clear(&stream->out);
    if (!stream || (request && rpc_out_append(&stream->out, rpc_pack(request)) != TITAN_OK) ||
        call_open(client, &stream->base, path, reply, 0) != TITAN_OK) {
        if (stream)
            rpc_out_clear(&stream->out);
        free(stream);
        return titan_fail(err, TITAN_ENOMEM, "%s: no memory for the call", path);
    }
    stream->events = *events;
    stream->data = data;
    stream->send_tag = (struct rpc_tag){.fn = stream_send_tag, .owner = stream};
    stream->recv_tag = (struct rpc_tag){.fn = stream_recv_tag, .owner = stream};
    stream->status_tag = (struct rpc_tag){.fn = stream_status_tag, .owner = stream};
    stream->close_send = half_close;
    stream_pump(stream);

    start(&stream->base, &ending, 1, &stream->status_tag);
    start(&stream->base, receive, ARRAY_SIZE(receive), &stream->recv_tag);
    *ret = stream;
    return TITAN_OK;
}

titan_status rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message)
{
    if (stream->over || stream->has_status || stream->close_send || stream->closed_send || stream->base.cancelled)
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
        call_cancel(&stream->base);
}

/* --- client ------------------------------------------------------------------------------------------------------- */

titan_status rpc_client_open(uv_loop_t *loop, const char *target, const struct rpc_tls *tls, struct rpc_client **ret,
                             struct titan_error *err)
{
    struct rpc_client *client = calloc(1, sizeof(*client));
    if (!client)
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a client");
    client->loop = loop;
    titan_status status = rpc_remote_open(target, tls, &client->remote, err);
    if (status != TITAN_OK) {
        free(client);
        return status;
    }
    status = rpc_queue_start(&client->queue, loop, err);
    if (status != TITAN_OK) {
        rpc_remote_close(&client->remote);
        free(client);
        return status;
    }
    *ret = client;
    return TITAN_OK;
}

titan_status rpc_client_token(struct rpc_client *client, const char *token, struct titan_error *err)
{
    return rpc_remote_token(&client->remote, token, err);
}

void rpc_client_reconnect(struct rpc_client *client, bool next)
{
    if (!client->closing)
        rpc_remote_reconnect(&client->remote, next);
}

const char *rpc_client_target(const struct rpc_client *client)
{
    return client->remote.target;
}

static void client_stopped(void *data)
{
    struct rpc_client *client = data;
    titan_assert(client->stopped && !client->open);
    void (*done)(void *) = client->done;
    void *done_data = client->data;
    rpc_remote_close(&client->remote);
    free(client);
    if (done)
        done(done_data);
}

static void client_advance(struct rpc_client *client)
{
    if (!client->closing || client->stopped || client->open)
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
    for (struct open_call *call = client->open; call; call = call->next)
        call_cancel(call);
    client_advance(client);
}
