/* SPDX-License-Identifier: Apache-2.0 */
/* orthogonal.c - what updates of whole matrices need besides products. */
#include <math.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"
#include "worker/device/jacobi.h"

enum { GRAIN = 1 << 15, ROUND_GRAIN = 1 << 16 }; /* threads meet after each round, which is short */

CPU_INLINE void unit_items(const struct unit_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    const float factor = (float)(1 / (sqrt(*a->sum) + (double)a->eps));
    const float *const x = a->x;
    void *const out = a->out;
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        store_f32_as(out, i, dt, x[i] * factor);
}
TYPED_RANGE(unit, unit_args)

titan_status cpu_unit(struct stream *s, const struct unit_args *a)
{
    if (!compute_type(a->dt) || !(a->eps >= 0))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, unit_range, (int64_t)a->n, GRAIN, a, sizeof *a);
}

CPU_INLINE void polynomial_items(const struct polynomial_args *of, int64_t begin, int64_t end, enum dtype dt)
{
    const float a = of->a, b = of->b, c = of->c;
    const void *const x = of->x;
    const float *const y = of->y;
    void *const out = of->out;
    for (int64_t row = begin; row < end; row++) {
        const int64_t first = row * of->n;
#pragma omp simd
        for (int64_t i = first; i < first + of->n; i++) {
            const float sum = b * load_as_f32(x, i, dt) + c * y[i];
            store_f32_as(out, i, dt, i - first == row ? a + sum : sum);
        }
    }
}
TYPED_RANGE(polynomial, polynomial_args)

titan_status cpu_polynomial(struct stream *s, const struct polynomial_args *a)
{
    if (!compute_type(a->dt) || a->n < 0)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, polynomial_range, a->n, 1 + GRAIN / (a->n + 1), a, sizeof *a);
}

/* The squared norms of two rows and their product. The order of the sums depends on n alone: element k goes to lane k %
 * SUM_LANES. Products of two floats are exact in fp64. */
enum { SUM_LANES = 16 };
CPU_INLINE void row_products(const float *restrict x, const float *restrict z, int64_t n, double ret[3])
{
    double aa[SUM_LANES] = {0}, bb[SUM_LANES] = {0}, ab[SUM_LANES] = {0};
    int64_t k = 0;

    for (; k + SUM_LANES <= n; k += SUM_LANES) {
#pragma omp simd
        for (int l = 0; l < SUM_LANES; l++) {
            const double u = x[k + l], v = z[k + l];
            aa[l] += u * u;
            bb[l] += v * v;
            ab[l] += u * v;
        }
    }
    for (int l = 0; k + l < n; l++) {
        const double u = x[k + l], v = z[k + l];
        aa[l] += u * u;
        bb[l] += v * v;
        ab[l] += u * v;
    }
    ret[0] = ret[1] = ret[2] = 0;
    for (int l = 0; l < SUM_LANES; l++) {
        ret[0] += aa[l];
        ret[1] += bb[l];
        ret[2] += ab[l];
    }
}

/* --- Gram-Schmidt ------------------------------------------------------------------------------------------------- */

/* Rows behind row i lose their part along it. */
struct projection {
    const struct orthonormal_args *a;
    int64_t i;
};

CPU_KERNEL static void project_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct projection *const of = p;
    const int64_t cols = of->a->cols;
    const float *const along = of->a->x + of->i * cols;

    (void)thread;
    for (int64_t j = of->i + 1 + begin; j < of->i + 1 + end; j++) {
        float *const row = of->a->x + j * cols;
        double products[3];
        row_products(along, row, cols, products);
        const double factor = products[0] > 0 ? products[2] / products[0] : 0;
#pragma omp simd
        for (int64_t k = 0; k < cols; k++)
            row[k] = (float)((double)row[k] - factor * (double)along[k]);
    }
}

static void unit_rows_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct orthonormal_args *const a = p;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float *const row = a->x + i * a->cols;
        double products[3];
        row_products(row, row, a->cols, products);
        const double factor = products[0] > 0 ? 1 / sqrt(products[0]) : 0;
        for (int64_t k = 0; k < a->cols; k++)
            row[k] = (float)((double)row[k] * factor);
    }
}

static titan_status run_orthonormal(const struct cpu_context *ctx, const void *p)
{
    const struct orthonormal_args *const a = p;

    for (int turn = 0; turn < 2; turn++)
        for (int64_t i = 0; i + 1 < a->rows; i++) {
            const struct projection of = {a, i};
            cpu_for(ctx, a->rows - 1 - i, 1 + ROUND_GRAIN / (a->cols + 1), project_range, &of);
        }
    cpu_for(ctx, a->rows, 1 + GRAIN / (a->cols + 1), unit_rows_range, a);
    return TITAN_OK;
}

titan_status cpu_orthonormal(struct stream *s, const struct orthonormal_args *a)
{
    if (a->rows < 0 || a->rows > a->cols)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_orthonormal, a, sizeof *a);
}

/* --- rotations ---------------------------------------------------------------------------------------------------- */

CPU_INLINE void turn(float *restrict first, float *restrict second, int64_t n, const struct jacobi_angle *angle)
{
    const double c = angle->c, s = angle->s;

#pragma omp simd
    for (int64_t k = 0; k < n; k++) {
        const double u = first[k], v = second[k];
        first[k] = (float)(c * u - s * v);
        second[k] = (float)(s * u + c * v);
    }
}

/* A round of pairs without a row in common. */
struct round_of {
    const struct jacobi_args *a;
    int64_t players, round;
    bool *turned; /* set if a pair was turned */
};

CPU_KERNEL static void round_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct round_of *const r = p;
    const struct jacobi_args *const a = r->a;

    (void)thread;
    for (int64_t pair = begin; pair < end; pair++) {
        double products[3];
        int64_t i, j;
        jacobi_pair(r->players, r->round, pair, &i, &j);
        if (j >= a->rows)
            continue;
        row_products(a->x + i * a->cols, a->x + j * a->cols, a->cols, products);
        const struct jacobi_angle angle = jacobi_angle_of(products[0], products[1], products[2]);
        if (!angle.turns)
            continue;
        turn(a->x + i * a->cols, a->x + j * a->cols, a->cols, &angle);
        turn(a->y + i * a->ycols, a->y + j * a->ycols, a->ycols, &angle);
        __atomic_store_n(r->turned, true, __ATOMIC_RELAXED);
    }
}

static void row_norms_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct jacobi_args *const a = p;
    double *const norms = a->work;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        double products[3];
        row_products(a->x + i * a->cols, a->x + i * a->cols, a->cols, products);
        norms[i] = products[0];
    }
}

static void place_rows_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct jacobi_args *const a = p;
    const double *const norms = a->work;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const float *const row = a->y + i * a->ycols;
        double products[3];
        int64_t longer = 0, largest = 0;
        for (int64_t j = 0; j < a->rows; j++)
            longer += norms[j] > norms[i] || (j < i && norms[j] == norms[i]);
        if (longer >= a->kept)
            continue;
        row_products(row, row, a->ycols, products);
        for (int64_t k = 1; k < a->ycols; k++)
            largest = fabsf(row[k]) > fabsf(row[largest]) ? k : largest;
        const double factor = products[0] > 0 ? (row[largest] < 0 ? -1 : 1) / sqrt(products[0]) : 0;
        for (int64_t k = 0; k < a->ycols; k++)
            a->out[longer * a->ycols + k] = (float)((double)row[k] * factor);
    }
}

static titan_status run_jacobi(const struct cpu_context *ctx, const void *p)
{
    const struct jacobi_args *const a = p;
    const int64_t players = a->rows + a->rows % 2, each = a->cols + a->ycols;
    bool turned = true;

    for (int sweep = 0; sweep < JACOBI_SWEEPS && turned; sweep++) {
        turned = false;
        for (int64_t round = 0; round < players - 1; round++) {
            const struct round_of r = {a, players, round, &turned};
            cpu_for(ctx, players / 2, 1 + ROUND_GRAIN / (each + 1), round_range, &r);
        }
    }
    cpu_for(ctx, a->rows, 1 + GRAIN / (a->cols + 1), row_norms_range, a);
    cpu_for(ctx, a->rows, 1 + GRAIN / (a->ycols + 1), place_rows_range, a);
    return TITAN_OK;
}

titan_status cpu_jacobi(struct stream *s, const struct jacobi_args *a)
{
    if (a->rows < 0 || a->rows > a->cols || a->rows > a->ycols || a->kept > a->rows)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_jacobi, a, sizeof *a);
}

/* --- Ranger21 ----------------------------------------------------------------------------------------------------- */

/* A row of g by factor and shift: g = (g - shift) factor. */
CPU_KERNEL static void row_gradient_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct row_gradient_args *const a = p;
    const int64_t n = a->cols;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float *const g = a->g + i * n;
        double products[3], sum[SUM_LANES] = {0}, all = 0, factor = (double)a->scale;
        row_products(g, a->clip ? a->w + i * n : g, n, products);
        for (int64_t k = 0; k < n; k++)
            sum[k % SUM_LANES] += (double)g[k];
        for (int l = 0; l < SUM_LANES; l++)
            all += sum[l];
        const double norm = sqrt(products[0]) * fabs(factor), mean = all / (double)n;
        if (a->clip) {
            const double most = ROW_CLIP * fmax(sqrt(products[1]), ROW_CLIP_LEAST);
            factor *= norm > most ? most / fmax(norm, 1e-6) : 1;
        }
        if (a->normalize && n > 2)
            factor /= fabs(factor) * sqrt(fmax(products[0] / (double)n - mean * mean, 0)) + 1e-8;
        const double shift = a->centralize ? mean : 0;
#pragma omp simd
        for (int64_t k = 0; k < n; k++)
            g[k] = (float)(((double)g[k] - shift) * factor);
    }
}

titan_status cpu_row_gradient(struct stream *s, const struct row_gradient_args *a)
{
    if (a->rows < 0 || a->cols <= 0 || (a->clip && !a->w))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, row_gradient_range, a->rows, 1 + GRAIN / a->cols, a, sizeof *a);
}

CPU_KERNEL static void moments_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct moments_args *const a = p;
    const float b0 = a->beta0, b1 = a->previous ? a->beta1 * a->beta1 : a->beta1, b2 = a->beta2;
    const float norm = a->previous ? 1.0f / sqrtf((1 + b0) * (1 + b0) + b0 * b0) : 1.0f;
    const float inv1 = norm / a->bias1, inv2 = 1.0f / a->bias2;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const float g = a->scale * a->g[i], m = a->m[i];
        const float now = b1 * (a->previous ? a->previous[i] : m) + (1.0f - b1) * g;
        const float v = b2 * a->v[i] + (1.0f - b2) * (g * g);
        const float second = a->largest && a->largest[i] > v ? a->largest[i] : v;
        float below = sqrtf(second * inv2) + a->eps;
        if (a->softplus && below * MOMENTS_SOFTPLUS <= 20)
            below = log1pf(expf(MOMENTS_SOFTPLUS * below)) / MOMENTS_SOFTPLUS;
        a->out[i] = (a->previous ? (1 + b0) * now - b0 * m : now) * inv1 / below;
        a->m[i] = now;
        a->v[i] = v;
        if (a->previous)
            a->previous[i] = m;
        if (a->largest)
            a->largest[i] = second;
    }
}

titan_status cpu_moments(struct stream *s, const struct moments_args *a)
{
    return cpu_enqueue_range(s, moments_range, (int64_t)a->n, GRAIN / 4, a, sizeof *a);
}

CPU_KERNEL static void row_decay_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct row_decay_args *const a = p;
    const double mean = a->sum ? *a->sum * (double)a->mean : 1;
    const double all = mean > 0 ? (double)a->decay / sqrt(mean) : 0;
    const float kept = a->kept, back = a->slow ? a->kept / a->lr : 0;
    const int64_t n = a->cols;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float *const d = a->d + i * n;
        const float *const w = a->w + i * n, *const slow = a->slow ? a->slow + i * n : NULL;
        double products[3];
        row_products(w, w, n, products);
        const float factor = (float)(a->norm_loss ? all * (1 - 1 / (sqrt(products[0]) + 1e-8)) : all);
#pragma omp simd
        for (int64_t k = 0; k < n; k++)
            d[k] += factor * w[k];
        for (int64_t k = 0; slow && k < n; k++)
            d[k] = back * (slow[k] == 0.0f ? 0.0f : w[k] - slow[k]) + (slow[k] == 0.0f ? 1.0f : 1.0f - kept) * d[k];
    }
}

titan_status cpu_row_decay(struct stream *s, const struct row_decay_args *a)
{
    if (a->rows < 0 || a->cols <= 0 || (a->slow && !(a->lr > 0)))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, row_decay_range, a->rows, 1 + GRAIN / a->cols, a, sizeof *a);
}
