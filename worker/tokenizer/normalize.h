/* SPDX-License-Identifier: Apache-2.0 */
/* normalize.h - what is done to a text before it is cut into words. */
#ifndef TITAN_WORKER_TOKENIZER_NORMALIZE_H
#define TITAN_WORKER_TOKENIZER_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

enum normalize_kind {
    NORMALIZE_NFC,
    NORMALIZE_REPLACE, /* every `from` becomes `to` */
    NORMALIZE_PREPEND, /* `to` goes in front */
    NORMALIZE_PREFIX,  /* `to` goes in front of a text that does not begin with it */
    NORMALIZE_PREFIX_1 /* the same, at the very beginning of a text only */
};

struct normalize_step {
    enum normalize_kind kind;
    char *from, *to; /* owned */
};

/* All zero does nothing. */
struct normalizer {
    struct normalize_step *steps;
    size_t n, cap;
};

/* from, to: copied; NULL where the kind has none. */
titan_status normalize_add(struct normalizer *m, enum normalize_kind kind, const char *from, const char *to,
                           struct titan_error *err) TITAN_MUST_USE;
/* Turns *n bytes of valid UTF-8 at *text, not 0, into what the steps make of them, which lies there or in one of the
 * two buffers. first: the text begins here. */
titan_status normalize_text(const struct normalizer *m, bool first, const char **text, size_t *n, struct buf work[2],
                            struct titan_error *err) TITAN_MUST_USE;
void normalize_free(struct normalizer *m);

#endif
