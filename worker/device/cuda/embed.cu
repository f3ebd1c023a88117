/* SPDX-License-Identifier: Apache-2.0 */
/* embed.cu - look-up of embedding rows, and its gradient without atomics. */
#include "worker/device/cuda/kernel.cuh"

template <class T>
__global__ static void embed(T *out, const int32_t *tokens, const T *table, int64_t n, int64_t c, int64_t v,
                             int64_t first)
{
    for (int64_t row = blockIdx.x; row < n; row += gridDim.x) {
        const int64_t from = tokens[row] - first;
        const bool here = from >= 0 && from < v; /* otherwise another rank has it */
        for (int64_t i = threadIdx.x; i < c; i += blockDim.x) {
            T zero = {};
            out[row * c + i] = here ? table[from * c + i] : zero;
        }
    }
}

int cuda_embed(void *stream, void *out, const int32_t *tokens, const void *table, bool is_bf16, int64_t n, int64_t c,
               int64_t v, int64_t first)
{
    if (n == 0 || c == 0)
        return 0;
    unsigned blocks = (unsigned)(n < 65536 ? n : 65536);
    if (is_bf16)
        return LAUNCH(embed<bf16>, blocks, THREADS, 0, stream, (bf16 *)out, tokens, (const bf16 *)table, n, c, v,
                      first);
    return LAUNCH(embed<float>, blocks, THREADS, 0, stream, (float *)out, tokens, (const float *)table, n, c, v, first);
}

/* One block owns one row of the table and looks through all tokens, CHUNK at a time, for its own. Most chunks hold
 * none and cost one vote. The order of the sum is the order of the tokens, whatever the launch. */
#define WORDS 64 /* of 32 tokens each */
#define CHUNK (WORDS * WARP)

template <class T>
__global__ static void __launch_bounds__(THREADS)
    embed_wgrad(float *dtable, const int32_t *tokens, const T *dout, int64_t n, int64_t c, int64_t first)
{
    __shared__ uint32_t found[WORDS];
    const int64_t row = blockIdx.x, token = first + row;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;

    for (int64_t begin = 0; begin < n; begin += CHUNK) {
        int any = 0;
        for (int word = warp; word < WORDS; word += THREADS / WARP) {
            int64_t at = begin + word * WARP + lane;
            uint32_t vote = __ballot_sync(FULL_WARP, at < n && tokens[at] == token);
            if (lane == 0)
                found[word] = vote;
            any |= vote != 0;
        }
        if (!__syncthreads_or(any))
            continue;
        for (int64_t i = threadIdx.x; i < c; i += THREADS) {
            float sum = dtable[row * c + i];
            for (int word = 0; word < WORDS; word++) {
                for (uint32_t left = found[word]; left != 0; left &= left - 1) {
                    int64_t at = begin + word * WARP + (__ffs((int)left) - 1);
                    sum += num_load(dout + at * c + i);
                }
            }
            dtable[row * c + i] = sum;
        }
        __syncthreads(); /* before found is written again */
    }
}

int cuda_embed_wgrad(void *stream, float *dtable, const int32_t *tokens, const void *dout, bool is_bf16, int64_t n,
                     int64_t c, int64_t v, int64_t first)
{
    if (n == 0 || c == 0 || v == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(embed_wgrad<bf16>, (unsigned)v, THREADS, 0, stream, dtable, tokens, (const bf16 *)dout, n, c,
                      first);
    return LAUNCH(embed_wgrad<float>, (unsigned)v, THREADS, 0, stream, dtable, tokens, (const float *)dout, n, c,
                  first);
}
