/* SPDX-License-Identifier: Apache-2.0 */
/* charsmap.h - a SentencePiece model's table of character replacements ("precompiled_charsmap"): a double array (Aoe,
 * IEEE Trans. Software Eng. 1989) maps a text to an offset, and the replacement is at this offset. The table is applied
 * as the normalizer Precompiled of `tokenizers` does it. */
#ifndef TITAN_WORKER_TOKENIZER_CHARSMAP_H
#define TITAN_WORKER_TOKENIZER_CHARSMAP_H

#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

struct charsmap;

/* base64: from a tokenizer.json. TITAN_EINVAL: not such a table; TITAN_EUNSUPPORTED: a replacement has more than 255
 * bytes. Any accepted table is safe to use. */
titan_status charsmap_open(const char *base64, struct charsmap **ret, struct titan_error *err) TITAN_MUST_USE;
void charsmap_close(struct charsmap *m);
/* Appends the replacement of n bytes of valid UTF-8. */
titan_status charsmap_apply(const struct charsmap *m, const char *text, size_t n, struct buf *out) TITAN_MUST_USE;

#endif
