/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/memory_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"

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
                                      .copy = copy,
                                      .copy_2d = copy_2d,
                                      .cast = cast};

const struct device_handle memory_device = {.ops = &ops, .info = {.name = "memory", .host_memory = true}};
