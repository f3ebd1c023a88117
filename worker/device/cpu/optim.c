/* SPDX-License-Identifier: Apache-2.0 */
/* optim.c - Adam, AdamW and SGD on fp32 or bf16 masters; fp32 masters may have a bf16 shadow. An update is one pass
 * over memory. AdamW reads and writes 28 bytes an element (30 with the shadow, 20 with bf16 moments, 16 all in bf16),
 * so memory limits its speed. */
#include <assert.h>
#include <math.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct optim_args {
    void *master, *m, *v;
    const float *grad;
    uint16_t *shadow;
    size_t n;
    struct adamw_args adam;
};
static_assert(sizeof(struct optim_args) <= CPU_ARGS_MAX, "optimizer arguments fit a queue slot");

enum { GRAIN = 1 << 14, RANDOM_CHUNK = 2048 }; /* RANDOM_CHUNK: elements that get their random words together */

CPU_INLINE float rounded_to_bf16(float x)
{
    return bf16_to_f32(bf16_from_f32(x));
}

/* The mean gradient, clipped. With bf16 masters, each of the two products is rounded to bf16. */
CPU_INLINE float gradient_of(float sum, float scale, float mean, float clip, enum dtype master)
{
    return master == DTYPE_BF16 ? rounded_to_bf16(rounded_to_bf16(sum * mean) * clip) : sum * scale;
}

/* A decaying mean. exact: the sum is rounded once on every machine, whatever the compiler contracts. */
CPU_INLINE float mean_of(float decay, float old, float rest, bool exact)
{
    return exact ? fmaf(decay, old, rest) : decay * old + rest;
}

/* of: the range's arguments. The types and with_shadow are constants. random (n): words by which bf16 moments are
 * rounded; the constant NULL: they are rounded to nearest. */
CPU_INLINE void adamw_elements(const struct optim_args *of, int64_t n, enum dtype wt, enum dtype mt, bool with_shadow,
                               const uint32_t *random)
{
    const struct adamw_args *a = &of->adam;
    void *const master = of->master, *const m = of->m, *const v = of->v;
    const float *const grad = of->grad;
    uint16_t *const shadow = of->shadow;
    const float b1 = a->beta1, b2 = a->beta2, c1 = 1.0f - a->beta1, c2 = 1.0f - a->beta2;
    const float scale = a->grad_scale, mean = a->mean, clip = a->clip, lr = a->lr, eps = a->eps;
    const float decay = a->l2 ? 0.0f : a->weight_decay, l2 = a->l2 ? a->weight_decay : 0.0f;
    const float inv1 = 1.0f / a->bias1, inv2 = 1.0f / a->bias2;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = load_as_f32(master, i, wt);
        float g = mean_of(l2, w, gradient_of(grad[i], scale, mean, clip, wt), random != NULL);
        float mi = mean_of(b1, load_as_f32(m, i, mt), c1 * g, random != NULL);
        float vi = mean_of(b2, load_as_f32(v, i, mt), c2 * (g * g), random != NULL);
        w -= lr * (mi * inv1 / (sqrtf(vi * inv2) + eps) + decay * w);
        if (random) {
            ((uint16_t *)m)[i] = bf16_from_f32_at_random(mi, random[i]);
            ((uint16_t *)v)[i] = bf16_from_f32_at_random(vi, random[i] >> 16);
        } else {
            store_f32_as(m, i, mt, mi);
            store_f32_as(v, i, mt, vi);
        }
        store_f32_as(master, i, wt, w);
        if (with_shadow)
            shadow[i] = bf16_from_f32(w);
    }
}

CPU_KERNEL static void adamw_range_run(const struct optim_args *a, int64_t n)
{
    if (a->adam.master == DTYPE_BF16)
        adamw_elements(a, n, DTYPE_BF16, DTYPE_BF16, false, NULL);
    else if (a->adam.moment == DTYPE_BF16 && a->shadow)
        adamw_elements(a, n, DTYPE_F32, DTYPE_BF16, true, NULL);
    else if (a->adam.moment == DTYPE_BF16)
        adamw_elements(a, n, DTYPE_F32, DTYPE_BF16, false, NULL);
    else if (a->shadow)
        adamw_elements(a, n, DTYPE_F32, DTYPE_F32, true, NULL);
    else
        adamw_elements(a, n, DTYPE_F32, DTYPE_F32, false, NULL);
}

CPU_KERNEL static void adamw_range_at_random(const struct optim_args *a, int64_t n, const uint32_t *random)
{
    if (a->adam.master == DTYPE_BF16)
        adamw_elements(a, n, DTYPE_BF16, DTYPE_BF16, false, random);
    else if (a->shadow)
        adamw_elements(a, n, DTYPE_F32, DTYPE_BF16, true, random);
    else
        adamw_elements(a, n, DTYPE_F32, DTYPE_BF16, false, random);
}

/* The same arguments from element `begin` on. */
static struct optim_args from_element(const struct optim_args *a, int64_t begin)
{
    titan_assert(begin >= 0);
    struct optim_args part = *a;
    part.master = at_mut(a->master, begin, a->adam.master);
    part.m = a->m ? at_mut(a->m, begin, a->adam.moment) : NULL;
    part.v = a->v ? at_mut(a->v, begin, a->adam.moment) : NULL;
    part.grad = a->grad + begin;
    part.shadow = a->shadow ? a->shadow + begin : NULL;
    part.adam.rounding.first += begin;
    return part;
}

static void adamw_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct optim_args *const a = p;
    uint32_t random[RANDOM_CHUNK];
    (void)thread;
    titan_assert(end >= begin && (end == begin || (a->m && a->v)) && adamw_types_valid(&a->adam, a->shadow));
    if (!a->adam.rounding.random) {
        const struct optim_args part = from_element(a, begin);
        adamw_range_run(&part, end - begin);
        return;
    }
    titan_assert(a->adam.moment == DTYPE_BF16);
    for (int64_t n; begin < end; begin += n) {
        n = MIN(end - begin, RANDOM_CHUNK);
        const struct optim_args part = from_element(a, begin);
        const struct moment_rounding *const r = &part.adam.rounding;
        titan_assert(r->cols > 0 && r->ld >= r->cols);
        /* the random words, one row of the box at a time */
        for (int64_t done = 0, count; done < n; done += count) {
            const int64_t e = r->first + done, place = r->origin + e / r->cols * r->ld + e % r->cols;
            count = r->cols == r->ld ? n : MIN(n - done, r->cols - e % r->cols);
            rng_words(r->key, (uint64_t)place, r->step, (uint64_t)count, random + done);
        }
        adamw_range_at_random(&part, n, random);
    }
}

/* Ranges run one after the other: each uses all threads, and a call costs almost nothing. */
titan_status cpu_adamw(struct stream *s, const struct adamw_range *ranges, int count, const struct adamw_args *args)
{
    titan_assert(count >= 0);
    for (int i = 0; i < count; i++) {
        const struct adamw_range *const r = &ranges[i];
        struct optim_args a = {r->master, r->m, r->v, r->grad, r->shadow, r->n, *args};
        a.adam.rounding = r->rounding;
        if (!adamw_types_valid(&a.adam, r->shadow))
            return TITAN_EINVAL;
        TRY(cpu_enqueue_range(s, adamw_range, (int64_t)a.n, GRAIN, &a, sizeof a));
    }
    return TITAN_OK;
}

CPU_INLINE void sgd_elements(const struct optim_args *of, int64_t n, enum dtype wt, bool with_shadow)
{
    const struct adamw_args *a = &of->adam;
    void *const master = of->master;
    const float *const grad = of->grad;
    uint16_t *const shadow = of->shadow;
    const float scale = a->grad_scale, mean = a->mean, clip = a->clip, lr = a->lr, decay = a->weight_decay;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = load_as_f32(master, i, wt);
        w -= lr * (gradient_of(grad[i], scale, mean, clip, wt) + decay * w);
        store_f32_as(master, i, wt, w);
        if (with_shadow)
            shadow[i] = bf16_from_f32(w);
    }
}

CPU_KERNEL static void sgd_range_run(const struct optim_args *a, int64_t n)
{
    if (a->adam.master == DTYPE_BF16)
        sgd_elements(a, n, DTYPE_BF16, false);
    else if (a->shadow)
        sgd_elements(a, n, DTYPE_F32, true);
    else
        sgd_elements(a, n, DTYPE_F32, false);
}

static void sgd_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct optim_args part = from_element(p, begin);
    (void)thread;
    titan_assert(end >= begin && adamw_types_valid(&part.adam, part.shadow));
    sgd_range_run(&part, end - begin);
}

titan_status cpu_sgd(struct stream *s, void *master, const float *grad, uint16_t *shadow, size_t n,
                     const struct adamw_args *args)
{
    struct optim_args a = {.master = master, .grad = grad, .shadow = shadow, .n = n, .adam = *args};
    return adamw_types_valid(args, shadow) ? cpu_enqueue_range(s, sgd_range, (int64_t)n, GRAIN, &a, sizeof a)
                                           : TITAN_EINVAL;
}
