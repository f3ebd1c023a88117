/* SPDX-License-Identifier: Apache-2.0 */
/* facts.h - row contents that only an event may set: owners and recipes of jobs, tokens, join tokens, revocations.
 *
 * The event that sets such a value has the value among its facts. The facts are one flat JSON object: noun and key
 * first, then fields as numbers and texts, with hashes in hexadecimal: {"token":"3f2a...","role":3,...}. Recipes,
 * secrets and keys appear as SHA-256 only. Facts are part of the event's link in the chain, and never part of an API
 * reply.
 *
 * Events of older Titans have no facts. For them the log shows that a value was set, but not which value. */
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
/* Adds the SHA-256 of a text. */
titan_status facts_digest(struct facts *f, const char *field, const char *text, struct titan_error *err) TITAN_MUST_USE;
/* The finished object, owned by f. */
titan_status facts_end(struct facts *f, const char **ret, struct titan_error *err) TITAN_MUST_USE;
void facts_free(struct facts *f);

/* Collects the facts of a whole log in order, then compares them with the tables. */
struct facts_check {
    struct db *db, *memory;        /* the store; the state that results from the facts */
    uint64_t first;                /* the first event with facts; 0 = none */
    uint64_t rows, known, unknown; /* compared rows: all; fully known rows; other rows */
    void (*differs)(void *data, const char *line);
    void *data;
};
titan_status facts_check_begin(struct facts_check *c, struct titan_error *err) TITAN_MUST_USE;
/* Takes the facts of one event, as any bytes: a malformed object counts as a difference. */
titan_status facts_check_take(struct facts_check *c, uint64_t event, const char *text,
                              struct titan_error *err) TITAN_MUST_USE;
titan_status facts_check_compare(struct facts_check *c, struct titan_error *err) TITAN_MUST_USE;

#endif
