/* SPDX-License-Identifier: Apache-2.0 */
/* health.h - grpc.health.v1 as calls of the server. Private to proto/rpc. */
#ifndef TITAN_PROTO_RPC_HEALTH_H
#define TITAN_PROTO_RPC_HEALTH_H

#include "proto/rpc/server.h"

struct rpc_health_watcher;

struct rpc_health {
    const struct rpc_method *methods; /* the other methods of the server: their services are the known names */
    size_t n;
    bool serving;
    struct rpc_health_watcher *watchers;
};

#define RPC_HEALTH_METHODS 2
extern const struct rpc_method rpc_health_methods[RPC_HEALTH_METHODS]; /* data: a struct rpc_health */
void rpc_health_set(struct rpc_health *health, bool serving);

#endif
