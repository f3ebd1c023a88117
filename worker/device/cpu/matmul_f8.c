/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_f8.c - products in float8, emulated. Operands are scaled and rounded to values of their type, which bf16 and
 * fp32 hold exactly. Their products are summed in fp32, and the sums are divided by the scales. MXFP8's values include
 * their blocks' scales, so their sums are not divided. */
#include <float.h>

#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/matmul.h"

struct f8_args {
    struct product all;
    struct float8_product how;
    char *work;
};

/* An operand as it lies in memory: rows of cols elements. It has one scale, one per row, or one per column. */
struct operand {
    const void *src;
    void *dst;    /* dense */
    float *scale; /* first the largest magnitudes, finally the inverse scales */
    int64_t rows, cols, ld;
    enum dtype dt;
    enum float8 type;
    bool by_row, by_col, power_of_two;
    const float *given; /* float8_product's */
};

/* --- scales ------------------------------------------------------------------------------------------------------- */

CPU_INLINE float row_largest(const void *x, int64_t n, const enum dtype dt)
{
    float lanes[LANES] = {0}, most;
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int l = 0; l < LANES; l++) {
            const float a = fabsf(load_as_f32(x, j + l, dt));
            lanes[l] = a > lanes[l] ? a : lanes[l];
        }
    most = lanes_max(lanes);
    for (; j < n; j++)
        most = fmaxf(most, fabsf(load_as_f32(x, j, dt)));
    return most;
}

CPU_KERNEL static void rows_largest(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct operand *o = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        o->scale[i] = o->dt == DTYPE_BF16 ? row_largest(at(o->src, i * o->ld, DTYPE_BF16), o->cols, DTYPE_BF16)
                                          : row_largest(at(o->src, i * o->ld, DTYPE_F32), o->cols, DTYPE_F32);
}

CPU_INLINE void cols_fold(float *restrict largest, const void *x, int64_t begin, int64_t end, const enum dtype dt)
{
    for (int64_t j = begin; j < end; j++) {
        const float a = fabsf(load_as_f32(x, j, dt));
        largest[j] = a > largest[j] ? a : largest[j];
    }
}

CPU_KERNEL static void cols_largest(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct operand *o = p;
    (void)thread;
    for (int64_t j = begin; j < end; j++)
        o->scale[j] = 0.0f;
    for (int64_t i = 0; i < o->rows; i++) {
        if (o->dt == DTYPE_BF16)
            cols_fold(o->scale, at(o->src, i * o->ld, DTYPE_BF16), begin, end, DTYPE_BF16);
        else
            cols_fold(o->scale, at(o->src, i * o->ld, DTYPE_F32), begin, end, DTYPE_F32);
    }
}

static float scale_of(float largest, enum float8 type, bool power_of_two)
{
    const float scale = (float)((double)float8_max(type) / fmax((double)largest, 1e-12));
    return power_of_two ? f32_from_bits(f32_bits(scale) & 0xff800000u) : scale;
}

/* --- rounding ----------------------------------------------------------------------------------------------------- */

/* A given scale says nothing of an infinity: it becomes NaN, as it does with a scale of 0. */
CPU_INLINE float scaled(float x, float scale)
{
    return x * (fabsf(x) <= FLT_MAX ? scale : NAN);
}

CPU_INLINE void round_row(const struct operand *o, int64_t i, const enum dtype dt, const enum float8 type)
{
    const void *const restrict src = at(o->src, i * o->ld, dt);
    void *const restrict dst = at_mut(o->dst, i * o->cols, dt);
    const float *const restrict scales = o->scale;
    const float scale = o->scale[o->by_row ? i : 0];
    if (o->by_col)
        for (int64_t j = 0; j < o->cols; j++)
            store_f32_as(dst, j, dt, float8_round(load_as_f32(src, j, dt) * scales[j], type));
    else
        for (int64_t j = 0; j < o->cols; j++)
            store_f32_as(dst, j, dt, float8_round(scaled(load_as_f32(src, j, dt), scale), type));
}

CPU_KERNEL static void round_rows(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct operand *o = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        if (o->dt == DTYPE_BF16 && o->type == FLOAT8_E4M3)
            round_row(o, i, DTYPE_BF16, FLOAT8_E4M3);
        else if (o->dt == DTYPE_BF16)
            round_row(o, i, DTYPE_BF16, FLOAT8_E5M2);
        else if (o->type == FLOAT8_E4M3)
            round_row(o, i, DTYPE_F32, FLOAT8_E4M3);
        else
            round_row(o, i, DTYPE_F32, FLOAT8_E5M2);
}

struct decode_args {
    void *dst;
    const uint8_t *codes;
    int64_t cols, ld;
    enum dtype dt;
};

CPU_KERNEL static void decode_rows(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct decode_args *d = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const uint8_t *src = d->codes + i * d->ld;
        void *dst = at_mut(d->dst, i * d->cols, d->dt);
        if (d->dt == DTYPE_BF16)
            for (int64_t j = 0; j < d->cols; j++)
                store_f32_as(dst, j, DTYPE_BF16, float8_decode(src[j]));
        else
            for (int64_t j = 0; j < d->cols; j++)
                store_f32_as(dst, j, DTYPE_F32, float8_decode(src[j]));
    }
}

/* Computes the operand's float8 values and the inverse scales for the sums. */
static void make_float8(const struct cpu_context *ctx, const struct operand *o)
{
    int64_t scales = o->by_col ? o->cols : o->rows;

    titan_assert(!o->by_row || !o->by_col);
    if (o->given) {
        o->scale[0] = *o->given;
        scales = 1;
    } else if (o->by_col) {
        cpu_for(ctx, o->cols, MAX(64, (1 << 14) / o->rows), cols_largest, o);
    } else {
        cpu_for(ctx, o->rows, 1 + (1 << 14) / o->cols, rows_largest, o);
    }
    if (!o->by_row && !o->by_col)
        for (; scales > 1; scales--) /* one scale for the whole operand: folds the rows' maxima */
            o->scale[0] = fmaxf(o->scale[0], o->scale[scales - 1]);
    for (int64_t i = 0; i < scales && !o->given; i++)
        o->scale[i] = scale_of(o->scale[i], o->type, o->power_of_two);

    cpu_for(ctx, o->rows, 1 + (1 << 13) / o->cols, round_rows, o);
    for (int64_t i = 0; i < scales; i++)
        o->scale[i] = 1.0f / o->scale[i];
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

CPU_INLINE uint32_t larger(uint32_t most, const void *x, int64_t i, const enum dtype dt)
{
    const uint32_t bits = f32_bits(load_as_f32(x, i, dt)) & 0x7fffffffu;
    return bits > most ? bits : most;
}

CPU_INLINE float mx_round(const void *x, int64_t i, float inverse, float scale, const enum dtype dt)
{
    return float8_round(load_as_f32(x, i, dt) * inverse, FLOAT8_E4M3) * scale;
}

/* Rounds one block of n elements in a row. */
CPU_INLINE void round_block(void *restrict dst, const void *restrict src, int64_t n, const enum dtype dt)
{
    uint32_t most = 0;
    for (int64_t j = 0; j < n; j++)
        most = larger(most, src, j, dt);
    const uint8_t scale = mx_scale(most);
    const float inverse = mx_inverse(scale), value = mx_power(scale);
    for (int64_t j = 0; j < n; j++)
        store_f32_as(dst, j, dt, mx_round(src, j, inverse, value, dt));
}

CPU_INLINE void round_row_blocks(void *dst, const void *src, int64_t n, const enum dtype dt)
{
    int64_t j = 0;
    for (; j + MX_BLOCK <= n; j += MX_BLOCK)
        round_block(at_mut(dst, j, dt), at(src, j, dt), MX_BLOCK, dt);
    if (j < n)
        round_block(at_mut(dst, j, dt), at(src, j, dt), n - j, dt);
}

CPU_KERNEL static void blocks_in_rows(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct operand *o = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        if (o->dt == DTYPE_BF16)
            round_row_blocks(at_mut(o->dst, i * o->cols, DTYPE_BF16), at(o->src, i * o->ld, DTYPE_BF16), o->cols,
                             DTYPE_BF16);
        else
            round_row_blocks(at_mut(o->dst, i * o->cols, DTYPE_F32), at(o->src, i * o->ld, DTYPE_F32), o->cols,
                             DTYPE_F32);
    }
}

/* Rounds one block in each of n columns; a block is `rows` elements, one below the other. */
CPU_INLINE void round_columns(const struct operand *o, int64_t row, int64_t rows, int64_t col, int64_t n,
                              const enum dtype dt)
{
    uint32_t most[LANES] = {0};
    float inverse[LANES], value[LANES];
    for (int64_t i = row; i < row + rows; i++)
        for (int64_t j = 0; j < n; j++)
            most[j] = larger(most[j], at(o->src, i * o->ld + col, dt), j, dt);
    for (int64_t j = 0; j < n; j++) {
        const uint8_t scale = mx_scale(most[j]);
        inverse[j] = mx_inverse(scale);
        value[j] = mx_power(scale);
    }
    for (int64_t i = row; i < row + rows; i++) {
        const void *src = at(o->src, i * o->ld + col, dt);
        void *dst = at_mut(o->dst, i * o->cols + col, dt);
        for (int64_t j = 0; j < n; j++)
            store_f32_as(dst, j, dt, mx_round(src, j, inverse[j], value[j], dt));
    }
}

/* The range counts blocks of rows. */
CPU_KERNEL static void blocks_in_columns(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct operand *o = p;
    (void)thread;
    for (int64_t b = begin; b < end; b++)
        for (int64_t col = 0; col < o->cols; col += LANES) {
            const int64_t row = b * MX_BLOCK, rows = MIN(MX_BLOCK, o->rows - row), n = MIN(LANES, o->cols - col);
            if (o->dt == DTYPE_BF16)
                round_columns(o, row, rows, col, n, DTYPE_BF16);
            else
                round_columns(o, row, rows, col, n, DTYPE_F32);
        }
}

static void make_blocks(const struct cpu_context *ctx, const struct operand *o, bool in_rows)
{
    if (in_rows)
        cpu_for(ctx, o->rows, 1 + (1 << 13) / o->cols, blocks_in_rows, o);
    else
        cpu_for(ctx, (o->rows + MX_BLOCK - 1) / MX_BLOCK, 1 + (1 << 13) / (MX_BLOCK * o->cols), blocks_in_columns, o);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

struct unscale_args {
    void *c;
    const float *sums, *a, *b; /* sums may be c; a and b are inverse scales */
    int64_t n, ldc, ld;
    bool a_lines, b_lines, accumulate;
    enum dtype dt;
};

CPU_INLINE void unscale_row(const struct unscale_args *u, int64_t i, const enum dtype dt)
{
    void *c = at_mut(u->c, i * u->ldc, dt);
    const float *sums = u->sums + i * u->ld, by_a = u->a[u->a_lines ? i : 0];

    for (int64_t j = 0; j < u->n; j++) {
        const float x = sums[j] * by_a * u->b[u->b_lines ? j : 0];
        store_f32_as(c, j, dt, u->accumulate ? load_as_f32(c, j, dt) + x : x);
    }
}

/* This function is not cloned per instruction set, because some clones would fuse the product with the sum. */
static void unscale_rows(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct unscale_args *u = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        if (u->dt == DTYPE_BF16)
            unscale_row(u, i, DTYPE_BF16);
        else
            unscale_row(u, i, DTYPE_F32);
    }
}

/* --- the product -------------------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static void *cut(char **from, size_t bytes)
{
    void *const piece = *from;
    *from += aligned(bytes);
    return piece;
}

static void operand_place(struct operand *o, char **from)
{
    o->dst = cut(from, (size_t)(o->rows * o->cols) * dtype_bytes(o->dt));
    o->scale = cut(from, (size_t)MAX(o->rows, o->cols) * sizeof(float));
}

size_t cpu_matmul_f8_work_bytes(struct device *dev, enum dtype ab_dt, bool blocks, int64_t m, int64_t n, int64_t k)
{
    const size_t elem = dtype_bytes(ab_dt), values = aligned((size_t)(m * k) * elem) + aligned((size_t)(n * k) * elem);
    (void)dev;
    if (blocks)
        return values;
    return values + aligned((size_t)MAX(m, k) * sizeof(float)) + aligned((size_t)MAX(n, k) * sizeof(float)) +
           aligned((size_t)(m * n) * sizeof(float));
}

static titan_status run_parts(const struct cpu_context *ctx, const struct f8_args *g, struct operand *a,
                              struct operand *b, float *sums)
{
    struct product product = g->all;
    const struct product_shape *z = &g->all.shape;

    make_float8(ctx, a);
    if (g->how.b_scale) { /* b's elements are codes already */
        const struct decode_args d = {.dst = b->dst, .codes = b->src, .cols = b->cols, .ld = b->ld, .dt = b->dt};
        cpu_for(ctx, b->rows, 1 + (1 << 13) / b->cols, decode_rows, &d);
        b->scale[0] = 1.0f / *g->how.b_scale;
    } else {
        make_float8(ctx, b);
    }
    product.a = a->dst;
    product.b = b->dst;
    product.c = sums ? sums : g->all.c;
    product.shape.lda = a->cols;
    product.shape.ldb = b->cols;
    product.shape.ldc = sums ? z->n : z->ldc;
    product.shape.c_dt = DTYPE_F32;
    product.shape.accumulate = false;
    TRY(product_run(ctx, &product));
    const struct unscale_args u = {.c = g->all.c,
                                   .sums = product.c,
                                   .a = a->scale,
                                   .b = b->scale,
                                   .n = z->n,
                                   .ldc = z->ldc,
                                   .ld = product.shape.ldc,
                                   .a_lines = g->how.a_lines,
                                   .b_lines = g->how.b_lines,
                                   .accumulate = z->accumulate,
                                   .dt = (enum dtype)z->c_dt};
    cpu_for(ctx, z->m, 1 + (1 << 14) / z->n, unscale_rows, &u);
    return TITAN_OK;
}

static titan_status run_matmul_f8(const struct cpu_context *ctx, const void *p)
{
    const struct f8_args *g = p;
    const struct product_shape *z = &g->all.shape;
    const bool apart = z->accumulate || z->c_dt != DTYPE_F32; /* the sums need a buffer other than c */
    struct operand a = {.src = g->all.a,
                        .rows = z->ta ? z->k : z->m,
                        .cols = z->ta ? z->m : z->k,
                        .ld = z->lda,
                        .dt = (enum dtype)z->ab_dt,
                        .type = g->how.a,
                        .by_row = g->how.a_lines && !z->ta,
                        .by_col = g->how.a_lines && z->ta,
                        .power_of_two = g->how.power_of_two,
                        .given = g->how.a_given};
    struct operand b = {.src = g->all.b,
                        .rows = z->tb ? z->n : z->k,
                        .cols = z->tb ? z->k : z->n,
                        .ld = z->ldb,
                        .dt = (enum dtype)z->ab_dt,
                        .type = g->how.b,
                        .by_row = g->how.b_lines && z->tb,
                        .by_col = g->how.b_lines && !z->tb,
                        .power_of_two = g->how.power_of_two,
                        .given = g->how.b_given};
    char *at = g->work;

    titan_assert(z->m > 0 && z->n > 0);
    if (z->k == 0)
        return product_run(ctx, &g->all);
    if (g->how.blocks) {
        struct product product = g->all;
        a.dst = cut(&at, (size_t)(a.rows * a.cols) * dtype_bytes(a.dt));
        b.dst = cut(&at, (size_t)(b.rows * b.cols) * dtype_bytes(b.dt));
        make_blocks(ctx, &a, !z->ta);
        make_blocks(ctx, &b, z->tb);
        product.a = a.dst;
        product.b = b.dst;
        product.shape.lda = a.cols;
        product.shape.ldb = b.cols;
        return product_run(ctx, &product);
    }
    operand_place(&a, &at);
    operand_place(&b, &at);
    return run_parts(ctx, g, &a, &b, apart ? (float *)(void *)at : NULL);
}

titan_status cpu_matmul_f8(struct stream *s, const struct matmul_args *a)
{
    const struct float8_product *const how = a->how;
    if (!matmul_args_valid(a) || !float8_product_valid(how))
        return TITAN_EINVAL;
    if (a->m == 0 || a->n == 0)
        return TITAN_OK;
    const struct f8_args g = {.all = product_of(a), .how = *how, .work = a->work};
    return cpu_enqueue(s, run_matmul_f8, &g, sizeof(g));
}

/* --- codes apart from a product ----------------------------------------------------------------------------------- */

enum { PIECE = 1 << 14 }; /* elements that a thread processes at a time */

struct largest_args {
    float *largest;
    const void *x;
    int64_t n;
    enum dtype dt;
};

/* A range of the elements, and the largest magnitude of each of its pieces. */
struct pieces_args {
    struct largest_args all;
    float *of_piece;
};

CPU_KERNEL static void pieces_largest(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct pieces_args *g = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t from = i * PIECE, n = MIN(PIECE, g->all.n - from);
        g->of_piece[i] = g->all.dt == DTYPE_BF16 ? row_largest(at(g->all.x, from, DTYPE_BF16), n, DTYPE_BF16)
                                                 : row_largest(at(g->all.x, from, DTYPE_F32), n, DTYPE_F32);
    }
}

static titan_status run_largest(const struct cpu_context *ctx, const void *p)
{
    enum { AT_ONCE = 256 };
    struct largest_args all = *(const struct largest_args *)p;
    float of_piece[AT_ONCE], most = 0;

    while (all.n > 0) {
        struct pieces_args g = {.all = all, .of_piece = of_piece};
        g.all.n = MIN(all.n, (int64_t)AT_ONCE * PIECE);
        const int64_t pieces = (g.all.n + PIECE - 1) / PIECE;
        cpu_for(ctx, pieces, 1, pieces_largest, &g);
        for (int64_t i = 0; i < pieces; i++)
            most = fmaxf(most, of_piece[i]);
        all.x = at(all.x, g.all.n, all.dt);
        all.n -= g.all.n;
    }
    *all.largest = most;
    return TITAN_OK;
}

titan_status cpu_float8_largest(struct stream *s, float *largest, const void *x, enum dtype dt, size_t n)
{
    const struct largest_args g = {.largest = largest, .x = x, .n = (int64_t)n, .dt = dt};
    if (!compute_type(dt))
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_largest, &g, sizeof(g));
}

struct scales_args {
    float *scales;
    const float *largest;
    int64_t ld, ranks, n;
    bool power_of_two;
};

static titan_status run_scales(const struct cpu_context *ctx, const void *p)
{
    const struct scales_args *g = p;
    (void)ctx;
    for (int64_t j = 0; j < g->n; j++) {
        float most = 0;
        for (int64_t i = 0; i < g->ranks; i++)
            most = fmaxf(most, g->largest[i * g->ld + j]);
        g->scales[j] = scale_of(most, FLOAT8_E4M3, g->power_of_two);
    }
    return TITAN_OK;
}

titan_status cpu_float8_scales(struct stream *s, float *scales, const float *largest, int64_t ld, int64_t ranks,
                               int64_t n, bool power_of_two)
{
    const struct scales_args g = {
        .scales = scales, .largest = largest, .ld = ld, .ranks = ranks, .n = n, .power_of_two = power_of_two};
    if (ranks <= 0 || n < 0 || ld < n)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_scales, &g, sizeof(g));
}

struct f8_encode_args {
    uint8_t *codes;
    const void *x;
    const float *scale;
    int64_t n;
    enum dtype dt;
};

CPU_INLINE void encode_piece(const struct f8_encode_args *g, int64_t from, int64_t to, const enum dtype dt)
{
    const float scale = *g->scale;
    for (int64_t i = from; i < to; i++)
        g->codes[i] = float8_encode(load_as_f32(g->x, i, dt) * scale, FLOAT8_E4M3);
}

CPU_KERNEL static void encode_pieces(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct f8_encode_args *g = p;
    const int64_t from = begin * PIECE, to = MIN(end * PIECE, g->n);
    (void)thread;
    if (g->dt == DTYPE_BF16)
        encode_piece(g, from, to, DTYPE_BF16);
    else
        encode_piece(g, from, to, DTYPE_F32);
}

titan_status cpu_float8_encode(struct stream *s, uint8_t *codes, const void *x, enum dtype dt, size_t n,
                               const float *scale)
{
    const struct f8_encode_args g = {.codes = codes, .x = x, .scale = scale, .n = (int64_t)n, .dt = dt};
    if (!compute_type(dt))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, encode_pieces, (g.n + PIECE - 1) / PIECE, 1, &g, sizeof(g));
}
