/* SPDX-License-Identifier: Apache-2.0 */
/* message_json.h - API messages as JSON, with their .proto names.
 *
 * An int64 NAME_ms is a point in time: the member is NAME, an RFC 3339 string in UTC, or null when unset. An empty
 * string and a non-finite number also become null. Enum values become their names, bytes become text. A string named
 * "detail" holds JSON; a single line is inserted unchanged. */
#ifndef TITAN_PROTO_MESSAGE_JSON_H
#define TITAN_PROTO_MESSAGE_JSON_H

#include <protobuf-c/protobuf-c.h>

#include "base/json.h"

/* Writes the message as an object. key: NULL in an array and at the top. */
void message_json(struct json_writer *w, const char *key, const ProtobufCMessage *message);
/* Writes the members of message_json() into an object that the caller has begun, in the descriptor's order. */
void message_json_fields(struct json_writer *w, const ProtobufCMessage *message);

#endif
