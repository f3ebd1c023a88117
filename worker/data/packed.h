/* SPDX-License-Identifier: Apache-2.0 */
/* packed.h - reads the bytes of a plain file, a gzip file (RFC 1952, any number of members) or a zstd file (RFC 8878,
 * any number of frames). The kind of file is known by its first bytes, or else by its name (files.h). One thread. */
#ifndef TITAN_WORKER_DATA_PACKED_H
#define TITAN_WORKER_DATA_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Are these the first bytes of a gzip or zstd file? */
bool packed_begins(const void *head, size_t n);

struct packed;

/* TITAN_EUNSUPPORTED: this build has no zlib and no zstd (BARE=1). */
titan_status packed_open(const char *path, struct packed **ret, struct titan_error *err) TITAN_MUST_USE;
void packed_close(struct packed *p); /* NULL is fine */
/* Reads up to n bytes; fewer only at the end. TITAN_ECORRUPT: the file is not packed as its name says, is damaged, or
 * is cut off. Earlier calls have then returned all bytes before the fault. */
titan_status packed_read(struct packed *p, void *out, size_t n, size_t *ret_got,
                         struct titan_error *err) TITAN_MUST_USE;
/* Position in the file as stored. */
uint64_t packed_place(const struct packed *p);

#endif
