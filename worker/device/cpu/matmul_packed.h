/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_packed.h - products on processors with AVX2 and without AVX-512. On these processors the bits of oneDNN's
 * products depend on the number of threads, and oneDNN has no bf16. */
#ifndef TITAN_WORKER_DEVICE_CPU_MATMUL_PACKED_H
#define TITAN_WORKER_DEVICE_CPU_MATMUL_PACKED_H

#include "worker/device/cpu/cpu.h"

/* c (m,n) = a b, or += with accumulate. Element (i,p) of a is a[i*a_row + p*a_col], element (p,j) of b is b[p*b_row +
 * j*b_col]. One stride of each operand is 1. c is row-major. Types are fp32 or bf16; if a and b are fp32, c is too. */
struct matmul_packed {
    int64_t m, n, k, a_row, a_col, b_row, b_col, ldc;
    const void *a, *b;
    void *c;
    enum dtype ab_dt, c_dt;
    bool accumulate;
};

/* An element's sum runs over k in order in fp32, 384 at a time. It depends neither on the number of threads nor on m, n
 * and the element's place. A bf16 c is rounded once. scratch: matmul_packed_scratch_bytes(), aligned to 32 bytes. */
void matmul_packed_run(const struct matmul_packed *z, int threads, float *scratch);
size_t matmul_packed_scratch_bytes(const struct matmul_packed *z, int threads);

#endif
