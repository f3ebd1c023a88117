/* SPDX-License-Identifier: Apache-2.0 */
/* message.h - protobuf-c messages out of a fuzzer's bytes, field by field: each is absent, a value that makes sense, a
 * bound, or any. So every input is a message, and one byte more or less changes one field. */
#ifndef TITAN_TESTS_FUZZ_MESSAGE_H
#define TITAN_TESTS_FUZZ_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#include "tests/fuzz/common.h"

/* texts: what strings are drawn from, NULL at the end. To be freed by protobuf_c_message_free_unpacked. kind: of the
 * oneof's members, the one of that index; -1: drawn. */
ProtobufCMessage *fuzz_message(struct fuzz_input *in, const ProtobufCMessageDescriptor *type, const char *const *texts,
                               int kind);

#endif
