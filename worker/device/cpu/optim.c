/* SPDX-License-Identifier: Apache-2.0 */
/* optim.c - Adam, AdamW and SGD on fp32 masters with an optional bf16 shadow. One pass over memory: AdamW reads and
 * writes 28 bytes an element (30 with the shadow), so memory bounds it. */
#include <math.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct optim_args {
    float *master, *m, *v;
    const float *grad;
    uint16_t *shadow;
    size_t n;
    struct adamw_args adam;
};

CPU_INLINE void adamw_elements(float *restrict master, float *restrict m, float *restrict v, const float *restrict grad,
                               uint16_t *restrict shadow, int64_t n, const struct adamw_args *a, bool with_shadow)
{
    const float b1 = a->beta1, b2 = a->beta2, c1 = 1.0f - a->beta1, c2 = 1.0f - a->beta2;
    const float scale = a->grad_scale, lr = a->lr, eps = a->eps;
    const float decay = a->l2 ? 0.0f : a->weight_decay, l2 = a->l2 ? a->weight_decay : 0.0f;
    const float inv1 = 1.0f / a->bias1, inv2 = 1.0f / a->bias2;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = master[i];
        float g = grad[i] * scale + l2 * w;
        float mi = b1 * m[i] + c1 * g;
        float vi = b2 * v[i] + c2 * (g * g);
        w -= lr * (mi * inv1 / (sqrtf(vi * inv2) + eps) + decay * w);
        m[i] = mi;
        v[i] = vi;
        master[i] = w;
        if (with_shadow)
            shadow[i] = bf16_from_f32(w);
    }
}

CPU_KERNEL static void adamw_range_run(float *master, float *m, float *v, const float *grad, uint16_t *shadow,
                                       int64_t n, const struct adamw_args *a)
{
    if (shadow)
        adamw_elements(master, m, v, grad, shadow, n, a, true);
    else
        adamw_elements(master, m, v, grad, shadow, n, a, false);
}

static void adamw_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct optim_args *a = p;
    (void)thread;
    adamw_range_run(a->master + begin, a->m + begin, a->v + begin, a->grad + begin,
                    a->shadow ? a->shadow + begin : NULL, end - begin, &a->adam);
}

static titan_status run_adamw(const struct cpu_context *ctx, const void *p)
{
    const struct optim_args *a = p;
    cpu_for(ctx, (int64_t)a->n, 1 << 14, adamw_range, a);
    return TITAN_OK;
}

titan_status cpu_adamw(struct stream *s, float *master, float *m, float *v, const float *grad, uint16_t *shadow,
                       size_t n, const struct adamw_args *args)
{
    struct optim_args a = {master, m, v, grad, shadow, n, *args};
    return cpu_enqueue(s, run_adamw, &a, sizeof(a));
}

CPU_KERNEL static void sgd_elements(float *restrict master, const float *restrict grad, uint16_t *restrict shadow,
                                    int64_t n, float scale, float lr, float decay)
{
    if (shadow) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            master[i] -= lr * (grad[i] * scale + decay * master[i]);
            shadow[i] = bf16_from_f32(master[i]);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            master[i] -= lr * (grad[i] * scale + decay * master[i]);
    }
}

static void sgd_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct optim_args *a = p;
    (void)thread;
    sgd_elements(a->master + begin, a->grad + begin, a->shadow ? a->shadow + begin : NULL, end - begin,
                 a->adam.grad_scale, a->adam.lr, a->adam.weight_decay);
}

static titan_status run_sgd(const struct cpu_context *ctx, const void *p)
{
    const struct optim_args *a = p;
    cpu_for(ctx, (int64_t)a->n, 1 << 14, sgd_range, a);
    return TITAN_OK;
}

titan_status cpu_sgd(struct stream *s, float *master, const float *grad, uint16_t *shadow, size_t n,
                     const struct adamw_args *args)
{
    struct optim_args a = {.master = master, .grad = grad, .shadow = shadow, .n = n, .adam = *args};
    return cpu_enqueue(s, run_sgd, &a, sizeof(a));
}
