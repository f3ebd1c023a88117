/* SPDX-License-Identifier: Apache-2.0 */
/* ranges.h - legal values of every field of internal messages and client requests: one table per message, one row per
 * field.
 *
 * Agents, the coordinator and workers check each other's messages here, and the API checks requests, before a state
 * machine sees them. A row limits the values a field can ever have (a rank is below the largest job, a path has no
 * control characters); the receiver decides which value is legal *now* (this epoch, that worker). Every field of every
 * message has a row: tests/unit/proto/test_ranges.c walks the descriptors.
 *
 * A oneof without a known member passes when the message has unknown fields: the sender is newer. */
#ifndef TITAN_PROTO_RANGES_H
#define TITAN_PROTO_RANGES_H

#include <protobuf-c/protobuf-c.h>

#include "base/error.h"

#define LOG_POSITIONS_MAX 4096                 /* workers of a job with output */
#define RANGE_ID_MAX ((UINT64_C(1) << 53) - 1) /* of jobs and workers; exact in JSON, too */
#define RANGE_TERM_MAX (UINT64_C(1) << 48)     /* a restore adds a million, a start adds one */
#define RANGE_EPOCH_MAX                                                                                                \
    ((UINT64_C(1) << 62) - 1) /* above all epoch numbers that follow from terms (core_first_epoch) */
#define RANGE_STEP_MAX ((UINT64_C(1) << 53) - 1)
#define RANGE_SIZE_MAX ((UINT64_C(1) << 62) - 1) /* bytes, and counters that only increase */

enum range_kind {
    RANGE_NUMBER,  /* lo to hi */
    RANGE_SIGNED,  /* from to until */
    RANGE_REAL,    /* least to most; NaN and infinities only if `any` */
    RANGE_FLAG,    /* any value */
    RANGE_TEXT,    /* lo to hi bytes of UTF-8 without control characters; if `set`: only its characters */
    RANGE_PATH,    /* lo to hi bytes without control characters */
    RANGE_LINES,   /* lo to hi bytes of UTF-8; line ends and tabs are legal */
    RANGE_BYTES,   /* lo to hi bytes */
    RANGE_MESSAGE, /* a message with its own table; lo 1: required */
};

struct range {
    const char *field;
    enum range_kind kind;
    bool any;
    bool seen;      /* text that is not blank, if present */
    uint32_t count; /* largest length of a repeated field */
    uint64_t lo, hi;
    int64_t from, until;
    double least, most;
    const char *set;
};

/* The rows of a message's fields, in the descriptor's order; NULL for another message. */
const struct range *range_rows(const ProtobufCMessageDescriptor *of, size_t *ret_n);

/* TITAN_EINVAL with message, field, value and range: "AgentMessage.registration.slots = 0: 1 to 4096". */
titan_status range_check(const ProtobufCMessage *m, struct titan_error *err) TITAN_MUST_USE;

/* Size in bytes of an item of a repeated field in protobuf-c's arrays. */
size_t range_item_bytes(const ProtobufCFieldDescriptor *f);

/* Sanitises foreign text before it is passed on: characters that RANGE_TEXT forbids become '?', and the text is cut to
 * size. */
void range_fit_text(char *text, size_t size);

#endif
