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

CPU_INLINE void add_items(const struct sum_args *of, int64_t begin, int64_t end, enum dtype dt)
{
    void *const out = of->out;
    const void *const a = of->a, *const b = of->b;
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        store_f32_as(out, i, dt, load_as_f32(a, i, dt) + load_as_f32(b, i, dt));
}
TYPED_RANGE(add, sum_args)

titan_status cpu_add(struct stream *s, void *out, const void *a, const void *b, enum dtype dt, size_t n)
{
    const struct sum_args args = {.out = out, .a = a, .b = b, .dt = dt};
    return compute_type(dt) ? cpu_enqueue_range(s, add_range, (int64_t)n, GRAIN, &args, sizeof args) : TITAN_EINVAL;
}

titan_status cpu_accumulate(struct stream *s, float *dst, const float *src, size_t n)
{
    return cpu_add(s, dst, dst, src, DTYPE_F32, n);
}

enum { STRETCH = 256 }; /* columns summed at a time: the sums stay in the first-level cache */

CPU_INLINE void add_2d_stretch(const struct strided_args *a, int64_t row, int64_t from, enum dtype dt)
{
    const int64_t n = MIN(STRETCH, a->cols - from);
    void *const dst = at_mut(a->dst, row * a->ldd + from, dt);
    float sums[STRETCH];
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

CPU_INLINE void add_2d_items(const struct strided_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++)
        for (int64_t from = 0; from < a->cols; from += STRETCH)
            add_2d_stretch(a, i, from, dt);
}
TYPED_RANGE(add_2d, strided_args)

titan_status cpu_add_2d(struct stream *s, const struct strided_args *a)
{
    if (!compute_type(a->dt) || a->rows < 0 || a->cols < 0 || a->ldd < a->cols || a->lds < a->cols || a->repeat <= 0)
        return TITAN_EINVAL;
    if (a->rows == 0 || a->cols == 0)
        return TITAN_OK;
    return cpu_enqueue_range(s, add_2d_range, a->rows, 1 + GRAIN / (a->cols * a->repeat), a, sizeof *a);
}

CPU_INLINE void scale_items(const struct sum_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    void *const out = a->out;
    const void *const x = a->a;
    const float factor = a->factor;
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        store_f32_as(out, i, dt, load_as_f32(x, i, dt) * factor);
}
TYPED_RANGE(scale, sum_args)

titan_status cpu_scale(struct stream *s, void *out, const void *x, enum dtype dt, float factor, size_t n)
{
    const struct sum_args a = {.out = out, .a = x, .dt = dt, .factor = factor};
    return compute_type(dt) ? cpu_enqueue_range(s, scale_range, (int64_t)n, GRAIN, &a, sizeof a) : TITAN_EINVAL;
}

CPU_INLINE void softcap_items(const struct softcap_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    void *const out = a->out;
    const void *const x = a->x;
    const float cap = a->cap;
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        store_f32_as(out, i, dt, cap * tanh_f32(load_as_f32(x, i, dt) / cap));
}
TYPED_RANGE(softcap, softcap_args)

titan_status cpu_softcap(struct stream *s, const struct softcap_args *a)
{
    if (!compute_type(a->dt) || !(a->cap > 0))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, softcap_range, (int64_t)a->n, GRAIN, a, sizeof *a);
}

CPU_INLINE void softcap_dgrad_items(const struct softcap_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    void *const out = a->out;
    const void *const x = a->x, *const dout = a->dout;
    const float cap = a->cap;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        float t = tanh_f32(load_as_f32(x, i, dt) / cap);
        store_f32_as(out, i, dt, load_as_f32(dout, i, dt) * (1.0f - t * t));
    }
}
TYPED_RANGE(softcap_dgrad, softcap_args)

titan_status cpu_softcap_dgrad(struct stream *s, const struct softcap_args *a)
{
    if (!compute_type(a->dt) || !(a->cap > 0))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, softcap_dgrad_range, (int64_t)a->n, GRAIN, a, sizeof *a);
}

enum { SUM_LANES = 32 };

/* Element j of a block goes to lane j % SUM_LANES, and lanes are added in order. So the order of the sum depends
 * neither on the instruction set nor on where the block lies. The square of a float is exact in a double. */
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

titan_status cpu_block_sums(struct stream *s, double *out, const float *x, size_t n, size_t block, bool square)
{
    if (block == 0 || block > INT64_MAX / 2)
        return TITAN_EINVAL;
    const struct sum_args a = {.out = out, .a = x, .n = (int64_t)n, .block = (int64_t)block, .square = square};
    return cpu_enqueue_range(s, block_sums_range, (a.n + a.block - 1) / a.block, 1 + GRAIN / a.block, &a, sizeof a);
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

/* The range counts the elements of all rows; the loop takes a thread's share of one row at a time. */
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

titan_status cpu_hash(struct stream *s, const struct hash_args *a)
{
    if (!compute_type(a->dt) || a->rows < 0 || a->cols < 0)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, hash_range, a->rows * a->cols, GRAIN, a, sizeof *a);
}
