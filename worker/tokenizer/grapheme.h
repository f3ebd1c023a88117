/* SPDX-License-Identifier: Apache-2.0 */
/* grapheme.h - characters as people see them: extended grapheme clusters (UAX 29), of the Unicode that the normalizer
 * Precompiled of `tokenizers` knows. */
#ifndef TITAN_WORKER_TOKENIZER_GRAPHEME_H
#define TITAN_WORKER_TOKENIZER_GRAPHEME_H

#include <stddef.h>

/* Bytes of the cluster at the beginning of n bytes of valid UTF-8, not 0. */
size_t grapheme_bytes(const char *text, size_t n);

#endif
