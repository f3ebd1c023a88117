/* SPDX-License-Identifier: Apache-2.0 */
/* bias.cu - biases of linear layers, and their gradients. Packed rows of several groups have a bias for each group. */
#include "worker/device/cuda/grouped.cuh"

/* A thread adds to pieces of rows; each row has `pieces` pieces. */
template <class T> __global__ static void add_bias(struct bias_args a, size_t count, size_t pieces, bool whole)
{
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = a.c - column;
        T *const x = (T *)a.x + row * a.ld + column;
        piece<T> p = piece_load(x, left, whole);
        const piece<T> b = piece_load((const T *)a.bias + column, left, whole);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] += b.v[k];
        piece_store(x, p, left, whole);
    }
}

int cuda_add_bias(void *stream, const struct bias_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const size_t pieces = pieces_of(a->c, is_bf16), count = (size_t)a->n * pieces;
    const bool whole =
        in_pieces(row_bytes(a->c, is_bf16) | row_bytes(a->ld, is_bf16), address(a->x) | address(a->bias));
    if (count == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(add_bias<T>, grid_blocks(count), THREADS, 0, stream, *a, count, pieces, whole));
}

/* A block sums ACROSS neighbouring pieces over all rows. A thread sums one piece over rows g, g + ROWS, ... in turn.
 * Then the threads' sums are added in turn. */
#define ACROSS 8
#define ROWS (THREADS / ACROSS)

template <class T>
__device__ static inline void add_columns(float *dbias, const T *dout, int64_t ld, int64_t n, int64_t c, bool whole)
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

template <class T>
__global__ static void __launch_bounds__(THREADS)
    bias_wgrad(float *dbias, const T *dout, int64_t ld, int64_t n, int64_t c, bool whole)
{
    add_columns(dbias, dout, ld, n, c, whole);
}

int cuda_bias_wgrad(void *stream, const struct bias_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->c, is_bf16) | row_bytes(a->ld, is_bf16), address(a->dout));
    const unsigned blocks = (unsigned)((pieces_of(a->c, is_bf16) + ACROSS - 1) / ACROSS);
    if (a->n == 0 || a->c == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(bias_wgrad<T>, blocks, THREADS, 0, stream, a->dbias, (const T *)a->dout, a->ld, a->n,
                               a->c, whole));
}

/* --- packed rows -------------------------------------------------------------------------------------------------- */

/* A block has ROWS rows and handles the rows of each group in turn. */
template <class T>
__global__ static void __launch_bounds__(THREADS)
    add_bias_grouped(T *x, const T *bias, size_t pieces, bool whole, struct grouped_problem g)
{
    const int64_t begin = (int64_t)blockIdx.x * ROWS, end = begin + ROWS;
    int64_t first = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        check_counts(g);
    for (int64_t i = 0; i < g.parts * g.groups && first < end; i++) {
        const int64_t next = first + rows_of(g, i, first), from = first < begin ? begin : first;
        const int64_t rows = (next < end ? next : end) - from;
        const T *of = bias + i % g.groups * g.n;
        first = next;
        for (int64_t e = threadIdx.x; e < rows * (int64_t)pieces; e += THREADS) {
            const int64_t column = e % (int64_t)pieces * piece<T>::N, left = g.n - column;
            T *to = x + (from + e / (int64_t)pieces) * g.ldc + column;
            piece<T> p = piece_load(to, left, whole);
            const piece<T> b = piece_load(of + column, left, whole);
            for (int k = 0; k < piece<T>::N; k++)
                p.v[k] += b.v[k];
            piece_store(to, p, left, whole);
        }
    }
}

static struct grouped_problem packed_rows(const struct bias_args *a, struct fault_words fault)
{
    struct grouped_problem g = {};
    g.add = a->beta == 1.0f;
    g.counts = a->counts;
    g.groups = a->groups, g.parts = a->parts;
    g.m = a->n, g.n = a->c, g.ldc = a->ld;
    g.split = EXPERT_SPLIT;
    g.fault = fault;
    return g;
}

int cuda_add_bias_grouped(void *stream, const struct bias_args *a, struct fault_words fault)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const struct grouped_problem g = packed_rows(a, fault);
    const size_t pieces = pieces_of(g.n, is_bf16);
    const unsigned blocks = (unsigned)((g.m + ROWS - 1) / ROWS);
    const bool whole = in_pieces(row_bytes(g.n, is_bf16) | row_bytes(g.ldc, is_bf16), address(a->x) | address(a->bias));
    if (blocks == 0 || g.n == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(add_bias_grouped<T>, blocks, THREADS, 0, stream, (T *)a->x, (const T *)a->bias, pieces,
                               whole, g));
}

/* Like bias_wgrad, with a row of blocks for each group of the last part, and sums of `split` rows at a time. */
template <class T>
__global__ static void __launch_bounds__(THREADS)
    bias_wgrad_grouped(float *dbias, const T *dout, bool whole, struct grouped_problem g)
{
    enum { COLUMNS = ACROSS * piece<T>::N };
    const int64_t index = (g.parts - 1) * g.groups + blockIdx.y, column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    int64_t first = 0;
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        check_counts(g);
    for (int64_t i = 0; i < index; i++)
        first += rows_of(g, i, first);
    dbias += blockIdx.y * g.n;
    if (!g.add && threadIdx.x < COLUMNS && column < g.n)
        dbias[column] = 0; /* each thread clears the element to which it later adds */
    for (const int64_t end = first + rows_of(g, index, first); first < end; first += g.split) {
        add_columns(dbias, dout + first * g.ldc, g.ldc, end - first < g.split ? end - first : g.split, g.n, whole);
        __syncthreads(); /* from here on all threads have read the sums */
    }
}

int cuda_bias_wgrad_grouped(void *stream, const struct bias_args *a, struct fault_words fault)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const struct grouped_problem g = packed_rows(a, fault);
    const bool whole = in_pieces(row_bytes(g.n, is_bf16) | row_bytes(g.ldc, is_bf16), address(a->dout));
    const dim3 grid((unsigned)((pieces_of(g.n, is_bf16) + ACROSS - 1) / ACROSS), (unsigned)g.groups);
    if (g.n == 0 || g.groups == 0)
        return 0;
    return TYPED(a->dt,
                 LAUNCH(bias_wgrad_grouped<T>, grid, THREADS, 0, stream, a->dbias, (const T *)a->dout, whole, g));
}
