/* SPDX-License-Identifier: Apache-2.0 */
/* unigram.h - the unigram language model (Kudo, ACL 2018, arXiv 1804.10959): splits a word into the tokens with the
 * largest sum of log probabilities. */
#ifndef TITAN_WORKER_TOKENIZER_UNIGRAM_H
#define TITAN_WORKER_TOKENIZER_UNIGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/tokenizer/tokenizer.h"
#include "worker/tokenizer/vocabulary.h"

struct edge {
    uint64_t from; /* node << 8 | byte; EDGE_FREE = an empty slot */
    uint32_t to;
};
#define EDGE_FREE UINT64_MAX

struct unigram {
    double *scores; /* log probabilities, by id */
    size_t n_scores, cap_scores;
    double unknown_score; /* score of a character without a token, 10 below the lowest score */
    int32_t unknown;      /* token for adjacent characters without a token */
    bool byte_fallback;   /* use such characters' bytes instead, if each byte has a token */
    int32_t of_byte[256]; /* -1 = none */

    struct edge *edges; /* trie of the tokens' bytes, as a hash table; the size is a power of two */
    size_t n_edges, size;
    int32_t *ids; /* by node: the token that ends at the node; -1 = none */
    size_t n_nodes, cap_nodes;
};

/* A token's score as `tokenizers` reads it, without strtod()'s rounding. value: the double nearest to the file's
 * number. */
double unigram_score(double value);
/* Adds a token to search for in words. */
titan_status unigram_add(struct unigram *u, const char *token, size_t n, int32_t id,
                         struct titan_error *err) TITAN_MUST_USE;
/* Appends the tokens of a word of n bytes of valid UTF-8, less than 2^31. Time O(n x longest token), memory O(n). */
titan_status unigram_encode(const struct unigram *u, const struct vocabulary *v, const char *word, size_t n,
                            struct tokens *out, struct titan_error *err) TITAN_MUST_USE;
void unigram_free(struct unigram *u);

#endif
