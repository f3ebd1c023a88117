/* SPDX-License-Identifier: Apache-2.0 */
/* server.h - a gRPC server on the gRPC C core, driven from a libuv loop.
 *
 * One completion-queue thread drains gRPC's events into a list and wakes the loop; every callback below runs on the
 * loop's thread. Requests are decoded (bounded) before the handler gets them. Undecodable bytes are answered with
 * INVALID_ARGUMENT, unknown methods with UNIMPLEMENTED, without the handler. A message that is too long is answered
 * with RESOURCE_EXHAUSTED as soon as it announces its length, and is not read. The server itself serves grpc.health.v1
 * (Check, Watch) and grpc.reflection (v1, v1alpha). */
#ifndef TITAN_PROTO_RPC_SERVER_H
#define TITAN_PROTO_RPC_SERVER_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/error.h"
#include "base/histogram.h"
#include "proto/rpc/tls.h"

struct rpc_server;
struct rpc_call; /* one call; valid until its on_close has returned */

/* The caller's identity as proved by the transport. */
enum rpc_id_kind {
    RPC_ID_NONE,  /* TCP without TLS, or TLS without a client certificate: unknown */
    RPC_ID_UID,   /* Unix socket: the kernel's uid of the connected process */
    RPC_ID_CERT,  /* TLS: a certificate of Titan's authority; name is its SPIFFE URI */
    RPC_ID_TOKEN, /* never set by the transport: the authorizer has checked a bearer token */
};
struct rpc_identity {
    enum rpc_id_kind kind;
    bool secure; /* a Unix socket or TLS: no third party can read or change the bytes */
    uid_t uid;   /* (uid_t)-1 except for RPC_ID_UID */
    gid_t gid;   /* the user's primary group */
    /* User name or "uid:N"; "spiffe://titan/node/NAME", ".../coordinator/ID", ".../user/NAME"; "anonymous". */
    char name[192];
    /* Validity of the certificate or token, in ms since 1970; 0 = unlimited. */
    int64_t from_ms, until_ms;
    unsigned roles; /* for options.authorize; rpc/ ignores it */
};

struct rpc_method {
    const char *path; /* "/titan.v1.Titan/Submit" */
    const ProtobufCMessageDescriptor *request;
    /* The call's (first) message. Unary and server-streaming: called once. The request is freed after the return. */
    void (*on_request)(struct rpc_call *call, const ProtobufCMessage *request, void *data);
    /* Client- and bidirectional streaming only (else NULL): every message, including the first; on_request is then
     * NULL. request NULL = the client has closed its side. */
    void (*on_message)(struct rpc_call *call, const ProtobufCMessage *request, void *data);
    /* The call has ended: finished, cancelled, past its deadline, or without a peer. Called exactly once for every call
     * that reached on_request/on_message. May be NULL. */
    void (*on_close)(struct rpc_call *call, bool cancelled, void *data);
    /* The stream's queue has room again after TITAN_EAGAIN from rpc_call_send. May be NULL. */
    void (*on_drain)(struct rpc_call *call, void *data);
    bool costly;              /* a request is expensive: calls of other methods overtake it, and stay fast under load */
    uint32_t max_queue_bytes; /* limit of an outgoing stream's queue, beside max_queue; 0 = none */
    unsigned needs;           /* rights that the caller needs; for options.authorize, rpc/ ignores it */
    uint32_t first_ms;        /* time limit for the complete first message; 0 = options.request_ms */
};

struct rpc_server_options {
    const struct rpc_method *methods; /* n_methods; they outlive the server */
    size_t n_methods;
    void *data;                    /* for every callback */
    uint32_t max_message_bytes;    /* 0 = 4 MiB */
    uint32_t max_queue;            /* messages queued per outgoing stream; 0 = 256 */
    uint32_t max_connections;      /* for all Unix sockets together, and for all of TCP; 0 = 4096 */
    uint32_t max_user_connections; /* per uid; 0 = 256. Neither limit applies to root and the uid of this process */
    uint32_t max_users;            /* uids with connections at a time, besides root and this process's uid; 0 = 512 */
    /* TCP connections per address (IPv6: per /64), per certificate or token of accepted calls, and for callers without
     * certificate and token. A new connection ends the oldest connection without a call. 0 = 256 */
    uint32_t max_peer_connections;
    /* Open calls per uid, certificate or token; calls without any of these count per address. Root and this process's
     * uid have no limit. 0 = 4096. Of the calls of health and reflection, 16 may be open per uid or address. */
    uint32_t max_user_calls;
    uint32_t max_user_message_bytes; /* largest message from another uid or over TCP; 0 = max_message_bytes */
    /* Limit of gRPC's memory for one uid or address: incomplete messages and unsent output. Beyond the limit streams
     * are aborted. Many addresses together share four times this amount, and so do many uids. 0 = 64 MiB */
    uint64_t memory_bytes;
    uint32_t request_ms;    /* time limit for a complete request, or a stream's complete first message; 0 = 30 s */
    uint32_t idle_ms;       /* a connection without a call is closed after this time; 0 = 10 min */
    uint32_t tcp_idle_ms;   /* as idle_ms, but over TCP; 0 = 2 min */
    bool certificates_only; /* the handshake refuses TLS clients without a certificate */
    bool rests;             /* with many connections, polls are some ms apart: for callers that tolerate this delay */
    mode_t socket_mode;     /* mode of Unix socket files; 0 = 0600 */
    /* Called for every call of the methods table before its message is read; data is the server's. Any status but
     * TITAN_OK ends the call with err. NULL: every caller may call everything. */
    titan_status (*authorize)(struct rpc_call *call, const struct rpc_method *method, void *data,
                              struct titan_error *err);
    /* authorize() again with the call's first message, before the handler: the caller may have waited long and lost the
     * right meanwhile. NULL: every message is allowed. */
    titan_status (*check)(struct rpc_call *call, const struct rpc_method *method, const ProtobufCMessage *request,
                          void *data, struct titan_error *err);
    /* For rpc_server_review: may this authorized call continue? NULL: yes. */
    titan_status (*review)(struct rpc_call *call, const struct rpc_method *method, void *data, struct titan_error *err);
    /* review() for a connection that proved this certificate. NULL: yes. */
    bool (*review_connection)(const struct rpc_identity *identity, void *data);
};

/* Creates the server, without listener and thread. options are copied. */
titan_status rpc_server_open(uv_loop_t *loop, const struct rpc_server_options *options, struct rpc_server **ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* Listens at "unix:/run/titan/titan.sock" or "127.0.0.1:7070" (port 0 = any; *ret_port gets the port, may be NULL).
 * Before start only. tls: for a TCP address, NULL = without. TITAN_EEXIST: the address is taken. A stale socket file
 * without a listener is replaced; a live socket is not. */
titan_status rpc_server_listen(struct rpc_server *server, const char *address, const struct rpc_tls *tls, int *ret_port,
                               struct titan_error *err) TITAN_MUST_USE;
/* Adopts a listening socket that systemd opened for the process: the socket and its waiting connections stay open at
 * shutdown. TCP is without TLS. Before start only; borrowed. */
titan_status rpc_server_adopt(struct rpc_server *server, int fd, struct titan_error *err) TITAN_MUST_USE;
titan_status rpc_server_start(struct rpc_server *server, struct titan_error *err) TITAN_MUST_USE;
/* Status in grpc.health.v1: for service "" and every served service. */
void rpc_server_set_serving(struct rpc_server *server, bool serving);
/* Call it when rights have changed or ended. It calls options.review and review_connection again. A refused call ends
 * with the error, and its queue is dropped; a refused connection is cut within 2 s, after its last output. Calls that
 * are ending anyway continue. */
void rpc_server_review(struct rpc_server *server);
/* Refuses new calls, lets running calls finish for grace_ms, cancels the rest, then calls done (on the loop) exactly
 * once. done may free the server. */
void rpc_server_shutdown(struct rpc_server *server, uint32_t grace_ms, void (*done)(void *), void *data);
/* Calls of a method that have ended, since the start. */
#define RPC_CODES 17 /* gRPC's codes, 0 to 16 */
struct rpc_method_calls {
    const char *path;                 /* "unknown": of methods that are not served */
    const uint64_t *codes;            /* RPC_CODES */
    const struct histogram *duration; /* NULL = the method streams */
};
void rpc_server_calls(const struct rpc_server *server, void (*each)(const struct rpc_method_calls *calls, void *data),
                      void *data);
const char *rpc_code_name(unsigned code); /* "OK", "CANCELLED", ...; below RPC_CODES */
/* Numbers of refusals since the start. */
struct rpc_refusals {
    uint64_t connections; /* beyond a limit, without a free descriptor, or ended by the proxy */
    uint64_t calls;       /* beyond max_user_calls, or too many of health and reflection */
};
struct rpc_refusals rpc_call_refusals(const struct rpc_call *call); /* refusals of the call's server */
struct rpc_refusals rpc_server_refusals(const struct rpc_server *server);
void rpc_server_free(struct rpc_server *server); /* after shutdown's done, or if never started; NULL is fine */

/* Answers a unary call with a message and OK. The call is finished. */
void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply);
/* Appends a message to the outgoing stream. The message is packed at once and may be freed afterwards. TITAN_EAGAIN:
 * the queue is full and the message was not taken; wait for on_drain. TITAN_ECANCELLED: the call has ended. */
titan_status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message) TITAN_MUST_USE;
/* A message for several streams, packed once. */
struct rpc_packed;
struct rpc_packed *rpc_packed_new(const ProtobufCMessage *message); /* never NULL */
void rpc_packed_free(struct rpc_packed *packed);                    /* NULL is fine */
titan_status rpc_call_send_packed(struct rpc_call *call, const struct rpc_packed *packed) TITAN_MUST_USE;
/* Ends the call with OK (streams) or an error (any call). message may be NULL. */
void rpc_call_finish(struct rpc_call *call, titan_status status, const char *message);
void rpc_call_fail(struct rpc_call *call, const struct titan_error *err); /* status, "msg (hint)" */
/* The handler's own state for the call. */
void rpc_call_set_data(struct rpc_call *call, void *data);
void *rpc_call_data(const struct rpc_call *call);
/* Peer for the log ("unix:USER", "ipv4:127.0.0.1:5000"), borrowed until on_close. Not an identity. */
const char *rpc_call_peer(const struct rpc_call *call);
/* Never NULL; borrowed until on_close. */
const struct rpc_identity *rpc_call_identity(const struct rpc_call *call);
/* The caller renewed its certificate over its connection. The connection and its calls may now last until the new
 * certificate ends. */
void rpc_call_renewed(struct rpc_call *call, int64_t until_ms);
/* For options.authorize: sets an identity beyond the transport's (RPC_ID_TOKEN). */
void rpc_call_set_identity(struct rpc_call *call, const struct rpc_identity *identity);
/* The first header of the call with this lower-case name ("authorization"); NULL: none. Borrowed until the next call of
 * this function or on_close. */
const char *rpc_call_metadata(struct rpc_call *call, const char *name);

/* --- calls of this process ---------------------------------------------------------------------------------------- */
/* For a client that is not gRPC's: unary and server-streaming methods. Rights are asked for as for any call, and
 * reviewed. All callbacks run on the loop's thread; on_message may run before rpc_local_call returns. They may call
 * rpc_local_leave. */

struct rpc_local {
    void (*on_message)(const ProtobufCMessage *message, void *data);
    /* May another message come? False: the caller calls rpc_local_drained later. NULL: always. */
    bool (*has_room)(void *data);
    /* The call has ended, exactly once; not after rpc_local_leave. text: why, unless TITAN_OK. */
    void (*on_end)(titan_status status, const char *text, void *data);
    const ProtobufCMessageDescriptor *reply; /* of the method's messages */
};
/* What the transport knows of the caller. The texts are copied. */
struct rpc_local_caller {
    struct rpc_identity identity;
    const char *peer;          /* for the log */
    const char *authorization; /* value of this header; NULL = none */
};
/* local outlives the call. The request is borrowed until the return. NULL: out of memory, or the server is not started.
 */
struct rpc_call *rpc_local_call(struct rpc_server *server, const char *path, const struct rpc_local_caller *caller,
                                const ProtobufCMessage *request, const struct rpc_local *local, void *data);
void rpc_local_drained(struct rpc_call *call);
/* The client is gone: no more callbacks. The handler is told of it in the next turn of the loop. */
void rpc_local_leave(struct rpc_call *call);

#endif
