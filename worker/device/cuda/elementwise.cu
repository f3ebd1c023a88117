/* SPDX-License-Identifier: Apache-2.0 */
/* elementwise.cu - casts, sums of two tensors, scaling, caps. */
#include "worker/device/cuda/kernel.cuh"

/* fp64 holds every value of every type. */
template <class T> __device__ static inline double wide_load(const T *x)
{
    return (double)*x;
}
__device__ static inline double wide_load(const bf16 *x)
{
    return num_load(x);
}
template <class T> __device__ static inline void wide_store(T *x, double value)
{
    *x = (T)value;
}
__device__ static inline void wide_store(bf16 *x, double value)
{
    num_store(x, (float)value);
}

template <class To, class From> __global__ static void cast(To *dst, const From *src, size_t n)
{
    for (size_t i = grid_first(); i < n; i += grid_stride())
        wide_store(dst + i, wide_load(src + i));
}

template <class To, class From> static int launch_cast(void *stream, void *dst, const void *src, size_t n)
{
    auto kernel = cast<To, From>;
    return LAUNCH(kernel, grid_blocks(n), THREADS, 0, stream, (To *)dst, (const From *)src, n);
}

template <class To> static int launch_cast_to(void *stream, void *dst, const void *src, enum dtype from, size_t n)
{
    switch (from) {
    case DTYPE_F64:
        return launch_cast<To, double>(stream, dst, src, n);
    case DTYPE_BF16:
        return launch_cast<To, bf16>(stream, dst, src, n);
    case DTYPE_I32:
        return launch_cast<To, int32_t>(stream, dst, src, n);
    case DTYPE_U8:
        return launch_cast<To, uint8_t>(stream, dst, src, n);
    default:
        return launch_cast<To, float>(stream, dst, src, n);
    }
}

int cuda_cast(void *stream, void *dst, enum dtype to, const void *src, enum dtype from, size_t n)
{
    if (n == 0)
        return 0;
    switch (to) {
    case DTYPE_F64:
        return launch_cast_to<double>(stream, dst, src, from, n);
    case DTYPE_BF16:
        return launch_cast_to<bf16>(stream, dst, src, from, n);
    case DTYPE_I32:
        return launch_cast_to<int32_t>(stream, dst, src, from, n);
    case DTYPE_U8:
        return launch_cast_to<uint8_t>(stream, dst, src, from, n);
    default:
        return launch_cast_to<float>(stream, dst, src, from, n);
    }
}

template <class T> __global__ static void add(T *out, const T *a, const T *b, size_t n, bool aligned)
{
    for (size_t i = grid_first() * piece<T>::N; i < n; i += grid_stride() * piece<T>::N) {
        const bool whole = aligned && n - i >= piece<T>::N;
        piece<T> p = piece_load(a + i, (int64_t)(n - i), whole);
        const piece<T> q = piece_load(b + i, (int64_t)(n - i), whole);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] += q.v[k];
        piece_store(out + i, p, (int64_t)(n - i), whole);
    }
}

int cuda_add(void *stream, void *out, const void *a, const void *b, bool is_bf16, size_t n)
{
    const bool aligned = in_pieces(0, address(out) | address(a) | address(b));
    const unsigned blocks = grid_blocks(pieces_of((int64_t)n, is_bf16));
    if (n == 0)
        return 0;
    return TYPED(is_bf16 ? DTYPE_BF16 : DTYPE_F32,
                 LAUNCH(add<T>, blocks, THREADS, 0, stream, (T *)out, (const T *)a, (const T *)b, n, aligned));
}

int cuda_accumulate(void *stream, float *dst, const float *src, size_t n)
{
    return cuda_add(stream, dst, dst, src, false, n);
}

template <class T> __global__ static void scale(T *out, const T *x, float factor, size_t n, bool aligned)
{
    for (size_t i = grid_first() * piece<T>::N; i < n; i += grid_stride() * piece<T>::N) {
        const bool whole = aligned && n - i >= piece<T>::N;
        piece<T> p = piece_load(x + i, (int64_t)(n - i), whole);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] *= factor;
        piece_store(out + i, p, (int64_t)(n - i), whole);
    }
}

int cuda_scale(void *stream, void *out, const void *x, bool is_bf16, float factor, size_t n)
{
    const bool aligned = in_pieces(0, address(out) | address(x));
    const unsigned blocks = grid_blocks(pieces_of((int64_t)n, is_bf16));
    if (n == 0)
        return 0;
    return TYPED(is_bf16 ? DTYPE_BF16 : DTYPE_F32,
                 LAUNCH(scale<T>, blocks, THREADS, 0, stream, (T *)out, (const T *)x, factor, n, aligned));
}

template <class T> __global__ static void softcap(T *out, const T *x, float cap, size_t n, bool aligned)
{
    for (size_t i = grid_first() * piece<T>::N; i < n; i += grid_stride() * piece<T>::N) {
        const bool whole = aligned && n - i >= piece<T>::N;
        piece<T> p = piece_load(x + i, (int64_t)(n - i), whole);
        for (int k = 0; k < piece<T>::N; k++)
            p.v[k] = cap * tanhf(p.v[k] / cap);
        piece_store(out + i, p, (int64_t)(n - i), whole);
    }
}

int cuda_softcap(void *stream, const struct softcap_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool aligned = in_pieces(0, address(a->out) | address(a->x));
    const unsigned blocks = grid_blocks(pieces_of((int64_t)a->n, is_bf16));
    if (a->n == 0)
        return 0;
    return TYPED(a->dt,
                 LAUNCH(softcap<T>, blocks, THREADS, 0, stream, (T *)a->out, (const T *)a->x, a->cap, a->n, aligned));
}

template <class T>
__global__ static void softcap_dgrad(T *dx, const T *dout, const T *x, float cap, size_t n, bool aligned)
{
    for (size_t i = grid_first() * piece<T>::N; i < n; i += grid_stride() * piece<T>::N) {
        const bool whole = aligned && n - i >= piece<T>::N;
        piece<T> p = piece_load(dout + i, (int64_t)(n - i), whole);
        const piece<T> q = piece_load(x + i, (int64_t)(n - i), whole);
        for (int k = 0; k < piece<T>::N; k++) {
            const float t = tanhf(q.v[k] / cap);
            p.v[k] *= 1.0f - t * t;
        }
        piece_store(dx + i, p, (int64_t)(n - i), whole);
    }
}

int cuda_softcap_dgrad(void *stream, const struct softcap_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool aligned = in_pieces(0, address(a->out) | address(a->dout) | address(a->x));
    const unsigned blocks = grid_blocks(pieces_of((int64_t)a->n, is_bf16));
    if (a->n == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(softcap_dgrad<T>, blocks, THREADS, 0, stream, (T *)a->out, (const T *)a->dout,
                               (const T *)a->x, a->cap, a->n, aligned));
}
