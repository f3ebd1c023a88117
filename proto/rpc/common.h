/* SPDX-License-Identifier: Apache-2.0 */
/* common.h - shared by server and clients: events from gRPC's completion queue to a libuv loop, packing of messages,
 * operations of calls. Private to proto/rpc. */
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

/* One operation in flight, embedded in its owner, so an event costs no allocation. Reusable only after the call of
 * fn. */
struct rpc_tag {
    void (*fn)(struct rpc_tag *tag, bool ok);
    void *owner;
    struct rpc_tag *next;
    bool ok;
    bool costly; /* costly tags run after other tags, and for a limited time per turn */
};

/* A completion queue; its events become calls of tag->fn on a loop's thread. A thread waits on gRPC and appends to a
 * list; the loop takes the whole list at each wake-up. */
struct rpc_queue {
    grpc_completion_queue *cq;
    uv_async_t async;
    pthread_t thread;
    pthread_mutex_t lock;
    struct rpc_tag *first, **last;         /* guarded by lock */
    bool drained;                          /* guarded by lock: gRPC delivers no more events */
    _Atomic uint32_t n_connections;        /* for a resting server: with many connections, polls are some ms apart */
    struct rpc_tag *costly, **costly_last; /* costly tags that wait for their turn; used by the loop only */
    void (*done)(void *);
    void *data;
};

/* Starts a thread that blocks all signals. Returns pthread_create()'s errno. */
int rpc_thread_start(pthread_t *ret, const char *name, void *(*fn)(void *), void *arg) TITAN_MUST_USE;
titan_status rpc_queue_start(struct rpc_queue *queue, uv_loop_t *loop, struct titan_error *err) TITAN_MUST_USE;
/* Pauses a resting server's thread between two polls of its connections. *paused_at: private to the thread. */
void rpc_queue_rest(const struct rpc_queue *queue, int64_t *paused_at);
/* Makes the loop call tag->fn with ok. Any thread, but not after rpc_queue_stop. */
void rpc_queue_post(struct rpc_queue *queue, struct rpc_tag *tag, bool ok);
/* Call once, after the last operation has started. Waits for operations in flight, ends the thread, destroys the
 * completion queue, then calls done on the loop. */
void rpc_queue_stop(struct rpc_queue *queue, void (*done)(void *), void *data);

/* Counts users of gRPC. The last leave waits until gRPC's own threads are gone. */
void rpc_library_enter(void);
void rpc_library_leave(void);

/* The caller owns the result. Never NULL: without memory for a message the process ends. */
grpc_byte_buffer *rpc_pack(const ProtobufCMessage *message);
/* What one side of a call sends. */
struct rpc_out {
    struct rpc_message *first, **last; /* messages that wait */
    uint32_t n;
    size_t bytes;
    grpc_byte_buffer *now; /* the message of the batch in flight */
    bool sending;          /* a batch is in flight */
    bool sent_headers;     /* headers are sent, or in flight */
};
void rpc_out_clear(struct rpc_out *out); /* drops messages that wait; also initialises a zeroed struct */
/* Takes ownership of the buffer, also on failure (TITAN_ENOMEM). */
titan_status rpc_out_append(struct rpc_out *out, grpc_byte_buffer *buffer) TITAN_MUST_USE;
/* Fills zeroed operations of the next batch: headers, once, and the next message. Returns their number. */
size_t rpc_out_ops(struct rpc_out *out, grpc_op ops[2]);
void rpc_out_sent(struct rpc_out *out); /* the batch is over */

/* Decodes into at most budget bytes of objects; strings must be UTF-8 without NUL. buffer is borrowed. The caller owns
 * *ret: protobuf_c_message_free_unpacked(m, NULL). TITAN_EINVAL: the bytes are no such message. */
titan_status rpc_unpack(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type, size_t budget,
                        ProtobufCMessage **ret, struct titan_error *err) TITAN_MUST_USE;

/* Bytes of a message that are still to be read. */
struct rpc_wire {
    const uint8_t *at, *end;
};
/* Takes the next field: its number, and the bytes of a string or message. Other fields give no bytes. False: no whole
 * field is left. */
bool rpc_wire_take(struct rpc_wire *w, uint32_t *ret_field, struct rpc_wire *ret_inside);

/* An outcome is sent as gRPC status. Several outcomes share one gRPC code, so this trailer has the name. */
#define RPC_STATUS_TRAILER "titan-status"
grpc_arg rpc_arg_int(const char *key, uint32_t value);
void rpc_batch(grpc_call *call, const grpc_op *ops, size_t n, void *tag);

#endif
