/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/split.h"

#include <stdlib.h>

#include "base/vec.h"
#include "worker/tokenizer/unicode.h"

#define STEPS_MAX 16

struct run {
    const struct split *split;
    split_word word;
    void *with;
    struct titan_error *err;
};

titan_status split_add(struct split *s, const char *pattern, bool literal, enum split_behavior behavior, bool invert,
                       struct titan_error *err)
{
    titan_assert(s->n <= STEPS_MAX);
    struct split_step step = {.behavior = behavior, .invert = invert};
    if (s->n == STEPS_MAX)
        return titan_fail(err, TITAN_EUNSUPPORTED, "more than %d patterns that cut text", STEPS_MAX);
    if (!VEC_RESERVE(s->steps, s->cap, s->n + 1))
        return titan_fail(err, TITAN_ENOMEM, "no memory for a pattern");
    TRY(pattern_open(pattern, literal, &step.pattern, err));
    s->steps[s->n++] = step;
    return TITAN_OK;
}

void split_free(struct split *s)
{
    for (size_t i = 0; i < s->n; i++)
        pattern_close(s->steps[i].pattern);
    free(s->steps);
    *s = (struct split){0};
}

static titan_status cut(struct run *r, size_t step, const char *text, size_t n);

/* A piece that is not passed on yet, because the next part may belong to it. */
struct pending {
    const char *begin, *end; /* NULL: none */
    bool match;              /* the piece's last part is a match */
};

static titan_status give(struct run *r, size_t step, struct pending *p)
{
    titan_assert(step < r->split->n);
    const struct pending piece = *p;
    p->begin = NULL;
    return piece.begin ? cut(r, step + 1, piece.begin, (size_t)(piece.end - piece.begin)) : TITAN_OK;
}

/* Takes the next part of the text: a match, or the text between two matches. */
static titan_status take(struct run *r, size_t i, struct pending *p, const char *begin, const char *end, bool match)
{
    titan_assert(i < r->split->n && begin <= end);
    const struct split_step *step = &r->split->steps[i];
    bool joins = false;
    if (begin == end)
        return TITAN_OK;
    match ^= step->invert;
    switch (step->behavior) {
    case SPLIT_ISOLATED:
        return cut(r, i + 1, begin, (size_t)(end - begin));
    case SPLIT_REMOVED:
        return match ? TITAN_OK : cut(r, i + 1, begin, (size_t)(end - begin));
    case SPLIT_MERGED_BEFORE:
        joins = match && !p->match;
        break;
    case SPLIT_MERGED_BEHIND:
        joins = !match && p->match;
        break;
    case SPLIT_CONTIGUOUS:
        joins = match == p->match;
    }
    if (!p->begin || !joins) {
        TRY(give(r, i, p));
        p->begin = begin;
    }
    p->end = end;
    p->match = match;
    return TITAN_OK;
}

/* Cuts a text by step i and the later steps. It recurses from step to step, at most STEPS_MAX deep. */
static titan_status cut(struct run *r, size_t i, const char *text, size_t n)
{
    titan_assert(i <= r->split->n);
    if (i == r->split->n)
        return n ? r->word(r->with, text, n, r->err) : TITAN_OK;
    const struct pattern *pattern = r->split->steps[i].pattern;
    const char *end = text + n, *between = text;
    struct pending p = {0};
    for (const char *at = text; at < end;) {
        const size_t len = pattern_match(pattern, (const unsigned char *)at, (const unsigned char *)end);
        if (len == PATTERN_TOO_LONG)
            return titan_fail(r->err, TITAN_ELIMIT, "a pattern of the tokenizer takes too long on this text");
        if (len == PATTERN_NONE) {
            size_t skipped;
            (void)utf8_code((const unsigned char *)at, &skipped);
            at += skipped;
            continue;
        }
        TRY(take(r, i, &p, between, at, false));
        TRY(take(r, i, &p, at, at + len, true));
        at += len;
        between = at;
    }
    TRY(take(r, i, &p, between, end, false));
    return give(r, i, &p);
}

titan_status split_text(const struct split *s, const char *text, size_t n, split_word word, void *with,
                        struct titan_error *err)
{
    struct run r = {.split = s, .word = word, .with = with, .err = err};
    return cut(&r, 0, text, n);
}
