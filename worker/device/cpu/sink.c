/* SPDX-License-Identifier: Apache-2.0 */
/* sink.c - attention sinks (Xiao et al. 2023, arXiv:2309.17453): a logit of each head joins the softmax's denominator.
 *   lse' = log(exp(lse) + exp(sink)), out = x exp(lse - lse')
 *   dsink = - sum over rows of exp(sink - lse') (dout . out) */
#include <math.h>

#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/cpu.h"

enum { GRAIN = 1 << 13, ROWS = 64 };

struct sink_args {
    void *out;
    const void *x, *dout, *sinks;
    float *lse, *dsinks;
    const float *x_lse;
    enum dtype dt;
    int64_t ld, lddo, b, t, h, dv;
};

CPU_INLINE void scale_row_as(void *restrict out, const void *restrict x, float factor, int64_t n, enum dtype dt)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        store_f32_as(out, j, dt, load_as_f32(x, j, dt) * factor);
}
CPU_KERNEL static void scale_row(void *out, const void *x, float factor, int64_t n, int dt)
{
    if (dt == DTYPE_BF16)
        scale_row_as(out, x, factor, n, DTYPE_BF16);
    else
        scale_row_as(out, x, factor, n, DTYPE_F32);
}

static void sink_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct sink_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        for (int64_t head = 0; head < a->h; head++) {
            const int64_t lse_at = (i / a->t * a->h + head) * a->t + i % a->t, row = i * a->ld + head * a->dv;
            const float x = a->x_lse[lse_at], y = load_as_f32(a->sinks, head, a->dt), top = fmaxf(x, y);
            const float ex = expf(x - top), ey = expf(y - top), sum = ex + ey;
            a->lse[lse_at] = top + logf(sum);
            scale_row(at_mut(a->out, row, a->dt), at(a->x, row, a->dt), ex / sum, a->dv, (int)a->dt);
        }
}

static titan_status run_sink(const struct cpu_context *ctx, const void *p)
{
    const struct sink_args *a = p;
    titan_assert(a->h > 0 && a->dv > 0 && a->ld >= a->h * a->dv);
    cpu_for(ctx, a->b * a->t, 1 + GRAIN / (a->h * a->dv), sink_range, a);
    return TITAN_OK;
}

titan_status cpu_attention_sink(struct stream *s, void *out, float *lse, const void *x, const float *x_lse, int64_t ld,
                                const void *sinks, enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t dv)
{
    if ((dt != DTYPE_BF16 && dt != DTYPE_F32) || b < 0 || t < 0 || h <= 0 || dv <= 0 || ld < h * dv)
        return TITAN_EINVAL;
    struct sink_args a = {.out = out,
                          .lse = lse,
                          .x = x,
                          .x_lse = x_lse,
                          .sinks = sinks,
                          .dt = dt,
                          .ld = ld,
                          .b = b,
                          .t = t,
                          .h = h,
                          .dv = dv};
    return cpu_enqueue(s, run_sink, &a, sizeof(a));
}

/* --- gradient ----------------------------------------------------------------------------------------------------- */

CPU_INLINE float dot_as(const void *restrict x, const void *restrict y, int64_t n, enum dtype dt)
{
    float lanes[LANES] = {0};
    const int64_t whole = n / LANES * LANES;
    for (int64_t j = 0; j < whole; j += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += load_as_f32(x, j + l, dt) * load_as_f32(y, j + l, dt);
    for (int64_t j = whole; j < n; j++)
        lanes[j - whole] += load_as_f32(x, j, dt) * load_as_f32(y, j, dt);
    return lanes_sum(lanes);
}
CPU_KERNEL static float dot(const void *x, const void *y, int64_t n, int dt)
{
    return dt == DTYPE_BF16 ? dot_as(x, y, n, DTYPE_BF16) : dot_as(x, y, n, DTYPE_F32);
}

/* Heads, each over all rows, in groups of ROWS: the rounding of a long batch grows with its square root. */
static void sink_dgrad_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct sink_args *a = p;
    const int64_t rows = a->b * a->t;
    (void)thread;
    for (int64_t head = begin; head < end; head++) {
        const float sink = load_as_f32(a->sinks, head, a->dt);
        float total = 0.0f;
        for (int64_t i0 = 0; i0 < rows; i0 += ROWS) {
            float part = 0.0f;
            for (int64_t i = i0; i < MIN(i0 + ROWS, rows); i++) {
                const float lse = a->x_lse[(i / a->t * a->h + head) * a->t + i % a->t];
                part += expf(sink - lse) * dot(at(a->dout, i * a->lddo + head * a->dv, a->dt),
                                               at(a->x, i * a->ld + head * a->dv, a->dt), a->dv, (int)a->dt);
            }
            total += part;
        }
        a->dsinks[head] = -total;
    }
}

static titan_status run_sink_dgrad(const struct cpu_context *ctx, const void *p)
{
    const struct sink_args *a = p;
    titan_assert(a->h > 0 && a->dv > 0 && a->ld >= a->h * a->dv && a->lddo >= a->h * a->dv);
    cpu_for(ctx, a->h, 1, sink_dgrad_range, a);
    return TITAN_OK;
}

titan_status cpu_attention_sink_dgrad(struct stream *s, float *dsinks, const void *dout, int64_t lddo, const void *out,
                                      int64_t ldo, const float *lse, const void *sinks, enum dtype dt, int64_t b,
                                      int64_t t, int64_t h, int64_t dv)
{
    if ((dt != DTYPE_BF16 && dt != DTYPE_F32) || b < 0 || t < 0 || h <= 0 || dv <= 0 || ldo < h * dv || lddo < h * dv)
        return TITAN_EINVAL;
    struct sink_args a = {.dsinks = dsinks,
                          .dout = dout,
                          .lddo = lddo,
                          .x = out,
                          .ld = ldo,
                          .x_lse = lse,
                          .sinks = sinks,
                          .dt = dt,
                          .b = b,
                          .t = t,
                          .h = h,
                          .dv = dv};
    return cpu_enqueue(s, run_sink_dgrad, &a, sizeof(a));
}
