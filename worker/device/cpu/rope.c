/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c - rotary position embedding on adjacent pairs. */
#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

CPU_INLINE void rope_head(void *restrict x, const float *restrict cs, const float *restrict sn, int64_t pairs,
                          float sign, enum dtype dt)
{
#pragma omp simd
    for (int64_t i = 0; i < pairs; i++) {
        float a = load_as_f32(x, 2 * i, dt), b = load_as_f32(x, 2 * i + 1, dt);
        float c = cs[i], s = sign * sn[i];
        store_f32_as(x, 2 * i, dt, a * c - b * s);
        store_f32_as(x, 2 * i + 1, dt, a * s + b * c);
    }
}

/* Rows [begin, end) of heads with `pairs` pairs. */
CPU_INLINE void rope_rows(const struct rope_args *a, int64_t begin, int64_t end, int64_t pairs, enum dtype dt)
{
    const float sign = a->backward ? -1.0f : 1.0f;
    for (int64_t i = begin; i < end; i++) {
        const float *const cs = a->cos + a->positions[i] * pairs, *const sn = a->sin + a->positions[i] * pairs;
        for (int64_t h = 0; h < a->heads; h++)
            rope_head(at_mut(a->x, i * a->ldx + h * 2 * pairs, dt), cs, sn, pairs, sign, dt);
    }
}

/* If the pairs fill whole vectors, the short loop over heads needs no code for a rest. */
CPU_INLINE void rope_items(const struct rope_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    const int64_t pairs = a->d / 2, whole = pairs / LANES * LANES;
    if (pairs == whole)
        rope_rows(a, begin, end, whole, dt);
    else
        rope_rows(a, begin, end, pairs, dt);
}
TYPED_RANGE(rope, rope_args)

titan_status cpu_rope(struct stream *s, const struct rope_args *a)
{
    if (a->n < 0 || a->heads <= 0 || a->d <= 0 || a->d % 2 != 0 || a->ldx < a->heads * a->d || !compute_type(a->dt))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, rope_range, a->n, 1 + (1 << 13) / (a->heads * a->d), a, sizeof *a);
}
