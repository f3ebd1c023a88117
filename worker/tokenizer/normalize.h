/* SPDX-License-Identifier: Apache-2.0 */
/* normalize.h - changes to a text before it is split into words. */
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
    NORMALIZE_FORM,        /* convert to a normal form */
    NORMALIZE_REPLACE,     /* replace every `from` by `to` */
    NORMALIZE_PATTERN,     /* replace every match of a pattern by `to` */
    NORMALIZE_PREPEND,     /* prepend `to` */
    NORMALIZE_PREFIX,      /* prepend `to` unless the text begins with it */
    NORMALIZE_PREFIX_1,    /* like NORMALIZE_PREFIX, but only at the very beginning of a text */
    NORMALIZE_PREFIX_WORD, /* remove white space; prepend `to` to each word that does not begin with it */
    NORMALIZE_STRIP_LEFT,  /* remove white space at the beginning */
    NORMALIZE_STRIP_RIGHT, /* remove white space at the end */
    NORMALIZE_LOWER,       /* convert to lower case */
    NORMALIZE_CLEAN,       /* remove control characters, turn white space into spaces: BERT */
    NORMALIZE_IDEOGRAPHS,  /* put spaces around each Chinese character: BERT */
    NORMALIZE_ACCENTS,     /* remove nonspacing marks */
    NORMALIZE_MARKS,       /* remove all marks */
    NORMALIZE_NMT,         /* remove control characters, turn direction marks and the like into spaces: SentencePiece */
    NORMALIZE_CHARSMAP     /* apply a table of a SentencePiece model */
};

struct normalize_step {
    enum normalize_kind kind;
    enum unicode_form form;
    char *from, *to;           /* owned */
    struct pattern *pattern;   /* owned */
    struct charsmap *charsmap; /* owned */
};

/* Zeroed = no change. */
struct normalizer {
    struct normalize_step *steps;
    size_t n, cap;
};

/* Copies the step's texts. Takes ownership of the step's pattern and table, also on failure. */
titan_status normalize_add(struct normalizer *m, struct normalize_step step, struct titan_error *err) TITAN_MUST_USE;
/* Applies the steps to *n bytes of valid UTF-8 at *text; *n is not 0. The result stays at *text or lies in one of the
 * two buffers. first: this is the beginning of the text. TITAN_ELIMIT: a pattern takes too long on this text. */
titan_status normalize_text(const struct normalizer *m, bool first, const char **text, size_t *n, struct buf work[2],
                            struct titan_error *err) TITAN_MUST_USE;
/* Appends n bytes of text with every `from` replaced by `to`; from is not empty. */
titan_status normalize_replace(const char *text, size_t n, const char *from, const char *to,
                               struct buf *out) TITAN_MUST_USE;
void normalize_free(struct normalizer *m);

#endif
