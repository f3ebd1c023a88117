/* SPDX-License-Identifier: Apache-2.0 */
/* loss.cu - softmax cross-entropy over a vocabulary in parts, one block per row: what this part has to tell the others,
 * then loss and gradient from what all have sent. */
#include "worker/device/cuda/kernel.cuh"

#define STATS 3 /* largest logit, sum of exp(logit - largest), the target's logit */

struct row_stats {
    float top, sum, picked;
};

/* Of one row, in every thread; column: of the target, which may be outside. fmaxf drops NaN, the sum of exponentials
 * brings it back. Nothing has written over the row yet: what each thread reads lies before a barrier. */
template <class T>
__device__ static row_stats stats_of(const T *x, int64_t v, int64_t column, bool whole, float *scratch)
{
    row_stats s = {-INFINITY, 0.0f, column >= 0 && column < v ? num_load(x + column) : 0.0f};
    for (int64_t i = piece_first<T>(); i < v; i += piece_stride<T>()) {
        const piece<T> p = piece_load(x + i, v - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            s.top = i + k < v ? fmaxf(s.top, p.v[k]) : s.top;
    }
    s.top = block_reduce(s.top, op_max(), scratch);
    const float from = s.top == -INFINITY ? 0.0f : s.top;
    for (int64_t i = piece_first<T>(); i < v; i += piece_stride<T>()) {
        const piece<T> p = piece_load(x + i, v - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            s.sum += i + k < v ? expf(p.v[k] - from) : 0.0f;
    }
    s.sum = block_reduce(s.sum, op_sum(), scratch);
    return s;
}

/* dlogits may be x itself: a thread reads the elements it writes, and no others. */
template <class T>
__device__ static void finish_of(float *loss, T *dlogits, const T *x, bool counted, int64_t column, int64_t v,
                                 bool whole, row_stats s)
{
    if (threadIdx.x == 0)
        *loss = counted ? logf(s.sum) - (s.picked - s.top) : 0.0f;
    if (!dlogits)
        return;
    for (int64_t i = piece_first<T>(); i < v; i += piece_stride<T>()) {
        piece<T> p = piece_load(x + i, v - i, whole);
        for (int k = 0; k < piece<T>::N; k++) {
            p.v[k] = expf(p.v[k] - s.top) / s.sum;
            p.v[k] = !counted ? 0.0f : i + k == column ? p.v[k] - 1.0f : p.v[k];
        }
        piece_store(dlogits + i, p, v - i, whole);
    }
}

__device__ static void write_stats(float *stats, row_stats s)
{
    if (threadIdx.x == 0) {
        stats[0] = s.top;
        stats[1] = s.sum;
        stats[2] = s.picked;
    }
}

template <class T>
__global__ static void __launch_bounds__(THREADS)
    loss_stats(float *stats, const T *logits, const int32_t *targets, int64_t v, int64_t first, bool whole)
{
    __shared__ float scratch[32];
    const int64_t row = blockIdx.x;
    const bool counted = targets[row] >= 0; /* otherwise it is not looked at */
    const row_stats none = {0.0f, 0.0f, 0.0f};
    write_stats(stats + row * STATS,
                counted ? stats_of(logits + row * v, v, targets[row] - first, whole, scratch) : none);
}

int cuda_loss_stats(void *stream, float *stats, const void *logits, const int32_t *targets, bool is_bf16, int64_t n,
                    int64_t v, int64_t first)
{
    const bool whole = in_pieces(row_bytes(v, is_bf16), address(logits));
    if (n == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(loss_stats<bf16>, (unsigned)n, THREADS, 0, stream, stats, (const bf16 *)logits, targets, v, first,
                      whole);
    return LAUNCH(loss_stats<float>, (unsigned)n, THREADS, 0, stream, stats, (const float *)logits, targets, v, first,
                  whole);
}

template <class T>
__global__ static void __launch_bounds__(THREADS)
    loss_finish(float *losses, T *dlogits, const T *logits, const int32_t *targets, const float *stats, int64_t parts,
                int64_t n, int64_t v, int64_t first, bool whole)
{
    const int64_t row = blockIdx.x;
    row_stats s = {-INFINITY, 0.0f, 0.0f};
    for (int64_t p = 0; p < parts; p++)
        s.top = fmaxf(s.top, stats[(p * n + row) * STATS]);
    for (int64_t p = 0; p < parts; p++) {
        const float *part = stats + (p * n + row) * STATS;
        s.sum += part[0] == s.top ? part[1] : part[1] * expf(part[0] - s.top);
        s.picked += part[2];
    }
    finish_of(losses + row, dlogits ? dlogits + row * v : NULL, logits + row * v, targets[row] >= 0,
              targets[row] - first, v, whole, s);
}

int cuda_loss_finish(void *stream, float *losses, void *dlogits, const void *logits, const int32_t *targets,
                     const float *stats, int64_t parts, bool is_bf16, int64_t n, int64_t v, int64_t first)
{
    const bool whole = in_pieces(row_bytes(v, is_bf16), address(logits) | address(dlogits));
    if (n == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(loss_finish<bf16>, (unsigned)n, THREADS, 0, stream, losses, (bf16 *)dlogits, (const bf16 *)logits,
                      targets, stats, parts, n, v, first, whole);
    return LAUNCH(loss_finish<float>, (unsigned)n, THREADS, 0, stream, losses, (float *)dlogits, (const float *)logits,
                  targets, stats, parts, n, v, first, whole);
}

template <class T>
__global__ static void __launch_bounds__(THREADS) loss(float *losses, float *stats, T *dlogits, const T *logits,
                                                       const int32_t *targets, int64_t v, int64_t first, bool whole)
{
    __shared__ float scratch[32];
    const int64_t row = blockIdx.x, column = targets[row] - first;
    const bool counted = targets[row] >= 0; /* otherwise it is not looked at */
    const T *x = logits + row * v;
    const row_stats none = {0.0f, 0.0f, 0.0f};
    const row_stats s = counted ? stats_of(x, v, column, whole, scratch) : none;
    write_stats(stats + row * STATS, s);
    finish_of(losses + row, dlogits ? dlogits + row * v : NULL, x, counted, column, v, whole, s);
}

int cuda_loss(void *stream, float *losses, float *stats, void *dlogits, const void *logits, const int32_t *targets,
              bool is_bf16, int64_t n, int64_t v, int64_t first)
{
    const bool whole = in_pieces(row_bytes(v, is_bf16), address(logits) | address(dlogits));
    if (n == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(loss<bf16>, (unsigned)n, THREADS, 0, stream, losses, stats, (bf16 *)dlogits, (const bf16 *)logits,
                      targets, v, first, whole);
    return LAUNCH(loss<float>, (unsigned)n, THREADS, 0, stream, losses, stats, (float *)dlogits, (const float *)logits,
                  targets, v, first, whole);
}
