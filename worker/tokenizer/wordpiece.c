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

titan_status wordpiece_encode(const struct wordpiece *w, const struct vocabulary *v, const char *word, size_t n,
                              struct tokens *out, struct titan_error *err)
{
    titan_assert(n > 0 && w->unknown >= 0);
    const size_t begin = out->n, prefix = strlen(w->prefix);
    /* The loop writes the prefix over the end of the previous token, whose text is no longer needed. */
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
        /* Finds the longest token that fits. */
        const size_t left = n - at + skip;
        int32_t id = -1;
        for (len = left + 1; id < 0 && --len > skip;)
            id = len < left && continues_character(from[len]) ? -1 : vocabulary_find(v, from, len);
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
