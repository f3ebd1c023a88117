/* SPDX-License-Identifier: Apache-2.0 */
/* decoded.h - the text of a file as UTF-8, unpacked (packed.h).
 *
 * A byte order mark decides: UTF-8's is left out, and behind UTF-16's the text is UTF-16, half of a surrogate pair
 * U+FFFD. Without one the bytes are passed on as they are, or are Latin-1. One thread. */
#ifndef TITAN_WORKER_DATA_DECODED_H
#define TITAN_WORKER_DATA_DECODED_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum text_encoding { TEXT_UTF8, TEXT_LATIN1, TEXT_UTF16_LE, TEXT_UTF16_BE };

/* By the mark that the first n bytes of a text begin with (*ret_mark: its bytes); without one `otherwise`. */
enum text_encoding decoded_encoding(const void *head, size_t n, enum text_encoding otherwise, size_t *ret_mark);

struct decoded;
/* otherwise: TEXT_UTF8 or TEXT_LATIN1. Failures of packed_open. */
titan_status decoded_open(const char *path, enum text_encoding otherwise, struct decoded **ret,
                          struct titan_error *err) TITAN_MUST_USE;
void decoded_close(struct decoded *d); /* NULL is fine */
/* As packed_read: as many bytes as there are, up to n. */
titan_status decoded_read(struct decoded *d, void *out, size_t n, size_t *ret_got,
                          struct titan_error *err) TITAN_MUST_USE;
/* How far into the file itself. */
uint64_t decoded_place(const struct decoded *d);

#endif
