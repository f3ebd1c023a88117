/* attention.c - causal grouped-query attention, forward and backward, in fp32 on tiles that stay in cache.
 *
 * One task is one sequence and one key/value head: its keys and values are widened to fp32 once (and transposed, so
 * that every product streams rows of its right operand), then all query heads that share them are walked in blocks of
 * BLOCK rows. A block's scores against all keys it may see are held at once: BLOCK x T floats, 256 KiB at T = 2048, so
 * softmax needs no running rescale. Formulas of the backward pass: Dao 2023, arXiv:2307.08691, algorithm 2.
 *   S = q k^T / sqrt(D), P = exp(S - lse), out = P v
 *   dv = P^T do, dP = do v^T, dS = P (dP - rowsum(do out)) / sqrt(D), dq = dS k, dk = dS^T q
 * Only a task writes its dk and dv, in one order: the result is the same for any number of threads. */
#include <math.h>
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/attention.h"
#include "worker/device/cpu/gemm.h"

enum { BLOCK = 16, PAD_T = LANES, PAD_D = GEMM_COLUMNS };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* --- row kernels ------------------------------------------------------------------------------------------------- */

CPU_INLINE void load_rows_as(float *restrict dst, int64_t ldd, const void *restrict src, int64_t lds, int64_t rows,
                             int64_t cols, float factor, enum dtype dt)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++)
            dst[i * ldd + j] = load_as_f32(src, i * lds + j, dt) * factor;
        for (int64_t j = cols; j < ldd; j++)
            dst[i * ldd + j] = 0.0f;
    }
}
/* (rows, cols) of dt -> fp32 rows ldd apart, times factor, padded with zeros. */
CPU_KERNEL static void load_rows(float *dst, int64_t ldd, const void *src, int64_t lds, int64_t rows, int64_t cols,
                                 float factor, int dt)
{
    if (dt == DTYPE_BF16)
        load_rows_as(dst, ldd, src, lds, rows, cols, factor, DTYPE_BF16);
    else
        load_rows_as(dst, ldd, src, lds, rows, cols, factor, DTYPE_F32);
}

CPU_INLINE void store_rows_as(void *restrict dst, int64_t ldd, const float *restrict src, int64_t lds, int64_t rows,
                              int64_t cols, const float *restrict factor, enum dtype dt)
{
    for (int64_t i = 0; i < rows; i++) {
        float f = factor ? factor[i] : 1.0f;
        for (int64_t j = 0; j < cols; j++)
            store_f32_as(dst, i * ldd + j, dt, src[i * lds + j] * f);
    }
}
/* fp32 rows -> dt, each row times its factor (NULL = 1). */
CPU_KERNEL static void store_rows(void *dst, int64_t ldd, const float *src, int64_t lds, int64_t rows, int64_t cols,
                                  const float *factor, int dt)
{
    if (dt == DTYPE_BF16)
        store_rows_as(dst, ldd, src, lds, rows, cols, factor, DTYPE_BF16);
    else
        store_rows_as(dst, ldd, src, lds, rows, cols, factor, DTYPE_F32);
}

/* dst (cols, ldd) = src (rows, cols) transposed; columns rows..ldd are zero. */
CPU_KERNEL static void transpose(float *restrict dst, int64_t ldd, const float *restrict src, int64_t lds, int64_t rows,
                                 int64_t cols)
{
    enum { TILE = 16 };
    for (int64_t i0 = 0; i0 < rows; i0 += TILE) {
        int64_t i1 = MIN(i0 + TILE, rows);
        for (int64_t j = 0; j < cols; j++)
            for (int64_t i = i0; i < i1; i++)
                dst[j * ldd + i] = src[i * lds + j];
    }
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = rows; i < ldd; i++)
            dst[j * ldd + i] = 0.0f;
}

/* Row of n valid scores, padded to a multiple of LANES: exp(s - max) in place, zeros behind. Returns the sum, *ret_max
 * the max. Scores behind n are there, only not wanted: no lane has to stand aside. */
CPU_KERNEL static float softmax_row(float *s, int32_t n, int32_t padded, float *ret_max)
{
    float tops[LANES], sums[LANES] = {0};
    for (int l = 0; l < LANES; l++)
        tops[l] = -INFINITY;
    for (int32_t j = 0; j < padded; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float x = j + l < n ? s[j + l] : -INFINITY;
            tops[l] = x > tops[l] ? x : tops[l];
        }
    float max = lanes_max(tops);
    for (int32_t j = 0; j < padded; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float e = j + l < n ? exp_neg_f32(s[j + l] - max) : 0.0f;
            s[j + l] = e;
            sums[l] += e;
        }
    *ret_max = max;
    return lanes_sum(sums);
}

/* p (n valid, padded) = exp(p - lse), then ds = p (dp - delta) scale, in place of dp. */
CPU_KERNEL static void dsoftmax_row(float *restrict p, float *restrict dp, int64_t n, int64_t padded, float lse,
                                    float delta, float scale)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float e = exp_neg_f32(p[j] - lse);
        p[j] = e;
        dp[j] = e * (dp[j] - delta) * scale;
    }
    for (int64_t j = n; j < padded; j++) {
        p[j] = 0.0f;
        dp[j] = 0.0f;
    }
}

CPU_KERNEL static float dot(const float *restrict a, const float *restrict b, int64_t n)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++)
        sum += a[j] * b[j];
    return sum;
}

/* --- forward ----------------------------------------------------------------------------------------------------- */

struct forward_scratch {
    float *kt, *v, *q, *s, *o;
};

static size_t forward_layout(struct forward_scratch *f, float *base, int64_t t, int64_t d)
{
    int64_t tp = round_up(t, PAD_T), dp = round_up(d, PAD_D);
    float *p = base;
    f->kt = p, p += d * tp;
    f->v = p, p += tp * dp;
    f->q = p, p += BLOCK * dp;
    f->s = p, p += BLOCK * tp;
    f->o = p, p += MAX(BLOCK, tp) * dp; /* holds the keys before they are transposed */
    return (size_t)(p - base);
}

static void forward_block(const struct attention_args *a, const struct forward_scratch *f, int64_t row0, int64_t head,
                          int64_t i0)
{
    int64_t t = a->t, d = a->d, tp = round_up(t, PAD_T), dp = round_up(d, PAD_D);
    int64_t rows = MIN(BLOCK, t - i0), keys = MIN(round_up(i0 + rows, PAD_T), tp), row = row0 + i0;
    float factor[BLOCK];
    load_rows(f->q, dp, at(a->q, row * a->ldq + head * d, (enum dtype)a->dt), a->ldq, rows, d, 1.0f / sqrtf((float)d),
              a->dt);
    gemm_f32(f->s, tp, f->q, dp, 1, f->kt, tp, rows, keys, d, false);
    for (int64_t i = 0; i < rows; i++) {
        float max, sum = softmax_row(f->s + i * tp, (int32_t)(i0 + i + 1), (int32_t)keys, &max);
        factor[i] = 1.0f / sum;
        a->lse[head * a->b * t + row + i] = max + logf(sum);
    }
    gemm_f32(f->o, dp, f->s, tp, 1, f->v, dp, rows, dp, i0 + rows, false);
    store_rows(at_mut(a->out, row * a->ldo + head * d, (enum dtype)a->dt), a->ldo, f->o, dp, rows, d, factor, a->dt);
}

static void forward_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct attention_args *a = p;
    struct forward_scratch f;
    int64_t t = a->t, d = a->d, tp = round_up(t, PAD_T), dp = round_up(d, PAD_D), group = a->h / a->kv;
    forward_layout(&f, a->scratch + (size_t)thread * a->thread_floats, t, d);
    for (int64_t task = begin; task < end; task++) {
        int64_t row0 = task / a->kv * t, kv = task % a->kv, offset = row0 * a->ldkv + kv * d;
        load_rows(f.o, dp, at(a->k, offset, (enum dtype)a->dt), a->ldkv, t, d, 1.0f, a->dt);
        transpose(f.kt, tp, f.o, dp, t, d);
        load_rows(f.v, dp, at(a->v, offset, (enum dtype)a->dt), a->ldkv, t, d, 1.0f, a->dt);
        for (int64_t head = kv * group; head < (kv + 1) * group; head++)
            for (int64_t i0 = 0; i0 < t; i0 += BLOCK)
                forward_block(a, &f, row0, head, i0);
    }
}

static titan_status run_forward(const struct cpu_context *ctx, const void *p)
{
    struct attention_args a = *(const struct attention_args *)p;
    struct forward_scratch f;
    bool pairs = attention_bf16_fits(ctx->dev, &a);
    a.thread_floats = pairs ? attention_bf16_forward_floats(a.t, a.d) : forward_layout(&f, NULL, a.t, a.d);
    void *scratch;
    TRY(cpu_scratch_take(ctx, a.thread_floats * sizeof(float) * (size_t)ctx->threads, &scratch));
    a.scratch = scratch;
    cpu_for(ctx, (int64_t)a.b * a.kv, 1, pairs ? attention_bf16_forward : forward_range, &a);
    cpu_scratch_give(ctx);
    return TITAN_OK;
}

static bool shape_valid(enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t kv, int64_t d)
{
    const int64_t max = 1 << 24;
    return (dt == DTYPE_BF16 || dt == DTYPE_F32) && b >= 0 && b < max && t >= 0 && t < max && kv > 0 && h > 0 &&
           h < max && h % kv == 0 && d > 0 && d < max;
}

titan_status cpu_attention(struct stream *s, void *out, int64_t ldo, float *lse, const void *q, int64_t ldq,
                           const void *k, const void *v, int64_t ldkv, enum dtype dt, int64_t b, int64_t t, int64_t h,
                           int64_t kv, int64_t d)
{
    if (!shape_valid(dt, b, t, h, kv, d) || ldq < h * d || ldo < h * d || ldkv < kv * d)
        return TITAN_EINVAL;
    struct attention_args a = {.out = out,
                               .q = q,
                               .k = k,
                               .v = v,
                               .lse = lse,
                               .ldq = ldq,
                               .ldkv = ldkv,
                               .ldo = ldo,
                               .b = (int32_t)b,
                               .t = (int32_t)t,
                               .h = (int32_t)h,
                               .kv = (int32_t)kv,
                               .d = (int32_t)d,
                               .dt = (int32_t)dt};
    return cpu_enqueue(s, run_forward, &a, sizeof(a));
}

/* --- backward ---------------------------------------------------------------------------------------------------- */

struct backward_scratch {
    float *k, *kt, *vt, *dk, *dv;      /* of the task */
    float *q, *dout, *o, *dq, *p, *ds; /* of the block */
};

static size_t backward_layout(struct backward_scratch *f, float *base, int64_t t, int64_t d)
{
    int64_t tp = round_up(t, PAD_T), dp = round_up(d, PAD_D);
    float *p = base;
    f->k = p, p += tp * dp;
    f->kt = p, p += d * tp;
    f->vt = p, p += d * tp;
    f->dk = p, p += tp * dp;
    f->dv = p, p += tp * dp;
    f->q = p, p += BLOCK * dp;
    f->dout = p, p += BLOCK * dp;
    f->o = p, p += BLOCK * dp;
    f->dq = p, p += BLOCK * dp;
    f->p = p, p += BLOCK * tp;
    f->ds = p, p += BLOCK * tp;
    return (size_t)(p - base);
}

static void backward_block(const struct attention_args *a, const struct backward_scratch *f, int64_t row0, int64_t head,
                           int64_t i0)
{
    enum dtype dt = (enum dtype)a->dt;
    int64_t t = a->t, d = a->d, tp = round_up(t, PAD_T), dp = round_up(d, PAD_D);
    int64_t rows = MIN(BLOCK, t - i0), seen = i0 + rows, keys = MIN(round_up(seen, PAD_T), tp), row = row0 + i0;
    float scale = 1.0f / sqrtf((float)d);
    /* Scaled as in forward, so that the scores are the same to the bit. */
    load_rows(f->q, dp, at(a->q, row * a->ldq + head * d, dt), a->ldq, rows, d, scale, a->dt);
    load_rows(f->dout, dp, at(a->dout, row * a->lddo + head * d, dt), a->lddo, rows, d, 1.0f, a->dt);
    load_rows(f->o, dp, at(a->fwd, row * a->ldo + head * d, dt), a->ldo, rows, d, 1.0f, a->dt);
    gemm_f32(f->p, tp, f->q, dp, 1, f->kt, tp, rows, keys, d, false);
    gemm_f32(f->ds, tp, f->dout, dp, 1, f->vt, tp, rows, keys, d, false);
    for (int64_t i = 0; i < rows; i++)
        dsoftmax_row(f->p + i * tp, f->ds + i * tp, i0 + i + 1, keys, a->lse[head * a->b * t + row + i],
                     dot(f->dout + i * dp, f->o + i * dp, d), 1.0f);
    gemm_f32(f->dq, dp, f->ds, tp, 1, f->k, dp, rows, dp, seen, false);
    gemm_f32(f->dv, dp, f->p, 1, tp, f->dout, dp, seen, dp, rows, true);
    gemm_f32(f->dk, dp, f->ds, 1, tp, f->q, dp, seen, dp, rows, true); /* q carries the scale */
    float factor[BLOCK];
    for (int64_t i = 0; i < BLOCK; i++)
        factor[i] = scale;
    store_rows(at_mut(a->dq, row * a->lddq + head * d, dt), a->lddq, f->dq, dp, rows, d, factor, a->dt);
}

static void backward_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct attention_args *a = p;
    struct backward_scratch f;
    enum dtype dt = (enum dtype)a->dt;
    int64_t t = a->t, d = a->d, tp = round_up(t, PAD_T), dp = round_up(d, PAD_D), group = a->h / a->kv;
    backward_layout(&f, a->scratch + (size_t)thread * a->thread_floats, t, d);
    for (int64_t task = begin; task < end; task++) {
        int64_t row0 = task / a->kv * t, kv = task % a->kv, offset = row0 * a->ldkv + kv * d;
        load_rows(f.k, dp, at(a->v, offset, dt), a->ldkv, t, d, 1.0f, a->dt);
        transpose(f.vt, tp, f.k, dp, t, d);
        load_rows(f.k, dp, at(a->k, offset, dt), a->ldkv, t, d, 1.0f, a->dt);
        transpose(f.kt, tp, f.k, dp, t, d);
        memset(f.dk, 0, (size_t)(tp * dp) * sizeof(float));
        memset(f.dv, 0, (size_t)(tp * dp) * sizeof(float));
        for (int64_t head = kv * group; head < (kv + 1) * group; head++)
            for (int64_t i0 = 0; i0 < t; i0 += BLOCK)
                backward_block(a, &f, row0, head, i0);
        int64_t doffset = row0 * a->lddkv + kv * d;
        store_rows(at_mut(a->dk, doffset, dt), a->lddkv, f.dk, dp, t, d, NULL, a->dt);
        store_rows(at_mut(a->dv, doffset, dt), a->lddkv, f.dv, dp, t, d, NULL, a->dt);
    }
}

static titan_status run_backward(const struct cpu_context *ctx, const void *p)
{
    const struct attention_args *a = p;
    bool pairs = attention_bf16_fits(ctx->dev, a);
    cpu_for(ctx, (int64_t)a->b * a->kv, 1, pairs ? attention_bf16_backward : backward_range, a);
    return TITAN_OK;
}

/* Either way must fit: which one it is depends on strides, too. */
static size_t thread_floats(int64_t t, int64_t d)
{
    struct backward_scratch f;
    return MAX(backward_layout(&f, NULL, t, d), attention_bf16_backward_floats(t, d));
}

size_t cpu_attention_work_bytes(struct device *dev, enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t kv,
                                int64_t d)
{
    if (!shape_valid(dt, b, t, h, kv, d))
        return 0;
    return thread_floats(t, d) * sizeof(float) * (size_t)dev->threads;
}

titan_status cpu_attention_dgrad(struct stream *s, void *dq, int64_t lddq, void *dk, void *dv, int64_t lddkv,
                                 const void *dout, int64_t lddo, const void *out, int64_t ldo, const float *lse,
                                 const void *q, int64_t ldq, const void *k, const void *v, int64_t ldkv, enum dtype dt,
                                 int64_t b, int64_t t, int64_t h, int64_t kv, int64_t d, void *work)
{
    if (!shape_valid(dt, b, t, h, kv, d) || ldq < h * d || ldo < h * d || lddo < h * d || lddq < h * d ||
        ldkv < kv * d || lddkv < kv * d)
        return TITAN_EINVAL;
    struct attention_args a = {.dq = dq,
                               .dk = dk,
                               .dv = dv,
                               .q = q,
                               .k = k,
                               .v = v,
                               .dout = dout,
                               .fwd = out,
                               .lse = (float *)lse,
                               .scratch = work,
                               .ldq = ldq,
                               .ldkv = ldkv,
                               .ldo = ldo,
                               .lddq = lddq,
                               .lddkv = lddkv,
                               .lddo = lddo,
                               .b = (int32_t)b,
                               .t = (int32_t)t,
                               .h = (int32_t)h,
                               .kv = (int32_t)kv,
                               .d = (int32_t)d,
                               .dt = (int32_t)dt,
                               .thread_floats = thread_floats(t, d)};
    return cpu_enqueue(s, run_backward, &a, sizeof(a));
}
