/* SPDX-License-Identifier: Apache-2.0 */
/* loss.cu - softmax cross-entropy over a vocabulary in parts, one block per row. First each part computes its numbers
 * for the others; then the numbers of all parts give loss and gradient. */
#include "worker/device/cuda/kernel.cuh"

#define STATS 3 /* largest logit, sum of exp(logit - largest), the target's logit */
#define ROW_THREADS 1024
#define AT_ONCE 4 /* pieces that a thread reads before it uses the first */

struct row_stats {
    float top, sum, picked;
};

/* A row of v logits. Its first `kept` elements can be in shared memory, where each thread has only its own pieces.
 * 128,256 bf16 are a little more than an SM holds. Elements behind `kept` come from the second-level cache. */
template <class T> struct row_of {
    const T *x;
    int64_t v, kept;
    float *copy;
    bool whole;
};

template <class T> __device__ static inline int64_t row_stride(void)
{
    return piece_stride<T>(ROW_THREADS);
}
/* Number of elements that all threads together read at a time. */
template <class T> __device__ static inline int64_t row_batch(void)
{
    return AT_ONCE * row_stride<T>();
}
template <class T> __device__ static inline float *kept_at(const row_of<T> &r, int64_t i)
{
    return r.copy + i * (int64_t)sizeof(T) / (int64_t)sizeof(float);
}

/* e^x by the hardware's 2^x, to about 2 ulp; 0 where it would be below 2^-126. */
__device__ static inline float exp_of(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
#else
    return expf(x);
#endif
}

/* Stats of one row, returned in every thread. column: the target's column, which may be outside this part. Each thread
 * sums relative to the largest logit that it has seen so far. fmaxf drops NaN; the sum of exponentials restores it. All
 * reads of the row are before a barrier, so nothing overwrites it too early. */
template <class T> __device__ static row_stats stats_of(const row_of<T> &r, int64_t column, float *scratch)
{
    row_stats s = {-INFINITY, 0.0f, column >= 0 && column < r.v ? num_load(r.x + column) : 0.0f};
    float top = -INFINITY;
    for (int64_t begin = piece_first<T>(); begin < r.v; begin += row_batch<T>()) {
        uint4 bits[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int64_t i = begin + u * row_stride<T>();
            bits[u] = bits_within(r.x + i, r.v - i, r.whole, -INFINITY);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int64_t i = begin + u * row_stride<T>();
            const piece<T> p = piece_of<T>(bits[u]);
            float most = top;
            if (i < r.kept)
                STORE_16(kept_at(r, i), bits[u]);
            for (int k = 0; k < piece<T>::N; k++)
                most = fmaxf(most, p.v[k]);
            if (most > top)
                s.sum *= exp_of(top - most);
            top = most;
            const float from = top == -INFINITY ? 0.0f : top;
            for (int k = 0; k < piece<T>::N; k++)
                s.sum += exp_of(p.v[k] - from);
        }
    }
    s.top = block_reduce(top, op_max(), scratch);
    s.sum *= exp_of(top - (s.top == -INFINITY ? 0.0f : s.top));
    s.sum = block_reduce(s.sum, op_sum(), scratch);
    return s;
}

/* dlogits may be the row itself: a thread reads only the elements that it writes. It starts at the end, because the
 * last elements read are the likeliest to be in the cache. */
template <class T>
__device__ static void finish_of(float *loss, T *dlogits, const row_of<T> &r, bool counted, int64_t column, row_stats s)
{
    if (threadIdx.x == 0)
        *loss = counted ? logf(s.sum) - (s.picked - s.top) : 0.0f;
    if (!dlogits)
        return;
    const int64_t first = piece_first<T>();
    const float scale = 1.0f / s.sum;
    for (int64_t begin = first + (r.v - 1) / row_batch<T>() * row_batch<T>(); begin >= first; begin -= row_batch<T>()) {
        uint4 bits[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int64_t i = begin + u * row_stride<T>();
            bits[u] = i < r.kept ? LOAD_16(kept_at(r, i)) : bits_within(r.x + i, counted ? r.v - i : 0, r.whole);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int64_t i = begin + u * row_stride<T>();
            piece<T> p = piece_of<T>(bits[u]);
            for (int k = 0; k < piece<T>::N; k++)
                p.v[k] = counted ? exp_of(p.v[k] - s.top) * scale : 0.0f;
            if (counted && column >= i && column < i + piece<T>::N)
                for (int k = 0; k < piece<T>::N; k++)
                    p.v[k] -= i + k == column ? 1.0f : 0.0f;
            if (i < r.v)
                bits_store(dlogits + i, bits_of(p), r.v - i, r.whole);
        }
    }
}

__device__ static void write_stats(float *stats, row_stats s)
{
    if (threadIdx.x == 0) {
        stats[0] = s.top;
        stats[1] = s.sum;
        stats[2] = s.picked;
    }
}

template <class T>
__global__ static void __launch_bounds__(ROW_THREADS)
    loss_stats(float *stats, const T *logits, const int32_t *targets, int64_t v, int64_t first, bool whole)
{
    __shared__ float scratch[32];
    const int64_t row = blockIdx.x;
    const bool counted = targets[row] >= 0; /* a row that is not counted is not read */
    const row_stats none = {0.0f, 0.0f, 0.0f};
    const row_of<T> r = {logits + row * v, v, 0, NULL, whole};
    write_stats(stats + row * STATS, counted ? stats_of(r, targets[row] - first, scratch) : none);
}

int cuda_loss_stats(void *stream, const struct loss_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->v, is_bf16), address(a->logits));
    if (a->n == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(loss_stats<T>, (unsigned)a->n, ROW_THREADS, 0, stream, a->stats, (const T *)a->logits,
                               a->targets, a->v, a->first, whole));
}

template <class T>
__global__ static void __launch_bounds__(ROW_THREADS)
    loss_finish(float *losses, T *dlogits, const T *logits, const int32_t *targets, const float *stats, int64_t parts,
                int64_t n, int64_t v, int64_t first, bool whole)
{
    const int64_t row = blockIdx.x;
    row_stats s = {-INFINITY, 0.0f, 0.0f};
    for (int64_t p = 0; p < parts; p++)
        s.top = fmaxf(s.top, stats[(p * n + row) * STATS]);
    for (int64_t p = 0; p < parts; p++) {
        const float *part = stats + (p * n + row) * STATS;
        s.sum += part[0] == s.top ? part[1] : part[1] * expf(part[0] - s.top);
        s.picked += part[2];
    }
    const row_of<T> r = {logits + row * v, v, 0, NULL, whole};
    finish_of(losses + row, dlogits ? dlogits + row * v : NULL, r, targets[row] >= 0, targets[row] - first, s);
}

int cuda_loss_finish(void *stream, const struct loss_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->v, is_bf16), address(a->logits) | address(a->dlogits));
    if (a->n == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(loss_finish<T>, (unsigned)a->n, ROW_THREADS, 0, stream, a->losses, (T *)a->dlogits,
                               (const T *)a->logits, a->targets, a->stats, a->parts, a->n, a->v, a->first, whole));
}

template <class T>
__global__ static void __launch_bounds__(ROW_THREADS)
    loss(float *losses, float *stats, T *dlogits, const T *logits, const int32_t *targets, int64_t v, int64_t kept,
         int64_t first, bool whole)
{
    DYNAMIC_SHARED(copy);
    __shared__ float scratch[32];
    const int64_t row = blockIdx.x, column = targets[row] - first;
    const bool counted = targets[row] >= 0; /* a row that is not counted is not read */
    const row_of<T> r = {logits + row * v, v, counted ? kept : 0, copy, whole};
    const row_stats none = {0.0f, 0.0f, 0.0f};
    const row_stats s = counted ? stats_of(r, column, scratch) : none;
    write_stats(stats + row * STATS, s);
    finish_of(losses + row, dlogits ? dlogits + row * v : NULL, r, counted, column, s);
}

#define OWN_SHARED 1024 /* bytes of a block's shared memory that are not available for the row */

template <class T> static int launch_loss(void *stream, const struct loss_args *a, bool whole)
{
    auto kernel = loss<T>;
    int device = 0, most = 0, e = (int)cudaGetDevice(&device);
    if (e == 0)
        e = (int)cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    const int64_t room = (most - OWN_SHARED) / 16, row = (a->v + piece<T>::N - 1) / piece<T>::N;
    const int64_t pieces = !a->dlogits ? 0 : room < row ? room : row;
    if (e == 0)
        e = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)pieces * 16);
    if (e != 0)
        return e;
    return LAUNCH(kernel, (unsigned)a->n, ROW_THREADS, (size_t)pieces * 16, stream, a->losses, a->stats,
                  (T *)a->dlogits, (const T *)a->logits, a->targets, a->v, pieces * piece<T>::N, a->first, whole);
}

int cuda_loss(void *stream, const struct loss_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->v, is_bf16), address(a->logits) | address(a->dlogits));
    if (a->n == 0)
        return 0;
    return TYPED(a->dt, launch_loss<T>(stream, a, whole));
}
