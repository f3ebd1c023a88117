/* SPDX-License-Identifier: Apache-2.0 */
/* bias.cu - biases of linear layers, and their gradients. */
#include "worker/device/cuda/kernel.cuh"

/* A thread takes pieces of rows: `pieces` of them in each. */
template <class T>
__global__ static void add_bias(T *x, int64_t ld, const T *bias, size_t count, size_t pieces, int64_t c, bool whole)
{
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = c - column;
        piece<T> p = piece_load(x + row * ld + column, left, whole);
        const piece<T> b = piece_load(bias + column, left, whole);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] += b.v[k];
        piece_store(x + row * ld + column, p, left, whole);
    }
}

int cuda_add_bias(void *stream, void *x, int64_t ldx, const void *bias, bool is_bf16, int64_t n, int64_t c)
{
    const size_t pieces = pieces_of(c, is_bf16), count = (size_t)n * pieces;
    const bool whole = in_pieces(row_bytes(c, is_bf16) | row_bytes(ldx, is_bf16), address(x) | address(bias));
    if (count == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(add_bias<bf16>, grid_blocks(count), THREADS, 0, stream, (bf16 *)x, ldx, (const bf16 *)bias, count,
                      pieces, c, whole);
    return LAUNCH(add_bias<float>, grid_blocks(count), THREADS, 0, stream, (float *)x, ldx, (const float *)bias, count,
                  pieces, c, whole);
}

/* A block takes ACROSS pieces side by side of every row, a thread one of them of rows g, g + ROWS, ... in turn. Then
 * the rows' sums in turn. */
#define ACROSS 8
#define ROWS (THREADS / ACROSS)

template <class T>
__global__ static void __launch_bounds__(THREADS)
    bias_wgrad(float *dbias, const T *dout, int64_t ld, int64_t n, int64_t c, bool whole)
{
    enum { N = piece<T>::N, COLUMNS = ACROSS * N };
    __shared__ float partial[ROWS][COLUMNS];
    const int across = (int)threadIdx.x % ACROSS, first_row = (int)threadIdx.x / ACROSS;
    const int64_t first = (int64_t)blockIdx.x * COLUMNS, column = first + across * N, left = c - column;
    float sum[N] = {0};
    for (int64_t row = first_row; left > 0 && row < n; row += ROWS) {
        const piece<T> d = piece_load(dout + row * ld + column, left, whole);
        for (int k = 0; k < N; k++)
            sum[k] += d.v[k];
    }
    for (int k = 0; k < N; k++)
        partial[first_row][across * N + k] = sum[k];
    __syncthreads();
    if (threadIdx.x >= COLUMNS || first + threadIdx.x >= c)
        return;
    float total = 0;
    for (int r = 0; r < ROWS; r++)
        total += partial[r][threadIdx.x];
    dbias[first + threadIdx.x] += total;
}

int cuda_bias_wgrad(void *stream, float *dbias, const void *dout, int64_t ldo, bool is_bf16, int64_t n, int64_t c)
{
    const bool whole = in_pieces(row_bytes(c, is_bf16) | row_bytes(ldo, is_bf16), address(dout));
    const unsigned blocks = (unsigned)((pieces_of(c, is_bf16) + ACROSS - 1) / ACROSS);
    if (n == 0 || c == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(bias_wgrad<bf16>, blocks, THREADS, 0, stream, dbias, (const bf16 *)dout, ldo, n, c, whole);
    return LAUNCH(bias_wgrad<float>, blocks, THREADS, 0, stream, dbias, (const float *)dout, ldo, n, c, whole);
}
