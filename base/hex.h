/* SPDX-License-Identifier: Apache-2.0 */
/* hex.h - bytes as hexadecimal text, in lower case. */
#ifndef TITAN_BASE_HEX_H
#define TITAN_BASE_HEX_H

#include <stdbool.h>
#include <stddef.h>

/* out: 2 * n characters and the NUL. */
void hex_write(const unsigned char *bytes, size_t n, char *out);
/* Of text the first 2 * n characters into n bytes. False: one of them is no digit in lower case. */
bool hex_read(const char *text, size_t n, unsigned char *out);

#endif
