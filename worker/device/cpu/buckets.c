/* SPDX-License-Identifier: Apache-2.0 */
/* buckets.c - weights in few bits (base/weight_codes.h). A bucket's values are read twice, the second time from the
 * cache. */
#include <assert.h>

#include "worker/device/cpu/arith.h"

#define GRAIN_BUCKETS 16 /* least work of a thread */

static_assert(sizeof(struct weight_encode_args) <= CPU_ARGS_MAX, "arguments fit a queue slot");

/* A bucket's values, and which of them have codes, in `parts` parts. */
struct bucket_values {
    int32_t begin[WEIGHT_RUNS + 1], end[WEIGHT_RUNS + 1];
    const float *x;
    float wide[WEIGHT_BUCKET];
    int parts;
};

/* *run: the first run that may reach into this bucket; buckets are read in ascending order. */
CPU_INLINE void read_bucket(const struct weight_encode_args *a, int64_t k, enum dtype dt, int *run,
                            struct bucket_values *ret)
{
    const int64_t at = k * a->bucket, n = MIN(a->bucket, a->n - at);
    int32_t done = 0;

    ret->parts = 0;
    while (*run < a->runs && a->run[*run].to <= at)
        ++*run;
    for (int r = *run; r < a->runs && a->run[r].from < at + n; r++) {
        const int32_t stop = (int32_t)MAX(a->run[r].from - at, 0);
        if (stop > done)
            ret->begin[ret->parts] = done, ret->end[ret->parts++] = stop;
        done = (int32_t)MIN(a->run[r].to - at, n);
    }
    if (done < n)
        ret->begin[ret->parts] = done, ret->end[ret->parts++] = (int32_t)n;
    ret->x = ret->wide;
    if (dt == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            ret->wide[i] = load_as_f32(a->x, at + i, dt);
    else
        ret->x = (const float *)a->x + at;
}

CPU_INLINE void find_range(const struct bucket_values *v, int32_t *low, int32_t *high)
{
    const float *const restrict x = v->x;

    *low = INT32_MAX;
    *high = INT32_MIN;
    for (int p = 0; p < v->parts; p++)
        for (int32_t i = v->begin[p]; i < v->end[p]; i++) {
            const int32_t order = weight_order(x[i]);
            *low = order < *low ? order : *low;
            *high = order > *high ? order : *high;
        }
}

/* Writes codes, a byte each. Returns the bucket's numbers. */
CPU_INLINE struct weight_bucket encode_bucket(const struct bucket_values *v, enum weight_codec codec, float shift,
                                              const float *table, uint8_t *restrict codes)
{
    const float *const restrict x = v->x;
    struct weight_scale scale;
    int32_t low, high;

    find_range(v, &low, &high);
    const struct weight_bucket b =
        table ? weight_bucket_by(low, high, &scale) : weight_bucket_of(low, high, codec, shift, &scale);
    for (int p = 0; p < v->parts && scale.inverse > 0.0f; p++)
        if (table)
            for (int32_t i = v->begin[p]; i < v->end[p]; i++)
                codes[i] = (uint8_t)weight_encode_by(x[i], &scale, table, 1 << weight_bits(codec));
        else
            for (int32_t i = v->begin[p]; i < v->end[p]; i++)
                codes[i] = (uint8_t)weight_encode(x[i], &scale);
    return b;
}

CPU_INLINE void encode_items(const struct weight_encode_args *a, int64_t from, int64_t to, enum dtype dt,
                             enum weight_codec codec)
{
    uint8_t *const to_codes = a->codes + weight_codes_begin(a->n, a->bucket);
    struct weight_bucket *const numbers = (void *)a->codes;
    int run = 0;

    for (int64_t k = from; k < to; k++) {
        const int64_t at = k * a->bucket, n = MIN(a->bucket, a->n - at);
        uint8_t codes[WEIGHT_BUCKET] __attribute__((aligned(64)));
        struct bucket_values v;
        read_bucket(a, k, dt, &run, &v);
        const bool whole = v.parts == 1 && v.begin[0] == 0 && v.end[0] == n;
        if (!whole)
            memset(codes, 0, sizeof codes);
        numbers[k] = encode_bucket(&v, codec, a->shift, a->table, codes);
        if (whole && !(numbers[k].unit > 0.0f))
            memset(codes, 0, sizeof codes);
        weight_pack(to_codes + at / 8 * weight_bits(codec), codes, (int)n, codec);
    }
}

/* Defines NAME_range for cpu_for. It calls NAME_items with type and codec as constants. */
#define CODEC_RANGE(name, type)                                                                                        \
    CPU_KERNEL static void name##_range(const void *p, int64_t from, int64_t to, int thread)                           \
    {                                                                                                                  \
        const struct type *a = p;                                                                                      \
        (void)thread;                                                                                                  \
        if (a->codec == WEIGHTS_INT8)                                                                                  \
            a->dt == DTYPE_BF16 ? name##_items(a, from, to, DTYPE_BF16, WEIGHTS_INT8)                                  \
                                : name##_items(a, from, to, DTYPE_F32, WEIGHTS_INT8);                                  \
        else if (a->codec == WEIGHTS_INT6)                                                                             \
            a->dt == DTYPE_BF16 ? name##_items(a, from, to, DTYPE_BF16, WEIGHTS_INT6)                                  \
                                : name##_items(a, from, to, DTYPE_F32, WEIGHTS_INT6);                                  \
        else                                                                                                           \
            a->dt == DTYPE_BF16 ? name##_items(a, from, to, DTYPE_BF16, WEIGHTS_INT4)                                  \
                                : name##_items(a, from, to, DTYPE_F32, WEIGHTS_INT4);                                  \
    }
CODEC_RANGE(encode, weight_encode_args)

titan_status cpu_weight_encode(struct stream *s, const struct weight_encode_args *a)
{
    if (!weight_codes_valid(a->dt, a->codec, a->n, a->bucket) || a->runs < 0 || a->runs > WEIGHT_RUNS ||
        (a->table && !weight_learns(a->codec)))
        return TITAN_EINVAL;
    const int64_t buckets = weight_buckets(a->n, a->bucket), begin = weight_codes_begin(a->n, a->bucket);
    const int64_t numbers = buckets * (int64_t)sizeof(struct weight_bucket);
    const int64_t end = begin + (a->n * weight_bits(a->codec) + 7) / 8;

    TRY(cpu_zero(s, a->codes + numbers, (size_t)(begin - numbers)));
    TRY(cpu_zero(s, a->codes + end, (size_t)(weight_codes_bytes(a->codec, a->n, a->bucket) - end)));
    return cpu_enqueue_range(s, encode_range, buckets, GRAIN_BUCKETS, a, sizeof *a);
}

CPU_INLINE void decode_items(const struct weight_decode_args *a, int64_t from, int64_t to, enum dtype dt,
                             enum weight_codec codec)
{
    const int64_t buckets = weight_buckets(a->n, a->bucket), bytes = weight_codes_bytes(codec, a->n, a->bucket);
    const int64_t begin = weight_codes_begin(a->n, a->bucket);

    for (int64_t k = from; k < to; k++) {
        const int64_t piece = k / buckets, at = k % buckets * a->bucket, n = MIN(a->bucket, a->n - at);
        const uint8_t *const codes = a->codes + piece * bytes;
        const struct weight_bucket b = ((const struct weight_bucket *)(const void *)codes)[k % buckets];
        uint8_t x[WEIGHT_BUCKET] __attribute__((aligned(64))) = {0};

        weight_unpack(x, codes + begin + at / 8 * weight_bits(codec), (int)n, codec);
        if (dt == DTYPE_BF16) {
            uint16_t *restrict out = (uint16_t *)a->out + piece * a->n + at;
            for (int64_t i = 0; i < n; i++)
                out[i] = bf16_from_f32(a->table ? weight_decode_by(x[i], b, a->table, 1 << weight_bits(codec))
                                                : weight_decode(x[i], b));
        } else {
            float *restrict out = (float *)a->out + piece * a->n + at;
            for (int64_t i = 0; i < n; i++)
                out[i] =
                    a->table ? weight_decode_by(x[i], b, a->table, 1 << weight_bits(codec)) : weight_decode(x[i], b);
        }
    }
}
CODEC_RANGE(decode, weight_decode_args)

titan_status cpu_weight_decode(struct stream *s, const struct weight_decode_args *a)
{
    if (!weight_codes_valid(a->dt, a->codec, a->n, a->bucket) || a->pieces < 0 ||
        (a->table && !weight_learns(a->codec)))
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, decode_range, a->pieces * weight_buckets(a->n, a->bucket), GRAIN_BUCKETS, a, sizeof *a);
}

/* --- learned levels ----------------------------------------------------------------------------------------------- */

#define GRAIN_COUNTED 256 /* buckets: a thread adds its counts once */

struct count_args {
    int32_t *counts;
    struct weight_encode_args of;
};
static_assert(sizeof(struct count_args) <= CPU_ARGS_MAX, "arguments fit a queue slot");

CPU_KERNEL static void count_range(const void *p, int64_t from, int64_t to, int thread)
{
    const struct count_args *const a = p;
    int32_t counts[WEIGHT_BINS] = {0}, low, high;
    struct bucket_values v;
    struct weight_scale scale;
    int run = 0;

    (void)thread;
    for (int64_t k = from; k < to; k++) {
        read_bucket(&a->of, k, a->of.dt, &run, &v);
        find_range(&v, &low, &high);
        (void)weight_bucket_by(low, high, &scale);
        for (int q = 0; q < v.parts && scale.inverse > 0.0f; q++)
            for (int32_t i = v.begin[q]; i < v.end[q]; i++)
                counts[weight_bin(v.x[i], &scale)]++;
    }
    for (int b = 0; b < WEIGHT_BINS; b++)
        __atomic_fetch_add(&a->counts[b], counts[b], __ATOMIC_RELAXED);
}

titan_status cpu_weight_count(struct stream *s, int32_t *counts, const struct weight_encode_args *a)
{
    if (!weight_codes_valid(a->dt, a->codec, a->n, a->bucket) || a->runs < 0 || a->runs > WEIGHT_RUNS)
        return TITAN_EINVAL;
    const struct count_args args = {counts, *a};
    return cpu_enqueue_range(s, count_range, weight_buckets(a->n, a->bucket), GRAIN_COUNTED, &args, sizeof args);
}

static void learn_range(const void *p, int64_t from, int64_t to, int thread)
{
    const struct weight_learn_args *const a = p;
    const int n = 1 << weight_bits(a->codec);
    struct weight_sums sums[WEIGHT_BINS + 1] = {{0, 0}};
    float level[2][WEIGHT_LEVELS];

    (void)from, (void)to, (void)thread;
    for (int b = 0; b < WEIGHT_BINS; b++) {
        uint64_t count = 0;
        for (int64_t r = 0; r < a->ranks; r++)
            count += (uint32_t)a->counts[r * a->ld + b];
        sums[b + 1] = weight_sums_next(sums[b], b, (double)count);
    }
    for (int j = 0; j < n; j++)
        level[0][j] = weight_level_first(sums, j, n);
    for (int turn = 0; turn < WEIGHT_TURNS; turn++)
        for (int j = 0; j < n; j++)
            level[(turn + 1) % 2][j] = weight_level(sums, level[turn % 2], j, n);
    for (int j = 0; j < n; j++)
        weight_table(level[WEIGHT_TURNS % 2], j, n, a->shift, a->table);
}

titan_status cpu_weight_learn(struct stream *s, const struct weight_learn_args *a)
{
    if (!weight_learns(a->codec) || a->ranks < 0 || a->ld < WEIGHT_BINS)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, learn_range, 1, 1, a, sizeof *a);
}
