/* SPDX-License-Identifier: Apache-2.0 */
/* optim.cu - the rules of updates (device.h), with masters in fp32 or bf16, and state in fp32, bf16 or 8-bit codes. On
 * a stream that has failed they change nothing. */
#include "worker/device/cuda/kernel.cuh"

#define PHILOX_INLINE __device__ static inline
#include "base/philox.h"
#define MOMENT_INLINE __device__ static inline
#include "base/moment_codes.h"

/* The mean gradient, clipped. With bf16 masters, each of the two products is rounded to bf16. */
template <typename W> __device__ static float gradient_of(float sum, const struct update_factors &a)
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
                                                                  const struct update_part &p)
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
__device__ static void four_words(uint32_t ret[4], size_t i, const struct update_factors &a,
                                  const struct update_part &p)
{
    const int64_t e = p.first + (int64_t)i;
    if (p.cols == p.ld && (p.origin + e) % 4 == 0)
        philox(p.key[0], p.key[1], (uint64_t)(p.origin + e) / 4, a.step, ret);
    else if ((p.cols | p.ld | p.origin | e) % 4 == 0)
        philox(p.key[0], p.key[1], (uint64_t)(p.origin + e / p.cols * p.ld + e % p.cols) / 4, a.step, ret);
    else
        four_words_apart(ret, e, a.step, p);
}

/* The state of four elements. */
template <class T> struct states {
    T of[UPDATE_STATES][4];
};
template <int KEPT>
__device__ static void round_states(states<float> &to, const states<float> &from, size_t, const struct update_factors &,
                                    const struct update_part &)
{
    to = from;
}
template <int KEPT>
__device__ static void round_states(states<bf16> &to, const states<float> &from, size_t i,
                                    const struct update_factors &a, const struct update_part &p)
{
    uint32_t random[4];
    if (KEPT != 2 || !a.random_moments) {
        for (int s = 0; s < KEPT; s++)
            four_round(to.of[s], from.of[s]);
        return;
    }
    four_words(random, i, a, p);
    for (int k = 0; k < 4; k++) {
        store_at_random(to.of[0] + k, from.of[0][k], random[k]);
        store_at_random(to.of[1] + k, from.of[1][k], random[k] >> 16);
    }
}

/* Updates the state of one element by its rule. Returns the step, without decoupled decay. The moments use explicit
 * fused sums, so the bits are the same on every device (device.h). */
template <int RULE, int KEPT>
__device__ static inline float rule_step(const struct update_factors &a, float g, float state[UPDATE_STATES])
{
    if (RULE == RULE_DIRECTION)
        return g;
    if (RULE == RULE_SGD) {
        if (KEPT == 0)
            return g;
        const float momentum = a.own[0];
        state[0] = fmaf(momentum, state[0], g);
        return a.own[1] != 0.0f ? fmaf(momentum, state[0], g) : state[0];
    }
    const float m = state[0], c1 = 1.0f - a.beta1, c2 = 1.0f - a.beta2;
    if (RULE == RULE_LION) {
        const float d = fmaf(a.beta1, m, c1 * g);
        state[0] = fmaf(a.beta2, m, c2 * g);
        return d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d;
    }
    state[0] = fmaf(a.beta1, m, c1 * g);
    state[1] = fmaf(a.beta2, state[1], c2 * (g * g));
    float numerator = state[0] * a.unbias1;
    if (RULE == RULE_ADEMAMIX) {
        const float beta3 = a.own[0], alpha = a.own[1];
        state[2] = fmaf(beta3, state[2], (1.0f - beta3) * g);
        numerator = fmaf(alpha, state[2], numerator);
    }
    return quotient(numerator, root(state[1] * a.unbias2) + a.eps);
}

#define PART_BLOCK (16 * THREADS) /* elements of a block */

/* Updates elements i to i + 3. */
template <bool WHOLE, int RULE, int KEPT, typename W, typename M>
__device__ static inline void update_four(const struct update_part &p, const struct update_factors &a, size_t i,
                                          int64_t left)
{
    W *const master = (W *)p.master + i;
    const four<W> w = four_load<WHOLE>(master, left);
    const four<float> sum = four_load<WHOLE>(p.grad + i, left);
    four<M> old[UPDATE_STATES];
    states<float> exact;
    float next[4];
    for (int s = 0; s < KEPT; s++)
        old[s] = four_load<WHOLE>((M *)p.state[s] + i, left);
    for (int j = 0; j < 4; j++) {
        const float x = w.value(j);
        const float g = RULE == RULE_DIRECTION ? sum.e[j] : fmaf(a.l2, x, gradient_of<W>(sum.e[j], a));
        float state[UPDATE_STATES];
        for (int s = 0; s < KEPT; s++)
            state[s] = old[s].value(j);
        const float step = rule_step<RULE, KEPT>(a, g, state);
        for (int s = 0; s < KEPT; s++)
            exact.of[s][j] = state[s];
        next[j] = x - p.rate * (step + a.weight_decay * x);
    }
    states<M> rounded;
    W ew[4];
    round_states<KEPT>(rounded, exact, i, a, p);
    four_round(ew, next);
    for (int s = 0; s < KEPT; s++)
        four_store<WHOLE>((M *)p.state[s] + i, rounded.of[s], left);
    four_store<WHOLE>(master, ew, left);
    if (p.shadow) {
        bf16 es[4];
        four_round(es, next);
        four_store<WHOLE>((bf16 *)p.shadow + i, es, left);
    }
}

/* A block has elements of one part; a thread updates four at a time. */
template <typename W, typename M, int RULE, int KEPT>
__global__ static void __launch_bounds__(THREADS, 4) /* 64 registers: enough threads, so enough loads in flight */
    update(const __grid_constant__ struct update_parts parts, struct update_factors a, const int *failed)
{
    int k = 0;
    if (*failed != 0)
        return;
    while (k + 1 < parts.count && blockIdx.x >= parts.of[k + 1].first_block)
        k++;
    const struct update_part &p = parts.of[k];
    uintptr_t places = (uintptr_t)p.master | (uintptr_t)p.grad;
    for (int s = 0; s < KEPT; s++)
        places |= (uintptr_t)p.state[s];
    const bool aligned = (places % 16 | (uintptr_t)p.shadow % 8) == 0;
    const size_t first = (size_t)(blockIdx.x - p.first_block) * PART_BLOCK;
    const size_t end = first + PART_BLOCK < p.n ? first + PART_BLOCK : p.n;
    for (size_t i = first + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
        const int64_t left = (int64_t)(end - i);
        if (aligned && left >= 4)
            update_four<true, RULE, KEPT, W, M>(p, a, i, left);
        else
            update_four<false, RULE, KEPT, W, M>(p, a, i, left);
    }
}

/* A warp's update of one block of codes: each lane has four elements of the block's first half and four of the second.
 * The values behind the step stay in registers until the block's scale is known. */
template <int RULE, int KEPT, typename W>
__device__ static inline void update_block(const struct update_part &p, const struct update_factors &a, size_t at,
                                           int64_t n, bool aligned)
{
    const int lane = (int)threadIdx.x % WARP;
    uint32_t largest[UPDATE_STATES] = {};
    float now[KEPT][2][4];
    for (int half = 0; half < 2; half++) {
        const int i = half * (MOMENT_BLOCK / 2) + 4 * lane;
        const int64_t left = n - i;
        const bool whole = aligned && left >= 4;
        W *const master = (W *)p.master + at + i;
        const four<W> w = whole ? four_load<true>(master, left) : four_load<false>(master, left);
        const four<float> sum =
            whole ? four_load<true>(p.grad + at + i, left) : four_load<false>(p.grad + at + i, left);
        uint32_t codes[KEPT];
        float next[4], scale[KEPT];
        for (int s = 0; s < KEPT; s++) {
            const struct moment_block *const b = (const struct moment_block *)p.state[s] + at / MOMENT_BLOCK;
            scale[s] = b->scale;
            codes[s] = 0;
            if (left >= 4)
                codes[s] = *(const uint32_t *)(b->codes + i);
            for (int k = 0; k < 3 && left < 4; k++)
                codes[s] |= k < left ? (uint32_t)b->codes[i + k] << (8 * k) : 0;
        }
        for (int j = 0; j < 4; j++) {
            const float x = w.value(j), g = fmaf(a.l2, x, gradient_of<W>(sum.e[j], a));
            float state[UPDATE_STATES];
            for (int s = 0; s < KEPT; s++)
                state[s] = moment_decode((uint8_t)(codes[s] >> (8 * j)), scale[s],
                                         update_state_is_square((update_rule)RULE, s));
            const float step = rule_step<RULE, KEPT>(a, g, state);
            for (int s = 0; s < KEPT; s++) {
                const uint32_t magnitude = j < left ? moment_magnitude(state[s]) : 0;
                now[s][half][j] = state[s];
                largest[s] = magnitude > largest[s] ? magnitude : largest[s];
            }
            next[j] = x - p.rate * (step + a.weight_decay * x);
        }
        W ew[4];
        four_round(ew, next);
        if (whole)
            four_store<true>(master, ew, left);
        else
            four_store<false>(master, ew, left);
        if (p.shadow) {
            bf16 es[4];
            four_round(es, next);
            if (whole)
                four_store<true>((bf16 *)p.shadow + at + i, es, left);
            else
                four_store<false>((bf16 *)p.shadow + at + i, es, left);
        }
    }
    for (int s = 0; s < KEPT; s++) {
        struct moment_block *const b = (struct moment_block *)p.state[s] + at / MOMENT_BLOCK;
        for (int offset = WARP / 2; offset > 0; offset /= 2) { /* all lanes have read the old scale before */
            const uint32_t other = __shfl_xor_sync(FULL_WARP, largest[s], offset);
            largest[s] = other > largest[s] ? other : largest[s];
        }
        const float scale = moment_scale(largest[s]);
        const bool some = scale > 0.0f;
        const float inverse = some ? 1.0f / scale : 0.0f;
        if (lane == 0)
            b->scale = scale;
        for (int half = 0; half < 2; half++) {
            const int i = half * (MOMENT_BLOCK / 2) + 4 * lane;
            const int64_t left = n - i;
            uint32_t codes = 0;
            for (int j = 0; j < 4 && some; j++)
                codes |= (uint32_t)moment_encode(now[s][half][j], inverse, update_state_is_square((update_rule)RULE, s))
                         << (8 * j);
            if (left >= 4)
                *(uint32_t *)(b->codes + i) = codes;
            for (int j = 0; j < 3 && left < 4; j++)
                if (j < left)
                    b->codes[i + j] = (uint8_t)(codes >> (8 * j));
        }
    }
}

template <typename W, int RULE, int KEPT>
__global__ static void __launch_bounds__(THREADS, 4)
    update_coded(const __grid_constant__ struct update_parts parts, struct update_factors a, const int *failed)
{
    int k = 0;
    if (*failed != 0)
        return;
    while (k + 1 < parts.count && blockIdx.x >= parts.of[k + 1].first_block)
        k++;
    const struct update_part &p = parts.of[k];
    const bool aligned = (((uintptr_t)p.master | (uintptr_t)p.grad) % 16 | (uintptr_t)p.shadow % 8) == 0;
    const size_t first = (size_t)(blockIdx.x - p.first_block) * PART_BLOCK;
    const size_t end = first + PART_BLOCK < p.n ? first + PART_BLOCK : p.n;
    for (size_t at = first + threadIdx.x / WARP * MOMENT_BLOCK; at < end; at += THREADS / WARP * MOMENT_BLOCK)
        update_block<RULE, KEPT, W>(p, a, at, end - at < MOMENT_BLOCK ? (int64_t)(end - at) : MOMENT_BLOCK, aligned);
}

template <typename W, int RULE, int KEPT>
static int launch_coded(void *stream, unsigned blocks, const struct update_parts &parts,
                        const struct update_factors &factors, const int *failed)
{
    auto *const kernel = update_coded<W, RULE, KEPT>;
    return LAUNCH(kernel, blocks, THREADS, 0, stream, parts, factors, failed);
}

template <typename W, typename M, int RULE, int KEPT>
static int launch(void *stream, unsigned blocks, const struct update_parts &parts, const struct update_factors &factors,
                  const int *failed)
{
    auto *const kernel = update<W, M, RULE, KEPT>;
    return LAUNCH(kernel, blocks, THREADS, 0, stream, parts, factors, failed);
}

template <int RULE, int KEPT>
static int launch_typed(void *stream, unsigned blocks, const struct update_parts &parts,
                        const struct update_factors &factors, const int *failed)
{
    if (KEPT > 0 && factors.coded_moment && factors.bf16_master)
        return launch_coded < bf16, RULE, KEPT == 0 ? 1 : KEPT > (stream, blocks, parts, factors, failed);
    if (KEPT > 0 && factors.coded_moment)
        return launch_coded < float, RULE, KEPT == 0 ? 1 : KEPT > (stream, blocks, parts, factors, failed);
    if (factors.bf16_master)
        return launch<bf16, bf16, RULE, KEPT>(stream, blocks, parts, factors, failed);
    if (factors.bf16_moment)
        return launch<float, bf16, RULE, KEPT>(stream, blocks, parts, factors, failed);
    return launch<float, float, RULE, KEPT>(stream, blocks, parts, factors, failed);
}

int cuda_update(void *stream, struct update_parts *parts, const struct update_factors *factors, const int *failed)
{
    unsigned blocks = 0;
    for (int k = 0; k < parts->count; k++) {
        parts->of[k].first_block = blocks;
        blocks += (unsigned)((parts->of[k].n + PART_BLOCK - 1) / PART_BLOCK);
    }
    if (blocks == 0)
        return 0;
    switch (factors->rule) {
    case RULE_SGD:
        return factors->keeps_state ? launch_typed<RULE_SGD, 1>(stream, blocks, *parts, *factors, failed)
                                    : launch_typed<RULE_SGD, 0>(stream, blocks, *parts, *factors, failed);
    case RULE_LION:
        return launch_typed<RULE_LION, 1>(stream, blocks, *parts, *factors, failed);
    case RULE_DIRECTION:
        return launch_typed<RULE_DIRECTION, 0>(stream, blocks, *parts, *factors, failed);
    case RULE_ADEMAMIX:
        return launch_typed<RULE_ADEMAMIX, 3>(stream, blocks, *parts, *factors, failed);
    default:
        return launch_typed<RULE_ADAMW, 2>(stream, blocks, *parts, *factors, failed);
    }
}

/* A warp for each block of codes. */
__global__ static void __launch_bounds__(THREADS)
    moment_codes(struct moment_block *blocks, float *values, size_t count, bool square, bool encode)
{
    const int lane = (int)threadIdx.x % WARP;
    const size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    if (at >= count)
        return;
    struct moment_block *const b = blocks + at;
    float *const x = values + at * MOMENT_BLOCK;
    if (!encode) {
        for (int i = lane; i < MOMENT_BLOCK; i += WARP)
            x[i] = moment_decode(b->codes[i], b->scale, square);
        return;
    }
    uint32_t largest = 0;
    for (int i = lane; i < MOMENT_BLOCK; i += WARP) {
        const uint32_t magnitude = moment_magnitude(x[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const uint32_t other = __shfl_xor_sync(FULL_WARP, largest, offset);
        largest = other > largest ? other : largest;
    }
    const float scale = moment_scale(largest);
    const bool some = scale > 0.0f;
    const float inverse = some ? 1.0f / scale : 0.0f;
    if (lane == 0)
        b->scale = scale;
    for (int i = lane; i < MOMENT_BLOCK; i += WARP)
        b->codes[i] = some ? moment_encode(x[i], inverse, square) : 0;
}

int cuda_moment_codes(void *stream, struct moment_block *blocks, float *values, size_t count, bool square, bool encode)
{
    if (count == 0)
        return 0;
    const unsigned grid = (unsigned)((count * WARP + THREADS - 1) / THREADS);
    auto *const kernel = moment_codes;
    return LAUNCH(kernel, grid, THREADS, 0, stream, blocks, values, count, square, encode);
}

template <class M> __device__ static inline float second_moment(const M *v, size_t i)
{
    return num_load(v + i);
}
__device__ static inline float second_moment(const struct moment_block *v, size_t i)
{
    return moment_decode(v[i / MOMENT_BLOCK].codes[i % MOMENT_BLOCK], v[i / MOMENT_BLOCK].scale, true);
}

/* Terms are whole numbers of 2^-16, so blocks may add them in any order. */
template <typename W, typename M>
__global__ static void __launch_bounds__(THREADS) bound_sum(double *out, struct update_terms x, struct update_factors a)
{
    __shared__ double scratch[32];
    const M *const v = (const M *)x.v;
    const float least = fmaxf(a.eps * a.eps, 0x1p-126f);
    double sum = 0;
    for (size_t i = grid_first(); i < x.n; i += grid_stride()) {
        const float g = gradient_of<W>(x.grad[i], a), square = g * g;
        const float now = fmaf(a.beta2, second_moment(v, i), (1.0f - a.beta2) * square) * a.unbias2;
        sum += rintf(quotient(square, fmaxf(now, least)) * 65536.0f);
    }
    sum = block_reduce(sum, op_sum(), scratch);
    if (threadIdx.x == 0)
        atomicAdd(out, sum / 65536);
}

int cuda_update_sum(void *stream, double *sum, struct update_terms terms, const struct update_factors *factors)
{
    if (terms.n == 0)
        return 0;
    const unsigned blocks = grid_blocks(terms.n);
    if (factors->coded_moment && factors->bf16_master) {
        auto *const kernel = bound_sum<bf16, struct moment_block>;
        return LAUNCH(kernel, blocks, THREADS, 0, stream, sum, terms, *factors);
    }
    if (factors->coded_moment) {
        auto *const kernel = bound_sum<float, struct moment_block>;
        return LAUNCH(kernel, blocks, THREADS, 0, stream, sum, terms, *factors);
    }
    if (factors->bf16_master) {
        auto *const kernel = bound_sum<bf16, bf16>;
        return LAUNCH(kernel, blocks, THREADS, 0, stream, sum, terms, *factors);
    }
    if (factors->bf16_moment) {
        auto *const kernel = bound_sum<float, bf16>;
        return LAUNCH(kernel, blocks, THREADS, 0, stream, sum, terms, *factors);
    }
    auto *const kernel = bound_sum<float, float>;
    return LAUNCH(kernel, blocks, THREADS, 0, stream, sum, terms, *factors);
}
