/* reflection.h - grpc.reflection.v1alpha out of an embedded FileDescriptorSet. Private to proto/rpc.
 *
 * Nothing is decoded into objects: files and symbols are found by walking the wire format, and the answer is the
 * file's own bytes. */
#ifndef TITAN_PROTO_RPC_REFLECTION_H
#define TITAN_PROTO_RPC_REFLECTION_H

#include "proto/rpc/server.h"

struct rpc_reflection {
    const uint8_t *set; /* google.protobuf.FileDescriptorSet; borrowed */
    size_t bytes;
    const struct rpc_method *methods; /* what is served besides */
    size_t n;
};

#define RPC_REFLECTION_METHODS 1
extern const struct rpc_method rpc_reflection_methods[RPC_REFLECTION_METHODS]; /* data: a struct rpc_reflection */

struct rpc_bytes {
    const uint8_t *data;
    size_t len;
};
/* The FileDescriptorProto called name, or the one that defines symbol ("titan.v1.Titan.Submit"). len 0: none. */
struct rpc_bytes rpc_reflection_file(const struct rpc_reflection *reflection, const char *name);
struct rpc_bytes rpc_reflection_symbol(const struct rpc_reflection *reflection, const char *symbol);

#endif
