/* SPDX-License-Identifier: Apache-2.0 */
/* vocabulary.h - tokens by id and by their bytes. */
#ifndef TITAN_WORKER_TOKENIZER_VOCABULARY_H
#define TITAN_WORKER_TOKENIZER_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

/* Bound of the ids: a file with a larger id is refused. */
#define VOCABULARY_MAX (1 << 24)

struct token {
    size_t start; /* in bytes */
    uint32_t len;
    bool there;
};

struct token_place {
    int32_t id;   /* -1 = free */
    uint32_t tag; /* part of the hash: tells entries apart without a look at their bytes */
};

/* Zeroed = empty. */
struct vocabulary {
    struct token *tokens;      /* by id */
    size_t n, cap;             /* ids are below n */
    struct buf bytes;          /* bytes of all tokens */
    struct token_place *table; /* by the hash of the tokens' bytes */
    size_t table_size;         /* a power of two */
    size_t indexed;
};

/* Sets the bytes of token `id`. TITAN_EINVAL: id is out of range or taken. */
titan_status vocabulary_put(struct vocabulary *v, int64_t id, const char *bytes, size_t len,
                            struct titan_error *err) TITAN_MUST_USE;
/* Lets vocabulary_find() find token `id`. TITAN_EINVAL: another token has the same bytes. */
titan_status vocabulary_index(struct vocabulary *v, int32_t id, struct titan_error *err) TITAN_MUST_USE;
/* The id of the token with these bytes; -1 = none. */
int32_t vocabulary_find(const struct vocabulary *v, const void *bytes, size_t len);
/* Prefetches for a lookup of these bytes. */
void vocabulary_prefetch(const struct vocabulary *v, const void *bytes, size_t len);
/* The bytes of a token; NULL = no such token. */
static inline const char *vocabulary_bytes(const struct vocabulary *v, int64_t id, size_t *ret_len)
{
    if (id < 0 || (size_t)id >= v->n || !v->tokens[id].there)
        return NULL;
    *ret_len = v->tokens[id].len;
    return v->bytes.data + v->tokens[id].start;
}
uint64_t vocabulary_hash(const struct vocabulary *v);
void vocabulary_free(struct vocabulary *v);

#endif
