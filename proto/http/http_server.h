/* SPDX-License-Identifier: Apache-2.0 */
/* http_server.h - a small HTTP/1.1 server for pages that are read, on libmicrohttpd, driven from a libuv loop. An
 * answer is made at once, or later, or bit by bit: a stream.
 *
 * The loop watches libmicrohttpd's one epoll descriptor; every callback runs on the loop's thread. TLS ends in a thread
 * of proto/rpc/proxy.h, with the same files, ciphers and checks as gRPC's, and new files are taken at the next
 * connection. libmicrohttpd gets plain bytes over a socket pair: its own TLS (GnuTLS) would shake hands on the loop,
 * and could not take a new CA.
 *
 * Bounds: GET and HEAD only (else 405), no request bodies (else 400), heads of HTTP_HEAD_MAX bytes (libmicrohttpd
 * answers longer heads with a 4xx), connections in all and per address (IPv6: per /64), and times for a head, for a
 * client that takes an answer, and for a silent connection. A stream ends when its reader takes nothing for the time of
 * an answer. */
#ifndef TITAN_PROTO_HTTP_HTTP_SERVER_H
#define TITAN_PROTO_HTTP_HTTP_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/buf.h"
#include "base/error.h"
#include "proto/rpc/server.h" /* struct rpc_identity */

#define HTTP_HEAD_MAX 16384            /* memory of a connection: the head of a request, and that of its answer */
#define HTTP_QUEUE_MAX ((size_t)65536) /* a stream's queue has no room beyond */

struct http_server;
struct http_body; /* the content of an answer, shared by the answers that send it */

struct http_request {
    const char *path; /* as it was sent, without the query */
    /* headers; NULL = not sent */
    const char *host, *accept, *authorization, *if_none_match, *last_event_id;
    const char *peer; /* for the log: "http:127.0.0.1:5000" */
    const struct rpc_identity *identity;
    void *of; /* the server's */
};
/* The fields of the query in order, percent-decoded. each returns false to stop. False: stopped, or a field is no UTF-8
 * without NUL. */
bool http_request_fields(const struct http_request *r, bool (*each)(const char *name, const char *value, void *data),
                         void *data);

struct http_exchange; /* a request whose answer comes later; valid until its ended() has returned */
struct http_answer {
    unsigned status;             /* 200, 403, ...; 401 names the scheme Bearer by itself */
    struct http_body *body;      /* a reference that the server takes; NULL = out of memory: 500 */
    struct http_exchange *later; /* http_answer_later() sets it; status and body do not count then */
};
struct http_later {
    /* The answer is out, or the client is gone, or too slow. Exactly once. */
    void (*ended)(void *data);
    /* A stream whose queue was full has room again. NULL: nobody asks. */
    void (*drained)(void *data);
};
/* For options.answer: the answer comes by http_exchange_answer() or http_exchange_stream(), within options.send_ms.
 * They may be called before the return, too. later outlives the exchange. NULL: out of memory. */
struct http_exchange *http_answer_later(const struct http_request *r, struct http_answer *a,
                                        const struct http_later *later, void *data);
/* Once. Takes a reference; body NULL: out of memory: 500. ended() comes later. */
void http_exchange_answer(struct http_exchange *x, unsigned status, struct http_body *body);
/* Status 200; the content follows with http_exchange_write(). False: out of memory; answer otherwise. */
bool http_exchange_stream(struct http_exchange *x, const char *type);
/* Adds to the stream's queue. False: out of memory, the client loses its stream. */
bool http_exchange_write(struct http_exchange *x, const char *text, size_t len);
/* Does the queue take more? False: drained() comes later. */
bool http_exchange_has_room(struct http_exchange *x);
void http_exchange_end(struct http_exchange *x); /* behind what is queued */

struct http_server_options {
    uint32_t max_connections;      /* 0 = 64 */
    uint32_t max_peer_connections; /* of one address; 0 = 16 */
    uint32_t head_ms;              /* from the connection to the end of the first head; 0 = 10 s */
    uint32_t send_ms;              /* for an answer; 0 = 30 s */
    uint32_t idle_ms;              /* from an answer to the end of the next head; 0 = 2 min */
    uint32_t look_ms;              /* interval of looks for clients that left while their answers wait; 0 = 5 s */
    void (*answer)(const struct http_request *r, struct http_answer *ret, void *data);
    void *data;
};

/* Numbers since the start. */
struct http_counters {
    uint64_t connections;  /* accepted */
    uint64_t beyond_limit; /* closed at once: too many in all, or of one address, or no descriptor or memory */
    uint64_t late;         /* closed: a time was over */
    uint64_t malformed;    /* closed without a request, or libmicrohttpd refused the request */
    uint64_t handshakes;   /* closed: TLS failed */
    uint32_t open;         /* now */
};

/* options are copied. */
titan_status http_server_open(uv_loop_t *loop, const struct http_server_options *options, struct http_server **ret,
                              struct titan_error *err) TITAN_MUST_USE;
/* Listens at HOST:PORT and takes connections from now on (port 0 = any; *ret_port gets the port). Once. tls NULL =
 * without. TITAN_EEXIST: the address is taken. */
titan_status http_server_listen(struct http_server *server, const char *address, const struct rpc_tls *tls,
                                int *ret_port, struct titan_error *err) TITAN_MUST_USE;
/* Closes all connections, then calls done on the loop; the server is gone then. */
void http_server_close(struct http_server *server, void (*done)(void *), void *data);
struct http_counters http_server_counters(const struct http_server *server);

/* Takes the text. type: "text/plain; charset=utf-8". NULL: out of memory, or the text has failed. */
struct http_body *http_body_new(struct buf *text, const char *type);
/* Of bytes that outlive it. */
struct http_body *http_body_static(const char *text, size_t len, const char *type);
/* Sets a header instead of the one of that name. False: out of memory. */
bool http_body_header(struct http_body *body, const char *name, const char *value) TITAN_MUST_USE;
struct http_body *http_body_ref(struct http_body *body); /* for another answer with the same text */
void http_body_unref(struct http_body *body);            /* NULL is fine */

#endif
