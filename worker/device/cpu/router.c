/* SPDX-License-Identifier: Apache-2.0 */
/* router.c - which experts a token goes to, and the gradient of their weights to the logits.
 *   s = softmax(l) or sigmoid(l), w_j = scale s_j / (z + eps), z = sum of the chosen s_j (normalize), or scale s_j
 *   ds_j = scale (dw_j - sum_i dw_i s_i / z) / z, or scale dw_j
 *   dl = s (ds - sum_i ds_i s_i) for softmax, s (1 - s) ds for sigmoid */
#include <math.h>
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct router_call {
    struct router_args of;
    float *scratch; /* SCRATCH_ROWS x E of each thread */
};

#define WEIGHT_EPS 1e-20f
#define SCRATCH_ROWS 5

CPU_INLINE void scores_as(float *restrict s, const void *restrict logits, int64_t n, bool sigmoid, enum dtype dt)
{
    if (sigmoid) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            s[j] = sigmoid_f32(load_as_f32(logits, j, dt));
        return;
    }
    float top = -INFINITY, sum = 0.0f;
    for (int64_t j = 0; j < n; j++)
        top = fmaxf(top, load_as_f32(logits, j, dt));
    for (int64_t j = 0; j < n; j++) {
        s[j] = exp_neg_f32(load_as_f32(logits, j, dt) - top);
        sum += s[j];
    }
    for (int64_t j = 0; j < n; j++)
        s[j] /= sum;
}
CPU_KERNEL static void scores(float *s, const void *logits, int64_t n, bool sigmoid, int dt)
{
    if (dt == DTYPE_BF16)
        scores_as(s, logits, n, sigmoid, DTYPE_BF16);
    else
        scores_as(s, logits, n, sigmoid, DTYPE_F32);
}

/* Chooses the top_k first keys that are not taken, and marks them as taken. Larger keys come first and NaN last; among
 * equals, the lower index comes first. */
static void choose(int32_t *chosen, const float *key, float *taken, int64_t n, int64_t top_k)
{
    for (int64_t c = 0; c < top_k; c++) {
        int64_t best = -1;
        for (int64_t j = 0; j < n; j++) {
            if (taken[j] == 0.0f && (best < 0 || key[j] > key[best] || (isnan(key[best]) && !isnan(key[j]))))
                best = j;
        }
        taken[best] = 1.0f;
        chosen[c] = (int32_t)best;
    }
}

/* Chooses by the scores s (E) and the bias. key: this thread's scratch behind the scores, for all other rows. */
static void choose_best(const struct router_args *a, int32_t *chosen, const float *s, float *key)
{
    const struct router_shape *z = &a->shape;
    const int64_t width = z->groups > 0 ? z->experts / z->groups : 0;
    float *taken = key + z->experts, *score = taken + 2 * z->experts;
    int32_t *ids = (int32_t *)(taken + z->experts);
    for (int64_t j = 0; j < z->experts; j++)
        key[j] = a->bias ? s[j] + a->bias[j] : s[j];
    memset(taken, 0, (size_t)z->experts * sizeof(float));
    if (z->groups > 0) { /* the experts of all groups but the best are marked as taken */
        for (int64_t g = 0; g < z->groups; g++) {
            choose(ids, key + g * width, taken + g * width, width, z->group_top_k);
            score[g] = 0.0f;
            for (int64_t j = 0; j < z->group_top_k; j++)
                score[g] += key[g * width + ids[j]];
        }
        memset(taken, 0, (size_t)z->groups * sizeof(float));
        choose(ids, score, taken, z->groups, z->top_groups);
        for (int64_t e = 0; e < z->experts; e++)
            taken[e] = 1.0f;
        for (int64_t j = 0; j < z->top_groups; j++)
            memset(taken + ids[j] * width, 0, (size_t)width * sizeof(float));
    }
    choose(chosen, key, taken, z->experts, z->top_k);
}

static void router_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct router_call *const call = p;
    const struct router_args *a = &call->of;
    const struct router_shape *z = &a->shape;
    const int64_t experts = z->experts, k = z->top_k;
    float *s = call->scratch + (size_t)thread * SCRATCH_ROWS * (size_t)experts;
    for (int64_t i = begin; i < end; i++) {
        float sum = 0.0f, *weights = a->weights + i * k;
        int32_t *chosen = a->chosen + i * k;
        scores(s, at(a->logits, i * experts, z->dt), experts, z->sigmoid, (int)z->dt);
        if (a->numbers) {
            for (int64_t j = 0; j < k; j++)
                chosen[j] = (int32_t)(((uint32_t)a->numbers[i] * (uint64_t)k + (uint64_t)j) % (uint64_t)experts);
        } else {
            choose_best(a, chosen, s, s + experts);
        }
        for (int64_t j = 0; j < k; j++)
            sum += s[chosen[j]];
        for (int64_t j = 0; j < k; j++)
            weights[j] = (z->normalize ? s[chosen[j]] / (sum + WEIGHT_EPS) : s[chosen[j]]) * z->scale;
    }
}

/* Runs fn over all tokens. */
static titan_status run_tokens(const struct cpu_context *ctx, const struct router_args *a, cpu_range fn)
{
    const struct router_shape *z = &a->shape;
    void *scratch;
    TRY(cpu_scratch_take(ctx, (size_t)ctx->threads * SCRATCH_ROWS * (size_t)z->experts * sizeof(float), &scratch));
    cpu_for(ctx, z->n, 1 + (1 << 12) / (z->experts * z->top_k), fn, &(struct router_call){*a, scratch});
    cpu_scratch_give(ctx);
    return TITAN_OK;
}

static titan_status run_router(const struct cpu_context *ctx, const void *p)
{
    const struct router_args *a = p;
    titan_assert(a->chosen && a->weights);
    TRY(run_tokens(ctx, a, router_range));
    for (int64_t i = 0; a->load && i < a->shape.n * a->shape.top_k; i++)
        a->load[a->chosen[i]] += 1.0f; /* exact up to 2^24 */
    return TITAN_OK;
}

static bool shape_valid(const struct router_shape *z)
{
    const int64_t max = 1 << 24;
    return (z->dt == DTYPE_BF16 || z->dt == DTYPE_F32) && z->n >= 0 && z->experts > 0 && z->experts < max &&
           z->top_k > 0 && z->top_k <= z->experts && router_groups_valid(z);
}

titan_status cpu_router(struct stream *s, const struct router_args *a)
{
    return shape_valid(&a->shape) ? cpu_enqueue(s, run_router, a, sizeof *a) : TITAN_EINVAL;
}

/* --- gradient ----------------------------------------------------------------------------------------------------- */

static void router_dgrad_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct router_call *const call = p;
    const struct router_args *a = &call->of;
    const struct router_shape *z = &a->shape;
    const int64_t experts = z->experts;
    float *s = call->scratch + (size_t)thread * SCRATCH_ROWS * (size_t)experts, *ds = s + experts;
    for (int64_t i = begin; i < end; i++) {
        void *dlogits = at_mut(a->dlogits, i * experts, z->dt);
        const float *dw = a->dweights + i * z->top_k;
        const int32_t *chosen = a->chosen + i * z->top_k;
        float chosen_sum = WEIGHT_EPS, chosen_mean = 0.0f, mean = 0.0f;
        scores(s, at(a->logits, i * experts, z->dt), experts, z->sigmoid, (int)z->dt);
        /* the gradient to the scores; 0 for experts that were not chosen */
        memset(ds, 0, (size_t)experts * sizeof(float));
        for (int64_t j = 0; j < z->top_k; j++) {
            chosen_sum += s[chosen[j]];
            chosen_mean += dw[j] * s[chosen[j]];
        }
        for (int64_t j = 0; j < z->top_k; j++)
            ds[chosen[j]] = z->scale * (z->normalize ? (dw[j] - chosen_mean / chosen_sum) / chosen_sum : dw[j]);
        for (int64_t j = 0; j < experts && !z->sigmoid; j++)
            mean += ds[j] * s[j];
        for (int64_t j = 0; j < experts; j++)
            store_f32_as(dlogits, j, z->dt, z->sigmoid ? s[j] * (1.0f - s[j]) * ds[j] : s[j] * (ds[j] - mean));
    }
}

/* Checks the choices. A faulty caller may have overwritten them in device memory, and a write to an expert that does
 * not exist must not happen. */
static titan_status check_choices(const struct cpu_context *ctx, const int32_t *chosen, const struct router_shape *z)
{
    for (int64_t i = 0; i < z->n * z->top_k; i++)
        if (chosen[i] < 0 || chosen[i] >= z->experts)
            return titan_fail(ctx->err, TITAN_EINVAL, "router: choice %lld is expert %d of %lld", (long long)i,
                              chosen[i], (long long)z->experts);
    return TITAN_OK;
}

static titan_status run_router_dgrad(const struct cpu_context *ctx, const void *p)
{
    const struct router_args *a = p;
    TRY(check_choices(ctx, a->chosen, &a->shape));
    return run_tokens(ctx, a, router_dgrad_range);
}

titan_status cpu_router_dgrad(struct stream *s, const struct router_args *a)
{
    return shape_valid(&a->shape) ? cpu_enqueue(s, run_router_dgrad, a, sizeof *a) : TITAN_EINVAL;
}

/* --- balance ------------------------------------------------------------------------------------------------------ */

struct experts_args {
    float *bias, *load;
    int64_t experts;
    float rate;
};

static float sign_of(float x)
{
    return (float)(x > 0.0f) - (float)(x < 0.0f);
}

static titan_status run_balance(const struct cpu_context *ctx, const void *p)
{
    const struct experts_args *a = p;
    titan_assert(a->experts > 0);
    double total = 0.0, changes = 0.0;
    (void)ctx;
    for (int64_t e = 0; e < a->experts; e++)
        total += a->load[e];
    float mean = (float)(total / (double)a->experts);
    for (int64_t e = 0; e < a->experts; e++)
        changes += sign_of(mean - a->load[e]);
    float shift = (float)(changes / (double)a->experts);
    for (int64_t e = 0; e < a->experts; e++) {
        a->bias[e] += a->rate * (sign_of(mean - a->load[e]) - shift);
        a->load[e] = 0.0f;
    }
    return TITAN_OK;
}

titan_status cpu_router_balance(struct stream *s, float *bias, float *load, int64_t experts, float rate)
{
    struct experts_args a = {bias, load, experts, rate};
    return experts > 0 ? cpu_enqueue(s, run_balance, &a, sizeof(a)) : TITAN_EINVAL;
}

/* --- balance loss ------------------------------------------------------------------------------------------------- */

struct balance_call {
    struct balance_args of;
    double *sums;   /* E for each sequence */
    float *scratch; /* E for each thread */
};

static bool balance_valid(const struct balance_args *a)
{
    return shape_valid(&a->shape) && token_rows_valid(&a->rows) && a->rows.n == a->shape.n;
}

/* Divides a token's scores by their sum and returns the sum. */
static float shares(float *s, const struct balance_args *a, int64_t row)
{
    const struct router_shape *z = &a->shape;
    float sum = 0.0f;
    scores(s, at(a->logits, row * z->experts, z->dt), z->experts, z->sigmoid, (int)z->dt);
    for (int64_t e = 0; e < z->experts; e++)
        sum += s[e];
    sum += WEIGHT_EPS;
    for (int64_t e = 0; e < z->experts; e++)
        s[e] /= sum;
    return sum;
}

/* The range counts sequences. For each one all tokens are scanned, because its rows may lie in several pieces. */
static void balance_stats_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct balance_call *const call = p;
    const struct balance_args *a = &call->of;
    const struct router_shape *z = &a->shape;
    float *s = call->scratch + thread * z->experts;
    titan_assert(a->stats && a->targets && end <= a->rows.sequences);
    for (int64_t b = begin; b < end; b++) {
        float *stats = a->stats + b * BALANCE_STATS(z->experts), counted = 0.0f;
        double *sums = call->sums + b * z->experts;
        memset(stats, 0, (size_t)BALANCE_STATS(z->experts) * sizeof(float));
        memset(sums, 0, (size_t)z->experts * sizeof(double));
        for (int64_t i = 0; i < z->n; i++) {
            const int64_t place = token_rows_place(&a->rows, i);
            if (place / a->rows.length != b)
                continue;
            (void)shares(s, a, i);
            for (int64_t e = 0; e < z->experts; e++)
                sums[e] += s[e];
            for (int64_t j = 0; j < z->top_k; j++)
                stats[a->chosen[i * z->top_k + j]] += 1.0f;
            counted += a->targets[place] >= 0 ? 1.0f : 0.0f;
        }
        for (int64_t e = 0; e < z->experts; e++)
            stats[z->experts + e] = (float)sums[e];
        stats[2 * z->experts] = counted;
    }
}

static titan_status run_balance_stats(const struct cpu_context *ctx, const void *p)
{
    const struct balance_args *a = p;
    const size_t sequences = (size_t)a->rows.sequences, experts = (size_t)a->shape.experts;
    void *scratch;
    TRY(check_choices(ctx, a->chosen, &a->shape));
    TRY(cpu_scratch_take(ctx, experts * (sequences * sizeof(double) + (size_t)ctx->threads * sizeof(float)), &scratch));
    const struct balance_call call = {*a, scratch, (float *)((double *)scratch + sequences * experts)};
    cpu_for(ctx, a->rows.sequences, 1, balance_stats_range, &call);
    cpu_scratch_give(ctx);
    return TITAN_OK;
}

titan_status cpu_balance_stats(struct stream *s, const struct balance_args *a)
{
    return balance_valid(a) ? cpu_enqueue(s, run_balance_stats, a, sizeof *a) : TITAN_EINVAL;
}

static titan_status run_balance_loss(const struct cpu_context *ctx, const void *p)
{
    const struct balance_loss_args *a = p;
    const int64_t experts = a->experts, each = BALANCE_STATS(experts), part = a->sequences * each;
    (void)ctx;
    titan_assert(a->parts > 0 && a->tokens > 0);
    for (int64_t b = 0; b < a->sequences; b++) {
        double loss = 0.0, counted = 0.0;
        for (int64_t q = 0; q < a->parts; q++)
            counted += a->stats[q * part + b * each + 2 * experts];
        for (int64_t e = 0; e < experts; e++) {
            double chosen = 0.0, sum = 0.0;
            for (int64_t q = 0; q < a->parts; q++) {
                chosen += a->stats[q * part + b * each + e];
                sum += a->stats[q * part + b * each + experts + e];
            }
            const double f = (double)experts * chosen / ((double)a->top_k * (double)a->tokens);
            loss += f * sum / (double)a->tokens;
            a->dscores[b * experts + e] = (float)((double)a->factor * counted * (f - 1.0) / (double)a->tokens);
        }
        a->losses[b] = (float)(counted * loss);
    }
    return TITAN_OK;
}

titan_status cpu_balance_loss(struct stream *s, const struct balance_loss_args *a)
{
    if (a->parts <= 0 || a->sequences <= 0 || a->experts <= 0 || a->top_k <= 0 || a->tokens <= 0)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_balance_loss, a, sizeof *a);
}

/* With q = s / sum s, the gradient dq gives ds = (dq - sum_e dq_e q_e) / sum s. Then ds gives dl as in the router's
 * gradient. */
static void balance_dgrad_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct balance_call *const call = p;
    const struct balance_args *a = &call->of;
    const struct router_shape *z = &a->shape;
    float *q = call->scratch + thread * z->experts;
    titan_assert(a->dlogits && a->dscores && end <= z->n);
    for (int64_t i = begin; i < end; i++) {
        void *dlogits = at_mut(a->dlogits, i * z->experts, z->dt);
        const float *dq = a->dscores + token_rows_place(&a->rows, i) / a->rows.length * z->experts;
        float mean = 0.0f;
        const float sum = shares(q, a, i);
        for (int64_t e = 0; e < z->experts; e++)
            mean += dq[e] * q[e];
        for (int64_t e = 0; e < z->experts; e++) {
            const float slope = z->sigmoid ? 1.0f - q[e] * sum : 1.0f;
            store_f32_as(dlogits, e, z->dt, load_as_f32(dlogits, e, z->dt) + q[e] * slope * (dq[e] - mean));
        }
    }
}

static titan_status run_balance_dgrad(const struct cpu_context *ctx, const void *p)
{
    const struct balance_args *a = p;
    void *scratch;
    TRY(cpu_scratch_take(ctx, (size_t)ctx->threads * (size_t)a->shape.experts * sizeof(float), &scratch));
    const struct balance_call call = {.of = *a, .scratch = scratch};
    cpu_for(ctx, a->shape.n, 1 + (1 << 12) / a->shape.experts, balance_dgrad_range, &call);
    cpu_scratch_give(ctx);
    return TITAN_OK;
}

titan_status cpu_balance_dgrad(struct stream *s, const struct balance_args *a)
{
    return balance_valid(a) ? cpu_enqueue(s, run_balance_dgrad, a, sizeof *a) : TITAN_EINVAL;
}
