/* SPDX-License-Identifier: Apache-2.0 */
/* proxy.h - the thread between peers and gRPC, an HTTP server, or a tunnel's owner. Private to proto.
 *
 * The server gets one end of a socket pair for each connection. The thread carries bytes between the other end and the
 * client, terminates TLS, and for gRPC applies filter.h. When a side stops reading, the thread stops reading for it. */
#ifndef TITAN_PROTO_RPC_PROXY_H
#define TITAN_PROTO_RPC_PROXY_H

#include <openssl/ssl.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "proto/rpc/common.h"
#include "proto/rpc/filter.h"
#include "proto/rpc/server.h"

struct rpc_proxy;

/* One of a connection's two sockets. */
struct rpc_proxy_end {
    struct rpc_proxy_connection *connection;
    int fd;
    bool watched, waits_out; /* the thread waits until the socket is writable */
    uint32_t events;         /* events for which epoll watches the socket */
    struct buf out;          /* output for the socket, of which `sent` bytes are sent */
    size_t sent;
};

/* How to end a connection. SOON: within 2 s, so that gRPC's remaining output reaches the client. NOW: at once, counted
 * as refused, to give its place to another connection of its address. */
enum rpc_cut { RPC_CUT_NOT, RPC_CUT_SOON, RPC_CUT_NOW };

/* Owned by the thread from rpc_proxy_add() to the call of `ended`, except fields marked as the caller's. */
struct rpc_proxy_connection {
    LIST_ENTRY(rpc_proxy_connection) link;
    struct rpc_proxy_connection *next_arrival; /* next in the list of arrivals, or of ended connections */
    struct rpc_proxy_end client, inner;
    bool plain; /* the bytes pass as they are (HTTP/1.1, a tunnel); set by the caller */
    struct rpc_filter filter;
    SSL *tls;   /* NULL: no TLS */
    bool begun; /* the client has begun to speak the protocol */
    bool left;  /* the server has closed its side */
    bool gone, cutting;
    int64_t deadline_ns; /* monotonic clock; 0: none */
    struct titan_error why;
    struct rpc_tag ended; /* the caller sets its fn and owner */
    /* What the client's certificate proves, set before the server gets a byte. It belongs to the caller once
     * `identified` is true. */
    atomic_bool identified;
    struct rpc_identity identity;
    _Atomic enum rpc_cut cut; /* set by rpc_proxy_cut */
};

/* queue: receives the connections' ended tags. */
titan_status rpc_proxy_open(struct rpc_queue *queue, struct rpc_proxy **ret, struct titan_error *err) TITAN_MUST_USE;
/* Returns after every connection has ended and been posted; NULL is fine. */
void rpc_proxy_close(struct rpc_proxy *proxy);
/* The thread owns the descriptors, the filter and tls. The tag `ended` is posted once, after both sides are closed;
 * why.status is then the reason (TITAN_OK: one side has left). */
void rpc_proxy_add(struct rpc_proxy *proxy, struct rpc_proxy_connection *connection, int client, int inner);
/* Ends a connection. Allowed until the caller has taken the connection's `ended` tag. */
void rpc_proxy_cut(struct rpc_proxy *proxy, struct rpc_proxy_connection *connection, enum rpc_cut how);

#endif
