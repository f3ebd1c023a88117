/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_i8.c - products in eight-bit integers (struct int8_product). a's rows become codes along k, b's columns become
 * panels of 32, and each tile of sums is scaled while it is in the first cache. */
#include <stdalign.h>

#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/gemm_i8.h"
#include "worker/device/cpu/matmul.h"

enum {
    ROWS = GEMM_I8_ROWS,
    COLS = GEMM_I8_COLS,
    GROUP = 4,                /* elements along k that lie side by side in a panel */
    PANELS_BYTES = 384 << 10, /* panels that stay in the second-level cache while rows run */
    BLOCK_ROWS = 10 * ROWS,   /* rows of a job */
    JOB_WORK = 1 << 18        /* multiply-adds that justify one more thread */
};

struct i8_args {
    struct product_shape z;
    const void *a, *b;
    void *c;
    bool b_lines;
    char *work;
};

/* The operands as integers, and how they are scaled. Lines are a's rows and b's columns. */
struct codes {
    struct i8_args all;
    enum gemm_i8_way way;
    uint8_t *a;           /* (m up to 12, lda): codes + GEMM_I8_OFFSET */
    int8_t *b;            /* panels (n up to 32 / 32, depth / 4, 32, 4) */
    uint32_t *largest;    /* (max(n,k)): bits of the largest magnitudes of b's lines, or of its rows in memory */
    float *by;            /* (n): factor of b's columns */
    float *a_one, *b_one; /* (m), (n): what a code of 1 stands for */
    int32_t *offset;      /* (n up to 32): what the offset of a's codes adds to the sums of a column */
    int64_t lda, depth;   /* depth: k up to a multiple of 4 */
    int64_t panels, group, groups, blocks; /* panels of b, in groups; blocks of rows */
};

/* --- codes -------------------------------------------------------------------------------------------------------- */

/* The bits of magnitudes sort like these, and those of a NaN come last. */
CPU_INLINE uint32_t row_largest(const void *x, int64_t n, const enum dtype dt)
{
    uint32_t most = 0;
    for (int64_t j = 0; j < n; j++) {
        const uint32_t bits = f32_bits(load_as_f32(x, j, dt)) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

/* The factor that makes codes of elements. */
static float factor_of(uint32_t largest)
{
    const double most = (double)f32_from_bits(largest);
    return (float)(127.0 / (most < INT8_LEAST ? INT8_LEAST : most));
}

/* The nearest integer, ties to even, as adding 1.5 * 2^23 rounds to one. Its bits hold it in two's complement. */
CPU_INLINE uint8_t code_of(float x, float by)
{
    float v = x * by;
    v = v < 127.0f ? v : 127.0f;
    v = v > -127.0f ? v : -127.0f;
    return (uint8_t)f32_bits(v + 12582912.0f);
}

CPU_INLINE void rows_of_a(const struct codes *g, int64_t begin, int64_t end, const enum dtype dt)
{
    const struct product_shape *const z = &g->all.z;
    for (int64_t i = begin; i < end; i++) {
        const void *const restrict src = at(g->all.a, i * z->lda, dt);
        uint8_t *const restrict dst = g->a + i * g->lda;
        const float by = factor_of(row_largest(src, z->k, dt));
        for (int64_t j = 0; j < z->k; j++)
            dst[j] = code_of(load_as_f32(src, j, dt), by) ^ GEMM_I8_OFFSET;
        for (int64_t j = z->k; j < g->depth; j++)
            dst[j] = GEMM_I8_OFFSET;
        g->a_one[i] = 1.0f / by;
    }
}

/* Largest magnitudes of b's rows in memory. */
CPU_INLINE void rows_of_b(const struct codes *g, int64_t begin, int64_t end, const enum dtype dt)
{
    const struct product_shape *const z = &g->all.z;
    for (int64_t i = begin; i < end; i++)
        g->largest[i] = row_largest(at(g->all.b, i * z->ldb, dt), z->tb ? z->k : z->n, dt);
}

/* Largest magnitudes of b's columns in memory. */
CPU_INLINE void columns_of_b(const struct codes *g, int64_t begin, int64_t end, const enum dtype dt)
{
    const struct product_shape *const z = &g->all.z;
    uint32_t *const restrict largest = g->largest;
    for (int64_t j = begin; j < end; j++)
        largest[j] = 0;
    for (int64_t p = 0; p < z->k; p++) {
        const void *const restrict x = at(g->all.b, p * z->ldb, dt);
        for (int64_t j = begin; j < end; j++) {
            const uint32_t bits = f32_bits(load_as_f32(x, j, dt)) & 0x7fffffffu;
            largest[j] = bits > largest[j] ? bits : largest[j];
        }
    }
}

/* A panel of columns that are rows in memory: sixteen columns by sixteen groups at a time, through the first cache. */
CPU_INLINE void panel_of_rows(const struct codes *g, int64_t panel, uint32_t *restrict to, const enum dtype dt)
{
    enum { SIDE = 16 };
    const struct product_shape *const z = &g->all.z;
    const int64_t groups = g->depth / GROUP;
    for (int64_t col = 0; col < COLS; col += SIDE)
        for (int64_t from = 0; from < groups; from += SIDE) {
            alignas(64) uint8_t codes[SIDE][SIDE * GROUP] = {{0}};
            uint32_t words[SIDE][SIDE];
            for (int64_t i = 0; i < SIDE && panel * COLS + col + i < z->n; i++) {
                const int64_t line = panel * COLS + col + i, first = from * GROUP;
                const void *const src = at(g->all.b, line * z->ldb + first, dt);
                const float by = g->by[line];
                if (first + SIDE * GROUP <= z->k)
                    for (int64_t j = 0; j < SIDE * GROUP; j++)
                        codes[i][j] = code_of(load_as_f32(src, j, dt), by);
                else
                    for (int64_t j = 0; j < z->k - first; j++)
                        codes[i][j] = code_of(load_as_f32(src, j, dt), by);
            }
            memcpy(words, codes, sizeof words);
            for (int64_t q = 0; q < MIN(SIDE, groups - from); q++)
                for (int64_t i = 0; i < SIDE; i++)
                    to[(from + q) * COLS + col + i] = words[i][q];
        }
}

/* A panel of columns that are columns in memory. */
CPU_INLINE void panel_of_columns(const struct codes *g, int64_t panel, uint32_t *restrict to, const enum dtype dt)
{
    const struct product_shape *const z = &g->all.z;
    const int64_t first = panel * COLS, cols = MIN(COLS, z->n - first);
    const float *const by = g->by + first;
    for (int64_t p = 0; p < g->depth; p += GROUP, to += COLS) {
        uint32_t words[COLS] = {0};
        for (int64_t q = 0; q < MIN(GROUP, z->k - p); q++) {
            const void *const src = at(g->all.b, (p + q) * z->ldb + first, dt);
            if (cols == COLS)
                for (int64_t j = 0; j < COLS; j++)
                    words[j] |= (uint32_t)code_of(load_as_f32(src, j, dt), by[j]) << 8 * q;
            else
                for (int64_t j = 0; j < cols; j++)
                    words[j] |= (uint32_t)code_of(load_as_f32(src, j, dt), by[j]) << 8 * q;
        }
        memcpy(to, words, sizeof words);
    }
}

CPU_INLINE void panels_of_b(const struct codes *g, int64_t begin, int64_t end, const enum dtype dt)
{
    for (int64_t panel = begin; panel < end; panel++) {
        int8_t *const to = g->b + panel * g->depth * COLS;
        int32_t sums[COLS] = {0};
        if (g->all.z.tb)
            panel_of_rows(g, panel, (uint32_t *)(void *)to, dt);
        else
            panel_of_columns(g, panel, (uint32_t *)(void *)to, dt);
        for (int64_t p = 0; p < g->depth; p += GROUP)
            for (int64_t j = 0; j < COLS; j++)
                for (int64_t q = 0; q < GROUP; q++)
                    sums[j] += to[p * COLS + j * GROUP + q];
        for (int64_t j = 0; j < COLS; j++)
            g->offset[panel * COLS + j] = sums[j] * GEMM_I8_OFFSET;
    }
}

#define CODES_RANGE(name)                                                                                              \
    CPU_KERNEL static void name##_range(const void *p, int64_t begin, int64_t end, int thread)                         \
    {                                                                                                                  \
        const struct codes *g = p;                                                                                     \
        (void)thread;                                                                                                  \
        if (g->all.z.ab_dt == DTYPE_BF16)                                                                              \
            name(g, begin, end, DTYPE_BF16);                                                                           \
        else                                                                                                           \
            name(g, begin, end, DTYPE_F32);                                                                            \
    }
CODES_RANGE(rows_of_a)
CODES_RANGE(rows_of_b)
CODES_RANGE(columns_of_b)
CODES_RANGE(panels_of_b)

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* Scales a tile's sums into c. The barrier keeps the addition to c from being fused with a product, as some instruction
 * sets could. */
CPU_KERNEL static void tile_finish(const struct codes *g, const int32_t *sums, int64_t row, int64_t col)
{
    const struct product_shape *const z = &g->all.z;
    const int64_t rows = MIN(ROWS, z->m - row), cols = MIN(COLS, z->n - col);
    const int32_t *const offset = g->offset + col;
    float one[COLS] = {0}, values[ROWS][COLS];

    memcpy(one, g->b_one + col, (size_t)cols * sizeof one[0]);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < COLS; j++)
            values[i][j] =
                (float)(int32_t)((uint32_t)sums[i * COLS + j] - (uint32_t)offset[j]) * g->a_one[row + i] * one[j];
    __asm__ volatile("" : : "r"(values) : "memory");
    for (int64_t i = 0; i < rows; i++) {
        void *const c = at_mut(g->all.c, (row + i) * z->ldc + col, (enum dtype)z->c_dt);
        if (z->c_dt == DTYPE_BF16)
            for (int64_t j = 0; j < cols; j++)
                store_f32_as(c, j, DTYPE_BF16,
                             z->accumulate ? load_as_f32(c, j, DTYPE_BF16) + values[i][j] : values[i][j]);
        else
            for (int64_t j = 0; j < cols; j++)
                store_f32_as(c, j, DTYPE_F32,
                             z->accumulate ? load_as_f32(c, j, DTYPE_F32) + values[i][j] : values[i][j]);
    }
}

/* The range counts jobs: a group of panels by a block of rows. */
static void jobs_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct codes *g = p;
    const struct product_shape *const z = &g->all.z;
    alignas(64) int32_t sums[ROWS * COLS];

    (void)thread;
    for (int64_t job = begin; job < end; job++) {
        const int64_t first = job / g->blocks * g->group, last = MIN(first + g->group, g->panels);
        const int64_t from = job % g->blocks * BLOCK_ROWS, to = MIN(from + BLOCK_ROWS, z->m);
        for (int64_t row = from; row < to; row += ROWS)
            for (int64_t panel = first; panel < last; panel++) {
                gemm_i8(g->way, &(struct gemm_i8){.a = g->a + row * g->lda,
                                                  .b = g->b + panel * g->depth * COLS,
                                                  .lda = g->lda,
                                                  .k = g->depth,
                                                  .sums = sums});
                tile_finish(g, sums, row, panel * COLS);
            }
    }
}

/* --- the product -------------------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}
static int64_t up_to(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}
/* Bytes between a's rows: an odd number of cache lines, so that the rows of a tile lie in different sets. */
static int64_t row_bytes(int64_t k)
{
    return (up_to(k, 64) / 64 | 1) * 64;
}

static void *cut(char **from, size_t bytes)
{
    void *const piece = *from;
    *from += aligned(bytes);
    return piece;
}

size_t cpu_matmul_i8_work_bytes(struct device *dev, enum dtype ab_dt, int64_t m, int64_t n, int64_t k)
{
    (void)dev, (void)ab_dt;
    return aligned((size_t)(up_to(m, ROWS) * row_bytes(k))) + aligned((size_t)(up_to(n, COLS) * up_to(k, GROUP))) +
           aligned((size_t)MAX(n, k) * sizeof(uint32_t)) + aligned((size_t)m * sizeof(float)) +
           2 * aligned((size_t)n * sizeof(float)) + aligned((size_t)up_to(n, COLS) * sizeof(int32_t));
}

static titan_status run_matmul_i8(const struct cpu_context *ctx, const void *p)
{
    struct codes g = {.all = *(const struct i8_args *)p, .way = gemm_i8_best(&ctx->dev->isa)};
    const struct product_shape *const z = &g.all.z;
    char *at = g.all.work;

    if (z->k == 0)
        return product_run(ctx, &(struct product){.shape = *z, .a = g.all.a, .b = g.all.b, .c = g.all.c});
    g.lda = row_bytes(z->k);
    g.depth = up_to(z->k, GROUP);
    g.panels = up_to(z->n, COLS) / COLS;
    g.blocks = up_to(z->m, BLOCK_ROWS) / BLOCK_ROWS;
    g.group = MAX(1, PANELS_BYTES / (g.depth * COLS));
    while (g.group > 1 && up_to(g.panels, g.group) / g.group * g.blocks < 4 * (int64_t)ctx->threads)
        g.group /= 2;
    g.groups = up_to(g.panels, g.group) / g.group;
    g.a = cut(&at, (size_t)(up_to(z->m, ROWS) * g.lda));
    g.b = cut(&at, (size_t)(g.panels * COLS * g.depth));
    g.largest = cut(&at, (size_t)MAX(z->n, z->k) * sizeof(uint32_t));
    g.a_one = cut(&at, (size_t)z->m * sizeof(float));
    g.b_one = cut(&at, (size_t)z->n * sizeof(float));
    g.by = cut(&at, (size_t)z->n * sizeof(float));
    g.offset = cut(&at, (size_t)(g.panels * COLS) * sizeof(int32_t));

    const int64_t rows = z->tb ? z->n : z->k, cols = z->tb ? z->k : z->n;
    cpu_for(ctx, z->m, 1 + (1 << 13) / z->k, rows_of_a_range, &g);
    if (g.all.b_lines && !z->tb)
        cpu_for(ctx, z->n, MAX(64, (1 << 14) / z->k), columns_of_b_range, &g);
    else
        cpu_for(ctx, rows, 1 + (1 << 14) / cols, rows_of_b_range, &g);
    for (int64_t i = 1; i < rows && !g.all.b_lines; i++) /* all of b has one scale */
        g.largest[0] = MAX(g.largest[0], g.largest[i]);
    for (int64_t j = 0; j < z->n; j++) {
        g.by[j] = factor_of(g.largest[g.all.b_lines ? j : 0]);
        g.b_one[j] = 1.0f / g.by[j];
    }
    cpu_for(ctx, g.panels, 1 + (1 << 13) / (COLS * z->k), panels_of_b_range, &g);
    cpu_for(ctx, g.groups * g.blocks, 1 + JOB_WORK / (MIN(z->m, BLOCK_ROWS) * MIN(z->n, g.group * COLS) * z->k),
            jobs_range, &g);
    return TITAN_OK;
}

/* --- rows that are kept ------------------------------------------------------------------------------------------- */

CPU_INLINE void encode_rows(const struct rows_encode_args *a, int64_t begin, int64_t end, const enum dtype dt)
{
    const int64_t pitch = int8_row_codes(a->c);
    float *const one = (float *)(void *)(a->codes + a->n * pitch);
    for (int64_t i = begin; i < end; i++) {
        const void *const restrict src = at(a->x, i * a->c, dt);
        uint8_t *const restrict dst = a->codes + i * pitch;
        const float by = factor_of(row_largest(src, a->c, dt));
        for (int64_t j = 0; j < a->c; j++)
            dst[j] = code_of(load_as_f32(src, j, dt), by);
        for (int64_t j = a->c; j < pitch; j++)
            dst[j] = 0;
        one[i] = 1.0f / by;
    }
}

CPU_INLINE void decode_rows(const struct rows_decode_args *a, int64_t begin, int64_t end, const enum dtype dt)
{
    const int64_t pitch = int8_row_codes(a->c);
    const float *const one = (const float *)(const void *)(a->codes + a->n * pitch);
    for (int64_t i = begin; i < end; i++) {
        const int8_t *const restrict src = (const int8_t *)a->codes + i * pitch;
        void *const restrict dst = at_mut(a->out, i * a->c, dt);
        for (int64_t j = 0; j < a->c; j++)
            store_f32_as(dst, j, dt, (float)src[j] * one[i]);
    }
}

#define ROWS_RANGE(name)                                                                                               \
    CPU_KERNEL static void name##_rows_range(const void *p, int64_t begin, int64_t end, int thread)                    \
    {                                                                                                                  \
        const struct rows_##name##_args *a = p;                                                                        \
        (void)thread;                                                                                                  \
        if (a->dt == DTYPE_BF16)                                                                                       \
            name##_rows(a, begin, end, DTYPE_BF16);                                                                    \
        else                                                                                                           \
            name##_rows(a, begin, end, DTYPE_F32);                                                                     \
    }                                                                                                                  \
    titan_status cpu_rows_##name(struct stream *s, const struct rows_##name##_args *a)                                 \
    {                                                                                                                  \
        if (!compute_type(a->dt) || a->n < 0 || a->c < 0)                                                              \
            return TITAN_EINVAL;                                                                                       \
        return cpu_enqueue_range(s, name##_rows_range, a->n, 1 + (1 << 13) / MAX(a->c, 1), a, sizeof *a);              \
    }
ROWS_RANGE(encode)
ROWS_RANGE(decode)

titan_status cpu_matmul_i8(struct stream *s, const struct matmul_args *a)
{
    if (!matmul_args_valid(a) || a->ta || a->k > INT8_DEPTH_MAX)
        return TITAN_EINVAL;
    if (a->m == 0 || a->n == 0)
        return TITAN_OK;
    const struct product all = product_of(a);
    const struct i8_args g = {
        .z = all.shape, .a = all.a, .b = all.b, .c = all.c, .b_lines = a->int8->b_lines, .work = a->work};
    return cpu_enqueue(s, run_matmul_i8, &g, sizeof g);
}
