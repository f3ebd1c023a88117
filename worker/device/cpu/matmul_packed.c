/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_packed.c - products of any layout, after Goto and van de Geijn, "Anatomy of high-performance matrix
 * multiplication" (2008). The product is computed for WIDE columns and DEPTH of k at a time. Both operands are copied
 * into fp32 panels, which the inner loop reads in order. b's panels are made once for all threads, a's by the thread
 * that uses them. */
#include <immintrin.h>
#include <omp.h>
#include <stdalign.h>
#include <string.h>

#include "base/bf16.h"
#include "base/progress.h"
#include "worker/device/cpu/matmul_packed.h"

#define PACKED_TARGET __attribute__((target("avx2,fma")))
#define PACKED_INLINE static inline __attribute__((always_inline, target("avx2,fma")))

/* A tile of c, ROWS x two vectors, stays in registers. BLOCK_ROWS x DEPTH of a stay in the second-level cache, a panel
 * of b in the first, WIDE x DEPTH of b in the last. Blocks of columns are small enough that each thread has JOBS of
 * them. */
enum {
    LANES = 8,
    ROWS = 6,
    COLS = 2 * LANES,
    DEPTH = 384,
    BLOCK_ROWS = 20 * ROWS,
    BLOCK_COLS = 32 * COLS,
    WIDE = 64 * COLS,
    PANELS = 2, /* blocks of b: a block is packed while other threads read the previous block */
    JOBS = 8,
    FEW = 4
};
enum { WORK = 1 << 17 }; /* multiply-adds that justify one more thread */

static int64_t panel_floats(const struct matmul_packed *z)
{
    return (MIN(z->n, WIDE) + COLS - 1) / COLS * COLS * DEPTH;
}

size_t matmul_packed_scratch_bytes(const struct matmul_packed *z, int threads)
{
    const int64_t sums = z->c_dt == DTYPE_BF16 ? z->m * MIN(z->n, WIDE) : 0;
    return (size_t)(PANELS * panel_floats(z) + threads * (BLOCK_ROWS * DEPTH + LANES) + sums) * sizeof(float);
}

PACKED_INLINE __m256 load_lanes(const void *p, int64_t i, const enum dtype dt)
{
    if (dt == DTYPE_F32)
        return _mm256_loadu_ps((const float *)p + i);
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
PACKED_INLINE float load_one(const void *p, int64_t i, const enum dtype dt)
{
    return dt == DTYPE_F32 ? ((const float *)p)[i] : bf16_to_f32(((const uint16_t *)p)[i]);
}

/* Transposes 8 x 8 elements. */
PACKED_INLINE void transpose(__m256 v[LANES])
{
    __m256 t[LANES], u[LANES];
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < LANES / 2; i++) {
        v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* Steps [from, from + depth) of k. */
struct steps {
    int64_t from, depth;
};

/* Lines of an operand along k: element (i,p) is from[first + i * line + p * step]. line or step is 1. */
struct lines {
    const void *from;
    int64_t first, line, step, n;
};

/* Packs a panel of `width` lines: to[p * width + i] = element (i,p). Lines that do not exist are zero. Up to 7 floats
 * after the panel are written. */
PACKED_INLINE void pack(float *to, struct lines x, int64_t depth, const int width, const enum dtype dt)
{
    int64_t p = 0;
    if (x.step == 1) {
        for (int64_t group = 0; group < width; group += LANES)
            for (p = 0; p + LANES <= depth; p += LANES) {
                __m256 v[LANES];
                for (int i = 0; i < LANES; i++)
                    v[i] = group + i < x.n ? load_lanes(x.from, x.first + (group + i) * x.line + p, dt)
                                           : _mm256_setzero_ps();
                transpose(v);
                for (int i = 0; i < LANES; i++)
                    _mm256_storeu_ps(to + (p + i) * width + group, v[i]);
            }
    } else if (x.line == 1 && x.n == width && width % LANES == 0) {
        for (; p < depth; p++)
            for (int i = 0; i < width; i += LANES)
                _mm256_storeu_ps(to + p * width + i, load_lanes(x.from, x.first + p * x.step + i, dt));
    }
    for (; p < depth; p++)
        for (int i = 0; i < width; i++)
            to[p * width + i] = i < x.n ? load_one(x.from, x.first + i * x.line + p * x.step, dt) : 0.0f;
}

PACKED_TARGET static void pack_rows(float *to, const struct matmul_packed *z, int64_t row, int64_t rows,
                                    struct steps of)
{
    const struct lines x = {z->a, row * z->a_row + of.from * z->a_col, z->a_row, z->a_col, rows};
    if (z->ab_dt == DTYPE_F32)
        pack(to, x, of.depth, ROWS, DTYPE_F32);
    else
        pack(to, x, of.depth, ROWS, DTYPE_BF16);
}

/* Packs one thread's share of the panels of b. */
PACKED_TARGET static void pack_b(const struct matmul_packed *z, struct steps of, float *b, int64_t thread,
                                 int64_t threads)
{
    const int64_t panels = (z->n + COLS - 1) / COLS;
    for (int64_t j = panels * thread / threads * COLS; j < panels * (thread + 1) / threads * COLS; j += COLS) {
        const struct lines x = {z->b, j * z->b_col + of.from * z->b_row, z->b_col, z->b_row, MIN(COLS, z->n - j)};
        if (z->ab_dt == DTYPE_F32)
            pack(b + j * DEPTH, x, of.depth, COLS, DTYPE_F32);
        else
            pack(b + j * DEPTH, x, of.depth, COLS, DTYPE_BF16);
    }
}

/* A tile of c. */
struct tile {
    float *c;
    int64_t ldc, rows, cols;
    bool add; /* add to the old contents of c */
};

/* The tile = or += a panel of a times a panel of b. */
PACKED_TARGET static void tile(struct tile to, const float *a, const float *b, int64_t depth)
{
    const int64_t ldc = to.ldc, rows = to.rows, cols = to.cols;
    const bool add = to.add;
    float *c = to.c;
    __m256 acc[ROWS][2];
    /* prefetches c, which is needed when the sums are ready; a row may lie in two cache lines */
    for (int64_t i = 0; i < rows; i++) {
        _mm_prefetch((const char *)(c + i * ldc), _MM_HINT_T0);
        _mm_prefetch((const char *)(c + i * ldc + cols - 1), _MM_HINT_T0);
    }
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
#pragma GCC unroll 4
    for (int64_t p = 0; p < depth; p++, a += ROWS, b += COLS) {
        const __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + LANES);
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; i++) {
            const __m256 x = _mm256_broadcast_ss(a + i);
            acc[i][0] = _mm256_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, b1, acc[i][1]);
        }
    }
    if (rows == ROWS && cols == COLS) {
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; i++, c += ldc) {
            _mm256_storeu_ps(c, add ? _mm256_add_ps(_mm256_loadu_ps(c), acc[i][0]) : acc[i][0]);
            _mm256_storeu_ps(c + LANES, add ? _mm256_add_ps(_mm256_loadu_ps(c + LANES), acc[i][1]) : acc[i][1]);
        }
        return;
    }
    alignas(32) float part[ROWS][COLS];
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++) {
        _mm256_store_ps(part[i], acc[i][0]);
        _mm256_store_ps(part[i] + LANES, acc[i][1]);
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            c[i * ldc + j] = add ? c[i * ldc + j] + part[i][j] : part[i][j];
}

/* Computes one thread's share of a block of k. a's panels are packed again only when the next block of rows begins. */
PACKED_TARGET static void share(const struct matmul_packed *z, struct steps of, const float *b, float *a,
                                int64_t thread, int64_t threads)
{
    const int64_t row_tiles = (z->m + ROWS - 1) / ROWS, col_tiles = (z->n + COLS - 1) / COLS;
    const int64_t row_blocks = (z->m + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const int64_t col_blocks =
        MIN(col_tiles, MAX((z->n + BLOCK_COLS - 1) / BLOCK_COLS, (JOBS * threads + row_blocks - 1) / row_blocks));
    const int64_t jobs = row_blocks * col_blocks;
    int64_t packed = -1;

    for (int64_t job = jobs * thread / threads; job < jobs * (thread + 1) / threads; job++) {
        const int64_t y = job / col_blocks, x = job % col_blocks;
        const int64_t row = row_tiles * y / row_blocks * ROWS,
                      row_end = MIN(row_tiles * (y + 1) / row_blocks * ROWS, z->m);
        const int64_t col = col_tiles * x / col_blocks * COLS,
                      col_end = MIN(col_tiles * (x + 1) / col_blocks * COLS, z->n);
        for (int64_t i = row; i < row_end && packed != y; i += ROWS)
            pack_rows(a + (i - row) * DEPTH, z, i, MIN(ROWS, row_end - i), of);
        packed = y;
        for (int64_t j = col; j < col_end; j += COLS)
            for (int64_t i = row; i < row_end; i += ROWS)
                tile((struct tile){(float *)z->c + i * z->ldc + j, z->ldc, MIN(ROWS, row_end - i),
                                   MIN(COLS, col_end - j), z->accumulate || of.from > 0},
                     a + (i - row) * DEPTH, b + j * DEPTH, of.depth);
    }
}

/* Computes LANES columns from j on, for few rows of c and a column-major b, as when a model generates token by token. b
 * is read once, so it is transposed in registers and not packed. Each sum has the same order as in tile(). */
PACKED_INLINE void few_rows(const struct matmul_packed *z, int64_t j, const int rows, const enum dtype dt)
{
    const int64_t cols = MIN(LANES, z->n - j);
    float *const to = (float *)z->c + j;
    __m256 sum[FEW] = {_mm256_setzero_ps()};

    for (int64_t from = 0; from < z->k; from += DEPTH) {
        const int64_t end = MIN(from + DEPTH, z->k);
        __m256 acc[FEW];
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            acc[i] = _mm256_setzero_ps();
        for (int64_t p = from; p < end; p += LANES) {
            const int64_t steps = MIN(LANES, end - p);
            alignas(32) float part[LANES][LANES];
            __m256 v[LANES];
            if (steps < LANES) {
                memset(part, 0, sizeof part);
                for (int64_t c = 0; c < cols; c++)
                    for (int64_t q = 0; q < steps; q++)
                        part[c][q] = load_one(z->b, (j + c) * z->b_col + p + q, dt);
            }
#pragma GCC unroll 8
            for (int c = 0; c < LANES; c++)
                v[c] = steps < LANES ? _mm256_load_ps(part[c])
                       : c < cols    ? load_lanes(z->b, (j + c) * z->b_col + p, dt)
                                     : _mm256_setzero_ps();
            transpose(v);
#pragma GCC unroll 8
            for (int q = 0; q < LANES; q++) {
                if (q >= steps)
                    break;
#pragma GCC unroll 4
                for (int i = 0; i < rows; i++)
                    acc[i] = _mm256_fmadd_ps(_mm256_set1_ps(load_one(z->a, i * z->a_row + (p + q) * z->a_col, dt)),
                                             v[q], acc[i]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++)
            sum[i] = from > 0 ? _mm256_add_ps(sum[i], acc[i]) : acc[i];
        if (from == 0 && z->accumulate)
            for (int i = 0; i < rows; i++) {
                alignas(32) float old[LANES] = {0};
                memcpy(old, to + i * z->ldc, (size_t)cols * sizeof(float));
                sum[i] = _mm256_add_ps(_mm256_load_ps(old), sum[i]);
            }
    }
    for (int i = 0; i < rows; i++) {
        alignas(32) float whole[LANES];
        _mm256_store_ps(whole, sum[i]);
        memcpy(to + i * z->ldc, whole, (size_t)cols * sizeof(float));
    }
}

PACKED_INLINE void few_rows_of(const struct matmul_packed *z, int64_t j, int64_t end, const enum dtype dt)
{
    for (; j < end; j += LANES) {
        if (z->m == 1)
            few_rows(z, j, 1, dt);
        else if (z->m == 2)
            few_rows(z, j, 2, dt);
        else if (z->m == 3)
            few_rows(z, j, 3, dt);
        else
            few_rows(z, j, 4, dt);
    }
}

PACKED_TARGET static void few_rows_range(const struct matmul_packed *z, int64_t j, int64_t end)
{
    if (z->ab_dt == DTYPE_F32)
        few_rows_of(z, j, end, DTYPE_F32);
    else
        few_rows_of(z, j, end, DTYPE_BF16);
}

void matmul_packed_run(const struct matmul_packed *whole, int threads, float *scratch)
{
    float *const b = scratch, *const a = b + PANELS * panel_floats(whole),
                 *const sums = a + threads * (BLOCK_ROWS * DEPTH + LANES);
    const bool rounds = whole->c_dt == DTYPE_BF16;

    titan_assert((uintptr_t)scratch % 32 == 0 && whole->k > 0 && (!rounds || whole->ab_dt == DTYPE_BF16));
#pragma omp parallel num_threads(whole->m *MIN(WIDE, whole->n) * whole->k < WORK ? 1 : threads)
    for (int64_t col = 0, block = 0; col < whole->n; col += WIDE) {
        /* the product of at most WIDE columns in fp32: its sums go to c itself, or are rounded into c later */
        struct matmul_packed z = *whole;
        z.n = MIN(WIDE, whole->n - col);
        z.b = (const char *)whole->b + col * whole->b_col * (int64_t)dtype_bytes(whole->ab_dt);
        z.c = rounds ? sums : (float *)whole->c + col;
        z.ldc = rounds ? MIN(WIDE, whole->n) : whole->ldc;
        z.c_dt = DTYPE_F32;
        const int64_t thread = omp_get_thread_num(), of = omp_get_num_threads();
        const int64_t groups = z.m <= FEW && z.b_row == 1 ? (z.n + LANES - 1) / LANES : 0;
        uint16_t *const c = (uint16_t *)whole->c + col;

        if (rounds) { /* until the next barrier a thread uses only the rows that it rounds below */
            for (int64_t i = z.m * thread / of; i < z.m * (thread + 1) / of && z.accumulate; i++)
                cpu_cast_bf16_f32(sums + i * z.ldc, c + i * whole->ldc, z.n);
#pragma omp barrier
        }
        few_rows_range(&z, groups * thread / of * LANES, groups * (thread + 1) / of * LANES);
        for (int64_t from = 0; from < z.k && groups == 0; from += DEPTH, block++) {
            const struct steps steps = {from, MIN(DEPTH, z.k - from)};
            float *const panel = b + block % PANELS * panel_floats(whole);
            progress_action();
            pack_b(&z, steps, panel, thread, of);
#pragma omp barrier
            share(&z, steps, panel, a + thread * (BLOCK_ROWS * DEPTH + LANES), thread, of);
        }
        if (rounds) {
#pragma omp barrier
            for (int64_t i = z.m * thread / of; i < z.m * (thread + 1) / of; i++)
                cpu_cast_f32_bf16(c + i * whole->ldc, sums + i * z.ldc, z.n);
        }
    }
}
