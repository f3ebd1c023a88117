/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.h - the part of regular expressions that tokenizers cut text with: alternatives of classes of characters,
 * greedy or possessive, over Unicode 16.
 *
 *   a|b  (?:a)  (?i:a)  (a)?  x?  x*  x+  x?+  x*+  x++  x{m,n}      [a-z\p{L}]  [^...]  \p{L}  \P{Lu}
 *   (?!x) for one character x    \s \S \d \D \r \n \t \v \f and punctuation behind a \
 *
 * Whatever else there is in regular expressions is refused by name, and so is a pattern that matches no text at all.
 * Alternatives are tried in their order and repetitions from the longest on, as Perl, Oniguruma and Rust's fancy-regex
 * do. (?i:) folds ASCII letters, with the long s and the Kelvin sign. */
#ifndef TITAN_WORKER_TOKENIZER_PATTERN_H
#define TITAN_WORKER_TOKENIZER_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct pattern;

/* literal: the text itself, without any sign in it. */
titan_status pattern_open(const char *text, bool literal, struct pattern **ret, struct titan_error *err) TITAN_MUST_USE;
void pattern_close(struct pattern *p);

#define PATTERN_NONE 0
#define PATTERN_TOO_LONG ((size_t)-1)
/* Bytes of the match that begins at `at`, of valid UTF-8; PATTERN_NONE: there is none; PATTERN_TOO_LONG: it cannot be
 * told in time that grows with the length of the text. */
size_t pattern_match(const struct pattern *p, const unsigned char *at, const unsigned char *end);

#endif
