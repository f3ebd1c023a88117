/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c - RMSNorm, of a sum too, its gradients to the input and to the gain.
 *   y = x r g, r = (mean(x^2) + eps)^-1/2
 *   dx = r (dy g) - x r^3/C sum(dy g x),  dg = sum over rows of dy x r
 * Gains that are stored less 1: g = one + gain, one is 1; otherwise 0. */
#include <math.h>
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct norm_args {
    void *out, *h; /* h: a sum, a + b */
    float *rstd;
    const void *x, *gain, *dout, *residual, *a, *b;
    enum dtype dt;
    int64_t n, c;
    float eps, one;
};

CPU_INLINE void rmsnorm_row(void *restrict out, float *restrict rstd, const void *restrict x, const void *restrict gain,
                            int64_t c, float eps, float one, enum dtype dt)
{
    float lanes[LANES] = {0};
    int64_t whole = c / LANES * LANES;
    for (int64_t j = 0; j < whole; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float v = load_as_f32(x, j + l, dt);
            lanes[l] += v * v;
        }
    for (int64_t j = whole; j < c; j++)
        lanes[j - whole] += load_as_f32(x, j, dt) * load_as_f32(x, j, dt);
    float r = 1.0f / sqrtf(lanes_sum(lanes) / (float)c + eps);
    *rstd = r;
#pragma omp simd
    for (int64_t j = 0; j < c; j++)
        store_f32_as(out, j, dt, load_as_f32(x, j, dt) * r * (one + load_as_f32(gain, j, dt)));
}

CPU_KERNEL static void rmsnorm_bf16(void *out, float *rstd, const void *x, const void *gain, int64_t c, float eps,
                                    float one)
{
    rmsnorm_row(out, rstd, x, gain, c, eps, one, DTYPE_BF16);
}
CPU_KERNEL static void rmsnorm_f32(void *out, float *rstd, const void *x, const void *gain, int64_t c, float eps,
                                   float one)
{
    rmsnorm_row(out, rstd, x, gain, c, eps, one, DTYPE_F32);
}

static void rmsnorm_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct norm_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const void *x = at(a->x, i * a->c, a->dt);
        void *out = at_mut(a->out, i * a->c, a->dt);
        (a->dt == DTYPE_BF16 ? rmsnorm_bf16 : rmsnorm_f32)(out, a->rstd + i, x, a->gain, a->c, a->eps, a->one);
    }
}

static titan_status run_rmsnorm(const struct cpu_context *ctx, const void *p)
{
    const struct norm_args *a = p;
    titan_assert(a->n >= 0 && a->c > 0);
    cpu_for(ctx, a->n, 1 + (1 << 14) / a->c, rmsnorm_range, a);
    return TITAN_OK;
}

titan_status cpu_rmsnorm(struct stream *s, void *out, float *rstd, const void *x, const void *gain, enum dtype dt,
                         int64_t n, int64_t c, float eps, bool offset)
{
    if (n < 0 || c <= 0 || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct norm_args a = {
        .out = out, .rstd = rstd, .x = x, .gain = gain, .dt = dt, .n = n, .c = c, .eps = eps, .one = offset};
    return cpu_enqueue(s, run_rmsnorm, &a, sizeof(a));
}

/* The sum's row is in the cache when the norm reads it. */
CPU_INLINE void add_rmsnorm_row(void *h, void *restrict out, float *restrict rstd, const void *a, const void *b,
                                const void *restrict gain, int64_t c, float eps, float one, enum dtype dt)
{
#pragma omp simd
    for (int64_t j = 0; j < c; j++)
        store_f32_as(h, j, dt, load_as_f32(a, j, dt) + load_as_f32(b, j, dt));
    rmsnorm_row(out, rstd, h, gain, c, eps, one, dt);
}

CPU_KERNEL static void add_rmsnorm_bf16(void *h, void *out, float *rstd, const void *a, const void *b, const void *gain,
                                        int64_t c, float eps, float one)
{
    add_rmsnorm_row(h, out, rstd, a, b, gain, c, eps, one, DTYPE_BF16);
}
CPU_KERNEL static void add_rmsnorm_f32(void *h, void *out, float *rstd, const void *a, const void *b, const void *gain,
                                       int64_t c, float eps, float one)
{
    add_rmsnorm_row(h, out, rstd, a, b, gain, c, eps, one, DTYPE_F32);
}

static void add_rmsnorm_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct norm_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = i * a->c;
        (a->dt == DTYPE_BF16 ? add_rmsnorm_bf16 : add_rmsnorm_f32)(at_mut(a->h, row, a->dt), at_mut(a->out, row, a->dt),
                                                                   a->rstd + i, at(a->a, row, a->dt),
                                                                   at(a->b, row, a->dt), a->gain, a->c, a->eps, a->one);
    }
}

static titan_status run_add_rmsnorm(const struct cpu_context *ctx, const void *p)
{
    const struct norm_args *a = p;
    titan_assert(a->n >= 0 && a->c > 0 && a->out != a->h);
    cpu_for(ctx, a->n, 1 + (1 << 14) / a->c, add_rmsnorm_range, a);
    return TITAN_OK;
}

titan_status cpu_add_rmsnorm(struct stream *s, void *h, void *out, float *rstd, const void *a, const void *b,
                             const void *gain, enum dtype dt, int64_t n, int64_t c, float eps, bool offset)
{
    if (n < 0 || c <= 0 || out == h || out == a || out == b || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct norm_args args = {.h = h,
                             .out = out,
                             .rstd = rstd,
                             .a = a,
                             .b = b,
                             .gain = gain,
                             .dt = dt,
                             .n = n,
                             .c = c,
                             .eps = eps,
                             .one = offset};
    return cpu_enqueue(s, run_add_rmsnorm, &args, sizeof(args));
}

/* The residual may be dx: an element is read before it is written. */
CPU_INLINE void dgrad_row(void *dx, const void *residual, const void *restrict dout, const void *restrict x,
                          const void *restrict gain, float r, float one, int64_t c, enum dtype dt)
{
    float lanes[LANES] = {0};
    int64_t whole = c / LANES * LANES;
    for (int64_t j = 0; j < whole; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lanes[l] += load_as_f32(dout, j + l, dt) * (one + load_as_f32(gain, j + l, dt)) * load_as_f32(x, j + l, dt);
    for (int64_t j = whole; j < c; j++)
        lanes[j - whole] += load_as_f32(dout, j, dt) * (one + load_as_f32(gain, j, dt)) * load_as_f32(x, j, dt);
    float k = lanes_sum(lanes) * r * r * r / (float)c;
    if (residual) { /* NOLINT(bugprone-branch-clone): the checker does not look inside the simd loops */
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            store_f32_as(
                dx, j, dt,
                load_as_f32(residual, j, dt) +
                    (load_as_f32(dout, j, dt) * (one + load_as_f32(gain, j, dt)) * r - load_as_f32(x, j, dt) * k));
    } else {
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            store_f32_as(dx, j, dt,
                         load_as_f32(dout, j, dt) * (one + load_as_f32(gain, j, dt)) * r - load_as_f32(x, j, dt) * k);
    }
}

CPU_KERNEL static void dgrad_bf16(void *dx, const void *residual, const void *dout, const void *x, const void *gain,
                                  float r, float one, int64_t c)
{
    dgrad_row(dx, residual, dout, x, gain, r, one, c, DTYPE_BF16);
}
CPU_KERNEL static void dgrad_f32(void *dx, const void *residual, const void *dout, const void *x, const void *gain,
                                 float r, float one, int64_t c)
{
    dgrad_row(dx, residual, dout, x, gain, r, one, c, DTYPE_F32);
}

static void dgrad_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct norm_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i * a->c;
        const void *residual = a->residual ? at(a->residual, row, a->dt) : NULL;
        (a->dt == DTYPE_BF16 ? dgrad_bf16 : dgrad_f32)(at_mut(a->out, row, a->dt), residual, at(a->dout, row, a->dt),
                                                       at(a->x, row, a->dt), a->gain, a->rstd[i], a->one, a->c);
    }
}

static titan_status run_dgrad(const struct cpu_context *ctx, const void *p)
{
    const struct norm_args *a = p;
    titan_assert(a->n >= 0 && a->c > 0 && a->out != a->dout);
    cpu_for(ctx, a->n, 1 + (1 << 14) / a->c, dgrad_range, a);
    return TITAN_OK;
}

titan_status cpu_rmsnorm_dgrad(struct stream *s, void *dx, const void *residual, const void *dout, const void *x,
                               const void *gain, const float *rstd, enum dtype dt, int64_t n, int64_t c, bool offset)
{
    if (n < 0 || c <= 0 || dx == dout || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct norm_args a = {.out = dx,
                          .rstd = (float *)rstd,
                          .x = x,
                          .gain = gain,
                          .dout = dout,
                          .dt = dt,
                          .residual = residual,
                          .n = n,
                          .c = c,
                          .one = offset};
    return cpu_enqueue(s, run_dgrad, &a, sizeof(a));
}

enum { DGAIN_COLUMNS = 64, DGAIN_ROWS = 64 };

/* Up to DGAIN_COLUMNS columns over all rows. Rows are summed in groups of DGAIN_ROWS first, so that the rounding of a
 * long batch grows with its square root's size and not with its length. */
CPU_INLINE void dgain_columns(float *restrict dgain, const void *restrict dout, const void *restrict x,
                              const float *restrict rstd, int64_t n, int64_t c, int64_t columns, enum dtype dt)
{
    float total[DGAIN_COLUMNS] = {0};
    for (int64_t i0 = 0; i0 < n; i0 += DGAIN_ROWS) {
        float part[DGAIN_COLUMNS] = {0};
        int64_t i1 = MIN(i0 + DGAIN_ROWS, n);
        for (int64_t i = i0; i < i1; i++) {
            float r = rstd[i];
            for (int64_t j = 0; j < columns; j++)
                part[j] += load_as_f32(dout, i * c + j, dt) * (load_as_f32(x, i * c + j, dt) * r);
        }
        for (int64_t j = 0; j < columns; j++)
            total[j] += part[j];
    }
    for (int64_t j = 0; j < columns; j++)
        dgain[j] += total[j];
}

CPU_INLINE void dgain_any(float *dgain, const void *dout, const void *x, const float *rstd, int64_t n, int64_t c,
                          int64_t columns, enum dtype dt)
{
    if (columns == DGAIN_COLUMNS)
        dgain_columns(dgain, dout, x, rstd, n, c, DGAIN_COLUMNS, dt);
    else
        dgain_columns(dgain, dout, x, rstd, n, c, columns, dt);
}
CPU_KERNEL static void dgain_bf16(float *dgain, const void *dout, const void *x, const float *rstd, int64_t n,
                                  int64_t c, int64_t columns)
{
    dgain_any(dgain, dout, x, rstd, n, c, columns, DTYPE_BF16);
}
CPU_KERNEL static void dgain_f32(float *dgain, const void *dout, const void *x, const float *rstd, int64_t n, int64_t c,
                                 int64_t columns)
{
    dgain_any(dgain, dout, x, rstd, n, c, columns, DTYPE_F32);
}

static void dgain_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct norm_args *a = p;
    (void)thread;
    for (int64_t g = begin; g < end; g++) {
        int64_t j = g * DGAIN_COLUMNS, columns = MIN(DGAIN_COLUMNS, a->c - j);
        (a->dt == DTYPE_BF16 ? dgain_bf16 : dgain_f32)((float *)a->out + j, at(a->dout, j, a->dt), at(a->x, j, a->dt),
                                                       a->rstd, a->n, a->c, columns);
    }
}

static titan_status run_dgain(const struct cpu_context *ctx, const void *p)
{
    const struct norm_args *a = p;
    titan_assert(a->n >= 0 && a->c >= 0);
    cpu_for(ctx, (a->c + DGAIN_COLUMNS - 1) / DGAIN_COLUMNS, 1, dgain_range, a);
    return TITAN_OK;
}

titan_status cpu_rmsnorm_dgain(struct stream *s, float *dgain, const void *dout, const void *x, const float *rstd,
                               enum dtype dt, int64_t n, int64_t c)
{
    if (n < 0 || c <= 0 || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct norm_args a = {.out = dgain, .rstd = (float *)rstd, .x = x, .dout = dout, .dt = dt, .n = n, .c = c};
    return cpu_enqueue(s, run_dgain, &a, sizeof(a));
}
