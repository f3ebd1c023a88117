/* SPDX-License-Identifier: Apache-2.0 */
/* orthogonal.cu - what updates of whole matrices need besides products. */
#include "worker/device/cuda/kernel.cuh"

#define JACOBI_INLINE __device__ static inline
#include "worker/device/jacobi.h"

template <class T> __global__ static void __launch_bounds__(THREADS) unit(struct unit_args a)
{
    const float factor = (float)(1 / (sqrt(*a.sum) + (double)a.eps));
    for (size_t i = grid_first(); i < a.n; i += grid_stride())
        num_store((T *)a.out + i, a.x[i] * factor);
}

int cuda_unit(void *stream, const struct unit_args *a)
{
    if (a->n == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(unit<T>, grid_blocks(a->n), THREADS, 0, stream, *a));
}

template <class T> __global__ static void __launch_bounds__(THREADS) polynomial(struct polynomial_args a)
{
    const size_t n = (size_t)a.n;
    for (size_t i = grid_first(); i < n * n; i += grid_stride()) {
        const float sum = fmaf(a.b, num_load((const T *)a.x + i), a.c * a.y[i]);
        num_store((T *)a.out + i, i % (n + 1) == 0 ? a.a + sum : sum); /* the diagonal's places are n + 1 apart */
    }
}

int cuda_polynomial(void *stream, const struct polynomial_args *a)
{
    const size_t n = (size_t)(a->n * a->n);
    if (n == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(polynomial<T>, grid_blocks(n), THREADS, 0, stream, *a));
}

struct op_min {
    __device__ int operator()(int a, int b) const
    {
        return a < b ? a : b;
    }
};

/* Rows behind row i lose their part along it, a block each. */
__global__ static void __launch_bounds__(THREADS) project(float *x, int64_t cols, int64_t i)
{
    __shared__ double scratch[32];
    const float *const along = x + i * cols;
    float *const row = x + (i + 1 + blockIdx.x) * cols;
    double all = 0, part = 0;
    for (int64_t k = threadIdx.x; k < cols; k += THREADS) {
        all += (double)along[k] * (double)along[k];
        part += (double)along[k] * (double)row[k];
    }
    all = block_reduce(all, op_sum(), scratch);
    part = block_reduce(part, op_sum(), scratch);
    const double factor = all > 0 ? part / all : 0;
    for (int64_t k = threadIdx.x; k < cols; k += THREADS)
        row[k] = (float)((double)row[k] - factor * (double)along[k]);
}

__global__ static void __launch_bounds__(THREADS) unit_rows(float *x, int64_t cols)
{
    __shared__ double scratch[32];
    float *const row = x + (int64_t)blockIdx.x * cols;
    double sum = 0;
    for (int64_t k = threadIdx.x; k < cols; k += THREADS)
        sum += (double)row[k] * (double)row[k];
    sum = block_reduce(sum, op_sum(), scratch);
    const double factor = sum > 0 ? 1 / sqrt(sum) : 0;
    for (int64_t k = threadIdx.x; k < cols; k += THREADS)
        row[k] = (float)((double)row[k] * factor);
}

int cuda_orthonormal(void *stream, const struct orthonormal_args *a)
{
    int status = 0;
    if (a->rows == 0)
        return 0;
    for (int turn = 0; turn < 2; turn++)
        for (int64_t i = 0; i + 1 < a->rows && status == 0; i++)
            status = LAUNCH(project, (unsigned)(a->rows - 1 - i), THREADS, 0, stream, a->x, a->cols, i);
    return status != 0 ? status : LAUNCH(unit_rows, (unsigned)a->rows, THREADS, 0, stream, a->x, a->cols);
}

/* A block has a pair of rows. turned: a word for each turn of all pairs. */
__global__ static void __launch_bounds__(THREADS)
    rotate(struct jacobi_args a, int *turned, int sweep, int64_t players, int64_t round)
{
    __shared__ double scratch[32];
    int64_t i, j;
    jacobi_pair(players, round, blockIdx.x, &i, &j);
    if (j >= a.rows || (sweep > 0 && turned[sweep - 1] == 0))
        return;
    float *const x = a.x + i * a.cols, *const z = a.x + j * a.cols;
    double aa = 0, bb = 0, ab = 0;
    for (int64_t k = threadIdx.x; k < a.cols; k += THREADS) {
        const double u = x[k], v = z[k];
        aa += u * u;
        bb += v * v;
        ab += u * v;
    }
    aa = block_reduce(aa, op_sum(), scratch);
    bb = block_reduce(bb, op_sum(), scratch);
    ab = block_reduce(ab, op_sum(), scratch);
    const struct jacobi_angle angle = jacobi_angle_of(aa, bb, ab);
    if (!angle.turns)
        return;
    for (int of = 0; of < 2; of++) {
        float *const first = of == 0 ? x : a.y + i * a.ycols, *const second = of == 0 ? z : a.y + j * a.ycols;
        const int64_t n = of == 0 ? a.cols : a.ycols;
        for (int64_t k = threadIdx.x; k < n; k += THREADS) {
            const double u = first[k], v = second[k];
            first[k] = (float)(angle.c * u - angle.s * v);
            second[k] = (float)(angle.s * u + angle.c * v);
        }
    }
    if (threadIdx.x == 0)
        turned[sweep] = 1;
}

__global__ static void __launch_bounds__(THREADS) row_norms(double *norms, const float *x, int64_t cols)
{
    __shared__ double scratch[32];
    const float *const row = x + (int64_t)blockIdx.x * cols;
    double sum = 0;
    for (int64_t k = threadIdx.x; k < cols; k += THREADS)
        sum += (double)row[k] * (double)row[k];
    sum = block_reduce(sum, op_sum(), scratch);
    if (threadIdx.x == 0)
        norms[blockIdx.x] = sum;
}

/* A block has a row of y, and finds its place in out. */
__global__ static void __launch_bounds__(THREADS) place_rows(struct jacobi_args a, const double *norms)
{
    __shared__ double scratch[32];
    __shared__ float largest_scratch[32];
    __shared__ int place_scratch[32];
    const int rows = (int)a.rows, cols = (int)a.ycols, none = 0x7fffffff;
    const float *const row = a.y + (int64_t)blockIdx.x * cols;
    const double mine = norms[blockIdx.x];
    int longer = 0, place = none;
    double sum = 0;
    float largest = 0;
    for (int j = (int)threadIdx.x; j < rows; j += THREADS)
        longer += norms[j] > mine || (norms[j] == mine && j < (int)blockIdx.x);
    longer = block_reduce(longer, op_sum(), place_scratch);
    if (longer >= a.kept)
        return;
    for (int k = (int)threadIdx.x; k < cols; k += THREADS) {
        sum += (double)row[k] * (double)row[k];
        largest = fmaxf(largest, fabsf(row[k]));
    }
    sum = block_reduce(sum, op_sum(), scratch);
    largest = block_reduce(largest, op_max(), largest_scratch);
    for (int k = (int)threadIdx.x; k < cols && place == none; k += THREADS)
        place = fabsf(row[k]) == largest ? k : place;
    place = block_reduce(place, op_min(), place_scratch);
    const double factor = sum > 0 ? (row[place] < 0 ? -1 : 1) / sqrt(sum) : 0;
    float *const out = a.out + (int64_t)longer * cols;
    for (int k = (int)threadIdx.x; k < cols; k += THREADS)
        out[k] = (float)((double)row[k] * factor);
}

int cuda_jacobi(void *stream, const struct jacobi_args *a)
{
    const int64_t players = a->rows + a->rows % 2;
    int *const turned = (int *)a->work;
    double *const norms = (double *)a->work + JACOBI_SWEEPS;
    int status = 0;
    if (a->rows == 0)
        return 0;
    for (int sweep = 0; sweep < JACOBI_SWEEPS; sweep++)
        for (int64_t round = 0; round < players - 1 && status == 0; round++)
            status = LAUNCH(rotate, (unsigned)(players / 2), THREADS, 0, stream, *a, turned, sweep, players, round);
    if (status == 0)
        status = LAUNCH(row_norms, (unsigned)a->rows, THREADS, 0, stream, norms, a->x, a->cols);
    return status != 0 ? status : LAUNCH(place_rows, (unsigned)a->rows, THREADS, 0, stream, *a, norms);
}

/* A block has a row. */
__global__ static void __launch_bounds__(THREADS) row_gradient(struct row_gradient_args a)
{
    __shared__ double scratch[32];
    float *const g = a.g + (int64_t)blockIdx.x * a.cols;
    const float *const w = a.clip ? a.w + (int64_t)blockIdx.x * a.cols : g;
    double squares = 0, weights = 0, sum = 0, factor = a.scale;
    for (int64_t k = threadIdx.x; k < a.cols; k += THREADS) {
        sum += (double)g[k];
        squares += (double)g[k] * (double)g[k];
        weights += (double)w[k] * (double)w[k];
    }
    sum = block_reduce(sum, op_sum(), scratch);
    squares = block_reduce(squares, op_sum(), scratch);
    weights = block_reduce(weights, op_sum(), scratch);
    const double norm = sqrt(squares) * fabs(factor), mean = sum / (double)a.cols;
    if (a.clip) {
        const double most = ROW_CLIP * fmax(sqrt(weights), ROW_CLIP_LEAST);
        factor *= norm > most ? most / fmax(norm, 1e-6) : 1;
    }
    if (a.normalize && a.cols > 2)
        factor /= fabs(factor) * sqrt(fmax(squares / (double)a.cols - mean * mean, 0.0)) + 1e-8;
    const double shift = a.centralize ? mean : 0;
    for (int64_t k = threadIdx.x; k < a.cols; k += THREADS)
        g[k] = (float)(((double)g[k] - shift) * factor);
}

int cuda_row_gradient(void *stream, const struct row_gradient_args *a)
{
    return a->rows == 0 ? 0 : LAUNCH(row_gradient, (unsigned)a->rows, THREADS, 0, stream, *a);
}

__global__ static void __launch_bounds__(THREADS) moments(struct moments_args a)
{
    const float b0 = a.beta0, b1 = a.previous ? a.beta1 * a.beta1 : a.beta1;
    const float norm = a.previous ? 1.0f / sqrtf((1 + b0) * (1 + b0) + b0 * b0) : 1.0f;
    for (size_t i = grid_first(); i < a.n; i += grid_stride()) {
        const float g = a.scale * a.g[i], m = a.m[i];
        const float now = fmaf(b1, a.previous ? a.previous[i] : m, (1.0f - b1) * g);
        const float v = fmaf(a.beta2, a.v[i], (1.0f - a.beta2) * (g * g));
        const float second = a.largest && a.largest[i] > v ? a.largest[i] : v;
        float below = sqrtf(second / a.bias2) + a.eps;
        if (a.softplus && below * MOMENTS_SOFTPLUS <= 20)
            below = log1pf(expf(MOMENTS_SOFTPLUS * below)) / MOMENTS_SOFTPLUS;
        a.out[i] = (a.previous ? (1 + b0) * now - b0 * m : now) * (norm / a.bias1) / below;
        a.m[i] = now;
        a.v[i] = v;
        if (a.previous)
            a.previous[i] = m;
        if (a.largest)
            a.largest[i] = second;
    }
}

int cuda_moments(void *stream, const struct moments_args *a)
{
    return a->n == 0 ? 0 : LAUNCH(moments, grid_blocks(a->n), THREADS, 0, stream, *a);
}

/* A block has a row. */
__global__ static void __launch_bounds__(THREADS) row_decay(struct row_decay_args a)
{
    __shared__ double scratch[32];
    const int64_t first = (int64_t)blockIdx.x * a.cols;
    const double mean = a.sum ? *a.sum * (double)a.mean : 1, all = mean > 0 ? (double)a.decay / sqrt(mean) : 0;
    double squares = 0;
    for (int64_t k = threadIdx.x; k < a.cols; k += THREADS)
        squares += (double)a.w[first + k] * (double)a.w[first + k];
    squares = block_reduce(squares, op_sum(), scratch);
    const float factor = (float)(a.norm_loss ? all * (1 - 1 / (sqrt(squares) + 1e-8)) : all);
    for (int64_t k = threadIdx.x; k < a.cols; k += THREADS) {
        const float w = a.w[first + k];
        float d = fmaf(factor, w, a.d[first + k]);
        if (a.slow && a.slow[first + k] != 0.0f)
            d = fmaf(a.kept / a.lr, w - a.slow[first + k], (1.0f - a.kept) * d);
        a.d[first + k] = d;
    }
}

int cuda_row_decay(void *stream, const struct row_decay_args *a)
{
    return a->rows == 0 ? 0 : LAUNCH(row_decay, (unsigned)a->rows, THREADS, 0, stream, *a);
}
