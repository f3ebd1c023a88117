/* attention_bf16.c - attention on bf16 pairs, for processors with a fast AVX-512 BF16 dot product. Structure, formulas
 * and order of sums are attention.c's; what differs is the form of the operands.
 *
 * The instruction multiplies pairs along k, so a right operand is stored as words of two neighbours of k: keys and
 * values for products over D as they lie, transposed by words; for products over rows as two rows interleaved. Left
 * operands over D are the tensors themselves. Scores, softmax and all sums are fp32; P and dS are rounded to bf16 to be
 * operands, as on a GPU. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/attention.h"
#include "worker/device/cpu/gemm.h"

enum { BLOCK = 32, PAD_T = 32, PAD_D = GEMM_COLUMNS };

bool attention_bf16_fits(const struct device *dev, const struct attention_args *a)
{
    int64_t odd = a->d | a->ldq | a->ldkv | a->lddo;
    uintptr_t address = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->dout;
    return a->dt == DTYPE_BF16 && gemm_bf16_usable(&dev->isa) && odd % 2 == 0 && address % 4 == 0;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* --- operand forms ----------------------------------------------------------------------------------------------- */

/* dst (d/2, tp): word (p,j) = elements 2p, 2p+1 of row j; columns from t on are zero. */
CPU_KERNEL static void transpose_words(uint32_t *restrict dst, int64_t tp, const uint32_t *restrict src, int64_t lds,
                                       int64_t t, int64_t words)
{
    enum { TILE = 16 };
    for (int64_t j0 = 0; j0 < t; j0 += TILE) {
        int64_t j1 = MIN(j0 + TILE, t);
        for (int64_t p = 0; p < words; p++)
            for (int64_t j = j0; j < j1; j++)
                dst[p * tp + j] = src[j * lds + p];
    }
    for (int64_t p = 0; p < words; p++)
        for (int64_t j = t; j < tp; j++)
            dst[p * tp + j] = 0;
}

/* dst (rows/2, dp): word (p,e) = element e of rows 2p and 2p+1; what lies beyond rows and d is zero. */
CPU_KERNEL static void interleave_rows(uint32_t *restrict dst, int64_t dp, const uint16_t *restrict src, int64_t lds,
                                       int64_t rows, int64_t padded, int64_t d)
{
    for (int64_t p = 0; p < padded / 2; p++) {
        const uint16_t *low = src + 2 * p * lds, *high = low + lds;
        int64_t n = 2 * p < rows ? d : 0, both = 2 * p + 1 < rows ? d : 0;
        for (int64_t e = 0; e < both; e++)
            dst[p * dp + e] = low[e] | (uint32_t)high[e] << 16;
        for (int64_t e = both; e < n; e++)
            dst[p * dp + e] = low[e];
        for (int64_t e = n; e < dp; e++)
            dst[p * dp + e] = 0;
    }
}

/* fp32 (rows, lds) -> bf16 rows ldd apart, each times its factor (NULL = 1). */
CPU_KERNEL static void store_rows(uint16_t *restrict dst, int64_t ldd, const float *restrict src, int64_t lds,
                                  int64_t rows, int64_t d, const float *restrict factor)
{
    for (int64_t i = 0; i < rows; i++) {
        float f = factor ? factor[i] : 1.0f;
        for (int64_t j = 0; j < d; j++)
            dst[i * ldd + j] = bf16_from_f32(src[i * lds + j] * f);
    }
}

/* --- forward ----------------------------------------------------------------------------------------------------- */

/* arith.h's exp, sixteen at a time; below -87.33 it stays at the smallest normal number. */
BF16_INLINE __m512 exp_neg_16(__m512 x)
{
    const __m512 shift = _mm512_set1_ps(12582912.0f);
    __m512 c = _mm512_max_ps(_mm512_set1_ps(-87.33f), x); /* in this order a NaN stays */
    __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(c, _mm512_set1_ps(1.44269504f), shift), shift);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), c);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 q = _mm512_set1_ps(8.312521461e-3f);
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(4.189015927e-2f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.666711465e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(4.999923148e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(q, n);
}

/* Lanes j.. of a row that are below n. */
BF16_INLINE __mmask16 below(int64_t j, int64_t n)
{
    return j + 16 <= n ? 0xffff : j >= n ? 0 : (__mmask16)((1u << (n - j)) - 1);
}

/* p (padded, a multiple of 16) bf16 = exp(scale (s - max)) over n scores, zeros behind. Returns the sum before
 * rounding. */
BF16_TARGET static float softmax_row(uint16_t *restrict p, const float *restrict s, int64_t n, int64_t padded,
                                     float scale, float *restrict ret_max)
{
    __m512 top = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < n; j += 16)
        top = _mm512_mask_max_ps(top, below(j, n), top, _mm512_loadu_ps(s + j));
    float max = _mm512_reduce_max_ps(top);
    __m512 factor = _mm512_set1_ps(scale), offset = _mm512_set1_ps(-max * scale);
    for (int64_t j = 0; j < padded; j += 16) {
        __m512 e = exp_neg_16(_mm512_fmadd_ps(_mm512_loadu_ps(s + j), factor, offset));
        e = _mm512_maskz_mov_ps(below(j, n), e);
        _mm256_storeu_si256((__m256i *)(p + j), (__m256i)_mm512_cvtneps_pbh(e));
        sum = _mm512_add_ps(sum, e);
    }
    *ret_max = max * scale;
    return _mm512_reduce_add_ps(sum);
}

struct forward_scratch {
    uint32_t *kt, *v, *p;
    float *s, *o;
};

static size_t forward_layout(struct forward_scratch *f, float *base, int64_t t, int64_t d)
{
    int64_t tp = round_up(t, PAD_T), dp = round_up(d, PAD_D);
    float *x = base;
    f->kt = (uint32_t *)x, x += d / 2 * tp;
    f->v = (uint32_t *)x, x += tp / 2 * dp;
    f->p = (uint32_t *)x, x += BLOCK * tp / 2;
    f->s = x, x += BLOCK * tp;
    f->o = x, x += BLOCK * dp;
    return (size_t)(x - base);
}

size_t attention_bf16_forward_floats(int64_t t, int64_t d)
{
    struct forward_scratch f;
    return forward_layout(&f, NULL, t, d);
}

static void forward_block(const struct attention_args *a, const struct forward_scratch *f, int64_t row0, int64_t head,
                          int64_t i0)
{
    int64_t t = a->t, d = a->d, tp = round_up(t, PAD_T), dp = round_up(d, PAD_D), row = row0 + i0;
    int64_t rows = MIN(BLOCK, t - i0), keys = MIN(round_up(i0 + rows, PAD_T), tp);
    float factor[BLOCK], scale = 1.0f / sqrtf((float)d);
    const uint16_t *q = (const uint16_t *)a->q + row * a->ldq + head * d;
    gemm_bf16(f->s, tp, (const uint32_t *)q, a->ldq / 2, 1, f->kt, tp, rows, keys, d / 2, false);
    for (int64_t i = 0; i < rows; i++) {
        float max, sum = softmax_row((uint16_t *)f->p + i * tp, f->s + i * tp, i0 + i + 1, keys, scale, &max);
        factor[i] = 1.0f / sum;
        a->lse[head * a->b * t + row + i] = max + logf(sum);
    }
    gemm_bf16(f->o, dp, f->p, tp / 2, 1, f->v, dp, rows, dp, (i0 + rows + 1) / 2, false);
    store_rows((uint16_t *)a->out + row * a->ldo + head * d, a->ldo, f->o, dp, rows, d, factor);
}

void attention_bf16_forward(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct attention_args *a = args;
    struct forward_scratch f;
    int64_t t = a->t, d = a->d, tp = round_up(t, PAD_T), dp = round_up(d, PAD_D), group = a->h / a->kv;
    forward_layout(&f, a->scratch + (size_t)thread * a->thread_floats, t, d);
    for (int64_t task = begin; task < end; task++) {
        int64_t row0 = task / a->kv * t, kv = task % a->kv, offset = row0 * a->ldkv + kv * d;
        transpose_words(f.kt, tp, (const uint32_t *)((const uint16_t *)a->k + offset), a->ldkv / 2, t, d / 2);
        interleave_rows(f.v, dp, (const uint16_t *)a->v + offset, a->ldkv, t, tp, d);
        for (int64_t head = kv * group; head < (kv + 1) * group; head++)
            for (int64_t i0 = 0; i0 < t; i0 += BLOCK)
                forward_block(a, &f, row0, head, i0);
    }
}

/* --- backward ---------------------------------------------------------------------------------------------------- */

/* Words of two rows' bf16 values, the first row's in the low half. */
BF16_INLINE __m512i pair_words(__m256bh low, __m256bh high)
{
    __m512i h = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)high), 16);
    return _mm512_or_si512(_mm512_cvtepu16_epi32((__m256i)low), h);
}

/* Two neighbouring rows of scores s and of dp, n and n+1 of them valid (the second row none where it is absent), padded
 * to a multiple of 16 with zeros: P = exp(scale s - lse), dS = P (dp - delta) scale. ds: dS row by row; pt and dst:
 * words of both rows' P and dS. */
BF16_TARGET static void dsoftmax_rows(uint32_t *restrict pt, uint32_t *restrict dst, uint16_t *restrict ds,
                                      const float *restrict s, const float *restrict dp, int64_t ld, int64_t n,
                                      int64_t padded, const float *restrict lse, const float *restrict delta,
                                      float scale, bool second)
{
    int64_t valid[2] = {n, second ? n + 1 : 0};
    __m512 factor = _mm512_set1_ps(scale), down[2], minus[2];
    for (int r = 0; r < 2; r++) {
        down[r] = _mm512_set1_ps(r == 0 || second ? lse[r] : 0.0f);
        minus[r] = _mm512_set1_ps(r == 0 || second ? delta[r] : 0.0f);
    }
    for (int64_t j = 0; j < padded; j += 16) {
        __m256bh p[2], d[2];
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
            __m512 e = exp_neg_16(_mm512_fmsub_ps(_mm512_loadu_ps(s + r * ld + j), factor, down[r]));
            e = _mm512_maskz_mov_ps(below(j, valid[r]), e);
            __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(dp + r * ld + j), minus[r]), factor);
            p[r] = _mm512_cvtneps_pbh(e);
            d[r] = _mm512_cvtneps_pbh(_mm512_maskz_mul_ps(below(j, valid[r]), e, x));
            _mm256_storeu_si256((__m256i *)(ds + r * ld + j), (__m256i)d[r]);
        }
        _mm512_storeu_si512(pt + j, pair_words(p[0], p[1]));
        _mm512_storeu_si512(dst + j, pair_words(d[0], d[1]));
    }
}

CPU_KERNEL static float dot(const uint16_t *restrict a, const uint16_t *restrict b, int64_t n)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++)
        sum += bf16_to_f32(a[j]) * bf16_to_f32(b[j]);
    return sum;
}

struct backward_scratch {
    uint32_t *kt, *vt, *k;              /* of the task */
    uint32_t *q, *dout, *pt, *dst, *ds; /* of the block */
    float *dk, *dv, *s, *dp, *dq;
};

static size_t backward_layout(struct backward_scratch *f, float *base, int64_t t, int64_t d)
{
    int64_t tp = round_up(t, PAD_T), dp = round_up(d, PAD_D);
    float *x = base;
    f->kt = (uint32_t *)x, x += (d + 1) / 2 * tp;
    f->vt = (uint32_t *)x, x += (d + 1) / 2 * tp;
    f->k = (uint32_t *)x, x += tp / 2 * dp;
    f->q = (uint32_t *)x, x += BLOCK / 2 * dp;
    f->dout = (uint32_t *)x, x += BLOCK / 2 * dp;
    f->pt = (uint32_t *)x, x += BLOCK / 2 * tp;
    f->dst = (uint32_t *)x, x += BLOCK / 2 * tp;
    f->ds = (uint32_t *)x, x += BLOCK / 2 * tp;
    f->dk = x, x += tp * dp;
    f->dv = x, x += tp * dp;
    f->s = x, x += BLOCK * tp;
    f->dp = x, x += BLOCK * tp;
    f->dq = x, x += BLOCK * dp;
    return (size_t)(x - base);
}

size_t attention_bf16_backward_floats(int64_t t, int64_t d)
{
    struct backward_scratch f;
    return backward_layout(&f, NULL, t, d);
}

static void backward_block(const struct attention_args *a, const struct backward_scratch *f, int64_t row0, int64_t head,
                           int64_t i0)
{
    int64_t t = a->t, d = a->d, tp = round_up(t, PAD_T), dp = round_up(d, PAD_D), row = row0 + i0;
    int64_t rows = MIN(BLOCK, t - i0), seen = i0 + rows, keys = MIN(round_up(seen, PAD_T), tp);
    int64_t pairs = (rows + 1) / 2;
    const uint16_t *q = (const uint16_t *)a->q + row * a->ldq + head * d;
    const uint16_t *dout = (const uint16_t *)a->dout + row * a->lddo + head * d;
    const uint16_t *out = (const uint16_t *)a->fwd + row * a->ldo + head * d;
    const float *lse = a->lse + head * a->b * t + row;
    float delta[BLOCK], scale = 1.0f / sqrtf((float)d);
    gemm_bf16(f->s, tp, (const uint32_t *)q, a->ldq / 2, 1, f->kt, tp, rows, keys, d / 2, false);
    gemm_bf16(f->dp, tp, (const uint32_t *)dout, a->lddo / 2, 1, f->vt, tp, rows, keys, d / 2, false);
    interleave_rows(f->q, dp, q, a->ldq, rows, 2 * pairs, d);
    interleave_rows(f->dout, dp, dout, a->lddo, rows, 2 * pairs, d);
    for (int64_t i = 0; i < rows; i++)
        delta[i] = dot(dout + i * a->lddo, out + i * a->ldo, d);
    for (int64_t i = 0; i < rows; i += 2)
        dsoftmax_rows(f->pt + i / 2 * tp, f->dst + i / 2 * tp, (uint16_t *)f->ds + i * tp, f->s + i * tp,
                      f->dp + i * tp, tp, i0 + i + 1, keys, lse + i, delta + i, scale, i + 1 < rows);
    gemm_bf16(f->dq, dp, f->ds, tp / 2, 1, f->k, dp, rows, dp, (seen + 1) / 2, false);
    gemm_bf16(f->dv, dp, f->pt, 1, tp, f->dout, dp, seen, dp, pairs, true);
    gemm_bf16(f->dk, dp, f->dst, 1, tp, f->q, dp, seen, dp, pairs, true);
    store_rows((uint16_t *)a->dq + row * a->lddq + head * d, a->lddq, f->dq, dp, rows, d, NULL);
}

void attention_bf16_backward(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct attention_args *a = args;
    struct backward_scratch f;
    int64_t t = a->t, d = a->d, tp = round_up(t, PAD_T), dp = round_up(d, PAD_D), group = a->h / a->kv;
    backward_layout(&f, a->scratch + (size_t)thread * a->thread_floats, t, d);
    for (int64_t task = begin; task < end; task++) {
        int64_t row0 = task / a->kv * t, kv = task % a->kv, offset = row0 * a->ldkv + kv * d;
        const uint16_t *k = (const uint16_t *)a->k + offset, *v = (const uint16_t *)a->v + offset;
        transpose_words(f.kt, tp, (const uint32_t *)k, a->ldkv / 2, t, d / 2);
        transpose_words(f.vt, tp, (const uint32_t *)v, a->ldkv / 2, t, d / 2);
        interleave_rows(f.k, dp, k, a->ldkv, t, tp, d);
        memset(f.dk, 0, (size_t)(tp * dp) * sizeof(float));
        memset(f.dv, 0, (size_t)(tp * dp) * sizeof(float));
        for (int64_t head = kv * group; head < (kv + 1) * group; head++)
            for (int64_t i0 = 0; i0 < t; i0 += BLOCK)
                backward_block(a, &f, row0, head, i0);
        int64_t doffset = row0 * a->lddkv + kv * d;
        store_rows((uint16_t *)a->dk + doffset, a->lddkv, f.dk, dp, t, d, NULL);
        store_rows((uint16_t *)a->dv + doffset, a->lddkv, f.dv, dp, t, d, NULL);
    }
}
