/* SPDX-License-Identifier: Apache-2.0 */
/* shard_slice.c - boxes of a matrix. */
#include "worker/tensor/shard_slice.h"

#include "base/cleanup.h"
#include "base/error.h"

void shard_slice_matrix(const struct tensor_spec *spec, int64_t *ret_rows, int64_t *ret_cols)
{
    titan_assert(spec->ndim >= 1 && spec->numel > 0);
    *ret_cols = spec->ndim > 1 ? spec->shape[spec->ndim - 1] : spec->numel;
    *ret_rows = spec->numel / *ret_cols;
}

struct shard_slice shard_slice_overlap(const struct shard_slice *a, const struct shard_slice *b)
{
    const int64_t row = MAX(a->row, b->row), row_end = MIN(a->row + a->rows, b->row + b->rows);
    const int64_t col = MAX(a->col, b->col), col_end = MIN(a->col + a->cols, b->col + b->cols);

    if (a->tensor != b->tensor || row >= row_end || col >= col_end)
        return (struct shard_slice){.tensor = a->tensor, .row = row, .col = col};
    return (struct shard_slice){
        .tensor = a->tensor, .row = row, .rows = row_end - row, .col = col, .cols = col_end - col};
}

int64_t shard_slice_place(const struct shard_slice *p, const struct shard_slice *overlap)
{
    titan_assert(overlap->row >= p->row && overlap->col >= p->col);
    return (overlap->row - p->row) * p->cols + overlap->col - p->col;
}

int shard_slices_between(int64_t cols, int64_t from, int64_t to, struct shard_slice ret[SHARD_SLICES_BETWEEN_MAX])
{
    int n = 0;

    titan_assert(cols > 0 && from >= 0);
    while (from < to) {
        const int64_t at = from % cols;
        struct shard_slice *p = &ret[n++];
        if (at != 0 || to - from < cols)
            *p = (struct shard_slice){.row = from / cols, .rows = 1, .col = at, .cols = MIN(cols - at, to - from)};
        else
            *p = (struct shard_slice){.row = from / cols, .rows = (to - from) / cols, .cols = cols};
        from += p->rows * p->cols;
    }
    titan_assert(n <= SHARD_SLICES_BETWEEN_MAX);
    return n;
}
