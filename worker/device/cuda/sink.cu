/* SPDX-License-Identifier: Apache-2.0 */
/* sink.cu - attention sinks: a logit of each head joins the softmax's denominator (Xiao et al. 2023, arXiv:2309.17453).
 */
#include "worker/device/cuda/kernel.cuh"

#define WARPS (THREADS / WARP)

/* One warp handles a head of a row. */
__global__ static void __launch_bounds__(THREADS)
    attention_sink(void *out, float *lse, const void *x, const float *x_lse, int64_t ld, const void *sinks,
                   bool is_bf16, int64_t n, int64_t t, int64_t h, int64_t dv)
{
    const int64_t element = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP; /* row * H + head */
    const int lane = (int)threadIdx.x % WARP;
    if (element >= n * h)
        return; /* a whole warp returns together */
    const int64_t row = element / h, head = element % h, at = (row / t * h + head) * t + row % t;
    const float mine = x_lse[at], sink = any_load(sinks, head, is_bf16), top = fmaxf(mine, sink);
    const float keep = expf(mine - top), sum = keep + expf(sink - top);
    if (lane == 0)
        lse[at] = top + logf(sum);
    for (int64_t c = lane; c < dv; c += WARP) {
        const int64_t i = row * ld + head * dv + c;
        any_store(out, i, is_bf16, any_load(x, i, is_bf16) * (keep / sum));
    }
}

int cuda_attention_sink(void *stream, const struct sink_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const int64_t n = a->b * a->t;
    if (n == 0)
        return 0;
    const unsigned blocks = (unsigned)((n * a->h + WARPS - 1) / WARPS);
    return LAUNCH(attention_sink, blocks, THREADS, 0, stream, a->out, a->lse, a->x, a->x_lse, a->ldo, a->sinks, is_bf16,
                  n, a->t, a->h, a->dv);
}

/* One block per head. Each warp sums rows w, w + WARPS, ... in turn; then the warps' sums are added. */
__global__ static void __launch_bounds__(THREADS)
    attention_sink_dgrad(float *dsinks, const void *dout, int64_t lddo, const void *out, int64_t ldo, const float *lse,
                         const void *sinks, bool is_bf16, int64_t n, int64_t t, int64_t h, int64_t dv)
{
    __shared__ float scratch[32];
    const int64_t head = blockIdx.x;
    const int lane = (int)threadIdx.x % WARP;
    const float sink = any_load(sinks, head, is_bf16);
    float sum = 0;
    for (int64_t row = (int64_t)threadIdx.x / WARP; row < n; row += WARPS) {
        const float share = expf(sink - lse[(row / t * h + head) * t + row % t]);
        float dot = 0;
        for (int64_t c = lane; c < dv; c += WARP)
            dot +=
                any_load(dout, row * lddo + head * dv + c, is_bf16) * any_load(out, row * ldo + head * dv + c, is_bf16);
        sum += share * dot;
    }
    sum = block_reduce(sum, op_sum(), scratch);
    if (threadIdx.x == 0)
        dsinks[head] = -sum;
}

int cuda_attention_sink_dgrad(void *stream, const struct sink_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const int64_t n = a->b * a->t;
    return LAUNCH(attention_sink_dgrad, (unsigned)a->h, THREADS, 0, stream, a->dsinks, a->dout, a->lddo, a->x, a->ldo,
                  a->x_lse, a->sinks, is_bf16, n, a->t, a->h, a->dv);
}
