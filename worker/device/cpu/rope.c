/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c - rotary position embedding on adjacent pairs. */
#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct rope_args {
    void *x;
    const int32_t *positions;
    const float *cos, *sin;
    int64_t ldx, n, heads, d;
    enum dtype dt;
    bool backward;
};

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

CPU_KERNEL static void rope_row_bf16(void *x, const float *cs, const float *sn, int64_t heads, int64_t d, float sign)
{
    for (int64_t h = 0; h < heads; h++)
        rope_head(at_mut(x, h * d, DTYPE_BF16), cs, sn, d / 2, sign, DTYPE_BF16);
}
CPU_KERNEL static void rope_row_f32(void *x, const float *cs, const float *sn, int64_t heads, int64_t d, float sign)
{
    for (int64_t h = 0; h < heads; h++)
        rope_head(at_mut(x, h * d, DTYPE_F32), cs, sn, d / 2, sign, DTYPE_F32);
}

static void rope_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct rope_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = a->positions[i] * (a->d / 2);
        (a->dt == DTYPE_BF16 ? rope_row_bf16 : rope_row_f32)(at_mut(a->x, i * a->ldx, a->dt), a->cos + row,
                                                             a->sin + row, a->heads, a->d, a->backward ? -1.0f : 1.0f);
    }
}

static titan_status run_rope(const struct cpu_context *ctx, const void *p)
{
    const struct rope_args *a = p;
    titan_assert(a->heads > 0 && a->d > 0 && a->d % 2 == 0 && a->ldx >= a->heads * a->d);
    cpu_for(ctx, a->n, 1 + (1 << 13) / (a->heads * a->d), rope_range, a);
    return TITAN_OK;
}

titan_status cpu_rope(struct stream *s, void *x, int64_t ldx, const int32_t *positions, const float *cos,
                      const float *sin, enum dtype dt, int64_t n, int64_t heads, int64_t d, bool backward)
{
    if (n < 0 || heads <= 0 || d <= 0 || d % 2 != 0 || ldx < heads * d || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct rope_args a = {x, positions, cos, sin, ldx, n, heads, d, dt, backward};
    return cpu_enqueue(s, run_rope, &a, sizeof(a));
}
