/* SPDX-License-Identifier: Apache-2.0 */
/* sums.cu - fp64 sums of a buffer or of fixed stretches of it, each by one block in one order. */
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
