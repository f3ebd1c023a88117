/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.cu - silu(gate) * up and its gradient (Shazeer 2020, arXiv:2002.05202). */
#include "worker/device/cuda/kernel.cuh"

__device__ static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

template <class T>
__global__ static void swiglu(T *out, const T *gate, const T *up, int64_t ld, size_t count, int64_t f)
{
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / (size_t)f), at = row * ld + (int64_t)(e % (size_t)f);
        const float g = num_load(gate + at);
        num_store(out + e, g * sigmoid(g) * num_load(up + at));
    }
}

int cuda_swiglu(void *stream, void *out, const void *gate, const void *up, int64_t ldgu, bool is_bf16, int64_t n,
                int64_t f)
{
    const size_t count = (size_t)n * (size_t)f;
    if (count == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(swiglu<bf16>, grid_blocks(count), THREADS, 0, stream, (bf16 *)out, (const bf16 *)gate,
                      (const bf16 *)up, ldgu, count, f);
    return LAUNCH(swiglu<float>, grid_blocks(count), THREADS, 0, stream, (float *)out, (const float *)gate,
                  (const float *)up, ldgu, count, f);
}

/* silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g). */
template <class T>
__global__ static void swiglu_dgrad(T *dgate, T *dup, int64_t lddgu, const T *dout, const T *gate, const T *up,
                                    int64_t ldgu, size_t count, int64_t f)
{
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / (size_t)f), column = (int64_t)(e % (size_t)f);
        const int64_t at = row * ldgu + column, to = row * lddgu + column;
        const float g = num_load(gate + at), u = num_load(up + at), d = num_load(dout + e);
        const float s = sigmoid(g);
        num_store(dgate + to, d * u * s * (1.0f + g * (1.0f - s)));
        num_store(dup + to, d * g * s);
    }
}

int cuda_swiglu_dgrad(void *stream, void *dgate, void *dup, int64_t lddgu, const void *dout, const void *gate,
                      const void *up, int64_t ldgu, bool is_bf16, int64_t n, int64_t f)
{
    const size_t count = (size_t)n * (size_t)f;
    if (count == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(swiglu_dgrad<bf16>, grid_blocks(count), THREADS, 0, stream, (bf16 *)dgate, (bf16 *)dup, lddgu,
                      (const bf16 *)dout, (const bf16 *)gate, (const bf16 *)up, ldgu, count, f);
    return LAUNCH(swiglu_dgrad<float>, grid_blocks(count), THREADS, 0, stream, (float *)dgate, (float *)dup, lddgu,
                  (const float *)dout, (const float *)gate, (const float *)up, ldgu, count, f);
}
