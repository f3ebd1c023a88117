/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/reduce.h"

#include <string.h>

#include "base/bf16.h"
#include "base/cleanup.h"

/* Elements of a block. A block of the sum stays in the first-level cache while the sources are added to it one by
 * one. */
#define BLOCK 2048

/* Compiles each loop once per vector width; the loader chooses one version. The choice cannot change a result, because
 * every element is summed by itself, in rank order. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTORISE __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define VECTORISE
#endif

VECTORISE
static void add_f32(float *restrict acc, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] += x[i];
}

/* dst = a + b; dst may be a or b. */
VECTORISE
static void sum2_f32(float *dst, const float *a, const float *b, size_t n)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++)
        dst[i] = a[i] + b[i];
}

VECTORISE
static void sum4_f32(float *dst, const float *a, const float *b, const float *c, const float *d, size_t n)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++)
        dst[i] = ((a[i] + b[i]) + c[i]) + d[i];
}

VECTORISE
static void sum2_bf16(uint16_t *dst, const uint16_t *a, const uint16_t *b, size_t n)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(bf16_to_f32(a[i]) + bf16_to_f32(b[i]));
}

VECTORISE
static void sum4_bf16(uint16_t *dst, const uint16_t *a, const uint16_t *b, const uint16_t *c, const uint16_t *d,
                      size_t n)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(((bf16_to_f32(a[i]) + bf16_to_f32(b[i])) + bf16_to_f32(c[i])) + bf16_to_f32(d[i]));
}

VECTORISE
static void add_f64(double *restrict acc, const double *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] += x[i];
}

VECTORISE
static void widen_bf16(float *restrict acc, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = bf16_to_f32(x[i]);
}

VECTORISE
static void add_bf16(float *restrict acc, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] += bf16_to_f32(x[i]);
}

VECTORISE
static void narrow_bf16(uint16_t *restrict dst, const float *restrict acc, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(acc[i]);
}

void reduce_sum(void *dst, const void *const *src, int n, size_t count, enum dtype dt)
{
    titan_assert(n >= 1 && (dt == DTYPE_F32 || dt == DTYPE_F64 || dt == DTYPE_BF16));
    if (n == 1) {
        if (dst != src[0])
            memcpy(dst, src[0], count * dtype_bytes(dt));
        return;
    }
    if (n == 2 && dt == DTYPE_F32) {
        sum2_f32(dst, src[0], src[1], count);
        return;
    }
    if (n == 4 && dt == DTYPE_F32) {
        sum4_f32(dst, src[0], src[1], src[2], src[3], count);
        return;
    }
    if (n == 2 && dt == DTYPE_BF16) {
        sum2_bf16(dst, src[0], src[1], count);
        return;
    }
    if (n == 4 && dt == DTYPE_BF16) {
        sum4_bf16(dst, src[0], src[1], src[2], src[3], count);
        return;
    }
    for (size_t at = 0; at < count; at += BLOCK) {
        const size_t len = MIN((size_t)BLOCK, count - at);
        if (dt == DTYPE_F64) {
            double acc[BLOCK];
            memcpy(acc, (const double *)src[0] + at, len * sizeof(*acc));
            for (int r = 1; r < n; r++)
                add_f64(acc, (const double *)src[r] + at, len);
            memcpy((double *)dst + at, acc, len * sizeof(*acc));
        } else if (dt == DTYPE_F32) {
            float acc[BLOCK];
            memcpy(acc, (const float *)src[0] + at, len * sizeof(*acc));
            for (int r = 1; r < n; r++)
                add_f32(acc, (const float *)src[r] + at, len);
            memcpy((float *)dst + at, acc, len * sizeof(*acc));
        } else {
            float acc[BLOCK];
            widen_bf16(acc, (const uint16_t *)src[0] + at, len);
            for (int r = 1; r < n; r++)
                add_bf16(acc, (const uint16_t *)src[r] + at, len);
            narrow_bf16((uint16_t *)dst + at, acc, len);
        }
    }
}
