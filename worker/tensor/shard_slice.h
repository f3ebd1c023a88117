/* SPDX-License-Identifier: Apache-2.0 */
/* shard_slice.h - global tensors, and boxes of tensors. One intersection routine serves checkpoints, live resharding
 * and export.
 */
#ifndef TITAN_WORKER_TENSOR_SHARD_SLICE_H
#define TITAN_WORKER_TENSOR_SHARD_SLICE_H

#include <stdbool.h>
#include <stdint.h>

/* A global tensor. All ranks have the same list of specs in the same order. */
struct tensor_spec {
    char name[96]; /* "layers.0.attention.wq.weight", "optim.m.layers.0.attention.wq.weight" */
    int64_t shape[4];
    int ndim;
    int64_t numel;
    char dtype[8]; /* type in a checkpoint: "F32" ("" when written), "BF16", "F16" */
};
/* What a slice's data holds: values, or the block of codes (base/moment_codes.h) that has element `at`, with the blocks
 * behind it. */
enum slice_form { SLICE_FLOATS, SLICE_BF16, SLICE_CODES, SLICE_SQUARES };
/* A part of a tensor that one rank holds: a box of the tensor seen as a matrix (leading dimensions are flattened, a
 * vector is one row). */
struct shard_slice {
    int tensor; /* index into the list of specs */
    int64_t row, rows, col, cols;
    float *data;          /* host memory, rows * cols elements, dense; not owned */
    int64_t at;           /* element of the rank's state where the box starts; only layout_slices() sets it */
    enum slice_form form; /* for writing */
};
/* Rows and columns of a tensor seen as a matrix. */
void shard_slice_matrix(const struct tensor_spec *spec, int64_t *ret_rows, int64_t *ret_cols);
/* The common part of two slices of the same tensor, without data; rows is 0 if there is none. */
struct shard_slice shard_slice_overlap(const struct shard_slice *a, const struct shard_slice *b);
/* Where an overlap's first element is in the data of a slice that it came from. */
int64_t shard_slice_place(const struct shard_slice *p, const struct shard_slice *overlap);
/* Cuts elements [from, to) of a row-major matrix with `cols` columns into boxes, in order: the rest of a row, whole
 * rows, part of a row. Returns the number of boxes. */
#define SHARD_SLICES_BETWEEN_MAX 3
int shard_slices_between(int64_t cols, int64_t from, int64_t to, struct shard_slice ret[SHARD_SLICES_BETWEEN_MAX]);

#endif
