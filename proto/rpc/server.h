/* SPDX-License-Identifier: Apache-2.0 */
/* server.h - a gRPC server on the gRPC C core, driven from a libuv loop.
 *
 * One completion-queue thread drains gRPC's events into a list and wakes the loop; every callback below runs on the
 * loop's thread. Requests are decoded (bounded) before the handler sees them; undecodable bytes are answered with
 * INVALID_ARGUMENT, unknown methods with UNIMPLEMENTED, without the handler. A message that is too long is answered
 * with RESOURCE_EXHAUSTED as soon as it announces its length, and is not read. grpc.health.v1 (Check, Watch) and
 * grpc.reflection (v1, v1alpha) are served by the server itself. */
#ifndef TITAN_PROTO_RPC_SERVER_H
#define TITAN_PROTO_RPC_SERVER_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/error.h"
#include "proto/rpc/tls.h"

struct rpc_server;
struct rpc_call; /* one call; valid until its on_close has returned */

/* What the transport has proved about the one that calls. */
enum rpc_id_kind {
    RPC_ID_NONE,  /* TCP without TLS, or TLS without a client certificate: nothing is known */
    RPC_ID_UID,   /* Unix socket: the uid of the process that has connected, as the kernel says */
    RPC_ID_CERT,  /* TLS: a certificate of our authority; name is its SPIFFE URI */
    RPC_ID_TOKEN, /* never by the transport: the authorizer has checked a bearer token */
};
struct rpc_identity {
    enum rpc_id_kind kind;
    bool secure; /* a Unix socket or TLS: no third party can read or change what is sent */
    uid_t uid;   /* (uid_t)-1 but for RPC_ID_UID */
    gid_t gid;   /* the user's first group */
    /* User name or "uid:N"; "spiffe://titan/node/NAME", ".../coordinator/ID", ".../user/NAME"; "anonymous". */
    char name[192];
    /* The life of the certificate or token, in ms since 1970; 0 = the identity has none that ends. */
    int64_t from_ms, until_ms;
    unsigned roles; /* of options.authorize, nothing to rpc/ */
};

struct rpc_method {
    const char *path; /* "/titan.v1.Titan/Submit" */
    const ProtobufCMessageDescriptor *request;
    /* The call's (first) message. Unary and server-streaming: called once. The request is freed after return. */
    void (*on_request)(struct rpc_call *call, const ProtobufCMessage *request, void *data);
    /* Client- and bidirectional streaming only (else NULL): every message, including the first; on_request is then
     * NULL. request NULL = the client has closed its side. */
    void (*on_message)(struct rpc_call *call, const ProtobufCMessage *request, void *data);
    /* The call is over: finished, cancelled, past its deadline or its peer is gone. Called exactly once for every
     * call that reached on_request/on_message. May be NULL. */
    void (*on_close)(struct rpc_call *call, bool cancelled, void *data);
    /* The stream's queue has room again after rpc_call_send said TITAN_EAGAIN. May be NULL. */
    void (*on_drain)(struct rpc_call *call, void *data);
    bool costly; /* taking a request is work: calls of other methods overtake it, so they answer fast under load */
    uint32_t max_queue_bytes; /* of an outgoing stream, beside max_queue: no more is taken then. 0 = no bound */
    unsigned needs;           /* what the caller must be; of options.authorize, nothing to rpc/ */
    uint32_t first_ms;        /* for the first message to come whole; 0 = options.request_ms */
};

struct rpc_server_options {
    uint32_t max_message_bytes;      /* 0 = 4 MiB */
    uint32_t max_concurrent_streams; /* per connection; 0 = 1024 */
    uint32_t max_queue;              /* messages queued per outgoing stream; 0 = 256 */
    uint32_t max_connections;        /* over Unix sockets in all, and over TCP in all; 0 = 4096 */
    uint32_t max_user_connections;   /* of one uid; 0 = 256. Root and the uid of this process are bound by neither */
    uint32_t max_users;              /* ... with connections at a time, beside those two; 0 = 512 */
    /* Over TCP from one address (of IPv6: from one /64), of each certificate or token that calls are let in with, and
     * of callers with neither: of those the oldest without a call ends for a new one. 0 = 256 */
    uint32_t max_peer_connections;
    /* Open calls of one uid, certificate or token; of an address, those without either. 0 = 4096. As above. */
    uint32_t max_user_calls;
    uint32_t max_own_calls;          /* ... of health and reflection, of one uid or address; 0 = 16. As above */
    uint32_t max_user_message_bytes; /* a message of another uid or over TCP; 0 = max_message_bytes */
    /* That gRPC may hold for one uid or address: messages that are not complete, what was not sent. Beyond it streams
     * are broken off. Of many addresses each has less: together four times as much; so with uids. 0 = 64 MiB */
    uint64_t memory_bytes;
    uint32_t request_ms;    /* for a request, or a stream's first message, to come whole; 0 = 30 s */
    uint32_t idle_ms;       /* a connection without a call is closed after it; 0 = 10 min */
    uint32_t tcp_idle_ms;   /* ... over TCP; 0 = 2 min */
    bool certificates_only; /* TLS clients without a certificate are turned away in the handshake */
    bool rests;             /* of many connections, polls are some ms apart: for callers that can wait so long */
    mode_t socket_mode;     /* of Unix sockets' files; 0 = 0600 */
    /* Asked for every call of the methods table before its message is read; data is the server's. What it does not
     * answer with TITAN_OK ends the call with err. NULL: every caller may call everything. */
    titan_status (*authorize)(struct rpc_call *call, const struct rpc_method *method, void *data,
                              struct titan_error *err);
    /* The same once the call's first message is there, before a handler sees it: a caller may have waited for long, and
     * lost the right meanwhile. NULL: every message may be. */
    titan_status (*check)(struct rpc_call *call, const struct rpc_method *method, const ProtobufCMessage *request,
                          void *data, struct titan_error *err);
    /* Of rpc_server_review: may this call, which was authorized, go on? NULL: yes. */
    titan_status (*review)(struct rpc_call *call, const struct rpc_method *method, void *data, struct titan_error *err);
    /* The same of a connection that proved this certificate. data: rpc_server_open's. NULL: yes. */
    bool (*review_connection)(const struct rpc_identity *identity, void *data);
};

/* Creates the server; no listener and no thread yet. methods: array of n, must outlive the server; data is handed to
 * every callback. descriptors: a serialized FileDescriptorSet for reflection (embedded at build time), copied. */
titan_status rpc_server_open(uv_loop_t *loop, const struct rpc_method *methods, size_t n, void *data,
                             const void *descriptors, size_t descriptors_bytes,
                             const struct rpc_server_options *options, struct rpc_server **ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* "unix:/run/titan/titan.sock" or "127.0.0.1:7070" (port 0 = any; *ret_port gets it, may be NULL). Before start only.
 * tls: for a TCP address, NULL = without. TITAN_EEXIST when the address is taken. A stale socket file without a
 * listener is replaced; a live one is not. */
titan_status rpc_server_listen(struct rpc_server *server, const char *address, const struct rpc_tls *tls, int *ret_port,
                               struct titan_error *err) TITAN_MUST_USE;
/* A socket that listens already, opened for the process by systemd: it stays open at shutdown, and so do
 * connections that wait in it. TCP is without TLS. Before start only; borrowed. */
titan_status rpc_server_adopt(struct rpc_server *server, int fd, struct titan_error *err) TITAN_MUST_USE;
titan_status rpc_server_start(struct rpc_server *server, struct titan_error *err) TITAN_MUST_USE;
/* grpc.health.v1: service "" and every served service. */
void rpc_server_set_serving(struct rpc_server *server, bool serving);
/* Rights have changed, or ended: options.review and review_connection are asked again. A call that may not go on ends
 * with the error, and what waits in its queue is dropped; a connection is cut within 2 s, for the last words to get
 * through. Calls that end anyway are left alone. */
void rpc_server_review(struct rpc_server *server);
/* Refuse new calls, let running ones end for grace_ms, cancel the rest, then call done (on the loop) exactly once.
 * The server may be freed from done. */
void rpc_server_shutdown(struct rpc_server *server, uint32_t grace_ms, void (*done)(void *), void *data);
/* What was refused since the start. */
struct rpc_refusals {
    uint64_t connections; /* beyond a limit, descriptors were short, or the proxy ended them */
    uint64_t calls;       /* beyond max_user_calls or max_own_calls */
};
struct rpc_refusals rpc_call_refusals(const struct rpc_call *call); /* by its server */
void rpc_server_free(struct rpc_server *server); /* after shutdown's done, or if never started; NULL is fine */

/* Answer a unary call: message and OK. The call is finished. */
void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply);
/* Append a message to the outgoing stream: packed at once, the message may be freed after. TITAN_EAGAIN: the queue is
 * full, nothing was taken, on_drain will say when to go on. TITAN_ECANCELLED: the call is already over. */
titan_status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message) TITAN_MUST_USE;
/* A message for several streams, packed once. */
struct rpc_packed;
struct rpc_packed *rpc_packed_new(const ProtobufCMessage *message); /* never NULL */
void rpc_packed_free(struct rpc_packed *packed);                    /* NULL is fine */
titan_status rpc_call_send_packed(struct rpc_call *call, const struct rpc_packed *packed) TITAN_MUST_USE;
/* End the call with OK (streams) or an error (any call). message may be NULL. */
void rpc_call_finish(struct rpc_call *call, titan_status status, const char *message);
void rpc_call_fail(struct rpc_call *call, const struct titan_error *err); /* status, "msg (hint)" */
/* The handler's own state on the call. */
void rpc_call_set_data(struct rpc_call *call, void *data);
void *rpc_call_data(const struct rpc_call *call);
/* Peer for the log ("unix:USER", "ipv4:127.0.0.1:5000"), borrowed until on_close. No identity. */
const char *rpc_call_peer(const struct rpc_call *call);
/* Never NULL; borrowed until on_close. */
const struct rpc_identity *rpc_call_identity(const struct rpc_call *call);
/* The caller's certificate was renewed over its connection: this and its other calls live as long as the new one. */
void rpc_call_renewed(struct rpc_call *call, int64_t until_ms);
/* For options.authorize: what it has found out beyond the transport (RPC_ID_TOKEN). */
void rpc_call_set_identity(struct rpc_call *call, const struct rpc_identity *identity);
/* A header of the call ("authorization"), the first of that name, in lower case; NULL without. Borrowed until the next
 * call of this or on_close. */
const char *rpc_call_metadata(struct rpc_call *call, const char *name);

#endif
