/* SPDX-License-Identifier: Apache-2.0 */
/* staging.h - the way between the host and memory that is the device's own: in pieces, through two pinned buffers.
 * While one is copied the host has the other; each piece counts as progress, so a copy of any size is not taken for a
 * worker that hangs. Where the device uses the host's memory there are no buffers, and the host has the memory itself.
 * One thread at a time. */
#ifndef TITAN_WORKER_STATE_STAGING_H
#define TITAN_WORKER_STATE_STAGING_H

#include "worker/device/device.h"

#define STAGING_BYTES ((size_t)16 << 20) /* of a piece, at most; a multiple of every type's size */

struct staging;

/* What the host does with a piece: with staging_read it looks at it, with staging_write it fills it. Pieces come in the
 * order of the memory, none larger than STAGING_BYTES. */
typedef void (*staging_fn)(void *arg, void *piece, size_t bytes);

/* For memory of the device (borrowed), of which `most` bytes are copied at once. own: the memory is not the host's. */
titan_status staging_open(const struct device_handle *device, bool own, size_t most, struct staging **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* The streams it was used with have run. NULL is fine. */
void staging_close(struct staging *g);
/* Shows from (bytes) to fn, as it is when s has come here; waits for s. */
titan_status staging_read(struct staging *g, void *from, size_t bytes, staging_fn fn, void *arg, struct stream *s,
                          struct titan_error *err) TITAN_MUST_USE;
/* Has fn fill to (bytes). The last pieces may still be on their way on s. */
titan_status staging_write(struct staging *g, void *to, size_t bytes, staging_fn fn, void *arg, struct stream *s,
                           struct titan_error *err) TITAN_MUST_USE;
/* The memory is the device's own, and pinned buffers are on the way. */
bool staging_pinned(const struct staging *g);
/* Copies from (bytes) to place `at` of pinned host memory, without the buffers, in parts that end at multiples of
 * `part` of that memory; waits for s. After a failure as well nothing is on its way once s has been waited for. */
titan_status staging_copy(struct staging *g, void *host, size_t at, size_t part, const void *from, size_t bytes,
                          struct stream *s, struct titan_error *err) TITAN_MUST_USE;

#endif
