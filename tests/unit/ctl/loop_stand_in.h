/* SPDX-License-Identifier: Apache-2.0 */
/* loop_stand_in.h - what a command with a loop meets in place of a server: on_call() and on_stream(), which each test
 * that includes this has. It takes the place of all that proto/rpc/client.c offers. As there, nothing is answered
 * within the call that asks. */
#ifndef TITAN_TESTS_UNIT_CTL_LOOP_STAND_IN_H
#define TITAN_TESTS_UNIT_CTL_LOOP_STAND_IN_H

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "proto/rpc/client.h"

struct rpc_stream {
    const struct rpc_stream_events *events;
    void *data;
    const char *method;
    ProtobufCMessage *request;
    bool begun, cancelled;
    struct rpc_stream *next;
};

struct call {
    const char *method;
    ProtobufCMessage *request;
    rpc_reply_cb cb;
    void *data;
    struct call *next;
};

static struct {
    uv_idle_t idle;
    struct call *calls;
    struct rpc_stream *streams;
    size_t reconnects;
    void (*done)(void *data); /* it is to close */
    void *done_data;
} client;

/* *err is OK at first; *reply stays the callee's. */
static void on_call(const char *method, const ProtobufCMessage *request, const ProtobufCMessage **reply,
                    struct titan_error *err);
/* It has been opened: stream_send(), stream_end(), or later. */
static void on_stream(struct rpc_stream *s);

static inline ProtobufCMessage *message_copy(const ProtobufCMessage *m)
{
    uint8_t bytes[4096];
    const size_t size = protobuf_c_message_get_packed_size(m);
    titan_assert(size <= sizeof(bytes));
    (void)protobuf_c_message_pack(m, bytes);
    return protobuf_c_message_unpack(m->descriptor, NULL, size, bytes);
}

/* A copy is handed over: a receiver may write into it. */
static inline void stream_send(struct rpc_stream *s, const ProtobufCMessage *m)
{
    if (s->cancelled || client.done)
        return;
    ProtobufCMessage *copy = message_copy(m);
    s->events->on_message(s, copy, s->data);
    protobuf_c_message_free_unpacked(copy, NULL);
}

/* NULL: it ends well. */
static inline void stream_end(struct rpc_stream *s, const struct titan_error *err)
{
    const struct titan_error well = {.status = TITAN_OK};
    struct rpc_stream **at = &client.streams;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->events->on_close(s, err ? err : &well, s->data);
    protobuf_c_message_free_unpacked(s->request, NULL);
    free(s);
}

static inline void call_end(struct call *c, const ProtobufCMessage *reply, const struct titan_error *err)
{
    ProtobufCMessage *copy = err->status == TITAN_OK ? message_copy(reply) : NULL;
    c->cb(copy, err, c->data);
    if (copy)
        protobuf_c_message_free_unpacked(copy, NULL);
    protobuf_c_message_free_unpacked(c->request, NULL);
    free(c);
}

static inline void on_closed(uv_handle_t *handle)
{
    (void)handle;
    client.done(client.done_data);
    client.done = NULL;
}

/* One thing at a time. */
static inline void on_idle(uv_idle_t *idle)
{
    struct titan_error cancelled = {0}, err = {.status = TITAN_OK};
    const ProtobufCMessage *reply = NULL;
    struct rpc_stream *s = client.streams;
    struct call *c = client.calls;
    (void)titan_fail(&cancelled, TITAN_ECANCELLED, "cancelled");
    if (c) {
        client.calls = c->next;
        if (!client.done)
            on_call(c->method, c->request, &reply, &err);
        call_end(c, reply, client.done ? &cancelled : &err);
        return;
    }
    while (s && s->begun && !s->cancelled && !client.done)
        s = s->next;
    if (s && (s->cancelled || client.done)) {
        stream_end(s, &cancelled);
    } else if (s) {
        s->begun = true;
        on_stream(s);
    } else {
        (void)uv_idle_stop(idle);
        if (client.done)
            uv_close((uv_handle_t *)idle, on_closed);
    }
}

titan_status rpc_client_open(uv_loop_t *loop, const char *target, const struct rpc_tls *tls, struct rpc_client **ret,
                             struct titan_error *err)
{
    (void)target, (void)tls, (void)err;
    memset(&client, 0, sizeof(client));
    *ret = (struct rpc_client *)(void *)&client;
    return uv_idle_init(loop, &client.idle) == 0 ? TITAN_OK : TITAN_EIO;
}

void rpc_client_reconnect(struct rpc_client *of, bool next)
{
    (void)of, (void)next;
    client.reconnects++;
}

titan_status rpc_client_token(struct rpc_client *of, const char *token, struct titan_error *err)
{
    (void)of, (void)token, (void)err;
    return TITAN_OK;
}

void rpc_client_close(struct rpc_client *of, void (*done)(void *), void *data)
{
    (void)of;
    client.done = done;
    client.done_data = data;
    (void)uv_idle_start(&client.idle, on_idle);
}

void rpc_client_call(struct rpc_client *of, const struct rpc_request *request, rpc_reply_cb cb, void *data)
{
    (void)of;
    struct call *c = calloc(1, sizeof(*c)), **at = &client.calls;
    titan_assert(c);
    *c = (struct call){
        .method = strrchr(request->path, '/') + 1, .request = message_copy(request->message), .cb = cb, .data = data};
    while (*at)
        at = &(*at)->next;
    *at = c;
    (void)uv_idle_start(&client.idle, on_idle);
}

titan_status rpc_client_stream(struct rpc_client *of, const struct rpc_request *request,
                               const struct rpc_stream_events *events, void *data, struct rpc_stream **ret,
                               struct titan_error *err)
{
    (void)of, (void)err;
    struct rpc_stream *s = calloc(1, sizeof(*s)), **at = &client.streams;
    titan_assert(s);
    *s = (struct rpc_stream){.events = events,
                             .data = data,
                             .method = strrchr(request->path, '/') + 1,
                             .request = message_copy(request->message)};
    while (*at)
        at = &(*at)->next;
    *at = *ret = s;
    (void)uv_idle_start(&client.idle, on_idle);
    return TITAN_OK;
}

/* Only blocking calls come to these. */
void rpc_client_keep(struct rpc_client *of)
{
    (void)of;
}

const char *rpc_client_target(const struct rpc_client *of)
{
    (void)of;
    return "";
}

void rpc_stream_cancel(struct rpc_stream *s)
{
    s->cancelled = true;
    (void)uv_idle_start(&client.idle, on_idle);
}

#endif
