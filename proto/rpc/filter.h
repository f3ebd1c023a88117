/* SPDX-License-Identifier: Apache-2.0 */
/* filter.h - limits the bytes of a client's HTTP/2 connection before gRPC reads them. Private to proto/rpc; fuzzed.
 *
 * gRPC's core reads a whole message before it reports the length, and parses header blocks of any length, some in
 * quadratic time (CVE-2023-33953, in Debian 12's gRPC). This filter passes bytes frame by frame:
 *   - a message that announces more than message_max is answered at once, RESOURCE_EXHAUSTED, and its bytes are
 *     dropped; the connection and its other calls continue. gRPC sees the call cancelled, and its frames for an
 *     ended call are dropped;
 *   - header blocks of more than header_max bytes, frames longer than HTTP/2's initial limit, and frames out of order
 *     end the connection.
 *
 * Formats: RFC 9113 (frames), RFC 7541 (header literals), gRPC over HTTP/2 (5 bytes before each message). One
 * thread. */
#ifndef TITAN_PROTO_RPC_FILTER_H
#define TITAN_PROTO_RPC_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum {
    RPC_FRAME_HEAD = 9,
    RPC_FRAME_MAX = 16384, /* payload; Titan's servers never allow more */
};

struct rpc_filter_limits {
    uint32_t message_max; /* bytes of a message */
    uint32_t header_max;  /* bytes of a header block as sent */
    uint32_t streams_max; /* concurrent calls */
};

/* Parser state of one direction. */
struct rpc_frames {
    uint8_t head[RPC_FRAME_HEAD];
    uint8_t n_head, type, flags;
    uint32_t stream, left; /* stream of the current frame, and missing bytes of its payload */
    uint32_t block;        /* the stream of an unfinished header block; 0: none */
};

/* Starts with all fields zero except limits. */
struct rpc_filter {
    struct rpc_filter_limits limits;
    uint8_t n_preface;
    bool begun; /* the preface and a frame have arrived */
    struct rpc_frames client, server;
    uint32_t block_bytes, block_frames; /* bytes and frames of the client's header block */
    bool dropped;                       /* the client's frame is dropped */
    bool padded;                        /* the next byte of the client's DATA frame is the padding length */
    uint32_t content;                   /* bytes of messages still missing from the client's DATA frame */
    bool refusing;                      /* the client's DATA frame began a message that is too long */
    bool unwanted;                      /* the server's frame is dropped */
    uint32_t last_stream;
    uint32_t credit;    /* dropped bytes: gRPC has not seen them, and does not return their flow-control credit */
    struct buf replies; /* replies to the client, sent between two frames of the server */
    struct rpc_filter_stream {
        uint32_t id, left; /* missing bytes of the message */
        uint8_t prefix[5], n_prefix;
        bool sent, answered, over; /* the client has ended its side; the server has begun its response, and ended it */
        uint32_t announced;
    } * streams; /* owned, sorted by id: calls that are open on at least one side */
    uint32_t n_streams, cap_streams;
};

void rpc_filter_free(struct rpc_filter *s);

/* Takes n bytes from the client: appends the bytes for each side to to_server and to_client. Any error: end the
 * connection after to_client is sent; err has the reason. */
titan_status rpc_filter_client(struct rpc_filter *s, const uint8_t *bytes, size_t n, struct buf *to_server,
                               struct buf *to_client, struct titan_error *err) TITAN_MUST_USE;
/* Takes n bytes from gRPC: appends the bytes for the client to to_client. TITAN_ENOMEM: end the connection. */
titan_status rpc_filter_server(struct rpc_filter *s, const uint8_t *bytes, size_t n,
                               struct buf *to_client) TITAN_MUST_USE;

#endif
