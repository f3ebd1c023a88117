/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_grouped_hopper.cu - products of packed rows, each group with a matrix of its own, on the tensor cores of
 * compute capability 9.0.
 *
 * A block makes tiles of c with ROWS rows; each of its two groups of four warps has 64 of the rows. A separate warp,
 * the loader, copies the operands of the next DEPTH products to shared memory, some stages ahead. It continues with the
 * next tile while the current one is written. Loader and groups each find their tiles from the counts, in the same
 * order.
 *
 * A tile begins at a row of its group. So only a group's last tile contains rows of another group. Forward and dgrad do
 * not write these rows. For a weight gradient, sums run along rows, so the foreign rows are set to zero in shared
 * memory. A weight gradient keeps the sums of `split` rows beside their total in registers, so its tiles are narrower.
 *
 * One thread owns an element and adds in one order. So the bits are the same every time, whatever other groups
 * exist. */
#include "worker/device/cuda/grouped.cuh"
#include "worker/device/cuda/hopper.cuh"

#if !HOPPER_CODE
#pragma nv_diag_suppress 177 /* for other architectures the kernels are empty and call nothing */
#endif

#define GROUPS 2
#define ROWS (GROUPS * MMA_ROWS)
#define DEPTH TILE_COLUMNS
#define LOADER (GROUPS * MMA_THREADS) /* the loader's first thread */
/* four warps change their registers together; one of the loader's warps also checks the counts */
#define BLOCK (LOADER + MMA_THREADS)
#define LOADER_REGISTERS 40 /* a thread is launched with 168 */
#define GROUP_REGISTERS 232
static_assert(GROUPS * GROUP_REGISTERS + LOADER_REGISTERS <= (GROUPS + 1) * 168, "what is taken is given");
#define BAND 16       /* tiles, one below the other, that are made together: their operands stay in the cache */
#define SORTED_MOST 8 /* most groups that are sorted: each look at a count waits for the first-level cache */
#define BOX_BYTES (DEPTH * TILE_ROW_BYTES)

enum form { FORWARD, DGRAD, WGRAD, WGRAD_NARROW };
__host__ __device__ static constexpr bool is_wgrad(int form)
{
    return form == WGRAD || form == WGRAD_NARROW;
}

/* Shared memory: stages with ROWS lines of a and `columns` lines of b, DEPTH deep. */
template <int FORM> struct layout {
    static const int columns = FORM == WGRAD ? 192 : FORM == WGRAD_NARROW ? 128 : 256;
    static const int least = is_wgrad(FORM) ? columns : 128; /* columns of a tile at the edge are a multiple of this */
    static const int stages = FORM == WGRAD ? 5 : FORM == WGRAD_NARROW ? 6 : 4;
    static const int b = ROWS * TILE_ROW_BYTES, stage = b + columns * TILE_ROW_BYTES, barriers = stages * stage;
    /* barriers: for each stage: filled, free again; then one: foreign rows are cleared */
    static const int filled = 0, free = stages, cleared = free + stages;
    static const int bytes = barriers + (cleared + 2) / 2 * 16;
};

/* A warp's position in its ring of stages. */
template <int STAGES> struct ring {
    int stage;
    unsigned parity;
    __device__ void next(void)
    {
        stage++;
        if (stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* --- which tiles there are ---------------------------------------------------------------------------------------- */

/* A group's position: its index, its first row, and the number of its first tile. */
struct place {
    int index, first, tile;
};

/* A tile of c. Forward and dgrad: it begins at row `first`, and `rows` of its rows belong to the group. Wgrad: it sums
 * over these rows, and begins at row `row` of the group's matrix. */
struct tile {
    int matrix, first, rows, row, column;
};

/* Returns the group at place `before` in the order by size, largest first. With too many groups to sort, this is group
 * `before` itself. */
__device__ static inline int by_size(const int32_t *counts, int groups, int before)
{
    for (int e = 0; e < groups && groups <= SORTED_MOST; e++) {
        int larger = 0;
        for (int other = 0; other < groups; other++)
            larger += counts[other] > counts[e] || (counts[other] == counts[e] && other < e);
        if (larger == before)
            return e;
    }
    return before;
}

/* Moves p to the group that has row tile `number`. False: no group has it. */
__device__ static inline bool seek(const struct grouped_problem &g, struct place &p, int number)
{
    for (; p.index < (int)(g.parts * g.groups); p.index++) {
        const int rows = (int)rows_of(g, p.index, p.first), tiles = (rows + ROWS - 1) / ROWS;
        if (number < p.tile + tiles)
            return true;
        p.tile += tiles;
        p.first += rows;
    }
    return false;
}

/* Finds tile `number`; numbers must rise from call to call. False: no more tiles. from: position found so far. t.rows
 * 0: no tile has this number, or its group has no rows. */
template <int FORM>
__device__ static inline bool find_tile(const struct grouped_problem &g, int number, struct place &from, struct tile &t)
{
    const int across = (int)(g.n + layout<FORM>::columns - 1) / layout<FORM>::columns;
    if (is_wgrad(FORM)) {
        const int each = across * (int)((g.m + ROWS - 1) / ROWS), within = number % each;
        const int earlier = (int)((g.parts - 1) * g.groups);
        if (number / each >= g.groups)
            return false;
        t.matrix = by_size(g.counts + earlier, (int)g.groups, number / each);
        for (from = {}; from.index < earlier + t.matrix; from.index++)
            from.first += (int)rows_of(g, from.index, from.first);
        t.first = from.first;
        t.rows = (int)rows_of(g, from.index, from.first);
        t.row = within / across * ROWS;
        t.column = within % across * layout<FORM>::columns;
        return true;
    }
    const int band = number / (BAND * across) * BAND, within = number % (BAND * across);
    if (!seek(g, from, band))
        return false;
    struct place at = from;
    t.rows = 0;
    if (seek(g, at, band + within % BAND)) {
        const int before = (band + within % BAND - at.tile) * ROWS;
        t.matrix = at.index % (int)g.groups;
        t.first = at.first + before;
        t.rows = (int)rows_of(g, at.index, at.first) - before;
        t.row = 0;
        t.column = within / BAND * layout<FORM>::columns;
    }
    return true;
}

/* Returns the number of stages that a tile's sums need. */
template <int FORM> __device__ static inline int stages_of(const struct grouped_problem &g, const struct tile &t)
{
    const int depth = is_wgrad(FORM) ? t.rows : t.rows > 0 ? (int)g.k : 0;
    return (depth + DEPTH - 1) / DEPTH;
}

/* Columns of the tile that are computed. */
template <int FORM> __device__ static inline int width_of(const struct grouped_problem &g, const struct tile &t)
{
    typedef layout<FORM> L;
    const int left = ((int)g.n - t.column + L::least - 1) / L::least * L::least;
    return left < L::columns ? left : L::columns;
}

/* --- the loader --------------------------------------------------------------------------------------------------- */

template <int FORM>
__device__ static inline void load_tiles(char *memory, const tile_map *a, const tile_map *b,
                                         const struct grouped_problem &g)
{
    typedef layout<FORM> L;
    tile_barrier *const barriers = (tile_barrier *)(memory + L::barriers);
    struct ring<L::stages> ring = {
        0, 1
    };
    struct place from = {};
    struct tile t = {};
    for (int number = (int)blockIdx.x; find_tile<FORM>(g, number, from, t); number += (int)gridDim.x) {
        const int width = width_of<FORM>(g, t), stages = stages_of<FORM>(g, t);
        for (int i = 0; i < stages; i++, ring.next()) {
            tile_barrier *const filled = barriers + L::filled + ring.stage;
            char *const to = memory + ring.stage * L::stage;
            const int deep = i * DEPTH;
            barrier_wait(barriers + L::free + ring.stage, ring.parity);
            barrier_arrive_for(filled, (unsigned)(L::b + width * TILE_ROW_BYTES));
            if (is_wgrad(FORM)) {
                for (int j = 0; j < GROUPS; j++)
                    copy_tile(to + j * BOX_BYTES, a, filled, t.row + j * MMA_ROWS, t.first + deep, 0, 0);
            } else {
                copy_tile(to, a, filled, deep, t.first, 0, 0);
            }
            for (int j = 0; j < width; j += FORM == FORWARD ? L::least : TILE_COLUMNS) {
                const int row = is_wgrad(FORM) ? t.first + deep : deep;
                copy_tile(to + L::b + j * TILE_ROW_BYTES, b, filled, FORM == FORWARD ? deep : t.column + j,
                          FORM == FORWARD ? t.column + j : row, is_wgrad(FORM) ? 0 : t.matrix, 0);
            }
        }
    }
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* s = (add: s +) this group's 64 lines of a stage by the N lines of b. */
template <int FORM, int N> __device__ static inline void multiply_stage(float (&s)[N / 2], uint32_t stage, bool add)
{
    const uint32_t a = stage + threadIdx.x / MMA_THREADS * (MMA_ROWS * TILE_ROW_BYTES), b = stage + layout<FORM>::b;
#pragma unroll
    for (int i = 0; i < DEPTH / MMA_DEPTH; i++) {
        const int columns = i * MMA_DEPTH * 2, rows = i * MMA_DEPTH * TILE_ROW_BYTES;
        mma_tiles<is_wgrad(FORM), FORM != FORWARD>(
            s, is_wgrad(FORM) ? along_rows(a + rows, BOX_BYTES) : along_columns(a + columns),
            FORM != FORWARD ? along_rows(b + rows, BOX_BYTES) : along_columns(b + columns), i > 0 || add);
    }
}

/* Sets rows from `left` on of a stage to zero. Both groups of warps do it together, once in a block. */
__device__ static inline void clear_rows(char *stage, int left, int boxes, tile_barrier *cleared)
{
    const uint4 zero = {};
    const int pieces = (DEPTH - left) * (TILE_ROW_BYTES / 16);
    for (int i = 0; i < boxes; i++)
        for (int e = (int)threadIdx.x; e < pieces; e += LOADER)
            STORE_16(stage + i * BOX_BYTES + left * TILE_ROW_BYTES + e * 16, zero);
    fence_async();
    barrier_arrive(cleared);
    barrier_wait(cleared, 0);
}

/* --- c ------------------------------------------------------------------------------------------------------------ */

__device__ static inline void load_two(float (&x)[2], const float *from)
{
    const float2 two = *(const float2 *)from;
    x[0] = two.x, x[1] = two.y;
}
__device__ static inline void load_two(float (&x)[2], const bf16 *from)
{
    const uint32_t two = *(const uint32_t *)from, low = two << 16, high = two & 0xffff0000u;
    memcpy(&x[0], &low, 4);
    memcpy(&x[1], &high, 4);
}

/* s += the tile at c, which has `rows` rows and `columns` columns, a multiple of 8. */
template <int N, class CD>
__device__ static inline void add_tile(float (&s)[N / 2], const CD *c, int64_t ldc, int rows, int columns)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = own_row() + 8 * r;
        const CD *const from = c + (row < rows ? row * ldc : 0) + (int)threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float x[2] = {};
            if (row < rows && 8 * j < columns)
                load_two(x, from + 8 * j);
            s[4 * j + 2 * r] += x[0];
            s[4 * j + 2 * r + 1] += x[1];
        }
    }
}

template <int N>
__device__ static inline void store_tile(bf16 *c, const float (&s)[N / 2], int64_t ldc, int rows, int columns)
{
    const int lane = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = own_row() + 8 * r;
        bf16 *const to = c + row * ldc + 8 * lane;
#pragma unroll
        for (int j = 0; j < N / 32; j++) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = two_bf16(s[16 * j + 4 * i + 2 * r], s[16 * j + 4 * i + 2 * r + 1]);
            exchange_four(x);
            const uint4 piece = {x[0], x[1], x[2], x[3]};
            if (row < rows && 32 * j + 8 * lane < columns)
                STORE_16(to + 32 * j, piece);
        }
    }
}

/* Two threads exchange values of two rows, so that each stores four columns of one row. */
template <int N>
__device__ static inline void store_tile(float *c, const float (&s)[N / 2], int64_t ldc, int rows, int columns)
{
    const bool odd = threadIdx.x % 2;
    const int row = own_row() + (odd ? 8 : 0);
    float *const to = c + row * ldc + (int)threadIdx.x % 4 / 2 * 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float *const mine = s + 4 * j;
        const float x = __shfl_xor_sync(FULL_WARP, odd ? mine[0] : mine[2], 1);
        const float y = __shfl_xor_sync(FULL_WARP, odd ? mine[1] : mine[3], 1);
        const float four[4] = {odd ? x : mine[0], odd ? y : mine[1], odd ? mine[2] : x, odd ? mine[3] : y};
        uint4 piece;
        memcpy(&piece, four, sizeof piece);
        if (row < rows && 8 * j < columns)
            STORE_16(to + 8 * j, piece);
    }
}

/* --- the groups --------------------------------------------------------------------------------------------------- */

/* Forward and dgrad: makes a tile of N columns. */
template <int FORM, int N, class CD>
__device__ static inline void make_rows(char *memory, struct ring<layout<FORM>::stages> &ring, CD *c,
                                        const struct grouped_problem &g, const struct tile &t)
{
    typedef layout<FORM> L;
    tile_barrier *const barriers = (tile_barrier *)(memory + L::barriers);
    const uint32_t at = tile_address(memory);
    const int stages = stages_of<FORM>(g, t), columns = (int)g.n - t.column;
    float s[N / 2];
    int last = 0;
    for (int i = 0; i < stages; i++, ring.next()) {
        barrier_wait(barriers + L::filled + ring.stage, ring.parity);
        mma_fence();
        multiply_stage<FORM, N>(s, at + ring.stage * L::stage, i > 0);
        mma_commit();
        if (i > 0) { /* the products of the previous stage are over; the products of this stage continue */
            mma_wait<1>();
            release(barriers + L::free + last);
        }
        last = ring.stage;
    }
    mma_wait<0>(s);
    release(barriers + L::free + last);
    c += t.first * g.ldc + t.column;
    if (g.add)
        add_tile<N>(s, c, g.ldc, t.rows, columns);
    store_tile<N>(c, s, g.ldc, t.rows, columns);
}

/* Wgrad: makes a tile from sums of `split` rows, one sum after the other. */
template <int FORM>
__device__ static inline void make_gradient(char *memory, struct ring<layout<FORM>::stages> &ring, float *c,
                                            const struct grouped_problem &g, const struct tile &t)
{
    typedef layout<FORM> L;
    enum { N = L::columns };
    tile_barrier *const barriers = (tile_barrier *)(memory + L::barriers);
    const uint32_t at = tile_address(memory);
    const int stages = stages_of<FORM>(g, t), each = (int)g.split / DEPTH;
    const int rows = (int)g.m - t.row, columns = (int)g.n - t.column;
    float total[N / 2] = {};
    c += (t.matrix * g.m + t.row) * g.ldc + t.column;
    for (int begin = 0; begin < stages; begin += each) {
        const int end = stages - begin < each ? stages : begin + each;
        float s[N / 2];
        int last = 0;
        for (int i = begin; i < end; i++, ring.next()) {
            const int left = t.rows - i * DEPTH;
            barrier_wait(barriers + L::filled + ring.stage, ring.parity);
            if (left < DEPTH)
                clear_rows(memory + ring.stage * L::stage, left, GROUPS + N / TILE_COLUMNS, barriers + L::cleared);
            mma_fence();
            multiply_stage<FORM, N>(s, at + ring.stage * L::stage, i > begin);
            mma_commit();
            if (i > begin) {
                mma_wait<1>();
                release(barriers + L::free + last);
            }
            last = ring.stage;
        }
        mma_wait<0>(s);
        release(barriers + L::free + last);
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            total[i] += s[i];
        if (g.add && begin == 0)
            add_tile<N>(total, c, g.ldc, rows, columns);
    }
    store_tile<N>(c, total, g.ldc, rows, columns);
}

template <int FORM, class CD>
__device__ static inline void make_tiles(char *memory, CD *c, const struct grouped_problem &g)
{
    struct ring<layout<FORM>::stages> ring = {
        0, 0
    };
    struct place from = {};
    struct tile t = {};
    for (int number = (int)blockIdx.x; find_tile<FORM>(g, number, from, t); number += (int)gridDim.x) {
        if (t.rows == 0 && (!is_wgrad(FORM) || g.add))
            continue;
        if constexpr (is_wgrad(FORM)) {
            make_gradient<FORM>(memory, ring, c, g, t);
        } else if (width_of<FORM>(g, t) == 256) {
            make_rows<FORM, 256>(memory, ring, c, g, t);
        } else {
            make_rows<FORM, 128>(memory, ring, c, g, t);
        }
    }
}

template <int FORM, class CD>
__global__ static void __launch_bounds__(BLOCK, 1)
    hopper_grouped(const __grid_constant__ tile_map a, const __grid_constant__ tile_map b, CD *c,
                   const __grid_constant__ struct grouped_problem g)
{
#if HOPPER_CODE
    typedef layout<FORM> L;
    DYNAMIC_SHARED(shared);
    char *const memory = tile_memory(shared);
    tile_barrier *const barriers = (tile_barrier *)(memory + L::barriers);
    if (threadIdx.x == 0) {
        for (int i = 0; i < L::stages; i++) {
            barrier_init(barriers + L::filled + i, 1);
            barrier_init(barriers + L::free + i, LOADER / WARP);
        }
        barrier_init(barriers + L::cleared, LOADER);
        fence_async();
    }
    __syncthreads();
    if (threadIdx.x >= LOADER) {
        give_registers<LOADER_REGISTERS>();
        if (threadIdx.x == LOADER)
            load_tiles<FORM>(memory, &a, &b, g);
        else if (blockIdx.x == 0 && threadIdx.x == LOADER + WARP)
            check_counts(g);
    } else {
        take_registers<GROUP_REGISTERS>();
        make_tiles<FORM>(memory, c, g);
    }
#endif
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

static int64_t over(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

/* Makes the map of matrices of rows by columns that lie one after the other. */
static bool make_map(tile_map *ret, const void *at, int64_t ld, int64_t matrices, int64_t rows, int64_t columns,
                     int box_rows)
{
    const struct tile_tensor x = {at, (int)columns, (int)rows, (int)matrices, 1, ld, rows * ld, matrices * rows * ld};
    return tile_map_make(ret, &x, box_rows);
}

/* Forward and dgrad: as many blocks as the GPU runs at a time; each makes tiles in turn. Wgrad: a tile's time depends
 * on its group's size. So each tile has a block, which starts when another ends; tiles of the largest group come
 * first. */
static int64_t blocks_for(int64_t tiles, bool ta)
{
    int device = 0, processors = 0;
    if (ta || cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess || processors < 1)
        return tiles;
    return tiles < processors ? tiles : processors;
}

/* The largest possible number of tiles. */
template <int FORM> static int64_t most_tiles(const struct grouped_problem &g)
{
    const int64_t across = over(g.n, layout<FORM>::columns);
    return is_wgrad(FORM) ? g.groups * over(g.m, ROWS) * across
                          : over(g.m / ROWS + g.parts * g.groups, BAND) * BAND * across;
}

template <int FORM, class CD>
static int launch(void *stream, const struct matmul_args *a, const struct grouped_problem &g)
{
    typedef layout<FORM> L;
    const int64_t tiles = most_tiles<FORM>(g);
    const int bytes = L::bytes + TILE_ALIGN;
    auto kernel = hopper_grouped<FORM, CD>;
    tile_map of_a, of_b;
    if (tiles > 1 << 30 || !make_map(&of_a, a->a, g.lda, 1, g.ta ? g.k : g.m, g.ta ? g.m : g.k, g.ta ? DEPTH : ROWS) ||
        !make_map(&of_b, a->b, g.ldb, g.ta ? 1 : g.groups, g.tb ? g.n : g.k, g.tb ? g.k : g.n, g.tb ? L::least : DEPTH))
        return CUDA_NOT_SERVED;
    const int e = (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e != 0 ? e
                  : LAUNCH(kernel, (unsigned)blocks_for(tiles, g.ta), BLOCK, bytes, stream, of_a, of_b, (CD *)a->c, g);
}

/* Whether each row begins at a multiple of 16 bytes, and all rows are within a copy's reach. */
static bool in_reach(const void *x, int64_t ld, int64_t bytes, int64_t rows)
{
    const int64_t most = (int64_t)1 << 40;
    return (address(x) | (uintptr_t)(ld * bytes)) % 16 == 0 && ld < most / bytes / rows;
}

static bool served(const struct matmul_args *a, const struct grouped_problem &g)
{
    const int64_t most = INT32_MAX / 2;
    return g.m > 0 && g.k > 0 && g.m < most && g.n < most && g.k < most && g.parts * g.groups < most && g.n % 8 == 0 &&
           g.split % DEPTH == 0 && in_reach(a->a, g.lda, 2, g.ta ? g.k : g.m) &&
           in_reach(a->b, g.ldb, 2, g.ta ? g.k : g.groups * (g.tb ? g.n : g.k)) &&
           in_reach(a->c, g.ldc, (int64_t)dtype_bytes(a->c_dt), g.ta ? g.groups * g.m : g.m);
}

/* Whether narrow tiles are better. They read more for each product, but fewer of their columns may lie beyond the
 * edge. */
static bool narrow_serves(int64_t n)
{
    const int64_t narrow = layout<WGRAD_NARROW>::columns, wide = layout<WGRAD>::columns;
    return over(n, narrow) * narrow * 8 < over(n, wide) * wide * 7;
}

int cuda_matmul_grouped_hopper(void *stream, const struct matmul_args *a, const struct grouped_problem *problem)
{
    const struct grouped_problem &g = *problem;
    if (!served(a, g))
        return CUDA_NOT_SERVED;
    if (g.ta)
        return narrow_serves(g.n) ? launch<WGRAD_NARROW, float>(stream, a, g) : launch<WGRAD, float>(stream, a, g);
    if (g.tb)
        return TYPED(a->c_dt, (launch<FORWARD, T>(stream, a, g)));
    return TYPED(a->c_dt, (launch<DGRAD, T>(stream, a, g)));
}
