/* SPDX-License-Identifier: Apache-2.0 */
/* optim.cu - Adam (Kingma and Ba 2015, arXiv:1412.6980), AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) and SGD,
 * with masters and moments in fp32 or bf16. None changes anything on a stream that has failed. */
#include "worker/device/cuda/kernel.cuh"

#define PHILOX_INLINE __device__ static inline
#include "base/philox.h"

/* The clipped mean; with bf16 masters each of the two products is a bf16 number. */
template <typename W> __device__ static float gradient_of(float sum, const struct adamw_factors &a)
{
    if (sizeof(W) == sizeof(float))
        return sum * a.grad_scale;
    bf16 mean, clipped;
    num_store(&mean, sum * a.mean);
    num_store(&clipped, num_load(&mean) * a.clip);
    return num_load(&clipped);
}

/* To nearest, or away from zero with a chance of what is cut off; a NaN stays one. */
__device__ static void store_at_random(bf16 *x, float value, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        x->bits = (uint16_t)((bits >> 16) | 0x40u);
    else
        x->bits = (uint16_t)((bits + (random & 0xffffu)) >> 16);
}

__device__ static void store_moments(float *m, float *v, size_t i, float mi, float vi, const struct adamw_factors &a,
                                     const struct adamw_piece &p)
{
    (void)a, (void)p;
    m[i] = mi;
    v[i] = vi;
}

__device__ static void store_moments(bf16 *m, bf16 *v, size_t i, float mi, float vi, const struct adamw_factors &a,
                                     const struct adamw_piece &p)
{
    if (!a.random_moments) {
        num_store(m + i, mi);
        num_store(v + i, vi);
        return;
    }
    const int64_t e = p.first + (int64_t)i;
    const int64_t place = p.origin + (p.cols == p.ld ? e : e / p.cols * p.ld + e % p.cols);
    uint32_t words[4];
    philox(p.key[0], p.key[1], (uint64_t)place / 4, a.step, words);
    const uint32_t low = place & 1 ? words[1] : words[0], high = place & 1 ? words[3] : words[2];
    const uint32_t random = place & 2 ? high : low;
    store_at_random(m + i, mi, random);
    store_at_random(v + i, vi, random >> 16);
}

#define PIECE_BLOCK (16 * THREADS) /* elements that a block has */

/* A block has elements of one piece. m and v by explicit fused sums: the same bits on every device (device.h). */
template <typename W, typename M>
__global__ static void __launch_bounds__(THREADS)
    adamw(const __grid_constant__ struct adamw_pieces pieces, struct adamw_factors a, const int *failed)
{
    int k = 0;
    if (*failed != 0)
        return;
    while (k + 1 < pieces.count && blockIdx.x >= pieces.of[k + 1].first_block)
        k++;
    const struct adamw_piece &p = pieces.of[k];
    W *const master = (W *)p.master;
    M *const m = (M *)p.m, *const v = (M *)p.v;
    bf16 *const shadow = (bf16 *)p.shadow;
    const size_t first = (size_t)(blockIdx.x - p.first_block) * PIECE_BLOCK;
    const size_t end = first + PIECE_BLOCK < p.n ? first + PIECE_BLOCK : p.n;
    for (size_t i = first + threadIdx.x; i < end; i += THREADS) {
        const float w = num_load(master + i);
        const float g = fmaf(a.l2, w, gradient_of<W>(p.grad[i], a));
        const float mi = fmaf(a.beta1, num_load(m + i), (1.0f - a.beta1) * g);
        const float vi = fmaf(a.beta2, num_load(v + i), (1.0f - a.beta2) * (g * g));
        const float next = w - a.lr * (mi / a.bias1 / (sqrtf(vi / a.bias2) + a.eps) + a.weight_decay * w);
        store_moments(m, v, i, mi, vi, a, p);
        num_store(master + i, next);
        if (shadow)
            num_store(shadow + i, next);
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

int cuda_sgd(void *stream, void *master, const float *grad, uint16_t *shadow, size_t n, struct adamw_factors factors,
             const int *failed)
{
    if (n == 0)
        return 0;
    if (factors.bf16_master)
        return LAUNCH(sgd<bf16>, grid_blocks(n), THREADS, 0, stream, (bf16 *)master, grad, (bf16 *)shadow, n, factors,
                      failed);
    return LAUNCH(sgd<float>, grid_blocks(n), THREADS, 0, stream, (float *)master, grad, (bf16 *)shadow, n, factors,
                  failed);
}
