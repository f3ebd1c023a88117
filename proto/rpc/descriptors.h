/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.h - every .proto file of Titan as one serialized google.protobuf.FileDescriptorSet, embedded at build
 * time for server reflection. */
#ifndef TITAN_PROTO_RPC_DESCRIPTORS_H
#define TITAN_PROTO_RPC_DESCRIPTORS_H

#include <stddef.h>

extern const unsigned char titan_descriptors[];
extern const size_t titan_descriptors_bytes;

#endif
