/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_map.h - a row-major product as cuBLASLt's column-major one. The functions are pure, so they are tested without
 * a GPU.
 *
 * A row-major (r,c) matrix with row stride ld is, read column-major, its transpose: (c,r) with column stride ld. So c =
 * op(a) op(b) is computed as c^T = op(b)^T op(a)^T: b comes first, then a. cuBLASLt transposes the operands that the
 * caller wants transposed. */
#ifndef TITAN_WORKER_DEVICE_CUDA_MATMUL_MAP_H
#define TITAN_WORKER_DEVICE_CUDA_MATMUL_MAP_H

#include <stdbool.h>
#include <stdint.h>

/* A column-major matrix as it lies in memory. */
struct matmul_layout {
    uint64_t rows, columns;
    int64_t ld;
};

struct matmul_map {
    bool transpose_first, transpose_second;
    struct matmul_layout first;  /* the caller's b */
    struct matmul_layout second; /* the caller's a */
    struct matmul_layout out;
};

/* Arguments as in device_ops.matmul. */
static inline struct matmul_map matmul_map(bool ta, int64_t lda, bool tb, int64_t ldb, int64_t ldc, int64_t m,
                                           int64_t n, int64_t k)
{
    struct matmul_map map;
    map.transpose_first = tb;
    map.transpose_second = ta;
    map.first.rows = (uint64_t)(tb ? k : n);
    map.first.columns = (uint64_t)(tb ? n : k);
    map.first.ld = ldb;
    map.second.rows = (uint64_t)(ta ? m : k);
    map.second.columns = (uint64_t)(ta ? k : m);
    map.second.ld = lda;
    map.out.rows = (uint64_t)n;
    map.out.columns = (uint64_t)m;
    map.out.ld = ldc;
    return map;
}

#endif
