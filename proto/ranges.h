/* SPDX-License-Identifier: Apache-2.0 */
/* ranges.h - what every field of an internal message and of a client's request may be: a table for each, a row a field.
 *
 * Agents, the coordinator and workers check what they hear from each other, and the API what clients ask, here before
 * any of it enters a state machine. A row says what a field can ever be (a rank is no larger than a job, a path has no
 * control characters); what it may be *now* (this epoch, that worker) is for the receiver to say. Every field of every
 * message has a row: tests/unit/proto/test_ranges.c walks the descriptors.
 *
 * A oneof without a member that we know passes when the message has unknown fields: it is of a newer version. */
#ifndef TITAN_PROTO_RANGES_H
#define TITAN_PROTO_RANGES_H

#include <protobuf-c/protobuf-c.h>

#include "base/error.h"

#define LOG_POSITIONS_MAX 4096                    /* workers of a job with output */
#define RANGE_ID_MAX ((UINT64_C(1) << 53) - 1)    /* of jobs and workers; exact in JSON, too */
#define RANGE_TERM_MAX (UINT64_C(1) << 48)        /* a restore adds a million, a start one */
#define RANGE_EPOCH_MAX ((UINT64_C(1) << 62) - 1) /* above all that follow from terms (core_first_epoch) */
#define RANGE_STEP_MAX ((UINT64_C(1) << 53) - 1)
#define RANGE_SIZE_MAX ((UINT64_C(1) << 62) - 1) /* bytes, and what only counts up */

enum range_kind {
    RANGE_NUMBER,  /* lo to hi */
    RANGE_SIGNED,  /* from to until */
    RANGE_REAL,    /* least to most; NaN and infinities only with any */
    RANGE_FLAG,    /* anything */
    RANGE_TEXT,    /* lo to hi bytes of UTF-8 without control characters; with set, of its characters only */
    RANGE_PATH,    /* lo to hi bytes without control characters */
    RANGE_LINES,   /* lo to hi bytes of UTF-8; line ends and tabs may be in it */
    RANGE_BYTES,   /* lo to hi bytes */
    RANGE_MESSAGE, /* of a table of its own; with lo 1 it has to be there */
};

struct range {
    const char *field;
    enum range_kind kind;
    bool any;
    bool seen;      /* a text that is not blank, where there is one */
    uint32_t count; /* most of a repeated field */
    uint64_t lo, hi;
    int64_t from, until;
    double least, most;
    const char *set;
};

/* The rows of a message's fields, in the descriptor's order; NULL for another message. */
const struct range *range_rows(const ProtobufCMessageDescriptor *of, size_t *ret_n);

/* TITAN_EINVAL with message, field, value and range: "AgentMessage.registration.slots = 0: 1 to 4096". */
titan_status range_check(const ProtobufCMessage *m, struct titan_error *err) TITAN_MUST_USE;

/* Bytes from an item of a repeated field to the next, as protobuf-c keeps them. */
size_t range_item_bytes(const ProtobufCFieldDescriptor *f);

/* Words of others that we pass on: what RANGE_TEXT forbids becomes '?', and it is cut to size. */
void range_fit_text(char *text, size_t size);

#endif
