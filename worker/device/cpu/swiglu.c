/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c - SwiGLU (Shazeer 2020, arXiv:2002.05202): out = silu(gate) up, silu(x) = x sigmoid(x).
 *   dup = dout silu(gate), dgate = dout up s (1 + gate (1 - s)), s = sigmoid(gate)
 * GELU in its form with tanh is the same with sigmoid(y(x)): 1 + tanh(y / 2) = 2 sigmoid(y). */
#include <math.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct swiglu_args {
    void *out, *dgate, *dup;
    const void *dout, *gate, *up;
    int64_t ldgu, lddgu, n, f;
    const int32_t *counts; /* (parts) of rows; NULL: all n are there */
    int64_t parts;
    enum dtype dt;
    bool gelu;
};

/* y = GELU_LINEAR x + GELU_CUBIC x^3. Beyond the bound its sigmoid is 0 or 1, and x^2 would leave fp32. */
#define GELU_LINEAR 1.5957691216f /* 2 sqrt(2/pi) */
#define GELU_CUBIC (GELU_LINEAR * 0.044715f)
#define GELU_BOUND 16.0f

/* What the sigmoid is taken of; *ret_slope: its derivative. */
CPU_INLINE float bend(float x, bool gelu, float *ret_slope)
{
    const float within = x < -GELU_BOUND ? -GELU_BOUND : x > GELU_BOUND ? GELU_BOUND : x, square = within * within;
    *ret_slope = gelu ? GELU_LINEAR + 3.0f * GELU_CUBIC * square : 1.0f;
    return gelu ? within * (GELU_LINEAR + GELU_CUBIC * square) : x;
}

titan_status cpu_rows_there(const struct cpu_context *ctx, const int32_t *counts, int64_t parts, int64_t n,
                            int64_t *ret)
{
    int64_t rows = counts ? 0 : n;
    for (int64_t i = 0; counts && i < parts; i++) {
        rows += counts[i];
        if (counts[i] < 0 || rows > n)
            return titan_fail(ctx->err, TITAN_EINVAL, "group %lld has %d of %lld rows at most", (long long)i, counts[i],
                              (long long)n);
    }
    *ret = rows;
    return TITAN_OK;
}

CPU_INLINE void swiglu_row(void *restrict out, const void *restrict gate, const void *restrict up, int64_t f,
                           enum dtype dt, bool gelu)
{
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        float g = load_as_f32(gate, j, dt), slope;
        store_f32_as(out, j, dt, g * sigmoid_f32(bend(g, gelu, &slope)) * load_as_f32(up, j, dt));
    }
}
CPU_KERNEL static void swiglu_bf16(void *out, const void *gate, const void *up, int64_t f)
{
    swiglu_row(out, gate, up, f, DTYPE_BF16, false);
}
CPU_KERNEL static void geglu_bf16(void *out, const void *gate, const void *up, int64_t f)
{
    swiglu_row(out, gate, up, f, DTYPE_BF16, true);
}
CPU_KERNEL static void swiglu_f32(void *out, const void *gate, const void *up, int64_t f)
{
    swiglu_row(out, gate, up, f, DTYPE_F32, false);
}
CPU_KERNEL static void geglu_f32(void *out, const void *gate, const void *up, int64_t f)
{
    swiglu_row(out, gate, up, f, DTYPE_F32, true);
}

static void swiglu_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct swiglu_args *a = p;
    (void)thread;
    void (*const row)(void *, const void *, const void *, int64_t) =
        a->dt == DTYPE_BF16 ? (a->gelu ? geglu_bf16 : swiglu_bf16) : (a->gelu ? geglu_f32 : swiglu_f32);
    for (int64_t i = begin; i < end; i++)
        row(at_mut(a->out, i * a->f, a->dt), at(a->gate, i * a->ldgu, a->dt), at(a->up, i * a->ldgu, a->dt), a->f);
}

static titan_status run_swiglu(const struct cpu_context *ctx, const void *p)
{
    const struct swiglu_args *a = p;
    int64_t rows;
    titan_assert(a->f > 0 && a->ldgu >= a->f);
    TRY(cpu_rows_there(ctx, a->counts, a->parts, a->n, &rows));
    cpu_for(ctx, rows, 1 + (1 << 13) / a->f, swiglu_range, a);
    return TITAN_OK;
}

titan_status cpu_swiglu(struct stream *s, void *out, const void *gate, const void *up, int64_t ldgu, enum dtype dt,
                        int64_t n, int64_t f, const int32_t *counts, int64_t parts, bool gelu)
{
    if (n < 0 || f <= 0 || ldgu < f || (counts && parts <= 0) || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct swiglu_args a = {.out = out,
                            .gate = gate,
                            .up = up,
                            .ldgu = ldgu,
                            .n = n,
                            .f = f,
                            .counts = counts,
                            .parts = parts,
                            .dt = dt,
                            .gelu = gelu};
    return cpu_enqueue(s, run_swiglu, &a, sizeof(a));
}

/* dgate and dup may be gate and up themselves: each element is read before it is written. */
CPU_INLINE void dgrad_row(void *dgate, void *dup, const void *restrict dout, const void *gate, const void *up,
                          int64_t f, enum dtype dt, bool gelu)
{
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        float g = load_as_f32(gate, j, dt), u = load_as_f32(up, j, dt), d = load_as_f32(dout, j, dt), slope;
        float sg = sigmoid_f32(bend(g, gelu, &slope));
        store_f32_as(dup, j, dt, d * g * sg);
        store_f32_as(dgate, j, dt, d * u * sg * (1.0f + g * (1.0f - sg) * slope));
    }
}
CPU_KERNEL static void dgrad_bf16(void *dgate, void *dup, const void *dout, const void *gate, const void *up, int64_t f)
{
    dgrad_row(dgate, dup, dout, gate, up, f, DTYPE_BF16, false);
}
CPU_KERNEL static void geglu_dgrad_bf16(void *dgate, void *dup, const void *dout, const void *gate, const void *up,
                                        int64_t f)
{
    dgrad_row(dgate, dup, dout, gate, up, f, DTYPE_BF16, true);
}
CPU_KERNEL static void dgrad_f32(void *dgate, void *dup, const void *dout, const void *gate, const void *up, int64_t f)
{
    dgrad_row(dgate, dup, dout, gate, up, f, DTYPE_F32, false);
}
CPU_KERNEL static void geglu_dgrad_f32(void *dgate, void *dup, const void *dout, const void *gate, const void *up,
                                       int64_t f)
{
    dgrad_row(dgate, dup, dout, gate, up, f, DTYPE_F32, true);
}

static void dgrad_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct swiglu_args *a = p;
    (void)thread;
    void (*const row)(void *, void *, const void *, const void *, const void *, int64_t) =
        a->dt == DTYPE_BF16 ? (a->gelu ? geglu_dgrad_bf16 : dgrad_bf16) : (a->gelu ? geglu_dgrad_f32 : dgrad_f32);
    for (int64_t i = begin; i < end; i++)
        row(at_mut(a->dgate, i * a->lddgu, a->dt), at_mut(a->dup, i * a->lddgu, a->dt), at(a->dout, i * a->f, a->dt),
            at(a->gate, i * a->ldgu, a->dt), at(a->up, i * a->ldgu, a->dt), a->f);
}

static titan_status run_dgrad(const struct cpu_context *ctx, const void *p)
{
    const struct swiglu_args *a = p;
    int64_t rows;
    titan_assert(a->f > 0 && a->ldgu >= a->f && a->lddgu >= a->f);
    TRY(cpu_rows_there(ctx, a->counts, a->parts, a->n, &rows));
    cpu_for(ctx, rows, 1 + (1 << 13) / a->f, dgrad_range, a);
    return TITAN_OK;
}

titan_status cpu_swiglu_dgrad(struct stream *s, void *dgate, void *dup, int64_t lddgu, const void *dout,
                              const void *gate, const void *up, int64_t ldgu, enum dtype dt, int64_t n, int64_t f,
                              const int32_t *counts, int64_t parts, bool gelu)
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
                            .dt = dt,
                            .gelu = gelu};
    return cpu_enqueue(s, run_dgrad, &a, sizeof(a));
}
