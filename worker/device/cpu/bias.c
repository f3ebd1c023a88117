/* SPDX-License-Identifier: Apache-2.0 */
/* bias.c - biases of linear layers, and their gradients. Packed rows of several groups have a bias for each group. */
#include <string.h>

#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/cpu.h"

enum { GRAIN = 1 << 15, COLUMNS = 64, ROWS = 64 };

static bool args_valid(const struct bias_args *a)
{
    return a->n >= 0 && a->c > 0 && a->ld >= a->c && compute_type(a->dt);
}

CPU_INLINE void add_items(const struct bias_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    const void *const restrict bias = a->bias;
    for (int64_t i = begin; i < end; i++) {
        void *const restrict x = at_mut(a->x, i * a->ld, dt);
#pragma omp simd
        for (int64_t j = 0; j < a->c; j++)
            store_f32_as(x, j, dt, load_as_f32(x, j, dt) + load_as_f32(bias, j, dt));
    }
}
TYPED_RANGE(add, bias_args)

titan_status cpu_add_bias(struct stream *s, const struct bias_args *a)
{
    return args_valid(a) ? cpu_enqueue_range(s, add_range, a->n, 1 + GRAIN / a->c, a, sizeof *a) : TITAN_EINVAL;
}

/* Sums at most COLUMNS columns from `first` on, over all rows. Rows are first summed in groups of ROWS. So a value
 * passes through about n / ROWS + ROWS additions, not n, and the rounding error of a long batch is smaller by as
 * much. */
CPU_INLINE void sum_columns(const struct bias_args *a, int64_t first, int64_t columns, enum dtype dt)
{
    const void *const restrict dout = at(a->dout, first, dt);
    float *const restrict dbias = a->dbias + first;
    const int64_t n = a->n, ld = a->ld;
    float total[COLUMNS] = {0};
    for (int64_t i0 = 0; i0 < n; i0 += ROWS) {
        const int64_t i1 = MIN(i0 + ROWS, n);
        float part[COLUMNS] = {0};
        for (int64_t i = i0; i < i1; i++)
            for (int64_t j = 0; j < columns; j++)
                part[j] += load_as_f32(dout, i * ld + j, dt);
        for (int64_t j = 0; j < columns; j++)
            total[j] += part[j];
    }
    for (int64_t j = 0; j < columns; j++)
        dbias[j] += total[j];
}

CPU_INLINE void sum_items(const struct bias_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t first = begin * COLUMNS; first < MIN(end * COLUMNS, a->c); first += COLUMNS)
        if (a->c - first >= COLUMNS)
            sum_columns(a, first, COLUMNS, dt);
        else
            sum_columns(a, first, a->c - first, dt);
}
TYPED_RANGE(sum, bias_args)

titan_status cpu_bias_wgrad(struct stream *s, const struct bias_args *a)
{
    if (!args_valid(a))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, sum_range, (a->c + COLUMNS - 1) / COLUMNS, 1, a, sizeof *a);
}

/* --- packed rows -------------------------------------------------------------------------------------------------- */

/* Adds biases to rows [begin, end) of all parts and groups. */
static void add_grouped_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct bias_args *g = p;
    int64_t first = 0;
    for (int64_t i = 0; first < end; i++) {
        const int64_t from = MAX(first, begin), to = MIN(first + g->counts[i], end);
        struct bias_args a = *g;
        a.bias = at(g->bias, i % g->groups * g->c, g->dt);
        if (from < to)
            add_range(&a, from, to, thread);
        first += g->counts[i];
    }
}

static titan_status run_add_grouped(const struct cpu_context *ctx, const void *p)
{
    const struct bias_args *a = p;
    int64_t rows;
    TRY(cpu_rows_there(ctx, a->counts, a->parts * a->groups, a->n, &rows));
    cpu_for(ctx, rows, 1 + GRAIN / a->c, add_grouped_range, a);
    return TITAN_OK;
}

titan_status cpu_add_bias_grouped(struct stream *s, const struct bias_args *a)
{
    if (!args_valid(a) || a->groups <= 0 || a->parts <= 0)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_add_grouped, a, sizeof *a);
}

/* Sums groups [begin, end) of the last part. */
static void sum_grouped_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct bias_args *g = p;
    const int64_t before = (g->parts - 1) * g->groups, strips = (g->c + COLUMNS - 1) / COLUMNS;
    int64_t first = 0;
    for (int64_t i = 0; i < before + begin; i++)
        first += g->counts[i];
    for (int64_t e = begin; e < end; e++) {
        struct bias_args a = *g;
        a.dbias += e * a.c;
        if (g->beta != 1.0f)
            memset(a.dbias, 0, (size_t)a.c * sizeof *a.dbias);
        for (const int64_t end_row = first + g->counts[before + e]; first < end_row; first += a.n) {
            a.dout = at(g->dout, first * a.ld, a.dt);
            a.n = MIN(EXPERT_SPLIT, end_row - first);
            sum_range(&a, 0, strips, thread);
        }
    }
}

static titan_status run_wgrad_grouped(const struct cpu_context *ctx, const void *p)
{
    const struct bias_args *a = p;
    int64_t rows;
    TRY(cpu_rows_there(ctx, a->counts, a->parts * a->groups, a->n, &rows));
    cpu_for(ctx, a->groups, 1, sum_grouped_range, a);
    return TITAN_OK;
}

titan_status cpu_bias_wgrad_grouped(struct stream *s, const struct bias_args *a)
{
    if (!args_valid(a) || a->groups <= 0 || a->parts <= 0)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_wgrad_grouped, a, sizeof *a);
}
