/* SPDX-License-Identifier: Apache-2.0 */
/* weights.cu - initial values: rng_weights() of base/rng.c, operation by operation in plain double arithmetic. It is
 * built without contraction of products and sums (mk/cuda.mk), so that the bits are the same as on the host. */
#include "worker/device/cuda/kernel.cuh"

#include "base/rng.h"

#define PHILOX_INLINE __device__ static inline
#include "base/normal.h"

/* Draws both elements of a pair. */
__device__ static inline void normal_pair(const uint32_t key[2], uint64_t pair, float ret[2])
{
    uint32_t w[4];
    double s, c;
    philox(key[0], key[1], pair, 1, w);
    const double r = sqrt(-2.0 * normal_log(((double)w[0] + 1.0) * 0x1p-32));
    normal_sincos(w[1], &s, &c);
    ret[0] = (float)(r * c);
    ret[1] = (float)(r * s);
}

__device__ static inline float weight(const struct rng_weights &w, float n, uint64_t index)
{
    float pair[2];
    for (int again = 0; w.limit > 0 && fabsf(n) > w.limit && again < RNG_REDRAWS; again++) {
        normal_pair(w.again[again].k, index >> 1, pair);
        n = pair[index & 1];
    }
    return n * w.std;
}

/* The grid's y has rows. Along x, a thread has a pair's one or two elements that are in the row. */
__global__ static void __launch_bounds__(THREADS)
    weights(void *out, bool bf16, int64_t rows, int64_t cols, int64_t width, int64_t first, struct rng_weights w)
{
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const uint64_t from = (uint64_t)(first + row * width), to = from + (uint64_t)cols;
        for (uint64_t pair = (from >> 1) + grid_first(); pair <= (to - 1) >> 1; pair += grid_stride()) {
            float n[2];
            normal_pair(w.key.k, pair, n);
            for (uint64_t index = 2 * pair; index < 2 * pair + 2; index++)
                if (index >= from && index < to)
                    any_store(out, row * cols + (int64_t)(index - from), bf16, weight(w, n[index & 1], index));
        }
    }
}

#define WEIGHTS_BLOCKS 4096

int cuda_weights(void *stream, const struct weights_args *a)
{
    if (a->rows == 0 || a->cols == 0)
        return 0;
    const int64_t pairs = a->cols / 2 + 1, wide = (pairs + THREADS - 1) / THREADS;
    const int64_t across = wide < WEIGHTS_BLOCKS ? wide : WEIGHTS_BLOCKS, along = WEIGHTS_BLOCKS / across;
    const dim3 grid((unsigned)across, (unsigned)(a->rows < along ? a->rows : along));
    return LAUNCH(weights, grid, THREADS, 0, stream, a->out, a->dt == DTYPE_BF16, a->rows, a->cols, a->width, a->first,
                  *a->weights);
}
