/* SPDX-License-Identifier: Apache-2.0 */
/* clamped_swiglu.cu - SwiGLU of bounded inputs and its gradient, as gpt-oss has it (OpenAI 2025, arXiv:2508.10925). */
#include "worker/device/cuda/grouped.cuh"

__device__ static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Bounds keep NaN. */
__device__ static inline float below(float x, float limit)
{
    return x > limit ? limit : x;
}
__device__ static inline float within(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* A thread takes pieces of rows: `pieces` of them in each. */
template <class T>
__global__ static void clamped_swiglu(T *out, const T *gate, const T *up, int64_t ld, size_t count, size_t pieces,
                                      int64_t f, bool whole, const int32_t *counts, int64_t parts, float limit,
                                      float alpha)
{
    count = pieces_there(count, pieces, counts, parts);
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = f - column;
        const piece<T> g = piece_load(gate + row * ld + column, left, whole);
        piece<T> p = piece_load(up + row * ld + column, left, whole);
        for (int k = 0; k < piece<T>::N; k++) {
            const float x = below(g.v[k], limit);
            p.v[k] = x * sigmoid(alpha * x) * (within(p.v[k], limit) + 1.0f);
        }
        piece_store(out + row * f + column, p, left, whole);
    }
}

int cuda_clamped_swiglu(void *stream, void *out, const void *gate, const void *up, int64_t ldgu, bool is_bf16,
                        int64_t n, int64_t f, const int32_t *counts, int64_t parts, float limit, float alpha)
{
    const size_t pieces = pieces_of(f, is_bf16), count = (size_t)n * pieces;
    const bool whole =
        in_pieces(row_bytes(f, is_bf16) | row_bytes(ldgu, is_bf16), address(out) | address(gate) | address(up));
    if (count == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(clamped_swiglu<bf16>, grid_blocks(count), THREADS, 0, stream, (bf16 *)out, (const bf16 *)gate,
                      (const bf16 *)up, ldgu, count, pieces, f, whole, counts, parts, limit, alpha);
    return LAUNCH(clamped_swiglu<float>, grid_blocks(count), THREADS, 0, stream, (float *)out, (const float *)gate,
                  (const float *)up, ldgu, count, pieces, f, whole, counts, parts, limit, alpha);
}

/* 0 where a bound cuts off. */
template <class T>
__global__ static void clamped_swiglu_dgrad(T *dgate, T *dup, int64_t lddgu, const T *dout, const T *gate, const T *up,
                                            int64_t ldgu, size_t count, size_t pieces, int64_t f, bool whole,
                                            const int32_t *counts, int64_t parts, float limit, float alpha)
{
    count = pieces_there(count, pieces, counts, parts);
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = f - column;
        const int64_t at = row * ldgu + column, to = row * lddgu + column;
        const piece<T> g = piece_load(gate + at, left, whole), u = piece_load(up + at, left, whole);
        const piece<T> d = piece_load(dout + row * f + column, left, whole);
        piece<T> dg, du;
        for (int k = 0; k < piece<T>::N; k++) {
            const float x = below(g.v[k], limit), y = within(u.v[k], limit), s = sigmoid(alpha * x);
            dg.v[k] = g.v[k] > limit ? 0.0f : d.v[k] * (y + 1.0f) * s * (1.0f + alpha * x * (1.0f - s));
            du.v[k] = u.v[k] > limit || u.v[k] < -limit ? 0.0f : d.v[k] * x * s;
        }
        piece_store(dgate + to, dg, left, whole);
        piece_store(dup + to, du, left, whole);
    }
}

int cuda_clamped_swiglu_dgrad(void *stream, void *dgate, void *dup, int64_t lddgu, const void *dout, const void *gate,
                              const void *up, int64_t ldgu, bool is_bf16, int64_t n, int64_t f, const int32_t *counts,
                              int64_t parts, float limit, float alpha)
{
    const size_t pieces = pieces_of(f, is_bf16), count = (size_t)n * pieces;
    const bool whole = in_pieces(row_bytes(f, is_bf16) | row_bytes(ldgu, is_bf16) | row_bytes(lddgu, is_bf16),
                                 address(dgate) | address(dup) | address(dout) | address(gate) | address(up));
    if (count == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(clamped_swiglu_dgrad<bf16>, grid_blocks(count), THREADS, 0, stream, (bf16 *)dgate, (bf16 *)dup,
                      lddgu, (const bf16 *)dout, (const bf16 *)gate, (const bf16 *)up, ldgu, count, pieces, f, whole,
                      counts, parts, limit, alpha);
    return LAUNCH(clamped_swiglu_dgrad<float>, grid_blocks(count), THREADS, 0, stream, (float *)dgate, (float *)dup,
                  lddgu, (const float *)dout, (const float *)gate, (const float *)up, ldgu, count, pieces, f, whole,
                  counts, parts, limit, alpha);
}
