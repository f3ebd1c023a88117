/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_i8.c - a tile of sums stays in registers while k runs, four elements of k at a time. */
#include <immintrin.h>
#include <string.h>

#include "worker/device/cpu/gemm_i8.h"

enum { ROWS = GEMM_I8_ROWS, COLS = GEMM_I8_COLS, GROUP = 4, SIX = 6 };

#define AVX2_TARGET __attribute__((target("avx2")))
#define AVX_VNNI_TARGET __attribute__((target("avx2,avxvnni")))
#define AVX512_VNNI_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

/* Four bytes of a row. */
CPU_INLINE int word_of(const uint8_t *p)
{
    int word;
    memcpy(&word, p, sizeof word);
    return word;
}

static void tile_plain(const struct gemm_i8 *g)
{
    for (int64_t i = 0; i < ROWS; i++) {
        uint32_t sums[COLS] = {0};
        for (int64_t p = 0; p < g->k; p += GROUP)
            for (int64_t j = 0; j < COLS; j++)
                for (int64_t q = 0; q < GROUP; q++)
                    sums[j] += (uint32_t)(g->a[i * g->lda + p + q] * g->b[p * COLS + j * GROUP + q]);
        memcpy(g->sums + i * COLS, sums, sizeof sums);
    }
}

/* Six rows by eight columns. vpmaddubsw would saturate, so bytes become 16 bits first; a column has two sums. */
AVX2_TARGET static void tile_avx2(const struct gemm_i8 *g)
{
    for (int64_t row = 0; row < ROWS; row += SIX)
        for (int64_t col = 0; col < COLS; col += 8) {
            const uint8_t *a = g->a + row * g->lda;
            const int8_t *b = g->b + col * GROUP;
            __m256i acc[SIX][2];
#pragma GCC unroll 6
            for (int i = 0; i < SIX; i++)
                acc[i][0] = acc[i][1] = _mm256_setzero_si256();
            for (int64_t p = 0; p < g->k; p += GROUP, a += GROUP, b += GROUP * COLS) {
                const __m256i b0 = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(const void *)b)),
                              b1 = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(const void *)(b + 16)));
#pragma GCC unroll 6
                for (int i = 0; i < SIX; i++) {
                    const __m256i x = _mm256_cvtepu8_epi16(_mm_set1_epi32(word_of(a + i * g->lda)));
                    acc[i][0] = _mm256_add_epi32(acc[i][0], _mm256_madd_epi16(x, b0));
                    acc[i][1] = _mm256_add_epi32(acc[i][1], _mm256_madd_epi16(x, b1));
                }
            }
#pragma GCC unroll 6
            for (int i = 0; i < SIX; i++)
                _mm256_store_si256((__m256i *)(void *)(g->sums + (row + i) * COLS + col),
                                   _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[i][0], acc[i][1]), 0xd8));
        }
}

/* Six rows by sixteen columns. */
AVX_VNNI_TARGET static void tile_avx_vnni(const struct gemm_i8 *g)
{
    for (int64_t row = 0; row < ROWS; row += SIX)
        for (int64_t col = 0; col < COLS; col += 16) {
            const uint8_t *a = g->a + row * g->lda;
            const int8_t *b = g->b + col * GROUP;
            __m256i acc[SIX][2];
#pragma GCC unroll 6
            for (int i = 0; i < SIX; i++)
                acc[i][0] = acc[i][1] = _mm256_setzero_si256();
            for (int64_t p = 0; p < g->k; p += GROUP, a += GROUP, b += GROUP * COLS) {
                const __m256i b0 = _mm256_load_si256((const __m256i *)(const void *)b),
                              b1 = _mm256_load_si256((const __m256i *)(const void *)(b + 32));
#pragma GCC unroll 6
                for (int i = 0; i < SIX; i++) {
                    const __m256i x = _mm256_set1_epi32(word_of(a + i * g->lda));
                    acc[i][0] = _mm256_dpbusd_avx_epi32(acc[i][0], x, b0);
                    acc[i][1] = _mm256_dpbusd_avx_epi32(acc[i][1], x, b1);
                }
            }
#pragma GCC unroll 6
            for (int i = 0; i < SIX; i++) {
                __m256i *const to = (__m256i *)(void *)(g->sums + (row + i) * COLS + col);
                _mm256_store_si256(to, acc[i][0]);
                _mm256_store_si256(to + 1, acc[i][1]);
            }
        }
}

AVX512_VNNI_TARGET static void tile_avx512_vnni(const struct gemm_i8 *g)
{
    const uint8_t *a = g->a;
    const int8_t *b = g->b;
    const int64_t lda = g->lda;
    __m512i acc[ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; i++)
        acc[i][0] = acc[i][1] = _mm512_setzero_si512();
    for (int64_t p = 0; p < g->k; p += GROUP, a += GROUP, b += GROUP * COLS) {
        const __m512i b0 = _mm512_load_si512(b), b1 = _mm512_load_si512(b + 64);
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; i++) {
            const __m512i x = _mm512_set1_epi32(word_of(a + i * lda));
            acc[i][0] = _mm512_dpbusd_epi32(acc[i][0], x, b0);
            acc[i][1] = _mm512_dpbusd_epi32(acc[i][1], x, b1);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; i++) {
        _mm512_store_si512(g->sums + (int64_t)i * COLS, acc[i][0]);
        _mm512_store_si512(g->sums + (int64_t)i * COLS + 16, acc[i][1]);
    }
}

void gemm_i8(enum gemm_i8_way way, const struct gemm_i8 *g)
{
    static void (*const tiles[GEMM_I8_WAYS])(const struct gemm_i8 *) = {tile_plain, tile_avx2, tile_avx_vnni,
                                                                        tile_avx512_vnni};
    titan_assert(way < GEMM_I8_WAYS && g->k % GROUP == 0 && (uintptr_t)g->b % 64 == 0 && (uintptr_t)g->sums % 64 == 0);
    tiles[way](g);
}

enum gemm_i8_way gemm_i8_best(const struct cpu_isa *isa)
{
    return isa->avx512_vnni ? GEMM_I8_AVX512_VNNI
           : isa->avx_vnni  ? GEMM_I8_AVX_VNNI
           : isa->avx2      ? GEMM_I8_AVX2
                            : GEMM_I8_PLAIN;
}
