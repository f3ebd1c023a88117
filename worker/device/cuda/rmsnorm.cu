/* SPDX-License-Identifier: Apache-2.0 */
/* rmsnorm.cu - RMSNorm, of a sum too, forward and backward (Zhang and Sennrich 2019, arXiv:1910.07467). One block per
 * row; the gain's gradient one block per 32 columns. */
#include "worker/device/cuda/kernel.cuh"

/* From the thread's sum of squares: rstd, and the row normed. */
template <class T>
__device__ static void norm_row(T *out, float *rstd, const T *x, const T *gain, int64_t c, float eps, bool whole,
                                float sum, float *scratch)
{
    sum = block_reduce(sum, op_sum(), scratch);
    const float r = 1.0f / sqrtf(sum / (float)c + eps);
    if (threadIdx.x == 0)
        *rstd = r;
    for (int64_t i = piece_first<T>(); i < c; i += piece_stride<T>()) {
        piece<T> p = piece_load(x + i, c - i, whole);
        const piece<T> g = piece_load(gain + i, c - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] = p.v[k] * r * g.v[k];
        piece_store(out + i, p, c - i, whole);
    }
}

template <class T>
__global__ static void __launch_bounds__(THREADS)
    rmsnorm(T *out, float *rstd, const T *x, const T *gain, int64_t c, float eps, bool whole)
{
    __shared__ float scratch[32];
    const int64_t row = blockIdx.x;
    float sum = 0;
    for (int64_t i = piece_first<T>(); i < c; i += piece_stride<T>()) {
        const piece<T> p = piece_load(x + row * c + i, c - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            sum += p.v[k] * p.v[k];
    }
    norm_row(out + row * c, rstd + row, x + row * c, gain, c, eps, whole, sum, scratch);
}

int cuda_rmsnorm(void *stream, void *out, float *rstd, const void *x, const void *gain, bool is_bf16, int64_t n,
                 int64_t c, float eps)
{
    const bool whole = in_pieces(row_bytes(c, is_bf16), address(out) | address(x) | address(gain));
    if (n == 0 || c == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(rmsnorm<bf16>, (unsigned)n, THREADS, 0, stream, (bf16 *)out, rstd, (const bf16 *)x,
                      (const bf16 *)gain, c, eps, whole);
    return LAUNCH(rmsnorm<float>, (unsigned)n, THREADS, 0, stream, (float *)out, rstd, (const float *)x,
                  (const float *)gain, c, eps, whole);
}

/* A thread adds the elements that it squares and norms, so that it reads back what it has written itself. */
template <class T>
__global__ static void __launch_bounds__(THREADS)
    add_rmsnorm(T *h, T *out, float *rstd, const T *a, const T *b, const T *gain, int64_t c, float eps, bool whole)
{
    __shared__ float scratch[32];
    const int64_t row = blockIdx.x;
    float sum = 0;
    for (int64_t i = piece_first<T>(); i < c; i += piece_stride<T>()) {
        piece<T> p = piece_load(a + row * c + i, c - i, whole);
        const piece<T> q = piece_load(b + row * c + i, c - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] += q.v[k];
        piece_store(h + row * c + i, p, c - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            sum += p.v[k] * p.v[k];
    }
    norm_row(out + row * c, rstd + row, h + row * c, gain, c, eps, whole, sum, scratch);
}

int cuda_add_rmsnorm(void *stream, void *h, void *out, float *rstd, const void *a, const void *b, const void *gain,
                     bool is_bf16, int64_t n, int64_t c, float eps)
{
    const bool whole =
        in_pieces(row_bytes(c, is_bf16), address(h) | address(out) | address(a) | address(b) | address(gain));
    if (n == 0 || c == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(add_rmsnorm<bf16>, (unsigned)n, THREADS, 0, stream, (bf16 *)h, (bf16 *)out, rstd, (const bf16 *)a,
                      (const bf16 *)b, (const bf16 *)gain, c, eps, whole);
    return LAUNCH(add_rmsnorm<float>, (unsigned)n, THREADS, 0, stream, (float *)h, (float *)out, rstd, (const float *)a,
                  (const float *)b, (const float *)gain, c, eps, whole);
}

/* With y = x r g and r = (mean(x^2) + eps)^-1/2:  dx = r (dout g) - x r^3 / C * sum(dout g x). */
template <class T>
__global__ static void __launch_bounds__(THREADS) rmsnorm_dgrad(T *dx, const T *residual, const T *dout, const T *x,
                                                                const T *gain, const float *rstd, int64_t c, bool whole)
{
    __shared__ float scratch[32];
    const int64_t at = (int64_t)blockIdx.x * c;
    float dot = 0;
    for (int64_t i = piece_first<T>(); i < c; i += piece_stride<T>()) {
        const piece<T> d = piece_load(dout + at + i, c - i, whole), g = piece_load(gain + i, c - i, whole);
        const piece<T> p = piece_load(x + at + i, c - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            dot += d.v[k] * g.v[k] * p.v[k];
    }
    dot = block_reduce(dot, op_sum(), scratch);
    const float r = rstd[blockIdx.x];
    const float factor = dot * r * r * r / (float)c;
    for (int64_t i = piece_first<T>(); i < c; i += piece_stride<T>()) {
        const piece<T> d = piece_load(dout + at + i, c - i, whole), g = piece_load(gain + i, c - i, whole);
        piece<T> p = piece_load(x + at + i, c - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] = r * d.v[k] * g.v[k] - factor * p.v[k];
        if (residual) {
            const piece<T> from = piece_load(residual + at + i, c - i, whole);
            for (int k = 0; k < piece<T>::N; k++)
                p.v[k] = from.v[k] + p.v[k];
        }
        piece_store(dx + at + i, p, c - i, whole);
    }
}

int cuda_rmsnorm_dgrad(void *stream, void *dx, const void *residual, const void *dout, const void *x, const void *gain,
                       const float *rstd, bool is_bf16, int64_t n, int64_t c)
{
    const bool whole =
        in_pieces(row_bytes(c, is_bf16), address(dx) | address(residual) | address(dout) | address(x) | address(gain));
    if (n == 0 || c == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(rmsnorm_dgrad<bf16>, (unsigned)n, THREADS, 0, stream, (bf16 *)dx, (const bf16 *)residual,
                      (const bf16 *)dout, (const bf16 *)x, (const bf16 *)gain, rstd, c, whole);
    return LAUNCH(rmsnorm_dgrad<float>, (unsigned)n, THREADS, 0, stream, (float *)dx, (const float *)residual,
                  (const float *)dout, (const float *)x, (const float *)gain, rstd, c, whole);
}

/* A block takes 32 columns. Lane = column, so loads coalesce; warp w sums rows w, w + WARPS, ... in turn, and the
 * warps' sums are added in turn. */
#define DGAIN_WARPS 32

template <class T>
__global__ static void __launch_bounds__(DGAIN_WARPS *WARP)
    rmsnorm_dgain(float *dgain, const T *dout, const T *x, const float *rstd, int64_t n, int64_t c)
{
    __shared__ float partial[DGAIN_WARPS][WARP + 1];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t column = (int64_t)blockIdx.x * WARP + lane;
    float sum = 0;
    if (column < c)
        for (int64_t row = warp; row < n; row += DGAIN_WARPS)
            sum += num_load(dout + row * c + column) * num_load(x + row * c + column) * rstd[row];
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || column >= c)
        return;
    sum = partial[0][lane];
    for (int w = 1; w < DGAIN_WARPS; w++)
        sum += partial[w][lane];
    dgain[column] += sum;
}

int cuda_rmsnorm_dgain(void *stream, float *dgain, const void *dout, const void *x, const float *rstd, bool is_bf16,
                       int64_t n, int64_t c)
{
    if (n == 0 || c == 0)
        return 0;
    const unsigned blocks = (unsigned)((c + WARP - 1) / WARP);
    if (is_bf16)
        return LAUNCH(rmsnorm_dgain<bf16>, blocks, DGAIN_WARPS * WARP, 0, stream, dgain, (const bf16 *)dout,
                      (const bf16 *)x, rstd, n, c);
    return LAUNCH(rmsnorm_dgain<float>, blocks, DGAIN_WARPS * WARP, 0, stream, dgain, (const float *)dout,
                  (const float *)x, rstd, n, c);
}
