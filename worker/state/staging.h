/* SPDX-License-Identifier: Apache-2.0 */
/* staging.h - copies between the host and the device's own memory: in pieces, through two pinned buffers. While one
 * buffer is copied, the host uses the other. Each piece counts as progress, so a large copy is not taken for a hanging
 * worker. If the device uses host memory, there are no buffers, and the host accesses the memory itself. One thread at
 * a time. */
#ifndef TITAN_WORKER_STATE_STAGING_H
#define TITAN_WORKER_STATE_STAGING_H

#include "worker/device/device.h"

#define STAGING_BYTES ((size_t)16 << 20) /* per piece, at most; a multiple of every type's size */

struct staging;

/* The host's work on a piece: staging_read lets it read the piece, staging_write lets it fill the piece. Pieces come in
 * memory order. None is larger than STAGING_BYTES. */
struct staging_work {
    void (*fn)(void *arg, void *piece, size_t bytes);
    void *arg;
};

/* Opens staging for the device's memory; device is borrowed. own: the device has its own memory. most: size of the
 * largest copy. */
titan_status staging_open(const struct device_handle *device, bool own, size_t most, struct staging **ret,
                          struct titan_error *err) TITAN_MUST_USE;
/* All streams that used it must have run. NULL is fine. */
void staging_close(struct staging *g);
/* Passes from (bytes) to the work, with the contents once s reaches this point; waits for s. */
titan_status staging_read(struct staging *g, void *from, size_t bytes, struct staging_work work, struct stream *s,
                          struct titan_error *err) TITAN_MUST_USE;
/* The work fills to (bytes). The last pieces may still be in flight on s. */
titan_status staging_write(struct staging *g, void *to, size_t bytes, struct staging_work work, struct stream *s,
                           struct titan_error *err) TITAN_MUST_USE;
/* The memory is the device's own, and copies use pinned buffers. */
bool staging_pinned(const struct staging *g);
struct pinned_place {
    void *host;  /* pinned memory */
    size_t at;   /* offset in it */
    size_t part; /* no copy crosses a multiple of this */
};
/* Copies from (bytes) to pinned host memory, without the buffers; waits for s. Also after a failure, nothing is in
 * flight once s has been waited for. */
titan_status staging_copy(struct staging *g, struct pinned_place to, const void *from, size_t bytes, struct stream *s,
                          struct titan_error *err) TITAN_MUST_USE;

#endif
