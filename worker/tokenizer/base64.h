/* SPDX-License-Identifier: Apache-2.0 */
/* base64.h - base64 text (RFC 4648, padded) in tokenizers' files. */
#ifndef TITAN_WORKER_TOKENIZER_BASE64_H
#define TITAN_WORKER_TOKENIZER_BASE64_H

#include <stddef.h>

/* Decodes n characters into at most n / 4 * 3 bytes. Returns the number of bytes; -1 = invalid base64. */
ptrdiff_t base64_read(const char *text, size_t n, unsigned char *out);

#endif
