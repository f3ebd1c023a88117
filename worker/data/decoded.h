/* SPDX-License-Identifier: Apache-2.0 */
/* decoded.h - a file's text as UTF-8, unpacked (packed.h).
 *
 * The byte order mark decides about the encoding. A mark of UTF-8 is dropped. After a mark of UTF-16, the text is read
 * as UTF-16, and an unpaired surrogate becomes U+FFFD. Without a mark, the bytes are passed on unchanged, or converted
 * from Latin-1. One thread. */
#ifndef TITAN_WORKER_DATA_DECODED_H
#define TITAN_WORKER_DATA_DECODED_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum text_encoding { TEXT_UTF8, TEXT_LATIN1, TEXT_UTF16_LE, TEXT_UTF16_BE };

/* Encoding by the byte order mark in the text's first n bytes (*ret_mark: the mark's size); `otherwise` without a
 * mark. */
enum text_encoding decoded_encoding(const void *head, size_t n, enum text_encoding otherwise, size_t *ret_mark);

struct decoded;
/* otherwise: encoding of a file without a mark, TEXT_UTF8 or TEXT_LATIN1. Fails as packed_open() does. */
titan_status decoded_open(const char *path, enum text_encoding otherwise, struct decoded **ret,
                          struct titan_error *err) TITAN_MUST_USE;
void decoded_close(struct decoded *d); /* NULL is fine */
/* As packed_read: reads up to n bytes. */
titan_status decoded_read(struct decoded *d, void *out, size_t n, size_t *ret_got,
                          struct titan_error *err) TITAN_MUST_USE;
/* Position in the file as stored. */
uint64_t decoded_place(const struct decoded *d);

#endif
