/* SPDX-License-Identifier: Apache-2.0 */
/* unicode.h - properties of code points. General categories are Unicode 16's. Normal forms (UAX 15), sets and lower
 * case have the older Unicode version of the normalizers of `tokenizers`; later characters are left unchanged. */
#ifndef TITAN_WORKER_TOKENIZER_UNICODE_H
#define TITAN_WORKER_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define UNICODE_END 0x110000u
#define UNICODE_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* clang-format off */
#define CATEGORIES(X)                                                                                                  \
    X(LU) X(LL) X(LT) X(LM) X(LO) X(MN) X(MC) X(ME) X(ND) X(NL) X(NO) X(PC) X(PD) X(PS) X(PE) X(PI) X(PF) X(PO) X(SM)  \
    X(SC) X(SK) X(SO) X(ZS) X(ZL) X(ZP) X(CC) X(CF) X(CS) X(CO) X(CN)
/* clang-format on */

enum category {
#define X(name) CATEGORY_##name,
    CATEGORIES(X)
#undef X
};

struct category_range { /* covers the code points from `first` to the next entry's `first`, exclusive */
    uint32_t first;
    enum category category;
};
const struct category_range *unicode_categories(size_t *ret_n);

/* The code point at p (valid UTF-8), and its size in bytes. */
static inline uint32_t utf8_code(const unsigned char *p, size_t *ret_len)
{
    if (p[0] < 0x80) {
        *ret_len = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *ret_len = 2;
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *ret_len = 3;
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *ret_len = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

/* Appends n bytes of text with U+FFFD for each maximal invalid part of UTF-8 (Unicode, chapter 3, "U+FFFD Substitution
 * of Maximal Subparts"). */
titan_status unicode_mend(const char *text, size_t n, struct buf *out) TITAN_MUST_USE;

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };
/* Size of the prefix of valid text that the form surely leaves unchanged. */
size_t unicode_kept(enum unicode_form form, const char *text, size_t n);
/* Appends a normal form (UAX 15) of valid text. */
titan_status unicode_normalize(enum unicode_form form, const char *text, size_t n, struct buf *out) TITAN_MUST_USE;

struct code_range {
    uint32_t first, last;
};
enum unicode_set {
    UNICODE_CONTROLS,    /* controls, formats and non-characters, without tab and line ends */
    UNICODE_ACCENTS,     /* nonspacing marks */
    UNICODE_PUNCTUATION, /* ASCII punctuation and symbols, and general categories P */
    UNICODE_MARKS        /* all marks */
};
const struct code_range *unicode_ranges(enum unicode_set set, size_t *ret_n);
bool unicode_has(enum unicode_set set, uint32_t code);
/* White_Space, as \s in patterns. */
bool unicode_is_space(uint32_t code);
/* For n bytes of valid text: size of the white space at its start, and size without the white space at its end. */
size_t unicode_leading_space(const char *text, size_t n);
size_t unicode_without_trailing_space(const char *text, size_t n);
/* Is the character part of a word, like \w of regular expressions in Rust? Such characters are alphabetic, marks,
 * decimal digits, connecting punctuation, joiners. */
bool unicode_is_word(uint32_t code);
/* The last character of n > 0 bytes of valid text. */
uint32_t unicode_last(const char *text, size_t n, size_t *ret_len);
/* Appends the lower case of a character as UTF-8; other characters unchanged. */
titan_status unicode_lower(uint32_t code, struct buf *out) TITAN_MUST_USE;

#endif
