/* SPDX-License-Identifier: Apache-2.0 */
/* cast.c - conversions between element types. Conversions between fp32 and bf16 must be fast; the others go element by
 * element. */
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct cast_args {
    void *dst;
    const void *src;
    enum dtype to, from;
    size_t n;
};

CPU_KERNEL void cpu_cast_f32_bf16(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(src[i]);
}

CPU_KERNEL void cpu_cast_bf16_f32(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = bf16_to_f32(src[i]);
}

static double load_f64(const void *p, int64_t i, enum dtype dt)
{
    switch (dt) {
    case DTYPE_F64:
        return ((const double *)p)[i];
    case DTYPE_I32:
        return ((const int32_t *)p)[i];
    case DTYPE_U8:
        return ((const uint8_t *)p)[i];
    case DTYPE_F32:
    case DTYPE_BF16:
        break;
    }
    return load_as_f32(p, i, dt);
}

/* Integers: truncated towards zero, clamped to the range; NaN becomes 0. */
static double to_integer(double x, double low, double high)
{
    return !(x >= low) ? (x < low ? low : 0.0) : x > high ? high : x;
}

static void store_f64(void *p, int64_t i, enum dtype dt, double x)
{
    switch (dt) {
    case DTYPE_F64:
        ((double *)p)[i] = x;
        return;
    case DTYPE_I32:
        ((int32_t *)p)[i] = (int32_t)to_integer(x, INT32_MIN, INT32_MAX);
        return;
    case DTYPE_U8:
        ((uint8_t *)p)[i] = (uint8_t)to_integer(x, 0, UINT8_MAX);
        return;
    case DTYPE_F32:
    case DTYPE_BF16:
        break;
    }
    store_f32_as(p, i, dt, (float)x);
}

static void cast_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct cast_args *a = p;
    void *dst = at_mut(a->dst, begin, a->to);
    const void *src = at(a->src, begin, a->from);
    (void)thread;
    if (a->to == a->from)
        memcpy(dst, src, (size_t)(end - begin) * dtype_bytes(a->to));
    else if (a->to == DTYPE_BF16 && a->from == DTYPE_F32)
        cpu_cast_f32_bf16(dst, src, end - begin);
    else if (a->to == DTYPE_F32 && a->from == DTYPE_BF16)
        cpu_cast_bf16_f32(dst, src, end - begin);
    else
        for (int64_t i = 0; i < end - begin; i++)
            store_f64(dst, i, a->to, load_f64(src, i, a->from));
}

static titan_status run_cast(const struct cpu_context *ctx, const void *p)
{
    const struct cast_args *a = p;
    titan_assert(a->to <= DTYPE_U8 && a->from <= DTYPE_U8);
    cpu_for(ctx, (int64_t)a->n, 1 << 15, cast_range, a);
    return TITAN_OK;
}

titan_status cpu_cast(struct stream *s, void *dst, enum dtype to, const void *src, enum dtype from, size_t n)
{
    if (to > DTYPE_U8 || from > DTYPE_U8)
        return TITAN_EINVAL;
    struct cast_args a = {dst, src, to, from, n};
    return cpu_enqueue(s, run_cast, &a, sizeof(a));
}
