/* attention.cu - causal grouped-query attention, forward and backward, in tiles (Dao 2023, arXiv:2307.08691).
 *
 * A block of 256 threads works on square tiles of TILE = 16 R query rows by TILE key rows, held as fp32 in shared
 * memory. The threads form a 16 x 16 square; thread (ty, tx) owns the elements (ty + 16 i, tx + 16 j) of every tile
 * product, so that a half warp shares a row. Head width D is padded with zeros to 16 DJ; rows of a tile lie an odd
 * number of words apart, so that a column's elements fall into different banks.
 *
 * Backward: one kernel owns a tile of keys and walks over the queries that see it, another owns a tile of queries
 * and walks over the keys it sees. The scores are computed twice, but every sum has one owner and one order: no
 * atomics, the same bits every time. */
#include "worker/device/cuda/kernel.cuh"

#define SIDE 16

/* By value into every kernel. */
struct frame {
    struct attention_shape s;
    int64_t lddq, lddkv, lddo;
    float scale;
};

template <int R, int DJ> struct tile {
    static const int rows = SIDE * R;   /* of queries and of keys */
    static const int width = SIDE * DJ; /* D, padded */
    static const int ld = width + 1;    /* words between rows of a tile of q, k, v */
    static const int lds = rows + 1;    /* words between rows of a tile of scores */
    static const int words = rows * ld;
    static const int score_words = rows * lds;
};

/* Rows [first, first + rows) of head `head` in sequence `sequence` of a tensor, as fp32, zeros outside. */
template <int R, int DJ>
__device__ static inline void load_tile(float *to, const void *from, int64_t ld, int sequence, int head, int first,
                                        const struct attention_shape &s)
{
    typedef tile<R, DJ> T;
    for (int e = (int)threadIdx.x; e < T::rows * T::width; e += THREADS) {
        const int r = e / T::width, c = e % T::width, row = first + r;
        const int64_t at = ((int64_t)sequence * s.t + row) * ld + (int64_t)head * s.d + c;
        to[r * T::ld + c] = row < s.t && c < s.d ? any_load(from, at, s.bf16) : 0.0f;
    }
}

/* Write this thread's elements of a tile, each row multiplied by factor[i]. */
template <int R, int DJ>
__device__ static inline void store_tile(void *to, int64_t ld, int sequence, int head, int first,
                                         const float (&value)[R][DJ], const float (&factor)[R],
                                         const struct attention_shape &s)
{
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = first + ty + SIDE * i;
        if (row >= s.t)
            continue;
#pragma unroll
        for (int j = 0; j < DJ; j++) {
            const int c = tx + SIDE * j;
            const int64_t at = ((int64_t)sequence * s.t + row) * ld + (int64_t)head * s.d + c;
            if (c < s.d)
                any_store(to, at, s.bf16, value[i][j] * factor[i]);
        }
    }
}

/* product[i][j] = row (ty + 16 i) of a . row (tx + 16 j) of b. */
template <int R, int DJ>
__device__ static inline void rows_dot_rows(float (&product)[R][R], const float *a, const float *b)
{
    typedef tile<R, DJ> T;
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            product[i][j] = 0.0f;
#pragma unroll 4
    for (int c = 0; c < T::width; c++) {
        float x[R], y[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            x[i] = a[(ty + SIDE * i) * T::ld + c];
#pragma unroll
        for (int j = 0; j < R; j++)
            y[j] = b[(tx + SIDE * j) * T::ld + c];
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++)
                product[i][j] += x[i] * y[j];
    }
}

/* sum[i][j] += score row (ty + 16 i) . column (tx + 16 j) of b. */
template <int R, int DJ>
__device__ static inline void scores_times(float (&sum)[R][DJ], const float *scores, const float *b)
{
    typedef tile<R, DJ> T;
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
#pragma unroll 2
    for (int k = 0; k < T::rows; k++) {
        float x[R], y[DJ];
#pragma unroll
        for (int i = 0; i < R; i++)
            x[i] = scores[(ty + SIDE * i) * T::lds + k];
#pragma unroll
        for (int j = 0; j < DJ; j++)
            y[j] = b[k * T::ld + tx + SIDE * j];
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < DJ; j++)
                sum[i][j] += x[i] * y[j];
    }
}

/* sum[i][j] += score column (ty + 16 i) . column (tx + 16 j) of b. */
template <int R, int DJ>
__device__ static inline void scores_transposed_times(float (&sum)[R][DJ], const float *scores, const float *b)
{
    typedef tile<R, DJ> T;
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
#pragma unroll 2
    for (int k = 0; k < T::rows; k++) {
        float x[R], y[DJ];
#pragma unroll
        for (int i = 0; i < R; i++)
            x[i] = scores[k * T::lds + ty + SIDE * i];
#pragma unroll
        for (int j = 0; j < DJ; j++)
            y[j] = b[k * T::ld + tx + SIDE * j];
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < DJ; j++)
                sum[i][j] += x[i] * y[j];
    }
}

template <int R, int DJ> __device__ static inline void put_scores(float *scores, const float (&value)[R][R])
{
    typedef tile<R, DJ> T;
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            scores[(ty + SIDE * i) * T::lds + tx + SIDE * j] = value[i][j];
}

/* Over the 16 threads that share a row. */
template <class Op> __device__ static inline float row_reduce(float x, Op op)
{
    for (int offset = SIDE / 2; offset > 0; offset /= 2)
        x = op(x, __shfl_xor_sync(FULL_WARP, x, offset));
    return x;
}

template <int R, int DJ>
__global__ static void __launch_bounds__(THREADS)
    attention_forward(void *out, float *lse, const void *q, const void *k, const void *v, struct frame f)
{
    typedef tile<R, DJ> T;
    DYNAMIC_SHARED(shared);
    float *qs = shared, *ks = qs + T::words, *vs = ks + T::words, *ps = vs + T::words;
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
    const int qt = (int)(gridDim.x - 1 - blockIdx.x); /* the longest rows first */
    const int head = (int)blockIdx.y, sequence = (int)blockIdx.z, kv_head = head / (f.s.h / f.s.kv);
    const int q_first = qt * T::rows;

    float acc[R][DJ] = {}, top[R], total[R] = {};
#pragma unroll
    for (int i = 0; i < R; i++)
        top[i] = -INFINITY;
    load_tile<R, DJ>(qs, q, f.s.ldq, sequence, head, q_first, f.s);
    for (int kt = 0; kt <= qt; kt++) {
        const int k_first = kt * T::rows;
        __syncthreads(); /* the last tile's readers are done */
        load_tile<R, DJ>(ks, k, f.s.ldkv, sequence, kv_head, k_first, f.s);
        load_tile<R, DJ>(vs, v, f.s.ldkv, sequence, kv_head, k_first, f.s);
        __syncthreads();
        float p[R][R];
        rows_dot_rows<R, DJ>(p, qs, ks);
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int row = q_first + ty + SIDE * i;
            float best = top[i], sum = 0.0f;
#pragma unroll
            for (int j = 0; j < R; j++) {
                const int column = k_first + tx + SIDE * j;
                p[i][j] = column <= row && column < f.s.t ? p[i][j] * f.scale : -INFINITY;
                best = fmaxf(best, p[i][j]);
            }
            /* Finite from the first tile on: every row sees column 0. */
            best = row_reduce(best, op_max());
#pragma unroll
            for (int j = 0; j < R; j++) {
                p[i][j] = expf(p[i][j] - best);
                sum += p[i][j];
            }
            sum = row_reduce(sum, op_sum());
            const float keep = expf(top[i] - best);
            total[i] = total[i] * keep + sum;
            top[i] = best;
#pragma unroll
            for (int j = 0; j < DJ; j++)
                acc[i][j] *= keep;
        }
        put_scores<R, DJ>(ps, p);
        __syncthreads();
        scores_times<R, DJ>(acc, ps, vs);
    }

    float inverse[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = q_first + ty + SIDE * i;
        inverse[i] = 1.0f / total[i];
        if (tx == 0 && row < f.s.t)
            lse[(int64_t)head * f.s.b * f.s.t + (int64_t)sequence * f.s.t + row] = top[i] + logf(total[i]);
    }
    store_tile<R, DJ>(out, f.s.ldo, sequence, head, q_first, acc, inverse, f.s);
}

/* delta (H,N) = sum over D of out * dout; one warp per element. */
__global__ static void __launch_bounds__(THREADS)
    attention_delta(float *delta, const void *out, const void *dout, struct frame f)
{
    const int64_t n = (int64_t)f.s.b * f.s.t;
    const int64_t element = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP; /* row * H + head */
    const int lane = (int)threadIdx.x % WARP;
    if (element >= n * f.s.h)
        return; /* a whole warp at a time */
    const int64_t row = element / f.s.h, head = element % f.s.h;
    float sum = 0;
    for (int c = lane; c < f.s.d; c += WARP)
        sum += any_load(out, row * f.s.ldo + head * f.s.d + c, f.s.bf16) *
               any_load(dout, row * f.lddo + head * f.s.d + c, f.s.bf16);
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    if (lane == 0)
        delta[head * n + row] = sum;
}

/* p = exp(s scale - lse) and ds = p (dp - delta) scale, for the tile at (q_first, k_first); zero where masked. On entry
 * p holds q k^T and ds holds dout v^T. */
template <int R>
__device__ static inline void score_gradients(float (&p)[R][R], float (&ds)[R][R], const float *lse, const float *delta,
                                              int64_t at, int q_first, int k_first, const struct frame &f)
{
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = q_first + ty + SIDE * i;
        const float row_lse = row < f.s.t ? lse[at + row] : 0.0f, row_delta = row < f.s.t ? delta[at + row] : 0.0f;
#pragma unroll
        for (int j = 0; j < R; j++) {
            const int column = k_first + tx + SIDE * j;
            const bool seen = column <= row && row < f.s.t;
            p[i][j] = seen ? expf(p[i][j] * f.scale - row_lse) : 0.0f;
            ds[i][j] = seen ? p[i][j] * (ds[i][j] - row_delta) * f.scale : 0.0f;
        }
    }
}

template <int R, int DJ>
__global__ static void __launch_bounds__(THREADS)
    attention_dkdv(void *dk, void *dv, const void *dout, const float *lse, const float *delta, const void *q,
                   const void *k, const void *v, struct frame f)
{
    typedef tile<R, DJ> T;
    DYNAMIC_SHARED(shared);
    float *ks = shared, *vs = ks + T::words, *qs = vs + T::words, *os = qs + T::words, *ss = os + T::words;
    const int kt = (int)blockIdx.x; /* the first tiles are seen by the most queries */
    const int kv_head = (int)blockIdx.y, sequence = (int)blockIdx.z, shared_by = f.s.h / f.s.kv;
    const int k_first = kt * T::rows;

    float key_sum[R][DJ] = {}, value_sum[R][DJ] = {};
    load_tile<R, DJ>(ks, k, f.s.ldkv, sequence, kv_head, k_first, f.s);
    load_tile<R, DJ>(vs, v, f.s.ldkv, sequence, kv_head, k_first, f.s);
    for (int g = 0; g < shared_by; g++) {
        const int head = kv_head * shared_by + g;
        const int64_t at = (int64_t)head * f.s.b * f.s.t + (int64_t)sequence * f.s.t;
        for (int q_first = k_first; q_first < f.s.t; q_first += T::rows) {
            __syncthreads(); /* the last tile's readers are done */
            load_tile<R, DJ>(qs, q, f.s.ldq, sequence, head, q_first, f.s);
            load_tile<R, DJ>(os, dout, f.lddo, sequence, head, q_first, f.s);
            __syncthreads();
            float p[R][R], ds[R][R];
            rows_dot_rows<R, DJ>(p, qs, ks);
            rows_dot_rows<R, DJ>(ds, os, vs);
            score_gradients<R>(p, ds, lse, delta, at, q_first, k_first, f);
            put_scores<R, DJ>(ss, p);
            __syncthreads();
            scores_transposed_times<R, DJ>(value_sum, ss, os);
            __syncthreads();
            put_scores<R, DJ>(ss, ds);
            __syncthreads();
            scores_transposed_times<R, DJ>(key_sum, ss, qs);
        }
    }
    float one[R];
#pragma unroll
    for (int i = 0; i < R; i++)
        one[i] = 1.0f;
    store_tile<R, DJ>(dk, f.lddkv, sequence, kv_head, k_first, key_sum, one, f.s);
    store_tile<R, DJ>(dv, f.lddkv, sequence, kv_head, k_first, value_sum, one, f.s);
}

template <int R, int DJ>
__global__ static void __launch_bounds__(THREADS)
    attention_dq(void *dq, const void *dout, const float *lse, const float *delta, const void *q, const void *k,
                 const void *v, struct frame f)
{
    typedef tile<R, DJ> T;
    DYNAMIC_SHARED(shared);
    float *qs = shared, *os = qs + T::words, *ks = os + T::words, *vs = ks + T::words, *ss = vs + T::words;
    const int qt = (int)(gridDim.x - 1 - blockIdx.x);
    const int head = (int)blockIdx.y, sequence = (int)blockIdx.z, kv_head = head / (f.s.h / f.s.kv);
    const int q_first = qt * T::rows;
    const int64_t at = (int64_t)head * f.s.b * f.s.t + (int64_t)sequence * f.s.t;

    float sum[R][DJ] = {};
    load_tile<R, DJ>(qs, q, f.s.ldq, sequence, head, q_first, f.s);
    load_tile<R, DJ>(os, dout, f.lddo, sequence, head, q_first, f.s);
    for (int kt = 0; kt <= qt; kt++) {
        const int k_first = kt * T::rows;
        __syncthreads(); /* the last tile's readers are done */
        load_tile<R, DJ>(ks, k, f.s.ldkv, sequence, kv_head, k_first, f.s);
        load_tile<R, DJ>(vs, v, f.s.ldkv, sequence, kv_head, k_first, f.s);
        __syncthreads();
        float p[R][R], ds[R][R];
        rows_dot_rows<R, DJ>(p, qs, ks);
        rows_dot_rows<R, DJ>(ds, os, vs);
        score_gradients<R>(p, ds, lse, delta, at, q_first, k_first, f);
        put_scores<R, DJ>(ss, ds);
        __syncthreads();
        scores_times<R, DJ>(sum, ss, ks);
    }
    float one[R];
#pragma unroll
    for (int i = 0; i < R; i++)
        one[i] = 1.0f;
    store_tile<R, DJ>(dq, f.lddq, sequence, head, q_first, sum, one, f.s);
}

static struct frame make_frame(const struct attention_shape *shape)
{
    struct frame f = {};
    f.s = *shape;
    f.scale = 1.0f / sqrtf((float)shape->d);
    return f;
}

template <int R, int DJ>
static int forward(void *stream, void *out, float *lse, const void *q, const void *k, const void *v,
                   const struct frame &f)
{
    typedef tile<R, DJ> T;
    auto kernel = attention_forward<R, DJ>;
    const int bytes = (3 * T::words + T::score_words) * (int)sizeof(float);
    const dim3 grid((unsigned)((f.s.t + T::rows - 1) / T::rows), (unsigned)f.s.h, (unsigned)f.s.b);
    int e = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != 0)
        return e;
    return LAUNCH(kernel, grid, THREADS, bytes, stream, out, lse, q, k, v, f);
}

template <int R, int DJ>
static int backward(void *stream, void *dq, void *dk, void *dv, const void *dout, const float *lse, const float *delta,
                    const void *q, const void *k, const void *v, const struct frame &f)
{
    typedef tile<R, DJ> T;
    auto for_keys = attention_dkdv<R, DJ>;
    auto for_queries = attention_dq<R, DJ>;
    const int bytes = (4 * T::words + T::score_words) * (int)sizeof(float);
    const unsigned tiles = (unsigned)((f.s.t + T::rows - 1) / T::rows);
    int e = (int)cudaFuncSetAttribute((const void *)for_keys, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == 0)
        e = (int)cudaFuncSetAttribute((const void *)for_queries, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == 0)
        e = LAUNCH(for_keys, dim3(tiles, (unsigned)f.s.kv, (unsigned)f.s.b), THREADS, bytes, stream, dk, dv, dout, lse,
                   delta, q, k, v, f);
    if (e == 0)
        e = LAUNCH(for_queries, dim3(tiles, (unsigned)f.s.h, (unsigned)f.s.b), THREADS, bytes, stream, dq, dout, lse,
                   delta, q, k, v, f);
    return e;
}

/* Tiles are as large as 99 KiB of shared memory allow backward: the least an architecture since sm_80 gives a block. */
int cuda_attention(void *stream, void *out, float *lse, const void *q, const void *k, const void *v,
                   const struct attention_shape *shape)
{
    if (shape->b == 0 || shape->t == 0)
        return 0;
    const struct frame f = make_frame(shape);
    if (shape->d <= 32)
        return forward<4, 2>(stream, out, lse, q, k, v, f);
    if (shape->d <= 64)
        return forward<4, 4>(stream, out, lse, q, k, v, f);
    if (shape->d <= 128)
        return forward<2, 8>(stream, out, lse, q, k, v, f);
    return forward<1, 16>(stream, out, lse, q, k, v, f);
}

int cuda_attention_dgrad(void *stream, void *dq, int64_t lddq, void *dk, void *dv, int64_t lddkv, const void *dout,
                         int64_t lddo, const void *out, const float *lse, const void *q, const void *k, const void *v,
                         const struct attention_shape *shape, float *delta)
{
    if (shape->b == 0 || shape->t == 0)
        return 0;
    struct frame f = make_frame(shape);
    f.lddq = lddq;
    f.lddkv = lddkv;
    f.lddo = lddo;
    const int64_t warps = (int64_t)shape->b * shape->t * shape->h;
    const unsigned blocks = (unsigned)((warps + THREADS / WARP - 1) / (THREADS / WARP));
    int e = LAUNCH(attention_delta, blocks, THREADS, 0, stream, delta, out, dout, f);
    if (e != 0)
        return e;
    if (shape->d <= 32)
        return backward<4, 2>(stream, dq, dk, dv, dout, lse, delta, q, k, v, f);
    if (shape->d <= 64)
        return backward<4, 4>(stream, dq, dk, dv, dout, lse, delta, q, k, v, f);
    if (shape->d <= 128)
        return backward<2, 8>(stream, dq, dk, dv, dout, lse, delta, q, k, v, f);
    return backward<1, 16>(stream, dq, dk, dv, dout, lse, delta, q, k, v, f);
}
