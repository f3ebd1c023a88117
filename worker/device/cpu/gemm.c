/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.c - register-tiled fp32 product. A tile of c stays in registers while k runs. Each step loads a row of vectors
 * of b and multiplies it by one broadcast element of a for each row of the tile. */
#include <immintrin.h>

#include "worker/device/cpu/gemm.h"

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));

/* One tile of c: rows from i0 on and columns from j0 on. */
CPU_INLINE void tile(const struct gemm *g, int64_t i0, int64_t j0, const int rows, const int vecs)
{
    const int64_t ldc = g->ldc, a_row = g->a_row, a_col = g->a_col, ldb = g->ldb, k = g->k;
    float *const c = g->c + i0 * ldc + j0;
    const float *const a = (const float *)g->a + i0 * a_row, *const b = (const float *)g->b + j0;
    vec acc[8][4];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            acc[i][j] = g->accumulate ? *(const vec *)(c + i * ldc + 16 * j) : (vec){0};
    for (int64_t p = 0; p < k; p++) {
        vec bv[4];
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            bv[j] = *(const vec *)(b + p * ldb + 16 * j);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float x = a[i * a_row + p * a_col];
#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++)
                acc[i][j] += x * bv[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            *(vec *)(c + i * ldc + 16 * j) = acc[i][j];
}

/* All rows of a column strip of `vecs` vectors, `rows` at a time. */
CPU_INLINE void strip(const struct gemm *g, int64_t j, const int rows, const int vecs)
{
    int64_t i = 0;
    for (; i + rows <= g->m; i += rows)
        tile(g, i, j, rows, vecs);
    for (; i < g->m; i++)
        tile(g, i, j, 1, vecs);
}

/* For processors with 32 registers of one vector each. The copy stays in registers. Without it the compiler must reload
 * *product after each vector's store, because the store may alias *product. */
CPU_KERNEL static void gemm_wide(const struct gemm *product)
{
    const struct gemm copy = *product, *const g = &copy;
    int64_t j = 0;
    for (; j + 64 <= g->n; j += 64)
        strip(g, j, 4, 4);
    for (; j + 32 <= g->n; j += 32)
        strip(g, j, 8, 2);
    for (; j + 16 <= g->n; j += 16)
        strip(g, j, 8, 1);
}

#define AVX2_TARGET __attribute__((target("avx2,fma")))

/* Same as tile(), for 16 registers of half a vector. gcc does not keep 64-byte vectors in registers here. */
static inline __attribute__((always_inline, target("avx2,fma"))) void half_tile(const struct gemm *g, int64_t i0,
                                                                                int64_t j0, const int rows)
{
    const int64_t ldc = g->ldc, a_row = g->a_row, a_col = g->a_col, ldb = g->ldb, k = g->k;
    float *const c = g->c + i0 * ldc + j0;
    const float *const a = (const float *)g->a + i0 * a_row, *const b = (const float *)g->b + j0;
    __m256 acc[6][2];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++)
            acc[i][j] = g->accumulate ? _mm256_loadu_ps(c + i * ldc + 8 * j) : _mm256_setzero_ps();
    for (int64_t p = 0; p < k; p++) {
        const __m256 b0 = _mm256_loadu_ps(b + p * ldb), b1 = _mm256_loadu_ps(b + p * ldb + 8);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const __m256 x = _mm256_broadcast_ss(a + i * a_row + p * a_col);
            acc[i][0] = _mm256_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, b1, acc[i][1]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++)
            _mm256_storeu_ps(c + i * ldc + 8 * j, acc[i][j]);
}

AVX2_TARGET static void gemm_avx2(const struct gemm *product)
{
    const struct gemm copy = *product, *const g = &copy;
    for (int64_t j = 0; j + 16 <= g->n; j += 16) {
        int64_t i = 0;
        for (; i + 6 <= g->m; i += 6)
            half_tile(g, i, j, 6);
        for (; i + 4 <= g->m; i += 4)
            half_tile(g, i, j, 4);
        for (; i < g->m; i++)
            half_tile(g, i, j, 1);
    }
}

void gemm_f32(const struct gemm *g)
{
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    (avx2 && !__builtin_cpu_supports("avx512f") ? gemm_avx2 : gemm_wide)(g);
}

BF16_INLINE void bf16_tile(const struct gemm *g, int64_t i0, int64_t j0, const int rows, const int vecs)
{
    const int64_t ldc = g->ldc, a_row = g->a_row, a_col = g->a_col, ldb = g->ldb, pairs = g->k;
    float *const c = g->c + i0 * ldc + j0;
    const uint32_t *const a = (const uint32_t *)g->a + i0 * a_row, *const b = (const uint32_t *)g->b + j0;
    __m512 acc[8][4];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            acc[i][j] = g->accumulate ? _mm512_loadu_ps(c + i * ldc + 16 * j) : _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; p++) {
        __m512i bv[4];
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            bv[j] = _mm512_loadu_si512(b + p * ldb + 16 * j);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            __m512i x = _mm512_set1_epi32((int)a[i * a_row + p * a_col]);
#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++)
                acc[i][j] = _mm512_dpbf16_ps(acc[i][j], (__m512bh)x, (__m512bh)bv[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            _mm512_storeu_ps(c + i * ldc + 16 * j, acc[i][j]);
}

BF16_INLINE void bf16_strip(const struct gemm *g, int64_t j, const int rows, const int vecs)
{
    int64_t i = 0;
    for (; i + rows <= g->m; i += rows)
        bf16_tile(g, i, j, rows, vecs);
    for (; i < g->m; i++)
        bf16_tile(g, i, j, 1, vecs);
}

BF16_TARGET void gemm_bf16(const struct gemm *product)
{
    const struct gemm copy = *product, *const g = &copy;
    int64_t j = 0;
    for (; j + 64 <= g->n; j += 64)
        bf16_strip(g, j, 4, 4);
    for (; j + 32 <= g->n; j += 32)
        bf16_strip(g, j, 8, 2);
    for (; j + 16 <= g->n; j += 16)
        bf16_strip(g, j, 8, 1);
}

bool gemm_bf16_usable(const struct cpu_isa *isa)
{
    return isa->avx512_bf16 && isa->amd;
}
