/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c - SwiGLU (Shazeer 2020, arXiv:2002.05202): out = silu(gate) up, silu(x) = x sigmoid(x).
 *   dup = dout silu(gate), dgate = dout up s (1 + gate (1 - s)), s = sigmoid(gate) */
#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct swiglu_args {
    void *out, *dgate, *dup;
    const void *dout, *gate, *up;
    int64_t ldgu, lddgu, n, f;
    const int32_t *counts; /* (parts) of rows; NULL: all n are there */
    int64_t parts;
    enum dtype dt;
};

/* Rows that are there. */
static titan_status count_rows(const struct cpu_context *ctx, const struct swiglu_args *a, int64_t *ret)
{
    int64_t rows = a->counts ? 0 : a->n;
    for (int64_t i = 0; a->counts && i < a->parts; i++) {
        rows += a->counts[i];
        if (a->counts[i] < 0 || rows > a->n)
            return titan_fail(ctx->err, TITAN_EINVAL, "SwiGLU: group %lld has %d of %lld rows at most", (long long)i,
                              a->counts[i], (long long)a->n);
    }
    *ret = rows;
    return TITAN_OK;
}

CPU_INLINE void swiglu_row(void *restrict out, const void *restrict gate, const void *restrict up, int64_t f,
                           enum dtype dt)
{
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        float g = load_as_f32(gate, j, dt);
        store_f32_as(out, j, dt, g * sigmoid_f32(g) * load_as_f32(up, j, dt));
    }
}
CPU_KERNEL static void swiglu_bf16(void *out, const void *gate, const void *up, int64_t f)
{
    swiglu_row(out, gate, up, f, DTYPE_BF16);
}
CPU_KERNEL static void swiglu_f32(void *out, const void *gate, const void *up, int64_t f)
{
    swiglu_row(out, gate, up, f, DTYPE_F32);
}

static void swiglu_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct swiglu_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        (a->dt == DTYPE_BF16 ? swiglu_bf16 : swiglu_f32)(
            at_mut(a->out, i * a->f, a->dt), at(a->gate, i * a->ldgu, a->dt), at(a->up, i * a->ldgu, a->dt), a->f);
}

static titan_status run_swiglu(const struct cpu_context *ctx, const void *p)
{
    const struct swiglu_args *a = p;
    int64_t rows;
    titan_assert(a->f > 0 && a->ldgu >= a->f);
    TRY(count_rows(ctx, a, &rows));
    cpu_for(ctx, rows, 1 + (1 << 13) / a->f, swiglu_range, a);
    return TITAN_OK;
}

titan_status cpu_swiglu(struct stream *s, void *out, const void *gate, const void *up, int64_t ldgu, enum dtype dt,
                        int64_t n, int64_t f, const int32_t *counts, int64_t parts)
{
    if (n < 0 || f <= 0 || ldgu < f || (counts && parts <= 0) || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct swiglu_args a = {
        .out = out, .gate = gate, .up = up, .ldgu = ldgu, .n = n, .f = f, .counts = counts, .parts = parts, .dt = dt};
    return cpu_enqueue(s, run_swiglu, &a, sizeof(a));
}

/* dgate and dup may be gate and up themselves: each element is read before it is written. */
CPU_INLINE void dgrad_row(void *dgate, void *dup, const void *restrict dout, const void *gate, const void *up,
                          int64_t f, enum dtype dt)
{
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        float g = load_as_f32(gate, j, dt), u = load_as_f32(up, j, dt), d = load_as_f32(dout, j, dt);
        float sg = sigmoid_f32(g);
        store_f32_as(dup, j, dt, d * g * sg);
        store_f32_as(dgate, j, dt, d * u * sg * (1.0f + g * (1.0f - sg)));
    }
}
CPU_KERNEL static void dgrad_bf16(void *dgate, void *dup, const void *dout, const void *gate, const void *up, int64_t f)
{
    dgrad_row(dgate, dup, dout, gate, up, f, DTYPE_BF16);
}
CPU_KERNEL static void dgrad_f32(void *dgate, void *dup, const void *dout, const void *gate, const void *up, int64_t f)
{
    dgrad_row(dgate, dup, dout, gate, up, f, DTYPE_F32);
}

static void dgrad_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct swiglu_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        (a->dt == DTYPE_BF16 ? dgrad_bf16 : dgrad_f32)(
            at_mut(a->dgate, i * a->lddgu, a->dt), at_mut(a->dup, i * a->lddgu, a->dt), at(a->dout, i * a->f, a->dt),
            at(a->gate, i * a->ldgu, a->dt), at(a->up, i * a->ldgu, a->dt), a->f);
}

static titan_status run_dgrad(const struct cpu_context *ctx, const void *p)
{
    const struct swiglu_args *a = p;
    int64_t rows;
    titan_assert(a->f > 0 && a->ldgu >= a->f && a->lddgu >= a->f);
    TRY(count_rows(ctx, a, &rows));
    cpu_for(ctx, rows, 1 + (1 << 13) / a->f, dgrad_range, a);
    return TITAN_OK;
}

titan_status cpu_swiglu_dgrad(struct stream *s, void *dgate, void *dup, int64_t lddgu, const void *dout,
                              const void *gate, const void *up, int64_t ldgu, enum dtype dt, int64_t n, int64_t f,
                              const int32_t *counts, int64_t parts)
{
    if (n < 0 || f <= 0 || ldgu < f || lddgu < f || (counts && parts <= 0) || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct swiglu_args a = {.dgate = dgate,
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
                            .dt = dt};
    return cpu_enqueue(s, run_dgrad, &a, sizeof(a));
}
