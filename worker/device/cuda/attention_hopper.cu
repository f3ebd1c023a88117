/* SPDX-License-Identifier: Apache-2.0 */
/* attention_hopper.cu - grouped-query attention on the tensor cores of compute capability 9.0, forward and backward
 * (Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608).
 *
 * A block owns OWN rows: queries, or keys where their gradients are summed. Each of its two groups of four warps has 64
 * of these rows. A separate warp, the loader, copies tiles of the other rows to shared memory, STAGES ahead. Only the
 * loader decides which tiles are used. It leaves out tiles that the mask hides completely. For each other tile it
 * reports where the tile begins and whether the mask hides any of it. A tile reported at -1 marks the end.
 *
 * Scores never leave registers: a product's sums have the layout that the next product needs for its left operand.
 * Backward, one kernel owns keys and computes scores transposed, and another kernel owns queries. So scores are
 * computed twice, but every sum has one owner and one order: no atomics, the same bits every time. If any order is
 * allowed, the kernel that owns keys also computes dQ. That takes five products instead of seven, and blocks add to dQ
 * in any order.
 *
 * If a head's width is no multiple of 64, the copies pad it with zeros. Inputs and outputs are bf16, sums fp32. Scores
 * and their gradients are rounded to bf16 for the second product. */
#include "worker/device/cuda/hopper.cuh"

#if !HOPPER_CODE
#pragma nv_diag_suppress 177 /* for other architectures the kernels are empty and call nothing */
#endif

#define GROUPS 2
#define OWN (GROUPS * MMA_ROWS)
#define LOADER (GROUPS * MMA_THREADS) /* the loader's first thread */
/* four warps change their registers together, so the loader has four warps; three of them do nothing else */
#define BLOCK (LOADER + MMA_THREADS)
#define LOADER_REGISTERS 40 /* a thread is launched with 168 */
#define GROUP_REGISTERS 232
#define ALL_LOADER_REGISTERS 24 /* if a block computes all gradients */
#define ALL_GROUP_REGISTERS 240
static_assert(GROUPS * GROUP_REGISTERS + LOADER_REGISTERS <= (GROUPS + 1) * 168, "what is taken is given");
static_assert(GROUPS * ALL_GROUP_REGISTERS + ALL_LOADER_REGISTERS <= (GROUPS + 1) * 168, "what is taken is given");
#define STAGES 2
#define LOOK_AHEAD 4
#define PLACE_MAX 0x7fffffff /* place of a row that does not exist: no mask reaches it */
#define LOG2_E 1.4426950408889634f

/* Rows of a copied tile. */
#define FORWARD_KEYS 128
#define GRADIENT_KEYS 64
template <int D> struct gradient_queries { /* as many as the remaining registers allow */
    static const int rows = D > 128 ? 32 : 64;
};

/* Kernels get this struct by value. */
struct frame {
    struct attention_problem s;
    int64_t lddq, lddk, lddv, lddo;
};

/* --- tiles -------------------------------------------------------------------------------------------------------- */

/* A matrix of ROWS by WIDTH, as WIDTH / 64 tiles of 64 columns. */
template <int ROWS, int WIDTH> struct block_tile {
    static const int tile = ROWS * TILE_ROW_BYTES;
    static const int bytes = tile * (WIDTH / TILE_COLUMNS);
};

/* The loader's report on a tile of ROWS rows. first: where the tile begins, or -1. hides: the mask hides a part of the
 * tile. head: the head of the tile's queries. of: VALUES numbers for each row. */
template <int ROWS, int VALUES> struct tile_facts {
    int first, hides, head, unused; /* `of` begins at a multiple of 16 bytes */
    union {
        int place[ROWS];
        float number[ROWS];
    } of[VALUES];
};

/* A warp's position in its ring of stages. */
struct ring {
    int stage;
    unsigned parity;
};
template <int OF = STAGES> __device__ static inline void ring_next(struct ring &r)
{
    r.stage++;
    if (r.stage == OF) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

/* The loader copies all columns of ROWS rows from `row` on. */
template <int ROWS, int WIDTH>
__device__ static inline void copy_rows(char *to, const tile_map *map, tile_barrier *b, int row, int head, int sequence)
{
#pragma unroll
    for (int i = 0; i < WIDTH / TILE_COLUMNS; i++)
        copy_tile(to + i * block_tile<ROWS, WIDTH>::tile, map, b, i * TILE_COLUMNS, row, head, sequence);
}

/* s (64 x N) = rows of a by the N rows of b, along WIDTH columns. a's tiles have a_tile bytes. */
template <int N, int WIDTH>
__device__ static inline void rows_by_rows(float (&s)[N / 2], uint32_t a, int a_tile, uint32_t b)
{
    const uint32_t first_a = along_columns(a), first_b = along_columns(b);
#pragma unroll
    for (int i = 0; i < WIDTH / MMA_DEPTH; i++) {
        const int tile = i * MMA_DEPTH / TILE_COLUMNS, within = i * MMA_DEPTH % TILE_COLUMNS * 2;
        mma_tiles(s, further(first_a, tile * a_tile + within),
                  further(first_b, tile * block_tile<N, WIDTH>::tile + within), i > 0);
    }
}

/* s (64 x WIDTH) += p (64 x N) in registers by the N rows of b. */
template <int N, int WIDTH>
__device__ static inline void scores_by_rows(float (&s)[WIDTH / 2], const uint32_t (&p)[N / 4], uint32_t b)
{
    const uint32_t first = along_rows(b, block_tile<N, WIDTH>::tile);
#pragma unroll
    for (int i = 0; i < N / MMA_DEPTH; i++)
        mma_registers(s, p + 4 * i, further(first, i * MMA_DEPTH * TILE_ROW_BYTES));
}

template <int N> __device__ static inline void pack(uint32_t (&to)[N / 4], const float (&s)[N / 2])
{
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        to[i] = two_bf16(s[2 * i], s[2 * i + 1]);
}

/* The column of sum i; which_row(): its row, first or second. */
__device__ static inline int column_of(int i)
{
    return i / 4 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
}
__device__ static inline int which_row(int i)
{
    return i / 2 % 2;
}

/* Index in lse and delta (B,H,Tq) of a head's first row. */
__device__ static inline int64_t row_at(const struct frame &f, int64_t sequence, int64_t head)
{
    return (sequence * f.s.h + head) * f.s.tq;
}

/* Reduces over the four threads that share a row. */
template <class Op> __device__ static inline float row_reduce(float x, Op op)
{
    x = op(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return op(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

/* Writes the sums' rows from `first` on as bf16, each times its factor. Four threads exchange values, so that each has
 * eight columns in a row. */
template <int WIDTH>
__device__ static inline void store_rows(void *to, int64_t ld, int width, int length, int sequence, int head, int first,
                                         const float (&s)[WIDTH / 2], const float (&factor)[2])
{
    const int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = first + own_row() + 8 * r;
        uint16_t *const at =
            (uint16_t *)to + ((int64_t)sequence * length + row) * ld + (int64_t)head * width + 8 * lane;
#pragma unroll
        for (int j = 0; j < WIDTH / 32; j++) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = two_bf16(s[16 * j + 4 * i + 2 * r] * factor[r], s[16 * j + 4 * i + 2 * r + 1] * factor[r]);
            exchange_four(x);
            const uint4 piece = {x[0], x[1], x[2], x[3]};
            if (row < length && 32 * j + 8 * lane < width)
                STORE_16(at + 32 * j, piece);
        }
    }
}

/* --- masks -------------------------------------------------------------------------------------------------------- */

/* Bounds of the loader's own rows. A query sees places from `start` to `end`. For a key, both `start` and `end` are the
 * key's place. */
struct bounds {
    int low, high;          /* range that at least one row reaches */
    int all_start, all_end; /* range that all rows reach */
};

__device__ static inline int warp_least(int x)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const int other = __shfl_xor_sync(FULL_WARP, x, offset);
        x = other < x ? other : x;
    }
    return x;
}
__device__ static inline int warp_greatest(int x)
{
    return -warp_least(-x);
}

/* Rows that do not exist do not change the bounds. */
template <int ROWS>
__device__ static inline struct bounds bounds_of(const int32_t *start, const int32_t *end, int first, int length)
{
    struct bounds b = {PLACE_MAX, -PLACE_MAX, -PLACE_MAX, PLACE_MAX};
    for (int r = (int)threadIdx.x % WARP; r < ROWS; r += WARP) {
        if (first + r >= length)
            continue;
        const int s = start[first + r], e = end[first + r];
        b.low = s < b.low ? s : b.low;
        b.high = e > b.high ? e : b.high;
        b.all_start = s > b.all_start ? s : b.all_start;
        b.all_end = e < b.all_end ? e : b.all_end;
    }
    b.low = warp_least(b.low);
    b.high = warp_greatest(b.high);
    b.all_start = warp_greatest(b.all_start);
    b.all_end = warp_least(b.all_end);
    return b;
}

/* Which of the next LOOK_AHEAD tiles of ROWS rows have a row that reaches the loader's rows. The tiles are read
 * together, because one read takes as long as a tile's products. */
template <int ROWS, class Test> __device__ static inline unsigned tiles_in_reach(int first, Test reaches)
{
    bool any[LOOK_AHEAD] = {};
    unsigned seen = 0;
#pragma unroll
    for (int t = 0; t < LOOK_AHEAD; t++)
#pragma unroll
        for (int r = 0; r < ROWS; r += WARP)
            any[t] = any[t] | reaches(first + t * ROWS + r + (int)threadIdx.x % WARP);
#pragma unroll
    for (int t = 0; t < LOOK_AHEAD; t++)
        seen |= __ballot_sync(FULL_WARP, any[t]) ? 1u << t : 0;
    return seen;
}

/* --- a block that owns queries: forward, and dQ ------------------------------------------------------------------- */

/* Shared memory. KEYS: rows of a key tile. BOTH: the block has queries and output gradients, and the keys and values of
 * a tile are copied together. */
template <int D, int DV, int KEYS, bool BOTH> struct query_memory {
    typedef block_tile<OWN, D> Q;
    typedef block_tile<OWN, DV> O;
    typedef block_tile<KEYS, D> K;
    typedef block_tile<KEYS, DV> V;
    typedef struct tile_facts<KEYS, 1> facts;
    static const int q = 0, dout = q + Q::bytes, k = dout + (BOTH ? O::bytes : 0), v = k + STAGES * K::bytes;
    static const int fact = v + STAGES * V::bytes, barriers = fact + STAGES * (int)sizeof(facts);
    /* barriers: 0 for the block's own rows; then for each stage: keys landed, values landed, keys free again, values
     * free again */
    static const int keys = 1, values = keys + STAGES, keys_free = values + STAGES, values_free = keys_free + STAGES;
    static const int bytes = barriers + (values_free + STAGES) * (int)sizeof(tile_barrier);
};

template <class M> __device__ static inline void query_barriers(char *memory)
{
    tile_barrier *const b = (tile_barrier *)(memory + M::barriers);
    if (threadIdx.x == 0) {
        barrier_init(b, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(b + M::keys + i, WARP);
            barrier_init(b + M::values + i, 1);
            barrier_init(b + M::keys_free + i, LOADER / WARP);
            barrier_init(b + M::values_free + i, LOADER / WARP);
        }
        fence_async();
    }
    __syncthreads();
}

/* The loader of a block that owns queries. */
template <int D, int DV, int KEYS, bool BOTH, bool MASKED>
__device__ static inline void load_keys(char *memory, const tile_map *q, const tile_map *dout, const tile_map *k,
                                        const tile_map *v, const struct frame &f, int q_first, int head, int sequence)
{
    typedef query_memory<D, DV, KEYS, BOTH> M;
    tile_barrier *const b = (tile_barrier *)(memory + M::barriers);
    typename M::facts *const facts = (typename M::facts *)(memory + M::fact);
    const int lane = (int)threadIdx.x % WARP, kv_head = head / (f.s.h / f.s.kv);
    const int end = MASKED || q_first + OWN > f.s.tk ? f.s.tk : q_first + OWN;
    const int32_t *const places = f.s.key_index + (MASKED ? (int64_t)sequence * f.s.tk : 0);
    struct bounds seen = {};
    struct ring ring = {0, 1};

    if (lane == 0) {
        barrier_arrive_for(b, M::Q::bytes + (BOTH ? M::O::bytes : 0));
        copy_rows<OWN, D>(memory + M::q, q, b, q_first, head, sequence);
        if (BOTH)
            copy_rows<OWN, DV>(memory + M::dout, dout, b, q_first, head, sequence);
    }
    if (MASKED)
        seen = bounds_of<OWN>(f.s.start + (int64_t)sequence * f.s.tq, f.s.index + (int64_t)sequence * f.s.tq, q_first,
                              f.s.tq);
    unsigned in_reach = 0;
    for (int first = 0; first < end; first += KEYS) {
        int place[KEYS / WARP] = {};
        bool hides = !MASKED && first + KEYS - 1 > q_first;
        if (MASKED) {
            const int t = first / KEYS % LOOK_AHEAD;
            if (t == 0)
                in_reach = tiles_in_reach<KEYS>(first, [&](int row) {
                    const int at = row < f.s.tk ? places[row] : PLACE_MAX;
                    return (at >= seen.low) & (at <= seen.high);
                });
            if (!(in_reach >> t & 1))
                continue;
            bool some = false;
#pragma unroll
            for (int i = 0; i < KEYS / WARP; i++) {
                const int row = first + i * WARP + lane;
                place[i] = row < f.s.tk ? places[row] : PLACE_MAX;
                some = some || place[i] < seen.all_start || place[i] > seen.all_end;
            }
            hides = __ballot_sync(FULL_WARP, some) != 0;
        }
        barrier_wait(b + M::keys_free + ring.stage, ring.parity);
        if (MASKED) {
#pragma unroll
            for (int i = 0; i < KEYS / WARP; i++)
                facts[ring.stage].of[0].place[i * WARP + lane] = place[i];
        }
        if (lane == 0) {
            facts[ring.stage].first = first;
            facts[ring.stage].hides = hides;
            barrier_arrive_for(b + M::keys + ring.stage, M::K::bytes);
            copy_rows<KEYS, D>(memory + M::k + ring.stage * M::K::bytes, k, b + M::keys + ring.stage, first, kv_head,
                               sequence);
        } else {
            barrier_arrive(b + M::keys + ring.stage);
        }
        if (lane == 0) {
            barrier_wait(b + M::values_free + ring.stage, ring.parity);
            barrier_arrive_for(b + M::values + ring.stage, M::V::bytes);
            copy_rows<KEYS, DV>(memory + M::v + ring.stage * M::V::bytes, v, b + M::values + ring.stage, first, kv_head,
                                sequence);
        }
        __syncwarp();
        ring_next(ring);
    }
    barrier_wait(b + M::keys_free + ring.stage, ring.parity);
    if (lane == 0)
        facts[ring.stage].first = -1;
    barrier_arrive(b + M::keys + ring.stage);
}

/* The places that this thread's two queries see. A query that does not exist sees nothing. */
struct query_bounds {
    int start[2], end[2];
};
__device__ static inline struct query_bounds query_bounds_of(const struct frame &f, int query, int sequence)
{
    struct query_bounds b;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = query + 8 * r;
        b.start[r] = row < f.s.tq ? f.s.start[(int64_t)sequence * f.s.tq + row] : PLACE_MAX;
        b.end[r] = row < f.s.tq ? f.s.index[(int64_t)sequence * f.s.tq + row] : -PLACE_MAX;
    }
    return b;
}

/* Sets scores that the mask hides to -inf. Causal: no existing query sees a key that does not exist. */
template <int KEYS, bool MASKED>
__device__ static inline void hide(float (&s)[KEYS / 2], const struct tile_facts<KEYS, 1> &t, int query,
                                   const struct query_bounds &bounds)
{
    if (!t.hides)
        return;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        const int c = column_of(i), r = which_row(i), place = t.of[0].place[c];
        const bool seen = MASKED ? place >= bounds.start[r] && place <= bounds.end[r] : t.first + c <= query + 8 * r;
        if (!seen)
            s[i] = -INFINITY;
    }
}

/* The softmax of a tile's scores, relative to the largest score so far. s becomes 2 to the power of factor times the
 * difference. keep: factor of earlier sums. */
template <int KEYS>
__device__ static inline void soften(float (&s)[KEYS / 2], float (&top)[2], float (&total)[2], float (&keep)[2],
                                     float factor)
{
    float best[2] = {top[0], top[1]}, sum[2] = {};
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
        best[which_row(i)] = fmaxf(best[which_row(i)], s[i]);
    float from[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        best[r] = row_reduce(best[r], op_max());
        from[r] = best[r] == -INFINITY ? 0.0f : best[r] * factor; /* -inf minus -inf would be NaN */
        keep[r] = exp2_fast(top[r] * factor - from[r]);
        top[r] = best[r];
    }
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) {
        s[i] = exp2_fast(s[i] * factor - from[which_row(i)]);
        sum[which_row(i)] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        total[r] = total[r] * keep[r] + sum[r];
}

template <int D, int DV, bool MASKED>
__device__ static inline void forward_group(char *memory, void *out, float *lse, const struct frame &f, int q_first,
                                            int head, int sequence)
{
    enum { KEYS = FORWARD_KEYS };
    typedef query_memory<D, DV, KEYS, false> M;
    tile_barrier *const b = (tile_barrier *)(memory + M::barriers);
    const typename M::facts *const facts = (const typename M::facts *)(memory + M::fact);
    const uint32_t at = tile_address(memory);
    const uint32_t queries = at + M::q + threadIdx.x / MMA_THREADS * MMA_ROWS * TILE_ROW_BYTES;
    const float factor = f.s.scale * LOG2_E;
    const int query = q_first + own_row();
    struct query_bounds bounds = {};
    float s[KEYS / 2], sum[DV / 2] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {}, keep[2];
    uint32_t p[KEYS / 4];
    struct ring ring = {0, 0}, last = {0, 0};

    if (MASKED)
        bounds = query_bounds_of(f, query, sequence);
    barrier_wait(b, 0);
    barrier_wait(b + M::keys, 0);
    if (facts[0].first >= 0) {
        mma_fence();
        rows_by_rows<KEYS, D>(s, queries, M::Q::tile, at + M::k);
        mma_commit();
        mma_wait<0>(s);
        hide<KEYS, MASKED>(s, facts[0], query, bounds);
        release(b + M::keys_free);
        soften<KEYS>(s, top, total, keep, factor);
        pack<KEYS>(p, s);
        ring_next(ring);
        for (;;) { /* a tile's scores and the previous tile's sums are computed at the same time */
            barrier_wait(b + M::keys + ring.stage, ring.parity);
            if (facts[ring.stage].first < 0)
                break;
            mma_settle(sum);
            mma_settle(p);
            mma_fence();
            rows_by_rows<KEYS, D>(s, queries, M::Q::tile, at + M::k + ring.stage * M::K::bytes);
            mma_commit();
            barrier_wait(b + M::values + last.stage, last.parity);
            mma_fence();
            scores_by_rows<KEYS, DV>(sum, p, at + M::v + last.stage * M::V::bytes);
            mma_commit();
            mma_wait<1>(s);
            hide<KEYS, MASKED>(s, facts[ring.stage], query, bounds);
            release(b + M::keys_free + ring.stage);
            soften<KEYS>(s, top, total, keep, factor);
            mma_meanwhile(total[0] + total[1]);
            mma_wait<0>(sum);
            release(b + M::values_free + last.stage);
#pragma unroll
            for (int i = 0; i < DV / 2; i++)
                sum[i] *= keep[which_row(i)];
            pack<KEYS>(p, s);
            last = ring;
            ring_next(ring);
        }
        barrier_wait(b + M::values + last.stage, last.parity);
        mma_settle(sum);
        mma_settle(p);
        mma_fence();
        scores_by_rows<KEYS, DV>(sum, p, at + M::v + last.stage * M::V::bytes);
        mma_commit();
        mma_wait<0>(sum);
    }
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] = row_reduce(total[r], op_sum());
        inverse[r] = total[r] == 0.0f ? 0.0f : 1.0f / total[r]; /* 0: the row saw no key */
        if (threadIdx.x % 4 == 0 && query + 8 * r < f.s.tq)
            lse[row_at(f, sequence, head) + query + 8 * r] = top[r] * f.s.scale + logf(total[r]);
    }
    store_rows<DV>(out, f.s.ldo, f.s.dv, f.s.tq, sequence, head, q_first, sum, inverse);
}

/* A row's log-sum-exp in powers of two, for scores' gradients. INFINITY, for a row that saw no key or does not exist,
 * makes its gradients 0. */
__device__ static inline float log2_sum(float x)
{
    return x == -INFINITY ? INFINITY : x * LOG2_E;
}

template <int D, int DV, bool MASKED>
__device__ static inline void query_gradient_group(char *memory, void *dq, const float *lse, const float *delta,
                                                   const struct frame &f, int q_first, int head, int sequence)
{
    enum { KEYS = GRADIENT_KEYS };
    typedef query_memory<D, DV, KEYS, true> M;
    tile_barrier *const b = (tile_barrier *)(memory + M::barriers);
    const typename M::facts *const facts = (const typename M::facts *)(memory + M::fact);
    const uint32_t at = tile_address(memory), group = threadIdx.x / MMA_THREADS * MMA_ROWS * TILE_ROW_BYTES;
    const float factor = f.s.scale * LOG2_E, scale[2] = {f.s.scale, f.s.scale};
    const int query = q_first + own_row();
    struct query_bounds bounds = {};
    float s[KEYS / 2], ds[KEYS / 2], sum[D / 2] = {}, logs[2], deltas[2];
    uint32_t gradients[KEYS / 4];
    struct ring ring = {0, 0};

    if (MASKED)
        bounds = query_bounds_of(f, query, sequence);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t row = row_at(f, sequence, head) + query + 8 * r;
        logs[r] = log2_sum(query + 8 * r < f.s.tq ? lse[row] : INFINITY);
        deltas[r] = query + 8 * r < f.s.tq ? delta[row] : 0.0f;
    }
    barrier_wait(b, 0);
    for (;; ring_next(ring)) {
        barrier_wait(b + M::keys + ring.stage, ring.parity);
        if (facts[ring.stage].first < 0)
            break;
        const uint32_t keys = at + M::k + ring.stage * M::K::bytes, values = at + M::v + ring.stage * M::V::bytes;
        mma_fence();
        rows_by_rows<KEYS, D>(s, at + M::q + group, M::Q::tile, keys);
        mma_commit();
        barrier_wait(b + M::values + ring.stage, ring.parity);
        mma_fence();
        rows_by_rows<KEYS, DV>(ds, at + M::dout + group, M::O::tile, values);
        mma_commit();
        mma_wait<1>(s);
        hide<KEYS, MASKED>(s, facts[ring.stage], query, bounds);
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            s[i] = exp2_fast(s[i] * factor - logs[which_row(i)]);
        mma_wait<0>(ds);
        release(b + M::values_free + ring.stage);
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            ds[i] = s[i] * (ds[i] - deltas[which_row(i)]);
        pack<KEYS>(gradients, ds);
        mma_settle(sum);
        mma_settle(gradients);
        mma_fence();
        scores_by_rows<KEYS, D>(sum, gradients, keys);
        mma_commit();
        mma_wait<0>(sum);
        release(b + M::keys_free + ring.stage);
    }
    store_rows<D>(dq, f.lddq, f.s.d, f.s.tq, sequence, head, q_first, sum, scale);
}

/* --- a block that owns keys: dK and dV, and shares in dQ ---------------------------------------------------------- */

/* Number of sums of dQ that a group adds for a tile, and number that a warp adds. */
#define HALF_SUMS (MMA_ROWS * 64)
#define WARP_SUMS (HALF_SUMS * WARP / MMA_THREADS)
#define SCORES 3 /* tiles of score gradients: one is read, one is written, and one group may be a tile ahead */

/* Shared memory. QUERIES: rows of a query tile. ALL: the block also computes shares of dQ. So it keeps score gradients
 * and the sums that are added to dQ. */
template <int D, int DV, int QUERIES, bool ALL> struct key_memory {
    typedef block_tile<OWN, D> K;
    typedef block_tile<OWN, DV> V;
    typedef block_tile<QUERIES, D> Q;
    typedef block_tile<QUERIES, DV> O;
    typedef block_tile<OWN, QUERIES> S;
    typedef struct tile_facts<QUERIES, 4> facts;
    static const int scores_bytes = ALL ? SCORES * S::bytes : 0, sums_bytes = ALL ? GROUPS * HALF_SUMS * 4 : 0;
    static const int k = 0, v = K::bytes, q = v + V::bytes, dout = q + STAGES * Q::bytes;
    static const int scores = dout + STAGES * O::bytes, sums = scores + scores_bytes, fact = sums + sums_bytes;
    static const int barriers = fact + STAGES * (int)sizeof(facts);
    /* barriers: 0 for the block's own rows; then for each stage: queries landed, queries free again; for each tile of
     * score gradients: written */
    static const int queries = 1, queries_free = queries + STAGES, scores_there = queries_free + STAGES;
    static const int bytes = barriers + (scores_there + SCORES) * (int)sizeof(tile_barrier);
};
enum { START, END, LOG, DELTA }; /* a query's numbers in its tile's facts */

/* The loader copies all tiles that see keys of the block, for each query head that shares the key head. */
template <int D, int DV, int QUERIES, bool ALL, bool MASKED>
__device__ static inline void load_queries(char *memory, const tile_map *q, const tile_map *dout, const tile_map *k,
                                           const tile_map *v, const float *lse, const float *delta,
                                           const struct frame &f, int k_first, int kv_head, int sequence)
{
    typedef key_memory<D, DV, QUERIES, ALL> M;
    tile_barrier *const b = (tile_barrier *)(memory + M::barriers);
    typename M::facts *const facts = (typename M::facts *)(memory + M::fact);
    const int lane = (int)threadIdx.x % WARP, shared_by = f.s.h / f.s.kv;
    const int64_t rows = (int64_t)sequence * f.s.tq;
    struct bounds own = {};
    struct ring ring = {0, 1};
    unsigned in_reach = 0;

    if (lane == 0) {
        barrier_arrive_for(b, M::K::bytes + M::V::bytes);
        copy_rows<OWN, D>(memory + M::k, k, b, k_first, kv_head, sequence);
        copy_rows<OWN, DV>(memory + M::v, v, b, k_first, kv_head, sequence);
    }
    if (MASKED) {
        const int32_t *const places = f.s.key_index + (int64_t)sequence * f.s.tk;
        own = bounds_of<OWN>(places, places, k_first, f.s.tk);
    }
    for (int head = kv_head * shared_by; head < (kv_head + 1) * shared_by; head++) {
        const int64_t at = row_at(f, sequence, head);
        for (int first = MASKED ? 0 : k_first; first < f.s.tq; first += QUERIES) {
            int start[QUERIES / WARP], end[QUERIES / WARP];
            bool hides = !MASKED && first < k_first + OWN - 1;
            if (MASKED) {
                const int n = first / QUERIES % LOOK_AHEAD;
                if (n == 0)
                    in_reach = tiles_in_reach<QUERIES>(first, [&](int row) {
                        return row < f.s.tq ? (f.s.start[rows + row] <= own.high) & (f.s.index[rows + row] >= own.low)
                                            : false;
                    });
                if (!(in_reach >> n & 1))
                    continue;
                bool some = false;
#pragma unroll
                for (int i = 0; i < QUERIES / WARP; i++) {
                    const int row = first + i * WARP + lane;
                    start[i] = row < f.s.tq ? f.s.start[rows + row] : PLACE_MAX;
                    end[i] = row < f.s.tq ? f.s.index[rows + row] : -PLACE_MAX;
                    some = some || start[i] > own.low || end[i] < own.high;
                }
                hides = __ballot_sync(FULL_WARP, some) != 0;
            }
            float logs[QUERIES / WARP], deltas[QUERIES / WARP];
#pragma unroll
            for (int i = 0; i < QUERIES / WARP; i++) { /* these reads run while the stage is waited for */
                const int row = first + i * WARP + lane;
                logs[i] = row < f.s.tq ? lse[at + row] : INFINITY;
                deltas[i] = row < f.s.tq ? delta[at + row] : 0.0f;
            }
            barrier_wait(b + M::queries_free + ring.stage, ring.parity);
            typename M::facts *const t = facts + ring.stage;
#pragma unroll
            for (int i = 0; i < QUERIES / WARP; i++) {
                const int r = i * WARP + lane;
                if (MASKED) {
                    t->of[START].place[r] = start[i];
                    t->of[END].place[r] = end[i];
                }
                t->of[LOG].number[r] = log2_sum(logs[i]);
                t->of[DELTA].number[r] = deltas[i];
            }
            if (lane == 0) {
                t->first = first;
                t->hides = hides;
                t->head = head;
                barrier_arrive_for(b + M::queries + ring.stage, M::Q::bytes + M::O::bytes);
                copy_rows<QUERIES, D>(memory + M::q + ring.stage * M::Q::bytes, q, b + M::queries + ring.stage, first,
                                      head, sequence);
                copy_rows<QUERIES, DV>(memory + M::dout + ring.stage * M::O::bytes, dout, b + M::queries + ring.stage,
                                       first, head, sequence);
            } else {
                barrier_arrive(b + M::queries + ring.stage);
            }
            __syncwarp();
            ring_next(ring);
        }
    }
    barrier_wait(b + M::queries_free + ring.stage, ring.parity);
    if (lane == 0)
        facts[ring.stage].first = -1;
    if (ALL && lane == 0) { /* the groups compute scores before they know that no tile is left, so a tile must land */
        barrier_arrive_for(b + M::queries + ring.stage, M::Q::bytes + M::O::bytes);
        copy_rows<QUERIES, D>(memory + M::q + ring.stage * M::Q::bytes, q, b + M::queries + ring.stage, 0,
                              kv_head * shared_by, sequence);
        copy_rows<QUERIES, DV>(memory + M::dout + ring.stage * M::O::bytes, dout, b + M::queries + ring.stage, 0,
                               kv_head * shared_by, sequence);
    } else {
        barrier_arrive(b + M::queries + ring.stage);
    }
}

/* Finds the places of this thread's two keys. */
__device__ static inline void places_of(int (&place)[2], const struct frame &f, int key, int sequence)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
        place[r] = key + 8 * r < f.s.tk ? f.s.key_index[(int64_t)sequence * f.s.tk + key + 8 * r] : PLACE_MAX;
}

/* Like hide(), for transposed scores. */
template <int QUERIES, bool MASKED>
__device__ static inline void hide_queries(float (&s)[QUERIES / 2], const struct tile_facts<QUERIES, 4> &t, int key,
                                           const int (&place)[2])
{
    if (!t.hides)
        return;
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++) {
        const int c = column_of(i), r = which_row(i);
        const bool seen =
            MASKED ? place[r] >= t.of[START].place[c] && place[r] <= t.of[END].place[c] : key + 8 * r <= t.first + c;
        if (!seen)
            s[i] = -INFINITY;
    }
}

template <int D, int DV, int QUERIES, bool MASKED>
__device__ static inline void key_gradient_group(char *memory, void *dk, void *dv, const struct frame &f, int k_first,
                                                 int kv_head, int sequence)
{
    typedef key_memory<D, DV, QUERIES, false> M;
    tile_barrier *const b = (tile_barrier *)(memory + M::barriers);
    const typename M::facts *const facts = (const typename M::facts *)(memory + M::fact);
    const uint32_t at = tile_address(memory), group = threadIdx.x / MMA_THREADS * MMA_ROWS * TILE_ROW_BYTES;
    const float factor = f.s.scale * LOG2_E, scale[2] = {f.s.scale, f.s.scale}, one[2] = {1.0f, 1.0f};
    const int key = k_first + own_row();
    int place[2] = {};
    float s[QUERIES / 2], ds[QUERIES / 2], key_sum[D / 2] = {}, value_sum[DV / 2] = {};
    uint32_t p[QUERIES / 4], gradients[QUERIES / 4];
    struct ring ring = {0, 0};

    if (MASKED)
        places_of(place, f, key, sequence);
    barrier_wait(b, 0);
    for (;; ring_next(ring)) {
        barrier_wait(b + M::queries + ring.stage, ring.parity);
        const typename M::facts &t = facts[ring.stage];
        if (t.first < 0)
            break;
        const uint32_t queries = at + M::q + ring.stage * M::Q::bytes, dout = at + M::dout + ring.stage * M::O::bytes;
        mma_fence();
        rows_by_rows<QUERIES, D>(s, at + M::k + group, M::K::tile, queries);
        rows_by_rows<QUERIES, DV>(ds, at + M::v + group, M::V::tile, dout);
        mma_commit();
        mma_wait<0>(s);
        mma_settle(ds);
        hide_queries<QUERIES, MASKED>(s, t, key, place);
#pragma unroll
        for (int i = 0; i < QUERIES / 2; i++) {
            const int c = column_of(i);
            s[i] = exp2_fast(s[i] * factor - t.of[LOG].number[c]);
            ds[i] = s[i] * (ds[i] - t.of[DELTA].number[c]);
        }
        pack<QUERIES>(p, s);
        pack<QUERIES>(gradients, ds);
        mma_settle(value_sum);
        mma_settle(key_sum);
        mma_settle(p);
        mma_settle(gradients);
        mma_fence();
        scores_by_rows<QUERIES, DV>(value_sum, p, dout);
        scores_by_rows<QUERIES, D>(key_sum, gradients, queries);
        mma_commit();
        mma_wait<0>(value_sum);
        mma_settle(key_sum);
        release(b + M::queries_free + ring.stage);
    }
    store_rows<D>(dk, f.lddk, f.s.d, f.s.tk, sequence, kv_head, k_first, key_sum, scale);
    store_rows<DV>(dv, f.lddv, f.s.dv, f.s.tk, sequence, kv_head, k_first, value_sum, one);
}

/* Index of a half tile in the fp32 sums of dQ. Each tile of 64 queries of a head has two halves of its columns, one per
 * group. In a half, the warps' sums lie one after the other in register order: four of each thread, then the next
 * four. */
__device__ static inline int64_t half_at(const struct frame &f, int sequence, int head, int tile, int half)
{
    const int64_t tiles = (f.s.tq + MMA_ROWS - 1) / MMA_ROWS;
    return ((((int64_t)sequence * f.s.h + head) * tiles + tile) * GROUPS + half) * HALF_SUMS;
}

/* Computes all three gradients in one pass. Each group computes the score gradients of its keys. Both groups need all
 * score gradients for dQ, so the groups exchange them in shared memory. Each group multiplies a tile's score gradients
 * by half of the keys' columns. The group does this one tile late, so that it does not wait for the other group. The
 * group's share of dQ is added to dq from shared memory another tile later.
 *
 * Shared memory bandwidth limits the kernel: reading operands takes 2,048 of the 2,560 cycles of a tile's products. */
template <int D, int DV, bool MASKED>
__device__ static inline void gradient_group(char *memory, float *dq, void *dk, void *dv, const struct frame &f,
                                             int k_first, int kv_head, int sequence)
{
    enum { QUERIES = MMA_ROWS, SHARE = HALF_SUMS / MMA_THREADS };
    typedef key_memory<D, DV, QUERIES, true> M;
    static_assert(D == GROUPS * TILE_COLUMNS, "a group's columns are a tile's");
    tile_barrier *const b = (tile_barrier *)(memory + M::barriers);
    const typename M::facts *const facts = (const typename M::facts *)(memory + M::fact);
    const int warp = one_of_warp((int)threadIdx.x / WARP), lane = (int)threadIdx.x % WARP;
    const int warps = MMA_THREADS / WARP, which = warp / warps;
    const uint32_t at = tile_address(memory), group = which * MMA_ROWS * TILE_ROW_BYTES;
    const float factor = f.s.scale * LOG2_E, scale[2] = {f.s.scale, f.s.scale}, one[2] = {1.0f, 1.0f};
    const int key = k_first + own_row();
    int place[2] = {};
    float s[QUERIES / 2], ds[QUERIES / 2], share[SHARE], key_sum[D / 2] = {}, value_sum[DV / 2] = {};
    uint32_t p[QUERIES / 4], gradients[QUERIES / 4];
    struct ring ring = {0, 0}, before = {0, 0}, scores = {1, 0};
    /* where in dq the shares go: of the previous tile (last), in shared memory (kept); -1: nowhere */
    int last = -1, kept = -1;
    char *const sums = memory + M::sums + warp * WARP_SUMS * (int)sizeof(float);

    /* Loads the facts of this thread's columns. */
    auto load_numbers = [&](float(&x)[QUERIES / 4], int stage, int fact) {
        const float *const from = facts[stage].of[fact].number + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < QUERIES / 4; i += 2) {
            const float2 two = *(const float2 *)(from + 4 * i);
            x[i] = two.x;
            x[i + 1] = two.y;
        }
    };
    /* Multiplies the next tile's scores. */
    auto multiply_scores = [&]() {
        barrier_wait(b + M::queries + ring.stage, ring.parity);
        mma_fence();
        rows_by_rows<QUERIES, D>(s, at + M::k + group, M::K::tile, at + M::q + ring.stage * M::Q::bytes);
        mma_commit();
    };
    auto multiply_gradients = [&]() {
        mma_fence();
        rows_by_rows<QUERIES, DV>(ds, at + M::v + group, M::V::tile, at + M::dout + ring.stage * M::O::bytes);
        mma_commit();
    };
    auto soften_scores = [&]() {
        const typename M::facts &t = facts[ring.stage];
        const int hides = t.hides;
        float logs[QUERIES / 4];
        mma_wait<1>(s);
        load_numbers(logs, ring.stage, LOG);
        if (hides)
            hide_queries<QUERIES, MASKED>(s, t, key, place);
#pragma unroll
        for (int i = 0; i < QUERIES / 2; i++)
            s[i] = exp2_fast(s[i] * factor - logs[i / 4 * 2 + i % 2]);
        mma_wait<0>(ds);
    };
    /* Multiplies the shares of the previous tile, whose score gradients both groups have written. */
    auto multiply_shares = [&]() {
        const uint32_t a = along_rows(at + M::scores + before.stage * M::S::bytes, M::S::tile);
        const uint32_t keys = along_rows(at + M::k + which * M::K::tile, M::K::tile);
#pragma unroll
        for (int i = 0; i < OWN / MMA_DEPTH; i++) {
            const int rows = i * MMA_DEPTH * TILE_ROW_BYTES;
            mma_tiles<true, true>(share, further(a, rows), further(keys, rows), i > 0);
        }
        mma_commit();
    };
    /* Each warp stores its own shares. */
    auto keep_shares = [&]() {
        if (lane == 0)
            add_wait();
        __syncwarp();
#pragma unroll
        for (int j = 0; j < SHARE / 4; j++) {
            const float4 four = {share[4 * j], share[4 * j + 1], share[4 * j + 2], share[4 * j + 3]};
            *(float4 *)(sums + (j * WARP + lane) * 16) = four;
        }
        kept = last;
    };
    /* Call it after a fence and after a barrier of the warp. */
    auto add_shares = [&]() {
        if (lane == 0 && kept >= 0)
            add_sums(dq + (int64_t)kept * WARP_SUMS, sums, WARP_SUMS * (int)sizeof(float));
    };

    if (MASKED)
        places_of(place, f, key, sequence);
#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++) { /* the tile before the first one has score gradients of 0 */
        const uint32_t none[4] = {};
        store_square(memory + M::scores, warp * 16, i * 16, none);
    }
    fence_stores();
    release(b + M::scores_there);
    barrier_wait(b, 0);
    multiply_scores();
    multiply_gradients();
    soften_scores();
    while (facts[ring.stage].first >= 0) {
        const int stage = ring.stage;
        float deltas[QUERIES / 4];
        load_numbers(deltas, stage, DELTA);
#pragma unroll
        for (int i = 0; i < QUERIES / 2; i++)
            ds[i] = s[i] * (ds[i] - deltas[i / 4 * 2 + i % 2]);
        pack<QUERIES>(p, s);
        pack<QUERIES>(gradients, ds);
        /* so that the other group reads no older score gradients */
        barrier_wait(b + M::scores_there + before.stage, before.parity);
#pragma unroll
        for (int i = 0; i < QUERIES / 16; i++)
            store_square(memory + M::scores + scores.stage * M::S::bytes, warp * 16, i * 16, gradients + 4 * i);
        fence_stores();
        release(b + M::scores_there + scores.stage);
        add_shares();
        mma_settle(value_sum);
        mma_settle(p);
        mma_fence();
        scores_by_rows<QUERIES, DV>(value_sum, p, at + M::dout + stage * M::O::bytes);
        mma_commit();
        mma_settle(key_sum);
        mma_settle(gradients);
        mma_fence();
        scores_by_rows<QUERIES, D>(key_sum, gradients, at + M::q + stage * M::Q::bytes);
        multiply_shares();
        const typename M::facts &t = facts[stage];
        const int to = (int)(half_at(f, sequence, t.head, t.first / QUERIES, which) / WARP_SUMS) + warp % warps;
        before = scores;
        ring_next<SCORES>(scores);
        ring_next(ring);
        mma_wait<1>(value_sum); /* frees p, because all values at once would exceed the registers */
        multiply_scores();
        mma_wait<1>(share);
        mma_settle(key_sum);
        release(b + M::queries_free + stage);
        keep_shares();
        last = to;
        multiply_gradients();
        soften_scores();
    }
    barrier_wait(b + M::scores_there + before.stage, before.parity);
    fence_stores();
    __syncwarp();
    add_shares();
    mma_fence();
    multiply_shares();
    mma_wait<0>(share);
    keep_shares();
    fence_stores();
    __syncwarp();
    add_shares();
    if (lane == 0)
        add_wait();
    store_rows<D>(dk, f.lddk, f.s.d, f.s.tk, sequence, kv_head, k_first, key_sum, scale);
    store_rows<DV>(dv, f.lddv, f.s.dv, f.s.tk, sequence, kv_head, k_first, value_sum, one);
}

/* dQ from its sums: each thread converts eight columns of two rows. */
__global__ static void __launch_bounds__(256)
    hopper_query_gradient_out(void *dq, const float *sums, const __grid_constant__ struct frame f)
{
    const int tile = (int)blockIdx.x / GROUPS, half = (int)blockIdx.x % GROUPS, head = (int)blockIdx.y;
    const int column = half * 64 + (int)threadIdx.x % 8 * 8, quad = (int)threadIdx.x / 8, sequence = (int)blockIdx.z;
    const float *const from = sums + half_at(f, sequence, head, tile, half) + quad / 8 * WARP_SUMS +
                              ((int)threadIdx.x % 8 * WARP + quad % 8 * 4) * 4;
    uint32_t x[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 four = *(const float4 *)(from + 4 * i);
        x[0][i] = two_bf16(four.x * f.s.scale, four.y * f.s.scale);
        x[1][i] = two_bf16(four.z * f.s.scale, four.w * f.s.scale);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = tile * MMA_ROWS + quad / 8 * 16 + quad % 8 + 8 * r;
        const uint4 piece = {x[r][0], x[r][1], x[r][2], x[r][3]};
        if (row < f.s.tq && column < f.s.d)
            STORE_16((uint16_t *)dq + ((int64_t)sequence * f.s.tq + row) * f.lddq + (int64_t)head * f.s.d + column,
                     piece);
    }
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

template <int D, int DV, bool MASKED>
__global__ static void __launch_bounds__(BLOCK, 1)
    hopper_forward(const __grid_constant__ tile_map q, const __grid_constant__ tile_map k,
                   const __grid_constant__ tile_map v, void *out, float *lse, const __grid_constant__ struct frame f)
{
#if HOPPER_CODE
    typedef query_memory<D, DV, FORWARD_KEYS, false> M;
    DYNAMIC_SHARED(shared);
    char *const memory = tile_memory(shared);
    const int q_first = (int)(gridDim.x - 1 - blockIdx.x) * OWN; /* the longest rows first */
    const int head = (int)blockIdx.y, sequence = (int)blockIdx.z;
    query_barriers<M>(memory);
    if (threadIdx.x >= LOADER) {
        give_registers<LOADER_REGISTERS>();
        if (threadIdx.x < LOADER + WARP)
            load_keys<D, DV, FORWARD_KEYS, false, MASKED>(memory, &q, NULL, &k, &v, f, q_first, head, sequence);
    } else {
        take_registers<GROUP_REGISTERS>();
        forward_group<D, DV, MASKED>(memory, out, lse, f, q_first, head, sequence);
    }
#endif
}

template <int D, int DV, bool MASKED>
__global__ static void __launch_bounds__(BLOCK, 1)
    hopper_query_gradient(const __grid_constant__ tile_map q, const __grid_constant__ tile_map k,
                          const __grid_constant__ tile_map v, const __grid_constant__ tile_map dout, void *dq,
                          const float *lse, const float *delta, const __grid_constant__ struct frame f)
{
#if HOPPER_CODE
    typedef query_memory<D, DV, GRADIENT_KEYS, true> M;
    DYNAMIC_SHARED(shared);
    char *const memory = tile_memory(shared);
    const int q_first = (int)(gridDim.x - 1 - blockIdx.x) * OWN;
    const int head = (int)blockIdx.y, sequence = (int)blockIdx.z;
    query_barriers<M>(memory);
    if (threadIdx.x >= LOADER) {
        give_registers<LOADER_REGISTERS>();
        if (threadIdx.x < LOADER + WARP)
            load_keys<D, DV, GRADIENT_KEYS, true, MASKED>(memory, &q, &dout, &k, &v, f, q_first, head, sequence);
    } else {
        take_registers<GROUP_REGISTERS>();
        query_gradient_group<D, DV, MASKED>(memory, dq, lse, delta, f, q_first, head, sequence);
    }
#endif
}

/* Initialises the barriers of a block that owns keys. */
template <class M> __device__ static inline void key_barriers(char *memory)
{
    tile_barrier *const b = (tile_barrier *)(memory + M::barriers);
    if (threadIdx.x == 0) {
        barrier_init(b, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(b + M::queries + i, WARP);
            barrier_init(b + M::queries_free + i, LOADER / WARP);
        }
        for (int i = 0; i < SCORES; i++)
            barrier_init(b + M::scores_there + i, LOADER / WARP);
        fence_async();
    }
    __syncthreads();
}

template <int D, int DV, bool MASKED>
__global__ static void __launch_bounds__(BLOCK, 1)
    hopper_key_gradient(const __grid_constant__ tile_map q, const __grid_constant__ tile_map k,
                        const __grid_constant__ tile_map v, const __grid_constant__ tile_map dout, void *dk, void *dv,
                        const float *lse, const float *delta, unsigned together, const __grid_constant__ struct frame f)
{
#if HOPPER_CODE
    enum { QUERIES = gradient_queries<D>::rows };
    typedef key_memory<D, DV, QUERIES, false> M;
    DYNAMIC_SHARED(shared);
    char *const memory = tile_memory(shared);
    const int k_first = (int)(blockIdx.x / together) * OWN, sequence = (int)blockIdx.z;
    const int kv_head = (int)(blockIdx.y * together + blockIdx.x % together);
    key_barriers<M>(memory);
    if (threadIdx.x >= LOADER) {
        give_registers<LOADER_REGISTERS>();
        if (threadIdx.x < LOADER + WARP)
            load_queries<D, DV, QUERIES, false, MASKED>(memory, &q, &dout, &k, &v, lse, delta, f, k_first, kv_head,
                                                        sequence);
    } else {
        take_registers<GROUP_REGISTERS>();
        key_gradient_group<D, DV, QUERIES, MASKED>(memory, dk, dv, f, k_first, kv_head, sequence);
    }
#endif
}

template <int D, int DV, bool MASKED>
__global__ static void __launch_bounds__(BLOCK, 1)
    hopper_gradient(const __grid_constant__ tile_map q, const __grid_constant__ tile_map k,
                    const __grid_constant__ tile_map v, const __grid_constant__ tile_map dout, float *dq, void *dk,
                    void *dv, const float *lse, const float *delta, unsigned together,
                    const __grid_constant__ struct frame f)
{
#if HOPPER_CODE
    typedef key_memory<D, DV, MMA_ROWS, true> M;
    DYNAMIC_SHARED(shared);
    char *const memory = tile_memory(shared);
    const int k_first = (int)(blockIdx.x / together) * OWN, sequence = (int)blockIdx.z;
    const int kv_head = (int)(blockIdx.y * together + blockIdx.x % together);
    key_barriers<M>(memory);
    if (threadIdx.x >= LOADER) {
        give_registers<ALL_LOADER_REGISTERS>();
        if (threadIdx.x < LOADER + WARP)
            load_queries<D, DV, MMA_ROWS, true, MASKED>(memory, &q, &dout, &k, &v, lse, delta, f, k_first, kv_head,
                                                        sequence);
    } else {
        take_registers<ALL_GROUP_REGISTERS>();
        gradient_group<D, DV, MASKED>(memory, dq, dk, dv, f, k_first, kv_head, sequence);
    }
#endif
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

static unsigned tiles_of(int length)
{
    return (unsigned)((length + OWN - 1) / OWN);
}

/* Makes the map of a tensor with `length` rows a sequence and `heads` heads, each `width` wide. */
static bool make_map(tile_map *ret, const void *at, int64_t ld, int length, int heads, int width,
                     const struct attention_problem *s, int box_rows)
{
    const struct tile_tensor x = {at, width, length, heads, s->b, ld, width, (int64_t)length * ld};
    return tile_map_make(ret, &x, box_rows);
}

static int allow_memory(const void *kernel, int bytes)
{
    return (int)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <int D, int DV, bool MASKED>
static int forward(void *stream, const struct attention_args *a, const struct frame &f)
{
    const struct attention_problem *const s = &f.s;
    const int bytes = query_memory<D, DV, FORWARD_KEYS, false>::bytes + TILE_ALIGN;
    auto kernel = hopper_forward<D, DV, MASKED>;
    tile_map of_q, of_k, of_v;
    if (!make_map(&of_q, a->q, s->ldq, s->tq, s->h, s->d, s, OWN) ||
        !make_map(&of_k, a->k, s->ldk, s->tk, s->kv, s->d, s, FORWARD_KEYS) ||
        !make_map(&of_v, a->v, s->ldv, s->tk, s->kv, s->dv, s, FORWARD_KEYS))
        return CUDA_NOT_SERVED;
    const int e = allow_memory((const void *)kernel, bytes);
    return e != 0 ? e
                  : LAUNCH(kernel, dim3(tiles_of(s->tq), (unsigned)s->h, (unsigned)s->b), BLOCK, bytes, stream, of_q,
                           of_k, of_v, a->out, a->lse, f);
}

/* Maps for a block that owns queries and copies tiles of keys, or the reverse. */
struct gradient_maps {
    tile_map q, k, v, dout;
};
static bool make_gradient_maps(struct gradient_maps *ret, const struct attention_args *a, const struct frame &f,
                               int query_rows, int key_rows)
{
    const struct attention_problem *const s = &f.s;
    return make_map(&ret->q, a->q, s->ldq, s->tq, s->h, s->d, s, query_rows) &&
           make_map(&ret->k, a->k, s->ldk, s->tk, s->kv, s->d, s, key_rows) &&
           make_map(&ret->v, a->v, s->ldv, s->tk, s->kv, s->dv, s, key_rows) &&
           make_map(&ret->dout, a->dout, f.lddo, s->tq, s->h, s->dv, s, query_rows);
}

/* Heads whose blocks are launched together. Blocks that own keys come longest first: the first keys of up to four
 * heads, then the next keys of these heads. With one head at a time, the last head's longest block would end long after
 * all others. With all heads together, the queries would not stay in the L2. (Computed; not timed separately from other
 * changes that made these kernels faster.) */
static unsigned heads_together(const struct attention_problem *s)
{
    return s->kv % 4 == 0 ? 4 : s->kv % 2 == 0 ? 2 : 1;
}
static dim3 key_grid(const struct attention_problem *s)
{
    const unsigned together = heads_together(s);
    return dim3(tiles_of(s->tk) * together, (unsigned)s->kv / together, (unsigned)s->b);
}

template <int D, int DV, bool MASKED>
static int backward(void *stream, const struct attention_args *a, const struct frame &f)
{
    enum { QUERIES = gradient_queries<D>::rows };
    const struct attention_problem *const s = &f.s;
    const int key_bytes = key_memory<D, DV, QUERIES, false>::bytes + TILE_ALIGN;
    const int query_bytes = query_memory<D, DV, GRADIENT_KEYS, true>::bytes + TILE_ALIGN;
    auto for_keys = hopper_key_gradient<D, DV, MASKED>;
    auto for_queries = hopper_query_gradient<D, DV, MASKED>;
    struct gradient_maps of_keys, of_queries;
    if (!make_gradient_maps(&of_keys, a, f, QUERIES, OWN) || !make_gradient_maps(&of_queries, a, f, OWN, GRADIENT_KEYS))
        return CUDA_NOT_SERVED;
    int e = allow_memory((const void *)for_keys, key_bytes);
    if (e == 0)
        e = allow_memory((const void *)for_queries, query_bytes);
    if (e == 0)
        e = LAUNCH(for_keys, key_grid(s), BLOCK, key_bytes, stream, of_keys.q, of_keys.k, of_keys.v, of_keys.dout,
                   a->dk, a->dv, a->lse, (const float *)a->work, heads_together(s), f);
    if (e == 0)
        e = LAUNCH(for_queries, dim3(tiles_of(s->tq), (unsigned)s->h, (unsigned)s->b), BLOCK, query_bytes, stream,
                   of_queries.q, of_queries.k, of_queries.v, of_queries.dout, a->dq, a->lse, (const float *)a->work, f);
    return e;
}

/* sums: sums of dQ, laid out as half_at() describes. */
template <int D, int DV, bool MASKED>
static int backward_any_order(void *stream, const struct attention_args *a, float *sums, const struct frame &f)
{
    const struct attention_problem *const s = &f.s;
    const int bytes = key_memory<D, DV, MMA_ROWS, true>::bytes + TILE_ALIGN;
    const unsigned tiles = (unsigned)((s->tq + MMA_ROWS - 1) / MMA_ROWS);
    auto kernel = hopper_gradient<D, DV, MASKED>;
    struct gradient_maps of;
    if (!make_gradient_maps(&of, a, f, MMA_ROWS, OWN))
        return CUDA_NOT_SERVED;
    int e = allow_memory((const void *)kernel, bytes);
    if (e == 0)
        e = (int)cudaMemsetAsync(sums, 0, cuda_attention_hopper_sums(s->b, s->tq, s->h), (cudaStream_t)stream);
    if (e == 0)
        e = LAUNCH(kernel, key_grid(s), BLOCK, bytes, stream, of.q, of.k, of.v, of.dout, sums, a->dk, a->dv, a->lse,
                   (const float *)a->work, heads_together(s), f);
    if (e == 0)
        e = LAUNCH(hopper_query_gradient_out, dim3(tiles * GROUPS, (unsigned)s->h, (unsigned)s->b), 256, 0, stream,
                   a->dq, sums, f);
    return e;
}

/* Calls launch<D, DV, MASKED>(arguments) for the frame's head widths, rounded up. */
#define LAUNCH_BY_WIDTH(launch, f, ...)                                                                                \
    ((f).s.index ? LAUNCH_MASKED(launch, true, f, __VA_ARGS__) : LAUNCH_MASKED(launch, false, f, __VA_ARGS__))
#define LAUNCH_MASKED(launch, masked, f, ...)                                                                          \
    ((f).s.d <= 64 && (f).s.dv <= 64 ? launch<64, 64, masked>(__VA_ARGS__, f)                                          \
     : (f).s.d <= 128                ? launch<128, 128, masked>(__VA_ARGS__, f)                                        \
                                     : launch<192, 128, masked>(__VA_ARGS__, f))

/* Whether each row begins at a multiple of 16 bytes, and sequences are close enough together for a copy. */
static bool in_reach(const void *x, int64_t ld, int length)
{
    const int64_t most = (int64_t)1 << 40;
    return (address(x) | (uintptr_t)(ld * 2)) % 16 == 0 && ld < most / 2 / length;
}

bool cuda_attention_hopper_works(void)
{
#if defined(TITAN_EMULATE) || defined(TITAN_SM90A)
    return tile_maps_work();
#else
    return false;
#endif
}

bool cuda_attention_hopper_fits(bool bf16, int64_t d, int64_t dv)
{
    return bf16 && d > 0 && d <= 192 && d % 8 == 0 && dv > 0 && dv <= 128 && dv % 8 == 0;
}

bool cuda_attention_hopper_any_order(bool bf16, int64_t d, int64_t dv)
{
    return cuda_attention_hopper_fits(bf16, d, dv) && d > 64 && d <= 128;
}

size_t cuda_attention_hopper_sums(int64_t b, int64_t tq, int64_t h)
{
    return (size_t)(b * h * ((tq + MMA_ROWS - 1) / MMA_ROWS)) * GROUPS * HALF_SUMS * sizeof(float);
}

static bool forward_served(const struct attention_args *a, const struct attention_problem *s)
{
    return s->hopper && s->softcap == 0 && cuda_attention_hopper_fits(s->bf16, s->d, s->dv) && s->b > 0 && s->tq > 0 &&
           s->tk > 0 && in_reach(a->q, s->ldq, s->tq) && in_reach(a->k, s->ldk, s->tk) &&
           in_reach(a->v, s->ldv, s->tk) && in_reach(a->out, s->ldo, s->tq);
}

int cuda_attention_hopper(void *stream, const struct attention_args *a, const struct attention_problem *problem)
{
    struct frame f = {};
    f.s = *problem;
    if (!forward_served(a, problem))
        return CUDA_NOT_SERVED;
    return LAUNCH_BY_WIDTH(forward, f, stream, a);
}

int cuda_attention_hopper_dgrad(void *stream, const struct attention_args *a, const struct attention_problem *problem,
                                float *sums)
{
    struct frame f = {};
    f.s = *problem;
    f.lddq = a->lddq, f.lddk = a->lddk, f.lddv = a->lddv, f.lddo = a->lddo;
    if (!forward_served(a, problem) || !in_reach(a->dq, a->lddq, problem->tq) ||
        !in_reach(a->dk, a->lddk, problem->tk) || !in_reach(a->dv, a->lddv, problem->tk) ||
        !in_reach(a->dout, a->lddo, problem->tq))
        return CUDA_NOT_SERVED;
    if (sums)
        return problem->index ? backward_any_order<128, 128, true>(stream, a, sums, f)
                              : backward_any_order<128, 128, false>(stream, a, sums, f);
    return LAUNCH_BY_WIDTH(backward, f, stream, a);
}
