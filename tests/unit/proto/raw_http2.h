/* SPDX-License-Identifier: Apache-2.0 */
/* raw_http2.h - the bytes of HTTP/2 frames, for clients that do what no gRPC library does. */
#ifndef TITAN_TESTS_RAW_HTTP2_H
#define TITAN_TESTS_RAW_HTTP2_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    RAW_DATA = 0,
    RAW_HEADERS = 1,
    RAW_RST = 3,
    RAW_SETTINGS = 4,
    RAW_GOAWAY = 7,
    RAW_WINDOW = 8,
    RAW_CONTINUATION = 9
};
enum { RAW_END_STREAM = 1, RAW_END_HEADERS = 4 };

struct raw {
    uint8_t bytes[4096];
    size_t len;
};

static inline void raw_put(struct raw *raw, const void *bytes, size_t n)
{
    memcpy(raw->bytes + raw->len, bytes, n);
    raw->len += n;
}

/* The head of a frame of n bytes. */
static inline void raw_frame(struct raw *raw, uint32_t n, uint8_t type, uint8_t flags, uint32_t stream)
{
    const uint8_t head[] = {
        (uint8_t)(n >> 16),      (uint8_t)(n >> 8),      (uint8_t)n,     type, flags, (uint8_t)(stream >> 24),
        (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    raw_put(raw, head, sizeof(head));
}

static inline void raw_preface(struct raw *raw)
{
    raw_put(raw, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    raw_frame(raw, 0, RAW_SETTINGS, 0, 0);
}

static inline void raw_text(struct raw *raw, const char *text)
{
    uint8_t len = (uint8_t)strlen(text); /* below 127: one byte, not Huffman-coded */
    raw_put(raw, &len, 1);
    raw_put(raw, text, len);
}

/* The header block of a gRPC call. */
static inline void raw_headers(struct raw *raw, const char *path)
{
    raw_put(raw, "\x83\x86\x04", 3); /* POST, http, :path */
    raw_text(raw, path);
    raw_put(raw, "\x01", 1); /* :authority */
    raw_text(raw, "titan");
    raw_put(raw, "\x0f\x10", 2); /* content-type */
    raw_text(raw, "application/grpc");
    raw_put(raw, "\x00", 1);
    raw_text(raw, "te");
    raw_text(raw, "trailers");
}

/* A whole unary call on that stream. */
static inline void raw_call(struct raw *raw, uint32_t stream, const char *path, const void *message, uint32_t n)
{
    struct raw block = {.len = 0};
    raw_headers(&block, path);
    raw_frame(raw, (uint32_t)block.len, RAW_HEADERS, RAW_END_HEADERS, stream);
    raw_put(raw, block.bytes, block.len);
    raw_frame(raw, n + 5, RAW_DATA, RAW_END_STREAM, stream);
    const uint8_t head[] = {0, (uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
    raw_put(raw, head, sizeof(head));
    raw_put(raw, message, n);
}

static inline int raw_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static inline bool raw_send(int fd, const struct raw *raw)
{
    for (size_t at = 0; at < raw->len;) {
        ssize_t n = send(fd, raw->bytes + at, raw->len - at, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

static inline bool raw_read(int fd, void *to, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(fd, (uint8_t *)to + at, n - at, 0);
        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

/* Wait for a frame of that type; false when the connection ends before it. Its stream comes back. */
static inline bool raw_await(int fd, uint8_t type, uint32_t *stream)
{
    for (;;) {
        uint8_t head[9], body[65536];
        if (!raw_read(fd, head, sizeof(head)))
            return false;
        size_t n = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        if (n > sizeof(body) || !raw_read(fd, body, n))
            return false;
        if (stream)
            *stream = (uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
        if (head[3] == type)
            return true;
    }
}

#endif
