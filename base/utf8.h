/* utf8.h - UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef TITAN_BASE_UTF8_H
#define TITAN_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Offset of the first byte that is not valid UTF-8; len when all is. */
size_t utf8_check(const char *text, size_t len);
/* Write a code point (not a surrogate, at most 0x10ffff); returns the number of bytes. */
size_t utf8_encode(uint32_t code, char out[4]);

#endif
