/* SPDX-License-Identifier: Apache-2.0 */
/* facts.h - what rows hold that only an event may give them: owners and recipes of jobs, tokens, join tokens,
 * revocations.
 *
 * The event that gives a row such a value has it among its facts, one flat JSON object: noun and key first, then fields
 * as numbers and texts, hashes in hexadecimal: {"token":"3f2a...","role":3,...}. Of a recipe, a secret and a key there
 * is the SHA-256 only. Facts are part of the event's link in the chain, and of no answer of the API.
 *
 * Events of a Titan before this have none; what they gave is not known then, but that they gave it. */
#ifndef TITAN_STATE_FACTS_H
#define TITAN_STATE_FACTS_H

#include "base/buf.h"
#include "base/json.h"
#include "state/db.h"

struct facts {
    struct buf text;
    struct json_writer out;
};
void facts_begin(struct facts *f, const char *noun, const char *name);
void facts_text(struct facts *f, const char *field, const char *value);
void facts_number(struct facts *f, const char *field, int64_t value);
void facts_bytes(struct facts *f, const char *field, const unsigned char *bytes, size_t n); /* n <= 32 */
/* The SHA-256 of a text. */
titan_status facts_digest(struct facts *f, const char *field, const char *text, struct titan_error *err) TITAN_MUST_USE;
/* The object, which is f's. */
titan_status facts_end(struct facts *f, const char **ret, struct titan_error *err) TITAN_MUST_USE;
void facts_free(struct facts *f);

/* All of a log in order, then its tables against them. */
struct facts_check {
    struct db *db, *memory;        /* the store; what the facts have led to */
    uint64_t first;                /* the first event with facts; 0 = none has */
    uint64_t rows, known, unknown; /* rows that were compared, those of which all was known, of which not */
    void (*differs)(void *data, const char *line);
    void *data;
};
titan_status facts_check_begin(struct facts_check *c, struct titan_error *err) TITAN_MUST_USE;
/* One event's. Any bytes: what is no such object is a difference. */
titan_status facts_check_take(struct facts_check *c, uint64_t event, const char *text,
                              struct titan_error *err) TITAN_MUST_USE;
titan_status facts_check_compare(struct facts_check *c, struct titan_error *err) TITAN_MUST_USE;

#endif
