/* SPDX-License-Identifier: Apache-2.0 */
/* bias.c - biases of linear layers, and their gradients; of packed rows too, each group of which has its own. */
#include <string.h>

#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/cpu.h"

enum { GRAIN = 1 << 15, COLUMNS = 64, ROWS = 64 };

struct bias_args {
    void *x;
    const void *bias, *dout;
    float *dbias;
    enum dtype dt;
    int64_t ld, n, c;
};

CPU_INLINE void add_row(void *restrict x, const void *restrict bias, int64_t c, enum dtype dt)
{
#pragma omp simd
    for (int64_t j = 0; j < c; j++)
        store_f32_as(x, j, dt, load_as_f32(x, j, dt) + load_as_f32(bias, j, dt));
}
CPU_KERNEL static void add_row_bf16(void *x, const void *bias, int64_t c)
{
    add_row(x, bias, c, DTYPE_BF16);
}
CPU_KERNEL static void add_row_f32(void *x, const void *bias, int64_t c)
{
    add_row(x, bias, c, DTYPE_F32);
}

static void add_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct bias_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        (a->dt == DTYPE_BF16 ? add_row_bf16 : add_row_f32)(at_mut(a->x, i * a->ld, a->dt), a->bias, a->c);
}

static titan_status run_add(const struct cpu_context *ctx, const void *p)
{
    const struct bias_args *a = p;
    titan_assert(a->n >= 0 && a->c > 0);
    cpu_for(ctx, a->n, 1 + GRAIN / a->c, add_range, a);
    return TITAN_OK;
}

titan_status cpu_add_bias(struct stream *s, void *x, int64_t ldx, const void *bias, enum dtype dt, int64_t n, int64_t c)
{
    if (n < 0 || c <= 0 || ldx < c || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct bias_args a = {.x = x, .bias = bias, .dt = dt, .ld = ldx, .n = n, .c = c};
    return cpu_enqueue(s, run_add, &a, sizeof(a));
}

/* Up to COLUMNS columns over all rows, in groups of ROWS: the rounding of a long batch grows with its square root. */
CPU_INLINE void sum_columns(float *restrict dbias, const void *restrict dout, int64_t ld, int64_t n, int64_t columns,
                            enum dtype dt)
{
    float total[COLUMNS] = {0};
    for (int64_t i0 = 0; i0 < n; i0 += ROWS) {
        float part[COLUMNS] = {0};
        for (int64_t i = i0; i < MIN(i0 + ROWS, n); i++)
            for (int64_t j = 0; j < columns; j++)
                part[j] += load_as_f32(dout, i * ld + j, dt);
        for (int64_t j = 0; j < columns; j++)
            total[j] += part[j];
    }
    for (int64_t j = 0; j < columns; j++)
        dbias[j] += total[j];
}
CPU_KERNEL static void sum_columns_bf16(float *dbias, const void *dout, int64_t ld, int64_t n, int64_t columns)
{
    sum_columns(dbias, dout, ld, n, columns, DTYPE_BF16);
}
CPU_KERNEL static void sum_columns_f32(float *dbias, const void *dout, int64_t ld, int64_t n, int64_t columns)
{
    sum_columns(dbias, dout, ld, n, columns, DTYPE_F32);
}

static void sum_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct bias_args *a = p;
    (void)thread;
    for (int64_t g = begin; g < end; g++) {
        const int64_t j = g * COLUMNS;
        (a->dt == DTYPE_BF16 ? sum_columns_bf16 : sum_columns_f32)(a->dbias + j, at(a->dout, j, a->dt), a->ld, a->n,
                                                                   MIN(COLUMNS, a->c - j));
    }
}

static titan_status run_wgrad(const struct cpu_context *ctx, const void *p)
{
    const struct bias_args *a = p;
    titan_assert(a->n >= 0 && a->c > 0);
    cpu_for(ctx, (a->c + COLUMNS - 1) / COLUMNS, 1, sum_range, a);
    return TITAN_OK;
}

titan_status cpu_bias_wgrad(struct stream *s, float *dbias, const void *dout, int64_t ldo, enum dtype dt, int64_t n,
                            int64_t c)
{
    if (n < 0 || c <= 0 || ldo < c || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct bias_args a = {.dbias = dbias, .dout = dout, .dt = dt, .ld = ldo, .n = n, .c = c};
    return cpu_enqueue(s, run_wgrad, &a, sizeof(a));
}

/* --- packed rows -------------------------------------------------------------------------------------------------- */

struct grouped_args {
    struct bias_args all;  /* bias, dbias (groups,c) */
    const int32_t *counts; /* (parts,groups) */
    int64_t groups, parts;
    bool add;
};

/* Rows [begin, end) of all parts and groups. */
static void add_grouped_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct grouped_args *g = p;
    struct bias_args a = g->all;
    int64_t first = 0;
    for (int64_t i = 0; first < end; i++) {
        const int64_t from = MAX(first, begin), to = MIN(first + g->counts[i], end);
        a.bias = at(g->all.bias, i % g->groups * a.c, a.dt);
        if (from < to)
            add_range(&a, from, to, thread);
        first += g->counts[i];
    }
}

static titan_status run_add_grouped(const struct cpu_context *ctx, const void *p)
{
    const struct grouped_args *g = p;
    int64_t rows;
    titan_assert(g->groups > 0 && g->parts > 0 && g->all.c > 0);
    TRY(cpu_rows_there(ctx, g->counts, g->parts * g->groups, g->all.n, &rows));
    cpu_for(ctx, rows, 1 + GRAIN / g->all.c, add_grouped_range, g);
    return TITAN_OK;
}

titan_status cpu_add_bias_grouped(struct stream *s, void *x, int64_t ldx, const void *bias, enum dtype dt,
                                  const int32_t *counts, int64_t groups, int64_t parts, int64_t n, int64_t c)
{
    if (n < 0 || c <= 0 || ldx < c || groups <= 0 || parts <= 0 || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct grouped_args g = {.all = {.x = x, .bias = bias, .dt = dt, .ld = ldx, .n = n, .c = c},
                             .counts = counts,
                             .groups = groups,
                             .parts = parts};
    return cpu_enqueue(s, run_add_grouped, &g, sizeof(g));
}

/* Groups [begin, end) of the last part. */
static void sum_grouped_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct grouped_args *g = p;
    const int64_t before = (g->parts - 1) * g->groups, strips = (g->all.c + COLUMNS - 1) / COLUMNS;
    int64_t first = 0;
    for (int64_t i = 0; i < before + begin; i++)
        first += g->counts[i];
    for (int64_t e = begin; e < end; e++) {
        struct bias_args a = g->all;
        a.dbias += e * a.c;
        if (!g->add)
            memset(a.dbias, 0, (size_t)a.c * sizeof *a.dbias);
        for (const int64_t end_row = first + g->counts[before + e]; first < end_row; first += a.n) {
            a.dout = at(g->all.dout, first * a.ld, a.dt);
            a.n = MIN(EXPERT_SPLIT, end_row - first);
            sum_range(&a, 0, strips, thread);
        }
    }
}

static titan_status run_wgrad_grouped(const struct cpu_context *ctx, const void *p)
{
    const struct grouped_args *g = p;
    int64_t rows;
    titan_assert(g->groups > 0 && g->parts > 0 && g->all.c > 0);
    TRY(cpu_rows_there(ctx, g->counts, g->parts * g->groups, g->all.n, &rows));
    cpu_for(ctx, g->groups, 1, sum_grouped_range, g);
    return TITAN_OK;
}

titan_status cpu_bias_wgrad_grouped(struct stream *s, float *dbias, const void *dout, int64_t ldo, enum dtype dt,
                                    const int32_t *counts, int64_t groups, int64_t parts, int64_t n, int64_t c,
                                    float beta)
{
    if (n < 0 || c <= 0 || ldo < c || groups <= 0 || parts <= 0 || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct grouped_args g = {.all = {.dout = dout, .dbias = dbias, .dt = dt, .ld = ldo, .n = n, .c = c},
                             .counts = counts,
                             .groups = groups,
                             .parts = parts,
                             .add = beta == 1.0f};
    return cpu_enqueue(s, run_wgrad_grouped, &g, sizeof(g));
}
