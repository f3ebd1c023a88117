/* SPDX-License-Identifier: Apache-2.0 */
/* optim.cu - Adam (Kingma and Ba 2015, arXiv:1412.6980), AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) and SGD,
 * with masters and moments in fp32 or bf16. On a stream that has failed they change nothing. */
#include "worker/device/cuda/kernel.cuh"

#define PHILOX_INLINE __device__ static inline
#include "base/philox.h"

/* The mean gradient, clipped. With bf16 masters, each of the two products is rounded to bf16. */
template <typename W> __device__ static float gradient_of(float sum, const struct adamw_factors &a)
{
    if (sizeof(W) == sizeof(float))
        return sum * a.grad_scale;
    bf16 mean, clipped;
    num_store(&mean, sum * a.mean);
    num_store(&clipped, num_load(&mean) * a.clip);
    return num_load(&clipped);
}

/* Rounds towards zero, or away from zero with a probability equal to the cut-off fraction; a NaN stays NaN. */
__device__ static inline void store_at_random(bf16 *x, float value, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    x->bits = (uint16_t)(value == value ? (bits + (random & 0xffffu)) >> 16 : (bits >> 16) | 0x40u);
}

/* Exact to some 2^-22: the error in a weight is far below the weight's own rounding. Exact functions take four times as
 * many instructions, and would delay the memory accesses. */
__device__ static inline float root(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return sqrtf(x);
#endif
}
__device__ static inline float quotient(float x, float y)
{
#ifdef __CUDA_ARCH__
    return __fdividef(x, y);
#else
    return x / y;
#endif
}

/* Four elements in a row, in one access or, at a tensor's end, one by one. */
template <class T> struct four {
    T e[4];
    __device__ float value(int k) const
    {
        return num_load(e + k);
    }
};
template <class T> struct four_bits;
template <> struct four_bits<float> {
    typedef uint4 type;
};
template <> struct four_bits<bf16> {
    typedef unsigned long long type;
};
/* Loads without conversion: a conversion waits for its load and would delay the following loads. WHOLE: all four
 * elements exist and their address is a multiple of their size. Otherwise only the first `left` exist. */
template <bool WHOLE, class T> __device__ static inline four<T> four_load(const T *x, int64_t left)
{
    four<T> f = {};
    if (WHOLE) {
        const typename four_bits<T>::type bits = *(const typename four_bits<T>::type *)x;
        memcpy(f.e, &bits, sizeof bits);
    } else {
        for (int k = 0; k < 4; k++)
            if (k < left)
                f.e[k] = x[k];
    }
    return f;
}
template <bool WHOLE, class T> __device__ static inline void four_store(T *x, const T e[4], int64_t left)
{
    if (WHOLE) {
        typename four_bits<T>::type bits;
        memcpy(&bits, e, sizeof bits);
        *(typename four_bits<T>::type *)x = bits;
    } else {
        for (int k = 0; k < 4; k++)
            if (k < left)
                x[k] = e[k];
    }
}
template <class T> __device__ static inline void four_round(T e[4], const float x[4])
{
    for (int k = 0; k < 4; k++)
        num_store(e + k, x[k]);
}

/* The words of elements e to e + 3 of a piece's tensor, if they may come from different calls of Philox. */
__attribute__((noinline)) __device__ static void four_words_apart(uint32_t ret[4], int64_t e, uint64_t step,
                                                                  const struct adamw_piece &p)
{
    for (int k = 0; k < 4; k++) {
        const int64_t at = p.origin + (p.cols == p.ld ? e + k : (e + k) / p.cols * p.ld + (e + k) % p.cols);
        uint32_t words[4];
        philox(p.key[0], p.key[1], (uint64_t)at / 4, step, words);
        const uint32_t low = at & 1 ? words[1] : words[0], high = at & 1 ? words[3] : words[2];
        ret[k] = at & 2 ? high : low;
    }
}

/* The words of elements i to i + 3 of a piece. One call of Philox suffices if the four elements are one aligned group
 * of four in the tensor. That holds if the piece has whole rows of the tensor, or rows that begin and end at multiples
 * of four. */
__device__ static void four_words(uint32_t ret[4], size_t i, const struct adamw_factors &a, const struct adamw_piece &p)
{
    const int64_t e = p.first + (int64_t)i;
    if (p.cols == p.ld && (p.origin + e) % 4 == 0)
        philox(p.key[0], p.key[1], (uint64_t)(p.origin + e) / 4, a.step, ret);
    else if ((p.cols | p.ld | p.origin | e) % 4 == 0)
        philox(p.key[0], p.key[1], (uint64_t)(p.origin + e / p.cols * p.ld + e % p.cols) / 4, a.step, ret);
    else
        four_words_apart(ret, e, a.step, p);
}

/* The moments of four elements. */
template <class T> struct moments {
    T m[4], v[4];
};
__device__ static void round_moments(moments<float> &to, const moments<float> &from, size_t,
                                     const struct adamw_factors &, const struct adamw_piece &)
{
    to = from;
}
__device__ static void round_moments(moments<bf16> &to, const moments<float> &from, size_t i,
                                     const struct adamw_factors &a, const struct adamw_piece &p)
{
    uint32_t random[4];
    if (!a.random_moments) {
        four_round(to.m, from.m);
        four_round(to.v, from.v);
        return;
    }
    four_words(random, i, a, p);
    for (int k = 0; k < 4; k++) {
        store_at_random(to.m + k, from.m[k], random[k]);
        store_at_random(to.v + k, from.v[k], random[k] >> 16);
    }
}

#define PIECE_BLOCK (16 * THREADS) /* elements of a block */

/* Updates elements i to i + 3. m and v use explicit fused sums, so the bits are the same on every device (device.h). */
template <bool WHOLE, typename W, typename M>
__device__ static inline void update_four(const struct adamw_piece &p, const struct adamw_factors &a, size_t i,
                                          int64_t left)
{
    W *const master = (W *)p.master + i;
    M *const m = (M *)p.m + i, *const v = (M *)p.v + i;
    const four<W> w = four_load<WHOLE>(master, left);
    const four<float> sum = four_load<WHOLE>(p.grad + i, left);
    const four<M> mi = four_load<WHOLE>(m, left), vi = four_load<WHOLE>(v, left);
    moments<float> exact;
    float next[4];
    for (int j = 0; j < 4; j++) {
        const float x = w.value(j), g = fmaf(a.l2, x, gradient_of<W>(sum.e[j], a));
        exact.m[j] = fmaf(a.beta1, mi.value(j), (1.0f - a.beta1) * g);
        exact.v[j] = fmaf(a.beta2, vi.value(j), (1.0f - a.beta2) * (g * g));
        const float step = quotient(exact.m[j] * a.unbias1, root(exact.v[j] * a.unbias2) + a.eps);
        next[j] = x - a.lr * (step + a.weight_decay * x);
    }
    moments<M> rounded;
    W ew[4];
    round_moments(rounded, exact, i, a, p);
    four_round(ew, next);
    four_store<WHOLE>(m, rounded.m, left);
    four_store<WHOLE>(v, rounded.v, left);
    four_store<WHOLE>(master, ew, left);
    if (p.shadow) {
        bf16 es[4];
        four_round(es, next);
        four_store<WHOLE>((bf16 *)p.shadow + i, es, left);
    }
}

/* A block has elements of one piece; a thread updates four at a time. */
template <typename W, typename M>
__global__ static void __launch_bounds__(THREADS, 4) /* 64 registers: enough threads, so enough loads in flight */
    adamw(const __grid_constant__ struct adamw_pieces pieces, struct adamw_factors a, const int *failed)
{
    int k = 0;
    if (*failed != 0)
        return;
    while (k + 1 < pieces.count && blockIdx.x >= pieces.of[k + 1].first_block)
        k++;
    const struct adamw_piece &p = pieces.of[k];
    const bool aligned = (((uintptr_t)p.master | (uintptr_t)p.m | (uintptr_t)p.v | (uintptr_t)p.grad) % 16 |
                          (uintptr_t)p.shadow % 8) == 0;
    const size_t first = (size_t)(blockIdx.x - p.first_block) * PIECE_BLOCK;
    const size_t end = first + PIECE_BLOCK < p.n ? first + PIECE_BLOCK : p.n;
    for (size_t i = first + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
        const int64_t left = (int64_t)(end - i);
        if (aligned && left >= 4)
            update_four<true, W, M>(p, a, i, left);
        else
            update_four<false, W, M>(p, a, i, left);
    }
}

template <typename W, typename M>
static int launch_adamw(void *stream, unsigned blocks, const struct adamw_pieces &pieces, struct adamw_factors factors,
                        const int *failed)
{
    auto *const kernel = adamw<W, M>;
    return LAUNCH(kernel, blocks, THREADS, 0, stream, pieces, factors, failed);
}

int cuda_adamw(void *stream, struct adamw_pieces *pieces, struct adamw_factors factors, const int *failed)
{
    unsigned blocks = 0;
    for (int k = 0; k < pieces->count; k++) {
        pieces->of[k].first_block = blocks;
        blocks += (unsigned)((pieces->of[k].n + PIECE_BLOCK - 1) / PIECE_BLOCK);
    }
    if (blocks == 0)
        return 0;
    if (factors.bf16_master)
        return launch_adamw<bf16, bf16>(stream, blocks, *pieces, factors, failed);
    if (factors.bf16_moment)
        return launch_adamw<float, bf16>(stream, blocks, *pieces, factors, failed);
    return launch_adamw<float, float>(stream, blocks, *pieces, factors, failed);
}

template <typename W>
__global__ static void __launch_bounds__(THREADS)
    sgd(W *master, const float *grad, bf16 *shadow, size_t n, struct adamw_factors a, const int *failed)
{
    if (*failed != 0)
        return;
    for (size_t i = grid_first(); i < n; i += grid_stride()) {
        const float w = num_load(master + i);
        const float next = w - a.lr * (gradient_of<W>(grad[i], a) + a.weight_decay * w);
        num_store(master + i, next);
        if (shadow)
            num_store(shadow + i, next);
    }
}

int cuda_sgd(void *stream, const struct adamw_piece *p, struct adamw_factors factors, const int *failed)
{
    bf16 *const shadow = (bf16 *)p->shadow;
    if (p->n == 0)
        return 0;
    if (factors.bf16_master)
        return LAUNCH(sgd<bf16>, grid_blocks(p->n), THREADS, 0, stream, (bf16 *)p->master, p->grad, shadow, p->n,
                      factors, failed);
    return LAUNCH(sgd<float>, grid_blocks(p->n), THREADS, 0, stream, (float *)p->master, p->grad, shadow, p->n, factors,
                  failed);
}
