/* SPDX-License-Identifier: Apache-2.0 */
/* services.h - the services that every server has of its own: grpc.health.v1, and grpc.reflection.v1 and v1alpha over
 * Titan's .proto files. Private to proto/rpc. */
#ifndef TITAN_PROTO_RPC_SERVICES_H
#define TITAN_PROTO_RPC_SERVICES_H

#include "proto/rpc/common.h"
#include "proto/rpc/server.h"

struct rpc_services {
    const struct rpc_method *methods; /* the other methods of the server: their services are the known names */
    size_t n;
    bool serving;
};

#define RPC_SERVICES_METHODS 4
extern const struct rpc_method rpc_services_methods[RPC_SERVICES_METHODS]; /* data: a struct rpc_services */

/* Every .proto file of Titan as one serialized google.protobuf.FileDescriptorSet, embedded at build time. */
extern const unsigned char titan_descriptors[];
extern const size_t titan_descriptors_bytes;
/* Finds in a set the serialized FileDescriptorProto with this name, or with the definition of a symbol
 * ("titan.v1.Titan.Submit"). at NULL: there is none. */
struct rpc_wire rpc_services_file(struct rpc_wire set, const char *name);
struct rpc_wire rpc_services_symbol(struct rpc_wire set, const char *symbol);

#endif
