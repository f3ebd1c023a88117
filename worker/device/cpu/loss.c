/* SPDX-License-Identifier: Apache-2.0 */
/* loss.c - softmax cross-entropy over a vocabulary in parts: what each part has to tell the others, then loss and
 * gradient from what all have sent. */
#include <math.h>
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct loss_args {
    float *losses, *stats;
    void *dlogits;
    const void *logits;
    const int32_t *targets;
    enum dtype dt;
    int64_t parts, n, v, first;
};

enum { STATS = 3 }; /* largest logit, sum of exp(logit - largest), the target's logit */

/* This part's column of the target, -1: not here. */
CPU_INLINE int64_t column_of(const struct loss_args *a, int64_t i)
{
    int64_t column = a->targets[i] - a->first;
    return a->targets[i] >= 0 && column >= 0 && column < a->v ? column : -1;
}

/* A NaN among the logits makes the sum NaN. */
CPU_INLINE void stats_row(float *stats, const void *logits, int64_t v, enum dtype dt)
{
    float tops[LANES], sums[LANES] = {0};
    int64_t whole = v / LANES * LANES;
    for (int l = 0; l < LANES; l++)
        tops[l] = -INFINITY;
    for (int64_t j = 0; j < whole; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float x = load_as_f32(logits, j + l, dt);
            tops[l] = x > tops[l] ? x : tops[l];
        }
    for (int64_t j = whole; j < v; j++)
        tops[j - whole] = fmaxf(tops[j - whole], load_as_f32(logits, j, dt));
    float max = lanes_max(tops), from = max == -INFINITY ? 0.0f : max;
    for (int64_t j = 0; j < whole; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            sums[l] += exp_neg_f32(load_as_f32(logits, j + l, dt) - from);
    for (int64_t j = whole; j < v; j++)
        sums[j - whole] += exp_neg_f32(load_as_f32(logits, j, dt) - from);
    stats[0] = max;
    stats[1] = lanes_sum(sums);
}
CPU_KERNEL static void stats_bf16(float *stats, const void *logits, int64_t v)
{
    stats_row(stats, logits, v, DTYPE_BF16);
}
CPU_KERNEL static void stats_f32(float *stats, const void *logits, int64_t v)
{
    stats_row(stats, logits, v, DTYPE_F32);
}

static void stats_of(const struct loss_args *a, int64_t i)
{
    float *stats = a->stats + i * STATS;
    const void *logits = at(a->logits, i * a->v, a->dt);
    int64_t column = column_of(a, i);
    if (a->targets[i] < 0) { /* not counted: it is not looked at */
        stats[0] = stats[1] = stats[2] = 0.0f;
        return;
    }
    (a->dt == DTYPE_BF16 ? stats_bf16 : stats_f32)(stats, logits, a->v);
    stats[2] = column >= 0 ? load_as_f32(logits, column, a->dt) : 0.0f;
}

static void stats_range(const void *p, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        stats_of(p, i);
}

static titan_status run_stats(const struct cpu_context *ctx, const void *p)
{
    const struct loss_args *a = p;
    titan_assert(a->n >= 0 && a->v > 0 && a->first >= 0);
    cpu_for(ctx, a->n, 1 + (1 << 13) / a->v, stats_range, a);
    return TITAN_OK;
}

static bool args_valid(const struct loss_args *a)
{
    return a->n >= 0 && a->v > 0 && a->first >= 0 && a->parts > 0 && (a->dt == DTYPE_BF16 || a->dt == DTYPE_F32);
}

titan_status cpu_loss_stats(struct stream *s, float *stats, const void *logits, const int32_t *targets, enum dtype dt,
                            int64_t n, int64_t v, int64_t first)
{
    struct loss_args a = {
        .stats = stats, .logits = logits, .targets = targets, .dt = dt, .parts = 1, .n = n, .v = v, .first = first};
    return args_valid(&a) ? cpu_enqueue(s, run_stats, &a, sizeof(a)) : TITAN_EINVAL;
}

/* dlogits = exp(x - max) / sum, less 1 at the target's column. It is written over the logits element by element, so
 * they may be the same memory. */
CPU_INLINE void gradient_row(void *dlogits, const void *logits, int64_t column, int64_t v, float max, float sum,
                             enum dtype dt)
{
    float k = 1.0f / sum, target = 0.0f;
    if (column >= 0)
        target = exp_neg_f32(load_as_f32(logits, column, dt) - max) / sum - 1.0f;
#pragma omp simd
    for (int64_t j = 0; j < v; j++)
        store_f32_as(dlogits, j, dt, exp_neg_f32(load_as_f32(logits, j, dt) - max) * k);
    if (column >= 0)
        store_f32_as(dlogits, column, dt, target);
}
CPU_KERNEL static void gradient_bf16(void *dlogits, const void *logits, int64_t column, int64_t v, float max, float sum)
{
    gradient_row(dlogits, logits, column, v, max, sum, DTYPE_BF16);
}
CPU_KERNEL static void gradient_f32(void *dlogits, const void *logits, int64_t column, int64_t v, float max, float sum)
{
    gradient_row(dlogits, logits, column, v, max, sum, DTYPE_F32);
}

/* loss = log(sum exp(x - max)) - (x[target] - max), over all parts. */
static float finish_row(const struct loss_args *a, int64_t i, float *ret_max, float *ret_sum)
{
    float max = -INFINITY, sum = 0.0f, target = 0.0f;
    for (int64_t p = 0; p < a->parts; p++)
        max = fmaxf(max, a->stats[(p * a->n + i) * STATS]);
    for (int64_t p = 0; p < a->parts; p++) {
        const float *stats = a->stats + (p * a->n + i) * STATS;
        sum += stats[0] == max ? stats[1] : stats[1] * expf(stats[0] - max);
        target += stats[2];
    }
    *ret_max = max;
    *ret_sum = sum;
    return logf(sum) - (target - max);
}

static void finish_of(const struct loss_args *a, int64_t i)
{
    void *dlogits = a->dlogits ? at_mut(a->dlogits, i * a->v, a->dt) : NULL;
    float max, sum;
    if (a->targets[i] < 0) {
        a->losses[i] = 0.0f;
        if (dlogits)
            memset(dlogits, 0, (size_t)a->v * dtype_bytes(a->dt));
        return;
    }
    a->losses[i] = finish_row(a, i, &max, &sum);
    if (dlogits)
        (a->dt == DTYPE_BF16 ? gradient_bf16 : gradient_f32)(dlogits, at(a->logits, i * a->v, a->dt), column_of(a, i),
                                                             a->v, max, sum);
}

static void finish_range(const void *p, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        finish_of(p, i);
}

static titan_status run_finish(const struct cpu_context *ctx, const void *p)
{
    const struct loss_args *a = p;
    titan_assert(a->n >= 0 && a->v > 0 && a->parts >= 1);
    cpu_for(ctx, a->n, 1 + (1 << 13) / a->v, finish_range, a);
    return TITAN_OK;
}

titan_status cpu_loss_finish(struct stream *s, float *losses, void *dlogits, const void *logits, const int32_t *targets,
                             const float *stats, int64_t parts, enum dtype dt, int64_t n, int64_t v, int64_t first)
{
    struct loss_args a = {losses, (float *)stats, dlogits, logits, targets, dt, parts, n, v, first};
    return args_valid(&a) ? cpu_enqueue(s, run_finish, &a, sizeof(a)) : TITAN_EINVAL;
}

/* A row's logits are in the cache when its gradient is computed. */
static void loss_range(const void *p, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        stats_of(p, i);
        finish_of(p, i);
    }
}

static titan_status run_loss(const struct cpu_context *ctx, const void *p)
{
    const struct loss_args *a = p;
    titan_assert(a->n >= 0 && a->v > 0 && a->parts == 1);
    cpu_for(ctx, a->n, 1 + (1 << 13) / a->v, loss_range, a);
    return TITAN_OK;
}

titan_status cpu_loss(struct stream *s, float *losses, float *stats, void *dlogits, const void *logits,
                      const int32_t *targets, enum dtype dt, int64_t n, int64_t v, int64_t first)
{
    struct loss_args a = {losses, stats, dlogits, logits, targets, dt, 1, n, v, first};
    return args_valid(&a) ? cpu_enqueue(s, run_loss, &a, sizeof(a)) : TITAN_EINVAL;
}
