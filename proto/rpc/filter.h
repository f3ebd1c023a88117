/* SPDX-License-Identifier: Apache-2.0 */
/* filter.h - what a client's HTTP/2 connection may bring to gRPC. Private to proto/rpc; fuzzed.
 *
 * gRPC's core takes a message in whole before it says how long it is, and parses a header block of any length, some
 * with work that grows with its square (CVE-2023-33953, in Debian 12's). Here the bytes pass by frame for frame:
 *   - a message that announces more than message_max is answered at once, RESOURCE_EXHAUSTED, and what comes of it is
 *     dropped; the connection and its other calls go on. gRPC sees the call cancelled, and what it says of a
 *     call that is over does not go on;
 *   - header blocks of more than header_max bytes, frames longer than HTTP/2's first limit and what breaks the order of
 *     frames end the connection;
 *   - each block of a call gets one more header, which the server knows the connection by.
 *
 * Formats: RFC 9113 (frames), RFC 7541 (header literals), gRPC over HTTP/2 (5 bytes before each message). One thread.
 */
#ifndef TITAN_PROTO_RPC_FILTER_H
#define TITAN_PROTO_RPC_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum {
    RPC_FRAME_HEAD = 9,
    RPC_FRAME_MAX = 16384, /* payload; a server of ours never allows more */
};

struct rpc_filter_limits {
    uint32_t message_max; /* bytes of a message */
    uint32_t header_max;  /* ... of a header block as it is sent */
    uint32_t streams_max; /* calls at a time */
};

/* Where a direction stands. */
struct rpc_frames {
    uint8_t head[RPC_FRAME_HEAD];
    uint8_t n_head, type, flags;
    uint32_t stream, left; /* of the frame that has begun: its stream, and bytes of the payload still to come */
    uint32_t block;        /* the stream of a header block that has not ended; 0: none */
};

struct rpc_filter {
    struct rpc_filter_limits limits;
    struct buf header; /* the header field that is added, as HPACK; empty: none */
    uint8_t n_preface;
    bool begun; /* the preface and a frame have come */
    struct rpc_frames client, server;
    uint32_t block_bytes, block_frames; /* of the client's block */
    bool dropped;                       /* the client's frame does not go on */
    bool padded;                        /* its DATA frame says with its next byte how much padding it has */
    uint32_t content;                   /* ... has so many bytes of messages still to come */
    bool refusing;                      /* ... began a message that is too long */
    bool unwanted;                      /* the server's frame does not go on */
    uint32_t last_stream;
    uint32_t credit;    /* bytes that were dropped: gRPC, which has not seen them, does not ask for as many again */
    struct buf replies; /* for the client, between two frames of the server */
    struct rpc_filter_stream {
        uint32_t id, left; /* bytes of the message that are still to come */
        uint8_t prefix[5], n_prefix;
        bool sent, answered, over; /* the client has ended it; the server has begun to answer, and ended it */
        uint32_t announced;
    } * streams; /* owned; by id: the calls that are not over for both sides */
    uint32_t n_streams, cap_streams;
};

/* header_name and value: added to each block; NULL: nothing is. TITAN_ENOMEM leaves nothing to free. */
titan_status rpc_filter_init(struct rpc_filter *s, const struct rpc_filter_limits *limits, const char *header_name,
                             const char *header_value, struct titan_error *err) TITAN_MUST_USE;
void rpc_filter_free(struct rpc_filter *s);

/* n bytes of the client have come: append to to_server and to_client what each is to get. Not TITAN_OK: the connection
 * is to end, once to_client is sent; err says why. */
titan_status rpc_filter_client(struct rpc_filter *s, const uint8_t *bytes, size_t n, struct buf *to_server,
                               struct buf *to_client, struct titan_error *err) TITAN_MUST_USE;
/* n bytes of gRPC: append to to_client what it gets. TITAN_ENOMEM: the connection is to end. */
titan_status rpc_filter_server(struct rpc_filter *s, const uint8_t *bytes, size_t n,
                               struct buf *to_client) TITAN_MUST_USE;

#endif
