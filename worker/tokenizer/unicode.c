/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/unicode.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "base/vec.h"

struct class_range {
    uint32_t first;
    uint8_t class;
};
struct decomposition {
    uint32_t code, first, second; /* second 0: no second character */
    bool composes;
};
struct compatible {
    uint32_t code;
    const char *text;
};
struct lower_run {
    uint32_t first, last, step;
    int32_t add;
};

#include "worker/tokenizer/unicode_tables.h"

#define HANGUL_S 0xac00u
#define HANGUL_L 0x1100u
#define HANGUL_V 0x1161u
#define HANGUL_T 0x11a7u
#define HANGUL_VS 21u
#define HANGUL_TS 28u
#define HANGUL_LS 19u
#define HANGUL_SS (HANGUL_LS * HANGUL_VS * HANGUL_TS)

const struct category_range *unicode_categories(size_t *ret_n)
{
    *ret_n = ARRAY_SIZE(categories);
    return categories;
}

/* --- text that is no UTF-8 ---------------------------------------------------------------------------------------- */

titan_status unicode_mend(const char *text, size_t n, struct buf *out)
{
    static const struct {
        unsigned char lead_from, lead_to, from, to;
        int more;
    } rows[] = {{0xc2, 0xdf, 0x80, 0xbf, 1}, {0xe0, 0xe0, 0xa0, 0xbf, 2}, {0xe1, 0xec, 0x80, 0xbf, 2},
                {0xed, 0xed, 0x80, 0x9f, 2}, {0xee, 0xef, 0x80, 0xbf, 2}, {0xf0, 0xf0, 0x90, 0xbf, 3},
                {0xf1, 0xf3, 0x80, 0xbf, 3}, {0xf4, 0xf4, 0x80, 0x8f, 3}};
    titan_assert(text || n == 0);
    for (size_t at = 0; at < n;) {
        const size_t good = utf8_check(text + at, n - at);
        TRY(buf_append(out, text + at, good));
        at += good;
        if (at == n)
            break;
        /* No valid sequence begins here: the maximal subpart of a sequence gets one replacement. */
        const unsigned char *const p = (const unsigned char *)text + at;
        const size_t left = n - at;
        size_t len = 1;
        for (size_t r = 0; r < ARRAY_SIZE(rows) && left > 1; r++)
            if (p[0] >= rows[r].lead_from && p[0] <= rows[r].lead_to && p[1] >= rows[r].from && p[1] <= rows[r].to)
                for (len = 2; len < left && (int)len <= rows[r].more && (p[len] & 0xc0) == 0x80;)
                    len++;
        TRY(buf_append(out, UNICODE_REPLACEMENT, strlen(UNICODE_REPLACEMENT)));
        at += len;
    }
    return TITAN_OK;
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

#define STABLE 0      /* a starter that normal form C keeps, whatever surrounds it */
#define STARTER_2 255 /* a starter that always decomposes, or composes with the character before it */
#define PROPERTIES 0x30000u
#define COMPOSITIONS 4096u

static uint8_t properties[PROPERTIES]; /* STABLE, STARTER_2 or the combining class */
static const struct decomposition *compositions[COMPOSITIONS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t pair_hash(uint32_t first, uint32_t second)
{
    return hash_mix((uint64_t)first << 32 | second);
}

static void make_tables(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(combining_classes); i++) {
        const bool last = i + 1 == ARRAY_SIZE(combining_classes);
        const uint32_t end = last ? PROPERTIES : MIN(combining_classes[i + 1].first, PROPERTIES);
        for (uint32_t c = combining_classes[i].first; c < end; c++)
            properties[c] = combining_classes[i].class;
    }
    for (size_t i = 0; i < ARRAY_SIZE(decompositions); i++) {
        const struct decomposition *d = &decompositions[i];
        if (!d->composes) {
            if (properties[d->code] == 0)
                properties[d->code] = STARTER_2;
            continue;
        }
        if (properties[d->second] == 0)
            properties[d->second] = STARTER_2;
        size_t at = pair_hash(d->first, d->second) % COMPOSITIONS;
        while (compositions[at])
            at = (at + 1) % COMPOSITIONS;
        compositions[at] = d;
    }
    for (uint32_t c = HANGUL_V; c < HANGUL_V + HANGUL_VS; c++)
        properties[c] = STARTER_2;
    for (uint32_t c = HANGUL_T + 1; c < HANGUL_T + HANGUL_TS; c++)
        properties[c] = STARTER_2;
}

static uint8_t property(uint32_t code)
{
    return code < PROPERTIES ? properties[code] : STABLE;
}

/* Returns the index of the first of n entries whose number is not below code; n without such an entry. Each entry has
 * `size` bytes and begins with its number. The numbers ascend. */
static size_t lower_bound(const void *numbers, size_t n, size_t size, uint32_t code)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        uint32_t number;
        memcpy(&number, (const char *)numbers + mid * size, sizeof(number));
        if (number < code)
            lo = mid + 1;
        else
            hi = mid;
    }
    titan_assert(lo <= n);
    return lo;
}

/* Returns the character that first and second compose to; 0: none. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    if (first - HANGUL_L < HANGUL_LS && second - HANGUL_V < HANGUL_VS)
        return HANGUL_S + ((first - HANGUL_L) * HANGUL_VS + second - HANGUL_V) * HANGUL_TS;
    if (first - HANGUL_S < HANGUL_SS && (first - HANGUL_S) % HANGUL_TS == 0 && second - HANGUL_T - 1 < HANGUL_TS - 1)
        return first + second - HANGUL_T;
    for (size_t at = pair_hash(first, second) % COMPOSITIONS; compositions[at]; at = (at + 1) % COMPOSITIONS)
        if (compositions[at]->first == first && compositions[at]->second == second)
            return compositions[at]->code;
    return 0;
}

/* --- normal forms ------------------------------------------------------------------------------------------------- */

/* The characters from a stable character to the next stable character. Each is packed as combining class, place and
 * code point. Sorting these numbers puts marks into canonical order. */
struct segment {
    uint64_t *chars;
    size_t n, cap;
};
#define CLASS_SHIFT 56
#define PLACE_SHIFT 21
#define CODE_MASK 0x1fffffu

static titan_status put_code(struct segment *s, uint32_t code)
{
    titan_assert(code <= CODE_MASK);
    const uint64_t class = property(code) == STARTER_2 ? 0 : property(code);
    const uint64_t packed = class << CLASS_SHIFT | (uint64_t)s->n << PLACE_SHIFT | (uint64_t)code;
    return VEC_PUSH(s->chars, s->n, s->cap, packed) ? TITAN_OK : TITAN_ENOMEM;
}

static titan_status decompose(struct segment *s, uint32_t code)
{
    const uint32_t syllable = code - HANGUL_S;
    const size_t n = ARRAY_SIZE(decompositions);
    const size_t at = code < 0x80 ? n : lower_bound(&decompositions[0].code, n, sizeof(decompositions[0]), code);
    const struct decomposition *d = at < n && decompositions[at].code == code ? &decompositions[at] : NULL;
    if (syllable < HANGUL_SS) {
        TRY(put_code(s, HANGUL_L + syllable / (HANGUL_VS * HANGUL_TS)));
        TRY(put_code(s, HANGUL_V + syllable / HANGUL_TS % HANGUL_VS));
        return syllable % HANGUL_TS ? put_code(s, HANGUL_T + syllable % HANGUL_TS) : TITAN_OK;
    }
    if (!d)
        return put_code(s, code);
    TRY(decompose(s, d->first));
    return d->second ? decompose(s, d->second) : TITAN_OK;
}

static int compare_packed(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static titan_status flush(struct segment *s, enum unicode_form form, struct buf *out)
{
    /* Sorts each run of marks by their classes. */
    for (size_t i = 0; i < s->n;) {
        size_t end = i;
        while (end < s->n && s->chars[end] >> CLASS_SHIFT)
            end++;
        if (end - i > 1)
            qsort(s->chars + i, end - i, sizeof(*s->chars), compare_packed);
        i = MAX(end, i + 1);
    }

    /* Canonical composition (UAX 15). A mark joins the starter, unless a mark of its class or a higher class stands
     * between them. */
    size_t starter = SIZE_MAX, n = 0;
    int last_class = -1; /* class of the last mark kept since the starter; -1: none was kept */
    const bool composes = form == UNICODE_NFC || form == UNICODE_NFKC;
    for (size_t i = 0; composes && i < s->n; i++) {
        const uint32_t code = (uint32_t)(s->chars[i] & CODE_MASK);
        const int class = (int)(s->chars[i] >> CLASS_SHIFT);
        const uint32_t first = starter == SIZE_MAX ? 0 : (uint32_t)(s->chars[starter] & CODE_MASK);
        const uint32_t both = starter != SIZE_MAX && last_class < class ? compose(first, code) : 0;
        if (both) {
            s->chars[starter] = both;
            continue;
        }
        if (class == 0)
            starter = n;
        last_class = class == 0 ? -1 : class;
        titan_assert(n <= i);
        s->chars[n++] = s->chars[i];
    }
    s->n = composes ? n : s->n;

    for (size_t i = 0; i < s->n; i++) {
        char utf8[4];
        TRY(buf_append(out, utf8, utf8_encode((uint32_t)(s->chars[i] & CODE_MASK), utf8)));
    }
    s->n = 0;
    titan_assert(s->n <= s->cap);
    return TITAN_OK;
}

size_t unicode_kept(enum unicode_form form, const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t stable = 0; /* place of the last character that the next character may join */
    (void)pthread_once(&once, make_tables);
    if (form != UNICODE_NFC) {
        /* Only the ASCII prefix is kept. If another character follows, it may join the last ASCII character, so the
         * prefix ends before that ASCII character. */
        size_t at = 0;
        while (at < n && p[at] < 0x80)
            at++;
        return at == n || at == 0 ? at : at - 1;
    }
    for (size_t at = 0; at < n;) {
        size_t len;
        if (p[at] < 0xcc) { /* below U+0300 */
            stable = at;
            at += p[at] < 0x80 ? 1 : 2;
            continue;
        }
        if (property(utf8_code(p + at, &len)) != STABLE)
            return stable;
        stable = at;
        at += len;
    }
    return n;
}

static titan_status normalize(enum unicode_form form, struct segment *s, const unsigned char *p, size_t n,
                              struct buf *out)
{
    const bool compatibly = form == UNICODE_NFKC || form == UNICODE_NFKD;
    for (size_t at = 0; at < n;) {
        size_t len;
        const uint32_t code = utf8_code(p + at, &len);
        const size_t known = ARRAY_SIZE(compatibles);
        size_t place = known; /* index in `compatibles`; `known`: compatibility does not change the character */
        if (compatibly && code >= 0x80)
            place = lower_bound(&compatibles[0].code, known, sizeof(compatibles[0]), code);
        at += len;
        if (place == known || compatibles[place].code != code) {
            if (property(code) == STABLE)
                TRY(flush(s, form, out));
            TRY(decompose(s, code));
            continue;
        }
        const unsigned char *text = (const unsigned char *)compatibles[place].text; /* decomposed already */
        for (; *text; text += len)
            TRY(put_code(s, utf8_code(text, &len)));
    }
    return flush(s, form, out);
}

titan_status unicode_normalize(enum unicode_form form, const char *text, size_t n, struct buf *out)
{
    struct segment s = {0};
    const size_t kept = unicode_kept(form, text, n);
    titan_status status = buf_append(out, text, kept);
    if (status == TITAN_OK && kept < n)
        status = normalize(form, &s, (const unsigned char *)text + kept, n - kept, out);
    free(s.chars);
    return status;
}

/* --- sets and small letters --------------------------------------------------------------------------------------- */

const struct code_range *unicode_ranges(enum unicode_set set, size_t *ret_n)
{
    static const struct {
        const struct code_range *ranges;
        size_t n;
    } sets[] = {
        [UNICODE_CONTROLS] = {controls, ARRAY_SIZE(controls)},
        [UNICODE_ACCENTS] = {accents, ARRAY_SIZE(accents)},
        [UNICODE_PUNCTUATION] = {punctuation, ARRAY_SIZE(punctuation)},
        [UNICODE_MARKS] = {marks, ARRAY_SIZE(marks)},
    };
    titan_assert(set < ARRAY_SIZE(sets));
    *ret_n = sets[set].n;
    return sets[set].ranges;
}

bool unicode_has(enum unicode_set set, uint32_t code)
{
    size_t n;
    const struct code_range *ranges = unicode_ranges(set, &n);
    const size_t at = lower_bound(&ranges[0].last, n, sizeof(ranges[0]), code);
    return at < n && ranges[at].first <= code;
}

bool unicode_is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
           code == 0x3000;
}

uint32_t unicode_last(const char *text, size_t n, size_t *ret_len)
{
    titan_assert(n > 0);
    size_t at = n - 1;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    return utf8_code((const unsigned char *)text + at, ret_len);
}

size_t unicode_leading_space(const char *text, size_t n)
{
    size_t at = 0, len;
    while (at < n && unicode_is_space(utf8_code((const unsigned char *)text + at, &len)))
        at += len;
    return at;
}

size_t unicode_without_trailing_space(const char *text, size_t n)
{
    for (size_t len; n > 0 && unicode_is_space(unicode_last(text, n, &len)); n -= len)
        continue;
    return n;
}

bool unicode_is_word(uint32_t code)
{
    static const uint32_t words = 1u << CATEGORY_LU | 1u << CATEGORY_LL | 1u << CATEGORY_LT | 1u << CATEGORY_LM |
                                  1u << CATEGORY_LO | 1u << CATEGORY_MN | 1u << CATEGORY_MC | 1u << CATEGORY_ME |
                                  1u << CATEGORY_ND | 1u << CATEGORY_NL | 1u << CATEGORY_PC;
    static const struct code_range others[] = {{0x200c, 0x200d},
                                               {0x24b6, 0x24e9},
                                               {0x1f130, 0x1f149},
                                               {0x1f150, 0x1f169},
                                               {0x1f170, 0x1f189}}; /* joiners, circled letters */
    const size_t n = ARRAY_SIZE(categories);
    size_t at = lower_bound(&categories[0].first, n, sizeof(categories[0]), code);
    at -= at == n || categories[at].first > code;
    titan_assert(at < n && categories[at].first <= code);
    bool word = words >> categories[at].category & 1;
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        word |= code >= others[i].first && code <= others[i].last;
    return word;
}

titan_status unicode_lower(uint32_t code, struct buf *out)
{
    static const char dotted[] = "i\xcc\x87"; /* lower case of U+0130, the only letter that becomes two characters */
    const size_t n = ARRAY_SIZE(lower_runs);
    const size_t at = lower_bound(&lower_runs[0].last, n, sizeof(lower_runs[0]), code);
    const struct lower_run *run = at < n && lower_runs[at].first <= code ? &lower_runs[at] : NULL;
    char utf8[4];
    if (code == 0x130)
        return buf_append(out, dotted, sizeof(dotted) - 1);
    if (run && (code - run->first) % run->step == 0)
        code = (uint32_t)((int32_t)code + run->add);
    return buf_append(out, utf8, utf8_encode(code, utf8));
}
