/* SPDX-License-Identifier: Apache-2.0 */
/* test_filter.c - what of a client's HTTP/2 goes on to gRPC. Each case runs in one piece and byte for byte: both give
 * the same bytes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>

#include "proto/rpc/filter.h"
#include "tests/unit/proto/raw_http2.h"

enum { MESSAGE_MAX = 1000, HEADER_MAX = 2000, STREAMS_MAX = 4, RAW_PADDED = 8 };

/* What has come and gone. */
struct run {
    struct rpc_filter filter;
    struct buf to_server, to_client;
    titan_status status;
    struct titan_error err;
    bool bytewise;
};

static void run_begin(struct run *r, bool bytewise)
{
    *r = (struct run){.filter.limits = {MESSAGE_MAX, HEADER_MAX, STREAMS_MAX}, .bytewise = bytewise};
}

static void run_end(struct run *r)
{
    rpc_filter_free(&r->filter);
    buf_free(&r->to_server);
    buf_free(&r->to_client);
}

static void client(struct run *r, const struct raw *raw)
{
    const size_t step = r->bytewise ? 1 : raw->len;
    for (size_t at = 0; at < raw->len && r->status == TITAN_OK; at += step)
        r->status = rpc_filter_client(&r->filter, raw->bytes + at, step, &r->to_server, &r->to_client, &r->err);
}

static void server(struct run *r, const struct raw *raw)
{
    const size_t step = r->bytewise ? 1 : raw->len;
    for (size_t at = 0; at < raw->len; at += step)
        assert_int_equal(rpc_filter_server(&r->filter, raw->bytes + at, step, &r->to_client), TITAN_OK);
}

static void got(const struct buf *b, const struct raw *wanted)
{
    assert_int_equal(b->len, wanted->len);
    assert_memory_equal(b->data, wanted->bytes, wanted->len);
}

static void number(struct raw *raw, uint8_t type, uint32_t stream, uint32_t x)
{
    const uint8_t bytes[] = {(uint8_t)(x >> 24), (uint8_t)(x >> 16), (uint8_t)(x >> 8), (uint8_t)x};
    raw_frame(raw, 4, type, 0, stream);
    raw_put(raw, bytes, 4);
}

/* Of a message: its five bytes and n more, as much of both as is said. */
static void message(struct raw *raw, uint32_t announced, uint32_t n)
{
    static const uint8_t zeros[4096];
    const uint8_t head[] = {0, (uint8_t)(announced >> 24), (uint8_t)(announced >> 16), (uint8_t)(announced >> 8),
                            (uint8_t)announced};
    raw_put(raw, head, 5);
    raw_put(raw, zeros, n);
}

static void headers(struct raw *raw, uint8_t flags, uint32_t stream)
{
    raw_frame(raw, 3, RAW_HEADERS, flags, stream);
    raw_put(raw, "\x83\x86\x84", 3);
}

static void literal(struct raw *raw, const char *name, const char *value)
{
    raw_put(raw, "\x10", 1);
    raw_text(raw, name);
    raw_text(raw, value);
}

static void refusal(struct raw *raw, uint32_t stream, bool answered, const char *text)
{
    struct raw block = {.len = 0};
    if (!answered) {
        raw_put(&block, "\x88", 1);
        literal(&block, "content-type", "application/grpc");
    }
    literal(&block, "grpc-status", "8");
    literal(&block, "grpc-message", text);
    literal(&block, "titan-status", "ELIMIT");
    raw_frame(raw, (uint32_t)block.len, RAW_HEADERS, RAW_END_STREAM | RAW_END_HEADERS, stream);
    raw_put(raw, block.bytes, block.len);
    number(raw, RAW_RST, stream, 0);
}

#define EACH_WAY(bytewise) for (int bytewise = 0; bytewise < 2; bytewise++)

static void test_passes(void **state)
{
    (void)state;
    EACH_WAY(bytewise)
    {
        struct run r;
        struct raw in = {.len = 0}, answer = {.len = 0};
        run_begin(&r, bytewise);
        raw_preface(&in);
        raw_call(&in, 1, "/a/b", "0123456789", 10);
        headers(&in, 0, 3); /* a block in two frames, messages over several frames and several in one */
        raw_frame(&in, 1, RAW_CONTINUATION, RAW_END_HEADERS, 3);
        raw_put(&in, "\x84", 1);
        raw_frame(&in, 5 + 7 + 3, RAW_DATA, 0, 3);
        message(&in, 7, 7);
        message(&in, 0, 0);
        in.len -= 2; /* the rest of the second's five bytes is in the next frame */
        raw_frame(&in, 2 + 5 + MESSAGE_MAX, RAW_DATA, RAW_END_STREAM, 3);
        raw_put(&in, "\0\0", 2);
        message(&in, MESSAGE_MAX, MESSAGE_MAX);
        client(&r, &in);
        assert_int_equal(r.status, TITAN_OK);
        got(&r.to_server, &in);
        headers(&answer, RAW_END_HEADERS, 1);
        raw_frame(&answer, 3, RAW_DATA, 0, 1);
        raw_put(&answer, "abc", 3);
        server(&r, &answer);
        got(&r.to_client, &answer);
        run_end(&r);
    }
}

static void test_refused(void **state)
{
    (void)state;
    EACH_WAY(bytewise)
    {
        struct run r;
        struct raw in = {.len = 0}, out = {.len = 0}, back = {.len = 0};
        run_begin(&r, bytewise);
        raw_preface(&in);
        headers(&in, RAW_END_HEADERS, 1);
        headers(&in, RAW_END_HEADERS, 3);
        raw_frame(&in, 5 + 2 + 5 + 3, RAW_DATA, 0, 1); /* the second message is too long by one byte */
        message(&in, 2, 2);
        message(&in, MESSAGE_MAX + 1, 3);
        out = in;
        number(&out, RAW_RST, 1, 8);
        refusal(&back, 1, false, "a message of 1001 bytes; at most 1000 are taken here");
        raw_frame(&in, 100, RAW_DATA, RAW_PADDED, 1); /* dropped; the client's other call goes on */
        message(&in, 0xffffffff, 95);
        struct raw rest = {.len = 0};
        raw_frame(&rest, 5 + MESSAGE_MAX, RAW_DATA, RAW_END_STREAM, 3);
        message(&rest, MESSAGE_MAX, MESSAGE_MAX);
        client(&r, &in);
        client(&r, &rest);
        raw_put(&out, rest.bytes, rest.len);
        assert_int_equal(r.status, TITAN_OK);
        got(&r.to_server, &out);
        got(&r.to_client, &back);
        run_end(&r);
    }
}

static void call_too_long(struct raw *in, uint32_t stream, uint8_t flags)
{
    headers(in, RAW_END_HEADERS, stream);
    raw_frame(in, 5, RAW_DATA, flags, stream);
    message(in, MESSAGE_MAX + 1, 0);
}

/* A client is told one end of a call: what gRPC says of one that was refused goes no further. */
static void test_told_once(void **state)
{
    (void)state;
    EACH_WAY(bytewise)
    {
        for (int way = 0; way < 3; way++) {
            struct run r;
            struct raw in = {.len = 0}, trailers = {.len = 0}, late = {.len = 0}, back = {.len = 0};
            run_begin(&r, bytewise);
            raw_preface(&in);
            call_too_long(&in, 1, way == 1 ? RAW_END_STREAM : 0);
            headers(&in, RAW_END_HEADERS, 3);
            if (way == 2)
                headers(&trailers, RAW_END_HEADERS | RAW_END_STREAM, 1);
            client(&r, &in);
            client(&r, &trailers);
            refusal(&back, 1, false, "a message of 1001 bytes; at most 1000 are taken here");
            headers(&late, 0, 1);
            raw_frame(&late, 1, RAW_CONTINUATION, RAW_END_HEADERS, 1);
            raw_put(&late, "\x84", 1);
            headers(&late, RAW_END_HEADERS | RAW_END_STREAM, 1);
            number(&late, RAW_RST, 1, 0);
            server(&r, &late);
            got(&r.to_client, &back);
            assert_int_equal(r.filter.n_streams, 1);
            struct raw other = {.len = 0};
            headers(&other, RAW_END_HEADERS, 3);
            server(&r, &other);
            raw_put(&back, other.bytes, other.len);
            got(&r.to_client, &back);
            run_end(&r);
        }
    }
}

/* Refused calls are none of those that are open, and however late gRPC ends them, the client hears of none again. */
static void test_many_refused(void **state)
{
    (void)state;
    enum { CALLS = 2000 };
    struct run r;
    struct raw in = {.len = 0};
    run_begin(&r, false);
    raw_preface(&in);
    client(&r, &in);
    for (uint32_t i = 0; i < CALLS; i++) {
        struct raw call = {.len = 0};
        call_too_long(&call, 2 * i + 1, 0);
        client(&r, &call);
        assert_int_equal(r.status, TITAN_OK);
        assert_int_equal(r.filter.n_streams, 0);
    }
    const size_t told = r.to_client.len;
    for (uint32_t i = 0; i < CALLS; i++) {
        struct raw late = {.len = 0};
        headers(&late, RAW_END_HEADERS | RAW_END_STREAM, 2 * i + 1);
        number(&late, RAW_RST, 2 * i + 1, 0);
        server(&r, &late);
    }
    assert_int_equal(r.to_client.len, told);
    run_end(&r);
}

/* A call that the client has sent in whole is open until the server has answered in whole. */
static void test_sent(void **state)
{
    (void)state;
    EACH_WAY(bytewise)
    {
        for (int way = 0; way < 3; way++) {
            struct run r;
            struct raw in = {.len = 0}, more = {.len = 0}, out, answer = {.len = 0}, end = {.len = 0},
                       late = {.len = 0};
            run_begin(&r, bytewise);
            raw_preface(&in);
            headers(&in, RAW_END_HEADERS | (way == 0 ? RAW_END_STREAM : 0), 1);
            if (way == 1)
                raw_frame(&in, 0, RAW_DATA, RAW_END_STREAM, 1);
            if (way == 2)
                headers(&in, RAW_END_HEADERS | RAW_END_STREAM, 1); /* trailers */
            out = in;
            client(&r, &in);
            raw_frame(&more, 5, RAW_DATA, 0, 1); /* dropped */
            message(&more, 5000, 0);
            client(&r, &more);
            got(&r.to_server, &out);
            assert_int_equal(r.filter.n_streams, 1);
            headers(&answer, RAW_END_HEADERS, 1);
            server(&r, &answer);
            got(&r.to_client, &answer);
            assert_int_equal(r.filter.n_streams, 1);
            headers(&end, RAW_END_HEADERS | RAW_END_STREAM, 1);
            server(&r, &end);
            raw_put(&answer, end.bytes, end.len);
            got(&r.to_client, &answer);
            assert_int_equal(r.filter.n_streams, 0);
            headers(&late, RAW_END_HEADERS | RAW_END_STREAM, 1);
            server(&r, &late);
            got(&r.to_client, &answer);
            run_end(&r);
        }
    }
}

/* What is dropped counts against the client's window, which gRPC does not know: it is given back, in large pieces. */
static void test_credit(void **state)
{
    (void)state;
    EACH_WAY(bytewise)
    {
        struct run r;
        struct raw in = {.len = 0}, back = {.len = 0};
        run_begin(&r, bytewise);
        raw_preface(&in);
        headers(&in, RAW_END_HEADERS, 1);
        raw_frame(&in, 5, RAW_DATA, 0, 1);
        message(&in, 1 << 30, 0);
        client(&r, &in);
        refusal(&back, 1, false, "a message of 1073741824 bytes; at most 1000 are taken here");
        got(&r.to_client, &back);
        for (int i = 0; i < 8; i++) {
            struct raw more = {.len = 0};
            raw_frame(&more, 2048, RAW_DATA, 0, 1);
            message(&more, 0, 2043);
            got(&r.to_client, &back);
            client(&r, &more);
        }
        number(&back, RAW_WINDOW, 0, 16384);
        assert_int_equal(r.status, TITAN_OK);
        got(&r.to_client, &back);
        run_end(&r);
    }
}

/* In the middle of a frame or a header block of the server a refusal waits. An answer that has begun ends without
 * :status. */
static void test_boundary(void **state)
{
    (void)state;
    EACH_WAY(bytewise)
    {
        struct run r;
        struct raw in = {.len = 0}, begun = {.len = 0}, rest = {.len = 0}, back;
        run_begin(&r, bytewise);
        raw_preface(&in);
        headers(&in, RAW_END_HEADERS, 1);
        headers(&in, RAW_END_HEADERS, 3);
        client(&r, &in);
        headers(&begun, RAW_END_HEADERS, 1);
        raw_frame(&begun, 6, RAW_DATA, 0, 1);
        raw_put(&begun, "abc", 3);
        server(&r, &begun);
        struct raw long_one = {.len = 0}, other = {.len = 0};
        raw_frame(&long_one, 5, RAW_DATA, 0, 1);
        message(&long_one, 1001, 0);
        client(&r, &long_one);
        got(&r.to_client, &begun);
        raw_put(&rest, "def", 3);
        server(&r, &rest);
        back = begun;
        raw_put(&back, "def", 3);
        refusal(&back, 1, true, "a message of 1001 bytes; at most 1000 are taken here");
        got(&r.to_client, &back);

        struct raw block = {.len = 0}, end = {.len = 0};
        headers(&block, 0, 3);
        server(&r, &block);
        raw_frame(&other, 5, RAW_DATA, 0, 3);
        message(&other, 1001, 0);
        client(&r, &other);
        raw_put(&back, block.bytes, block.len);
        got(&r.to_client, &back);
        raw_frame(&end, 1, RAW_CONTINUATION, RAW_END_HEADERS, 3);
        raw_put(&end, "\x84", 1);
        server(&r, &end);
        raw_put(&back, end.bytes, end.len);
        refusal(&back, 3, true, "a message of 1001 bytes; at most 1000 are taken here");
        got(&r.to_client, &back);
        run_end(&r);
    }
}

/* gRPC ends a call before its client has: the reset behind it tells the client to stop, and no second end follows. */
static void test_reset_behind_end(void **state)
{
    (void)state;
    EACH_WAY(bytewise)
    {
        struct run r;
        struct raw in = {.len = 0}, end = {.len = 0}, reset = {.len = 0}, late = {.len = 0};
        run_begin(&r, bytewise);
        raw_preface(&in);
        headers(&in, RAW_END_HEADERS, 1);
        client(&r, &in);
        headers(&end, RAW_END_HEADERS | RAW_END_STREAM, 1);
        server(&r, &end);
        assert_int_equal(r.filter.n_streams, 1);
        headers(&late, RAW_END_HEADERS | RAW_END_STREAM, 1);
        server(&r, &late);
        got(&r.to_client, &end);
        number(&reset, RAW_RST, 1, 0);
        server(&r, &reset);
        raw_put(&end, reset.bytes, reset.len);
        got(&r.to_client, &end);
        assert_int_equal(r.filter.n_streams, 0);
        server(&r, &reset);
        got(&r.to_client, &end);
        run_end(&r);
    }
}

/* Of a call that the server or the client has ended nothing more goes on. */
static void test_ended(void **state)
{
    (void)state;
    EACH_WAY(bytewise)
    {
        for (int way = 0; way < 3; way++) {
            struct run r;
            struct raw in = {.len = 0}, end = {.len = 0}, late = {.len = 0};
            run_begin(&r, bytewise);
            raw_preface(&in);
            headers(&in, RAW_END_HEADERS, 1);
            if (way == 0)
                number(&in, RAW_RST, 1, 8);
            client(&r, &in);
            if (way == 1)
                number(&end, RAW_RST, 1, 0);
            if (way == 2)
                headers(&end, RAW_END_HEADERS | RAW_END_STREAM, 1);
            server(&r, &end);
            raw_frame(&late, 5 + 10, RAW_DATA, RAW_END_STREAM, 1);
            message(&late, 5000, 10);
            client(&r, &late);
            assert_int_equal(r.status, TITAN_OK);
            assert_int_equal(r.filter.n_streams, 0);
            got(&r.to_server, &in);
            got(&r.to_client, &end);
            run_end(&r);
        }
    }
}

static void big_block(struct raw *in)
{
    static const uint8_t zeros[1000];
    headers(in, 0, 1);
    for (int i = 0; i < 2; i++) {
        raw_frame(in, 999, RAW_CONTINUATION, 0, 1);
        raw_put(in, zeros, 999);
    }
}

static void empty_frames(struct raw *in)
{
    headers(in, 0, 1);
    for (int i = 0; i < 64; i++)
        raw_frame(in, 0, RAW_CONTINUATION, 0, 1);
}

static void many_calls(struct raw *in)
{
    for (uint32_t i = 0; i <= STREAMS_MAX; i++)
        headers(in, RAW_END_HEADERS, 2 * i + 1);
}

static void long_frame(struct raw *in)
{
    raw_frame(in, 16385, RAW_DATA, 0, 1);
}

static void cut_block(struct raw *in)
{
    headers(in, 0, 1);
    raw_frame(in, 0, RAW_DATA, 0, 1);
}

static void other_block(struct raw *in)
{
    headers(in, 0, 1);
    raw_frame(in, 0, RAW_CONTINUATION, RAW_END_HEADERS, 3);
}

static void no_block(struct raw *in)
{
    raw_frame(in, 0, RAW_CONTINUATION, RAW_END_HEADERS, 1);
}

static void server_stream(struct raw *in)
{
    headers(in, RAW_END_HEADERS, 2);
}

static void all_padding(struct raw *in)
{
    headers(in, RAW_END_HEADERS, 1);
    raw_frame(in, 3, RAW_DATA, RAW_PADDED, 1);
    raw_put(in, "\x03\0\0", 3);
}

static void no_padding(struct raw *in)
{
    headers(in, RAW_END_HEADERS, 1);
    raw_frame(in, 0, RAW_DATA, RAW_PADDED, 1);
}

static void test_ends(void **state)
{
    (void)state;
    static const struct {
        void (*make)(struct raw *in);
        const char *why;
    } cases[] = {
        {big_block, "a header block of more than 2000 bytes or 64 frames"},
        {empty_frames, "a header block of more than 2000 bytes or 64 frames"},
        {many_calls, "more than 4 calls at a time"},
        {long_frame, "a frame of 16385 bytes; at most 16384 are allowed"},
        {cut_block, "a frame of type 0 where a header block goes on or does not"},
        {other_block, "a frame of type 9 where a header block goes on or does not"},
        {no_block, "a frame of type 9 where a header block goes on or does not"},
        {server_stream, "headers of stream 2"},
        {all_padding, "a frame has more padding than bytes"},
        {no_padding, "a frame has more padding than bytes"},
    };
    EACH_WAY(bytewise)
    {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct run r;
            struct raw in = {.len = 0};
            run_begin(&r, bytewise);
            raw_preface(&in);
            cases[i].make(&in);
            client(&r, &in);
            assert_int_not_equal(r.status, TITAN_OK);
            assert_string_equal(r.err.msg, cases[i].why);
            /* The client is told, by GOAWAY. */
            assert_true(r.to_client.len > 17);
            assert_int_equal(r.to_client.data[3], RAW_GOAWAY);
            assert_memory_equal(r.to_client.data + 17, cases[i].why, strlen(cases[i].why));
            run_end(&r);
        }
        struct run r;
        struct raw in = {.len = 0};
        run_begin(&r, bytewise);
        raw_put(&in, "GET / HTTP/1.1\r\n\r\n", 18);
        client(&r, &in);
        assert_int_equal(r.status, TITAN_EINVAL);
        assert_int_equal(r.to_client.len, 0);
        run_end(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_passes),    cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_told_once), cmocka_unit_test(test_many_refused),
                                       cmocka_unit_test(test_sent),      cmocka_unit_test(test_reset_behind_end),
                                       cmocka_unit_test(test_credit),    cmocka_unit_test(test_boundary),
                                       cmocka_unit_test(test_ended),     cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests_name("filter", tests, NULL, NULL);
}
