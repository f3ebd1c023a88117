/* SPDX-License-Identifier: Apache-2.0 */
/* rope.cu - rotary position embedding on adjacent pairs (Su et al. 2021, arXiv:2104.09864). */
#include "worker/device/cuda/kernel.cuh"

/* One thread per pair; pair index = (row * heads + head) * D/2 + i. */
template <class T>
__global__ static void rope(T *x, int64_t ldx, const int32_t *positions, const float *cosines, const float *sines,
                            size_t pairs, int64_t heads, int64_t half, float sign)
{
    for (size_t p = grid_first(); p < pairs; p += grid_stride()) {
        const int64_t i = (int64_t)(p % (size_t)half), q = (int64_t)(p / (size_t)half);
        const int64_t head = q % heads, row = q / heads;
        const int64_t angle = (int64_t)positions[row] * half + i;
        T *pair = x + row * ldx + head * half * 2 + i * 2;
        const float a = num_load(pair), b = num_load(pair + 1);
        const float c = cosines[angle], s = sign * sines[angle];
        num_store(pair, a * c - b * s);
        num_store(pair + 1, a * s + b * c);
    }
}

int cuda_rope(void *stream, void *x, int64_t ldx, const int32_t *positions, const float *cosines, const float *sines,
              bool is_bf16, int64_t n, int64_t heads, int64_t d, bool backward)
{
    const int64_t half = d / 2;
    const size_t pairs = (size_t)n * (size_t)heads * (size_t)half;
    const float sign = backward ? -1.0f : 1.0f;
    if (pairs == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(rope<bf16>, grid_blocks(pairs), THREADS, 0, stream, (bf16 *)x, ldx, positions, cosines, sines,
                      pairs, heads, half, sign);
    return LAUNCH(rope<float>, grid_blocks(pairs), THREADS, 0, stream, (float *)x, ldx, positions, cosines, sines,
                  pairs, heads, half, sign);
}
