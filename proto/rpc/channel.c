/* SPDX-License-Identifier: Apache-2.0 */
/* channel.c - the blocking half of client.h: one thread, one completion queue, one call at a time. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cleanup.h"
#include "proto/rpc/client.h"
#include "proto/rpc/remote.h"
#include "titan/wire/health.pb-c.h"

#define LOOK_MS 5000 /* time limit for one address of a list to answer */

struct rpc_channel {
    struct rpc_remote remote;
    grpc_completion_queue *cq;
    bool found; /* the present address of a list has answered */
    char passed[RPC_TARGETS_TEXT];
};

titan_status rpc_channel_open(const char *target, const struct rpc_tls *tls, struct rpc_channel **ret,
                              struct titan_error *err)
{
    struct rpc_channel *channel = calloc(1, sizeof(*channel));
    if (!channel)
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a channel");
    titan_status status = rpc_remote_open(target, tls, &channel->remote, err);
    if (status != TITAN_OK) {
        free(channel);
        return status;
    }
    channel->cq = rpc_cq_create();
    *ret = channel;
    return TITAN_OK;
}

titan_status rpc_channel_token(struct rpc_channel *channel, const char *token, struct titan_error *err)
{
    return rpc_remote_token(&channel->remote, token, err);
}

void rpc_channel_close(struct rpc_channel *channel)
{
    if (!channel)
        return;
    grpc_completion_queue_shutdown(channel->cq);
    while (grpc_completion_queue_next(channel->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(channel->cq);
    rpc_remote_close(&channel->remote);
    free(channel);
}

static titan_status outcome(struct rpc_channel *channel, const struct rpc_exchange *x, struct titan_error *err)
{
    const titan_status status = rpc_exchange_outcome(x, err);
    channel->found &= status != TITAN_EUNREACHABLE;
    return status;
}

static titan_status call(struct rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, ProtobufCMessage **ret_reply,
                         struct titan_error *err)
{
    struct rpc_exchange x;
    rpc_exchange_begin(&x, &channel->remote, channel->cq, path, deadline_ms);
    x.outgoing = rpc_pack(request);
    rpc_exchange_start(&x, rpc_unary, RPC_UNARY, &x);
    (void)grpc_completion_queue_next(channel->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    titan_status status = outcome(channel, &x, err);
    if (status == TITAN_OK && !x.incoming)
        status = titan_fail(err, TITAN_EIO, "%s: the server's answer has no message", path);
    if (status == TITAN_OK)
        status = rpc_unpack(x.incoming, reply, SIZE_MAX, ret_reply, err);
    rpc_exchange_end(&x);
    return status;
}

/* Finds an address of the list that answers, with any status. */
static titan_status find(struct rpc_channel *channel, struct titan_error *err)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    const size_t n = channel->remote.targets.n;
    if (n == 1 || channel->found)
        return TITAN_OK;
    channel->passed[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        struct titan_error why = {0};
        ProtobufCMessage *reply = NULL;
        const titan_status status = call(channel, "/grpc.health.v1.Health/Check", &request.base,
                                         &grpc__health__v1__health_check_response__descriptor, LOOK_MS, &reply, &why);
        if (reply)
            protobuf_c_message_free_unpacked(reply, NULL);
        channel->found = status != TITAN_EUNREACHABLE && status != TITAN_ETIMEDOUT;
        if (channel->found)
            return TITAN_OK;
        if (status == TITAN_ETIMEDOUT)
            (void)titan_fail(&why, status, "no answer in time");
        rpc_targets_report(channel->passed, channel->remote.target, &why);
        rpc_remote_reconnect(&channel->remote, true);
    }
    return titan_error_set(err, TITAN_EUNREACHABLE, ENOTCONN, __FILE__, __LINE__, "no answer from any server: %s",
                           channel->passed);
}

const char *rpc_channel_passed(const struct rpc_channel *channel)
{
    return channel->found ? channel->passed : "";
}

titan_status rpc_channel_call(struct rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                              const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms,
                              ProtobufCMessage **ret_reply, struct titan_error *err)
{
    TRY(find(channel, err));
    return call(channel, path, request, reply, deadline_ms, ret_reply, err);
}

enum { POLL_MS = 50 };

titan_status rpc_channel_stream(struct rpc_channel *channel, const char *path, const ProtobufCMessage *request,
                                const ProtobufCMessageDescriptor *reply,
                                bool (*each)(const ProtobufCMessage *message, void *data), void (*tick)(void *data),
                                void *data, const volatile int *interrupted, struct titan_error *err)
{
    static const grpc_op_type send[] = {GRPC_OP_SEND_INITIAL_METADATA, GRPC_OP_SEND_MESSAGE,
                                        GRPC_OP_SEND_CLOSE_FROM_CLIENT},
                              last[] = {GRPC_OP_RECV_STATUS_ON_CLIENT},
                              first[] = {GRPC_OP_RECV_INITIAL_METADATA, GRPC_OP_RECV_MESSAGE};
    static char send_tag, recv_tag, status_tag; /* only their addresses matter */
    struct rpc_exchange x;
    TRY(find(channel, err));
    rpc_exchange_begin(&x, &channel->remote, channel->cq, path, 0);
    x.outgoing = rpc_pack(request);
    rpc_exchange_start(&x, send, ARRAY_SIZE(send), &send_tag);
    rpc_exchange_start(&x, last, ARRAY_SIZE(last), &status_tag);
    rpc_exchange_start(&x, first, ARRAY_SIZE(first), &recv_tag);

    titan_status ended = TITAN_OK; /* the reason if this side ended the call */
    bool stopping = false;
    int64_t ticked_ns = clock_mono_ns();
    for (int pending = 3; pending > 0;) {
        grpc_event event = grpc_completion_queue_next(channel->cq, rpc_deadline(POLL_MS), NULL);
        if (event.type == GRPC_OP_COMPLETE)
            pending--;
        if (event.type == GRPC_OP_COMPLETE && event.tag == &recv_tag && event.success && x.incoming) {
            ProtobufCMessage *message = NULL;
            if (!stopping) {
                ended = rpc_unpack(x.incoming, reply, SIZE_MAX, &message, err);
                stopping = ended != TITAN_OK || !each(message, data);
                if (message)
                    protobuf_c_message_free_unpacked(message, NULL);
                if (stopping)
                    (void)grpc_call_cancel(x.call, NULL);
            }
            grpc_byte_buffer_destroy(x.incoming);
            x.incoming = NULL;
            rpc_exchange_start(&x, &first[1], 1, &recv_tag);
            pending++;
        }
        if (interrupted && *interrupted && !stopping) {
            stopping = true;
            ended = titan_fail(err, TITAN_ECANCELLED, "interrupted");
            (void)grpc_call_cancel(x.call, NULL);
        }
        if (tick && clock_mono_ns() - ticked_ns >= POLL_MS * INT64_C(1000000)) {
            tick(data);
            ticked_ns = clock_mono_ns();
        }
    }
    titan_status status = stopping ? ended : outcome(channel, &x, err);
    rpc_exchange_end(&x);
    return status;
}
