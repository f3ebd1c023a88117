/* SPDX-License-Identifier: Apache-2.0 */
/* grouped.cuh - how kernels of packed rows read the counts, which only the device knows. */
#ifndef TITAN_WORKER_DEVICE_CUDA_GROUPED_CUH
#define TITAN_WORKER_DEVICE_CUDA_GROUPED_CUH

#include "worker/device/cuda/kernel.cuh"

/* Returns the number of rows of the group that counts[index] describes and that begins at row `first`. Wrong counts are
 * cut to the rows that the buffers hold. */
__device__ static inline int64_t rows_of(const struct grouped_problem &g, int64_t index, int64_t first)
{
    const int64_t limit = g.ta ? g.k : g.m, n = g.counts[index];
    return n < 0 ? 0 : n < limit - first ? n : limit - first;
}

/* Checks the counts; one thread of a launch calls it. */
__device__ static inline void check_counts(const struct grouped_problem &g)
{
    int64_t total = 0;
    bool possible = true;
    for (int64_t e = 0; e < g.parts * g.groups; e++) {
        possible = possible && g.counts[e] >= 0;
        total += g.counts[e];
    }
    if (!possible || total > (g.ta ? g.k : g.m))
        fail_stream(g.fault, FAULT_COUNTS);
}

/* Returns how many of `count` pieces belong to existing rows. The existing rows are the sum of counts, or all rows if
 * counts is NULL. The whole block calls it. */
__device__ static inline size_t pieces_there(size_t count, size_t pieces, const int32_t *counts, int64_t parts)
{
    __shared__ int64_t scratch[32];
    int64_t rows = 0;
    if (!counts)
        return count;
    for (int64_t i = threadIdx.x; i < parts; i += THREADS)
        rows += counts[i] > 0 ? counts[i] : 0;
    rows = block_reduce(rows, op_sum(), scratch);
    return (size_t)rows * pieces < count ? (size_t)rows * pieces : count;
}

#endif
