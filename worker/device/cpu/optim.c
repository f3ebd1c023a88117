/* SPDX-License-Identifier: Apache-2.0 */
/* optim.c - the rules of updates, on fp32 or bf16 masters; fp32 masters may have a bf16 shadow. An update is one pass
 * over memory. AdamW reads and writes 28 bytes an element (30 with the shadow, 20 with bf16 moments, 16 all in bf16, 16
 * with 8-bit moments), so memory limits its speed; of 8-bit moments, arithmetic. */
#include <assert.h>
#include <math.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct optim_args {
    struct update_piece piece;
    struct update_args with;
};
static_assert(sizeof(struct optim_args) <= CPU_ARGS_MAX, "optimizer arguments fit a queue slot");

/* RANDOM_CHUNK: elements that get their random words together; CODES_CHUNK: that are decoded together */
enum { GRAIN = 1 << 14, RANDOM_CHUNK = 2048, CODES_CHUNK = 4 * MOMENT_BLOCK };

CPU_INLINE float rounded_to_bf16(float x)
{
    return bf16_to_f32(bf16_from_f32(x));
}

/* The mean gradient, clipped. With bf16 masters, each of the two products is rounded to bf16. */
CPU_INLINE float gradient_of(float sum, float scale, float mean, float clip, enum dtype master)
{
    return master == DTYPE_BF16 ? rounded_to_bf16(rounded_to_bf16(sum * mean) * clip) : sum * scale;
}

/* A decaying mean. exact: the sum is rounded once on every machine, whatever the compiler contracts. */
CPU_INLINE float mean_of(float decay, float old, float rest, bool exact)
{
    return exact ? fmaf(decay, old, rest) : decay * old + rest;
}

/* Constants of a loop. */
struct update_form {
    enum update_rule rule;
    enum dtype master, moment;
    bool shadow;
    bool exact; /* the moments have the same bits on every machine */
};

/* random (n): words by which AdamW's bf16 moments are rounded; the constant NULL: state is rounded to nearest. */
CPU_INLINE void update_elements(const struct update_piece *p, const struct update_args *a, struct update_form form,
                                const uint32_t *random)
{
    const enum dtype wt = form.master, mt = form.moment;
    const enum update_rule rule = form.rule;
    void *const master = p->master, *const m = p->state[0], *const v = p->state[1], *const slow = p->state[2];
    const float *const grad = p->grad;
    uint16_t *const shadow = p->shadow;
    const float b1 = a->beta1, b2 = a->beta2, c1 = 1.0f - a->beta1, c2 = 1.0f - a->beta2;
    const float first = a->own[0], second = a->own[1];
    const float scale = a->grad_scale, mean = a->mean, clip = a->clip, eps = a->eps;
    const float lr = p->excess > 1.0f ? a->lr / p->excess : a->lr;
    const bool coupled = rule == RULE_SGD || a->l2, keeps = update_keeps_state(a);
    const float decay = coupled ? 0.0f : a->weight_decay, l2 = coupled ? a->weight_decay : 0.0f;
    const float inv1 = 1.0f / a->bias1, inv2 = 1.0f / a->bias2;
    const int64_t n = (int64_t)p->n;

    titan_assert(m || rule == RULE_DIRECTION || (rule == RULE_SGD && !keeps));
    titan_assert(v || rule == RULE_DIRECTION || rule == RULE_SGD || rule == RULE_LION);
    titan_assert(slow || rule != RULE_ADEMAMIX);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float w = load_as_f32(master, i, wt), u;
        const float g = mean_of(l2, w, gradient_of(grad[i], scale, mean, clip, wt), form.exact);
        if (rule == RULE_DIRECTION) {
            w -= lr * (grad[i] + decay * w);
        } else if (rule == RULE_SGD) {
            u = g;
            if (keeps) {
                const float momentum = first, b = mean_of(momentum, load_as_f32(m, i, mt), g, form.exact);
                store_f32_as(m, i, mt, b);
                u = second != 0.0f ? g + momentum * b : b;
            }
            w -= lr * u;
        } else if (rule == RULE_LION) {
            const float old = load_as_f32(m, i, mt), d = mean_of(b1, old, c1 * g, form.exact);
            u = d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d; /* 0 and NaN stay */
            store_f32_as(m, i, mt, mean_of(b2, old, c2 * g, form.exact));
            w -= lr * (u + decay * w);
        } else {
            const float mi = mean_of(b1, load_as_f32(m, i, mt), c1 * g, form.exact);
            const float vi = mean_of(b2, load_as_f32(v, i, mt), c2 * (g * g), form.exact);
            float numerator = mi * inv1;
            if (rule == RULE_ADEMAMIX) {
                const float b3 = first, alpha = second;
                const float si = mean_of(b3, load_as_f32(slow, i, mt), (1.0f - b3) * g, form.exact);
                store_f32_as(slow, i, mt, si);
                numerator += alpha * si;
            }
            w -= lr * (numerator / (sqrtf(vi * inv2) + eps) + decay * w);
            if (random) {
                ((uint16_t *)m)[i] = bf16_from_f32_at_random(mi, random[i]);
                ((uint16_t *)v)[i] = bf16_from_f32_at_random(vi, random[i] >> 16);
            } else {
                store_f32_as(m, i, mt, mi);
                store_f32_as(v, i, mt, vi);
            }
        }
        store_f32_as(master, i, wt, w);
        if (form.shadow)
            shadow[i] = bf16_from_f32(w);
    }
}

/* Makes the types constants. */
CPU_INLINE void update_typed(const struct update_piece *p, const struct update_args *a, enum update_rule rule,
                             const uint32_t *random)
{
    if (a->master == DTYPE_BF16)
        update_elements(p, a, (struct update_form){rule, DTYPE_BF16, DTYPE_BF16, false, random != NULL}, random);
    else if (a->moment == DTYPE_BF16 && p->shadow)
        update_elements(p, a, (struct update_form){rule, DTYPE_F32, DTYPE_BF16, true, random != NULL}, random);
    else if (a->moment == DTYPE_BF16)
        update_elements(p, a, (struct update_form){rule, DTYPE_F32, DTYPE_BF16, false, random != NULL}, random);
    else if (p->shadow)
        update_elements(p, a, (struct update_form){rule, DTYPE_F32, DTYPE_F32, true, false}, NULL);
    else
        update_elements(p, a, (struct update_form){rule, DTYPE_F32, DTYPE_F32, false, false}, NULL);
}

/* n values of blocks that begin at b; the last one may have fewer than a block. */
CPU_INLINE void decode_values(const struct moment_block *b, int n, bool square, float *values)
{
    const int whole = n / MOMENT_BLOCK, rest = n % MOMENT_BLOCK;

    moment_blocks_decode(b, whole, square, values);
    if (rest > 0)
        moment_block_decode(b + whole, rest, square, values + whole * MOMENT_BLOCK);
}

CPU_INLINE void encode_values(struct moment_block *b, int n, bool square, const float *values)
{
    const int whole = n / MOMENT_BLOCK, rest = n % MOMENT_BLOCK;

    moment_blocks_encode(b, whole, square, values);
    if (rest > 0)
        moment_block_encode(b + whole, rest, square, values + whole * MOMENT_BLOCK);
}

/* State in codes: a few blocks are decoded, updated as fp32 in the first-level cache, and encoded. */
CPU_INLINE void update_blocks(const struct update_piece *p, const struct update_args *a, struct update_form form)
{
    float values[UPDATE_STATES][CODES_CHUNK];

    for (int64_t at = 0; at < (int64_t)p->n; at += CODES_CHUNK) {
        struct moment_block *blocks[UPDATE_STATES];
        struct update_piece part = {.master = at_mut(p->master, at, form.master),
                                    .grad = p->grad + at,
                                    .shadow = form.shadow ? p->shadow + at : NULL,
                                    .n = (size_t)MIN((int64_t)p->n - at, CODES_CHUNK),
                                    .excess = p->excess};
        for (int i = 0; i < UPDATE_STATES; i++) {
            blocks[i] = p->state[i] ? (struct moment_block *)p->state[i] + at / MOMENT_BLOCK : NULL;
            part.state[i] = blocks[i] ? values[i] : NULL;
            if (blocks[i])
                decode_values(blocks[i], (int)part.n, update_state_is_square(form.rule, i), values[i]);
        }
        update_elements(&part, a, form, NULL);
        for (int i = 0; i < UPDATE_STATES; i++)
            if (blocks[i])
                encode_values(blocks[i], (int)part.n, update_state_is_square(form.rule, i), values[i]);
    }
}

/* Not in update_typed(): together they would be more than a compiler makes fast. */
CPU_INLINE void update_coded(const struct update_piece *p, const struct update_args *a, enum update_rule rule)
{
    if (a->master == DTYPE_BF16)
        update_blocks(p, a, (struct update_form){rule, DTYPE_BF16, DTYPE_F32, false, true});
    else if (p->shadow)
        update_blocks(p, a, (struct update_form){rule, DTYPE_F32, DTYPE_F32, true, true});
    else
        update_blocks(p, a, (struct update_form){rule, DTYPE_F32, DTYPE_F32, false, true});
}

#define RULE_KERNEL(name, rule)                                                                                        \
    CPU_KERNEL static void name(const struct update_piece *p, const struct update_args *a)                             \
    {                                                                                                                  \
        update_typed(p, a, rule, NULL);                                                                                \
    }                                                                                                                  \
    CPU_KERNEL static void name##_coded(const struct update_piece *p, const struct update_args *a)                     \
    {                                                                                                                  \
        update_coded(p, a, rule);                                                                                      \
    }
RULE_KERNEL(adamw, RULE_ADAMW)
RULE_KERNEL(sgd, RULE_SGD)
RULE_KERNEL(lion, RULE_LION)
RULE_KERNEL(ademamix, RULE_ADEMAMIX)
RULE_KERNEL(direction, RULE_DIRECTION)

static void (*const kernels[RULE_COUNT])(const struct update_piece *p,
                                         const struct update_args *a) = {[RULE_ADAMW] = adamw,
                                                                         [RULE_SGD] = sgd,
                                                                         [RULE_LION] = lion,
                                                                         [RULE_ADEMAMIX] = ademamix,
                                                                         [RULE_DIRECTION] = direction};
static void (*const coded_kernels[RULE_COUNT])(const struct update_piece *p,
                                               const struct update_args *a) = {[RULE_ADAMW] = adamw_coded,
                                                                               [RULE_SGD] = sgd_coded,
                                                                               [RULE_LION] = lion_coded,
                                                                               [RULE_ADEMAMIX] = ademamix_coded,
                                                                               [RULE_DIRECTION] = direction_coded};

CPU_KERNEL static void adamw_at_random(const struct update_piece *p, const struct update_args *a,
                                       const uint32_t *random)
{
    update_typed(p, a, RULE_ADAMW, random);
}

/* Elements [begin, end) of a piece. */
static struct update_piece part_of(const struct optim_args *a, int64_t begin, int64_t end)
{
    struct update_piece part = a->piece;

    titan_assert(begin >= 0 && begin <= end);
    part.master = at_mut(part.master, begin, a->with.master);
    for (int i = 0; i < UPDATE_STATES; i++)
        part.state[i] = part.state[i] ? (char *)part.state[i] + moment_bytes(a->with.moment, begin) : NULL;
    part.grad += begin;
    part.shadow = part.shadow ? part.shadow + begin : NULL;
    part.n = (size_t)(end - begin);
    part.rounding.first += begin;
    return part;
}

/* Writes the random words of n elements, one row of the box at a time. */
static void random_words(const struct moment_rounding *r, int64_t n, uint32_t *out)
{
    titan_assert(r->cols > 0 && r->ld >= r->cols);
    for (int64_t e = r->first, end = r->first + n; e < end;) {
        const int64_t count = r->cols == r->ld ? end - e : MIN(end - e, r->cols - e % r->cols);
        const int64_t place = r->origin + e / r->cols * r->ld + e % r->cols;
        rng_words(r->key, (uint64_t)place, r->step, (uint64_t)count, out);
        out += count;
        e += count;
    }
}

static void run_update(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct optim_args *const a = p;
    uint32_t random[RANDOM_CHUNK];

    (void)thread;
    if (!a->piece.rounding.random) {
        const struct update_piece part = part_of(a, begin, end);
        kernels[a->with.rule](&part, &a->with);
        return;
    }
    for (int64_t at = begin; at < end; at += RANDOM_CHUNK) {
        const struct update_piece part = part_of(a, at, MIN(end, at + RANDOM_CHUNK));
        random_words(&part.rounding, (int64_t)part.n, random);
        adamw_at_random(&part, &a->with, random);
    }
}

/* The same for state in codes, of blocks [begin, end). */
static void run_coded(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct optim_args *const a = p;
    const struct update_piece part = part_of(a, begin * MOMENT_BLOCK, MIN(end * MOMENT_BLOCK, (int64_t)a->piece.n));

    (void)thread;
    coded_kernels[a->with.rule](&part, &a->with);
}

static int64_t blocks_of(size_t n)
{
    return ((int64_t)n + MOMENT_BLOCK - 1) / MOMENT_BLOCK;
}

/* Pieces run one after the other: each uses all threads, and a call costs almost nothing. */
titan_status cpu_update(struct stream *s, const struct update_piece *pieces, int count, const struct update_args *args)
{
    titan_assert(count >= 0);
    for (int i = 0; i < count; i++) {
        struct optim_args a = {pieces[i], *args};
        a.with.rounding = pieces[i].rounding;
        if (!update_valid(&a.with, &pieces[i]))
            return TITAN_EINVAL;
        if (args->moment == DTYPE_U8)
            TRY(cpu_enqueue_range(s, run_coded, blocks_of(a.piece.n), GRAIN / MOMENT_BLOCK, &a, sizeof a));
        else
            TRY(cpu_enqueue_range(s, run_update, (int64_t)a.piece.n, GRAIN, &a, sizeof a));
    }
    return TITAN_OK;
}

struct codes_args {
    struct moment_block *blocks;
    float *values;
    bool square, encode;
};

static void run_codes(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct codes_args *const a = p;
    float *const values = a->values + begin * MOMENT_BLOCK;

    (void)thread;
    if (a->encode)
        moment_blocks_encode(a->blocks + begin, end - begin, a->square, values);
    else
        moment_blocks_decode(a->blocks + begin, end - begin, a->square, values);
}

titan_status cpu_encode_moments(struct stream *s, void *blocks, const float *values, size_t n, bool square)
{
    const struct codes_args a = {blocks, (float *)values, square, true};

    return cpu_enqueue_range(s, run_codes, blocks_of(n), GRAIN / MOMENT_BLOCK, &a, sizeof a);
}

titan_status cpu_decode_moments(struct stream *s, float *values, const void *blocks, size_t n, bool square)
{
    const struct codes_args a = {(struct moment_block *)blocks, values, square, false};

    return cpu_enqueue_range(s, run_codes, blocks_of(n), GRAIN / MOMENT_BLOCK, &a, sizeof a);
}

struct sum_args {
    double *sum;
    const void *v;
    const float *grad;
    int64_t n;
    struct update_args with;
};
static_assert(sizeof(struct sum_args) <= CPU_ARGS_MAX, "arguments of a sum fit a queue slot");

/* Sums in units of 2^-16, which are exact in fp64. */
CPU_INLINE double bound_items(const struct sum_args *a, int64_t begin, int64_t end, enum dtype wt, enum dtype mt)
{
    const float b2 = a->with.beta2, c2 = 1.0f - a->with.beta2, inv2 = 1.0f / a->with.bias2;
    const float scale = a->with.grad_scale, mean = a->with.mean, clip = a->with.clip;
    const float least = fmaxf(a->with.eps * a->with.eps, 0x1p-126f);
    const float *const grad = a->grad;
    const void *const v = a->v;
    double sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; i++) {
        const float g = gradient_of(grad[i], scale, mean, clip, wt), square = g * g;
        const float now = (b2 * load_as_f32(v, i, mt) + c2 * square) * inv2;
        sum += (double)rintf(square / (now > least ? now : least) * 65536.0f);
    }
    return sum;
}

CPU_KERNEL static double bound_sum(const struct sum_args *a, int64_t begin, int64_t end)
{
    if (a->with.master == DTYPE_BF16)
        return bound_items(a, begin, end, DTYPE_BF16, DTYPE_BF16);
    return a->with.moment == DTYPE_BF16 ? bound_items(a, begin, end, DTYPE_F32, DTYPE_BF16)
                                        : bound_items(a, begin, end, DTYPE_F32, DTYPE_F32);
}

CPU_KERNEL static double bound_sum_coded(const struct sum_args *a, int64_t begin, int64_t end)
{
    float v[MOMENT_BLOCK];
    double sum = 0;

    for (int64_t at = begin * MOMENT_BLOCK; at < MIN(end * MOMENT_BLOCK, a->n); at += MOMENT_BLOCK) {
        const int n = (int)MIN(a->n - at, MOMENT_BLOCK);
        struct sum_args part = *a;
        part.v = v;
        part.grad = a->grad + at;
        decode_values((const struct moment_block *)a->v + at / MOMENT_BLOCK, n, true, v);
        sum += a->with.master == DTYPE_BF16 ? bound_items(&part, 0, n, DTYPE_BF16, DTYPE_F32)
                                            : bound_items(&part, 0, n, DTYPE_F32, DTYPE_F32);
    }
    return sum;
}

/* Elements [begin, end), or blocks of codes. */
static void run_sum(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct sum_args *const a = p;
    const double part =
        (a->with.moment == DTYPE_U8 ? bound_sum_coded(a, begin, end) : bound_sum(a, begin, end)) / 65536;
    double old, now;

    (void)thread;
    __atomic_load(a->sum, &old, __ATOMIC_RELAXED);
    do /* threads add in any order: the sums are exact */
        now = old + part;
    while (!__atomic_compare_exchange(a->sum, &old, &now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

titan_status cpu_update_sum(struct stream *s, double *sum, const void *v, const float *grad, size_t n,
                            const struct update_args *args)
{
    const struct sum_args a = {sum, v, grad, (int64_t)n, *args};
    const bool coded = args->moment == DTYPE_U8;

    return cpu_enqueue_range(s, run_sum, coded ? blocks_of(n) : (int64_t)n, coded ? GRAIN / MOMENT_BLOCK : GRAIN, &a,
                             sizeof a);
}
