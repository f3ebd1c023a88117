/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h - which parts of a direction replicas send each other: places and sizes, the same on every device and on the
 * host. The operations parts_extract and parts_combine (operations.h) have the rest. */
#ifndef TITAN_WORKER_DEVICE_PARTS_H
#define TITAN_WORKER_DEVICE_PARTS_H

#include <stdint.h>

#include "worker/device/operations.h"

/* A device defines how its functions are declared, with hash_mix() and HASH_STEP where it cannot have base/hash.h. */
#ifndef PARTS_INLINE
#include "base/hash.h"
#define PARTS_INLINE static inline
#define PARTS_MIX hash_mix
#endif

PARTS_INLINE int64_t parts_value_bytes(const struct parts_shape *z)
{
    return z->dt == DTYPE_BF16 ? 2 : 4;
}

/* Bytes of what a rank sends of n elements: values, then (PARTS_DCT) their numbers; a multiple of 64. */
PARTS_INLINE int64_t parts_bytes(const struct parts_shape *z, int64_t n)
{
    const int64_t values = n / PARTS_CHUNK * z->kept;

    return (values * (parts_value_bytes(z) + (z->method == PARTS_DCT)) + 63) / 64 * 64;
}

/* Where the numbers begin in it, in bytes. */
PARTS_INLINE int64_t parts_numbers(const struct parts_shape *z, int64_t n)
{
    return n / PARTS_CHUNK * z->kept * parts_value_bytes(z);
}

/* The place in its chunk of the i-th element that is sent, without PARTS_DCT. chunk: of the range. */
PARTS_INLINE int parts_place(const struct parts_shape *z, int64_t chunk, int i)
{
    const int stride = PARTS_CHUNK / z->kept;
    const uint64_t at = (uint64_t)((z->first + chunk) * z->kept + i + 1);

    if (z->method != PARTS_RANDOM)
        return i * stride + (int)(z->word % (uint64_t)stride);
    return i * stride + (int)(PARTS_MIX(z->word + HASH_STEP * at) % (uint64_t)stride);
}

/* sqrt(2/64) cos(pi m / 128): element (k, j) of the orthonormal DCT-II has m = (2j + 1) k mod 256 for k > 0, and is 1/8
 * for k = 0. */
#define PARTS_WAVE 256
#define PARTS_WAVE_AT(m) (0.17677669529663687 * cos(0.02454369260617026 * (m)))

#endif
