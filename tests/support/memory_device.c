/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/memory_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "base/codecs.h"
#include "base/hash.h"

static titan_status allocate(struct device *dev, size_t bytes, void **ret, struct titan_error *err)
{
    (void)dev;
    *ret = calloc(1, bytes > 0 ? bytes : 1);
    return *ret ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "out of memory");
}

static void release(struct device *dev, void *ptr)
{
    (void)dev;
    free(ptr);
}

static titan_status sync_stream(struct stream *s, struct titan_error *err)
{
    (void)s;
    (void)err;
    return TITAN_OK;
}

static titan_status copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    memmove(dst, src, bytes);
    return TITAN_OK;
}

static titan_status zero(struct stream *s, void *dst, size_t bytes)
{
    (void)s;
    memset(dst, 0, bytes);
    return TITAN_OK;
}

static titan_status hash(struct stream *s, const struct hash_args *a)
{
    (void)s;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        const float value = a->dt == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)a->x)[i]) : ((const float *)a->x)[i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        *a->out += hash_element(hash_mix(a->key + (uint64_t)(i / a->cols)), a->first + i % a->cols, bits);
    }
    return TITAN_OK;
}

static titan_status weights(struct stream *s, const struct weights_args *a)
{
    (void)s;
    for (int64_t i = 0; i < a->rows * a->cols; i++) {
        float x;
        rng_weights(a->weights, (uint64_t)(a->first + i / a->cols * a->width + i % a->cols), 1, &x);
        if (a->dt == DTYPE_BF16)
            ((uint16_t *)a->out)[i] = bf16_from_f32(x);
        else
            ((float *)a->out)[i] = x;
    }
    return TITAN_OK;
}

/* All has run when it is enqueued: there is nothing to wait for. */
static titan_status open_event(struct device *dev, struct event **ret, struct titan_error *err)
{
    (void)dev;
    (void)err;
    *ret = NULL;
    return TITAN_OK;
}

static void close_event(struct event *e)
{
    (void)e;
}

static titan_status record_event(struct event *e, struct stream *s, struct titan_error *err)
{
    (void)e;
    (void)s;
    (void)err;
    return TITAN_OK;
}

static titan_status sync_event(struct event *e, struct titan_error *err)
{
    (void)e;
    (void)err;
    return TITAN_OK;
}

static titan_status copy_2d(struct stream *s, const struct strided_args *a)
{
    const int64_t n = (int64_t)dtype_bytes(a->dt);

    (void)s;
    for (int64_t r = 0; r < a->rows; r++)
        memcpy((char *)a->dst + r * a->ldd * n, (const char *)a->src + r / a->repeat * a->lds * n,
               (size_t)(a->cols * n));
    return TITAN_OK;
}

static titan_status add_2d(struct stream *s, const struct strided_args *a)
{
    (void)s;
    titan_assert(a->dt == DTYPE_F32 && a->repeat == 1);
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t c = 0; c < a->cols; c++)
            ((float *)a->dst)[r * a->ldd + c] += ((const float *)a->src)[r * a->lds + c];
    return TITAN_OK;
}

static titan_status scale(struct stream *s, void *out, const void *x, enum dtype dt, float factor, size_t n)
{
    (void)s;
    titan_assert(dt == DTYPE_F32);
    for (size_t i = 0; i < n; i++)
        ((float *)out)[i] = ((const float *)x)[i] * factor;
    return TITAN_OK;
}

static titan_status cast(struct stream *s, void *dst, enum dtype to, const void *src, enum dtype from, size_t n)
{
    (void)s;
    titan_assert((from == DTYPE_F32 && to == DTYPE_BF16) || (from == DTYPE_BF16 && to == DTYPE_F32));
    for (size_t i = 0; i < n; i++)
        if (to == DTYPE_BF16)
            ((uint16_t *)dst)[i] = bf16_from_f32(((const float *)src)[i]);
        else
            ((float *)dst)[i] = bf16_to_f32(((const uint16_t *)src)[i]);
    return TITAN_OK;
}

/* int8 codes to nearest. */
static titan_status encode(struct stream *s, const struct encode_args *a)
{
    const struct codec_places at = codec_places(CODEC_INT8, a->n);
    (void)s;
    titan_assert(encode_valid(a) && a->codec == CODEC_INT8 && !a->stochastic && !a->largest);
    memset(a->codes, 0, (size_t)(a->pieces * at.bytes));
    for (int64_t i = 0; i < a->pieces * at.buckets; i++) {
        const int64_t piece = i / at.buckets, from = i % at.buckets * CODEC_BUCKET;
        const float *const x = a->x + piece * a->n;
        uint8_t *const to = a->codes + piece * at.bytes;
        uint32_t largest = 0;
        for (int64_t k = from; k < MIN(from + CODEC_BUCKET, a->n); k++)
            largest = MAX(largest, codec_magnitude(x[k]));
        const float scale = codec_scale(CODEC_INT8, false, largest);
        ((float *)(void *)to)[i % at.buckets] = scale;
        for (int64_t k = from; k < MIN(from + CODEC_BUCKET, a->n) && scale > 0; k++)
            to[at.codes + k] = (uint8_t)codec_code(codec_round(x[k], 1 / scale, 128, 127));
    }
    return TITAN_OK;
}

static titan_status decode_sum(struct stream *s, const struct decode_sum_args *a)
{
    const struct codec_places at = codec_places(CODEC_INT8, a->n);
    (void)s;
    titan_assert(decode_sum_valid(a) && a->codec == CODEC_INT8);
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t piece = 0; piece < a->pieces; piece++) {
            const uint8_t *const from = a->codes + piece * at.bytes;
            const float code = (int8_t)from[at.codes + i];
            const float scale = ((const float *)(const void *)from)[i / CODEC_BUCKET];
            a->out[i] = piece == 0 ? code * scale : fmaf(code, scale, a->out[i]);
        }
    return TITAN_OK;
}

static const struct device_ops ops = {.alloc = allocate,
                                      .release = release,
                                      .alloc_host = allocate,
                                      .release_host = release,
                                      .stream_sync = sync_stream,
                                      .event_open = open_event,
                                      .event_close = close_event,
                                      .event_record = record_event,
                                      .event_sync = sync_event,
                                      .zero = zero,
                                      .hash = hash,
                                      .weights = weights,
                                      .copy = copy,
                                      .copy_2d = copy_2d,
                                      .add_2d = add_2d,
                                      .scale = scale,
                                      .cast = cast,
                                      .encode = encode,
                                      .decode_sum = decode_sum};

const struct device_handle memory_device = {.ops = &ops, .info = {.name = "memory", .host_memory = true}};
const struct device_handle apart_device = {.ops = &ops, .info = {.name = "memory apart"}};
