/* SPDX-License-Identifier: Apache-2.0 */
/* proxy.h - the thread that stands between clients and gRPC. Private to proto/rpc.
 *
 * gRPC gets one end of a socket pair for each connection; the thread carries bytes between the other end and the
 * client, ends TLS, and lets through what filter.h does. A side that does not read is not read for either. */
#ifndef TITAN_PROTO_RPC_PROXY_H
#define TITAN_PROTO_RPC_PROXY_H

#include <openssl/ssl.h>
#include <stdatomic.h>

#include "proto/rpc/common.h"
#include "proto/rpc/filter.h"

struct rpc_proxy;

/* One of its two sockets. */
struct rpc_proxy_end {
    struct rpc_proxy_connection *connection;
    int fd;
    bool readable, writable; /* since the last try, as far as is known */
    bool ending, hung_up;    /* no more comes behind what there is; it takes no more, either */
    bool waits_out;          /* the thread is told when it is writable again */
    struct buf out;          /* for it, of which sent bytes have gone */
    size_t sent;
};

/* How a connection is made to end: within 2 s, what gRPC still has for the client gets through; or at once, counted as
 * refused, as another one of its address has its place. */
enum rpc_cut { RPC_CUT_NOT, RPC_CUT_SOON, RPC_CUT_NOW };

/* The thread's from rpc_proxy_add until ended is called, but for what is said to be the caller's. */
struct rpc_proxy_connection {
    struct rpc_proxy_connection *next, *prev;
    struct rpc_proxy_connection *next_due; /* in the list of arrivals, of those with more to do, or of the ended */
    struct rpc_proxy_end client, inner;
    struct rpc_filter filter;
    SSL *tls;         /* NULL: without */
    bool begun, left; /* its first frame has come; gRPC has closed its side */
    bool queued, gone, cutting;
    int64_t deadline_ns; /* of the monotonic clock; 0: none */
    struct titan_error why;
    struct rpc_tag ended; /* the caller's: its fn and owner */
    /* The certificate that the client has proved to have, set before gRPC gets a byte: its SPIFFE URI and life, in ms
     * since 1970. */
    atomic_bool identified;
    char name[192];
    int64_t from_ms;
    _Atomic int64_t until_ms; /* the caller's to move, as the certificate is renewed */
    _Atomic enum rpc_cut cut; /* of rpc_proxy_cut */
};

/* queue: where connections' ends are posted. */
titan_status rpc_proxy_open(struct rpc_queue *queue, struct rpc_proxy **ret, struct titan_error *err) TITAN_MUST_USE;
/* Every connection ends, and is posted, before it returns; NULL is fine. */
void rpc_proxy_close(struct rpc_proxy *proxy);
/* The descriptors, the filter and tls are the thread's to close. ended is posted once, whenever both sides are closed;
 * why.status says for what reason (TITAN_OK: one of them has left). */
void rpc_proxy_add(struct rpc_proxy *proxy, struct rpc_proxy_connection *connection, int client, int inner);
/* The connection has not ended yet, or its end is posted and not taken. */
void rpc_proxy_cut(struct rpc_proxy *proxy, struct rpc_proxy_connection *connection, enum rpc_cut how);

#endif
