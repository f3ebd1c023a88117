/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/filter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "proto/rpc/common.h"

enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, GOAWAY = 7, WINDOW_UPDATE = 8, CONTINUATION = 9 };
enum { END_STREAM = 1, END_HEADERS = 4, PADDED = 8 };
enum { NO_ERROR = 0, CANCEL = 8, ENHANCE_YOUR_CALM = 11 };
enum {
    BLOCK_FRAMES_MAX = 64, /* in one header block: empty frames also cost work */
    CREDIT_EACH = RPC_FRAME_MAX,
};

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum { PREFACE = sizeof(preface) - 1 };

/* --- frames out --------------------------------------------------------------------------------------------------- */

static uint32_t be32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void put_be32(struct buf *out, uint32_t x)
{
    const uint8_t bytes[] = {(uint8_t)(x >> 24), (uint8_t)(x >> 16), (uint8_t)(x >> 8), (uint8_t)x};
    buf_put(out, (const char *)bytes, sizeof(bytes));
}

static void put_head(struct buf *out, size_t len, uint8_t type, uint8_t flags, uint32_t stream)
{
    titan_assert(len <= RPC_FRAME_MAX);
    const uint8_t bytes[] = {(uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len, type, flags};
    buf_put(out, (const char *)bytes, sizeof(bytes));
    put_be32(out, stream);
}

static void put_number_frame(struct buf *out, uint8_t type, uint32_t stream, uint32_t number)
{
    put_head(out, 4, type, 0, stream);
    put_be32(out, number);
}

/* RFC 7541, 6.2.3: a never-indexed literal with its name in full; texts below 127 bytes, without Huffman. */
static void put_literal(struct buf *out, const char *name, const char *value)
{
    const size_t n = strlen(name), v = strlen(value);
    titan_assert(n > 0 && n < 127 && v < 127);
    const char lengths[] = {0x10, (char)n, (char)v};
    buf_put(out, lengths, 2);
    buf_put(out, name, n);
    buf_put(out, lengths + 2, 1);
    buf_put(out, value, v);
}

/* Writes the end of a refused call, as gRPC's own server does. */
static void put_refusal(struct buf *out, const struct rpc_filter *s, const struct rpc_filter_stream *stream)
{
    struct buf block = BUF_INIT;
    char text[120], number[12];
    (void)snprintf(text, sizeof(text), "a message of %" PRIu32 " bytes; at most %" PRIu32 " are taken here",
                   stream->announced, s->limits.message_max);
    (void)snprintf(number, sizeof(number), "%d", titan_status_grpc(TITAN_ELIMIT));
    if (!stream->answered) {
        buf_put(&block, "\x88", 1); /* :status 200 */
        put_literal(&block, "content-type", "application/grpc");
    }
    put_literal(&block, "grpc-status", number);
    put_literal(&block, "grpc-message", text);
    put_literal(&block, RPC_STATUS_TRAILER, titan_status_name(TITAN_ELIMIT));
    put_head(out, block.len, HEADERS, END_STREAM | END_HEADERS, stream->id);
    buf_put(out, block.data, block.len);
    put_number_frame(out, RST_STREAM, stream->id, NO_ERROR);
    if (buf_failed(&block))
        out->limit = out->len; /* marks a failure */
    buf_free(&block);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static struct rpc_filter_stream *stream_find(const struct rpc_filter *s, uint32_t id)
{
    uint32_t low = 0, high = s->n_streams;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (s->streams[middle].id == id)
            return &s->streams[middle];
        if (s->streams[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void stream_end(struct rpc_filter *s, uint32_t id)
{
    struct rpc_filter_stream *stream = stream_find(s, id);
    if (stream)
        VEC_REMOVE(s->streams, s->n_streams, stream - s->streams);
}

/* Notes that one side of the call has sent its last frame. */
static void stream_half_ends(struct rpc_filter *s, uint32_t id, bool client)
{
    struct rpc_filter_stream *stream = stream_find(s, id);
    if (!stream)
        return;
    *(client ? &stream->sent : &stream->over) = true;
    if (stream->sent && stream->over)
        stream_end(s, id);
}

/* --- the client's frames ------------------------------------------------------------------------------------------ */

/* Called with a complete frame head. */
static titan_status client_frame_begin(struct rpc_filter *s, struct buf *to_server, struct titan_error *err)
{
    struct rpc_frames *f = &s->client;
    if (f->left > RPC_FRAME_MAX)
        return titan_fail(err, TITAN_ELIMIT, "a frame of %" PRIu32 " bytes; at most %d are allowed", f->left,
                          RPC_FRAME_MAX);
    if (f->block ? f->type != CONTINUATION || f->stream != f->block : f->type == CONTINUATION)
        return titan_fail(err, TITAN_EINVAL, "a frame of type %u where a header block goes on or does not", f->type);
    s->dropped = s->padded = false;
    if (f->type == DATA) {
        const struct rpc_filter_stream *stream = stream_find(s, f->stream);
        s->dropped = !stream || stream->sent || stream->over; /* gRPC would not take any byte of the frame */
        s->padded = f->flags & PADDED;
        s->content = s->padded ? 0 : f->left;
        if (s->padded && f->left == 0)
            return titan_fail(err, TITAN_EINVAL, "a frame has more padding than bytes");
    } else if (f->type == RST_STREAM) {
        stream_end(s, f->stream);
    } else if (f->type == HEADERS) {
        s->block_bytes = s->block_frames = 0;
        if (f->stream == 0 || f->stream % 2 == 0)
            return titan_fail(err, TITAN_EINVAL, "headers of stream %" PRIu32, f->stream);
        if (f->stream > s->last_stream) {
            if (s->n_streams >= s->limits.streams_max)
                return titan_fail(err, TITAN_ELIMIT, "more than %" PRIu32 " calls at a time", s->limits.streams_max);
            if (!VEC_PUSH(s->streams, s->n_streams, s->cap_streams, (struct rpc_filter_stream){.id = f->stream}))
                return titan_fail(err, TITAN_ENOMEM, "there is no memory for another call");
            s->last_stream = f->stream;
        }
        if (f->flags & END_STREAM)
            stream_half_ends(s, f->stream, true);
    }
    if (f->type == HEADERS || f->type == CONTINUATION) {
        s->block_bytes += f->left;
        if (s->block_bytes > s->limits.header_max || ++s->block_frames > BLOCK_FRAMES_MAX)
            return titan_fail(err, TITAN_ELIMIT, "a header block of more than %" PRIu32 " bytes or %d frames",
                              s->limits.header_max, BLOCK_FRAMES_MAX);
        f->block = f->flags & END_HEADERS ? 0 : f->stream;
    }
    if (!s->dropped)
        buf_put(to_server, (const char *)f->head, sizeof(f->head));
    return TITAN_OK;
}

/* Looks at the messages in part of a DATA frame. */
static titan_status data_check(struct rpc_filter *s, const uint8_t *bytes, size_t n, struct titan_error *err)
{
    if (s->padded) {
        s->padded = false;
        if (bytes[0] >= s->client.left)
            return titan_fail(err, TITAN_EINVAL, "a frame has more padding than bytes");
        s->content = s->client.left - 1 - bytes[0];
        bytes++;
        n--;
    }
    n = MIN(n, s->content);
    s->content -= (uint32_t)n;
    struct rpc_filter_stream *stream = stream_find(s, s->client.stream);
    for (size_t k; stream && !s->refusing && n > 0; bytes += k, n -= k) {
        k = MIN(n, stream->left);
        if (k > 0) {
            stream->left -= (uint32_t)k;
            continue;
        }
        k = MIN(n, sizeof(stream->prefix) - stream->n_prefix);
        memcpy(stream->prefix + stream->n_prefix, bytes, k);
        stream->n_prefix += (uint8_t)k;
        if (stream->n_prefix == sizeof(stream->prefix)) {
            stream->n_prefix = 0;
            stream->left = stream->announced = be32(stream->prefix + 1);
            s->refusing = stream->announced > s->limits.message_max;
        }
    }
    return TITAN_OK;
}

/* Takes the missing bytes of the head from n bytes; returns how many it took. With the last of them, it sets left,
 * type, flags and stream from the head. */
static size_t head_take(struct rpc_frames *f, const uint8_t *bytes, size_t n)
{
    const size_t k = MIN(n, (size_t)(RPC_FRAME_HEAD - f->n_head));
    memcpy(f->head + f->n_head, bytes, k);
    f->n_head += (uint8_t)k;
    if (f->n_head == RPC_FRAME_HEAD) {
        f->left = be32(f->head) >> 8;
        f->type = f->head[3];
        f->flags = f->head[4];
        f->stream = be32(f->head + 5) & INT32_MAX;
    }
    return k;
}

/* Writes pending replies between two frames of the server. */
static void replies_put(struct rpc_filter *s, struct buf *to_client)
{
    if (s->server.n_head > 0 || s->server.block)
        return;
    if (s->credit >= CREDIT_EACH) {
        put_number_frame(&s->replies, WINDOW_UPDATE, 0, s->credit);
        s->credit = 0;
    }
    if (buf_failed(&s->replies))
        to_client->limit = to_client->len;
    buf_put(to_client, s->replies.data, s->replies.len);
    buf_clear(&s->replies);
}

static titan_status client_pass(struct rpc_filter *s, const uint8_t *bytes, size_t n, struct buf *to_server,
                                struct titan_error *err)
{
    struct rpc_frames *f = &s->client;
    const size_t first = MIN(n, (size_t)(PREFACE - s->n_preface));
    if (memcmp(bytes, preface + s->n_preface, first) != 0)
        return titan_fail(err, TITAN_EINVAL, "bytes that are not HTTP/2");
    buf_put(to_server, (const char *)bytes, first);
    s->n_preface += (uint8_t)first;
    for (size_t at = first; at < n;) {
        size_t k;
        if (f->n_head < RPC_FRAME_HEAD) {
            k = head_take(f, bytes + at, n - at);
            if (f->n_head == RPC_FRAME_HEAD)
                TRY(client_frame_begin(s, to_server, err));
        } else {
            k = MIN(n - at, f->left);
            if (s->dropped)
                s->credit += (uint32_t)k;
            else if (f->type == DATA)
                TRY(data_check(s, bytes + at, k, err));
            if (!s->dropped)
                buf_put(to_server, (const char *)bytes + at, k);
            f->left -= (uint32_t)k;
        }
        at += k;
        if (f->n_head < RPC_FRAME_HEAD || f->left > 0)
            continue;

        /* The frame is whole. */
        const struct rpc_filter_stream *stream = s->refusing ? stream_find(s, f->stream) : NULL;
        if (stream && !stream->over) { /* gRPC may have ended the call meanwhile */
            put_number_frame(to_server, RST_STREAM, f->stream, CANCEL);
            put_refusal(&s->replies, s, stream);
            stream_end(s, f->stream);
        }
        if (f->type == DATA && (f->flags & END_STREAM))
            stream_half_ends(s, f->stream, true);
        s->refusing = false;
        s->begun = true;
        f->n_head = 0;
    }
    return TITAN_OK;
}

titan_status rpc_filter_client(struct rpc_filter *s, const uint8_t *bytes, size_t n, struct buf *to_server,
                               struct buf *to_client, struct titan_error *err)
{
    titan_status status = client_pass(s, bytes, n, to_server, err);
    if (status != TITAN_OK && s->n_preface == PREFACE) {
        put_head(&s->replies, 8 + strlen(err->msg), GOAWAY, 0, 0);
        put_be32(&s->replies, s->last_stream);
        put_be32(&s->replies, ENHANCE_YOUR_CALM);
        buf_puts(&s->replies, err->msg);
    }
    replies_put(s, to_client);
    if (status == TITAN_OK && (buf_failed(to_server) || buf_failed(to_client)))
        status = titan_fail(err, TITAN_ENOMEM, "there is no memory for what has come");
    return status;
}

/* --- the server's frames ------------------------------------------------------------------------------------------ */

/* Drops header blocks of a call that is over for the client. gRPC may write a second end of a refused call: CANCELLED
 * when a status meets the call's reset. A dropped block is safe, because gRPC's blocks never refer to earlier blocks
 * (server.c). DATA passes, because it counts against windows. */
titan_status rpc_filter_server(struct rpc_filter *s, const uint8_t *bytes, size_t n, struct buf *to_client)
{
    struct rpc_frames *f = &s->server;
    for (size_t at = 0, k; at < n; at += k) {
        replies_put(s, to_client);
        if (f->n_head < RPC_FRAME_HEAD) {
            k = head_take(f, bytes + at, n - at);
            if (f->n_head < RPC_FRAME_HEAD)
                continue;
            struct rpc_filter_stream *stream = stream_find(s, f->stream);
            if (f->type != CONTINUATION) /* a CONTINUATION goes where its header block went */
                s->unwanted = (f->type == HEADERS && (!stream || stream->over)) || (f->type == RST_STREAM && !stream);
            if (f->type == HEADERS && stream)
                stream->answered = true;
            if (f->type == HEADERS || f->type == CONTINUATION)
                f->block = f->flags & END_HEADERS ? 0 : f->stream;
            if (f->type == RST_STREAM)
                stream_end(s, f->stream); /* later frames of the client for this call are dropped */
            else if ((f->type == HEADERS || f->type == DATA) && (f->flags & END_STREAM))
                stream_half_ends(s, f->stream, false); /* dropped, too: gRPC resets the call, and the client stops */
            if (!s->unwanted)
                buf_put(to_client, (const char *)f->head, sizeof(f->head));
        } else {
            k = MIN(n - at, f->left);
            f->left -= (uint32_t)k;
            if (!s->unwanted)
                buf_put(to_client, (const char *)bytes + at, k);
        }
        if (f->left == 0)
            f->n_head = 0;
    }
    replies_put(s, to_client);
    return buf_failed(to_client) ? TITAN_ENOMEM : TITAN_OK;
}

void rpc_filter_free(struct rpc_filter *s)
{
    buf_free(&s->replies);
    free(s->streams);
    *s = (struct rpc_filter){0};
}
