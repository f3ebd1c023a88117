/* SPDX-License-Identifier: Apache-2.0 */
/* What clients send before gRPC sees it: pieces of a client and of a server in turns. However they are cut, the same
 * goes on; what goes on to gRPC is whole frames, none of a message that is too long but for the frame that it begins
 * in. */
#include "tests/fuzz/common.h"

#include "proto/rpc/filter.h"

enum { MESSAGE_MAX = 300, HEADER_MAX = 400, STREAMS_MAX = 6 };

struct way {
    struct rpc_filter filter;
    struct buf to_server, to_client;
    titan_status status;
};

static void way_end(struct way *w)
{
    rpc_filter_free(&w->filter);
    buf_free(&w->to_server);
    buf_free(&w->to_client);
}

static void push(struct way *w, bool client, const uint8_t *data, size_t len, size_t step)
{
    struct titan_error err;
    for (size_t at = 0; at < len && w->status == TITAN_OK; at += step) {
        const size_t n = step < len - at ? step : len - at;
        if (client)
            w->status = rpc_filter_client(&w->filter, data + at, n, &w->to_server, &w->to_client, &err);
        else
            fuzz_assert(rpc_filter_server(&w->filter, data + at, n, &w->to_client) == TITAN_OK);
    }
}

/* Frames of at most RPC_FRAME_MAX bytes; the last may be cut where the client's own is. */
static void frames_check(const struct buf *b)
{
    enum { PREFACE = 24 };
    size_t at = PREFACE;
    while (at + RPC_FRAME_HEAD <= b->len) {
        const uint8_t *head = (const uint8_t *)b->data + at;
        const size_t n = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        fuzz_assert(n <= RPC_FRAME_MAX);
        at += RPC_FRAME_HEAD + n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct way whole = {.filter.limits = {MESSAGE_MAX, HEADER_MAX, STREAMS_MAX}}, bytes = whole;
    (void)fuzz_take(&in, 1); /* older inputs begin with a choice */
    while (in.len > 0) {
        const bool client = fuzz_take(&in, 1) % 4 != 0;
        struct fuzz_input piece = fuzz_piece(&in);
        if (piece.len == 0)
            continue;
        push(&whole, client, piece.data, piece.len, piece.len);
        push(&bytes, client, piece.data, piece.len, 1);
        fuzz_assert(whole.status == bytes.status);
        if (whole.status != TITAN_OK)
            break; /* the connection ends: what has gone on so far matters to none */
        fuzz_assert(whole.to_server.len == bytes.to_server.len && whole.filter.n_streams == bytes.filter.n_streams);
        fuzz_assert(whole.to_server.len == 0 ||
                    memcmp(whole.to_server.data, bytes.to_server.data, bytes.to_server.len) == 0);
        fuzz_assert(whole.filter.n_streams <= STREAMS_MAX);
    }
    frames_check(&whole.to_server);
    way_end(&whole);
    way_end(&bytes);
    return 0;
}
