/* SPDX-License-Identifier: Apache-2.0 */
/* attention.cu - grouped-query attention, forward and backward, in tiles (Dao 2023, arXiv:2307.08691), on the CUDA
 * cores. attention_hopper.cu computes what the tensor cores of compute capability 9.0 can do.
 *
 * A block of 256 threads works on square tiles of TILE = 16 R query rows by TILE key rows, held as fp32 in shared
 * memory. The threads form a 16 x 16 square. Thread (ty, tx) owns the elements (ty + 16 i, tx + 16 j) of every tile
 * product, so that a half warp shares a row. Head widths D and Dv are padded with zeros to 16 DJ. Rows of a tile lie an
 * odd number of words apart, so that a column's elements fall into different banks.
 *
 * Launch bounds state how many blocks fit on a multiprocessor with 228 KiB of shared memory, unless registers would
 * then spill.
 *
 * Causal attention and masked attention are two sets of kernels (MASKED), so that masks do not slow causal attention
 * down. With masks, any tile of queries may see any tile of keys. So the threads vote on the places of a tile's rows
 * before they read the rest of the tile: they skip a tile of which no row is seen.
 *
 * Backward, one kernel owns a tile of keys and loops over the queries that see it. Another kernel owns a tile of
 * queries and loops over the keys that it sees. The scores are computed twice, but every sum has one owner and one
 * order: no atomics, the same bits every time. */
#include "worker/device/cuda/kernel.cuh"

#define SIDE 16
#define PLACE_MAX 0x7fffffff /* place of a row that does not exist: no mask reaches it */

/* Kernels get this struct by value. */
struct frame {
    struct attention_problem s;
    int64_t lddq, lddk, lddv, lddo;
};

/* The mask of a tile, in shared memory: bounds of its queries and places of its keys. */
struct tile_mask {
    int *starts, *ends, *places;
};

template <int R, int DJ> struct tile {
    static const int rows = SIDE * R;   /* rows of queries, and rows of keys */
    static const int width = SIDE * DJ; /* D, padded */
    static const int ld = width + 1;    /* words between rows of a tile of q, k, v */
    static const int lds = rows + 1;    /* words between rows of a tile of scores */
    static const int words = rows * ld;
    static const int score_words = rows * lds;
    static const int mask_words = 3 * rows;
};

/* Index in lse and delta (B,H,Tq) of a head's first row. */
__device__ static inline int64_t rows_at(const struct frame &f, int64_t sequence, int64_t head)
{
    return (sequence * f.s.h + head) * f.s.tq;
}

/* A head of a sequence in a tensor: `length` rows, `width` wide, from element `base` on. */
struct view {
    int64_t ld, base;
    int length, width;
    bool bf16;
};
__device__ static inline struct view query_view(const struct frame &f, int64_t ld, int width, int sequence, int head)
{
    return {ld, (int64_t)sequence * f.s.tq * ld + (int64_t)head * width, f.s.tq, width, f.s.bf16};
}
__device__ static inline struct view key_view(const struct frame &f, int64_t ld, int width, int sequence, int head)
{
    return {ld, (int64_t)sequence * f.s.tk * ld + (int64_t)head * width, f.s.tk, width, f.s.bf16};
}

/* Loads rows [first, first + rows) as fp32, zeros outside the tensor. */
template <int R, int DJ> __device__ static inline void load_tile(float *to, const void *from, struct view x, int first)
{
    typedef tile<R, DJ> T;
    for (int e = (int)threadIdx.x; e < T::rows * T::width; e += THREADS) {
        const int r = e / T::width, c = e % T::width, row = first + r;
        const int64_t at = x.base + (int64_t)row * x.ld + c;
        to[r * T::ld + c] = row < x.length && c < x.width ? any_load(from, at, x.bf16) : 0.0f;
    }
}

/* Writes this thread's elements of a tile; each row is multiplied by factor[i]. */
template <int R, int DJ>
__device__ static inline void store_tile(void *to, struct view x, int first, const float (&value)[R][DJ],
                                         const float (&factor)[R])
{
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = first + ty + SIDE * i;
        if (row >= x.length)
            continue;
#pragma unroll
        for (int j = 0; j < DJ; j++) {
            const int c = tx + SIDE * j;
            if (c < x.width)
                any_store(to, x.base + (int64_t)row * x.ld + c, x.bf16, value[i][j] * factor[i]);
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

/* Reduces over the 16 threads that share a row. */
template <class Op> __device__ static inline float row_reduce(float x, Op op)
{
    for (int offset = SIDE / 2; offset > 0; offset /= 2)
        x = op(x, __shfl_xor_sync(FULL_WARP, x, offset));
    return x;
}

/* --- masks -------------------------------------------------------------------------------------------------------- */

__device__ static inline struct tile_mask mask_at(float *shared, int rows)
{
    struct tile_mask m;
    m.starts = (int *)shared;
    m.ends = m.starts + rows;
    m.places = m.ends + rows;
    return m;
}

/* The least and the greatest of some places. */
struct place_range {
    int low, high;
};

/* Reads this tile's keys. True if any key of the tile lies within the range. Contains a barrier. */
__device__ static inline bool any_key_within(const struct tile_mask &m, int rows, struct place_range range,
                                             int sequence, int first, const struct frame &f)
{
    const int r = (int)threadIdx.x, row = first + r;
    int place = PLACE_MAX;
    if (r < rows) {
        if (row < f.s.tk)
            place = f.s.key_index[(int64_t)sequence * f.s.tk + row];
        m.places[r] = place;
    }
    return __syncthreads_or(r < rows && place >= range.low && place <= range.high) != 0;
}

/* Reads this tile's queries. True if any query of the tile sees a place within the range. Contains a barrier. */
__device__ static inline bool any_query_sees(const struct tile_mask &m, int rows, struct place_range range,
                                             int sequence, int first, const struct frame &f)
{
    const int r = (int)threadIdx.x, row = first + r;
    int start = PLACE_MAX, end = -PLACE_MAX; /* bounds that see nothing */
    if (r < rows) {
        if (row < f.s.tq) {
            start = f.s.start[(int64_t)sequence * f.s.tq + row];
            end = f.s.index[(int64_t)sequence * f.s.tq + row];
        }
        m.starts[r] = start;
        m.ends[r] = end;
    }
    return __syncthreads_or(r < rows && start <= range.high && end >= range.low) != 0;
}

/* The range of a tile's places. Rows that do not exist do not change it. */
__device__ static inline struct place_range places_range(const int *lows, const int *highs, int rows)
{
    struct place_range x = {PLACE_MAX, -PLACE_MAX};
    for (int r = 0; r < rows; r++) {
        x.low = lows[r] < x.low ? lows[r] : x.low;
        x.high = highs[r] > x.high && highs[r] != PLACE_MAX ? highs[r] : x.high;
    }
    return x;
}

/* Whether query i of the tile at q_first sees key j of the tile at k_first. Causal: no existing query sees a key that
 * does not exist. */
template <bool MASKED>
__device__ static inline bool sees(const struct tile_mask &m, int i, int j, int q_first, int k_first)
{
    if (MASKED)
        return m.places[j] >= m.starts[i] && m.places[j] <= m.ends[i];
    return k_first + j <= q_first + i;
}

/* The capped score; *ret_slope: its derivative. */
__device__ static inline float capped(float score, float cap, float *ret_slope)
{
    *ret_slope = 1.0f;
    if (cap == 0.0f)
        return score;
    const float t = tanhf(score / cap);
    *ret_slope = 1.0f - t * t;
    return cap * t;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

template <int R, int DJ, bool MASKED>
__global__ static void __launch_bounds__(THREADS, MASKED ? 2 : 3)
    attention_forward(void *out, float *lse, const void *q, const void *k, const void *v, struct frame f)
{
    typedef tile<R, DJ> T;
    DYNAMIC_SHARED(shared);
    float *qs = shared, *ks = qs + T::words, *vs = ks + T::words, *ps = vs + T::words;
    const struct tile_mask mask = mask_at(ps + T::score_words, T::rows);
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
    const int qt = (int)(gridDim.x - 1 - blockIdx.x); /* the longest rows first */
    const int head = (int)blockIdx.y, sequence = (int)blockIdx.z, kv_head = head / (f.s.h / f.s.kv);
    const int q_first = qt * T::rows, k_tiles = MASKED ? (f.s.tk + T::rows - 1) / T::rows : qt + 1;
    struct place_range range = {}; /* of places that the tile's queries see */

    float acc[R][DJ] = {}, top[R], total[R] = {};
#pragma unroll
    for (int i = 0; i < R; i++)
        top[i] = -INFINITY;
    load_tile<R, DJ>(qs, q, query_view(f, f.s.ldq, f.s.d, sequence, head), q_first);
    if (MASKED) {
        any_query_sees(mask, T::rows, range, sequence, q_first, f);
        range = places_range(mask.starts, mask.ends, T::rows);
    }
    for (int kt = 0; kt < k_tiles; kt++) {
        const int k_first = kt * T::rows;
        __syncthreads(); /* waits for the readers of the last tile */
        if (MASKED && !any_key_within(mask, T::rows, range, sequence, k_first, f))
            continue;
        load_tile<R, DJ>(ks, k, key_view(f, f.s.ldk, f.s.d, sequence, kv_head), k_first);
        load_tile<R, DJ>(vs, v, key_view(f, f.s.ldv, f.s.dv, sequence, kv_head), k_first);
        __syncthreads();
        float p[R][R];
        rows_dot_rows<R, DJ>(p, qs, ks);
#pragma unroll
        for (int i = 0; i < R; i++) {
            float best = top[i], sum = 0.0f, slope;
#pragma unroll
            for (int j = 0; j < R; j++) {
                const bool seen = sees<MASKED>(mask, ty + SIDE * i, tx + SIDE * j, q_first, k_first);
                p[i][j] = seen ? capped(p[i][j] * f.s.scale, f.s.softcap, &slope) : -INFINITY;
                best = fmaxf(best, p[i][j]);
            }
            /* Causal: every row sees column 0, so `best` is finite from the first tile on. Masked: `best` may be -inf,
             * and -inf minus -inf would be NaN. */
            best = row_reduce(best, op_max());
            const float from = MASKED && best == -INFINITY ? 0.0f : best;
#pragma unroll
            for (int j = 0; j < R; j++) {
                p[i][j] = expf(p[i][j] - from);
                sum += p[i][j];
            }
            sum = row_reduce(sum, op_sum());
            const float keep = expf(top[i] - from);
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
        inverse[i] = total[i] == 0.0f ? 0.0f : 1.0f / total[i]; /* 0: the row saw no key */
        if (tx == 0 && row < f.s.tq)
            lse[rows_at(f, sequence, head) + row] = top[i] + logf(total[i]);
    }
    store_tile<R, DJ>(out, query_view(f, f.s.ldo, f.s.dv, sequence, head), q_first, acc, inverse);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* delta (B,H,Tq) = sum over Dv of out * dout; one warp per element. */
__global__ static void __launch_bounds__(THREADS)
    attention_delta(float *delta, const void *out, const void *dout, struct frame f)
{
    const int64_t n = (int64_t)f.s.b * f.s.tq;
    const int64_t element = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP; /* row * H + head */
    const int lane = (int)threadIdx.x % WARP;
    if (element >= n * f.s.h)
        return; /* a whole warp returns together */
    const int64_t row = element / f.s.h, head = element % f.s.h;
    float sum = 0;
    for (int c = lane; c < f.s.dv; c += WARP)
        sum += any_load(out, row * f.s.ldo + head * f.s.dv + c, f.s.bf16) *
               any_load(dout, row * f.lddo + head * f.s.dv + c, f.s.bf16);
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(FULL_WARP, sum, offset);
    if (lane == 0)
        delta[rows_at(f, row / f.s.tq, head) + row % f.s.tq] = sum;
}

/* For the tile at (q_first, k_first): p = exp(s scale - lse) and ds = p (dp - delta) scale, times the cap's slope; both
 * are 0 where masked. On entry p holds q k^T and ds holds dout v^T. */
template <int R, bool MASKED>
__device__ static inline void score_gradients(float (&p)[R][R], float (&ds)[R][R], const float *lse, const float *delta,
                                              int64_t at, int q_first, int k_first, const struct tile_mask &mask,
                                              const struct frame &f)
{
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int row = q_first + ty + SIDE * i;
        const float row_lse = row < f.s.tq ? lse[at + row] : 0.0f, row_delta = row < f.s.tq ? delta[at + row] : 0.0f;
#pragma unroll
        for (int j = 0; j < R; j++) {
            const bool seen = row < f.s.tq && sees<MASKED>(mask, ty + SIDE * i, tx + SIDE * j, q_first, k_first);
            float slope;
            p[i][j] = seen ? expf(capped(p[i][j] * f.s.scale, f.s.softcap, &slope) - row_lse) : 0.0f;
            ds[i][j] = seen ? p[i][j] * (ds[i][j] - row_delta) * (f.s.scale * slope) : 0.0f;
        }
    }
}

template <int R, int DJ, bool MASKED>
__global__ static void __launch_bounds__(THREADS, MASKED || DJ <= 4 ? 2 : 3)
    attention_dkdv(void *dk, void *dv, const void *dout, const float *lse, const float *delta, const void *q,
                   const void *k, const void *v, struct frame f)
{
    typedef tile<R, DJ> T;
    DYNAMIC_SHARED(shared);
    float *ks = shared, *vs = ks + T::words, *qs = vs + T::words, *os = qs + T::words, *ss = os + T::words;
    const struct tile_mask mask = mask_at(ss + T::score_words, T::rows);
    const int kt = (int)blockIdx.x; /* the first tiles come first, because most queries see them */
    const int kv_head = (int)blockIdx.y, sequence = (int)blockIdx.z, shared_by = f.s.h / f.s.kv;
    const int k_first = kt * T::rows;
    struct place_range range = {}; /* of the tile's keys */

    float key_sum[R][DJ] = {}, value_sum[R][DJ] = {};
    load_tile<R, DJ>(ks, k, key_view(f, f.s.ldk, f.s.d, sequence, kv_head), k_first);
    load_tile<R, DJ>(vs, v, key_view(f, f.s.ldv, f.s.dv, sequence, kv_head), k_first);
    if (MASKED) {
        any_key_within(mask, T::rows, range, sequence, k_first, f);
        range = places_range(mask.places, mask.places, T::rows);
    }
    for (int g = 0; g < shared_by; g++) {
        const int head = kv_head * shared_by + g;
        const int64_t at = rows_at(f, sequence, head);
        for (int q_first = MASKED ? 0 : k_first; q_first < f.s.tq; q_first += T::rows) {
            __syncthreads(); /* waits for the readers of the last tile */
            if (MASKED && !any_query_sees(mask, T::rows, range, sequence, q_first, f))
                continue;
            load_tile<R, DJ>(qs, q, query_view(f, f.s.ldq, f.s.d, sequence, head), q_first);
            load_tile<R, DJ>(os, dout, query_view(f, f.lddo, f.s.dv, sequence, head), q_first);
            __syncthreads();
            float p[R][R], ds[R][R];
            rows_dot_rows<R, DJ>(p, qs, ks);
            rows_dot_rows<R, DJ>(ds, os, vs);
            score_gradients<R, MASKED>(p, ds, lse, delta, at, q_first, k_first, mask, f);
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
    store_tile<R, DJ>(dk, key_view(f, f.lddk, f.s.d, sequence, kv_head), k_first, key_sum, one);
    store_tile<R, DJ>(dv, key_view(f, f.lddv, f.s.dv, sequence, kv_head), k_first, value_sum, one);
}

template <int R, int DJ, bool MASKED>
__global__ static void __launch_bounds__(THREADS)
    attention_dq(void *dq, const void *dout, const float *lse, const float *delta, const void *q, const void *k,
                 const void *v, struct frame f)
{
    typedef tile<R, DJ> T;
    DYNAMIC_SHARED(shared);
    float *qs = shared, *os = qs + T::words, *ks = os + T::words, *vs = ks + T::words, *ss = vs + T::words;
    const struct tile_mask mask = mask_at(ss + T::score_words, T::rows);
    const int qt = (int)(gridDim.x - 1 - blockIdx.x);
    const int head = (int)blockIdx.y, sequence = (int)blockIdx.z, kv_head = head / (f.s.h / f.s.kv);
    const int q_first = qt * T::rows, k_tiles = MASKED ? (f.s.tk + T::rows - 1) / T::rows : qt + 1;
    const int64_t at = rows_at(f, sequence, head);
    struct place_range range = {}; /* of places that the tile's queries see */

    float sum[R][DJ] = {};
    load_tile<R, DJ>(qs, q, query_view(f, f.s.ldq, f.s.d, sequence, head), q_first);
    load_tile<R, DJ>(os, dout, query_view(f, f.lddo, f.s.dv, sequence, head), q_first);
    if (MASKED) {
        any_query_sees(mask, T::rows, range, sequence, q_first, f);
        range = places_range(mask.starts, mask.ends, T::rows);
    }
    for (int kt = 0; kt < k_tiles; kt++) {
        const int k_first = kt * T::rows;
        __syncthreads(); /* waits for the readers of the last tile */
        if (MASKED && !any_key_within(mask, T::rows, range, sequence, k_first, f))
            continue;
        load_tile<R, DJ>(ks, k, key_view(f, f.s.ldk, f.s.d, sequence, kv_head), k_first);
        load_tile<R, DJ>(vs, v, key_view(f, f.s.ldv, f.s.dv, sequence, kv_head), k_first);
        __syncthreads();
        float p[R][R], ds[R][R];
        rows_dot_rows<R, DJ>(p, qs, ks);
        rows_dot_rows<R, DJ>(ds, os, vs);
        score_gradients<R, MASKED>(p, ds, lse, delta, at, q_first, k_first, mask, f);
        put_scores<R, DJ>(ss, ds);
        __syncthreads();
        scores_times<R, DJ>(sum, ss, ks);
    }
    float one[R];
#pragma unroll
    for (int i = 0; i < R; i++)
        one[i] = 1.0f;
    store_tile<R, DJ>(dq, query_view(f, f.lddq, f.s.d, sequence, head), q_first, sum, one);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

static unsigned tiles_of(int length, int rows)
{
    return (unsigned)((length + rows - 1) / rows);
}

template <int R, int DJ, bool MASKED>
static int forward(void *stream, const struct attention_args *a, const struct frame &f)
{
    typedef tile<R, DJ> T;
    auto kernel = attention_forward<R, DJ, MASKED>;
    const int words = 3 * T::words + T::score_words + (MASKED ? T::mask_words : 0);
    const int bytes = words * (int)sizeof(float);
    const dim3 grid(tiles_of(f.s.tq, T::rows), (unsigned)f.s.h, (unsigned)f.s.b);
    int e = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != 0)
        return e;
    return LAUNCH(kernel, grid, THREADS, bytes, stream, a->out, a->lse, a->q, a->k, a->v, f);
}

template <int R, int DJ, bool MASKED>
static int backward(void *stream, const struct attention_args *a, const struct frame &f)
{
    typedef tile<R, DJ> T;
    auto for_keys = attention_dkdv<R, DJ, MASKED>;
    auto for_queries = attention_dq<R, DJ, MASKED>;
    const int words = 4 * T::words + T::score_words + (MASKED ? T::mask_words : 0);
    const int bytes = words * (int)sizeof(float);
    const float *const delta = (const float *)a->work;
    int e = (int)cudaFuncSetAttribute((const void *)for_keys, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == 0)
        e = (int)cudaFuncSetAttribute((const void *)for_queries, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == 0 && f.s.tk > 0)
        e = LAUNCH(for_keys, dim3(tiles_of(f.s.tk, T::rows), (unsigned)f.s.kv, (unsigned)f.s.b), THREADS, bytes, stream,
                   a->dk, a->dv, a->dout, a->lse, delta, a->q, a->k, a->v, f);
    if (e == 0 && f.s.tq > 0)
        e = LAUNCH(for_queries, dim3(tiles_of(f.s.tq, T::rows), (unsigned)f.s.h, (unsigned)f.s.b), THREADS, bytes,
                   stream, a->dq, a->dout, a->lse, delta, a->q, a->k, a->v, f);
    return e;
}

/* Calls launch<R, DJ, MASKED>(arguments) for the wider of the frame's head widths. Backward limits the tiles: they must
 * fit into 99 KiB of shared memory, which a block gets on every architecture since sm_80. */
#define LAUNCH_BY_WIDTH(launch, f, ...)                                                                                \
    ((f).s.index ? LAUNCH_MASKED(launch, true, f, __VA_ARGS__) : LAUNCH_MASKED(launch, false, f, __VA_ARGS__))
#define LAUNCH_MASKED(launch, masked, f, ...)                                                                          \
    (widest(f) <= 32    ? launch<4, 2, masked>(__VA_ARGS__, f)                                                         \
     : widest(f) <= 64  ? launch<4, 4, masked>(__VA_ARGS__, f)                                                         \
     : widest(f) <= 128 ? launch<2, 8, masked>(__VA_ARGS__, f)                                                         \
                        : launch<1, 16, masked>(__VA_ARGS__, f))
static int widest(const struct frame &f)
{
    return f.s.d > f.s.dv ? f.s.d : f.s.dv;
}

int cuda_attention(void *stream, const struct attention_args *a, const struct attention_problem *problem)
{
    if (problem->b == 0 || problem->tq == 0)
        return 0;
    const int e = cuda_attention_hopper(stream, a, problem);
    if (e != CUDA_NOT_SERVED)
        return e;
    struct frame f = {};
    f.s = *problem;
    return LAUNCH_BY_WIDTH(forward, f, stream, a);
}

int cuda_attention_dgrad(void *stream, const struct attention_args *a, const struct attention_problem *problem,
                         float *sums)
{
    if (problem->b == 0)
        return 0;
    struct frame f = {};
    f.s = *problem;
    f.lddq = a->lddq, f.lddk = a->lddk, f.lddv = a->lddv, f.lddo = a->lddo;
    const int64_t warps = (int64_t)problem->b * problem->tq * problem->h;
    const unsigned blocks = (unsigned)((warps + THREADS / WARP - 1) / (THREADS / WARP));
    int e = blocks ? LAUNCH(attention_delta, blocks, THREADS, 0, stream, (float *)a->work, a->out, a->dout, f) : 0;
    if (e != 0)
        return e;
    e = cuda_attention_hopper_dgrad(stream, a, problem, sums);
    if (e != CUDA_NOT_SERVED)
        return e;
    return LAUNCH_BY_WIDTH(backward, f, stream, a);
}

/* --- merge -------------------------------------------------------------------------------------------------------- */

/* One warp merges a head of a row. */
__global__ static void __launch_bounds__(THREADS)
    attention_merge(void *out, float *lse, const void *other, const float *other_lse, int64_t ld, bool is_bf16,
                    int64_t n, int64_t t, int64_t h, int64_t dv)
{
    const int64_t element = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP; /* row * H + head */
    const int lane = (int)threadIdx.x % WARP;
    if (element >= n * h)
        return; /* a whole warp returns together */
    const int64_t row = element / h, head = element % h, at = (row / t * h + head) * t + row % t;
    const float mine = lse[at], theirs = other_lse[at];
    if (theirs == -INFINITY)
        return;
    const float top = fmaxf(mine, theirs), keep = expf(mine - top), add = expf(theirs - top), sum = keep + add;
    __syncwarp(); /* all lanes have read lse */
    if (lane == 0)
        lse[at] = top + logf(sum);
    for (int64_t c = lane; c < dv; c += WARP) {
        const int64_t i = row * ld + head * dv + c;
        any_store(out, i, is_bf16,
                  any_load(out, i, is_bf16) * (keep / sum) + any_load(other, i, is_bf16) * (add / sum));
    }
}

int cuda_attention_merge(void *stream, const struct merge_args *a)
{
    const bool is_bf16 = a->dt == DTYPE_BF16;
    const int64_t n = a->b * a->t;
    if (n == 0)
        return 0;
    const unsigned blocks = (unsigned)((n * a->h + THREADS / WARP - 1) / (THREADS / WARP));
    return LAUNCH(attention_merge, blocks, THREADS, 0, stream, a->out, a->lse, a->other, a->other_lse, a->ld, is_bf16,
                  n, a->t, a->h, a->dv);
}
