/* SPDX-License-Identifier: Apache-2.0 */
/* sink.c - attention sinks (Xiao et al. 2023, arXiv:2309.17453): a logit of each head joins the softmax's denominator.
 *   lse' = log(exp(lse) + exp(sink)), out = x exp(lse - lse')
 *   dsink = - sum over rows of exp(sink - lse') (dout . out) */
#include <math.h>

#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/cpu.h"

enum { GRAIN = 1 << 13, ROWS = 64 };

static bool args_valid(const struct sink_args *a)
{
    return compute_type(a->dt) && a->b >= 0 && a->t >= 0 && a->h > 0 && a->dv > 0 && a->ldo >= a->h * a->dv;
}

CPU_INLINE void sink_items(const struct sink_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++)
        for (int64_t head = 0; head < a->h; head++) {
            const int64_t lse_at = (i / a->t * a->h + head) * a->t + i % a->t, row = i * a->ldo + head * a->dv;
            const float x = a->x_lse[lse_at], y = load_as_f32(a->sinks, head, dt), top = fmaxf(x, y);
            const float ex = expf(x - top), ey = expf(y - top), sum = ex + ey, factor = ex / sum;
            const void *const restrict from = at(a->x, row, dt);
            void *const restrict to = at_mut(a->out, row, dt);
            a->lse[lse_at] = top + logf(sum);
#pragma omp simd
            for (int64_t j = 0; j < a->dv; j++)
                store_f32_as(to, j, dt, load_as_f32(from, j, dt) * factor);
        }
}
TYPED_RANGE(sink, sink_args)

titan_status cpu_attention_sink(struct stream *s, const struct sink_args *a)
{
    if (!args_valid(a))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, sink_range, a->b * a->t, 1 + GRAIN / (a->h * a->dv), a, sizeof *a);
}

/* --- gradient ----------------------------------------------------------------------------------------------------- */

CPU_INLINE float dot(const void *restrict x, const void *restrict y, int64_t n, enum dtype dt)
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

/* The range counts heads. Each head's rows are first summed in groups of ROWS. So a value passes through about rows /
 * ROWS + ROWS additions, and the rounding error of a long batch is smaller by as much. */
CPU_INLINE void sink_dgrad_items(const struct sink_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    const int64_t rows = a->b * a->t;
    for (int64_t head = begin; head < end; head++) {
        const float sink = load_as_f32(a->sinks, head, dt);
        float total = 0.0f;
        for (int64_t i0 = 0; i0 < rows; i0 += ROWS) {
            float part = 0.0f;
            for (int64_t i = i0; i < MIN(i0 + ROWS, rows); i++) {
                const float lse = a->x_lse[(i / a->t * a->h + head) * a->t + i % a->t];
                part += expf(sink - lse) * dot(at(a->dout, i * a->lddo + head * a->dv, dt),
                                               at(a->x, i * a->ldo + head * a->dv, dt), a->dv, dt);
            }
            total += part;
        }
        a->dsinks[head] = -total;
    }
}
TYPED_RANGE(sink_dgrad, sink_args)

titan_status cpu_attention_sink_dgrad(struct stream *s, const struct sink_args *a)
{
    if (!args_valid(a) || a->lddo < a->h * a->dv)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, sink_dgrad_range, a->h, 1, a, sizeof *a);
}
