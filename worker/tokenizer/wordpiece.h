/* SPDX-License-Identifier: Apache-2.0 */
/* wordpiece.h - WordPiece (Schuster and Nakajima, ICASSP 2012), as BERT uses it: splits a word from its start into the
 * longest tokens. Tokens inside a word have a prefix in the vocabulary. */
#ifndef TITAN_WORKER_TOKENIZER_WORDPIECE_H
#define TITAN_WORKER_TOKENIZER_WORDPIECE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/tokenizer/tokenizer.h"
#include "worker/tokenizer/vocabulary.h"

#define WORDPIECE_CHARS_MAX 1000

struct wordpiece {
    char *prefix;      /* owned */
    int64_t max_chars; /* per word, at most WORDPIECE_CHARS_MAX */
    int32_t unknown;   /* token for a longer word, and for a word that cannot be split */
};

/* Appends the tokens of a word of n bytes of valid UTF-8; n is not 0. Time O(max_chars^2) look-ups. */
titan_status wordpiece_encode(const struct wordpiece *w, const struct vocabulary *v, const char *word, size_t n,
                              struct tokens *out, struct titan_error *err) TITAN_MUST_USE;
void wordpiece_free(struct wordpiece *w);

#endif
