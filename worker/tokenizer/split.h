/* SPDX-License-Identifier: Apache-2.0 */
/* split.h - splits text into words by a sequence of patterns: each splits the pieces of the previous pattern. The
 * behaviors are the same as in the pre-tokenizer Split of `tokenizers`. */
#ifndef TITAN_WORKER_TOKENIZER_SPLIT_H
#define TITAN_WORKER_TOKENIZER_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "worker/tokenizer/pattern.h"

enum split_behavior {
    SPLIT_ISOLATED,      /* matches and the text between them are pieces */
    SPLIT_REMOVED,       /* only the text between matches is a piece */
    SPLIT_MERGED_BEFORE, /* a match joins the text before it */
    SPLIT_MERGED_BEHIND, /* a match joins the text after it */
    SPLIT_CONTIGUOUS     /* adjacent matches are one piece */
};

struct split_step {
    struct pattern *pattern; /* owned */
    enum split_behavior behavior;
    bool invert; /* swap matches and the text between them */
};

/* Zeroed = the text stays whole. */
struct split {
    struct split_step *steps;
    size_t n, cap;
};

typedef titan_status (*split_word)(void *with, const char *word, size_t n, struct titan_error *err);

titan_status split_add(struct split *s, const char *pattern, bool literal, enum split_behavior behavior, bool invert,
                       struct titan_error *err) TITAN_MUST_USE;
/* Calls word for each piece of n bytes of valid UTF-8, in order; never for an empty piece. TITAN_ELIMIT: a pattern
 * takes too long on this text (pattern_match()). */
titan_status split_text(const struct split *s, const char *text, size_t n, split_word word, void *with,
                        struct titan_error *err) TITAN_MUST_USE;
void split_free(struct split *s);

#endif
