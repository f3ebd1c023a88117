/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/rpc/health.h"

#include <stdlib.h>
#include <string.h>

#include "titan/wire/health.pb-c.h"

typedef Grpc__Health__V1__HealthCheckRequest health_request;
typedef Grpc__Health__V1__HealthCheckResponse health_response;
#define STATUS(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

struct rpc_health_watcher {
    struct rpc_health *health;
    struct rpc_call *call;
    struct rpc_health_watcher *next;
};

/* Is service the package.Service part of a served method? The empty name is the server itself. */
static bool service_known(const struct rpc_health *health, const char *service)
{
    size_t len = strlen(service);
    if (len == 0)
        return true;
    for (size_t i = 0; i < health->n; i++) {
        const char *path = health->methods[i].path;
        if (strncmp(path + 1, service, len) == 0 && path[1 + len] == '/')
            return true;
    }
    return false;
}

static health_response answer(const struct rpc_health *health)
{
    health_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = health->serving ? STATUS(SERVING) : STATUS(NOT_SERVING);
    return response;
}

/* If the queue is full, the status follows when the queue has drained. */
static void watcher_send(const struct rpc_health_watcher *watcher)
{
    health_response response = answer(watcher->health);
    (void)!rpc_call_send(watcher->call, &response.base);
}

static void check(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    const struct rpc_health *health = data;
    if (!service_known(health, ((const health_request *)message)->service)) {
        rpc_call_finish(call, TITAN_ENOTFOUND, "no such service");
        return;
    }
    health_response response = answer(health);
    rpc_call_reply(call, &response.base);
}

static void watch(struct rpc_call *call, const ProtobufCMessage *message, void *data)
{
    struct rpc_health *health = data;
    if (!service_known(health, ((const health_request *)message)->service)) {
        health_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
        response.status = STATUS(SERVICE_UNKNOWN);
        (void)!rpc_call_send(call, &response.base);
        return;
    }
    struct rpc_health_watcher *watcher = calloc(1, sizeof(*watcher));
    if (!watcher) {
        rpc_call_finish(call, TITAN_ENOMEM, NULL);
        return;
    }
    *watcher = (struct rpc_health_watcher){.health = health, .call = call, .next = health->watchers};
    health->watchers = watcher;
    rpc_call_set_data(call, watcher);
    watcher_send(watcher);
}

static void watch_drain(struct rpc_call *call, void *data)
{
    (void)data;
    const struct rpc_health_watcher *watcher = rpc_call_data(call);
    if (watcher)
        watcher_send(watcher);
}

static void watch_close(struct rpc_call *call, bool cancelled, void *data)
{
    (void)cancelled;
    struct rpc_health *health = data;
    struct rpc_health_watcher **at = &health->watchers, *gone = rpc_call_data(call);
    while (gone && *at != gone)
        at = &(*at)->next;
    if (gone)
        *at = gone->next;
    free(gone);
}

void rpc_health_set(struct rpc_health *health, bool serving)
{
    if (health->serving == serving)
        return;
    health->serving = serving;
    for (const struct rpc_health_watcher *watcher = health->watchers; watcher; watcher = watcher->next)
        watcher_send(watcher);
}

const struct rpc_method rpc_health_methods[RPC_HEALTH_METHODS] = {
    {
        .path = "/grpc.health.v1.Health/Check",
        .request = &grpc__health__v1__health_check_request__descriptor,
        .on_request = check,
    },
    {
        .path = "/grpc.health.v1.Health/Watch",
        .request = &grpc__health__v1__health_check_request__descriptor,
        .on_request = watch,
        .on_close = watch_close,
        .on_drain = watch_drain,
    },
};
