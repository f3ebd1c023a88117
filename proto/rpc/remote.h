/* SPDX-License-Identifier: Apache-2.0 */
/* remote.h - a client's server and its calls, for client.c and channel.c. Private to proto/rpc.
 *
 * A token goes only to servers that may have it: over TLS, or over a Unix socket of a server of root, of this process's
 * user, or of the packaged Titan user. Any user can create a socket at a path given to another user. */
#ifndef TITAN_PROTO_RPC_REMOTE_H
#define TITAN_PROTO_RPC_REMOTE_H

#include "proto/rpc/common.h"
#include "proto/rpc/pair.h"
#include "proto/rpc/targets.h"

#define RPC_CLIENT_MESSAGE_MAX (64 << 20)

/* A client's server and connection. Do not move it: target points into it. */
struct rpc_remote {
    struct rpc_targets targets;
    const char *target;    /* the address of calls */
    char *authorization;   /* header for each call, or NULL */
    struct rpc_pair *pair; /* NULL: without TLS */
    grpc_channel *channel;
    int socket; /* socket of the one-time connection to a Unix socket with a token; -1 = none */
};

/* target: one address or a list; calls begin with its first address. tls: for TCP, never for a Unix socket; NULL =
 * without TLS. Connects at the first call. */
titan_status rpc_remote_open(const char *target, const struct rpc_tls *tls, struct rpc_remote *ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* The next call makes a new connection and resolves the name again; next: to the next address of the list. */
void rpc_remote_reconnect(struct rpc_remote *remote, bool next);
void rpc_remote_close(struct rpc_remote *remote);
titan_status rpc_remote_token(struct rpc_remote *remote, const char *token, struct titan_error *err) TITAN_MUST_USE;
gpr_timespec rpc_deadline(uint32_t deadline_ms); /* 0 = never */

/* A client's call: what it sends, and what gRPC fills. */
struct rpc_exchange {
    struct rpc_remote *remote;
    const char *path, *target; /* borrowed; the remote owns the target */
    grpc_call *call;
    grpc_metadata header;       /* sent header */
    grpc_byte_buffer *outgoing; /* the message of the next batch; freed at the end, if it is still there */
    bool more;                  /* another message follows the outgoing message at once */
    grpc_metadata_array headers, trailers;
    grpc_status_code code;
    grpc_slice details;
    grpc_byte_buffer *incoming;
};

/* Creates the call. It uses a new connection if the TLS files have changed, or if the server of a Unix socket may have
 * the token and the previous connection has ended. */
void rpc_exchange_begin(struct rpc_exchange *ret, struct rpc_remote *remote, grpc_completion_queue *cq,
                        const char *path, uint32_t deadline_ms);
/* Starts a batch of these operations. rpc_unary: all of a call with one message each way. */
enum { RPC_UNARY = 6 };
extern const grpc_op_type rpc_unary[RPC_UNARY];
void rpc_exchange_start(struct rpc_exchange *x, const grpc_op_type *types, size_t n, void *tag);
/* Fills err from the call's result. */
titan_status rpc_exchange_outcome(const struct rpc_exchange *x, struct titan_error *err);
void rpc_exchange_end(struct rpc_exchange *x);

#endif
