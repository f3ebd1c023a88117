/* SPDX-License-Identifier: Apache-2.0 */
/* hex.h - bytes as hexadecimal text, in lower case. */
#ifndef TITAN_BASE_HEX_H
#define TITAN_BASE_HEX_H

#include <stdbool.h>
#include <stddef.h>

/* out: room for 2 * n characters and the NUL. */
void hex_write(const unsigned char *bytes, size_t n, char *out);
/* Reads the first 2 * n characters of text into n bytes. False: a character is no lower-case hexadecimal digit. */
bool hex_read(const char *text, size_t n, unsigned char *out);

#endif
