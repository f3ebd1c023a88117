/* SPDX-License-Identifier: Apache-2.0 */
/* grapheme.h - user-perceived characters: extended grapheme clusters (UAX 29), in the Unicode version of the normalizer
 * Precompiled of `tokenizers`. */
#ifndef TITAN_WORKER_TOKENIZER_GRAPHEME_H
#define TITAN_WORKER_TOKENIZER_GRAPHEME_H

#include <stddef.h>

/* Size of the first cluster of n bytes of valid UTF-8; n is not 0. */
size_t grapheme_bytes(const char *text, size_t n);

#endif
