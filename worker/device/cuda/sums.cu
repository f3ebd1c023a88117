/* SPDX-License-Identifier: Apache-2.0 */
/* sums.cu - fp64 sums of a buffer or of its fixed stretches, and the hash of a buffer. One block computes each fp64 sum
 * in one order. The hash is a sum of integers, in any order. */
#include "worker/device/cuda/kernel.cuh"

__global__ static void __launch_bounds__(THREADS)
    block_sums(double *out, const float *x, size_t n, size_t block, bool square)
{
    __shared__ double scratch[32];
    const size_t begin = (size_t)blockIdx.x * block;
    const size_t end = begin + block < n ? begin + block : n;
    double sum = 0;
    for (size_t i = begin + threadIdx.x; i < end; i += THREADS) {
        double value = x[i];
        sum += square ? value * value : value;
    }
    sum = block_reduce(sum, op_sum(), scratch);
    if (threadIdx.x == 0)
        out[blockIdx.x] = sum;
}

int cuda_block_sums(void *stream, double *out, const float *x, size_t n, size_t block, bool square)
{
    if (n == 0)
        return 0;
    return LAUNCH(block_sums, (unsigned)((n + block - 1) / block), THREADS, 0, stream, out, x, n, block, square);
}

#define SUM_THREADS 1024

__global__ static void __launch_bounds__(SUM_THREADS) sum_all(double *out, bool add, const double *x, size_t n)
{
    __shared__ double scratch[32];
    double sum = 0;
    for (size_t i = threadIdx.x; i < n; i += SUM_THREADS)
        sum += x[i];
    sum = block_reduce(sum, op_sum(), scratch);
    if (threadIdx.x == 0)
        *out = add ? *out + sum : sum;
}

int cuda_sum(void *stream, double *out, bool add, const double *x, size_t n)
{
    return LAUNCH(sum_all, 1, SUM_THREADS, 0, stream, out, add, x, n);
}

/* hash_element() of base/hash.h. */
__device__ static inline uint64_t element(uint64_t key, int64_t place, uint32_t bits)
{
    uint64_t z = (key + (uint64_t)place * HASH_STEP) ^ (bits * UINT64_C(0xd6e8feb86659fd93));
    z = (z ^ z >> 32) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ z >> 29;
}

/* The grid's y has rows, its x the rows' elements. The atomic adds integers, so its order has no effect. */
__global__ static void __launch_bounds__(THREADS)
    hash(unsigned long long *out, const void *x, bool bf16, int64_t rows, int64_t cols, uint64_t key, int64_t first)
{
    __shared__ unsigned long long scratch[32];
    unsigned long long sum = 0;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const uint64_t row_key = mix(key + (uint64_t)row);
        for (int64_t i = (int64_t)grid_first(); i < cols; i += (int64_t)grid_stride()) {
            const int64_t at = row * cols + i;
            const uint32_t bits = bf16 ? (uint32_t)((const uint16_t *)x)[at] << 16 : ((const uint32_t *)x)[at];
            sum += element(row_key, first + i, bits);
        }
    }
    sum = block_reduce(sum, op_sum(), scratch);
    if (threadIdx.x == 0)
        atomicAdd(out, sum);
}

#define HASH_BLOCKS 4096

int cuda_hash(void *stream, const struct hash_args *a)
{
    if (a->rows == 0 || a->cols == 0)
        return 0;
    const int64_t across = (a->cols + THREADS - 1) / THREADS,
                  along = HASH_BLOCKS / (across < HASH_BLOCKS ? across : HASH_BLOCKS);
    const dim3 grid((unsigned)(across < HASH_BLOCKS ? across : HASH_BLOCKS),
                    (unsigned)(a->rows < along ? a->rows : along));
    return LAUNCH(hash, grid, THREADS, 0, stream, (unsigned long long *)a->out, a->x, a->dt == DTYPE_BF16, a->rows,
                  a->cols, a->key, a->first);
}
