/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server without TLS: what it answers, and how it bounds clients. The clients are on the loop's own thread. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "proto/http/http_server.h"
#include "support/patience.h"

#define GET "GET /page HTTP/1.1\r\nHost: h\r\n\r\n"
#define LONG_BYTES ((size_t)32 << 20)

struct fixture {
    uv_loop_t loop;
    struct http_server *server;
    int port;
    unsigned asked;
    size_t bytes; /* of an answer */
    unsigned status;
    char path[64], accept[64], authorization[64];
    bool closed;
    bool later; /* answers come later */
    struct http_exchange *exchange;
    unsigned exchanges, drains;
    size_t refill;        /* bytes that a drained stream gets */
    char fields[128];     /* "name=value;" of the query */
    unsigned fields_most; /* so many are taken */
    bool fields_ok;
};

static void on_exchange_ended(void *data)
{
    struct fixture *f = data;
    assert_non_null(f->exchange);
    f->exchange = NULL;
    f->exchanges++;
}

static void fill(struct fixture *f, size_t bytes)
{
    char text[1024];
    memset(text, 'y', sizeof(text));
    for (size_t n; bytes > 0; bytes -= n) {
        n = MIN(bytes, sizeof(text));
        assert_true(http_exchange_write(f->exchange, text, n));
    }
}

static void on_exchange_drained(void *data)
{
    struct fixture *f = data;
    f->drains++;
    fill(f, f->refill);
}

static const struct http_later later = {on_exchange_ended, on_exchange_drained};

static bool on_field(const char *name, const char *value, void *data)
{
    struct fixture *f = data;
    const size_t len = strlen(f->fields);
    if (f->fields_most-- == 0)
        return false;
    (void)snprintf(f->fields + len, sizeof(f->fields) - len, "%s=%s;", name, value);
    return true;
}

static void answer(const struct http_request *r, struct http_answer *ret, void *data)
{
    struct fixture *f = data;
    struct buf text = BUF_INIT;
    f->asked++;
    (void)snprintf(f->path, sizeof(f->path), "%s", r->path);
    (void)snprintf(f->accept, sizeof(f->accept), "%s", r->accept ? r->accept : "-");
    (void)snprintf(f->authorization, sizeof(f->authorization), "%s", r->authorization ? r->authorization : "-");
    assert_int_equal(r->identity->kind, RPC_ID_NONE);
    assert_false(r->identity->secure);
    assert_memory_equal(r->peer, "http:127.0.0.1:", 15);
    f->fields[0] = '\0';
    f->fields_ok = http_request_fields(r, on_field, f);
    if (f->later) {
        f->exchange = http_answer_later(r, ret, &later, f);
        assert_non_null(f->exchange);
        return;
    }
    for (size_t i = 0; i < f->bytes; i++)
        buf_put(&text, "x", 1);
    ret->status = f->status;
    ret->body = http_body_new(&text, "text/plain");
}

static void open_server(struct fixture *f, struct http_server_options options)
{
    *f = (struct fixture){.status = 200, .bytes = 5, .fields_most = UINT32_MAX};
    options.answer = answer;
    options.data = f;
    assert_int_equal(uv_loop_init(&f->loop), 0);
    assert_int_equal(http_server_open(&f->loop, &options, &f->server, NULL), TITAN_OK);
    assert_int_equal(http_server_listen(f->server, "127.0.0.1:0", NULL, &f->port, NULL), TITAN_OK);
}

static void on_closed(void *data)
{
    ((struct fixture *)data)->closed = true;
}

static void close_server(struct fixture *f)
{
    http_server_close(f->server, on_closed, f);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_true(f->closed);
    assert_int_equal(uv_loop_close(&f->loop), 0);
}

static bool turn(struct fixture *f)
{
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    return true;
}

static int dial(const struct fixture *f, const char *text)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int small = 4096;
    assert_true(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    if (*text)
        assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    return fd;
}

/* Reads on; true: the server has closed. */
static bool ended(struct fixture *f, int fd, struct buf *in)
{
    char bytes[4096];
    ssize_t n;
    turn(f);
    while ((n = recv(fd, bytes, sizeof(bytes), 0)) > 0)
        buf_put(in, bytes, (size_t)n);
    return n == 0 || (errno != EAGAIN && errno != EINTR);
}

static bool has(struct fixture *f, int fd, struct buf *in, const char *text)
{
    return ended(f, fd, in) || (in->data && strstr(in->data, text));
}

static void test_pages(void **state)
{
    (void)state;
    struct fixture f;
    struct buf in = BUF_INIT;
    open_server(&f, (struct http_server_options){0});
    const int fd =
        dial(&f, "GET /a%2Fb/../c?x=1 HTTP/1.1\r\nHost: h\r\nAccept: text/plain\r\nAuthorization: Bearer t\r\n\r\n");
    AWAIT(has(&f, fd, &in, "xxxxx"));
    assert_non_null(strstr(in.data, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(in.data, "Content-Type: text/plain\r\n"));
    assert_non_null(strstr(in.data, "Content-Length: 5\r\n"));
    assert_string_equal(f.path, "/a%2Fb/../c"); /* nothing is a file, and nothing is decoded */
    assert_string_equal(f.accept, "text/plain");
    assert_string_equal(f.authorization, "Bearer t");

    buf_clear(&in); /* the connection goes on */
    f.status = 401;
    assert_int_equal(send(fd, GET, strlen(GET), MSG_NOSIGNAL), strlen(GET));
    AWAIT(has(&f, fd, &in, "xxxxx"));
    assert_non_null(strstr(in.data, "401 Unauthorized\r\n"));
    assert_non_null(strstr(in.data, "WWW-Authenticate: Bearer\r\n"));

    buf_clear(&in);
    f.status = 200;
    static const char head[] = "HEAD /page HTTP/1.0\r\n\r\n";
    assert_int_equal(send(fd, head, strlen(head), MSG_NOSIGNAL), strlen(head));
    AWAIT(ended(&f, fd, &in));
    assert_non_null(strstr(in.data, "Content-Length: 5\r\n"));
    assert_null(strstr(in.data, "xxxxx"));
    assert_int_equal(f.asked, 3);
    const struct http_counters n = http_server_counters(f.server);
    assert_int_equal(n.connections, 1);
    assert_int_equal(n.beyond_limit + n.late + n.malformed, 0);
    (void)close(fd);
    buf_free(&in);
    close_server(&f);
}

static void test_refused(void **state)
{
    (void)state;
    static char filler[65536];
    struct fixture f;
    char *head = malloc(sizeof(filler) + 64);
    memset(filler, 'a', sizeof(filler) - 1);
    (void)snprintf(head, sizeof(filler) + 64, "GET /page HTTP/1.1\r\nHost: h\r\nX: %s\r\n\r\n", filler);
    const struct {
        const char *text, *status;
        bool malformed;
    } cases[] = {
        {"POST /page HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 405 ", false},
        {"DELETE /page HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 405 ", false},
        {"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 405 ", false},
        {"GET /page HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 400 ", false},
        {"GET /page HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "HTTP/1.1 400 ",
         false},
        {head, "HTTP/1.1 431 ", true},
        {"GET /page HTTP/1.1\r\n\r\n", "HTTP/1.1 400 ", true}, /* no host */
        {"\x16\x03\x01\x02\r\n\r\n", "", true},                /* TLS, to a port without */
    };
    open_server(&f, (struct http_server_options){0});
    uint64_t malformed = 0;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf in = BUF_INIT;
        const int fd = dial(&f, cases[i].text);
        AWAIT(ended(&f, fd, &in));
        const char *said = in.data ? in.data : "";
        if (strncmp(said, cases[i].status, strlen(cases[i].status)) != 0)
            fail_msg("%zu: '%.40s' instead of %s", i, said, cases[i].status);
        (void)close(fd);
        buf_free(&in);
        malformed += cases[i].malformed;
        AWAIT(turn(&f) && http_server_counters(f.server).open == 0);
        assert_int_equal(http_server_counters(f.server).malformed, malformed);
    }
    assert_int_equal(f.asked, 0);
    free(head);
    close_server(&f);
}

static void test_limits(void **state)
{
    (void)state;
    struct fixture f;
    struct buf in = BUF_INIT;
    open_server(&f, (struct http_server_options){.max_connections = 8, .max_peer_connections = 3});
    int fds[3];
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        fds[i] = dial(&f, "");
    AWAIT(turn(&f) && http_server_counters(f.server).open == 3);
    const int more = dial(&f, "");
    AWAIT(ended(&f, more, &in));
    assert_int_equal(in.len, 0);
    assert_int_equal(http_server_counters(f.server).beyond_limit, 1);
    (void)close(more);
    (void)close(fds[0]);
    AWAIT(turn(&f) && http_server_counters(f.server).open == 2);
    fds[0] = dial(&f, GET); /* there is room again */
    AWAIT(has(&f, fds[0], &in, "xxxxx"));
    close_server(&f); /* with connections open */
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        (void)close(fds[i]);
    buf_free(&in);
}

static void test_late(void **state)
{
    (void)state;
    static const struct {
        struct http_server_options options;
        const char *text;
        size_t bytes;
    } cases[] = {
        {{.head_ms = 1}, "", 5},
        {{.head_ms = 1}, "GET /page HTTP/1.1\r\nHo", 5},
        {{.idle_ms = 1}, GET, 5},
        {{.send_ms = 1}, GET, LONG_BYTES}, /* more than the sockets hold */
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        open_server(&f, cases[i].options);
        f.bytes = cases[i].bytes;
        const int fd = dial(&f, cases[i].text);
        AWAIT(turn(&f) && http_server_counters(f.server).late == 1); /* the client reads nothing */
        AWAIT(turn(&f) && http_server_counters(f.server).open == 0);
        assert_int_equal(http_server_counters(f.server).malformed, 0);
        (void)close(fd);
        close_server(&f);
    }
}

static void test_fields(void **state)
{
    (void)state;
    static const struct {
        const char *query, *fields;
        bool ok;
        unsigned most;
    } cases[] = {
        {"", "", true, 9},
        {"?", "", true, 9},
        {"?a=1&b=%41%26%3d+c&a=&d", "a=1;b=A&= c;a=;d=;", true, 9},
        {"?caf%C3%A9=%e2%82%ac", "caf\xc3\xa9=\xe2\x82\xac;", true, 9},
        {"?a=1&b=2", "a=1;", false, 1}, /* the caller has had enough */
        {"?a=%00", "", false, 9},
        {"?a=%", "", false, 9},
        {"?a=%4", "", false, 9},
        {"?a=%zz", "", false, 9},
        {"?a=%c0%80", "", false, 9}, /* no UTF-8 */
        {"?%ff=1", "", false, 9},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        struct buf in = BUF_INIT;
        char request[256];
        open_server(&f, (struct http_server_options){0});
        f.fields_most = cases[i].most;
        (void)snprintf(request, sizeof(request), "GET /page%s HTTP/1.1\r\nHost: h\r\n\r\n", cases[i].query);
        const int fd = dial(&f, request);
        AWAIT(has(&f, fd, &in, "xxxxx"));
        assert_string_equal(f.path, "/page");
        assert_string_equal(f.fields, cases[i].fields);
        assert_int_equal(f.fields_ok, cases[i].ok);
        (void)close(fd);
        buf_free(&in);
        close_server(&f);
    }
}

static bool asked(struct fixture *f)
{
    turn(f);
    return f->exchange != NULL;
}

static struct http_body *text_body(const char *content)
{
    struct buf text = BUF_INIT;
    buf_puts(&text, content);
    return http_body_new(&text, "text/plain");
}

static void test_later(void **state)
{
    (void)state;
    struct fixture f;
    struct buf in = BUF_INIT;
    open_server(&f, (struct http_server_options){0});
    f.later = true;
    const int fd = dial(&f, GET);
    for (unsigned i = 1; i <= 2; i++) { /* the connection goes on */
        AWAIT(asked(&f));
        assert_int_equal(in.len, 0);
        http_exchange_answer(f.exchange, 404, text_body("not here"));
        assert_non_null(f.exchange);
        AWAIT(has(&f, fd, &in, "not here") && f.exchanges == i);
        assert_non_null(strstr(in.data, "HTTP/1.1 404 "));
        buf_clear(&in);
        assert_int_equal(send(fd, GET, strlen(GET), MSG_NOSIGNAL), strlen(GET));
    }
    AWAIT(asked(&f));
    http_exchange_answer(f.exchange, 200, NULL); /* out of memory */
    AWAIT(has(&f, fd, &in, "no memory"));
    assert_non_null(strstr(in.data, "HTTP/1.1 500 "));
    assert_int_equal(send(fd, GET, strlen(GET), MSG_NOSIGNAL), strlen(GET));
    AWAIT(asked(&f));
    (void)close(fd);
    buf_free(&in);
    close_server(&f); /* with an answer that has not come */
    assert_int_equal(f.exchanges, 4);
}

/* An answer that does not come in time, and a client that leaves. */
static void test_later_ends(void **state)
{
    (void)state;
    struct fixture f;
    struct buf in = BUF_INIT;
    open_server(&f, (struct http_server_options){.send_ms = 1});
    f.later = true;
    const int late = dial(&f, GET);
    AWAIT(ended(&f, late, &in));
    assert_int_equal(in.len, 0);
    assert_int_equal(f.exchanges, 1);
    assert_int_equal(http_server_counters(f.server).late, 1);
    (void)close(late);
    close_server(&f);
}

static void test_stream(void **state)
{
    (void)state;
    struct fixture f;
    struct buf in = BUF_INIT;
    open_server(&f, (struct http_server_options){0});
    f.later = true;
    const int fd = dial(&f, GET);
    AWAIT(asked(&f));
    assert_true(http_exchange_stream(f.exchange, "text/event-stream"));
    assert_true(http_exchange_write(f.exchange, "first;", 6));
    AWAIT(has(&f, fd, &in, "first;"));
    assert_non_null(strstr(in.data, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(in.data, "Content-Type: text/event-stream\r\n"));
    assert_non_null(strstr(in.data, "Transfer-Encoding: chunked\r\n"));
    for (int i = 0; i < 5; i++) { /* it has been asleep */
        char text[16];
        (void)snprintf(text, sizeof(text), "more%d;", i);
        assert_true(http_exchange_write(f.exchange, text, strlen(text)));
        AWAIT(has(&f, fd, &in, text));
    }
    http_exchange_end(f.exchange);
    AWAIT(has(&f, fd, &in, "\r\n0\r\n") && f.exchanges == 1);
    buf_clear(&in); /* the connection goes on */
    f.later = false;
    assert_int_equal(send(fd, GET, strlen(GET), MSG_NOSIGNAL), strlen(GET));
    AWAIT(has(&f, fd, &in, "xxxxx"));
    (void)close(fd);
    buf_free(&in);
    close_server(&f);
}

static bool reads_enough(struct fixture *f, int fd, struct buf *in, size_t enough)
{
    return ended(f, fd, in) || in->len >= enough;
}

/* A stream waits for its reader, and goes on behind him. One that does not read at all loses it. */
static void test_stream_room(void **state)
{
    (void)state;
    struct fixture f;
    struct buf in = BUF_INIT;
    open_server(&f, (struct http_server_options){0});
    f.later = true;
    f.refill = HTTP_QUEUE_MAX;
    int fd = dial(&f, GET);
    AWAIT(asked(&f));
    assert_true(http_exchange_stream(f.exchange, "text/plain"));
    assert_true(http_exchange_has_room(f.exchange));
    fill(&f, HTTP_QUEUE_MAX - 1);
    assert_true(http_exchange_has_room(f.exchange));
    fill(&f, 1);
    assert_false(http_exchange_has_room(f.exchange));
    AWAIT(reads_enough(&f, fd, &in, HTTP_QUEUE_MAX + 1000));
    assert_int_equal(f.drains, 1);
    http_exchange_end(f.exchange);
    AWAIT(has(&f, fd, &in, "\r\n0\r\n"));
    assert_in_range(in.len, 2 * HTTP_QUEUE_MAX, 3 * HTTP_QUEUE_MAX);
    (void)close(fd);
    buf_free(&in);
    close_server(&f);

    open_server(&f, (struct http_server_options){.send_ms = 1});
    f.later = true;
    fd = dial(&f, GET);
    while (f.exchanges == 0) { /* more than the sockets hold, to one that reads nothing */
        turn(&f);
        if (f.exchange && f.asked == 1) {
            f.asked++;
            assert_true(http_exchange_stream(f.exchange, "text/plain"));
            fill(&f, LONG_BYTES);
        }
    }
    assert_int_equal(http_server_counters(f.server).late, 1);
    (void)close(fd);
    close_server(&f);
}

/* A client that leaves while its stream is silent is missed. */
static void test_stream_left(void **state)
{
    (void)state;
    struct fixture f;
    struct buf in = BUF_INIT;
    open_server(&f, (struct http_server_options){.look_ms = 1});
    f.later = true;
    const int fd = dial(&f, GET);
    AWAIT(asked(&f));
    assert_true(http_exchange_stream(f.exchange, "text/plain"));
    assert_true(http_exchange_write(f.exchange, "first;", 6));
    AWAIT(has(&f, fd, &in, "first;"));
    (void)close(fd);
    AWAIT(turn(&f) && f.exchanges == 1);
    AWAIT(turn(&f) && http_server_counters(f.server).open == 0);
    assert_int_equal(http_server_counters(f.server).late + http_server_counters(f.server).malformed, 0);
    buf_free(&in);
    close_server(&f);
}

static void test_headers(void **state)
{
    (void)state;
    struct http_body *body = http_body_static("text", 4, "text/plain");
    assert_non_null(body);
    assert_true(http_body_header(body, "Cache-Control", "no-cache")); /* instead of no-store */
    assert_true(http_body_header(body, "ETag", "\"1\""));
    http_body_unref(body);
}

static void test_bodies(void **state)
{
    (void)state;
    struct buf text = BUF_INIT, failed = {.limit = 1};
    buf_puts(&failed, "too long");
    assert_null(http_body_new(&failed, "text/plain"));
    struct http_body *body = http_body_new(&text, "text/plain"); /* an empty one */
    assert_non_null(body);
    assert_ptr_equal(http_body_ref(body), body);
    http_body_unref(body);
    http_body_unref(body);
    http_body_unref(NULL);
}

static void test_taken(void **state)
{
    (void)state;
    struct fixture f, g = {.port = 0};
    struct titan_error err = {0};
    char address[32];
    open_server(&f, (struct http_server_options){0});
    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", f.port);
    const struct http_server_options options = {.answer = answer, .data = &g};
    assert_int_equal(http_server_open(&f.loop, &options, &g.server, NULL), TITAN_OK);
    assert_int_equal(http_server_listen(g.server, address, NULL, NULL, &err), TITAN_EEXIST);
    assert_non_null(strstr(err.msg, address));
    http_server_close(g.server, on_closed, &g);
    AWAIT(turn(&f) && g.closed);
    close_server(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),   cmocka_unit_test(test_refused),     cmocka_unit_test(test_limits),
        cmocka_unit_test(test_late),    cmocka_unit_test(test_bodies),      cmocka_unit_test(test_taken),
        cmocka_unit_test(test_fields),  cmocka_unit_test(test_later),       cmocka_unit_test(test_later_ends),
        cmocka_unit_test(test_stream),  cmocka_unit_test(test_stream_room), cmocka_unit_test(test_stream_left),
        cmocka_unit_test(test_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
