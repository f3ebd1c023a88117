/* SPDX-License-Identifier: Apache-2.0 */
/* window.cu - the first token that each token sees through a sliding window. */
#include "worker/device/cuda/kernel.cuh"

__global__ static void window_start(int32_t *start, const int32_t *index, const int32_t *first, size_t n,
                                    int64_t tokens)
{
    for (size_t i = grid_first(); i < n; i += grid_stride()) {
        const int64_t from = index[i] - tokens + 1;
        start[i] = first[i] > from ? first[i] : (int32_t)from;
    }
}

int cuda_window(void *stream, int32_t *start, const int32_t *index, const int32_t *first, int64_t n, int64_t tokens)
{
    if (n == 0)
        return 0;
    return LAUNCH(window_start, grid_blocks((size_t)n), THREADS, 0, stream, start, index, first, (size_t)n, tokens);
}
