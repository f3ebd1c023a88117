/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/normalize.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"

#define STEPS_MAX 16

static void free_step(struct normalize_step *step)
{
    free(step->from);
    free(step->to);
    pattern_close(step->pattern);
    charsmap_close(step->charsmap);
}

titan_status normalize_add(struct normalizer *m, struct normalize_step step, struct titan_error *err)
{
    titan_assert(m->n <= STEPS_MAX);
    const bool full = m->n == STEPS_MAX, empty = step.kind == NORMALIZE_REPLACE && !*step.from;
    const char *from = step.from, *to = step.to;
    step.from = from ? strdup(from) : NULL;
    step.to = to ? strdup(to) : NULL;
    const bool copied = (!from || step.from) && (!to || step.to);
    if (copied && !full && !empty && VEC_PUSH(m->steps, m->n, m->cap, step))
        return TITAN_OK;
    free_step(&step);
    if (full)
        return titan_fail(err, TITAN_EUNSUPPORTED, "more than %d normalizers", STEPS_MAX);
    return empty ? titan_fail(err, TITAN_EINVAL, "a normalizer replaces an empty text")
                 : titan_fail(err, TITAN_ENOMEM, "no memory for a normalizer");
}

void normalize_free(struct normalizer *m)
{
    for (size_t i = 0; i < m->n; i++)
        free_step(&m->steps[i]);
    free(m->steps);
    *m = (struct normalizer){0};
}

/* --- texts -------------------------------------------------------------------------------------------------------- */

titan_status normalize_replace(const char *text, size_t n, const char *from, const char *to, struct buf *out)
{
    const size_t from_len = strlen(from), to_len = strlen(to);
    titan_assert(from_len > 0);
    for (const char *end = text + n; n > 0;) {
        const char *found = memmem(text, (size_t)(end - text), from, from_len);
        TRY(buf_append(out, text, (size_t)((found ? found : end) - text)));
        if (!found)
            return TITAN_OK;
        TRY(buf_append(out, to, to_len));
        text = found + from_len;
    }
    return TITAN_OK;
}

static bool begins_with(const char *text, size_t n, const char *prefix)
{
    const size_t len = strlen(prefix);
    return n >= len && memcmp(text, prefix, len) == 0;
}

/* --- characters --------------------------------------------------------------------------------------------------- */

static titan_status put_characters(enum normalize_kind kind, const char *text, size_t n, struct buf *out)
{
    static const struct code_range ideographs[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},
                                                   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f},
                                                   {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
    for (size_t at = 0, len; at < n; at += len) {
        const uint32_t code = utf8_code((const unsigned char *)text + at, &len);
        uint32_t becomes = code;
        bool goes = false, alone = false;
        switch (kind) {
        case NORMALIZE_LOWER:
            TRY(unicode_lower(code, out));
            continue;
        case NORMALIZE_IDEOGRAPHS:
            for (size_t i = 0; i < ARRAY_SIZE(ideographs); i++)
                alone |= code >= ideographs[i].first && code <= ideographs[i].last;
            break;
        case NORMALIZE_CLEAN:
            goes = code == 0 || unicode_has(UNICODE_CONTROLS, code);
            becomes = unicode_is_space(code) ? ' ' : code;
            break;
        case NORMALIZE_ACCENTS:
            goes = unicode_has(UNICODE_ACCENTS, code);
            break;
        case NORMALIZE_MARKS:
            goes = unicode_has(UNICODE_MARKS, code);
            break;
        default: /* NMT turns a character into itself, a space, or nothing */
            titan_assert(kind == NORMALIZE_NMT);
            goes = (code >= 0x01 && code <= 0x08) || code == 0x0b || (code >= 0x0e && code <= 0x1f) || code == 0x7f ||
                   code == 0x8f || code == 0x9f;
            if (code == 0x09 || code == 0x0a || code == 0x0c || code == 0x0d || code == 0x1680 ||
                (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
                code == 0xfeff || code == 0xfffd)
                becomes = ' ';
        }
        if (goes)
            continue;
        TRY(buf_append(out, " ", alone));
        TRY(becomes == code ? buf_append(out, text + at, len) : buf_append(out, " ", 1));
        TRY(buf_append(out, " ", alone));
    }
    return TITAN_OK;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Does the step leave the text unchanged? Also false if the answer would take long. */
static bool is_idle(const struct normalize_step *step, bool first, const char *text, size_t n)
{
    titan_assert(n > 0);
    switch (step->kind) {
    case NORMALIZE_FORM:
        return unicode_kept(step->form, text, n) == n;
    case NORMALIZE_REPLACE:
        return !memmem(text, n, step->from, strlen(step->from));
    case NORMALIZE_PREFIX:
        return begins_with(text, n, step->to);
    case NORMALIZE_PREFIX_1:
        return !first || begins_with(text, n, step->to);
    default:
        return false;
    }
}

static titan_status apply(const struct normalize_step *step, const char *text, size_t n, struct buf *out)
{
    const unsigned char *const p = (const unsigned char *)text;
    size_t at, len;
    switch (step->kind) {
    case NORMALIZE_FORM:
        return unicode_normalize(step->form, text, n, out);
    case NORMALIZE_REPLACE:
        return normalize_replace(text, n, step->from, step->to, out);
    case NORMALIZE_PATTERN:
        for (at = 0; at < n; at += len) {
            len = pattern_match(step->pattern, p + at, p + n);
            if (len == PATTERN_TOO_LONG)
                return TITAN_ELIMIT;
            const bool matches = len != PATTERN_NONE;
            if (!matches)
                (void)utf8_code(p + at, &len);
            TRY(matches ? buf_append(out, step->to, strlen(step->to)) : buf_append(out, p + at, len));
        }
        return TITAN_OK;
    case NORMALIZE_PREPEND:
    case NORMALIZE_PREFIX:
    case NORMALIZE_PREFIX_1:
        TRY(buf_append(out, step->to, strlen(step->to)));
        return buf_append(out, text, n);
    case NORMALIZE_PREFIX_WORD:
        titan_assert(*step->to);
        for (at = unicode_leading_space(text, n); at < n; at += unicode_leading_space(text + at, n - at)) {
            const size_t begin = at;
            for (; at < n && !unicode_is_space(utf8_code(p + at, &len)); at += len)
                continue;
            if (!begins_with(text + begin, at - begin, step->to))
                TRY(buf_append(out, step->to, strlen(step->to)));
            TRY(buf_append(out, text + begin, at - begin));
        }
        return TITAN_OK;
    case NORMALIZE_STRIP_LEFT:
        at = unicode_leading_space(text, n);
        return buf_append(out, text + at, n - at);
    case NORMALIZE_STRIP_RIGHT:
        return buf_append(out, text, unicode_without_trailing_space(text, n));
    case NORMALIZE_CHARSMAP:
        return charsmap_apply(step->charsmap, text, n, out);
    default:
        return put_characters(step->kind, text, n, out);
    }
}

titan_status normalize_text(const struct normalizer *m, bool first, const char **text, size_t *n, struct buf work[2],
                            struct titan_error *err)
{
    for (size_t i = 0; i < m->n && 0 < *n; i++) {
        titan_assert(*text);
        const struct normalize_step *step = &m->steps[i];
        if (is_idle(step, first, *text, *n))
            continue;
        struct buf *out = &work[*text == work[0].data];
        titan_assert(out->data != *text);
        buf_clear(out);
        out->limit = SIZE_MAX / 4;
        const titan_status status = apply(step, *text, *n, out);
        if (status == TITAN_ELIMIT)
            return titan_fail(err, status, "a pattern of the tokenizer takes too long on this text");
        if (status != TITAN_OK)
            return titan_fail(err, TITAN_ENOMEM, "no memory to normalize %zu bytes of text", *n);
        *text = out->data ? out->data : "";
        *n = out->len;
    }
    return TITAN_OK;
}
