/* SPDX-License-Identifier: Apache-2.0 */
/* loss.c - softmax cross-entropy over a vocabulary in parts. First each part computes its numbers for the others; then
 * the numbers of all parts give loss and gradient. */
#include <math.h>
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

enum { STATS = 3, GRAIN = 1 << 13 }; /* largest logit, sum of exp(logit - largest), the target's logit */

/* This part's column of the target; -1: the target is in another part. */
CPU_INLINE int64_t column_of(const struct loss_args *a, int64_t i)
{
    int64_t column = a->targets[i] - a->first;
    return a->targets[i] >= 0 && column >= 0 && column < a->v ? column : -1;
}

static bool args_valid(const struct loss_args *a)
{
    return a->n >= 0 && a->v > 0 && a->first >= 0 && compute_type(a->dt);
}

/* A NaN among the logits makes the sum NaN. */
CPU_INLINE void stats_of(const struct loss_args *a, int64_t row, enum dtype dt)
{
    const void *const logits = at(a->logits, row * a->v, dt);
    const int64_t whole = a->v / LANES * LANES, column = column_of(a, row);
    float *const stats = a->stats + row * STATS, tops[LANES], sums[LANES] = {0};
    if (a->targets[row] < 0) { /* the target does not count, so the row's logits are not read */
        stats[0] = stats[1] = stats[2] = 0.0f;
        return;
    }
    for (int l = 0; l < LANES; l++)
        tops[l] = -INFINITY;
    for (int64_t j = 0; j < whole; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float x = load_as_f32(logits, j + l, dt);
            tops[l] = x > tops[l] ? x : tops[l];
        }
    for (int64_t j = whole; j < a->v; j++)
        tops[j - whole] = fmaxf(tops[j - whole], load_as_f32(logits, j, dt));
    float max = lanes_max(tops), from = max == -INFINITY ? 0.0f : max;
    for (int64_t j = 0; j < whole; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            sums[l] += exp_neg_f32(load_as_f32(logits, j + l, dt) - from);
    for (int64_t j = whole; j < a->v; j++)
        sums[j - whole] += exp_neg_f32(load_as_f32(logits, j, dt) - from);
    stats[0] = max;
    stats[1] = lanes_sum(sums);
    stats[2] = column >= 0 ? load_as_f32(logits, column, dt) : 0.0f;
}

CPU_INLINE void stats_items(const struct loss_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++)
        stats_of(a, i, dt);
}
TYPED_RANGE(stats, loss_args)

titan_status cpu_loss_stats(struct stream *s, const struct loss_args *a)
{
    return args_valid(a) ? cpu_enqueue_range(s, stats_range, a->n, 1 + GRAIN / a->v, a, sizeof *a) : TITAN_EINVAL;
}

/* loss = log(sum exp(x - max)) - (x[target] - max), over all parts. dlogits = exp(x - max) / sum, less 1 at the
 * target's column. dlogits may be the logits' memory: they are overwritten element by element. */
CPU_INLINE void finish_of(const struct loss_args *a, int64_t row, int64_t parts, enum dtype dt)
{
    void *const dlogits = a->dlogits ? at_mut(a->dlogits, row * a->v, dt) : NULL;
    const void *const logits = at(a->logits, row * a->v, dt);
    const int64_t column = column_of(a, row);
    float max = -INFINITY, sum = 0.0f, target = 0.0f;
    if (a->targets[row] < 0) {
        a->losses[row] = 0.0f;
        if (dlogits)
            memset(dlogits, 0, (size_t)a->v * dtype_bytes(dt));
        return;
    }
    for (int64_t p = 0; p < parts; p++)
        max = fmaxf(max, a->stats[(p * a->n + row) * STATS]);
    for (int64_t p = 0; p < parts; p++) {
        const float *stats = a->stats + (p * a->n + row) * STATS;
        sum += stats[0] == max ? stats[1] : stats[1] * expf(stats[0] - max);
        target += stats[2];
    }
    a->losses[row] = logf(sum) - (target - max);
    if (!dlogits)
        return;
    const float k = 1.0f / sum;
    const float picked = column < 0 ? 0.0f : exp_neg_f32(load_as_f32(logits, column, dt) - max) / sum - 1.0f;
#pragma omp simd
    for (int64_t j = 0; j < a->v; j++)
        store_f32_as(dlogits, j, dt, exp_neg_f32(load_as_f32(logits, j, dt) - max) * k);
    if (column >= 0)
        store_f32_as(dlogits, column, dt, picked);
}

CPU_INLINE void finish_items(const struct loss_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++)
        finish_of(a, i, a->parts, dt);
}
TYPED_RANGE(finish, loss_args)

titan_status cpu_loss_finish(struct stream *s, const struct loss_args *a)
{
    if (!args_valid(a) || a->parts <= 0)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, finish_range, a->n, 1 + GRAIN / a->v, a, sizeof *a);
}

/* Does both steps for a row at once, so that the row's logits are still in the cache when the gradient is computed. */
CPU_INLINE void loss_items(const struct loss_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++) {
        stats_of(a, i, dt);
        finish_of(a, i, 1, dt);
    }
}
TYPED_RANGE(loss, loss_args)

titan_status cpu_loss(struct stream *s, const struct loss_args *a)
{
    return args_valid(a) ? cpu_enqueue_range(s, loss_range, a->n, 1 + GRAIN / a->v, a, sizeof *a) : TITAN_EINVAL;
}
