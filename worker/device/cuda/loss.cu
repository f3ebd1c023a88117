/* SPDX-License-Identifier: Apache-2.0 */
/* loss.cu - softmax cross-entropy over a vocabulary in parts, one block per row: what this part has to tell the others,
 * then loss and gradient from what all have sent. */
#include "worker/device/cuda/kernel.cuh"

#define STATS 3 /* largest logit, sum of exp(logit - largest), the target's logit */

template <class T>
__global__ static void __launch_bounds__(THREADS)
    loss_stats(float *stats, const T *logits, const int32_t *targets, int64_t v, int64_t first)
{
    __shared__ float scratch[32];
    const int64_t row = blockIdx.x, column = targets[row] - first;
    const bool counted = targets[row] >= 0;
    const T *x = logits + row * v;
    float *mine = stats + row * STATS;
    if (!counted) { /* it is not looked at */
        if (threadIdx.x < STATS)
            mine[threadIdx.x] = 0.0f;
        return;
    }
    /* fmaxf drops NaN; the sum of exponentials below brings it back. */
    float top = -INFINITY, sum = 0.0f;
    for (int64_t i = threadIdx.x; i < v; i += THREADS)
        top = fmaxf(top, num_load(x + i));
    top = block_reduce(top, op_max(), scratch);
    const float from = top == -INFINITY ? 0.0f : top;
    for (int64_t i = threadIdx.x; i < v; i += THREADS)
        sum += expf(num_load(x + i) - from);
    sum = block_reduce(sum, op_sum(), scratch);
    if (threadIdx.x == 0) {
        mine[0] = top;
        mine[1] = sum;
        mine[2] = column >= 0 && column < v ? num_load(x + column) : 0.0f;
    }
}

int cuda_loss_stats(void *stream, float *stats, const void *logits, const int32_t *targets, bool is_bf16, int64_t n,
                    int64_t v, int64_t first)
{
    if (n == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(loss_stats<bf16>, (unsigned)n, THREADS, 0, stream, stats, (const bf16 *)logits, targets, v,
                      first);
    return LAUNCH(loss_stats<float>, (unsigned)n, THREADS, 0, stream, stats, (const float *)logits, targets, v, first);
}

/* dlogits may be logits itself: a thread reads the elements it writes, and no others. */
template <class T>
__global__ static void __launch_bounds__(THREADS)
    loss_finish(float *losses, T *dlogits, const T *logits, const int32_t *targets, const float *stats, int64_t parts,
                int64_t n, int64_t v, int64_t first)
{
    const int64_t row = blockIdx.x, column = targets[row] - first;
    const bool counted = targets[row] >= 0;
    float top = -INFINITY, sum = 0.0f, picked = 0.0f;
    for (int64_t p = 0; p < parts; p++)
        top = fmaxf(top, stats[(p * n + row) * STATS]);
    for (int64_t p = 0; p < parts; p++) {
        const float *part = stats + (p * n + row) * STATS;
        sum += part[0] == top ? part[1] : part[1] * expf(part[0] - top);
        picked += part[2];
    }
    if (threadIdx.x == 0)
        losses[row] = counted ? logf(sum) - (picked - top) : 0.0f;
    if (!dlogits)
        return;
    for (int64_t i = threadIdx.x; i < v; i += THREADS) {
        const float p = expf(num_load(logits + row * v + i) - top) / sum;
        num_store(dlogits + row * v + i, !counted ? 0.0f : i == column ? p - 1.0f : p);
    }
}

int cuda_loss_finish(void *stream, float *losses, void *dlogits, const void *logits, const int32_t *targets,
                     const float *stats, int64_t parts, bool is_bf16, int64_t n, int64_t v, int64_t first)
{
    if (n == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(loss_finish<bf16>, (unsigned)n, THREADS, 0, stream, losses, (bf16 *)dlogits, (const bf16 *)logits,
                      targets, stats, parts, n, v, first);
    return LAUNCH(loss_finish<float>, (unsigned)n, THREADS, 0, stream, losses, (float *)dlogits, (const float *)logits,
                  targets, stats, parts, n, v, first);
}
