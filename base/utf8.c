/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"

/* Length of the valid sequence at p; 0: none. */
static size_t sequence(const unsigned char *p, size_t len)
{
    titan_assert(len > 0);
    if (p[0] < 0x80)
        return 1;
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n > len)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    /* The range of the second byte excludes overlong forms, surrogates and code points above U+10FFFF. */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

size_t utf8_check(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0; i < len;) {
        uint64_t eight; /* most text is ASCII, checked word by word */
        for (; len - i >= sizeof(eight); i += sizeof(eight)) {
            memcpy(&eight, p + i, sizeof(eight));
            if (eight & UINT64_C(0x8080808080808080))
                break;
        }
        if (i == len)
            break;
        size_t n = sequence(p + i, len - i);
        if (!n)
            return i;
        i += n;
    }
    return len;
}

/* The character at p and its length; U+FFFD for an invalid character. */
static uint32_t code_at(const unsigned char *p, size_t len, size_t *ret_bytes)
{
    const size_t n = len > 0 ? sequence(p, len) : 0;
    *ret_bytes = n > 0 ? n : 1;
    if (n < 2)
        return n == 1 ? p[0] : 0xfffd;
    uint32_t code = p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++)
        code = code << 6 | (p[i] & 0x3fu);
    return code;
}

/* Arrows, signs and emoji, which U+200D joins to one picture. */
static bool is_picture(uint32_t code)
{
    return (code >= 0x2190 && code <= 0x2bff) || (code >= 0x1f000 && code <= 0x1faff);
}

enum { JOINER = 0x200d, AS_PICTURE = 0xfe0f };

/* Is the character at p unfit? *before: the character before p, 0 = none. The call sets *before to the character at
 * p. */
static bool unfit_at(const unsigned char *p, size_t len, uint32_t *before, size_t *ret_bytes)
{
    /* Categories Cc, Cf, Zl and Zp of Unicode 15. */
    static const struct {
        uint32_t from, to;
    } unfit[] = {{0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},
                 {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},     {0x180e, 0x180e},
                 {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},   {0xfeff, 0xfeff},   {0xfff9, 0xfffb},
                 {0x110bd, 0x110bd}, {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
                 {0xe0000, 0xe007f}};
    const uint32_t code = code_at(p, len, ret_bytes), last = *before;
    size_t next;
    if (code != AS_PICTURE)
        *before = code;
    if (code < 0x80)
        return code < 0x20 || code == 0x7f;
    if (code == JOINER && is_picture(last) && is_picture(code_at(p + *ret_bytes, len - *ret_bytes, &next)))
        return false;
    for (size_t i = 0; i < sizeof(unfit) / sizeof(unfit[0]); i++)
        if (code >= unfit[i].from && code <= unfit[i].to)
            return true;
    return false;
}

size_t text_unfit(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;
    uint32_t before = 0;
    for (size_t i = 0, n; i < len; i += n)
        if (unfit_at(p + i, len - i, &before, &n))
            return i;
    return len;
}

void text_fit(char *text, char one)
{
    const size_t len = strlen(text);
    char *to = text;
    uint32_t before = 0;
    for (size_t i = 0, n; i < len; i += n) {
        if (unfit_at((unsigned char *)text + i, len - i, &before, &n)) {
            *to++ = one;
        } else {
            memmove(to, text + i, n);
            to += n;
        }
    }
    *to = '\0';
}

bool text_blank(const char *text)
{
    const size_t len = strlen(text);
    for (size_t i = 0, n; i < len; i += n) {
        const uint32_t code = code_at((const unsigned char *)text + i, len - i, &n);
        if (code != ' ' && code != 0xa0 && code != 0x1680 && !(code >= 0x2000 && code <= 0x200a) && code != 0x202f &&
            code != 0x205f && code != 0x3000)
            return false;
    }
    return len > 0;
}

size_t utf8_encode(uint32_t code, char out[4])
{
    titan_assert(code <= 0x10ffff);
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}
