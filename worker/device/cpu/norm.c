/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c - RMSNorm, also of a sum of two inputs, and its gradients to the input and to the gain.
 *     y = x r g, r = (mean(x^2) + eps)^-1/2
 *     dx = r (dy g) - x r^3/C sum(dy g x),  dg = sum over rows of dy x r
 * g = one + gain. If gains are stored less 1, one is 1, otherwise 0. */
#include <math.h>
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

enum { GRAIN = 1 << 14, DGAIN_COLUMNS = 64, DGAIN_ROWS = 64 };

static bool args_valid(const struct norm_args *a)
{
    return a->n >= 0 && a->c > 0 && compute_type(a->dt);
}

CPU_INLINE void rmsnorm_row(const struct norm_args *a, void *restrict out, const void *restrict x, float *restrict rstd,
                            enum dtype dt)
{
    const void *const restrict gain = a->gain;
    const int64_t c = a->c, whole = c / LANES * LANES;
    const float one = a->offset;
    float lanes[LANES] = {0};
    for (int64_t j = 0; j < whole; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float v = load_as_f32(x, j + l, dt);
            lanes[l] += v * v;
        }
    for (int64_t j = whole; j < c; j++)
        lanes[j - whole] += load_as_f32(x, j, dt) * load_as_f32(x, j, dt);
    float r = 1.0f / sqrtf(lanes_sum(lanes) / (float)c + a->eps);
    *rstd = r;
#pragma omp simd
    for (int64_t j = 0; j < c; j++)
        store_f32_as(out, j, dt, load_as_f32(x, j, dt) * r * (one + load_as_f32(gain, j, dt)));
}

CPU_INLINE void rmsnorm_items(const struct norm_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++)
        rmsnorm_row(a, at_mut(a->out, i * a->c, dt), at(a->x, i * a->c, dt), a->rstd + i, dt);
}
TYPED_RANGE(rmsnorm, norm_args)

titan_status cpu_rmsnorm(struct stream *s, const struct norm_args *a)
{
    return args_valid(a) ? cpu_enqueue_range(s, rmsnorm_range, a->n, 1 + GRAIN / a->c, a, sizeof *a) : TITAN_EINVAL;
}

/* The sum's row is still in the cache when the norm reads it. */
CPU_INLINE void add_rmsnorm_items(const struct norm_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++) {
        void *const h = at_mut(a->h, i * a->c, dt);
        const void *const x = at(a->a, i * a->c, dt), *const y = at(a->b, i * a->c, dt);
#pragma omp simd
        for (int64_t j = 0; j < a->c; j++)
            store_f32_as(h, j, dt, load_as_f32(x, j, dt) + load_as_f32(y, j, dt));
        rmsnorm_row(a, at_mut(a->out, i * a->c, dt), h, a->rstd + i, dt);
    }
}
TYPED_RANGE(add_rmsnorm, norm_args)

titan_status cpu_add_rmsnorm(struct stream *s, const struct norm_args *a)
{
    if (!args_valid(a) || a->out == a->h || a->out == a->a || a->out == a->b)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, add_rmsnorm_range, a->n, 1 + GRAIN / a->c, a, sizeof *a);
}

/* The residual may be dx: an element is read before it is written. */
CPU_INLINE void dgrad_row(const struct norm_args *a, int64_t row, enum dtype dt)
{
    void *const dx = at_mut(a->dx, row * a->c, dt);
    const void *const residual = a->residual ? at(a->residual, row * a->c, dt) : NULL;
    const void *const restrict dout = at(a->dout, row * a->c, dt), *const restrict x = at(a->x, row * a->c, dt);
    const void *const restrict gain = a->gain;
    const int64_t c = a->c, whole = c / LANES * LANES;
    const float r = a->rstd[row], one = a->offset;
    float lanes[LANES] = {0};
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

CPU_INLINE void dgrad_items(const struct norm_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++)
        dgrad_row(a, i, dt);
}
TYPED_RANGE(dgrad, norm_args)

titan_status cpu_rmsnorm_dgrad(struct stream *s, const struct norm_args *a)
{
    if (!args_valid(a) || a->dx == a->dout)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, dgrad_range, a->n, 1 + GRAIN / a->c, a, sizeof *a);
}

/* Sums at most DGAIN_COLUMNS columns from `first` on, over all rows. Rows are first summed in groups of DGAIN_ROWS. So
 * a value passes through about n / DGAIN_ROWS + DGAIN_ROWS additions, not n, and the rounding error of a long batch is
 * smaller by as much. */
CPU_INLINE void dgain_columns(const struct norm_args *a, int64_t first, int64_t columns, enum dtype dt)
{
    float *const restrict dgain = a->dgain + first;
    const void *const restrict dout = at(a->dout, first, dt), *const restrict x = at(a->x, first, dt);
    const int64_t c = a->c;
    float total[DGAIN_COLUMNS] = {0};
    for (int64_t i0 = 0; i0 < a->n; i0 += DGAIN_ROWS) {
        float part[DGAIN_COLUMNS] = {0};
        int64_t i1 = MIN(i0 + DGAIN_ROWS, a->n);
        for (int64_t i = i0; i < i1; i++) {
            float r = a->rstd[i];
            for (int64_t j = 0; j < columns; j++)
                part[j] += load_as_f32(dout, i * c + j, dt) * (load_as_f32(x, i * c + j, dt) * r);
        }
        for (int64_t j = 0; j < columns; j++)
            total[j] += part[j];
    }
    for (int64_t j = 0; j < columns; j++)
        dgain[j] += total[j];
}

CPU_INLINE void dgain_items(const struct norm_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t first = begin * DGAIN_COLUMNS; first < MIN(end * DGAIN_COLUMNS, a->c); first += DGAIN_COLUMNS)
        if (a->c - first >= DGAIN_COLUMNS)
            dgain_columns(a, first, DGAIN_COLUMNS, dt);
        else
            dgain_columns(a, first, a->c - first, dt);
}
TYPED_RANGE(dgain, norm_args)

titan_status cpu_rmsnorm_dgain(struct stream *s, const struct norm_args *a)
{
    if (!args_valid(a))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, dgain_range, (a->c + DGAIN_COLUMNS - 1) / DGAIN_COLUMNS, 1, a, sizeof *a);
}
