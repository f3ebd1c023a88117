/* SPDX-License-Identifier: Apache-2.0 */
/* packed.h - the bytes of a file, of a gzip file (RFC 1952, any number of members) or of a zstd file (RFC 8878, any
 * number of frames), told apart by their first bytes, or else by their names (files.h). One thread. */
#ifndef TITAN_WORKER_DATA_PACKED_H
#define TITAN_WORKER_DATA_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Does a gzip or zstd file begin so? */
bool packed_begins(const void *head, size_t n);

struct packed;

/* TITAN_EUNSUPPORTED: this build has no zlib and no zstd (BARE=1). */
titan_status packed_open(const char *path, struct packed **ret, struct titan_error *err) TITAN_MUST_USE;
void packed_close(struct packed *p); /* NULL is fine */
/* As many bytes as there are, up to n; fewer only at the end. TITAN_ECORRUPT: it is no such file, damaged, or cut off;
 * the bytes before that have been given by then. */
titan_status packed_read(struct packed *p, void *out, size_t n, size_t *ret_got,
                         struct titan_error *err) TITAN_MUST_USE;
/* How far into the file itself. */
uint64_t packed_place(const struct packed *p);

#endif
