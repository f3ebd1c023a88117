/* SPDX-License-Identifier: Apache-2.0 */
/* base64.h - bytes written as text (RFC 4648, padded), as tokenizers' files have them. */
#ifndef TITAN_WORKER_TOKENIZER_BASE64_H
#define TITAN_WORKER_TOKENIZER_BASE64_H

#include <stddef.h>

/* The bytes that n characters stand for, at most n / 4 * 3. Returns how many; -1: they are no base64. */
ptrdiff_t base64_read(const char *text, size_t n, unsigned char *out);

#endif
