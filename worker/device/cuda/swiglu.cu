/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.cu - silu(gate) * up and its gradient (Shazeer 2020, arXiv:2002.05202), or with GELU in its form with tanh in
 * place of SiLU: x sigmoid(y(x)). */
#include "worker/device/cuda/grouped.cuh"

__device__ static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* y = GELU_LINEAR x + GELU_CUBIC x^3. Beyond the bound its sigmoid is 0 or 1, and x^2 would leave fp32. */
#define GELU_LINEAR 1.5957691216f /* 2 sqrt(2/pi) */
#define GELU_CUBIC (GELU_LINEAR * 0.044715f)
#define GELU_BOUND 16.0f

enum { SILU, GELU };

/* What the sigmoid is taken of; *ret_slope: its derivative. */
template <int GATE> __device__ static inline float bend(float x, float *ret_slope)
{
    const float within = fminf(fmaxf(x, -GELU_BOUND), GELU_BOUND), square = within * within;
    *ret_slope = GATE == GELU ? GELU_LINEAR + 3.0f * GELU_CUBIC * square : 1.0f;
    return GATE == GELU ? within * (GELU_LINEAR + GELU_CUBIC * square) : x;
}

/* A thread takes pieces of rows: `pieces` of them in each. */
template <class T, int GATE>
__global__ static void swiglu(T *out, const T *gate, const T *up, int64_t ld, size_t count, size_t pieces, int64_t f,
                              bool whole, const int32_t *counts, int64_t parts)
{
    count = pieces_there(count, pieces, counts, parts);
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = f - column;
        const piece<T> g = piece_load(gate + row * ld + column, left, whole);
        piece<T> p = piece_load(up + row * ld + column, left, whole);
        float slope;
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] = g.v[k] * sigmoid(bend<GATE>(g.v[k], &slope)) * p.v[k];
        piece_store(out + row * f + column, p, left, whole);
    }
}

int cuda_swiglu(void *stream, void *out, const void *gate, const void *up, int64_t ldgu, bool is_bf16, int64_t n,
                int64_t f, const int32_t *counts, int64_t parts, bool gelu)
{
    const size_t pieces = pieces_of(f, is_bf16), count = (size_t)n * pieces;
    const bool whole =
        in_pieces(row_bytes(f, is_bf16) | row_bytes(ldgu, is_bf16), address(out) | address(gate) | address(up));
    if (count == 0)
        return 0;
    if (is_bf16)
        return LAUNCH((gelu ? swiglu<bf16, GELU> : swiglu<bf16, SILU>), grid_blocks(count), THREADS, 0, stream,
                      (bf16 *)out, (const bf16 *)gate, (const bf16 *)up, ldgu, count, pieces, f, whole, counts, parts);
    return LAUNCH((gelu ? swiglu<float, GELU> : swiglu<float, SILU>), grid_blocks(count), THREADS, 0, stream,
                  (float *)out, (const float *)gate, (const float *)up, ldgu, count, pieces, f, whole, counts, parts);
}

/* silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g). */
template <class T, int GATE>
__global__ static void swiglu_dgrad(T *dgate, T *dup, int64_t lddgu, const T *dout, const T *gate, const T *up,
                                    int64_t ldgu, size_t count, size_t pieces, int64_t f, bool whole,
                                    const int32_t *counts, int64_t parts)
{
    count = pieces_there(count, pieces, counts, parts);
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = f - column;
        const int64_t at = row * ldgu + column, to = row * lddgu + column;
        const piece<T> g = piece_load(gate + at, left, whole), u = piece_load(up + at, left, whole);
        const piece<T> d = piece_load(dout + row * f + column, left, whole);
        piece<T> dg, du;
        for (int k = 0; k < piece<T>::N; k++) {
            float slope;
            const float s = sigmoid(bend<GATE>(g.v[k], &slope));
            dg.v[k] = d.v[k] * u.v[k] * s * (1.0f + g.v[k] * (1.0f - s) * slope);
            du.v[k] = d.v[k] * g.v[k] * s;
        }
        piece_store(dgate + to, dg, left, whole);
        piece_store(dup + to, du, left, whole);
    }
}

int cuda_swiglu_dgrad(void *stream, void *dgate, void *dup, int64_t lddgu, const void *dout, const void *gate,
                      const void *up, int64_t ldgu, bool is_bf16, int64_t n, int64_t f, const int32_t *counts,
                      int64_t parts, bool gelu)
{
    const size_t pieces = pieces_of(f, is_bf16), count = (size_t)n * pieces;
    const bool whole = in_pieces(row_bytes(f, is_bf16) | row_bytes(ldgu, is_bf16) | row_bytes(lddgu, is_bf16),
                                 address(dgate) | address(dup) | address(dout) | address(gate) | address(up));
    if (count == 0)
        return 0;
    if (is_bf16)
        return LAUNCH((gelu ? swiglu_dgrad<bf16, GELU> : swiglu_dgrad<bf16, SILU>), grid_blocks(count), THREADS, 0,
                      stream, (bf16 *)dgate, (bf16 *)dup, lddgu, (const bf16 *)dout, (const bf16 *)gate,
                      (const bf16 *)up, ldgu, count, pieces, f, whole, counts, parts);
    return LAUNCH((gelu ? swiglu_dgrad<float, GELU> : swiglu_dgrad<float, SILU>), grid_blocks(count), THREADS, 0,
                  stream, (float *)dgate, (float *)dup, lddgu, (const float *)dout, (const float *)gate,
                  (const float *)up, ldgu, count, pieces, f, whole, counts, parts);
}
