/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - a gRPC client on the gRPC C core, for a libuv loop (daemon) or blocking (commands).
 *
 * A TITAN_EUNREACHABLE error has sys_errno ENOTCONN if no server answered. It has sys_errno 0 if a server answered that
 * it stops or that its coordinator is fenced. */
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

/* target: an address as in rpc_server_listen(), or a list (targets.h), whose first address gets the calls. tls: for
 * TCP; NULL = without TLS. The server's certificate must match the target's host. Connects lazily. Reconnects to the
 * resolved address with 50 ms .. 2 s back-off. All callbacks run on loop. */
titan_status rpc_client_open(uv_loop_t *loop, const char *target, const struct rpc_tls *tls, struct rpc_client **ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* Sends a bearer token with each call to servers that may have it: over TLS, or over a Unix socket whose server runs as
 * root, as this process's user, or as the packaged Titan user. The reason is that any user can create a socket at a
 * path given to another user. TITAN_EPERM for TCP without TLS, and at each new connection for a Unix socket of another
 * user. */
titan_status rpc_client_token(struct rpc_client *client, const char *token, struct titan_error *err) TITAN_MUST_USE;
/* The next call makes a new connection and resolves the name again, without back-off; next: it goes to the next address
 * of the list. Open calls continue. Use after a failed call: the caller decides what to repeat, and when. */
void rpc_client_reconnect(struct rpc_client *client, bool next);
const char *rpc_client_target(const struct rpc_client *client); /* address of the next call */
/* Cancels open calls and streams, calls every pending callback with TITAN_ECANCELLED, then calls done. */
void rpc_client_close(struct rpc_client *client, void (*done)(void *), void *data);

/* What a call asks for. */
struct rpc_request {
    const char *path; /* "/titan.v1.Titan/Submit"; outlives the call */
    const ProtobufCMessage *message;
    const ProtobufCMessageDescriptor *reply;
    uint32_t deadline_ms; /* 0 = none */
};

/* One call, one reply. reply is NULL unless err->status is TITAN_OK, and freed after cb. */
typedef void (*rpc_reply_cb)(const ProtobufCMessage *reply, const struct titan_error *err, void *data);
void rpc_client_call(struct rpc_client *client, const struct rpc_request *request, rpc_reply_cb cb, void *data);
/* Within a reply's callback: the caller frees the reply (protobuf_c_message_free_unpacked). */
void rpc_client_keep(struct rpc_client *client);

struct rpc_stream_events {
    void (*on_message)(struct rpc_stream *stream, const ProtobufCMessage *message, void *data);
    /* Called exactly once, last; err->status is TITAN_OK when the server ended the stream without an error. The stream
     * is freed afterwards. */
    void (*on_close)(struct rpc_stream *stream, const struct titan_error *err, void *data);
};
/* Opens a stream of replies to the request's message. message NULL: a bidirectional stream, which sends later. */
titan_status rpc_client_stream(struct rpc_client *client, const struct rpc_request *request,
                               const struct rpc_stream_events *events, void *data, struct rpc_stream **ret,
                               struct titan_error *err) TITAN_MUST_USE;
/* Queues a message. TITAN_EAGAIN: 8192 messages are queued already; TITAN_ECANCELLED: the stream has ended. */
titan_status rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message) TITAN_MUST_USE;
size_t rpc_stream_queued(const struct rpc_stream *stream);
void rpc_stream_close_send(struct rpc_stream *stream);
void rpc_stream_cancel(struct rpc_stream *stream); /* on_close is still called */

/* Blocking functions for commands: no loop, one thread. For a list, the first address that answers a health check gets
 * the calls, so no call is sent twice. If no address answers, the error has the result of each address. The caller owns
 * *ret_reply (protobuf_c_message_free_unpacked). */
struct rpc_channel;
titan_status rpc_channel_open(const char *target, const struct rpc_tls *tls, struct rpc_channel **ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* Errors of the addresses that were skipped before the present one; "" = none was skipped. After a call with
 * TITAN_EUNREACHABLE the next call looks for a server from the present address on. */
const char *rpc_channel_passed(const struct rpc_channel *channel);
titan_status rpc_channel_token(struct rpc_channel *channel, const char *token, struct titan_error *err) TITAN_MUST_USE;
void rpc_channel_close(struct rpc_channel *channel);
titan_status rpc_channel_call(struct rpc_channel *channel, const struct rpc_request *request,
                              ProtobufCMessage **ret_reply, struct titan_error *err) TITAN_MUST_USE;
/* Server stream: each() gets every message. If it returns false, the call is cancelled with TITAN_OK. interrupted, if
 * not NULL: *interrupted is polled every 50 ms; non-zero ends the stream with TITAN_ECANCELLED (set it from a signal
 * handler). */
titan_status rpc_channel_stream(struct rpc_channel *channel, const struct rpc_request *request,
                                bool (*each)(const ProtobufCMessage *message, void *data), void *data,
                                const volatile int *interrupted, struct titan_error *err) TITAN_MUST_USE;

#endif
