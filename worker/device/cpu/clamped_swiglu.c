/* SPDX-License-Identifier: Apache-2.0 */
/* clamped_swiglu.c - SwiGLU of bounded inputs, as gpt-oss has it (OpenAI 2025, arXiv:2508.10925):
 *   out = g s (u + 1), g = min(gate, limit), u = up within +-limit, s = sigmoid(alpha g)
 *   du = dout g s, dg = dout (u + 1) s (1 + alpha g (1 - s)); 0 where the bound cuts off */
#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct clamped_args {
    void *out, *dgate, *dup;
    const void *dout, *gate, *up;
    int64_t ldgu, lddgu, n, f;
    const int32_t *counts; /* (parts) of rows; NULL: all n are there */
    int64_t parts;
    float limit, alpha;
    enum dtype dt;
};

/* Bounds keep NaN. */
CPU_INLINE void clamped_row(void *restrict out, const void *restrict gate, const void *restrict up, int64_t f,
                            float limit, float alpha, enum dtype dt)
{
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        float g = load_as_f32(gate, j, dt), u = load_as_f32(up, j, dt);
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        store_f32_as(out, j, dt, g * sigmoid_f32(alpha * g) * (u + 1.0f));
    }
}
CPU_KERNEL static void clamped_bf16(void *out, const void *gate, const void *up, int64_t f, float limit, float alpha)
{
    clamped_row(out, gate, up, f, limit, alpha, DTYPE_BF16);
}
CPU_KERNEL static void clamped_f32(void *out, const void *gate, const void *up, int64_t f, float limit, float alpha)
{
    clamped_row(out, gate, up, f, limit, alpha, DTYPE_F32);
}

static void clamped_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct clamped_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        (a->dt == DTYPE_BF16 ? clamped_bf16 : clamped_f32)(at_mut(a->out, i * a->f, a->dt),
                                                           at(a->gate, i * a->ldgu, a->dt),
                                                           at(a->up, i * a->ldgu, a->dt), a->f, a->limit, a->alpha);
}

static titan_status run_clamped(const struct cpu_context *ctx, const void *p)
{
    const struct clamped_args *a = p;
    int64_t rows;
    titan_assert(a->f > 0 && a->ldgu >= a->f);
    TRY(cpu_rows_there(ctx, a->counts, a->parts, a->n, &rows));
    cpu_for(ctx, rows, 1 + (1 << 13) / a->f, clamped_range, a);
    return TITAN_OK;
}

titan_status cpu_clamped_swiglu(struct stream *s, void *out, const void *gate, const void *up, int64_t ldgu,
                                enum dtype dt, int64_t n, int64_t f, const int32_t *counts, int64_t parts, float limit,
                                float alpha)
{
    if (n < 0 || f <= 0 || ldgu < f || (counts && parts <= 0) || !(limit > 0) || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct clamped_args a = {.out = out,
                             .gate = gate,
                             .up = up,
                             .ldgu = ldgu,
                             .n = n,
                             .f = f,
                             .counts = counts,
                             .parts = parts,
                             .limit = limit,
                             .alpha = alpha,
                             .dt = dt};
    return cpu_enqueue(s, run_clamped, &a, sizeof(a));
}

/* dgate and dup may be gate and up themselves: each element is read before it is written. */
CPU_INLINE void dgrad_row(void *dgate, void *dup, const void *restrict dout, const void *gate, const void *up,
                          int64_t f, float limit, float alpha, enum dtype dt)
{
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        const float gate_in = load_as_f32(gate, j, dt), up_in = load_as_f32(up, j, dt), d = load_as_f32(dout, j, dt);
        const float g = gate_in > limit ? limit : gate_in;
        const float u = up_in > limit ? limit : up_in < -limit ? -limit : up_in;
        const float s = sigmoid_f32(alpha * g);
        store_f32_as(dup, j, dt, up_in > limit || up_in < -limit ? 0.0f : d * g * s);
        store_f32_as(dgate, j, dt, gate_in > limit ? 0.0f : d * (u + 1.0f) * s * (1.0f + alpha * g * (1.0f - s)));
    }
}
CPU_KERNEL static void dgrad_bf16(void *dgate, void *dup, const void *dout, const void *gate, const void *up, int64_t f,
                                  float limit, float alpha)
{
    dgrad_row(dgate, dup, dout, gate, up, f, limit, alpha, DTYPE_BF16);
}
CPU_KERNEL static void dgrad_f32(void *dgate, void *dup, const void *dout, const void *gate, const void *up, int64_t f,
                                 float limit, float alpha)
{
    dgrad_row(dgate, dup, dout, gate, up, f, limit, alpha, DTYPE_F32);
}

static void dgrad_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct clamped_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        (a->dt == DTYPE_BF16 ? dgrad_bf16 : dgrad_f32)(
            at_mut(a->dgate, i * a->lddgu, a->dt), at_mut(a->dup, i * a->lddgu, a->dt), at(a->dout, i * a->f, a->dt),
            at(a->gate, i * a->ldgu, a->dt), at(a->up, i * a->ldgu, a->dt), a->f, a->limit, a->alpha);
}

static titan_status run_dgrad(const struct cpu_context *ctx, const void *p)
{
    const struct clamped_args *a = p;
    int64_t rows;
    titan_assert(a->f > 0 && a->ldgu >= a->f && a->lddgu >= a->f);
    TRY(cpu_rows_there(ctx, a->counts, a->parts, a->n, &rows));
    cpu_for(ctx, rows, 1 + (1 << 13) / a->f, dgrad_range, a);
    return TITAN_OK;
}

titan_status cpu_clamped_swiglu_dgrad(struct stream *s, void *dgate, void *dup, int64_t lddgu, const void *dout,
                                      const void *gate, const void *up, int64_t ldgu, enum dtype dt, int64_t n,
                                      int64_t f, const int32_t *counts, int64_t parts, float limit, float alpha)
{
    if (n < 0 || f <= 0 || ldgu < f || lddgu < f || (counts && parts <= 0) || !(limit > 0) ||
        (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct clamped_args a = {.dgate = dgate,
                             .dup = dup,
                             .dout = dout,
                             .gate = gate,
                             .up = up,
                             .ldgu = ldgu,
                             .lddgu = lddgu,
                             .n = n,
                             .f = f,
                             .counts = counts,
                             .parts = parts,
                             .limit = limit,
                             .alpha = alpha,
                             .dt = dt};
    return cpu_enqueue(s, run_dgrad, &a, sizeof(a));
}
