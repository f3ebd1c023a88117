/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/grapheme.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "worker/tokenizer/unicode.h"

/* Grapheme_Cluster_Break, with Indic_Conjunct_Break and Extended_Pictographic where they matter. */
enum grapheme_class {
    GRAPHEME_OTHER,
    GRAPHEME_CONTROL,
    GRAPHEME_EXTEND, /* joins the character before it, and ends a conjunct */
    GRAPHEME_INNER,  /* joins the character before it, and may stand in a conjunct */
    GRAPHEME_LINKER, /* joins the character before it, and makes a conjunct */
    GRAPHEME_JOINER, /* U+200D */
    GRAPHEME_SPACING,
    GRAPHEME_PREPEND,
    GRAPHEME_REGIONAL,
    GRAPHEME_LEAD,
    GRAPHEME_VOWEL,
    GRAPHEME_TAIL,
    GRAPHEME_SYLLABLE, /* the code point tells whether it has a tail */
    GRAPHEME_PICTURE,
    GRAPHEME_CONSONANT
};

struct grapheme_range {
    uint32_t first;
    enum grapheme_class class;
};

#include "worker/tokenizer/grapheme_tables.h"

#define HANGUL_S 0xac00u
#define HANGUL_TS 28u

static enum grapheme_class class_of(uint32_t code)
{
    size_t lo = 0, hi = ARRAY_SIZE(grapheme_ranges);
    while (hi - lo > 1) {
        const size_t mid = lo + (hi - lo) / 2;
        if (grapheme_ranges[mid].first <= code)
            lo = mid;
        else
            hi = mid;
    }
    return grapheme_ranges[lo].class;
}

size_t grapheme_bytes(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t at, len;
    uint32_t code = utf8_code(p, &at);
    enum grapheme_class left = class_of(code);
    /* picture: a picture and only extending characters precede; linked: a linker came after the consonant */
    bool picture = left == GRAPHEME_PICTURE, linked = false;
    bool consonant = left == GRAPHEME_CONSONANT;
    bool regional = left == GRAPHEME_REGIONAL; /* a regional indicator that still lacks its second */
    titan_assert(n > 0 && at <= n);

    for (; at < n; at += len) {
        const uint32_t next = utf8_code(p + at, &len);
        const enum grapheme_class right = class_of(next);
        const bool extends = right >= GRAPHEME_EXTEND && right <= GRAPHEME_JOINER;
        bool joins = extends || right == GRAPHEME_SPACING || left == GRAPHEME_PREPEND;
        /* Hangul: which class may follow `left` in a syllable (rules 6 to 8). */
        const bool tailless = left == GRAPHEME_SYLLABLE && (code - HANGUL_S) % HANGUL_TS == 0;
        if (left == GRAPHEME_LEAD)
            joins |= right == GRAPHEME_LEAD || right == GRAPHEME_VOWEL || right == GRAPHEME_SYLLABLE;
        else if (left == GRAPHEME_VOWEL || tailless)
            joins |= right == GRAPHEME_VOWEL || right == GRAPHEME_TAIL;
        else
            joins |= (left == GRAPHEME_TAIL || left == GRAPHEME_SYLLABLE) && right == GRAPHEME_TAIL;
        joins |= consonant && linked && right == GRAPHEME_CONSONANT;
        joins |= left == GRAPHEME_JOINER && picture && right == GRAPHEME_PICTURE;
        joins |= left == GRAPHEME_REGIONAL && regional && right == GRAPHEME_REGIONAL;
        if (left == GRAPHEME_CONTROL || right == GRAPHEME_CONTROL)
            joins = code == '\r' && next == '\n';
        if (!joins)
            break;
        linked = right == GRAPHEME_LINKER || (linked && extends && right != GRAPHEME_EXTEND);
        consonant = right == GRAPHEME_CONSONANT || (consonant && extends && right != GRAPHEME_EXTEND);
        picture = right == GRAPHEME_PICTURE || (picture && extends && left != GRAPHEME_JOINER);
        regional = right == GRAPHEME_REGIONAL && !(left == GRAPHEME_REGIONAL && regional);
        left = right;
        code = next;
    }
    return at;
}
