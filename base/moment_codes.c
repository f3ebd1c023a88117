/* SPDX-License-Identifier: Apache-2.0 */
#include "base/moment_codes.h"

/* --- any machine -------------------------------------------------------------------------------------------------- */

/* The loops are compiled for each instruction set: without fused products in the machine they take many times as long.
 */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONED __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define CLONED
#endif

CLONED static void decode(const struct moment_block *from, int64_t blocks, bool square, float *ret)
{
    for (int64_t i = 0; i < blocks; i++)
        if (square)
            moment_block_decode(&from[i], MOMENT_BLOCK, true, ret + i * MOMENT_BLOCK);
        else
            moment_block_decode(&from[i], MOMENT_BLOCK, false, ret + i * MOMENT_BLOCK);
}

CLONED static void encode(struct moment_block *to, int64_t blocks, bool square, const float *values)
{
    for (int64_t i = 0; i < blocks; i++)
        if (square)
            moment_block_encode(&to[i], MOMENT_BLOCK, true, values + i * MOMENT_BLOCK);
        else
            moment_block_encode(&to[i], MOMENT_BLOCK, false, values + i * MOMENT_BLOCK);
}

/* --- AVX-512 ------------------------------------------------------------------------------------------------------ */

#ifdef __x86_64__
#include <immintrin.h>
#include <stdalign.h>

#define WIDE_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define WIDE_INLINE static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512dq,avx512vl")))

#define OR_AND(a, b, bits) _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32((int)(bits)), 0xf8) /* a | (b & bits) */

/* The exponent of x is the number of its decade, and so tells which line to take. The line comes from a table in a
 * register: the decades' lines, then constants of the largest code (signed, squares), then zeros. */
#define SLOPE(top, cells) (float)(0.9 * (top) / (cells)),
#define OFFSET(top, cells) (float)(-0.8 * (top)),
#define INVERSE_SLOPE(top, cells) (float)((cells) / (0.9 * (top))),
#define INVERSE_OFFSET(top, cells) (float)((cells)*8 / 9),
alignas(64) static const float slopes[16] = {MOMENT_DECADES(SLOPE)};
alignas(64) static const float offsets[16] = {MOMENT_DECADES(OFFSET) 1.0f};
alignas(64) static const float inverse_slopes[16] = {MOMENT_DECADES(INVERSE_SLOPE)};
alignas(64) static const float inverse_offsets[16] = {MOMENT_DECADES(INVERSE_OFFSET) 127.5f, 128.25f};

WIDE_INLINE void block_decode(const struct moment_block *b, const bool square, float *ret)
{
    const __m512i by_exponent = _mm512_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8, 8, 0);
    const __m512 slope = _mm512_permutexvar_ps(by_exponent, _mm512_load_ps(slopes));
    const __m512 offset = _mm512_permutexvar_ps(by_exponent, _mm512_load_ps(offsets));
    const __m512 scale = _mm512_set1_ps(b->scale);

#pragma GCC unroll 4
    for (int i = 0; i < MOMENT_BLOCK; i += 16) {
        const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(b->codes + i)));
        const __m512i cell = square ? code : _mm512_and_si512(code, _mm512_set1_epi32(127));
        const __m512 cells = _mm512_cvtepi32_ps(cell);
        const __m512 x = square ? _mm512_fmadd_ps(cells, _mm512_set1_ps(0.5f), _mm512_set1_ps(0.75f))
                                : _mm512_add_ps(cells, _mm512_set1_ps(0.5f));
        const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(x), 23);
        __m512 y = _mm512_fmadd_ps(_mm512_permutexvar_ps(exponent, slope), x, _mm512_permutexvar_ps(exponent, offset));
        if (square) /* the largest code has an exponent of its own */
            y = _mm512_mul_ps(y, scale);
        else {
            y = _mm512_mask_mul_ps(scale, _mm512_cmpneq_epi32_mask(cell, _mm512_set1_epi32(127)), y, scale);
            y = _mm512_castsi512_ps(OR_AND(_mm512_castps_si512(y), _mm512_slli_epi32(code, 24), 1u << 31));
        }
        _mm512_storeu_ps(ret + i, y);
    }
}

/* A table by the exponent of z, from 2^-31 on: the line of the decade that the 32 exponents' smallest, or largest,
 * values lie in. */
struct lines {
    __m512 slope[2], offset[2];
};

WIDE_INLINE struct lines lines_by_exponent(const __m512i first, const __m512i second, const float factor)
{
    const __m512 slope = _mm512_mul_ps(_mm512_load_ps(inverse_slopes), _mm512_set1_ps(factor));
    const __m512 offset = _mm512_mul_ps(_mm512_load_ps(inverse_offsets), _mm512_set1_ps(factor));

    return (struct lines){{_mm512_permutexvar_ps(first, slope), _mm512_permutexvar_ps(second, slope)},
                          {_mm512_permutexvar_ps(first, offset), _mm512_permutexvar_ps(second, offset)}};
}

WIDE_INLINE __m512 line_at(const struct lines *l, __m512i exponent, __m512 z)
{
    return _mm512_fmadd_ps(z, _mm512_permutex2var_ps(l->slope[0], exponent, l->slope[1]),
                           _mm512_permutex2var_ps(l->offset[0], exponent, l->offset[1]));
}

/* Sets a block's scale. Returns the inverse, or 0 if all its codes are 0. */
WIDE_INLINE float block_scale(struct moment_block *b, const float *values)
{
    __m512i largest = _mm512_setzero_si512();

    for (int i = 0; i < MOMENT_BLOCK; i += 16)
        largest =
            _mm512_max_epu32(largest, _mm512_and_si512(_mm512_loadu_si512(values + i), _mm512_set1_epi32(0x7fffffff)));
    b->scale = moment_scale(_mm512_reduce_max_epu32(largest));
    return b->scale > 0.0f ? 1.0f / b->scale : 0.0f;
}

WIDE_INLINE void block_encode(uint8_t *codes, const bool square, float inverse_scale, const float *values)
{
    /* Between two powers of two there is at most one decade's bound, so the smallest line is one of two. Squares have
     * twice as many cells. */
    const float factor = square ? 2.0f : 1.0f;
    const int last = square ? 8 : 7;
    const __m512 inverse = _mm512_set1_ps(inverse_scale);
    const struct lines lower =
                           lines_by_exponent(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2),
                                             _mm512_setr_epi32(2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 6), factor),
                       upper = lines_by_exponent(
                           _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2),
                           _mm512_setr_epi32(2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, last, last), factor);
    const __m512 least = _mm512_set1_ps(square ? 1.01e-7f : 0.99e-7f); /* lies in the smallest code above 0, and in 0 */
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);

#pragma GCC unroll 1
    for (int i = 0; i < MOMENT_BLOCK; i += 64) {
        __m512i code[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const __m512 value = _mm512_loadu_ps(values + i + 16 * j), z = _mm512_mul_ps(value, inverse);
            const __m512 y = _mm512_range_ps(z, least, 0xb); /* the larger magnitude, without a sign */
            const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(y), 23);
            const __m512 x = _mm512_min_ps(line_at(&lower, exponent, y), line_at(&upper, exponent, y));
            const __m512i cell = _mm512_cvttps_epi32(x);
            const __m512i sign = _mm512_srli_epi32(_mm512_castps_si512(value), 24);
            code[j] = square ? _mm512_maskz_sub_epi32(_mm512_cmp_ps_mask(z, _mm512_setzero_ps(), _CMP_NEQ_OQ), cell,
                                                      _mm512_set1_epi32(1))
                             : OR_AND(cell, sign, 128);
        }
        /* 64 bytes in their order; a zero has no sign */
        __m512i all = _mm512_or_si512(_mm512_or_si512(code[0], _mm512_slli_epi32(code[1], 8)),
                                      _mm512_or_si512(_mm512_slli_epi32(code[2], 16), _mm512_slli_epi32(code[3], 24)));
        all = _mm512_permutexvar_epi32(words, _mm512_shuffle_epi8(all, bytes));
        if (!square)
            all = _mm512_maskz_mov_epi8(_mm512_cmpneq_epi8_mask(all, _mm512_set1_epi8(-128)), all);
        _mm512_storeu_si512(codes + i, all);
    }
}

WIDE_TARGET static void decode_wide(const struct moment_block *from, int64_t blocks, bool square, float *ret)
{
    for (int64_t i = 0; i < blocks; i++)
        if (square)
            block_decode(&from[i], true, ret + i * MOMENT_BLOCK);
        else
            block_decode(&from[i], false, ret + i * MOMENT_BLOCK);
}

/* The next block's scale is on its way while a block is encoded. */
WIDE_INLINE void blocks_encode(struct moment_block *to, int64_t blocks, const bool square, const float *values)
{
    float inverse = blocks > 0 ? block_scale(to, values) : 0.0f;

    for (int64_t i = 0; i < blocks; i++) {
        const float *const at = values + i * MOMENT_BLOCK;
        const float next = i + 1 < blocks ? block_scale(&to[i + 1], at + MOMENT_BLOCK) : 0.0f;
        if (inverse > 0.0f)
            block_encode(to[i].codes, square, inverse, at);
        else
            memset(to[i].codes, 0, sizeof to[i].codes);
        inverse = next;
    }
}

WIDE_TARGET static void encode_wide(struct moment_block *to, int64_t blocks, bool square, const float *values)
{
    if (square)
        blocks_encode(to, blocks, true, values);
    else
        blocks_encode(to, blocks, false, values);
}

static bool wide(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
#define decode_wide decode
#define encode_wide encode
#define wide() false
#endif

/* --- the interface ------------------------------------------------------------------------------------------------ */

void moment_blocks_decode(const struct moment_block *from, int64_t blocks, bool square, float *ret)
{
    (wide() ? decode_wide : decode)(from, blocks, square, ret);
}

void moment_blocks_encode(struct moment_block *to, int64_t blocks, bool square, const float *values)
{
    (wide() ? encode_wide : encode)(to, blocks, square, values);
}
