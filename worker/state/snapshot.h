/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.h - the host's memory that a checkpoint is written from. Pages that are met for the first time cost more
 * than the copy into them, so threads take them ahead, while the run trains, and where the device's memory is not the
 * host's they are pinned: the device then copies straight into them. It is kept from one checkpoint to the next.
 *
 * Ahead of a checkpoint only what the machine has free is taken; a copy into what was not takes its pages itself. */
#ifndef TITAN_WORKER_STATE_SNAPSHOT_H
#define TITAN_WORKER_STATE_SNAPSHOT_H

#include "worker/device/device.h"

#define SNAPSHOT_PIECE_BYTES ((size_t)32 << 20) /* pinned as one; no copy of the device may cross its end */
#define SNAPSHOT_KEPT_FREE ((uint64_t)1 << 30)  /* bytes of the machine that nothing is taken of ahead */

struct snapshot;

/* Begins to take the memory. device: borrowed until it is unpinned; NULL: nothing is taken ahead. available: bytes that
 * the machine can give now; snapshot_available but for tests. */
titan_status snapshot_open(const struct device_handle *device, size_t bytes, uint64_t (*available)(void),
                           struct snapshot **ret, struct titan_error *err) TITAN_MUST_USE;
/* The first byte, on a page's bound. */
void *snapshot_memory(const struct snapshot *m);
/* Waits for what is being taken. True: all of it is, and is pinned where it need be. */
bool snapshot_ready(struct snapshot *m);
/* Stops what is being taken; the memory is the host's alone from here on. Copies into it have ended. */
void snapshot_unpin(struct snapshot *m);
void snapshot_close(struct snapshot *m); /* NULL is fine; unpinned before */

/* MemAvailable of /proc/meminfo; 0: not known. */
uint64_t snapshot_available(void);

#endif
