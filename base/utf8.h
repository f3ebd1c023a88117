/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h - UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF; and characters fit for
 * display. */
#ifndef TITAN_BASE_UTF8_H
#define TITAN_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Offset of the first invalid byte; len when all bytes are valid. */
size_t utf8_check(const char *text, size_t len);
/* Offset of the first character that names and lines of text must not contain; len: none. These are control characters,
 * and invisible characters that change the display of others (direction marks, joiners except U+200D between two
 * pictures, line separators, tags). Invalid bytes are skipped. */
size_t text_unfit(const char *text, size_t len);
/* Replaces each character that text_unfit() finds by `one`. Multi-byte characters shorten the text. */
void text_fit(char *text, char one);
/* True for a non-empty text of spaces alone. */
bool text_blank(const char *text);
/* Writes a code point (not a surrogate, at most 0x10ffff); returns the number of bytes. */
size_t utf8_encode(uint32_t code, char out[4]);

#endif
