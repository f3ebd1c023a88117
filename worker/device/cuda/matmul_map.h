/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_map.h - a row-major product as cuBLASLt's column-major one. The functions are pure, so they are tested without
 * a GPU.
 *
 * If a row-major (r,c) matrix with row stride ld is read as column-major, it is the matrix's transpose: (c,r) with
 * column stride ld. So c = op(a) op(b) is computed as c^T = op(b)^T op(a)^T: b comes first, then a. cuBLASLt transposes
 * the operands that the caller wants transposed. */
#ifndef TITAN_WORKER_DEVICE_CUDA_MATMUL_MAP_H
#define TITAN_WORKER_DEVICE_CUDA_MATMUL_MAP_H

#include "worker/device/operations.h"

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

/* Reads the sizes, strides and transposes of a product. */
static inline struct matmul_map matmul_map(const struct matmul_args *a)
{
    struct matmul_map map;
    map.transpose_first = a->tb;
    map.transpose_second = a->ta;
    map.first.rows = (uint64_t)(a->tb ? a->k : a->n);
    map.first.columns = (uint64_t)(a->tb ? a->n : a->k);
    map.first.ld = a->ldb;
    map.second.rows = (uint64_t)(a->ta ? a->m : a->k);
    map.second.columns = (uint64_t)(a->ta ? a->k : a->m);
    map.second.ld = a->lda;
    map.out.rows = (uint64_t)a->n;
    map.out.columns = (uint64_t)a->m;
    map.out.ld = a->ldc;
    return map;
}

#endif
