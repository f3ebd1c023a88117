/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.h - the subset of regular expressions that tokenizers split text with: alternatives of character classes,
 * greedy or possessive, over Unicode 16.
 *
 *   a|b  (?:a)  (?i:a)  (a)?  x?  x*  x+  x?+  x*+  x++  x{m,n}      [a-z\p{L}]  [^...]  \p{L}  \P{Lu}
 *   (?!x) for one character x    \s \S \d \D \r \n \t \v \f and punctuation behind a \
 *
 * Other constructs of regular expressions are refused by name, and so is a pattern that matches no text at all.
 * Alternatives are tried in order, and repetitions longest first, as in Perl, Oniguruma and Rust's fancy-regex. (?i:)
 * folds ASCII letters, the long s and the Kelvin sign. */
#ifndef TITAN_WORKER_TOKENIZER_PATTERN_H
#define TITAN_WORKER_TOKENIZER_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct pattern;

/* literal: text is matched as it is, without operators. */
titan_status pattern_open(const char *text, bool literal, struct pattern **ret, struct titan_error *err) TITAN_MUST_USE;
void pattern_close(struct pattern *p);

#define PATTERN_NONE 0
#define PATTERN_TOO_LONG ((size_t)-1)
/* Size of the match at `at`, in valid UTF-8; PATTERN_NONE: no match; PATTERN_TOO_LONG: the search took more time than
 * is allowed, a time proportional to the text's length. */
size_t pattern_match(const struct pattern *p, const unsigned char *at, const unsigned char *end);

#endif
