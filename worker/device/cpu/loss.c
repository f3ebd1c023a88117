/* loss.c - softmax cross-entropy, loss and gradient in one operation. */
#include <math.h>
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct loss_args {
    float *losses;
    void *dlogits;
    const void *logits;
    const int32_t *targets;
    enum dtype dt;
    int64_t n, v;
    float grad_scale;
};

/* loss = log(sum exp(x - max)) - (x[target] - max). A NaN among the logits makes sum, and so the loss, NaN. The
 * gradient is written over the logits element by element, so they may be the same memory. */
CPU_INLINE float loss_row(void *dlogits, const void *logits, int32_t target, int64_t v, float grad_scale, enum dtype dt)
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
    float max = lanes_max(tops);
    for (int64_t j = 0; j < whole; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            sums[l] += exp_neg_f32(load_as_f32(logits, j + l, dt) - max);
    for (int64_t j = whole; j < v; j++)
        sums[j - whole] += exp_neg_f32(load_as_f32(logits, j, dt) - max);
    float sum = lanes_sum(sums);
    float loss = logf(sum) - (load_as_f32(logits, target, dt) - max);
    if (!dlogits)
        return loss;
    float k = grad_scale / sum;
    float p = exp_neg_f32(load_as_f32(logits, target, dt) - max) / sum;
#pragma omp simd
    for (int64_t j = 0; j < v; j++)
        store_f32_as(dlogits, j, dt, exp_neg_f32(load_as_f32(logits, j, dt) - max) * k);
    store_f32_as(dlogits, target, dt, (p - 1.0f) * grad_scale);
    return loss;
}
CPU_KERNEL static float loss_bf16(void *dlogits, const void *logits, int32_t target, int64_t v, float grad_scale)
{
    return loss_row(dlogits, logits, target, v, grad_scale, DTYPE_BF16);
}
CPU_KERNEL static float loss_f32(void *dlogits, const void *logits, int32_t target, int64_t v, float grad_scale)
{
    return loss_row(dlogits, logits, target, v, grad_scale, DTYPE_F32);
}

static void loss_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct loss_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        void *dlogits = a->dlogits ? at_mut(a->dlogits, i * a->v, a->dt) : NULL;
        if (a->targets[i] < 0) {
            a->losses[i] = 0.0f;
            if (dlogits)
                memset(dlogits, 0, (size_t)a->v * dtype_bytes(a->dt));
            continue;
        }
        a->losses[i] = (a->dt == DTYPE_BF16 ? loss_bf16 : loss_f32)(dlogits, at(a->logits, i * a->v, a->dt),
                                                                    a->targets[i], a->v, a->grad_scale);
    }
}

static titan_status run_loss(const struct cpu_context *ctx, const void *p)
{
    const struct loss_args *a = p;
    for (int64_t i = 0; i < a->n; i++) {
        if (a->targets[i] >= a->v)
            return titan_fail(ctx->err, TITAN_EINVAL, "target %d at position %lld is outside the vocabulary of %lld",
                              a->targets[i], (long long)i, (long long)a->v);
    }
    cpu_for(ctx, a->n, 1 + (1 << 13) / a->v, loss_range, a);
    return TITAN_OK;
}

titan_status cpu_cross_entropy(struct stream *s, float *losses, void *dlogits, const void *logits,
                               const int32_t *targets, enum dtype dt, int64_t n, int64_t v, float grad_scale)
{
    if (n < 0 || v <= 0 || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct loss_args a = {losses, dlogits, logits, targets, dt, n, v, grad_scale};
    return cpu_enqueue(s, run_loss, &a, sizeof(a));
}
