/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - shared by the two ways to compute attention: in fp32 (attention.c) and on bf16 pairs
 * (attention_bf16.c). attention_keys.c finds the keys that a block of queries must be multiplied with. */
#ifndef TITAN_WORKER_DEVICE_CPU_ATTENTION_H
#define TITAN_WORKER_DEVICE_CPU_ATTENTION_H

#include <assert.h>

#include "worker/device/cpu/cpu.h"

static_assert(sizeof(struct attention_args) <= CPU_ARGS_MAX, "attention arguments fit a queue slot");

/* Rows of a tensor, or of scratch. */
struct rows {
    void *at;
    int64_t ld, n, cols;
};

/* Index in lse (B,H,Tq) of a query; row counts all B*Tq queries. */
static inline int64_t attention_lse_at(const struct attention_shape *z, int64_t row, int64_t head)
{
    return (row / z->tq * z->h + head) * z->tq + row % z->tq;
}

/* Whether the tensors are bf16 with rows that start at whole pairs, and the scores have no cap. */
bool attention_bf16_fits(const struct device *dev, const struct attention_args *a);
/* Floats of a->work that one thread needs. */
size_t attention_bf16_forward_floats(const struct attention_shape *shape);
size_t attention_bf16_backward_floats(const struct attention_shape *shape);
/* Range functions of cpu_for, which run one task after the other. Task i is sequence i / kv and key head i % kv. */
void attention_bf16_forward(const void *args, int64_t begin, int64_t end, int thread);
void attention_bf16_backward(const void *args, int64_t begin, int64_t end, int thread);

enum { ATTENTION_ROWS_MAX = 32 };

/* Keys [from, to) of the sequence are the columns from `at` on in a block's scores. */
struct key_run {
    int32_t from, to, at;
};

/* The keys of one sequence in tiles. The tiles that a block of queries sees are packed side by side. A tile that no
 * query of the block sees takes part in no product. */
struct attention_keys {
    int32_t count, tile, tiles;
    /* (tiles*tile) place of each key in the batch; after `count` keys, places that no query sees */
    int32_t *place;
    int32_t *low, *high; /* (tiles) least and greatest place */
    int32_t *partly;     /* (tiles) 1: some pairs of key and query are masked */
    struct key_run *runs;
    /* columns: sum of the runs' columns, in whole tiles */
    int32_t n_runs, columns;
    int32_t rows, first[ATTENTION_ROWS_MAX], last[ATTENTION_ROWS_MAX]; /* the keys each query sees */
};

/* Floats of scratch for keys in tiles. The function sets k's pointers into base. */
size_t attention_keys_layout(struct attention_keys *k, float *base, int64_t count, int64_t tile);
void attention_keys_load(struct attention_keys *k, const struct attention_shape *shape, int64_t sequence);
/* Finds runs and columns for queries i0 to i0 + rows of a sequence. */
void attention_keys_see(struct attention_keys *k, const struct attention_shape *shape, int64_t sequence, int64_t i0,
                        int64_t rows);
/* Sets scores (rows, ld) of masked pairs to -inf, and also columns up to a multiple of pad. */
void attention_keys_mask(const struct attention_keys *k, float *s, int64_t ld, int64_t pad);

#endif
