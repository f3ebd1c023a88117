/* SPDX-License-Identifier: Apache-2.0 */
/* sums.c - element-wise sums and the block sums behind gradient norms and hashes. */
#include "base/hash.h"
#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

enum { GRAIN = 1 << 15 };

struct sum_args {
    void *out;
    const void *a, *b;
    enum dtype dt;
    float factor;
    int64_t n, block;
    bool square, add;
};

CPU_KERNEL static void add_bf16(uint16_t *out, const uint16_t *a, const uint16_t *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_from_f32(bf16_to_f32(a[i]) + bf16_to_f32(b[i]));
}

CPU_KERNEL static void add_f32(float *out, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static void add_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct sum_args *a = p;
    (void)thread;
    if (a->dt == DTYPE_BF16)
        add_bf16(at_mut(a->out, begin, a->dt), at(a->a, begin, a->dt), at(a->b, begin, a->dt), end - begin);
    else
        add_f32(at_mut(a->out, begin, a->dt), at(a->a, begin, a->dt), at(a->b, begin, a->dt), end - begin);
}

static titan_status run_add(const struct cpu_context *ctx, const void *p)
{
    const struct sum_args *a = p;
    titan_assert(a->dt == DTYPE_BF16 || a->dt == DTYPE_F32);
    cpu_for(ctx, a->n, GRAIN, add_range, a);
    return TITAN_OK;
}

titan_status cpu_add(struct stream *s, void *out, const void *a, const void *b, enum dtype dt, size_t n)
{
    if (dt != DTYPE_BF16 && dt != DTYPE_F32)
        return TITAN_EINVAL;
    struct sum_args args = {.out = out, .a = a, .b = b, .dt = dt, .n = (int64_t)n};
    return cpu_enqueue(s, run_add, &args, sizeof(args));
}

titan_status cpu_accumulate(struct stream *s, float *dst, const float *src, size_t n)
{
    return cpu_add(s, dst, dst, src, DTYPE_F32, n);
}

struct add_2d_args {
    void *dst;
    const void *src;
    enum dtype dt;
    int64_t ldd, lds, rows, cols, repeat;
};

enum { STRETCH = 256 }; /* columns summed at a time: the sums stay in the first cache */

CPU_INLINE void add_2d_stretch_as(const struct add_2d_args *a, int64_t row, int64_t from, int64_t n, enum dtype dt)
{
    float sums[STRETCH];
    void *dst = at_mut(a->dst, row * a->ldd + from, dt);
    for (int64_t j = 0; j < n; j++)
        sums[j] = load_as_f32(dst, j, dt);
    for (int64_t i = row * a->repeat; i < (row + 1) * a->repeat; i++) {
        const void *src = at(a->src, i * a->lds + from, dt);
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            sums[j] += load_as_f32(src, j, dt);
    }
    for (int64_t j = 0; j < n; j++)
        store_f32_as(dst, j, dt, sums[j]);
}
CPU_KERNEL static void add_2d_stretch(const struct add_2d_args *a, int64_t row, int64_t from, int64_t n)
{
    if (a->dt == DTYPE_BF16)
        add_2d_stretch_as(a, row, from, n, DTYPE_BF16);
    else
        add_2d_stretch_as(a, row, from, n, DTYPE_F32);
}

static void add_2d_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct add_2d_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        for (int64_t from = 0; from < a->cols; from += STRETCH)
            add_2d_stretch(a, i, from, MIN(STRETCH, a->cols - from));
}

static titan_status run_add_2d(const struct cpu_context *ctx, const void *p)
{
    const struct add_2d_args *a = p;
    titan_assert(a->rows > 0 && a->cols > 0 && a->repeat > 0);
    cpu_for(ctx, a->rows, 1 + GRAIN / (a->cols * a->repeat), add_2d_range, a);
    return TITAN_OK;
}

titan_status cpu_add_2d(struct stream *s, void *dst, int64_t ldd, const void *src, int64_t lds, enum dtype dt,
                        int64_t rows, int64_t cols, int64_t repeat)
{
    if ((dt != DTYPE_BF16 && dt != DTYPE_F32) || rows < 0 || cols < 0 || ldd < cols || lds < cols || repeat <= 0)
        return TITAN_EINVAL;
    if (rows == 0 || cols == 0)
        return TITAN_OK;
    struct add_2d_args a = {dst, src, dt, ldd, lds, rows, cols, repeat};
    return cpu_enqueue(s, run_add_2d, &a, sizeof(a));
}

CPU_INLINE void scale_as(void *out, const void *x, float factor, int64_t n, enum dtype dt)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        store_f32_as(out, i, dt, load_as_f32(x, i, dt) * factor);
}
CPU_KERNEL static void scale_bf16(void *out, const void *x, float factor, int64_t n)
{
    scale_as(out, x, factor, n, DTYPE_BF16);
}
CPU_KERNEL static void scale_f32(void *out, const void *x, float factor, int64_t n)
{
    scale_as(out, x, factor, n, DTYPE_F32);
}

static void scale_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct sum_args *a = p;
    (void)thread;
    (a->dt == DTYPE_BF16 ? scale_bf16 : scale_f32)(at_mut(a->out, begin, a->dt), at(a->a, begin, a->dt), a->factor,
                                                   end - begin);
}

static titan_status run_scale(const struct cpu_context *ctx, const void *p)
{
    const struct sum_args *a = p;
    cpu_for(ctx, a->n, GRAIN, scale_range, a);
    return TITAN_OK;
}

titan_status cpu_scale(struct stream *s, void *out, const void *x, enum dtype dt, float factor, size_t n)
{
    if (dt != DTYPE_BF16 && dt != DTYPE_F32)
        return TITAN_EINVAL;
    struct sum_args a = {.out = out, .a = x, .dt = dt, .factor = factor, .n = (int64_t)n};
    return cpu_enqueue(s, run_scale, &a, sizeof(a));
}

/* b NULL: cap tanh(a / cap); otherwise a times the derivative at b. */
CPU_INLINE void softcap_as(void *out, const void *a, const void *b, float cap, int64_t n, enum dtype dt)
{
    if (b) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float t = tanh_f32(load_as_f32(b, i, dt) / cap);
            store_f32_as(out, i, dt, load_as_f32(a, i, dt) * (1.0f - t * t));
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            store_f32_as(out, i, dt, cap * tanh_f32(load_as_f32(a, i, dt) / cap));
    }
}
CPU_KERNEL static void softcap_bf16(void *out, const void *a, const void *b, float cap, int64_t n)
{
    softcap_as(out, a, b, cap, n, DTYPE_BF16);
}
CPU_KERNEL static void softcap_f32(void *out, const void *a, const void *b, float cap, int64_t n)
{
    softcap_as(out, a, b, cap, n, DTYPE_F32);
}

static void softcap_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct sum_args *a = p;
    (void)thread;
    (a->dt == DTYPE_BF16 ? softcap_bf16 : softcap_f32)(at_mut(a->out, begin, a->dt), at(a->a, begin, a->dt),
                                                       a->b ? at(a->b, begin, a->dt) : NULL, a->factor, end - begin);
}

static titan_status run_softcap(const struct cpu_context *ctx, const void *p)
{
    const struct sum_args *a = p;
    titan_assert(a->factor > 0);
    cpu_for(ctx, a->n, GRAIN, softcap_range, a);
    return TITAN_OK;
}

titan_status cpu_softcap(struct stream *s, void *out, const void *x, enum dtype dt, float cap, size_t n)
{
    return cpu_softcap_dgrad(s, out, x, NULL, dt, cap, n);
}

titan_status cpu_softcap_dgrad(struct stream *s, void *dx, const void *dout, const void *x, enum dtype dt, float cap,
                               size_t n)
{
    if ((dt != DTYPE_BF16 && dt != DTYPE_F32) || !(cap > 0))
        return TITAN_EINVAL;
    struct sum_args a = {.out = dx, .a = dout, .b = x, .dt = dt, .factor = cap, .n = (int64_t)n};
    return cpu_enqueue(s, run_softcap, &a, sizeof(a));
}

enum { SUM_LANES = 32 };

/* Element j of a block goes to lane j % SUM_LANES, lanes are added in order: the same order on every instruction set,
 * and independent of where the block lies. The square of a float is exact in a double. */
CPU_INLINE double block_sum_lanes(const float *restrict x, int64_t n, bool square)
{
    double lanes[SUM_LANES] = {0};
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES) {
#pragma omp simd
        for (int l = 0; l < SUM_LANES; l++) {
            double v = x[i + l];
            lanes[l] += square ? v * v : v;
        }
    }
    for (int l = 0; i + l < n; l++) {
        double v = x[i + l];
        lanes[l] += square ? v * v : v;
    }
    double sum = 0.0;
    for (int l = 0; l < SUM_LANES; l++)
        sum += lanes[l];
    return sum;
}
CPU_KERNEL static double block_sum(const float *x, int64_t n, bool square)
{
    return square ? block_sum_lanes(x, n, true) : block_sum_lanes(x, n, false);
}

static void block_sums_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct sum_args *a = p;
    double *out = a->out;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        out[i] = block_sum((const float *)a->a + i * a->block, MIN(a->block, a->n - i * a->block), a->square);
}

static titan_status run_block_sums(const struct cpu_context *ctx, const void *p)
{
    const struct sum_args *a = p;
    titan_assert(a->block > 0);
    cpu_for(ctx, (a->n + a->block - 1) / a->block, 1 + GRAIN / a->block, block_sums_range, a);
    return TITAN_OK;
}

titan_status cpu_block_sums(struct stream *s, double *out, const float *x, size_t n, size_t block, bool square)
{
    if (block == 0 || block > INT64_MAX / 2)
        return TITAN_EINVAL;
    struct sum_args a = {.out = out, .a = x, .n = (int64_t)n, .block = (int64_t)block, .square = square};
    return cpu_enqueue(s, run_block_sums, &a, sizeof(a));
}

CPU_KERNEL static double sum_f64(const double *restrict x, int64_t n)
{
    double lanes[SUM_LANES] = {0};
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES) {
#pragma omp simd
        for (int l = 0; l < SUM_LANES; l++)
            lanes[l] += x[i + l];
    }
    for (int l = 0; i + l < n; l++)
        lanes[l] += x[i + l];
    double sum = 0.0;
    for (int l = 0; l < SUM_LANES; l++)
        sum += lanes[l];
    return sum;
}

static titan_status run_sum(const struct cpu_context *ctx, const void *p)
{
    const struct sum_args *a = p;
    titan_assert(a->n >= 0);
    double *out = a->out, sum = sum_f64(a->a, a->n);
    (void)ctx;
    *out = a->add ? *out + sum : sum;
    return TITAN_OK;
}

titan_status cpu_sum(struct stream *s, double *out, bool add, const double *x, size_t n)
{
    struct sum_args a = {.out = out, .a = x, .n = (int64_t)n, .add = add};
    return cpu_enqueue(s, run_sum, &a, sizeof(a));
}

struct hash_args {
    uint64_t *out;
    const void *x;
    enum dtype dt;
    int64_t cols, first;
    uint64_t key;
};

CPU_KERNEL static uint64_t hash_f32(const float *x, int64_t n, uint64_t key, int64_t first)
{
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        sum += hash_element(key, first + i, bits);
    }
    return sum;
}

CPU_KERNEL static uint64_t hash_bf16(const uint16_t *x, int64_t n, uint64_t key, int64_t first)
{
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += hash_element(key, first + i, (uint32_t)x[i] << 16);
    return sum;
}

/* Elements of all rows one after another; what a thread has of a row at a time. */
static void hash_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct hash_args *a = p;
    uint64_t sum = 0;
    (void)thread;
    while (begin < end) {
        const int64_t row = begin / a->cols, col = begin % a->cols, n = MIN(a->cols - col, end - begin);
        const uint64_t key = hash_mix(a->key + (uint64_t)row);
        sum += a->dt == DTYPE_BF16 ? hash_bf16((const uint16_t *)a->x + begin, n, key, a->first + col)
                                   : hash_f32((const float *)a->x + begin, n, key, a->first + col);
        begin += n;
    }
    (void)__atomic_fetch_add(a->out, sum, __ATOMIC_RELAXED);
}

struct hash_call {
    struct hash_args args;
    int64_t n;
};

static titan_status run_hash(const struct cpu_context *ctx, const void *p)
{
    const struct hash_call *call = p;
    titan_assert(call->args.cols > 0);
    cpu_for(ctx, call->n, GRAIN, hash_range, &call->args);
    return TITAN_OK;
}

titan_status cpu_hash(struct stream *s, uint64_t *out, const void *x, enum dtype dt, int64_t rows, int64_t cols,
                      uint64_t key, int64_t first)
{
    if ((dt != DTYPE_F32 && dt != DTYPE_BF16) || rows < 0 || cols < 0)
        return TITAN_EINVAL;
    if (rows == 0 || cols == 0)
        return TITAN_OK;
    const struct hash_call call = {.args = {out, x, dt, cols, first, key}, .n = rows * cols};
    return cpu_enqueue(s, run_hash, &call, sizeof call);
}
