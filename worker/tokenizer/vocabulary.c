/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/vocabulary.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/vec.h"

#define TABLE_MIN 64u
#define TOKEN_SHOWN 40 /* bytes of a token in a message */

static uint64_t hash_of(const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    uint64_t hash = len;
    for (; len >= 8; p += 8, len -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = hash_mix(hash ^ word);
    }
    uint64_t word = 0;
    memcpy(&word, p, len);
    return hash_mix(hash ^ word);
}

titan_status vocabulary_put(struct vocabulary *v, int64_t id, const char *bytes, size_t len, struct titan_error *err)
{
    const int shown = (int)MIN(len, (size_t)TOKEN_SHOWN);
    if (id < 0 || id >= VOCABULARY_MAX)
        return titan_fail(err, TITAN_EINVAL, "token '%.*s' has the id %" PRId64 "; ids are 0 to %d", shown, bytes, id,
                          VOCABULARY_MAX - 1);
    if ((size_t)id < v->n && v->tokens[id].there)
        return titan_fail(err, TITAN_EINVAL, "two tokens have the id %" PRId64 ", '%.*s' is the second", id, shown,
                          bytes);
    v->bytes.limit = SIZE_MAX / 4;
    const struct token token = {.start = v->bytes.len, .len = (uint32_t)len, .there = true};
    if (len > INT32_MAX || !VEC_RESERVE(v->tokens, v->cap, (size_t)id + 1) ||
        buf_append(&v->bytes, bytes, len) != TITAN_OK)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %" PRId64 " tokens", id + 1);
    while (v->n <= (size_t)id)
        v->tokens[v->n++] = (struct token){0};
    titan_assert((size_t)id < v->n);
    v->tokens[id] = token;
    return TITAN_OK;
}

static uint32_t tag_of(uint64_t hash)
{
    return (uint32_t)(hash >> 32);
}

/* Returns the place of the token with these bytes and this hash, or the free place for such a token. */
static size_t place_of(const struct vocabulary *v, uint64_t hash, const void *bytes, size_t len)
{
    titan_assert(v->table_size > 0 && (v->table_size & (v->table_size - 1)) == 0);
    size_t at = hash & (v->table_size - 1);
    for (; v->table[at].id >= 0; at = (at + 1) & (v->table_size - 1)) {
        if (v->table[at].tag != tag_of(hash))
            continue;
        const struct token *t = &v->tokens[v->table[at].id];
        if (t->len == len && memcmp(v->bytes.data + t->start, bytes, len) == 0)
            break;
    }
    return at;
}

titan_status vocabulary_index(struct vocabulary *v, int32_t id, struct titan_error *err)
{
    titan_assert(id >= 0 && (size_t)id < v->n && v->tokens[id].there);
    const struct token *t = &v->tokens[id];
    const char *bytes = v->bytes.data + t->start;
    if (2 * (v->indexed + 1) > v->table_size) {
        struct token_place *old = v->table;
        const size_t old_size = v->table_size, size = old_size ? 2 * old_size : TABLE_MIN;
        titan_assert((size & (size - 1)) == 0);
        struct token_place *table = malloc(size * sizeof(*table));
        if (!table)
            return titan_fail(err, TITAN_ENOMEM, "no memory for a table of %zu tokens", size);
        memset(table, 0xff, size * sizeof(*table));
        v->table = table;
        v->table_size = size;
        for (size_t i = 0; i < old_size; i++)
            if (old[i].id >= 0) {
                const struct token *moved = &v->tokens[old[i].id];
                const char *text = v->bytes.data + moved->start;
                v->table[place_of(v, hash_of(text, moved->len), text, moved->len)] = old[i];
            }
        free(old);
    }
    const uint64_t hash = hash_of(bytes, t->len);
    const size_t at = place_of(v, hash, bytes, t->len);
    if (v->table[at].id >= 0)
        return titan_fail(err, TITAN_EINVAL, "the tokens %" PRId32 " and %" PRId32 " are the same, '%.*s'",
                          v->table[at].id, id, (int)MIN(t->len, (uint32_t)TOKEN_SHOWN), bytes);
    titan_assert(2 * (v->indexed + 1) <= v->table_size);
    v->table[at] = (struct token_place){.id = id, .tag = tag_of(hash)};
    v->indexed++;
    return TITAN_OK;
}

int32_t vocabulary_find(const struct vocabulary *v, const void *bytes, size_t len)
{
    return v->table_size ? v->table[place_of(v, hash_of(bytes, len), bytes, len)].id : -1;
}

void vocabulary_prefetch(const struct vocabulary *v, const void *bytes, size_t len)
{
    if (v->table_size)
        __builtin_prefetch(&v->table[hash_of(bytes, len) & (v->table_size - 1)]);
}

uint64_t vocabulary_hash(const struct vocabulary *v)
{
    uint64_t hash = HASH_INIT;
    for (size_t i = 0; i < v->n; i++) {
        hash = hash_word(hash, v->tokens[i].there ? v->tokens[i].len : UINT64_MAX);
        hash = hash_bytes(hash, v->bytes.data + v->tokens[i].start, v->tokens[i].len);
    }
    return hash;
}

void vocabulary_free(struct vocabulary *v)
{
    free(v->tokens);
    free(v->table);
    buf_free(&v->bytes);
    *v = (struct vocabulary){0};
}
