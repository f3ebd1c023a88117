/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_i8.h - products of eight-bit integers inside one thread. Sums of integers are exact, so every instruction set
 * gives the same bits. */
#ifndef TITAN_WORKER_DEVICE_CPU_GEMM_I8_H
#define TITAN_WORKER_DEVICE_CPU_GEMM_I8_H

#include "worker/device/cpu/cpu.h"

enum { GEMM_I8_ROWS = 12, GEMM_I8_COLS = 32, GEMM_I8_OFFSET = 128 };

/* Instructions of a product. */
enum gemm_i8_way { GEMM_I8_PLAIN, GEMM_I8_AVX2, GEMM_I8_AVX_VNNI, GEMM_I8_AVX512_VNNI, GEMM_I8_WAYS };

/* sums (12,32) = a b modulo 2^32. a has 12 rows of k bytes without a sign, lda bytes apart. b (k/4,32,4) has four
 * elements along k of each column side by side. k is a multiple of 4. VNNI's instruction multiplies bytes without a
 * sign by bytes with one. So a is its codes plus GEMM_I8_OFFSET, and the caller takes off GEMM_I8_OFFSET times the sum
 * of a column of b. */
struct gemm_i8 {
    const uint8_t *a;
    const int8_t *b;
    int64_t lda, k;
    int32_t *sums; /* 64-byte aligned */
};
/* The processor has the instructions of `way`. */
void gemm_i8(enum gemm_i8_way way, const struct gemm_i8 *g);
/* The fastest way that the processor has. */
enum gemm_i8_way gemm_i8_best(const struct cpu_isa *isa);

#endif
