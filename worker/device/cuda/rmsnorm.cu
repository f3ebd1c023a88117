/* SPDX-License-Identifier: Apache-2.0 */
/* rmsnorm.cu - RMSNorm, also of a sum of two inputs, forward and backward (Zhang and Sennrich 2019, arXiv:1910.07467).
 * One block per row; for the gain's gradient, one block per 64 bytes of a row. Gains may be stored less `one`. */
#include "worker/device/cuda/kernel.cuh"

#define HELD 3 /* pieces of a row that a thread keeps in registers; a thread reads further pieces again */

template <class T> __device__ static inline float squares_of(const piece<T> &p)
{
    float sum = 0;
    for (int k = 0; k < piece<T>::N; k++)
        sum += p.v[k] * p.v[k];
    return sum;
}

/* Computes rstd and the block's normed row from the thread's sum of squares. held: the thread's first pieces of x, the
 * row. */
template <class T, bool WHOLE>
__device__ static void norm_row(const struct norm_args &a, const uint4 *held, const T *x, float sum, float *scratch)
{
    sum = block_reduce(sum, op_sum(), scratch);
    const float r = 1.0f / sqrtf(sum / (float)a.c + a.eps), one = a.offset ? 1.0f : 0.0f;
    const auto norm = [&](int64_t i, piece<T> p) {
        const piece<T> g = piece_load((const T *)a.gain + i, a.c - i, WHOLE);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] = p.v[k] * r * (one + g.v[k]);
        piece_store((T *)a.out + blockIdx.x * a.c + i, p, a.c - i, WHOLE);
    };
    if (threadIdx.x == 0)
        a.rstd[blockIdx.x] = r;
#pragma unroll
    for (int u = 0; u < HELD; u++) {
        const int64_t i = piece_first<T>() + u * piece_stride<T>();
        if (i < a.c)
            norm(i, piece_of<T>(held[u]));
    }
#pragma unroll 1
    for (int64_t i = piece_first<T>() + HELD * piece_stride<T>(); i < a.c; i += piece_stride<T>())
        norm(i, piece_load(x + i, a.c - i, WHOLE));
}

template <class T, bool WHOLE>
__global__ static void __launch_bounds__(THREADS, WHOLE ? 5 : 2) rmsnorm(struct norm_args a)
{
    __shared__ float scratch[32];
    const T *const x = (const T *)a.x + blockIdx.x * a.c;
    uint4 held[HELD];
    float sum = 0;
#pragma unroll
    for (int u = 0; u < HELD; u++) {
        const int64_t i = piece_first<T>() + u * piece_stride<T>();
        held[u] = bits_within(x + i, a.c - i, WHOLE);
    }
#pragma unroll
    for (int u = 0; u < HELD; u++)
        sum += squares_of(piece_of<T>(held[u]));
#pragma unroll 1
    for (int64_t i = piece_first<T>() + HELD * piece_stride<T>(); i < a.c; i += piece_stride<T>())
        sum += squares_of(piece_load(x + i, a.c - i, WHOLE));
    norm_row<T, WHOLE>(a, held, x, sum, scratch);
}

int cuda_rmsnorm(void *stream, const struct norm_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->c, is_bf16), address(a->out) | address(a->x) | address(a->gain));
    if (a->n == 0 || a->c == 0)
        return 0;
    return TYPED(a->dt, LAUNCH((whole ? rmsnorm<T, true> : rmsnorm<T, false>), (unsigned)a->n, THREADS, 0, stream, *a));
}

/* Stores the sum of p and q; p becomes the stored values. */
template <class T>
__device__ static inline void add_piece(T *h, piece<T> &p, const piece<T> &q, int64_t left, bool whole)
{
    for (int k = 0; k < piece<T>::N; k++)
        p.v[k] += q.v[k];
    piece_store(h, p, left, whole);
}

/* A thread adds the same elements that it squares and norms. So a thread reads back only elements that it has written
 * itself. */
template <class T, bool WHOLE>
__global__ static void __launch_bounds__(THREADS, WHOLE ? 5 : 2) add_rmsnorm(struct norm_args of)
{
    __shared__ float scratch[32];
    const int64_t c = of.c, at = blockIdx.x * c;
    const T *const a = (const T *)of.a + at, *const b = (const T *)of.b + at;
    T *const h = (T *)of.h + at;
    uint4 held[HELD], other[HELD];
    float sum = 0;
#pragma unroll
    for (int u = 0; u < HELD; u++) {
        const int64_t i = piece_first<T>() + u * piece_stride<T>();
        held[u] = bits_within(a + i, c - i, WHOLE);
        other[u] = bits_within(b + i, c - i, WHOLE);
    }
#pragma unroll
    for (int u = 0; u < HELD; u++) {
        const int64_t i = piece_first<T>() + u * piece_stride<T>();
        if (i >= c)
            break;
        piece<T> p = piece_of<T>(held[u]);
        add_piece(h + i, p, piece_of<T>(other[u]), c - i, WHOLE);
        held[u] = bits_of(p);
        sum += squares_of(p);
    }
#pragma unroll 1
    for (int64_t i = piece_first<T>() + HELD * piece_stride<T>(); i < c; i += piece_stride<T>()) {
        piece<T> p = piece_load(a + i, c - i, WHOLE);
        add_piece(h + i, p, piece_load(b + i, c - i, WHOLE), c - i, WHOLE);
        sum += squares_of(p);
    }
    norm_row<T, WHOLE>(of, held, h, sum, scratch);
}

int cuda_add_rmsnorm(void *stream, const struct norm_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->c, is_bf16),
                                 address(a->h) | address(a->out) | address(a->a) | address(a->b) | address(a->gain));
    if (a->n == 0 || a->c == 0)
        return 0;
    return TYPED(
        a->dt, LAUNCH((whole ? add_rmsnorm<T, true> : add_rmsnorm<T, false>), (unsigned)a->n, THREADS, 0, stream, *a));
}

/* With y = x r g and r = (mean(x^2) + eps)^-1/2:  dx = r (dout g) - x r^3 / C * sum(dout g x). */
template <class T> __global__ static void __launch_bounds__(THREADS) rmsnorm_dgrad(struct norm_args a, bool whole)
{
    __shared__ float scratch[32];
    const int64_t c = a.c, at = blockIdx.x * c;
    const T *const dout = (const T *)a.dout + at, *const x = (const T *)a.x + at, *const gain = (const T *)a.gain;
    const float one = a.offset ? 1.0f : 0.0f;
    float dot = 0;
    for (int64_t i = piece_first<T>(); i < c; i += piece_stride<T>()) {
        const piece<T> d = piece_load(dout + i, c - i, whole), g = piece_load(gain + i, c - i, whole);
        const piece<T> p = piece_load(x + i, c - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            dot += d.v[k] * (one + g.v[k]) * p.v[k];
    }
    dot = block_reduce(dot, op_sum(), scratch);
    const float r = a.rstd[blockIdx.x];
    const float factor = dot * r * r * r / (float)c;
    for (int64_t i = piece_first<T>(); i < c; i += piece_stride<T>()) {
        const piece<T> d = piece_load(dout + i, c - i, whole), g = piece_load(gain + i, c - i, whole);
        piece<T> p = piece_load(x + i, c - i, whole);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] = r * d.v[k] * (one + g.v[k]) - factor * p.v[k];
        if (a.residual) {
            const piece<T> from = piece_load((const T *)a.residual + at + i, c - i, whole);
            for (int k = 0; k < piece<T>::N; k++)
                p.v[k] = from.v[k] + p.v[k];
        }
        piece_store((T *)a.dx + at + i, p, c - i, whole);
    }
}

int cuda_rmsnorm_dgrad(void *stream, const struct norm_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->c, is_bf16), address(a->dx) | address(a->residual) | address(a->dout) |
                                                               address(a->x) | address(a->gain));
    if (a->n == 0 || a->c == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(rmsnorm_dgrad<T>, (unsigned)a->n, THREADS, 0, stream, *a, whole));
}

/* A block sums DGAIN_ACROSS neighbouring pieces over all rows. A thread sums one piece over rows g, g + DGAIN_ROWS, ...
 * in turn. Then a butterfly adds the rows in a warp, and the warps' sums are added in turn. */
#define DGAIN_WARPS 32
#define DGAIN_ACROSS 4
#define DGAIN_ROWS (DGAIN_WARPS * WARP / DGAIN_ACROSS)
#define DGAIN_AT_ONCE 2 /* rows that a thread reads before it adds the first */

template <class T> __device__ static inline void add_products(float *sum, uint4 dout, uint4 x, float rstd)
{
    const piece<T> d = piece_of<T>(dout), p = piece_of<T>(x);
    for (int k = 0; k < piece<T>::N; k++)
        sum[k] += d.v[k] * p.v[k] * rstd;
}

template <class T, bool WHOLE>
__global__ static void __launch_bounds__(DGAIN_WARPS *WARP)
    rmsnorm_dgain(float *dgain, const T *dout, const T *x, const float *rstd, int64_t n, int64_t c)
{
    enum { N = piece<T>::N, COLUMNS = DGAIN_ACROSS * N };
    __shared__ float partial[DGAIN_WARPS][COLUMNS];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, across = lane % DGAIN_ACROSS;
    const int64_t first = (int64_t)blockIdx.x * COLUMNS, column = first + across * N, left = c - column;
    int64_t row = threadIdx.x / DGAIN_ACROSS;
    float sum[N] = {0};
    dout += column, x += column;
    for (; left > 0 && row + (DGAIN_AT_ONCE - 1) * DGAIN_ROWS < n; row += DGAIN_AT_ONCE * DGAIN_ROWS) {
        uint4 d[DGAIN_AT_ONCE], p[DGAIN_AT_ONCE];
        float r[DGAIN_AT_ONCE];
#pragma unroll
        for (int u = 0; u < DGAIN_AT_ONCE; u++) {
            d[u] = bits_load(dout + (row + u * DGAIN_ROWS) * c, left, WHOLE);
            p[u] = bits_load(x + (row + u * DGAIN_ROWS) * c, left, WHOLE);
            r[u] = rstd[row + u * DGAIN_ROWS];
        }
#pragma unroll
        for (int u = 0; u < DGAIN_AT_ONCE; u++)
            add_products<T>(sum, d[u], p[u], r[u]);
    }
#pragma unroll 1
    for (; left > 0 && row < n; row += DGAIN_ROWS)
        add_products<T>(sum, bits_load(dout + row * c, left, WHOLE), bits_load(x + row * c, left, WHOLE), rstd[row]);
    for (int offset = WARP / 2; offset >= DGAIN_ACROSS; offset /= 2)
        for (int k = 0; k < N; k++)
            sum[k] += __shfl_xor_sync(FULL_WARP, sum[k], offset);
    for (int k = 0; k < N && lane < DGAIN_ACROSS; k++)
        partial[warp][across * N + k] = sum[k];
    __syncthreads();
    if (threadIdx.x >= COLUMNS || first + threadIdx.x >= c)
        return;
    float total = 0;
    for (int w = 0; w < DGAIN_WARPS; w++)
        total += partial[w][threadIdx.x];
    dgain[first + threadIdx.x] += total;
}

int cuda_rmsnorm_dgain(void *stream, const struct norm_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->c, is_bf16), address(a->dout) | address(a->x));
    if (a->n == 0 || a->c == 0)
        return 0;
    const unsigned blocks = (unsigned)((pieces_of(a->c, is_bf16) + DGAIN_ACROSS - 1) / DGAIN_ACROSS);
    return TYPED(a->dt, LAUNCH((whole ? rmsnorm_dgain<T, true> : rmsnorm_dgain<T, false>), blocks, DGAIN_WARPS * WARP,
                               0, stream, a->dgain, (const T *)a->dout, (const T *)a->x, a->rstd, a->n, a->c));
}
