/* SPDX-License-Identifier: Apache-2.0 */
/* normalize.h - what is done to a text before it is cut into words. */
#ifndef TITAN_WORKER_TOKENIZER_NORMALIZE_H
#define TITAN_WORKER_TOKENIZER_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"
#include "worker/tokenizer/charsmap.h"
#include "worker/tokenizer/pattern.h"
#include "worker/tokenizer/unicode.h"

enum normalize_kind {
    NORMALIZE_FORM,        /* a normal form */
    NORMALIZE_REPLACE,     /* every `from` becomes `to` */
    NORMALIZE_PATTERN,     /* so does every match of a pattern */
    NORMALIZE_PREPEND,     /* `to` goes in front */
    NORMALIZE_PREFIX,      /* `to` goes in front of a text that does not begin with it */
    NORMALIZE_PREFIX_1,    /* the same, at the very beginning of a text only */
    NORMALIZE_PREFIX_WORD, /* in front of each word that does not, in place of the white space around it */
    NORMALIZE_STRIP_LEFT,  /* white space at the beginning goes, */
    NORMALIZE_STRIP_RIGHT, /* at the end */
    NORMALIZE_LOWER,       /* small letters */
    NORMALIZE_CLEAN,       /* control characters go, white space becomes spaces: BERT */
    NORMALIZE_IDEOGRAPHS,  /* spaces around each Chinese character: BERT */
    NORMALIZE_ACCENTS,     /* nonspacing marks go */
    NORMALIZE_MARKS,       /* all marks go */
    NORMALIZE_NMT,         /* control characters go, marks of direction and the like become spaces: SentencePiece */
    NORMALIZE_CHARSMAP     /* a table of a SentencePiece model */
};

struct normalize_step {
    enum normalize_kind kind;
    enum unicode_form form;
    char *from, *to;           /* owned */
    struct pattern *pattern;   /* owned */
    struct charsmap *charsmap; /* owned */
};

/* All zero does nothing. */
struct normalizer {
    struct normalize_step *steps;
    size_t n, cap;
};

/* The step's texts are copied; its pattern and its table become the normalizer's, also on failure. */
titan_status normalize_add(struct normalizer *m, struct normalize_step step, struct titan_error *err) TITAN_MUST_USE;
/* Turns *n bytes of valid UTF-8 at *text, not 0, into what the steps make of them, which lies there or in one of the
 * two buffers. first: the text begins here. TITAN_ELIMIT: a pattern takes too long on this text. */
titan_status normalize_text(const struct normalizer *m, bool first, const char **text, size_t *n, struct buf work[2],
                            struct titan_error *err) TITAN_MUST_USE;
/* n bytes of text with `to` in place of every `from`, not empty, appended. */
titan_status normalize_replace(const char *text, size_t n, const char *from, const char *to,
                               struct buf *out) TITAN_MUST_USE;
void normalize_free(struct normalizer *m);

#endif
