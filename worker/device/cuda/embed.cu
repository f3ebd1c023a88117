/* SPDX-License-Identifier: Apache-2.0 */
/* embed.cu - reads embedding rows, and computes their gradient without atomics. */
#include "worker/device/cuda/kernel.cuh"

#define COPIED 4 /* pieces that a thread reads before it writes the first */

template <class T>
__global__ static void __launch_bounds__(THREADS)
    embed(T *out, const int32_t *tokens, const T *table, int64_t n, int64_t c, int64_t v, int64_t first, bool whole)
{
    for (int64_t row = blockIdx.x; row < n; row += gridDim.x) {
        const int64_t from = tokens[row] - first;
        const bool here = from >= 0 && from < v; /* false: another rank has the row */
        for (int64_t begin = piece_first<T>(); begin < c; begin += COPIED * piece_stride<T>()) {
            uint4 bits[COPIED];
#pragma unroll
            for (int u = 0; u < COPIED; u++) {
                const int64_t i = begin + u * piece_stride<T>();
                bits[u] = bits_within(table + from * c + i, here ? c - i : 0, whole);
            }
#pragma unroll
            for (int u = 0; u < COPIED; u++) {
                const int64_t i = begin + u * piece_stride<T>();
                if (i < c)
                    bits_store(out + row * c + i, bits[u], c - i, whole);
            }
        }
    }
}

int cuda_embed(void *stream, const struct embed_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->c, is_bf16), address(a->out) | address(a->table));
    if (a->n == 0 || a->c == 0)
        return 0;
    unsigned blocks = (unsigned)(a->n < 65536 ? a->n : 65536);
    return TYPED(a->dt, LAUNCH(embed<T>, blocks, THREADS, 0, stream, (T *)a->out, a->tokens, (const T *)a->table, a->n,
                               a->c, a->v, a->first, whole));
}

/* A block owns a bucket: the rows of the table that are equal modulo a power of two. Each thread has a piece of their
 * columns. The block lists the bucket's tokens in order, CHUNK at a time, links the tokens of each row, and adds row by
 * row. So a sum's order is the order of the tokens, whatever the launch. */
#define BUCKETS 1024
#define CHUNK 4096
#define WARPS (THREADS / WARP)
#define WORDS (CHUNK / THREADS) /* words, of 32 tokens each, that a warp searches */
#define LOOKED 8                /* tokens that a thread reads before it checks the first */
#define ADDED 8                 /* pieces that a thread reads before it adds the first */

struct listed {
    /* place in the chunk; index of the row's next token, or at least count if there is none */
    uint16_t at[CHUNK], next[CHUNK];
    bool later[CHUNK]; /* the token is not its row's first */
    uint32_t votes[WARPS][WORDS];
    int counts[WARPS];
};

/* Lists the bucket's tokens; `tokens` are the chunk's. Returns the length of the list, after a barrier. */
__device__ static int list_bucket(struct listed &l, const int32_t *tokens, int64_t left, uint32_t first, uint32_t v,
                                  uint32_t mask)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, begin = warp * WORDS * WARP + lane;
    int mine = 0, base = 0, count = 0;
#pragma unroll 1
    for (int w = 0; w < WORDS; w += LOOKED) {
        uint32_t rows[LOOKED];
#pragma unroll
        for (int u = 0; u < LOOKED; u++) {
            const int at = begin + (w + u) * WARP;
            rows[u] = at < left ? (uint32_t)tokens[at] - first : v;
        }
#pragma unroll
        for (int u = 0; u < LOOKED; u++) {
            const uint32_t vote = __ballot_sync(FULL_WARP, rows[u] < v && (rows[u] & mask) == blockIdx.x);
            if (lane == 0)
                l.votes[warp][w + u] = vote;
            mine += __popc(vote);
        }
    }
    if (lane == 0)
        l.counts[warp] = mine;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) {
        base += i < warp ? l.counts[i] : 0;
        count += l.counts[i];
    }
    for (int w = 0; w < WORDS; w++) {
        const uint32_t vote = l.votes[warp][w];
        const int k = base + __popc(vote & ((1u << lane) - 1u));
        if (vote >> lane & 1u) {
            l.at[k] = (uint16_t)(begin + w * WARP);
            l.later[k] = false;
        }
        base += __popc(vote);
    }
    __syncthreads();
    for (int k = (int)threadIdx.x; k < count; k += THREADS) {
        int next = k + 1;
        while (next < count && tokens[l.at[next]] != tokens[l.at[k]])
            next++;
        l.next[k] = (uint16_t)next;
        if (next < count)
            l.later[next] = true;
    }
    __syncthreads();
    return count;
}

/* Adds the rows of dout for token k of the list and the following tokens of its row to `to`. `to` and dout already
 * point to this thread's column. */
template <class T>
__device__ static void add_rows(float *to, const struct listed &l, int k, int count, const T *dout, int64_t c,
                                int64_t left, bool whole)
{
    piece<float> sums[piece<T>::N / piece<float>::N];
    for (int h = 0; h < piece<T>::N; h += piece<float>::N)
        sums[h / piece<float>::N] = piece_load(to + h, left - h, whole);
    while (k < count) {
        uint4 bits[ADDED];
        int there = 0;
#pragma unroll
        for (int u = 0; u < ADDED; u++) {
            if (k >= count)
                break;
            bits[u] = bits_load(dout + l.at[k] * c, left, whole);
            k = l.next[k];
            there++;
        }
#pragma unroll
        for (int u = 0; u < ADDED; u++) {
            if (u >= there)
                break;
            const piece<T> p = piece_of<T>(bits[u]);
            for (int h = 0; h < piece<T>::N; h++)
                sums[h / piece<float>::N].v[h % piece<float>::N] += p.v[h];
        }
    }
    for (int h = 0; h < piece<T>::N; h += piece<float>::N)
        bits_store(to + h, bits_of(sums[h / piece<float>::N]), left - h, whole);
}

template <class T, bool WHOLE>
__global__ static void __launch_bounds__(THREADS, WHOLE ? 4 : 2)
    embed_wgrad(float *dtable, const int32_t *tokens, const T *dout, int64_t n, int64_t c, int64_t v, int64_t first)
{
    __shared__ struct listed l;
    const int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * piece<T>::N;
    for (int64_t begin = 0; begin < n; begin += CHUNK) {
        const int count =
            list_bucket(l, tokens + begin, n - begin, (uint32_t)first, (uint32_t)v, (uint32_t)gridDim.x - 1);
        for (int k = 0; k < count && column < c; k++)
            if (!l.later[k])
                add_rows(dtable + (tokens[begin + l.at[k]] - first) * c + column, l, k, count,
                         dout + begin * c + column, c, c - column, WHOLE);
    }
}

int cuda_embed_wgrad(void *stream, const struct embed_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const bool whole = in_pieces(row_bytes(a->c, is_bf16), address(a->dtable) | address(a->dout));
    if (a->n == 0 || a->c == 0 || a->v == 0)
        return 0;
    unsigned buckets = 1;
    while (buckets < BUCKETS && buckets < a->v && 4 * (int64_t)buckets < a->n)
        buckets *= 2;
    const dim3 grid(buckets, (unsigned)((pieces_of(a->c, is_bf16) + THREADS - 1) / THREADS));
    return TYPED(a->dt, LAUNCH((whole ? embed_wgrad<T, true> : embed_wgrad<T, false>), grid, THREADS, 0, stream,
                               a->dtable, a->tokens, (const T *)a->dout, a->n, a->c, a->v, a->first));
}
