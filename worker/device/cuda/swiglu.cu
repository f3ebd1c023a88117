/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.cu - silu(gate) * up and its gradient (Shazeer 2020, arXiv:2002.05202). With gelu, GELU in its tanh form
 * replaces SiLU: x sigmoid(y(x)). With a limit, it is gpt-oss's form with bounded inputs (OpenAI 2025,
 * arXiv:2508.10925). */
#include "worker/device/cuda/grouped.cuh"

__device__ static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* y = GELU_LINEAR x + GELU_CUBIC x^3. Beyond GELU_BOUND the sigmoid of y is 0 or 1, and x^2 would overflow fp32. */
#define GELU_LINEAR 1.5957691216f /* 2 sqrt(2/pi) */
#define GELU_CUBIC (GELU_LINEAR * 0.044715f)
#define GELU_BOUND 16.0f

enum { SILU, GELU };

/* The argument of the sigmoid; *ret_slope: its derivative. */
template <int GATE> __device__ static inline float bend(float x, float *ret_slope)
{
    const float within = fminf(fmaxf(x, -GELU_BOUND), GELU_BOUND), square = within * within;
    *ret_slope = GATE == GELU ? GELU_LINEAR + 3.0f * GELU_CUBIC * square : 1.0f;
    return GATE == GELU ? within * (GELU_LINEAR + GELU_CUBIC * square) : x;
}

/* A thread computes pieces of rows; each row has `pieces` pieces. */
template <class T, int GATE>
__global__ static void swiglu(struct swiglu_args a, size_t count, size_t pieces, bool whole)
{
    const T *const gate = (const T *)a.gate, *const up = (const T *)a.up;
    count = pieces_there(count, pieces, a.counts, a.parts);
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = a.f - column;
        const piece<T> g = piece_load(gate + row * a.ldgu + column, left, whole);
        piece<T> p = piece_load(up + row * a.ldgu + column, left, whole);
        float slope;
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] = g.v[k] * sigmoid(bend<GATE>(g.v[k], &slope)) * p.v[k];
        piece_store((T *)a.out + row * a.f + column, p, left, whole);
    }
}

/* A NaN passes through the bounds. */
__device__ static inline float below(float x, float limit)
{
    return x > limit ? limit : x;
}
__device__ static inline float within(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* A thread computes pieces of rows; each row has `pieces` pieces. */
template <class T> __global__ static void clamped_swiglu(struct swiglu_args a, size_t count, size_t pieces, bool whole)
{
    const T *const gate = (const T *)a.gate, *const up = (const T *)a.up;
    count = pieces_there(count, pieces, a.counts, a.parts);
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = a.f - column;
        const piece<T> g = piece_load(gate + row * a.ldgu + column, left, whole);
        piece<T> p = piece_load(up + row * a.ldgu + column, left, whole);
        for (int k = 0; k < piece<T>::N; k++) {
            const float x = below(g.v[k], a.limit);
            p.v[k] = x * sigmoid(a.alpha * x) * (within(p.v[k], a.limit) + 1.0f);
        }
        piece_store((T *)a.out + row * a.f + column, p, left, whole);
    }
}

int cuda_swiglu(void *stream, const struct swiglu_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const size_t pieces = pieces_of(a->f, is_bf16), count = (size_t)a->n * pieces;
    const bool whole = in_pieces(row_bytes(a->f, is_bf16) | row_bytes(a->ldgu, is_bf16),
                                 address(a->out) | address(a->gate) | address(a->up));
    if (count == 0)
        return 0;
    if (a->limit > 0)
        return TYPED(a->dt,
                     LAUNCH(clamped_swiglu<T>, grid_blocks(count), THREADS, 0, stream, *a, count, pieces, whole));
    return TYPED(a->dt, LAUNCH((a->gelu ? swiglu<T, GELU> : swiglu<T, SILU>), grid_blocks(count), THREADS, 0, stream,
                               *a, count, pieces, whole));
}

/* silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g). */
template <class T, int GATE>
__global__ static void swiglu_dgrad(struct swiglu_args a, size_t count, size_t pieces, bool whole)
{
    const T *const gate = (const T *)a.gate, *const up = (const T *)a.up;
    count = pieces_there(count, pieces, a.counts, a.parts);
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = a.f - column;
        const int64_t at = row * a.ldgu + column, to = row * a.lddgu + column;
        const piece<T> g = piece_load(gate + at, left, whole), u = piece_load(up + at, left, whole);
        const piece<T> d = piece_load((const T *)a.dout + row * a.f + column, left, whole);
        piece<T> dg, du;
        for (int k = 0; k < piece<T>::N; k++) {
            float slope;
            const float s = sigmoid(bend<GATE>(g.v[k], &slope));
            dg.v[k] = d.v[k] * u.v[k] * s * (1.0f + g.v[k] * (1.0f - s) * slope);
            du.v[k] = d.v[k] * g.v[k] * s;
        }
        piece_store((T *)a.dgate + to, dg, left, whole);
        piece_store((T *)a.dup + to, du, left, whole);
    }
}

/* The gradient is 0 where a bound cuts off. */
template <class T>
__global__ static void clamped_swiglu_dgrad(struct swiglu_args a, size_t count, size_t pieces, bool whole)
{
    const T *const gate = (const T *)a.gate, *const up = (const T *)a.up;
    count = pieces_there(count, pieces, a.counts, a.parts);
    for (size_t e = grid_first(); e < count; e += grid_stride()) {
        const int64_t row = (int64_t)(e / pieces), column = (int64_t)(e % pieces) * piece<T>::N, left = a.f - column;
        const int64_t at = row * a.ldgu + column, to = row * a.lddgu + column;
        const piece<T> g = piece_load(gate + at, left, whole), u = piece_load(up + at, left, whole);
        const piece<T> d = piece_load((const T *)a.dout + row * a.f + column, left, whole);
        piece<T> dg, du;
        for (int k = 0; k < piece<T>::N; k++) {
            const float x = below(g.v[k], a.limit), y = within(u.v[k], a.limit), s = sigmoid(a.alpha * x);
            dg.v[k] = g.v[k] > a.limit ? 0.0f : d.v[k] * (y + 1.0f) * s * (1.0f + a.alpha * x * (1.0f - s));
            du.v[k] = u.v[k] > a.limit || u.v[k] < -a.limit ? 0.0f : d.v[k] * x * s;
        }
        piece_store((T *)a.dgate + to, dg, left, whole);
        piece_store((T *)a.dup + to, du, left, whole);
    }
}

int cuda_swiglu_dgrad(void *stream, const struct swiglu_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const size_t pieces = pieces_of(a->f, is_bf16), count = (size_t)a->n * pieces;
    const bool whole =
        in_pieces(row_bytes(a->f, is_bf16) | row_bytes(a->ldgu, is_bf16) | row_bytes(a->lddgu, is_bf16),
                  address(a->dgate) | address(a->dup) | address(a->dout) | address(a->gate) | address(a->up));
    if (count == 0)
        return 0;
    if (a->limit > 0)
        return TYPED(a->dt,
                     LAUNCH(clamped_swiglu_dgrad<T>, grid_blocks(count), THREADS, 0, stream, *a, count, pieces, whole));
    return TYPED(a->dt, LAUNCH((a->gelu ? swiglu_dgrad<T, GELU> : swiglu_dgrad<T, SILU>), grid_blocks(count), THREADS,
                               0, stream, *a, count, pieces, whole));
}
