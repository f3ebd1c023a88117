/* SPDX-License-Identifier: Apache-2.0 */
/* channel.c - the blocking half of client.h: a client on a loop of its own, one call at a time. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "proto/rpc/client.h"
#include "proto/rpc/targets.h"
#include "titan/wire/health.pb-c.h"

enum {
    FIND_MS = 5000, /* time limit for one address of a list to answer */
    POLL_MS = 50,
};

struct rpc_channel {
    uv_loop_t loop;
    uv_timer_t poll;
    struct rpc_client *client;
    bool several; /* several addresses are given */
    bool found;   /* the present address of a list has answered */
    char passed[RPC_TARGETS_TEXT];
    /* The call in progress. */
    bool over;
    struct titan_error result;
    ProtobufCMessage *reply;
    struct rpc_stream *stream;
    bool (*each)(const ProtobufCMessage *message, void *data);
    void *data;
    const volatile int *interrupted;
    bool stopped; /* this side has ended the call: result is set */
};

static void set_over(void *data)
{
    ((struct rpc_channel *)data)->over = true;
}

static void await(struct rpc_channel *channel)
{
    while (!channel->over)
        (void)uv_run(&channel->loop, UV_RUN_ONCE);
}

titan_status rpc_channel_open(const char *target, const struct rpc_tls *tls, struct rpc_channel **ret,
                              struct titan_error *err)
{
    struct rpc_channel *channel = calloc(1, sizeof(*channel));
    if (!channel || uv_loop_init(&channel->loop) != 0) {
        free(channel);
        return titan_fail(err, TITAN_ENOMEM, "rpc: no memory for a channel");
    }
    const titan_status status = rpc_client_open(&channel->loop, target, tls, &channel->client, err);
    if (status != TITAN_OK) {
        (void)uv_loop_close(&channel->loop);
        free(channel);
        return status;
    }
    (void)uv_timer_init(&channel->loop, &channel->poll);
    channel->poll.data = channel;
    channel->several = strchr(target, ',') != NULL;
    *ret = channel;
    return TITAN_OK;
}

titan_status rpc_channel_token(struct rpc_channel *channel, const char *token, struct titan_error *err)
{
    return rpc_client_token(channel->client, token, err);
}

void rpc_channel_close(struct rpc_channel *channel)
{
    if (!channel)
        return;
    channel->over = false;
    uv_close((uv_handle_t *)&channel->poll, NULL);
    rpc_client_close(channel->client, set_over, channel);
    await(channel);
    (void)uv_run(&channel->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&channel->loop);
    free(channel);
}

static titan_status outcome(struct rpc_channel *channel, struct titan_error *err)
{
    channel->found &= channel->result.status != TITAN_EUNREACHABLE;
    if (err)
        *err = channel->result;
    return channel->result.status;
}

static void on_reply(const ProtobufCMessage *reply, const struct titan_error *err, void *data)
{
    struct rpc_channel *channel = data;
    channel->reply = (ProtobufCMessage *)(uintptr_t)reply;
    channel->result = *err;
    channel->over = true;
    rpc_client_keep(channel->client);
}

static titan_status call(struct rpc_channel *channel, const struct rpc_request *request, ProtobufCMessage **ret_reply,
                         struct titan_error *err)
{
    channel->over = false;
    rpc_client_call(channel->client, request, on_reply, channel);
    await(channel);
    if (channel->reply)
        *ret_reply = TAKE(channel->reply);
    return outcome(channel, err);
}

/* Finds an address of the list that answers, with any status. */
static titan_status find(struct rpc_channel *channel, struct titan_error *err)
{
    Grpc__Health__V1__HealthCheckRequest check = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    const struct rpc_request request = {"/grpc.health.v1.Health/Check", &check.base,
                                        &grpc__health__v1__health_check_response__descriptor, FIND_MS};
    const char *const first = rpc_client_target(channel->client);
    if (!channel->several || channel->found)
        return TITAN_OK;
    channel->passed[0] = '\0';
    do {
        struct titan_error why = {0};
        ProtobufCMessage *reply = NULL;
        const titan_status status = call(channel, &request, &reply, &why);
        if (reply)
            protobuf_c_message_free_unpacked(reply, NULL);
        channel->found = status != TITAN_EUNREACHABLE && status != TITAN_ETIMEDOUT;
        if (channel->found)
            return TITAN_OK;
        if (status == TITAN_ETIMEDOUT)
            (void)titan_fail(&why, status, "no answer in time");
        rpc_targets_report(channel->passed, rpc_client_target(channel->client), &why);
        rpc_client_reconnect(channel->client, true);
    } while (rpc_client_target(channel->client) != first);
    return titan_error_set(err, TITAN_EUNREACHABLE, ENOTCONN, __FILE__, __LINE__, "no answer from any server: %s",
                           channel->passed);
}

const char *rpc_channel_passed(const struct rpc_channel *channel)
{
    return channel->found ? channel->passed : "";
}

titan_status rpc_channel_call(struct rpc_channel *channel, const struct rpc_request *request,
                              ProtobufCMessage **ret_reply, struct titan_error *err)
{
    TRY(find(channel, err));
    return call(channel, request, ret_reply, err);
}

static void on_message(struct rpc_stream *stream, const ProtobufCMessage *message, void *data)
{
    struct rpc_channel *channel = data;
    if (channel->each(message, channel->data))
        return;
    channel->stopped = true;
    channel->result.status = TITAN_OK;
    rpc_stream_cancel(stream);
}

static void on_poll(uv_timer_t *timer)
{
    struct rpc_channel *channel = timer->data;
    if (channel->stopped || !*channel->interrupted)
        return;
    channel->stopped = true;
    (void)titan_fail(&channel->result, TITAN_ECANCELLED, "interrupted");
    rpc_stream_cancel(channel->stream);
}

static void on_close(struct rpc_stream *stream, const struct titan_error *err, void *data)
{
    struct rpc_channel *channel = data;
    (void)stream;
    if (!channel->stopped)
        channel->result = *err;
    channel->over = true;
}

titan_status rpc_channel_stream(struct rpc_channel *channel, const struct rpc_request *request,
                                bool (*each)(const ProtobufCMessage *message, void *data), void *data,
                                const volatile int *interrupted, struct titan_error *err)
{
    static const struct rpc_stream_events events = {on_message, on_close};
    TRY(find(channel, err));
    channel->over = channel->stopped = false;
    channel->each = each;
    channel->data = data;
    channel->interrupted = interrupted;
    TRY(rpc_client_stream(channel->client, request, &events, channel, &channel->stream, err));
    if (interrupted)
        (void)uv_timer_start(&channel->poll, on_poll, POLL_MS, POLL_MS);
    await(channel);
    (void)uv_timer_stop(&channel->poll);
    return outcome(channel, err);
}
