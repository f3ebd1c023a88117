/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.h - host memory that a checkpoint is written from. The first touch of a page costs more than the copy into
 * it. So threads touch the pages ahead, while the run trains. If the device has its own memory, the pages are pinned,
 * and the device copies straight into them. The memory is kept between checkpoints.
 *
 * Only memory that the machine has free is touched ahead; a copy touches the remaining pages itself. */
#ifndef TITAN_WORKER_STATE_SNAPSHOT_H
#define TITAN_WORKER_STATE_SNAPSHOT_H

#include "worker/device/device.h"

#define SNAPSHOT_PIECE_BYTES ((size_t)32 << 20) /* pinned as one; no device copy may cross its end */
#define SNAPSHOT_KEPT_FREE ((uint64_t)1 << 30)  /* bytes of the machine that stay free */

struct snapshot;

/* Begins to touch the memory. device: borrowed until it is unpinned; NULL: nothing is touched ahead. available: bytes
 * that the machine can give now; snapshot_available except in tests. */
titan_status snapshot_open(const struct device_handle *device, size_t bytes, uint64_t (*available)(void),
                           struct snapshot **ret, struct titan_error *err) TITAN_MUST_USE;
/* The first byte, page-aligned. */
void *snapshot_memory(const struct snapshot *m);
/* Waits for the threads. True: all pages are touched, and pinned where needed. */
bool snapshot_ready(struct snapshot *m);
/* Stops the threads and unpins; from now on only the host uses the memory. Copies into it must have ended. */
void snapshot_unpin(struct snapshot *m);
void snapshot_close(struct snapshot *m); /* after snapshot_unpin; NULL is fine */

/* MemAvailable of /proc/meminfo; 0 = unknown. */
uint64_t snapshot_available(void);

#endif
