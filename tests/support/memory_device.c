/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/memory_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
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

static titan_status hash(struct stream *s, uint64_t *out, const void *x, enum dtype dt, int64_t rows, int64_t cols,
                         uint64_t key, int64_t first)
{
    (void)s;
    for (int64_t i = 0; i < rows * cols; i++) {
        const float value = dt == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        *out += hash_element(hash_mix(key + (uint64_t)(i / cols)), first + i % cols, bits);
    }
    return TITAN_OK;
}

static titan_status weights(struct stream *s, void *out, enum dtype dt, int64_t rows, int64_t cols, int64_t width,
                            int64_t first, const struct rng_weights *drawn)
{
    (void)s;
    for (int64_t i = 0; i < rows * cols; i++) {
        float x;
        rng_weights(drawn, (uint64_t)(first + i / cols * width + i % cols), 1, &x);
        if (dt == DTYPE_BF16)
            ((uint16_t *)out)[i] = bf16_from_f32(x);
        else
            ((float *)out)[i] = x;
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

static titan_status copy_2d(struct stream *s, void *dst, int64_t ldd, const void *src, int64_t lds, enum dtype dt,
                            int64_t rows, int64_t cols, int64_t repeat)
{
    const int64_t n = (int64_t)dtype_bytes(dt);

    (void)s;
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)dst + r * ldd * n, (const char *)src + r / repeat * lds * n, (size_t)(cols * n));
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
                                      .cast = cast};

const struct device_handle memory_device = {.ops = &ops, .info = {.name = "memory", .host_memory = true}};
const struct device_handle apart_device = {.ops = &ops, .info = {.name = "memory apart"}};
