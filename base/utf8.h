/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h - UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF; and what of it may be shown. */
#ifndef TITAN_BASE_UTF8_H
#define TITAN_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Offset of the first byte that is not valid UTF-8; len when all is. */
size_t utf8_check(const char *text, size_t len);
/* Offset of the first character that no name and no line of text may have: control characters, and those that are not
 * seen but change how the rest is shown (marks of direction, joiners but for U+200D between two pictures, separators of
 * lines, tags); len: there is none. Bytes that are no UTF-8 are passed over. */
size_t text_unfit(const char *text, size_t len);
/* Put one in the place of each such character; the text grows shorter where it had several bytes. */
void text_fit(char *text, char one);
/* Nothing but spaces, and not empty. */
bool text_blank(const char *text);
/* Write a code point (not a surrogate, at most 0x10ffff); returns the number of bytes. */
size_t utf8_encode(uint32_t code, char out[4]);

#endif
