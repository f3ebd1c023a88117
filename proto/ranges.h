/* SPDX-License-Identifier: Apache-2.0 */
/* ranges.h - legal values of every field of internal messages and client requests.
 *
 * Agents, the coordinator and workers check each other's messages here, and the API checks requests, before a state
 * machine sees them. A range limits the values a field can ever have (a rank is below the largest job, a path has no
 * control characters); the receiver decides which value is legal *now* (this epoch, that worker). Ranges are options
 * beside the fields in the .proto files (titan/options.proto); the build makes tables of them, and fails if a field has
 * no range.
 *
 * A oneof without a known member passes when the message has unknown fields: the sender is newer. */
#ifndef TITAN_PROTO_RANGES_H
#define TITAN_PROTO_RANGES_H

#include <protobuf-c/protobuf-c.h>

#include "base/error.h"
#include "titan/ranges.h"

/* The range of a field, as Range in titan/options.proto. */
struct range {
    int64_t min;
    uint64_t max;
    uint32_t count;
    bool any, path, seen;
    const char *chars; /* all legal characters, or NULL */
};

/* The ranges of a message's fields, in the descriptor's order. */
struct range_table {
    const ProtobufCMessageDescriptor *of;
    const struct range *rows;
    size_t n;
};

/* The tables of every message that is checked. */
extern const struct range_table range_tables[];
extern const size_t n_range_tables;

/* TITAN_EINVAL with message, field, value and range: "AgentMessage.registration.slots = 0: 1 to 4096". */
titan_status range_check(const ProtobufCMessage *m, struct titan_error *err) TITAN_MUST_USE;

/* Size in bytes of an item of a repeated field in protobuf-c's arrays. */
size_t range_item_bytes(const ProtobufCFieldDescriptor *f);

/* Makes foreign text fit to be passed on: characters that RANGE_TEXT forbids become '?', and the text is cut to
 * size. */
void range_fit_text(char *text, size_t size);

#endif
