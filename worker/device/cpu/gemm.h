/* gemm.h - small fp32 products inside one thread, for operations that keep their operands in cache (attention). */
#ifndef TITAN_WORKER_DEVICE_CPU_GEMM_H
#define TITAN_WORKER_DEVICE_CPU_GEMM_H

#include "worker/device/cpu/cpu.h"

enum { GEMM_COLUMNS = 16 }; /* n is a multiple of it: one vector */

/* c (m,n) = a b, or += with accumulate. Element (i,p) of a is a[i*a_row + p*a_col]; b (k,n) and c are row-major with
 * row strides ldb and ldc. n is a multiple of GEMM_COLUMNS. Sums run over k in order. */
void gemm_f32(float *c, int64_t ldc, const float *a, int64_t a_row, int64_t a_col, const float *b, int64_t ldb,
              int64_t m, int64_t n, int64_t k, bool accumulate);

#endif
