/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/wordpiece.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/vec.h"

static bool continues_character(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* Returns the longest token at the beginning of a text, and its bytes in *ret_len. -1: no token fits. skip: bytes at
 * the beginning that every token has. */
static int32_t longest_token(const struct vocabulary *v, const char *text, size_t n, size_t skip, size_t *ret_len)
{
    titan_assert(skip < n);
    for (size_t len = n; len > skip; len--) {
        const int32_t id = len < n && continues_character(text[len]) ? -1 : vocabulary_find(v, text, len);
        *ret_len = len;
        if (id >= 0)
            return id;
    }
    return -1;
}

titan_status wordpiece_encode(const struct wordpiece *w, const struct vocabulary *v, const char *word, size_t n,
                              struct tokens *out, struct titan_error *err)
{
    titan_assert(n > 0 && w->unknown >= 0);
    const size_t begin = out->n, prefix = strlen(w->prefix);
    /* The loop writes the prefix over the end of the previous token, which it no longer needs. */
    _cleanup_(buf_free) struct buf text = {.limit = SIZE_MAX / 4};
    int64_t chars = 0;
    for (size_t i = 0; i < n && chars <= w->max_chars; i++)
        chars += !continues_character(word[i]);
    bool cut = chars <= w->max_chars;

    if (buf_append(&text, w->prefix, prefix) != TITAN_OK || buf_append(&text, word, n) != TITAN_OK ||
        !VEC_RESERVE(out->ids, out->cap, out->n + n))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a word of %zu bytes", n);
    for (size_t at = 0, len = 0; cut && at < n; at += len) {
        const size_t skip = at > 0 ? prefix : 0;
        char *from = text.data + prefix + at - skip;
        memcpy(from, w->prefix, skip);
        const int32_t id = longest_token(v, from, n - at + skip, skip, &len);
        cut = id >= 0;
        len -= skip;
        if (cut)
            out->ids[out->n++] = id;
    }
    if (!cut) {
        out->n = begin;
        out->ids[out->n++] = w->unknown;
    }
    titan_assert(out->n > begin && out->n <= begin + n);
    return TITAN_OK;
}

void wordpiece_free(struct wordpiece *w)
{
    free(w->prefix);
    *w = (struct wordpiece){0};
}
