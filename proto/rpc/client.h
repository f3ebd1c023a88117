/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - a gRPC client on the gRPC C core, for a libuv loop (daemon) or blocking (commands).
 *
 * Of errors with TITAN_EUNREACHABLE sys_errno is ENOTCONN when there was no answer, and 0 when a server has said it: it
 * stops, or its coordinator is fenced. */
#ifndef TITAN_PROTO_RPC_CLIENT_H
#define TITAN_PROTO_RPC_CLIENT_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/error.h"
#include "proto/rpc/tls.h"

struct rpc_client;
struct rpc_stream;

/* target: an address as in rpc_server_listen, or a list (targets.h), of which calls go to the first. tls for TCP, NULL
 * = without. The server's certificate must be for the target's host. Connects lazily; reconnects with 50 ms .. 2 s
 * back-off, to the address that the name had. All callbacks run on loop. */
titan_status rpc_client_open(uv_loop_t *loop, const char *target, const struct rpc_tls *tls, struct rpc_client **ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* Send a bearer token with each call. TITAN_EPERM for TCP without TLS, and for a Unix socket of another user
 * (trusted_socket.h), at each new connection. */
titan_status rpc_client_token(struct rpc_client *client, const char *token, struct titan_error *err) TITAN_MUST_USE;
/* The next call connects anew and looks the name up anew, without back-off; next: at the next address of the list.
 * Calls that are open go on. For a call that has failed: what is to be repeated, and when, its caller knows. */
void rpc_client_reconnect(struct rpc_client *client, bool next);
const char *rpc_client_target(const struct rpc_client *client); /* the address that the next call goes to */
/* Cancels what is open, calls every pending callback with TITAN_ECANCELLED, then done. */
void rpc_client_close(struct rpc_client *client, void (*done)(void *), void *data);

/* One call, one answer. reply is NULL unless err->status is TITAN_OK, and freed after cb. deadline_ms 0 = none. */
typedef void (*rpc_reply_cb)(const ProtobufCMessage *reply, const struct titan_error *err, void *data);
void rpc_client_call(struct rpc_client *client, const char *path, const ProtobufCMessage *request,
                     const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, rpc_reply_cb cb, void *data);

struct rpc_stream_events {
    void (*on_message)(struct rpc_stream *stream, const ProtobufCMessage *message, void *data);
    /* Exactly once, last; err->status TITAN_OK when the server ended the stream well. The stream is freed after. */
    void (*on_close)(struct rpc_stream *stream, const struct titan_error *err, void *data);
};
/* Open a stream. request: the first message; NULL for a bidirectional stream that sends later. half_close: nothing
 * more will be sent (server streaming). */
titan_status rpc_client_stream(struct rpc_client *client, const char *path, const ProtobufCMessage *request,
                               bool half_close, const ProtobufCMessageDescriptor *reply,
                               const struct rpc_stream_events *events, void *data, struct rpc_stream **ret,
                               struct titan_error *err) TITAN_MUST_USE;
/* Queue a message; TITAN_EAGAIN when 8192 are queued already, TITAN_ECANCELLED when the stream is over. */
titan_status rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message) TITAN_MUST_USE;
size_t rpc_stream_queued(const struct rpc_stream *stream);
void rpc_stream_close_send(struct rpc_stream *stream);
void rpc_stream_cancel(struct rpc_stream *stream); /* on_close still comes */

/* Blocking twins for commands: no loop, one thread. Of a list the first address that answers a question about its
 * health is used, so no call is sent twice; where none does, the error names each with what it said. *ret_reply is
 * owned by the caller (protobuf_c_message_free_unpacked). */
struct rpc_channel;
titan_status rpc_channel_open(const char *target, const struct rpc_tls *tls, struct rpc_channel **ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* Where a call ended with TITAN_EUNREACHABLE the next one looks for a server from there on. What the addresses said
 * that were passed over to the present one; "" = none was. */
const char *rpc_channel_passed(const struct rpc_channel *channel);
titan_status rpc_channel_token(struct rpc_channel *channel, const char *token, struct titan_error *err) TITAN_MUST_USE;
void rpc_channel_close(struct rpc_channel *channel);
titan_status rpc_channel_call(struct rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                              const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms,
                              ProtobufCMessage **ret_reply, struct titan_error *err) TITAN_MUST_USE;
/* Server stream: each() gets every message and returns false to stop (cancels, TITAN_OK). *interrupted, if not NULL,
 * is polled every 50 ms and ends the stream with TITAN_ECANCELLED when non-zero (set it from a signal handler).
 * tick, if not NULL, is called at least every 100 ms (progress lines). */
titan_status rpc_channel_stream(struct rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                                const ProtobufCMessageDescriptor *reply,
                                bool (*each)(const ProtobufCMessage *message, void *data), void (*tick)(void *data),
                                void *data, const volatile int *interrupted, struct titan_error *err) TITAN_MUST_USE;

#endif
