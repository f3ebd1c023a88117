/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h - small fp32 products inside one thread, for operations that keep their operands in cache (attention). */
#ifndef TITAN_WORKER_DEVICE_CPU_GEMM_H
#define TITAN_WORKER_DEVICE_CPU_GEMM_H

#include "worker/device/cpu/cpu.h"

enum { GEMM_COLUMNS = 16 }; /* n is a multiple of one vector */

/* c (m,n) = a b, or += with accumulate. Element (i,p) of a is a[i*a_row + p*a_col]; b (k,n) and c are row-major with
 * row strides ldb and ldc. n is a multiple of GEMM_COLUMNS. Sums run over k in order. */
struct gemm {
    float *c;
    int64_t ldc;
    const void *a; /* fp32, or words of two bf16 */
    int64_t a_row, a_col;
    const void *b;
    int64_t ldb, m, n, k;
    bool accumulate;
};
void gemm_f32(const struct gemm *g);

/* Attributes of functions that use the AVX-512 BF16 instruction. */
#define BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define BF16_INLINE                                                                                                    \
    static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

/* Same as gemm_f32(), with k pairs of bf16. A word holds two neighbours along k, the first in the low half; element
 * (i,p) of a and (p,j) of b are such words. Sums are fp32. Call it only if gemm_bf16_usable(). */
void gemm_bf16(const struct gemm *g);
/* Whether AVX-512 BF16 is faster than fp32. It is on AMD's processors, and not on Intel's, which have AMX for large
 * products. */
bool gemm_bf16_usable(const struct cpu_isa *isa);

#endif
