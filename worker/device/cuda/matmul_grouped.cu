/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_grouped.cu - products of packed rows, each group with a matrix of its own. Only the device knows how many rows
 * a group has. So a launch has blocks for the most tiles that are possible, and each block finds its group from the
 * counts.
 *
 * A block of 16 x 16 threads makes a tile of 64 x 64 elements, from stretches of 16 along the sum. Thread (ty, tx) has
 * the elements at (ty + 16 i, tx + 16 j). One thread owns an element and adds in one order: the same bits every time. A
 * weight gradient adds sums of `split` rows (a multiple of 16), so the bits do not depend on whether all rows come at
 * once. */
#include "worker/device/cuda/grouped.cuh"

#define SIDE 16
#define EACH 4
#define TILE (SIDE * EACH)
#define DEPTH 16

/* Rows of one group of one part. Wrong counts are cut to the rows that the buffers hold. index: the group's place in
 * counts. */
struct group {
    int64_t index, first, rows;
};

/* Finds the group of row tile *tile; *tile becomes the tile's number in the group. False: the tile is beyond the
 * last. */
__device__ static inline bool find_by_tile(const struct grouped_problem &g, int64_t *tile, struct group *ret)
{
    struct group at = {};
    for (; at.index < g.parts * g.groups; at.index++) {
        at.rows = rows_of(g, at.index, at.first);
        const int64_t tiles = (at.rows + TILE - 1) / TILE;
        if (*tile < tiles) {
            *ret = at;
            return true;
        }
        *tile -= tiles;
        at.first += at.rows;
    }
    return false;
}

__device__ static inline struct group find_by_index(const struct grouped_problem &g, int64_t index)
{
    struct group at = {};
    for (; at.index < index; at.index++)
        at.first += rows_of(g, at.index, at.first);
    at.rows = rows_of(g, index, at.first);
    return at;
}

/* Loads lines [first, first+TILE) of the stretch from `deep` into to (DEPTH, TILE+1), zeros beyond lines and depth.
 * Element (line, deep) of an operand lies at line * across + deep * along; one of the two strides is 1. */
template <class T>
__device__ static inline void load_stretch(float (*to)[TILE + 1], const T *from, int64_t across, int64_t along,
                                           int64_t first, int64_t lines, int64_t deep, int64_t depth)
{
    for (int e = (int)threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        /* neighbouring threads read neighbouring elements */
        const int line = along == 1 ? e / DEPTH : e % TILE, p = along == 1 ? e % DEPTH : e / TILE;
        const bool there = first + line < lines && deep + p < depth;
        to[p][line] = there ? num_load(from + (first + line) * across + (deep + p) * along) : 0.0f;
    }
}

template <class AB, class CD>
__global__ static void __launch_bounds__(THREADS)
    matmul_grouped(CD *c, const AB *a, const AB *b, struct grouped_problem g)
{
    __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
    const int ty = (int)threadIdx.x / SIDE, tx = (int)threadIdx.x % SIDE;
    int64_t row_tile = blockIdx.x;
    struct group group = {};
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0)
        check_counts(g);
    if (g.ta)
        group = find_by_index(g, (g.parts - 1) * g.groups + blockIdx.z);
    else if (!find_by_tile(g, &row_tile, &group))
        return; /* a whole block returns together */
    const int64_t row = row_tile * TILE, column = (int64_t)blockIdx.y * TILE;
    const int64_t rows = g.ta ? g.m : group.rows, depth = g.ta ? group.rows : g.k;
    const int64_t matrix = group.index % g.groups, split = g.ta ? g.split : depth;
    a += group.first * g.lda;
    b += g.ta ? group.first * g.ldb : matrix * (g.tb ? g.n : g.k) * g.ldb;
    c += (g.ta ? matrix * g.m : group.first) * g.ldc;

    int64_t deep = 0; /* depth that is already summed */
    do {              /* runs once at depth 0, to write zeros */
        const int64_t begin = deep, end = depth - begin < split ? depth : begin + split;
        float sum[EACH][EACH] = {};
        for (; deep < end; deep += DEPTH) {
            __syncthreads(); /* waits for the readers of the last stretch */
            load_stretch(as, a, g.ta ? 1 : g.lda, g.ta ? g.lda : 1, row, rows, deep, end);
            load_stretch(bs, b, g.tb ? g.ldb : 1, g.tb ? 1 : g.ldb, column, g.n, deep, end);
            __syncthreads();
#pragma unroll
            for (int p = 0; p < DEPTH; p++)
#pragma unroll
                for (int i = 0; i < EACH; i++)
#pragma unroll
                    for (int j = 0; j < EACH; j++)
                        sum[i][j] += as[p][ty + SIDE * i] * bs[p][tx + SIDE * j];
        }
        for (int i = 0; i < EACH; i++) {
            for (int j = 0; j < EACH; j++) {
                const int64_t y = row + ty + SIDE * i, x = column + tx + SIDE * j;
                if (y < rows && x < g.n)
                    num_store(c + y * g.ldc + x, sum[i][j] + (g.add || begin > 0 ? num_load(c + y * g.ldc + x) : 0.0f));
            }
        }
    } while (deep < depth);
}

int cuda_matmul_grouped(void *stream, const struct matmul_args *a, bool hopper, struct fault_words fault)
{
    struct grouped_problem g = {};
    g.ta = a->ta, g.tb = a->tb, g.add = a->beta == 1.0f;
    g.counts = a->counts;
    g.groups = a->groups, g.parts = a->parts;
    g.m = a->m, g.n = a->n, g.k = a->k, g.lda = a->lda, g.ldb = a->ldb, g.ldc = a->ldc;
    g.split = EXPERT_SPLIT;
    g.fault = fault;
    const int e = hopper && a->ab_dt == DTYPE_BF16 ? cuda_matmul_grouped_hopper(stream, a, &g) : CUDA_NOT_SERVED;
    if (e != CUDA_NOT_SERVED)
        return e;
    const int64_t most =
        g.ta ? (g.m + TILE - 1) / TILE : g.m / TILE + g.parts * g.groups; /* each group may end in a partial tile */
    const dim3 grid((unsigned)most, (unsigned)((g.n + TILE - 1) / TILE), g.ta ? (unsigned)g.groups : 1u);
    if (a->ab_dt != DTYPE_BF16) {
        auto kernel = matmul_grouped<float, float>;
        return LAUNCH(kernel, grid, THREADS, 0, stream, (float *)a->c, (const float *)a->a, (const float *)a->b, g);
    }
    if (a->c_dt == DTYPE_BF16) {
        auto kernel = matmul_grouped<bf16, bf16>;
        return LAUNCH(kernel, grid, THREADS, 0, stream, (bf16 *)a->c, (const bf16 *)a->a, (const bf16 *)a->b, g);
    }
    auto kernel = matmul_grouped<bf16, float>;
    return LAUNCH(kernel, grid, THREADS, 0, stream, (float *)a->c, (const bf16 *)a->a, (const bf16 *)a->b, g);
}
