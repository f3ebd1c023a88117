/* SPDX-License-Identifier: Apache-2.0 */
/* swiglu.c - SwiGLU (Shazeer 2020, arXiv:2002.05202): out = silu(gate) up, silu(x) = x sigmoid(x).
 *     dup = dout silu(gate), dgate = dout up s (1 + gate (1 - s)), s = sigmoid(gate)
 * GELU in its tanh form is the same with sigmoid(y(x)): 1 + tanh(y / 2) = 2 sigmoid(y). With a limit, this is gpt-oss's
 * SwiGLU of bounded inputs (OpenAI 2025, arXiv:2508.10925):
 *     out = g s (u + 1), g = min(gate, limit), u = up within +-limit, s = sigmoid(alpha g)
 *     du = dout g s, dg = dout (u + 1) s (1 + alpha g (1 - s)); 0 where the bound cuts off */
#include <math.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

enum { GRAIN = 1 << 13 };

/* y = GELU_LINEAR x + GELU_CUBIC x^3. Beyond GELU_BOUND the sigmoid of y is 0 or 1, and x^2 would overflow fp32. */
#define GELU_LINEAR 1.5957691216f /* 2 sqrt(2/pi) */
#define GELU_CUBIC (GELU_LINEAR * 0.044715f)
#define GELU_BOUND 16.0f

CPU_INLINE float gelu_bounded(float x)
{
    return x < -GELU_BOUND ? -GELU_BOUND : x > GELU_BOUND ? GELU_BOUND : x;
}
/* bend(): the sigmoid's argument; bend_slope(): its derivative. Both return a value, not through a pointer: if a simd
 * loop takes a variable's address, gcc limits its vectors to 16 elements, half a vector of bf16. */
CPU_INLINE float bend(float x, bool gelu)
{
    const float within = gelu_bounded(x);
    return gelu ? within * (GELU_LINEAR + GELU_CUBIC * (within * within)) : x;
}
CPU_INLINE float bend_slope(float x, bool gelu)
{
    const float within = gelu_bounded(x);
    return gelu ? GELU_LINEAR + 3.0f * GELU_CUBIC * (within * within) : 1.0f;
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

static bool args_valid(const struct swiglu_args *a)
{
    return a->n >= 0 && a->f > 0 && a->ldgu >= a->f && (!a->counts || a->parts > 0) && compute_type(a->dt) &&
           (a->limit == 0 || (a->limit > 0 && !a->gelu));
}

CPU_INLINE void swiglu_row(const struct swiglu_args *a, int64_t row, bool gelu, enum dtype dt)
{
    void *const restrict out = at_mut(a->out, row * a->f, dt);
    const void *const restrict gate = at(a->gate, row * a->ldgu, dt), *const restrict up = at(a->up, row * a->ldgu, dt);
#pragma omp simd
    for (int64_t j = 0; j < a->f; j++) {
        float g = load_as_f32(gate, j, dt);
        store_f32_as(out, j, dt, g * sigmoid_f32(bend(g, gelu)) * load_as_f32(up, j, dt));
    }
}

/* A NaN passes through the bounds. */
CPU_INLINE void clamped_row(const struct swiglu_args *a, int64_t row, enum dtype dt)
{
    void *const restrict out = at_mut(a->out, row * a->f, dt);
    const void *const restrict gate = at(a->gate, row * a->ldgu, dt), *const restrict up = at(a->up, row * a->ldgu, dt);
    const float limit = a->limit, alpha = a->alpha;
#pragma omp simd
    for (int64_t j = 0; j < a->f; j++) {
        float g = load_as_f32(gate, j, dt), u = load_as_f32(up, j, dt);
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        store_f32_as(out, j, dt, g * sigmoid_f32(alpha * g) * (u + 1.0f));
    }
}

CPU_INLINE void swiglu_items(const struct swiglu_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++)
        if (a->limit > 0)
            clamped_row(a, i, dt);
        else if (a->gelu)
            swiglu_row(a, i, true, dt);
        else
            swiglu_row(a, i, false, dt);
}
TYPED_RANGE(swiglu, swiglu_args)

static titan_status run_swiglu(const struct cpu_context *ctx, const void *p)
{
    const struct swiglu_args *a = p;
    int64_t rows;
    TRY(cpu_rows_there(ctx, a->counts, a->parts, a->n, &rows));
    cpu_for(ctx, rows, 1 + GRAIN / a->f, swiglu_range, a);
    return TITAN_OK;
}

titan_status cpu_swiglu(struct stream *s, const struct swiglu_args *a)
{
    return args_valid(a) ? cpu_enqueue(s, run_swiglu, a, sizeof *a) : TITAN_EINVAL;
}

/* dgate and dup may be gate and up themselves: each element is read before it is written. */
CPU_INLINE void dgrad_row(const struct swiglu_args *a, int64_t row, bool gelu, enum dtype dt)
{
    void *const dgate = at_mut(a->dgate, row * a->lddgu, dt), *const dup = at_mut(a->dup, row * a->lddgu, dt);
    const void *const gate = at(a->gate, row * a->ldgu, dt), *const up = at(a->up, row * a->ldgu, dt);
    const void *const restrict dout = at(a->dout, row * a->f, dt);
#pragma omp simd
    for (int64_t j = 0; j < a->f; j++) {
        float g = load_as_f32(gate, j, dt), u = load_as_f32(up, j, dt), d = load_as_f32(dout, j, dt);
        float sg = sigmoid_f32(bend(g, gelu));
        store_f32_as(dup, j, dt, d * g * sg);
        store_f32_as(dgate, j, dt, d * u * sg * (1.0f + g * (1.0f - sg) * bend_slope(g, gelu)));
    }
}

CPU_INLINE void clamped_dgrad_row(const struct swiglu_args *a, int64_t row, enum dtype dt)
{
    void *const dgate = at_mut(a->dgate, row * a->lddgu, dt), *const dup = at_mut(a->dup, row * a->lddgu, dt);
    const void *const gate = at(a->gate, row * a->ldgu, dt), *const up = at(a->up, row * a->ldgu, dt);
    const void *const restrict dout = at(a->dout, row * a->f, dt);
    const float limit = a->limit, alpha = a->alpha;
#pragma omp simd
    for (int64_t j = 0; j < a->f; j++) {
        const float gate_in = load_as_f32(gate, j, dt), up_in = load_as_f32(up, j, dt), d = load_as_f32(dout, j, dt);
        const float g = gate_in > limit ? limit : gate_in;
        const float u = up_in > limit ? limit : up_in < -limit ? -limit : up_in;
        const float s = sigmoid_f32(alpha * g);
        store_f32_as(dup, j, dt, up_in > limit || up_in < -limit ? 0.0f : d * g * s);
        store_f32_as(dgate, j, dt, gate_in > limit ? 0.0f : d * (u + 1.0f) * s * (1.0f + alpha * g * (1.0f - s)));
    }
}

CPU_INLINE void dgrad_items(const struct swiglu_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++)
        if (a->limit > 0)
            clamped_dgrad_row(a, i, dt);
        else if (a->gelu)
            dgrad_row(a, i, true, dt);
        else
            dgrad_row(a, i, false, dt);
}
TYPED_RANGE(dgrad, swiglu_args)

static titan_status run_dgrad(const struct cpu_context *ctx, const void *p)
{
    const struct swiglu_args *a = p;
    int64_t rows;
    TRY(cpu_rows_there(ctx, a->counts, a->parts, a->n, &rows));
    cpu_for(ctx, rows, 1 + GRAIN / a->f, dgrad_range, a);
    return TITAN_OK;
}

titan_status cpu_swiglu_dgrad(struct stream *s, const struct swiglu_args *a)
{
    return args_valid(a) && a->lddgu >= a->f ? cpu_enqueue(s, run_dgrad, a, sizeof *a) : TITAN_EINVAL;
}
