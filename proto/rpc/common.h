/* SPDX-License-Identifier: Apache-2.0 */
/* common.h - what server and clients share: the way from gRPC's completion queue to a libuv loop, messages in and out
 * of byte buffers, statuses over the wire. Private to proto/rpc. */
#ifndef TITAN_PROTO_RPC_COMMON_H
#define TITAN_PROTO_RPC_COMMON_H

#include <grpc/grpc.h>
#include <grpc/byte_buffer.h>
#include <protobuf-c/protobuf-c.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "base/error.h"
#include "proto/rpc/pair.h"
#include "proto/rpc/targets.h"

/* One operation in flight; lives inside what it belongs to, so an event costs no allocation. May be used again only
 * after fn was called. */
struct rpc_tag {
    void (*fn)(struct rpc_tag *tag, bool ok);
    void *owner;
    struct rpc_tag *next;
    bool ok;
    bool costly; /* its turn comes after what is not, and not for long at a time */
};

/* A completion queue; its events become calls of tag->fn on a loop's thread. A thread waits on gRPC and appends to a
 * list; the loop takes the whole list at each wake. */
struct rpc_queue {
    grpc_completion_queue *cq;
    uv_async_t async;
    pthread_t thread;
    pthread_mutex_t lock;
    struct rpc_tag *first, **last;         /* guarded by lock */
    bool drained;                          /* guarded by lock: gRPC will deliver no more */
    bool mute;                             /* guarded by lock: there is no handle to wake */
    _Atomic uint32_t n_connections;        /* of a server that rests; of many a pause comes between two polls */
    struct rpc_tag *costly, **costly_last; /* the loop's: costly ones that wait for their turn */
    void (*done)(void *);
    void *data;
};

/* pthread_create, and its errno: a thread without signals. */
int rpc_thread_start(pthread_t *ret, const char *name, void *(*fn)(void *), void *arg) TITAN_MUST_USE;
/* queue->cq exists already (rpc_cq_create); the caller destroys it on failure. */
titan_status rpc_queue_start(struct rpc_queue *queue, uv_loop_t *loop, struct titan_error *err) TITAN_MUST_USE;
/* Of a server that rests: the pause between two looks of a thread at its connections. *paused_at: the thread's own. */
void rpc_queue_rest(const struct rpc_queue *queue, int64_t *paused_at);
/* Have the loop call tag->fn. Any thread, and not after rpc_queue_stop. */
void rpc_queue_post(struct rpc_queue *queue, struct rpc_tag *tag);
/* Call once and only after the last operation was started: lets what is in flight come back, end the thread, destroy
 * the completion queue; then done on the loop. */
void rpc_queue_stop(struct rpc_queue *queue, void (*done)(void *), void *data);
grpc_completion_queue *rpc_cq_create(void);

/* Count a user of gRPC in and out. The last one out waits until gRPC's own threads are gone. */
void rpc_library_enter(void);
void rpc_library_leave(void);

/* Owned by the caller. Never NULL: memory for a message of ours not being there is not survivable. */
grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message);
/* Decode at most budget bytes' worth of objects; strings must be UTF-8 without NUL. buffer is borrowed. *ret is owned
 * by the caller: protobuf_c_message_free_unpacked(m, NULL). TITAN_EINVAL for bytes that are not such a message. */
titan_status rpc_unpack(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type, size_t budget,
                        ProtobufCMessage **ret, struct titan_error *err) TITAN_MUST_USE;

/* An outcome travels as gRPC status and, because several of ours share one gRPC code, by name in this trailer. */
#define RPC_STATUS_TRAILER "titan-status"
grpc_slice rpc_status_name(titan_status status); /* static: needs no unref */
/* Fill err from what came back. what: the call's path; target: for TITAN_EUNREACHABLE. */
titan_status rpc_status_read(grpc_status_code code, grpc_slice details, const grpc_metadata_array *trailers,
                             const char *what, const char *target, struct titan_error *err);

/* The server that a client speaks to, and how. It stays where it is: target points into it. */
struct rpc_remote {
    struct rpc_targets targets;
    const char *target;    /* the one that calls go to */
    char *authorization;   /* of each call, or NULL */
    struct rpc_pair *pair; /* NULL: without TLS */
    grpc_channel *channel;
    int socket; /* with a token over a Unix socket: of the channel's connection, which does not come again by itself; or
                   -1 */
};

/* target: one address or a list; it begins with the first. tls: for TCP, NULL = without; a Unix socket has none.
 * Connects at the first call. */
titan_status rpc_remote_open(const char *target, const struct rpc_tls *tls, struct rpc_remote *ret,
                             struct titan_error *err) TITAN_MUST_USE;
/* The next call connects anew, so its name is looked up anew; next: to the next address of the list. */
void rpc_remote_reconnect(struct rpc_remote *remote, bool next);
void rpc_remote_close(struct rpc_remote *remote);
/* A call, owned by the caller. It goes over a new connection when the files of TLS have changed, or where the server of
 * a Unix socket may have the token and the one before is over. */
grpc_call *rpc_remote_call(struct rpc_remote *remote, grpc_completion_queue *cq, const char *path,
                           uint32_t deadline_ms);
titan_status rpc_remote_token(struct rpc_remote *remote, const char *token, struct titan_error *err) TITAN_MUST_USE;
/* The op that sends a call's headers. header: memory for one, until the op is done. */
grpc_op rpc_remote_headers(const struct rpc_remote *remote, grpc_metadata *header);
gpr_timespec rpc_deadline(uint32_t deadline_ms); /* 0 = never */

grpc_op rpc_op(grpc_op_type type);

#define RPC_CLIENT_MESSAGE_MAX (64 << 20)

#endif
