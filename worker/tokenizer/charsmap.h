/* SPDX-License-Identifier: Apache-2.0 */
/* charsmap.h - the table of a SentencePiece model that says what characters become ("precompiled_charsmap"): a double
 * array (Aoe, IEEE Trans. Software Eng. 1989) from text to an offset, and the texts there. It is applied as the
 * normalizer Precompiled of `tokenizers` does. */
#ifndef TITAN_WORKER_TOKENIZER_CHARSMAP_H
#define TITAN_WORKER_TOKENIZER_CHARSMAP_H

#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

struct charsmap;

/* base64: as a tokenizer.json has it. TITAN_EINVAL: it is no such table; TITAN_EUNSUPPORTED: a
 * character becomes more than 255 bytes. Any table that is accepted is safe to use. */
titan_status charsmap_open(const char *base64, struct charsmap **ret, struct titan_error *err) TITAN_MUST_USE;
void charsmap_close(struct charsmap *m);
/* What n bytes of valid UTF-8 become, appended. */
titan_status charsmap_apply(const struct charsmap *m, const char *text, size_t n, struct buf *out) TITAN_MUST_USE;

#endif
