/* SPDX-License-Identifier: Apache-2.0 */
/* attention_bf16.c - attention on bf16 pairs, for processors with a fast AVX-512 BF16 dot product. Structure, formulas
 * and order of sums are the same as in attention.c; only the form of the operands differs.
 *
 * The instruction multiplies pairs along k, so a right operand is stored as words of two neighbours along k. For
 * products over D, keys and values are transposed word by word. For products over rows, two rows are interleaved. Left
 * operands of products over D are used as they lie in the tensors. Scores, softmax and all sums are fp32. P and dS are
 * rounded to bf16 when they become operands, as on a GPU. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "base/progress.h"
#include "base/round.h"
#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/attention.h"
#include "worker/device/cpu/gemm.h"

enum { BLOCK = 32, TILE = 32, PAD_T = TILE, PAD_D = GEMM_COLUMNS };
static_assert((int)BLOCK <= (int)ATTENTION_ROWS_MAX, "a block's rows have bounds");

bool attention_bf16_fits(const struct device *dev, const struct attention_args *a)
{
    int64_t odd = a->shape.d | a->shape.dv | a->ldq | a->ldk | a->ldv | a->lddo;
    uintptr_t address = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->dout;
    return a->shape.dt == DTYPE_BF16 && a->shape.softcap == 0 && gemm_bf16_usable(&dev->isa) && odd % 2 == 0 &&
           address % 4 == 0;
}

/* --- operand forms ------------------------------------------------------------------------------------------------ */

/* dst (d/2, tp): word (p,j) = elements 2p, 2p+1 of row j; columns from t on are zero. */
CPU_KERNEL static void transpose_words(uint32_t *restrict dst, int64_t tp, const uint32_t *restrict src, int64_t lds,
                                       int64_t t, int64_t words)
{
    enum { STEP = 16 };
    for (int64_t j0 = 0; j0 < t; j0 += STEP) {
        int64_t j1 = MIN(j0 + STEP, t);
        for (int64_t p = 0; p < words; p++)
            for (int64_t j = j0; j < j1; j++)
                dst[p * tp + j] = src[j * lds + p];
    }
    for (int64_t p = 0; p < words; p++)
        for (int64_t j = t; j < tp; j++)
            dst[p * tp + j] = 0;
}

/* dst (rows/2, dp): word (p,e) = element e of rows 2p and 2p+1; elements beyond rows and d are zero. */
CPU_KERNEL static void interleave_rows(uint32_t *restrict dst, int64_t dp, struct rows from, int64_t padded)
{
    const uint16_t *const restrict src = from.at;
    for (int64_t p = 0; p < padded / 2; p++) {
        const uint16_t *low = src + 2 * p * from.ld, *high = low + from.ld;
        int64_t n = 2 * p < from.n ? from.cols : 0, both = 2 * p + 1 < from.n ? from.cols : 0;
        for (int64_t e = 0; e < both; e++)
            dst[p * dp + e] = low[e] | (uint32_t)high[e] << 16;
        for (int64_t e = both; e < n; e++)
            dst[p * dp + e] = low[e];
        for (int64_t e = n; e < dp; e++)
            dst[p * dp + e] = 0;
    }
}

/* Converts fp32 rows lds apart to bf16 rows, each times its factor (NULL = 1). */
CPU_KERNEL static void store_rows(struct rows to, const float *restrict src, int64_t lds, const float *restrict factor)
{
    uint16_t *const restrict dst = to.at;
    for (int64_t i = 0; i < to.n; i++) {
        float f = factor ? factor[i] : 1.0f;
        for (int64_t j = 0; j < to.cols; j++)
            dst[i * to.ld + j] = bf16_from_f32(src[i * lds + j] * f);
    }
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* arith.h's exp, sixteen at a time. Below -87.33 it is exactly 0: masked scores must have no weight. */
BF16_INLINE __m512 exp_neg_16(__m512 x)
{
    const __m512 shift = _mm512_set1_ps(12582912.0f);
    __m512 c = _mm512_max_ps(_mm512_set1_ps(-87.33f), x); /* this order of arguments keeps a NaN */
    __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(c, _mm512_set1_ps(1.44269504f), shift), shift);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), c);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 q = _mm512_set1_ps(8.312521461e-3f);
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(4.189015927e-2f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.666711465e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(4.999923148e-1f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.33f), _CMP_NLT_UQ), q, n);
}

/* p (n, a multiple of 16) bf16 = exp(scale (s - max)); -inf becomes 0. Returns the sum before rounding. */
BF16_TARGET static float softmax_row(uint16_t *restrict p, const float *restrict s, int64_t n, float scale,
                                     float *restrict ret_max)
{
    __m512 top = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < n; j += 16)
        top = _mm512_max_ps(top, _mm512_loadu_ps(s + j));
    float max = _mm512_reduce_max_ps(top), from = max == -INFINITY ? 0.0f : max;
    __m512 factor = _mm512_set1_ps(scale), offset = _mm512_set1_ps(-from * scale);
    for (int64_t j = 0; j < n; j += 16) {
        __m512 e = exp_neg_16(_mm512_fmadd_ps(_mm512_loadu_ps(s + j), factor, offset));
        _mm256_storeu_si256((__m256i *)(p + j), (__m256i)_mm512_cvtneps_pbh(e));
        sum = _mm512_add_ps(sum, e);
    }
    *ret_max = max * scale;
    return _mm512_reduce_add_ps(sum);
}

struct forward_scratch {
    struct attention_keys keys;
    uint32_t *kt, *v, *p;
    float *s, *o;
};

static size_t forward_layout(struct forward_scratch *f, float *base, const struct attention_shape *z)
{
    int64_t tp = round_up(z->tk, PAD_T), vp = round_up(z->dv, PAD_D);
    float *x = base;
    x += attention_keys_layout(&f->keys, x, z->tk, TILE);
    f->kt = (uint32_t *)x, x += z->d / 2 * tp;
    f->v = (uint32_t *)x, x += tp / 2 * vp;
    f->p = (uint32_t *)x, x += BLOCK * tp / 2;
    f->s = x, x += BLOCK * tp;
    f->o = x, x += BLOCK * vp;
    return (size_t)(x - base);
}

size_t attention_bf16_forward_floats(const struct attention_shape *shape)
{
    struct forward_scratch f;
    return forward_layout(&f, NULL, shape);
}

/* s (rows, tp) = x (rows, width) yt, yt in pairs along width; only for the columns that the block sees. */
static void scores(const struct attention_keys *keys, float *s, int64_t tp, struct rows x, const uint32_t *yt)
{
    for (int32_t r = 0; r < keys->n_runs; r++) {
        const struct key_run *run = &keys->runs[r];
        gemm_bf16(&(struct gemm){.c = s + run->at,
                                 .ldc = tp,
                                 .a = x.at,
                                 .a_row = x.ld / 2,
                                 .a_col = 1,
                                 .b = yt + run->from,
                                 .ldb = tp,
                                 .m = keys->rows,
                                 .n = round_up(run->to - run->from, TILE),
                                 .k = x.cols / 2});
    }
}

/* o (rows, dp) = s y, with y (keys/2, dp) in pairs of keys. */
static void weigh(const struct attention_keys *keys, float *o, int64_t dp, const uint32_t *s, int64_t tp,
                  const uint32_t *y)
{
    for (int32_t r = 0; r < keys->n_runs; r++) {
        const struct key_run *run = &keys->runs[r];
        gemm_bf16(&(struct gemm){o, dp, s + run->at / 2, tp / 2, 1, y + run->from / 2 * dp, dp, keys->rows, dp,
                                 (run->to - run->from + 1) / 2, r > 0});
    }
    if (keys->n_runs == 0)
        memset(o, 0, (size_t)(keys->rows * dp) * sizeof(float));
}

/* Computes the queries of one head in the block from `row` on. The caller has set f->keys for the block. */
static void forward_block(const struct attention_args *a, const struct forward_scratch *f, int64_t row, int64_t head)
{
    const struct attention_shape *z = &a->shape;
    int64_t tp = round_up(z->tk, PAD_T), vp = round_up(z->dv, PAD_D);
    int64_t rows = f->keys.rows, lse_at = attention_lse_at(z, row, head);
    titan_assert(rows > 0 && rows <= BLOCK);
    float factor[BLOCK], scale = attention_scale(z);
    scores(&f->keys, f->s, tp,
           (struct rows){(void *)((const uint16_t *)a->q + row * a->ldq + head * z->d), a->ldq, rows, z->d}, f->kt);
    attention_keys_mask(&f->keys, f->s, tp, TILE);
    for (int64_t i = 0; i < rows; i++) {
        float max, sum = softmax_row((uint16_t *)f->p + i * tp, f->s + i * tp, f->keys.columns, scale, &max);
        factor[i] = sum == 0.0f ? 0.0f : 1.0f / sum;
        a->lse[lse_at + i] = sum == 0.0f ? -INFINITY : max + logf(sum);
    }
    weigh(&f->keys, f->o, vp, f->p, tp, f->v);
    store_rows((struct rows){(uint16_t *)a->out + row * a->ldo + head * z->dv, a->ldo, rows, z->dv}, f->o, vp, factor);
}

void attention_bf16_forward(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct attention_args *a = args;
    const struct attention_shape *z = &a->shape;
    struct forward_scratch f;
    int64_t tp = round_up(z->tk, PAD_T), vp = round_up(z->dv, PAD_D), group = z->h / z->kv;
    forward_layout(&f, (float *)a->work + (size_t)thread * forward_layout(&f, NULL, z), z);
    for (int64_t task = begin; task < end; task++) {
        progress_action();
        int64_t sequence = task / z->kv, kv = task % z->kv, row0 = sequence * z->tk;
        const uint16_t *k = (const uint16_t *)a->k + row0 * a->ldk + kv * z->d;
        attention_keys_load(&f.keys, z, sequence);
        transpose_words(f.kt, tp, (const uint32_t *)k, a->ldk / 2, z->tk, z->d / 2);
        interleave_rows(
            f.v, vp, (struct rows){(void *)((const uint16_t *)a->v + row0 * a->ldv + kv * z->dv), a->ldv, z->tk, z->dv},
            tp);
        for (int64_t i0 = 0; i0 < z->tq; i0 += BLOCK) {
            attention_keys_see(&f.keys, z, sequence, i0, MIN(BLOCK, z->tq - i0));
            for (int64_t head = kv * group; head < (kv + 1) * group; head++)
                forward_block(a, &f, sequence * z->tq + i0, head);
        }
    }
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Words of two rows' bf16 values, the first row's in the low half. */
BF16_INLINE __m512i pair_words(__m256bh low, __m256bh high)
{
    __m512i h = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)high), 16);
    return _mm512_or_si512(_mm512_cvtepu16_epi32((__m256i)low), h);
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
    struct attention_keys keys;
    uint32_t *kt, *vt, *k;              /* per task */
    uint32_t *q, *dout, *pt, *dst, *ds; /* per block */
    float *dk, *dv, *s, *dp, *dq;
};

static size_t backward_layout(struct backward_scratch *f, float *base, const struct attention_shape *z)
{
    int64_t tp = round_up(z->tk, PAD_T), dp = round_up(z->d, PAD_D), vp = round_up(z->dv, PAD_D);
    float *x = base;
    x += attention_keys_layout(&f->keys, x, z->tk, TILE);
    f->kt = (uint32_t *)x, x += (z->d + 1) / 2 * tp;
    f->vt = (uint32_t *)x, x += (z->dv + 1) / 2 * tp;
    f->k = (uint32_t *)x, x += tp / 2 * dp;
    f->q = (uint32_t *)x, x += BLOCK / 2 * dp;
    f->dout = (uint32_t *)x, x += BLOCK / 2 * vp;
    f->pt = (uint32_t *)x, x += BLOCK / 2 * tp;
    f->dst = (uint32_t *)x, x += BLOCK / 2 * tp;
    f->ds = (uint32_t *)x, x += BLOCK / 2 * tp;
    f->dk = x, x += tp * dp;
    f->dv = x, x += tp * vp;
    f->s = x, x += BLOCK * tp;
    f->dp = x, x += BLOCK * tp;
    f->dq = x, x += BLOCK * dp;
    return (size_t)(x - base);
}

size_t attention_bf16_backward_floats(const struct attention_shape *shape)
{
    struct backward_scratch f;
    return backward_layout(&f, NULL, shape);
}

/* y (keys, dp) += s^T x (rows, dp), s and x in pairs of rows. */
static void spread(const struct attention_keys *keys, float *y, int64_t dp, const uint32_t *s, int64_t tp,
                   const uint32_t *x)
{
    for (int32_t r = 0; r < keys->n_runs; r++) {
        const struct key_run *run = &keys->runs[r];
        gemm_bf16(&(struct gemm){y + run->from * dp, dp, s + run->at, 1, tp, x, dp, run->to - run->from, dp,
                                 (keys->rows + 1) / 2, true});
    }
}

/* Processes rows i and i + 1 of a block's scores and dp. An absent second row gets weight 0. P = exp(scale s - lse), dS
 * = P (dp - delta) scale. A row that sees no key has lse -inf. ds: dS row by row; pt and dst: words of both rows' P and
 * dS. */
BF16_TARGET static void dsoftmax_rows(const struct backward_scratch *f, int64_t ld, int64_t i, const float *lse,
                                      const float *delta, float scale)
{
    const bool second = i + 1 < f->keys.rows;
    const float *const restrict s = f->s + i * ld, *const restrict dp = f->dp + i * ld;
    uint32_t *const restrict pt = f->pt + i / 2 * ld, *const restrict dst = f->dst + i / 2 * ld;
    uint16_t *const restrict ds = (uint16_t *)f->ds + i * ld;
    const int64_t n = f->keys.columns;
    const float *s_row[2], *dp_row[2];
    __m512 factor = _mm512_set1_ps(scale), down[2], minus[2];
    for (int r = 0; r < 2; r++) {
        bool there = r == 0 || second;
        s_row[r] = s + (there ? r * ld : 0); /* an absent row reads the other row, with weight 0 */
        dp_row[r] = dp + (there ? r * ld : 0);
        down[r] = _mm512_set1_ps(there && lse[i + r] != -INFINITY ? lse[i + r] : INFINITY);
        minus[r] = _mm512_set1_ps(there ? delta[i + r] : 0.0f);
    }
    for (int64_t j = 0; j < n; j += 16) {
        __m256bh p[2], d[2];
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
            __m512 e = exp_neg_16(_mm512_fmsub_ps(_mm512_loadu_ps(s_row[r] + j), factor, down[r]));
            __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(dp_row[r] + j), minus[r]), factor);
            p[r] = _mm512_cvtneps_pbh(e);
            d[r] = _mm512_cvtneps_pbh(_mm512_mul_ps(e, x));
            _mm256_storeu_si256((__m256i *)(ds + r * ld + j), (__m256i)d[r]);
        }
        _mm512_storeu_si512(pt + j, pair_words(p[0], p[1]));
        _mm512_storeu_si512(dst + j, pair_words(d[0], d[1]));
    }
}

/* Computes the queries of one head in the block from `row` on. The caller has set f->keys for the block. */
static void backward_block(const struct attention_args *a, const struct backward_scratch *f, int64_t row, int64_t head)
{
    const struct attention_shape *z = &a->shape;
    int64_t tp = round_up(z->tk, PAD_T), dp = round_up(z->d, PAD_D), vp = round_up(z->dv, PAD_D);
    int64_t rows = f->keys.rows, even = (rows + 1) / 2 * 2;
    const uint16_t *q = (const uint16_t *)a->q + row * a->ldq + head * z->d;
    const uint16_t *dout = (const uint16_t *)a->dout + row * a->lddo + head * z->dv;
    const uint16_t *out = (const uint16_t *)a->out + row * a->ldo + head * z->dv;
    float delta[BLOCK];
    scores(&f->keys, f->s, tp, (struct rows){(void *)(q), a->ldq, rows, z->d}, f->kt);
    scores(&f->keys, f->dp, tp, (struct rows){(void *)(dout), a->lddo, rows, z->dv}, f->vt);
    attention_keys_mask(&f->keys, f->s, tp, TILE);
    interleave_rows(f->q, dp, (struct rows){(void *)(q), a->ldq, rows, z->d}, even);
    interleave_rows(f->dout, vp, (struct rows){(void *)(dout), a->lddo, rows, z->dv}, even);
    for (int64_t i = 0; i < rows; i++)
        delta[i] = dot(dout + i * a->lddo, out + i * a->ldo, z->dv);
    for (int64_t i = 0; i < rows; i += 2)
        dsoftmax_rows(f, tp, i, a->lse + attention_lse_at(z, row, head), delta, attention_scale(z));
    weigh(&f->keys, f->dq, dp, f->ds, tp, f->k);
    spread(&f->keys, f->dv, vp, f->pt, tp, f->dout);
    spread(&f->keys, f->dk, dp, f->dst, tp, f->q);
    store_rows((struct rows){(uint16_t *)a->dq + row * a->lddq + head * z->d, a->lddq, rows, z->d}, f->dq, dp, NULL);
}

void attention_bf16_backward(const void *args, int64_t begin, int64_t end, int thread)
{
    const struct attention_args *a = args;
    const struct attention_shape *z = &a->shape;
    struct backward_scratch f;
    int64_t tp = round_up(z->tk, PAD_T), dp = round_up(z->d, PAD_D), vp = round_up(z->dv, PAD_D), group = z->h / z->kv;
    backward_layout(&f, (float *)a->work + (size_t)thread * backward_layout(&f, NULL, z), z);
    for (int64_t task = begin; task < end; task++) {
        progress_action();
        int64_t sequence = task / z->kv, kv = task % z->kv, row0 = sequence * z->tk;
        const uint16_t *k = (const uint16_t *)a->k + row0 * a->ldk + kv * z->d;
        const uint16_t *v = (const uint16_t *)a->v + row0 * a->ldv + kv * z->dv;
        attention_keys_load(&f.keys, z, sequence);
        transpose_words(f.kt, tp, (const uint32_t *)k, a->ldk / 2, z->tk, z->d / 2);
        transpose_words(f.vt, tp, (const uint32_t *)v, a->ldv / 2, z->tk, z->dv / 2);
        interleave_rows(f.k, dp, (struct rows){(void *)(k), a->ldk, z->tk, z->d}, tp);
        memset(f.dk, 0, (size_t)(tp * dp) * sizeof(float));
        memset(f.dv, 0, (size_t)(tp * vp) * sizeof(float));
        for (int64_t i0 = 0; i0 < z->tq; i0 += BLOCK) {
            attention_keys_see(&f.keys, z, sequence, i0, MIN(BLOCK, z->tq - i0));
            for (int64_t head = kv * group; head < (kv + 1) * group; head++)
                backward_block(a, &f, sequence * z->tq + i0, head);
        }
        store_rows((struct rows){(uint16_t *)a->dk + row0 * a->lddk + kv * z->d, a->lddk, z->tk, z->d}, f.dk, dp, NULL);
        store_rows((struct rows){(uint16_t *)a->dv + row0 * a->lddv + kv * z->dv, a->lddv, z->tk, z->dv}, f.dv, vp,
                   NULL);
    }
}
