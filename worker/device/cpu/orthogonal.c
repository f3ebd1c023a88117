/* SPDX-License-Identifier: Apache-2.0 */
/* orthogonal.c - what updates of whole matrices need besides products. */
#include <math.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

enum { GRAIN = 1 << 15 };

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
