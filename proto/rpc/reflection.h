/* SPDX-License-Identifier: Apache-2.0 */
/* reflection.h - grpc.reflection.v1 and v1alpha from an embedded FileDescriptorSet. Private to proto/rpc. */
#ifndef TITAN_PROTO_RPC_REFLECTION_H
#define TITAN_PROTO_RPC_REFLECTION_H

#include "proto/rpc/server.h"
#include "titan/wire/descriptor.pb-c.h"

struct rpc_reflection {
    Titan__Wire__FileSet *set;        /* owned; NULL = missing or damaged: no file is found */
    const struct rpc_method *methods; /* the other methods of the server; borrowed */
    size_t n;
};

#define RPC_REFLECTION_METHODS 2
extern const struct rpc_method rpc_reflection_methods[RPC_REFLECTION_METHODS]; /* data: a struct rpc_reflection */

/* set: a serialized google.protobuf.FileDescriptorSet; copied. */
void rpc_reflection_open(struct rpc_reflection *ret, const uint8_t *set, size_t bytes, const struct rpc_method *methods,
                         size_t n);
void rpc_reflection_close(struct rpc_reflection *reflection);
/* The serialized FileDescriptorProto with this name, or with the definition of symbol ("titan.v1.Titan.Submit"). NULL:
 * none. Borrowed from the set. */
const ProtobufCBinaryData *rpc_reflection_file(const struct rpc_reflection *reflection, const char *name);
const ProtobufCBinaryData *rpc_reflection_symbol(const struct rpc_reflection *reflection, const char *symbol);

#endif
