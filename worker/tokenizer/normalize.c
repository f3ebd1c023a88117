/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/normalize.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "worker/tokenizer/unicode.h"

#define STEPS_MAX 16

titan_status normalize_add(struct normalizer *m, enum normalize_kind kind, const char *from, const char *to,
                           struct titan_error *err)
{
    titan_assert(m->n <= STEPS_MAX);
    struct normalize_step step = {.kind = kind};
    if (m->n == STEPS_MAX)
        return titan_fail(err, TITAN_EUNSUPPORTED, "more than %d normalizers", STEPS_MAX);
    if (kind == NORMALIZE_REPLACE && !*from)
        return titan_fail(err, TITAN_EINVAL, "a normalizer replaces an empty text");
    step.from = from ? strdup(from) : NULL;
    step.to = to ? strdup(to) : NULL;
    if ((from && !step.from) || (to && !step.to) || !VEC_PUSH(m->steps, m->n, m->cap, step)) {
        free(step.from);
        free(step.to);
        return titan_fail(err, TITAN_ENOMEM, "no memory for a normalizer");
    }
    return TITAN_OK;
}

void normalize_free(struct normalizer *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free(m->steps[i].from);
        free(m->steps[i].to);
    }
    free(m->steps);
    *m = (struct normalizer){0};
}

static titan_status replace(const struct normalize_step *step, const char *text, size_t n, struct buf *out)
{
    const size_t from = strlen(step->from), to = strlen(step->to);
    titan_assert(from > 0);
    for (const char *end = text + n;;) {
        const char *found = memmem(text, (size_t)(end - text), step->from, from);
        TRY(buf_append(out, text, (size_t)((found ? found : end) - text)));
        if (!found)
            return TITAN_OK;
        TRY(buf_append(out, step->to, to));
        text = found + from;
    }
}

static bool begins_with(const char *text, size_t n, const char *prefix)
{
    const size_t len = strlen(prefix);
    return n >= len && memcmp(text, prefix, len) == 0;
}

/* Whether the step leaves the text as it is. */
static bool is_idle(const struct normalize_step *step, bool first, const char *text, size_t n)
{
    titan_assert(n > 0);
    switch (step->kind) {
    case NORMALIZE_NFC:
        return unicode_nfc_prefix(text, n) == n;
    case NORMALIZE_REPLACE:
        return !memmem(text, n, step->from, strlen(step->from));
    case NORMALIZE_PREPEND:
        return false;
    case NORMALIZE_PREFIX:
        return begins_with(text, n, step->to);
    case NORMALIZE_PREFIX_1:
        return !first || begins_with(text, n, step->to);
    }
    return true;
}

static titan_status apply(const struct normalize_step *step, const char *text, size_t n, struct buf *out)
{
    switch (step->kind) {
    case NORMALIZE_NFC:
        return unicode_nfc(text, n, out);
    case NORMALIZE_REPLACE:
        return replace(step, text, n, out);
    default:
        TRY(buf_append(out, step->to, strlen(step->to)));
        return buf_append(out, text, n);
    }
}

titan_status normalize_text(const struct normalizer *m, bool first, const char **text, size_t *n, struct buf work[2],
                            struct titan_error *err)
{
    for (size_t i = 0; i<m->n && * n> 0; i++) {
        const struct normalize_step *step = &m->steps[i];
        if (is_idle(step, first, *text, *n))
            continue;
        struct buf *out = &work[*text == work[0].data];
        titan_assert(out->data != *text || !*text);
        buf_clear(out);
        out->limit = SIZE_MAX / 4;
        if (apply(step, *text, *n, out) != TITAN_OK)
            return titan_fail(err, TITAN_ENOMEM, "no memory to normalize %zu bytes of text", *n);
        *text = out->data;
        *n = out->len;
    }
    return TITAN_OK;
}
