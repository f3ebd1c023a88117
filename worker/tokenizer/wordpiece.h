/* SPDX-License-Identifier: Apache-2.0 */
/* wordpiece.h - WordPiece (Schuster and Nakajima, ICASSP 2012), as BERT uses it: a word is cut from its beginning into
 * the longest tokens there are; those that do not begin it stand in the vocabulary behind a prefix. */
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
    int64_t max_chars; /* of a word, at most WORDPIECE_CHARS_MAX */
    int32_t unknown;   /* what a longer word becomes, and one that cannot be cut */
};

/* Appends the tokens of a word of n bytes of valid UTF-8, not 0. Time O(max_chars^2) look-ups. */
titan_status wordpiece_encode(const struct wordpiece *w, const struct vocabulary *v, const char *word, size_t n,
                              struct tokens *out, struct titan_error *err) TITAN_MUST_USE;
void wordpiece_free(struct wordpiece *w);

#endif
