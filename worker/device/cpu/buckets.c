/* SPDX-License-Identifier: Apache-2.0 */
/* buckets.c - weights in few bits (base/weight_codes.h). A bucket's values are read twice, the second time from the
 * cache. */
#include <assert.h>

#include "worker/device/cpu/arith.h"

#define GRAIN_BUCKETS 16 /* least work of a thread */

static_assert(sizeof(struct weight_encode_args) <= CPU_ARGS_MAX, "arguments fit a queue slot");

/* Codes of x (n), a byte each. Returns the bucket's numbers. begin, end: the values that have codes, in `parts` parts.
 */
CPU_INLINE struct weight_bucket encode_bucket(const float *restrict x, const int32_t *begin, const int32_t *end,
                                              int parts, enum weight_codec codec, float shift, uint8_t *restrict codes)
{
    int32_t low = INT32_MAX, high = INT32_MIN;
    struct weight_scale scale;

    for (int p = 0; p < parts; p++)
        for (int32_t i = begin[p]; i < end[p]; i++) {
            const int32_t order = weight_order(x[i]);
            low = order < low ? order : low;
            high = order > high ? order : high;
        }
    const struct weight_bucket b = weight_bucket_of(low, high, codec, shift, &scale);
    if (scale.inverse > 0.0f)
        for (int p = 0; p < parts; p++)
            for (int32_t i = begin[p]; i < end[p]; i++)
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
        int32_t begin[WEIGHT_RUNS + 1], end[WEIGHT_RUNS + 1], done = 0;
        uint8_t codes[WEIGHT_BUCKET] __attribute__((aligned(64)));
        float wide[WEIGHT_BUCKET];
        const float *x = wide;
        int parts = 0;

        while (run < a->runs && a->run[run].to <= at)
            run++;
        for (int r = run; r < a->runs && a->run[r].from < at + n; r++) {
            const int32_t stop = (int32_t)MAX(a->run[r].from - at, 0);
            if (stop > done)
                begin[parts] = done, end[parts++] = stop;
            done = (int32_t)MIN(a->run[r].to - at, n);
        }
        if (done < n)
            begin[parts] = done, end[parts++] = (int32_t)n;
        if (dt == DTYPE_BF16)
            for (int64_t i = 0; i < n; i++)
                wide[i] = load_as_f32(a->x, at + i, dt);
        else
            x = (const float *)a->x + at;
        const bool whole = parts == 1 && begin[0] == 0 && end[0] == n;
        if (!whole)
            memset(codes, 0, sizeof codes);
        numbers[k] = encode_bucket(x, begin, end, parts, codec, a->shift, codes);
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
    if (!weight_codes_valid(a->dt, a->codec, a->n, a->bucket) || a->runs < 0 || a->runs > WEIGHT_RUNS)
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
                out[i] = bf16_from_f32(weight_decode(x[i], b));
        } else {
            float *restrict out = (float *)a->out + piece * a->n + at;
            for (int64_t i = 0; i < n; i++)
                out[i] = weight_decode(x[i], b);
        }
    }
}
CODEC_RANGE(decode, weight_decode_args)

titan_status cpu_weight_decode(struct stream *s, const struct weight_decode_args *a)
{
    if (!weight_codes_valid(a->dt, a->codec, a->n, a->bucket) || a->pieces < 0)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, decode_range, a->pieces * weight_buckets(a->n, a->bucket), GRAIN_BUCKETS, a, sizeof *a);
}
