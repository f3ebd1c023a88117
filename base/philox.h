/* SPDX-License-Identifier: Apache-2.0 */
/* philox.h - Philox4x32-10 inline (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), for rng.h
 * and device kernels. A compiler that needs other function attributes sets PHILOX_INLINE. */
#ifndef TITAN_BASE_PHILOX_H
#define TITAN_BASE_PHILOX_H

#include <stdint.h>

#ifndef PHILOX_INLINE
#define PHILOX_INLINE static inline __attribute__((always_inline))
#endif

/* Counter words lo, lo>>32, hi, hi>>32 under the key k0, k1. */
PHILOX_INLINE void philox(uint32_t k0, uint32_t k1, uint64_t lo, uint64_t hi, uint32_t ret_words[4])
{
    const uint64_t m0 = 0xD2511F53u, m1 = 0xCD9E8D57u;
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
#ifdef __CUDACC__
#pragma unroll
#else
#pragma GCC unroll 10
#endif
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = m0 * c0, p1 = m1 * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    ret_words[0] = c0;
    ret_words[1] = c1;
    ret_words[2] = c2;
    ret_words[3] = c3;
}

#endif
