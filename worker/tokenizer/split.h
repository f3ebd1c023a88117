/* SPDX-License-Identifier: Apache-2.0 */
/* split.h - text cut into words by patterns, one after the other: each cuts the pieces of the one before. Behaviours
 * are those of the pre-tokenizer Split of `tokenizers`. */
#ifndef TITAN_WORKER_TOKENIZER_SPLIT_H
#define TITAN_WORKER_TOKENIZER_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "worker/tokenizer/pattern.h"

enum split_behavior {
    SPLIT_ISOLATED,      /* what matches and what lies between are pieces */
    SPLIT_REMOVED,       /* what lies between is a piece */
    SPLIT_MERGED_BEFORE, /* a match belongs to what lies in front of it */
    SPLIT_MERGED_BEHIND, /* a match belongs to what lies behind it */
    SPLIT_CONTIGUOUS     /* matches side by side are one piece */
};

struct split_step {
    struct pattern *pattern; /* owned */
    enum split_behavior behavior;
    bool invert; /* what lies between counts as the match, and the other way round */
};

/* All zero leaves a text whole. */
struct split {
    struct split_step *steps;
    size_t n, cap;
};

typedef titan_status (*split_word)(void *with, const char *word, size_t n, struct titan_error *err);

titan_status split_add(struct split *s, const char *pattern, bool literal, enum split_behavior behavior, bool invert,
                       struct titan_error *err) TITAN_MUST_USE;
/* Calls word for each piece of n bytes of valid UTF-8, in their order; never with an empty one. TITAN_ELIMIT: a pattern
 * takes too long on this text (pattern_match()). */
titan_status split_text(const struct split *s, const char *text, size_t n, split_word word, void *with,
                        struct titan_error *err) TITAN_MUST_USE;
void split_free(struct split *s);

#endif
