/* SPDX-License-Identifier: Apache-2.0 */
/* bias.c - biases of linear layers, and their gradients. */
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
