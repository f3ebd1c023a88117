/* SPDX-License-Identifier: Apache-2.0 */
/* weights.cu - initial values: rng_weights() of base/rng.c, operation by operation in plain double arithmetic. Built
 * without contraction of products and sums (mk/cuda.mk), so that the bits are the host's. */
#include "worker/device/cuda/kernel.cuh"

__device__ static inline void philox(uint32_t k0, uint32_t k1, uint64_t lo, uint64_t hi, uint32_t words[2])
{
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
}

__device__ static inline double log_unit(double u)
{
    uint64_t bits;
    memcpy(&bits, &u, sizeof bits);
    const uint64_t shifted = bits - UINT64_C(0x3fe6a09e667f3bcd);
    const int64_t e = (int64_t)shifted >> 52;
    bits -= (uint64_t)e << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    const double z = (m - 1.0) / (m + 1.0), y = z * z;
    double p = 1.0 / 23;
    p = p * y + 1.0 / 21;
    p = p * y + 1.0 / 19;
    p = p * y + 1.0 / 17;
    p = p * y + 1.0 / 15;
    p = p * y + 1.0 / 13;
    p = p * y + 1.0 / 11;
    p = p * y + 1.0 / 9;
    p = p * y + 1.0 / 7;
    p = p * y + 1.0 / 5;
    p = p * y + 1.0 / 3;
    return (double)e * 0.693147180559945309417 + 2.0 * (z + z * (y * p));
}

__device__ static inline void sincos_turns(uint32_t turns, double *ret_sin, double *ret_cos)
{
    const uint32_t quarter = (turns + 0x20000000u) >> 30;
    const double x = (double)(int32_t)(turns - (quarter << 30)) * (6.283185307179586476925 * 0x1p-32), y = x * x;
    double s = 1.0 / 355687428096000.0, c = -1.0 / 6402373705728000.0;
    s = s * y - 1.0 / 1307674368000.0;
    s = s * y + 1.0 / 6227020800.0;
    s = s * y - 1.0 / 39916800.0;
    s = s * y + 1.0 / 362880.0;
    s = s * y - 1.0 / 5040.0;
    s = s * y + 1.0 / 120.0;
    s = s * y - 1.0 / 6.0;
    s = x + x * (y * s);
    c = c * y + 1.0 / 20922789888000.0;
    c = c * y - 1.0 / 87178291200.0;
    c = c * y + 1.0 / 479001600.0;
    c = c * y - 1.0 / 3628800.0;
    c = c * y + 1.0 / 40320.0;
    c = c * y - 1.0 / 720.0;
    c = c * y + 1.0 / 24.0;
    c = c * y - 0.5;
    c = 1.0 + y * c;
    const double odd = (double)(int32_t)(quarter & 1), even = 1.0 - odd;
    *ret_sin = (s * even + c * odd) * (1.0 - (double)(int32_t)(quarter & 2));
    *ret_cos = (c * even + s * odd) * (1.0 - (double)(int32_t)((quarter + 1) & 2));
}

/* Both elements of a pair. */
__device__ static inline void normal_pair(const uint32_t key[2], uint64_t pair, float ret[2])
{
    uint32_t w[2];
    double s, c;
    philox(key[0], key[1], pair, 1, w);
    const double r = sqrt(-2.0 * log_unit(((double)w[0] + 1.0) * 0x1p-32));
    sincos_turns(w[1], &s, &c);
    ret[0] = (float)(r * c);
    ret[1] = (float)(r * s);
}

__device__ static inline float weight(const struct weight_draws &w, float n, uint64_t index)
{
    float pair[2];
    for (int again = 0; w.limit > 0 && fabsf(n) > w.limit && again < CUDA_REDRAWS; again++) {
        normal_pair(w.again[again], index >> 1, pair);
        n = pair[index & 1];
    }
    return n * w.std;
}

/* Rows along the grid's y; along x a thread has the one or two elements of a pair that are in the row. */
__global__ static void __launch_bounds__(THREADS)
    weights(void *out, bool bf16, int64_t rows, int64_t cols, int64_t width, int64_t first, struct weight_draws w)
{
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const uint64_t from = (uint64_t)(first + row * width), to = from + (uint64_t)cols;
        for (uint64_t pair = (from >> 1) + grid_first(); pair <= (to - 1) >> 1; pair += grid_stride()) {
            float n[2];
            normal_pair(w.key, pair, n);
            for (uint64_t index = 2 * pair; index < 2 * pair + 2; index++)
                if (index >= from && index < to)
                    any_store(out, row * cols + (int64_t)(index - from), bf16, weight(w, n[index & 1], index));
        }
    }
}

#define WEIGHTS_BLOCKS 4096

int cuda_weights(void *stream, void *out, bool bf16, int64_t rows, int64_t cols, int64_t width, int64_t first,
                 struct weight_draws draws)
{
    if (rows == 0 || cols == 0)
        return 0;
    const int64_t pairs = cols / 2 + 1, wide = (pairs + THREADS - 1) / THREADS;
    const int64_t across = wide < WEIGHTS_BLOCKS ? wide : WEIGHTS_BLOCKS, along = WEIGHTS_BLOCKS / across;
    const dim3 grid((unsigned)across, (unsigned)(rows < along ? rows : along));
    return LAUNCH(weights, grid, THREADS, 0, stream, out, bf16, rows, cols, width, first, draws);
}
