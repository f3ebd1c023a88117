/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/charsmap.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "worker/tokenizer/base64.h"
#include "worker/tokenizer/grapheme.h"
#include "worker/tokenizer/unicode.h"

/* A longer cluster is looked up character by character. */
#define CLUSTER_BYTES 6
#define TEXT_BYTES_MAX 255
#define LABEL(unit) ((unit) & (UINT32_C(1) << 31 | 0xff))
#define OFFSET(unit) ((size_t)((unit) >> 10) << (((unit) & (UINT32_C(1) << 9)) >> 6))
#define HAS_VALUE(unit) ((unit) >> 8 & 1)
#define VALUE(unit) ((unit) & (UINT32_MAX >> 1))

struct charsmap {
    uint32_t *units;
    size_t n;
    char *texts; /* each ends in a NUL */
    size_t n_texts;
};

/* Bytes of the longest text that a character may become. */
static size_t longest_text(const char *texts, size_t n)
{
    size_t longest = 0, begin = 0;
    for (size_t i = 0; i <= n; i++)
        if (i == n || texts[i] == '\0') {
            longest = MAX(longest, i - begin);
            begin = i + 1;
        }
    return longest;
}

titan_status charsmap_open(const char *base64, struct charsmap **ret, struct titan_error *err)
{
    const size_t n = strlen(base64);
    struct charsmap *m = calloc(1, sizeof(*m));
    unsigned char *bytes = malloc(n / 4 * 3 + 1);
    const ptrdiff_t len = bytes ? base64_read(base64, n, bytes) : 0;
    uint32_t size = 0;
    titan_status status = TITAN_OK;

    if (len >= 4)
        memcpy(&size, bytes, 4);
    if (!m || !bytes)
        status = titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of precompiled_charsmap", n);
    else if (len < 4 || size % 4 || size == 0 || size > (size_t)len - 4)
        status = titan_fail(err, TITAN_EINVAL, "precompiled_charsmap is not a table of SentencePiece");
    else if (utf8_check((char *)bytes + 4 + size, (size_t)len - 4 - size) != (size_t)len - 4 - size)
        status = titan_fail(err, TITAN_EINVAL, "precompiled_charsmap has text that is no UTF-8");
    else if (longest_text((char *)bytes + 4 + size, (size_t)len - 4 - size) > TEXT_BYTES_MAX)
        status = titan_fail(err, TITAN_EUNSUPPORTED, "precompiled_charsmap turns a character into more than %d bytes",
                            TEXT_BYTES_MAX);
    if (status == TITAN_OK) {
        m->n = size / 4;
        m->n_texts = (size_t)len - 4 - size;
        m->units = malloc(size);
        m->texts = malloc(m->n_texts + 1);
        if (!m->units || !m->texts)
            status = titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of precompiled_charsmap", n);
    }
    if (status == TITAN_OK) {
        memcpy(m->units, bytes + 4, size);
        memcpy(m->texts, bytes + 4 + size, m->n_texts);
        m->texts[m->n_texts] = '\0';
        *ret = m;
        m = NULL;
    }
    charsmap_close(m);
    free(bytes);
    return status;
}

void charsmap_close(struct charsmap *m)
{
    if (!m)
        return;
    free(m->units);
    free(m->texts);
    free(m);
}

/* Returns the replacement of the text's shortest prefix that is in the table. NULL: no prefix is in the table. */
static const char *find(const struct charsmap *m, const char *text, size_t n)
{
    titan_assert(m->n > 0);
    size_t at = OFFSET(m->units[0]);
    for (size_t i = 0; i < n && text[i]; i++) {
        at ^= (unsigned char)text[i];
        if (at >= m->n || LABEL(m->units[at]) != (unsigned char)text[i])
            return NULL;
        const uint32_t unit = m->units[at];
        at ^= OFFSET(unit);
        if (!HAS_VALUE(unit))
            continue;
        const size_t value = at < m->n ? VALUE(m->units[at]) : m->n_texts;
        return value < m->n_texts && ((unsigned char)m->texts[value] & 0xc0) != 0x80 ? m->texts + value : NULL;
    }
    return NULL;
}

titan_status charsmap_apply(const struct charsmap *m, const char *text, size_t n, struct buf *out)
{
    titan_assert(text || n == 0);
    for (size_t at = 0, cluster; at < n; at += cluster) {
        cluster = grapheme_bytes(text + at, n - at);
        const char *becomes = cluster < CLUSTER_BYTES ? find(m, text + at, cluster) : NULL;
        if (becomes) {
            TRY(buf_append(out, becomes, strlen(becomes)));
            continue;
        }
        for (size_t i = at, len; i < at + cluster; i += len) {
            (void)utf8_code((const unsigned char *)text + i, &len);
            becomes = find(m, text + i, len);
            TRY(becomes ? buf_append(out, becomes, strlen(becomes)) : buf_append(out, text + i, len));
        }
    }
    return TITAN_OK;
}
