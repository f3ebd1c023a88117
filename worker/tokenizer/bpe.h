/* SPDX-License-Identifier: Apache-2.0 */
/* bpe.h - byte-pair encoding (Sennrich, Haddow and Birch, ACL 2016): the adjacent pair of the lowest rank becomes one
 * token, the leftmost first, until no pair has a rank. */
#ifndef TITAN_WORKER_TOKENIZER_BPE_H
#define TITAN_WORKER_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/tokenizer/tokenizer.h"
#include "worker/tokenizer/vocabulary.h"

struct pair {
    uint64_t both; /* left id << 32 | right id; PAIR_FREE = an empty slot */
    uint32_t rank;
    int32_t id; /* token of the merged pair */
};
#define PAIR_FREE UINT64_MAX

struct bpe {
    struct pair *pairs; /* hash table; the size is a power of two */
    size_t n_pairs, size;
    int32_t of_byte[256]; /* tokens of single bytes, -1 = none */
    bool by_bytes;        /* a word starts as bytes; otherwise as characters found in the vocabulary */
    bool byte_fallback;   /* a character without a token becomes its bytes */
    bool whole_words;     /* a word that is a token becomes that token, regardless of ranks */
    int32_t unknown;      /* token for a part that still has no token; -1 = such parts are dropped */
    bool fuse_unknown;    /* adjacent parts without a token become one unknown token */
};

/* Makes the pair (left, right) merge into id. An existing pair gets the new rank. */
titan_status bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id,
                     struct titan_error *err) TITAN_MUST_USE;
/* Appends the tokens of a word of n bytes, less than 2^31. Time O(n log n), memory O(n). */
titan_status bpe_encode(const struct bpe *b, const struct vocabulary *v, const char *word, size_t n, struct tokens *out,
                        struct titan_error *err) TITAN_MUST_USE;
void bpe_free(struct bpe *b);

#endif
