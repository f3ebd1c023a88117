/* SPDX-License-Identifier: Apache-2.0 */
/* enqueue.h - shared by the files of the device table: limits of a launch, and enqueueing on a stream that may have
 * failed. */
#ifndef TITAN_WORKER_DEVICE_CUDA_ENQUEUE_H
#define TITAN_WORKER_DEVICE_CUDA_ENQUEUE_H

#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/kernels.h"

#define GRID_MAX 0x7fffffffL /* blocks in a launch's first dimension */
#define GRID_YZ_MAX 65535    /* blocks in each other dimension */
#define ROWS_MAX 0x7fffff00L /* most rows: their number, rounded up to a tile, must fit an int */

/* Enqueues the call unless the stream has failed. */
#define ENQUEUE(s, what, call) (stream_skips(s) ? TITAN_OK : stream_enqueued((s), (what), (call)))

static inline bool rows_fit(int64_t n, int64_t c)
{
    return n >= 0 && c >= 0 && n <= GRID_MAX;
}

#endif
