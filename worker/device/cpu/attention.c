/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - grouped-query attention, forward and backward, in fp32 on tiles that stay in cache.
 *
 * One task is one sequence and one key/value head. A task widens its keys and values to fp32 once. It also transposes
 * them, so that every product reads rows of its right operand. Then it processes all query heads that share them in
 * blocks of BLOCK rows. A block's scores for all keys that it may see are held at once: BLOCK x T floats, 128 KiB at T
 * = 2048. So softmax needs no running rescale. Keys that the mask hides from the whole block are left out
 * (attention_keys.c). Formulas of the backward pass: Dao 2023, arXiv:2307.08691, algorithm 2.
 *     S = q k^T / sqrt(D), which may be capped, P = exp(S - lse), out = P v
 *     dv = P^T do, dP = do v^T, dS = P (dP - rowsum(do out)) / sqrt(D), dq = dS k, dk = dS^T q
 * Only one task writes a given dk and dv, in one order. So the result is the same for any number of threads. */
#include <math.h>
#include <string.h>

#include "base/progress.h"
#include "base/round.h"
#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/attention.h"
#include "worker/device/cpu/gemm.h"

enum { BLOCK = 16, TILE = 16, PAD_D = GEMM_COLUMNS };
static_assert((int)BLOCK <= (int)ATTENTION_ROWS_MAX, "a block's rows have bounds");

/* Floats from one row of n keys to the next: an odd multiple of LANES. Products read down columns, and rows at a
 * multiple of 4 KiB would share the 8 places of one set in the first-level cache. */
static int64_t key_stride(int64_t n)
{
    return (round_up(n, LANES) / LANES | 1) * LANES;
}

/* --- row kernels -------------------------------------------------------------------------------------------------- */

CPU_INLINE void load_rows_as(float *restrict dst, int64_t ldd, struct rows from, float factor, enum dtype dt)
{
    const void *const restrict src = from.at;
    for (int64_t i = 0; i < from.n; i++) {
        for (int64_t j = 0; j < from.cols; j++)
            dst[i * ldd + j] = load_as_f32(src, i * from.ld + j, dt) * factor;
        for (int64_t j = from.cols; j < ldd; j++)
            dst[i * ldd + j] = 0.0f;
    }
}
/* Converts rows of dt to fp32 rows ldd apart, times factor, padded with zeros. */
CPU_KERNEL static void load_rows(float *dst, int64_t ldd, struct rows from, float factor, int dt)
{
    if (dt == DTYPE_BF16)
        load_rows_as(dst, ldd, from, factor, DTYPE_BF16);
    else
        load_rows_as(dst, ldd, from, factor, DTYPE_F32);
}

CPU_INLINE void store_rows_as(struct rows to, const float *restrict src, int64_t lds, const float *restrict factor,
                              enum dtype dt)
{
    void *const restrict dst = to.at;
    for (int64_t i = 0; i < to.n; i++) {
        float f = factor ? factor[i] : 1.0f;
        for (int64_t j = 0; j < to.cols; j++)
            store_f32_as(dst, i * to.ld + j, dt, src[i * lds + j] * f);
    }
}
/* Converts fp32 rows lds apart to rows of dt, each row times its factor (NULL = 1). */
CPU_KERNEL static void store_rows(struct rows to, const float *src, int64_t lds, const float *factor, int dt)
{
    if (dt == DTYPE_BF16)
        store_rows_as(to, src, lds, factor, DTYPE_BF16);
    else
        store_rows_as(to, src, lds, factor, DTYPE_F32);
}

/* dst (cols, ldd) = src (rows, cols) transposed; columns from `rows` to ldd are zero. */
CPU_KERNEL static void transpose(float *restrict dst, int64_t ldd, const float *restrict src, int64_t lds, int64_t rows,
                                 int64_t cols)
{
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

/* Replaces a row's scores s (n, a multiple of LANES) by exp(s - max); -inf becomes 0. Returns the sum; *ret_max is the
 * max. */
CPU_KERNEL static float softmax_row(float *s, int32_t n, float *ret_max)
{
    float tops[LANES], sums[LANES] = {0};
    for (int l = 0; l < LANES; l++)
        tops[l] = -INFINITY;
    for (int32_t j = 0; j < n; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            tops[l] = s[j + l] > tops[l] ? s[j + l] : tops[l];
    float max = lanes_max(tops);
    float from = max == -INFINITY ? 0.0f : max; /* 0 if the row sees no key, because -inf minus -inf would be NaN */
    for (int32_t j = 0; j < n; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float e = exp_neg_f32(s[j + l] - from);
            s[j + l] = e;
            sums[l] += e;
        }
    *ret_max = max;
    return lanes_sum(sums);
}

/* Computes p (n) = exp(p - lse), then ds = p (dp - delta) in place of dp. A row that sees no key has lse -inf. */
CPU_KERNEL static void dsoftmax_row(float *restrict p, float *restrict dp, int64_t n, float lse, float delta)
{
    float from = lse == -INFINITY ? INFINITY : lse;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float e = exp_neg_f32(p[j] - from);
        p[j] = e;
        dp[j] = e * (dp[j] - delta);
    }
}

/* Same as dsoftmax_row(), for capped scores. The tanh is p / cap, or -1 for a score of -inf. ds is also multiplied by
 * the tanh's derivative. */
CPU_KERNEL static void dsoftmax_capped_row(float *restrict p, float *restrict dp, int64_t n, float lse, float delta,
                                           float cap)
{
    float from = lse == -INFINITY ? INFINITY : lse;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float t = (p[j] < -cap ? -cap : p[j]) / cap, e = exp_neg_f32(p[j] - from);
        p[j] = e;
        dp[j] = e * (dp[j] - delta) * (1.0f - t * t);
    }
}

CPU_KERNEL static void cap_row(float *s, int64_t n, float cap)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        s[j] = cap * tanh_f32(s[j] / cap);
}

CPU_KERNEL static float dot(const float *restrict a, const float *restrict b, int64_t n)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++)
        sum += a[j] * b[j];
    return sum;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

struct forward_scratch {
    struct attention_keys keys;
    float *kt, *v, *q, *s, *o;
};

static size_t forward_layout(struct forward_scratch *f, float *base, const struct attention_shape *z)
{
    int64_t tp = key_stride(z->tk), dp = round_up(z->d, PAD_D), vp = round_up(z->dv, PAD_D);
    float *p = base;
    p += attention_keys_layout(&f->keys, p, z->tk, TILE);
    f->kt = p, p += z->d * tp;
    f->v = p, p += tp * vp;
    f->q = p, p += BLOCK * dp;
    f->s = p, p += BLOCK * tp;
    f->o = p, p += MAX(BLOCK * vp, tp * dp); /* at first the place of the keys, before they are transposed */
    return (size_t)(p - base);
}

/* s (rows, tp) = x (rows, width) yt, only for the columns that the block sees. */
static void scores(const struct attention_keys *keys, float *s, int64_t tp, struct rows x, const float *yt)
{
    for (int32_t r = 0; r < keys->n_runs; r++) {
        const struct key_run *run = &keys->runs[r];
        gemm_f32(&(struct gemm){.c = s + run->at,
                                .ldc = tp,
                                .a = x.at,
                                .a_row = x.ld,
                                .a_col = 1,
                                .b = yt + run->from,
                                .ldb = tp,
                                .m = keys->rows,
                                .n = round_up(run->to - run->from, GEMM_COLUMNS),
                                .k = x.cols});
    }
}

static void cap_scores(const struct attention_keys *keys, float *s, int64_t tp, float cap)
{
    for (int64_t i = 0; cap > 0 && i < keys->rows; i++)
        cap_row(s + i * tp, keys->columns, cap);
}

/* o (rows, dp) = s y, y (keys, dp). */
static void weigh(const struct attention_keys *keys, float *o, int64_t dp, const float *s, int64_t tp, const float *y)
{
    for (int32_t r = 0; r < keys->n_runs; r++) {
        const struct key_run *run = &keys->runs[r];
        gemm_f32(&(struct gemm){o, dp, s + run->at, tp, 1, y + run->from * dp, dp, keys->rows, dp, run->to - run->from,
                                r > 0});
    }
    if (keys->n_runs == 0)
        memset(o, 0, (size_t)(keys->rows * dp) * sizeof(float));
}

/* Computes the queries of one head in the block from `row` on. The caller has set f->keys for the block. */
static void forward_block(const struct attention_args *a, const struct forward_scratch *f, int64_t row, int64_t head)
{
    const struct attention_shape *z = &a->shape;
    int64_t tp = key_stride(z->tk), dp = round_up(z->d, PAD_D), vp = round_up(z->dv, PAD_D);
    int64_t rows = f->keys.rows, lse_at = attention_lse_at(z, row, head);
    titan_assert(rows > 0 && rows <= BLOCK);
    float factor[BLOCK];
    load_rows(f->q, dp, (struct rows){at_mut((void *)a->q, row * a->ldq + head * z->d, z->dt), a->ldq, rows, z->d},
              attention_scale(z), (int)z->dt);
    scores(&f->keys, f->s, tp, (struct rows){f->q, dp, rows, z->d}, f->kt);
    cap_scores(&f->keys, f->s, tp, z->softcap);
    attention_keys_mask(&f->keys, f->s, tp, LANES);
    for (int64_t i = 0; i < rows; i++) {
        float max, sum = softmax_row(f->s + i * tp, f->keys.columns, &max);
        factor[i] = sum == 0.0f ? 0.0f : 1.0f / sum;
        a->lse[lse_at + i] = sum == 0.0f ? -INFINITY : max + logf(sum);
    }
    weigh(&f->keys, f->o, vp, f->s, tp, f->v);
    store_rows((struct rows){at_mut(a->out, row * a->ldo + head * z->dv, z->dt), a->ldo, rows, z->dv}, f->o, vp, factor,
               (int)z->dt);
}

static void forward_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct attention_args *a = p;
    const struct attention_shape *z = &a->shape;
    struct forward_scratch f;
    int64_t tp = key_stride(z->tk), dp = round_up(z->d, PAD_D), vp = round_up(z->dv, PAD_D), group = z->h / z->kv;
    forward_layout(&f, (float *)a->work + (size_t)thread * forward_layout(&f, NULL, z), z);
    for (int64_t task = begin; task < end; task++) {
        progress_action();
        int64_t sequence = task / z->kv, kv = task % z->kv, row0 = sequence * z->tk;
        attention_keys_load(&f.keys, z, sequence);
        load_rows(f.o, dp, (struct rows){at_mut((void *)a->k, row0 * a->ldk + kv * z->d, z->dt), a->ldk, z->tk, z->d},
                  1.0f, (int)z->dt);
        transpose(f.kt, tp, f.o, dp, z->tk, z->d);
        load_rows(f.v, vp, (struct rows){at_mut((void *)a->v, row0 * a->ldv + kv * z->dv, z->dt), a->ldv, z->tk, z->dv},
                  1.0f, (int)z->dt);
        for (int64_t i0 = 0; i0 < z->tq; i0 += BLOCK) {
            attention_keys_see(&f.keys, z, sequence, i0, MIN(BLOCK, z->tq - i0));
            for (int64_t head = kv * group; head < (kv + 1) * group; head++)
                forward_block(a, &f, sequence * z->tq + i0, head);
        }
    }
}

static titan_status run_forward(const struct cpu_context *ctx, const void *p)
{
    struct attention_args a = *(const struct attention_args *)p;
    titan_assert(a.shape.h % a.shape.kv == 0 && a.shape.d > 0 && a.shape.dv > 0);
    struct forward_scratch f;
    bool pairs = attention_bf16_fits(ctx->dev, &a);
    const size_t floats = pairs ? attention_bf16_forward_floats(&a.shape) : forward_layout(&f, NULL, &a.shape);
    TRY(cpu_scratch_take(ctx, floats * sizeof(float) * (size_t)ctx->threads, &a.work));
    cpu_for(ctx, a.shape.b * a.shape.kv, 1, pairs ? attention_bf16_forward : forward_range, &a);
    cpu_scratch_give(ctx);
    return TITAN_OK;
}

static bool shape_valid(const struct attention_shape *z)
{
    const int64_t max = 1 << 24;
    return (z->dt == DTYPE_BF16 || z->dt == DTYPE_F32) && z->b >= 0 && z->b < max && z->tq >= 0 && z->tq < max &&
           z->tk >= 0 && z->tk < max && z->kv > 0 && z->h > 0 && z->h < max && z->h % z->kv == 0 && z->d > 0 &&
           z->d < max && z->dv > 0 && z->dv < max;
}

/* Whether the mask pointers are all set, or all NULL (causal). */
static bool masks_valid(const struct attention_shape *z)
{
    const bool masked = z->index != NULL;
    return masked == (z->start != NULL) && masked == (z->key_index != NULL) && (masked || z->tq == z->tk);
}

titan_status cpu_attention(struct stream *s, const struct attention_args *a)
{
    const struct attention_shape *z = &a->shape;
    if (!shape_valid(z) || !masks_valid(z) || a->ldq < z->h * z->d || a->ldo < z->h * z->dv || a->ldk < z->kv * z->d ||
        a->ldv < z->kv * z->dv)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_forward, a, sizeof *a);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

struct backward_scratch {
    struct attention_keys keys;
    float *k, *kt, *vt, *dk, *dv;      /* per task */
    float *q, *dout, *o, *dq, *p, *ds; /* per block */
};

static size_t backward_layout(struct backward_scratch *f, float *base, const struct attention_shape *z)
{
    int64_t tp = key_stride(z->tk), dp = round_up(z->d, PAD_D), vp = round_up(z->dv, PAD_D);
    float *p = base;
    p += attention_keys_layout(&f->keys, p, z->tk, TILE);
    f->k = p, p += tp * MAX(dp, vp); /* first holds the values that are then transposed */
    f->kt = p, p += z->d * tp;
    f->vt = p, p += z->dv * tp;
    f->dk = p, p += tp * dp;
    f->dv = p, p += tp * vp;
    f->q = p, p += BLOCK * dp;
    f->dout = p, p += BLOCK * vp;
    f->o = p, p += BLOCK * vp;
    f->dq = p, p += BLOCK * dp;
    f->p = p, p += BLOCK * tp;
    f->ds = p, p += BLOCK * tp;
    return (size_t)(p - base);
}

/* y (keys, dp) += s^T x (rows, dp). */
static void spread(const struct attention_keys *keys, float *y, int64_t dp, const float *s, int64_t tp, const float *x)
{
    for (int32_t r = 0; r < keys->n_runs; r++) {
        const struct key_run *run = &keys->runs[r];
        gemm_f32(&(struct gemm){y + run->from * dp, dp, s + run->at, 1, tp, x, dp, run->to - run->from, dp, keys->rows,
                                true});
    }
}

/* Computes the queries of one head in the block from `row` on. The caller has set f->keys for the block. */
static void backward_block(const struct attention_args *a, const struct backward_scratch *f, int64_t row, int64_t head)
{
    const struct attention_shape *z = &a->shape;
    const enum dtype dt = z->dt;
    int64_t tp = key_stride(z->tk), dp = round_up(z->d, PAD_D), vp = round_up(z->dv, PAD_D);
    int64_t rows = f->keys.rows, lse_at = attention_lse_at(z, row, head);
    float scale = attention_scale(z), factor[BLOCK];
    /* Scaled as in forward, so that the scores have the same bits. */
    load_rows(f->q, dp, (struct rows){at_mut((void *)a->q, row * a->ldq + head * z->d, dt), a->ldq, rows, z->d}, scale,
              (int)dt);
    load_rows(f->dout, vp,
              (struct rows){at_mut((void *)a->dout, row * a->lddo + head * z->dv, dt), a->lddo, rows, z->dv}, 1.0f,
              (int)dt);
    load_rows(f->o, vp, (struct rows){at_mut(a->out, row * a->ldo + head * z->dv, dt), a->ldo, rows, z->dv}, 1.0f,
              (int)dt);
    scores(&f->keys, f->p, tp, (struct rows){f->q, dp, rows, z->d}, f->kt);
    cap_scores(&f->keys, f->p, tp, z->softcap);
    scores(&f->keys, f->ds, tp, (struct rows){f->dout, vp, rows, z->dv}, f->vt);
    attention_keys_mask(&f->keys, f->p, tp, TILE);
    for (int64_t i = 0; i < rows; i++) {
        float *p = f->p + i * tp, *ds = f->ds + i * tp, delta = dot(f->dout + i * vp, f->o + i * vp, z->dv);
        if (z->softcap > 0)
            dsoftmax_capped_row(p, ds, f->keys.columns, a->lse[lse_at + i], delta, z->softcap);
        else
            dsoftmax_row(p, ds, f->keys.columns, a->lse[lse_at + i], delta);
    }
    weigh(&f->keys, f->dq, dp, f->ds, tp, f->k);
    spread(&f->keys, f->dv, vp, f->p, tp, f->dout);
    spread(&f->keys, f->dk, dp, f->ds, tp, f->q); /* q already has the scale */
    for (int64_t i = 0; i < BLOCK; i++)
        factor[i] = scale;
    store_rows((struct rows){at_mut(a->dq, row * a->lddq + head * z->d, dt), a->lddq, rows, z->d}, f->dq, dp, factor,
               (int)dt);
}

static void backward_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct attention_args *a = p;
    const struct attention_shape *z = &a->shape;
    const enum dtype dt = z->dt;
    struct backward_scratch f;
    int64_t tp = key_stride(z->tk), dp = round_up(z->d, PAD_D), vp = round_up(z->dv, PAD_D), group = z->h / z->kv;
    backward_layout(&f, (float *)a->work + (size_t)thread * backward_layout(&f, NULL, z), z);
    for (int64_t task = begin; task < end; task++) {
        progress_action();
        int64_t sequence = task / z->kv, kv = task % z->kv, row0 = sequence * z->tk;
        attention_keys_load(&f.keys, z, sequence);
        load_rows(f.k, vp, (struct rows){at_mut((void *)a->v, row0 * a->ldv + kv * z->dv, dt), a->ldv, z->tk, z->dv},
                  1.0f, (int)dt);
        transpose(f.vt, tp, f.k, vp, z->tk, z->dv);
        load_rows(f.k, dp, (struct rows){at_mut((void *)a->k, row0 * a->ldk + kv * z->d, dt), a->ldk, z->tk, z->d},
                  1.0f, (int)dt);
        transpose(f.kt, tp, f.k, dp, z->tk, z->d);
        memset(f.dk, 0, (size_t)(tp * dp) * sizeof(float));
        memset(f.dv, 0, (size_t)(tp * vp) * sizeof(float));
        for (int64_t i0 = 0; i0 < z->tq; i0 += BLOCK) {
            attention_keys_see(&f.keys, z, sequence, i0, MIN(BLOCK, z->tq - i0));
            for (int64_t head = kv * group; head < (kv + 1) * group; head++)
                backward_block(a, &f, sequence * z->tq + i0, head);
        }
        store_rows((struct rows){at_mut(a->dk, row0 * a->lddk + kv * z->d, dt), a->lddk, z->tk, z->d}, f.dk, dp, NULL,
                   (int)dt);
        store_rows((struct rows){at_mut(a->dv, row0 * a->lddv + kv * z->dv, dt), a->lddv, z->tk, z->dv}, f.dv, vp, NULL,
                   (int)dt);
    }
}

static titan_status run_backward(const struct cpu_context *ctx, const void *p)
{
    const struct attention_args *a = p;
    titan_assert(a->shape.h % a->shape.kv == 0 && a->shape.d > 0 && a->shape.dv > 0);
    bool pairs = attention_bf16_fits(ctx->dev, a);
    cpu_for(ctx, a->shape.b * a->shape.kv, 1, pairs ? attention_bf16_backward : backward_range, a);
    return TITAN_OK;
}

size_t cpu_attention_work_bytes(struct device *dev, const struct attention_shape *shape)
{
    struct backward_scratch f;
    if (!shape_valid(shape))
        return 0;
    /* The scratch must be large enough for both ways, because the strides also decide which way is used. */
    return MAX(backward_layout(&f, NULL, shape), attention_bf16_backward_floats(shape)) * sizeof(float) *
           (size_t)dev->threads;
}

titan_status cpu_attention_dgrad(struct stream *s, const struct attention_args *a)
{
    const struct attention_shape *z = &a->shape;
    if (!shape_valid(z) || !masks_valid(z))
        return TITAN_EINVAL;
    if (MIN(a->ldq, a->lddq) < z->h * z->d || MIN(a->ldo, a->lddo) < z->h * z->dv ||
        MIN(a->ldk, a->lddk) < z->kv * z->d || MIN(a->ldv, a->lddv) < z->kv * z->dv)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_backward, a, sizeof *a);
}

/* --- merge -------------------------------------------------------------------------------------------------------- */

CPU_INLINE void merge_items(const struct merge_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++)
        for (int64_t head = 0; head < a->h; head++) {
            const int64_t lse_at = (i / a->t * a->h + head) * a->t + i % a->t, row = i * a->ld + head * a->dv;
            float *lse = a->lse + lse_at, x = *lse, y = a->other_lse[lse_at];
            if (y == -INFINITY)
                continue;
            float top = fmaxf(x, y), ex = expf(x - top), ey = expf(y - top), sum = ex + ey;
            const float mine = ex / sum, theirs = ey / sum;
            void *const restrict out = at_mut(a->out, row, dt);
            const void *const restrict other = at(a->other, row, dt);
            *lse = top + logf(sum);
#pragma omp simd
            for (int64_t j = 0; j < a->dv; j++)
                store_f32_as(out, j, dt, load_as_f32(out, j, dt) * mine + load_as_f32(other, j, dt) * theirs);
        }
}
TYPED_RANGE(merge, merge_args)

titan_status cpu_attention_merge(struct stream *s, const struct merge_args *a)
{
    if (!compute_type(a->dt) || a->b < 0 || a->t < 0 || a->h <= 0 || a->dv <= 0 || a->ld < a->h * a->dv)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, merge_range, a->b * a->t, 1 + (1 << 13) / (a->h * a->dv), a, sizeof *a);
}
