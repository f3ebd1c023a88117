/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - what the two ways to compute attention share: in fp32 (attention.c) and on bf16 pairs
 * (attention_bf16.c), and which keys a block of queries has to be multiplied with (attention_keys.c). */
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

/* Element of lse (B,H,Tq) of a query: row of all B*Tq. */
static inline int64_t attention_lse_at(const struct attention_shape *z, int64_t row, int64_t head)
{
    return (row / z->tq * z->h + head) * z->tq + row % z->tq;
}

/* bf16 tensors with rows that start at whole pairs, scores without a cap. */
bool attention_bf16_fits(const struct device *dev, const struct attention_args *a);
/* Floats of a->work that one thread needs. */
size_t attention_bf16_forward_floats(const struct attention_shape *shape);
size_t attention_bf16_backward_floats(const struct attention_shape *shape);
/* One task after the other: sequence task / kv, key head task % kv. For cpu_for. */
void attention_bf16_forward(const void *args, int64_t begin, int64_t end, int thread);
void attention_bf16_backward(const void *args, int64_t begin, int64_t end, int thread);

enum { ATTENTION_ROWS_MAX = 32 };

/* Keys from..to of the sequence are columns at.. of a block's scores. */
struct key_run {
    int32_t from, to, at;
};

/* The keys of one sequence in tiles, and those tiles that a block of queries sees, packed side by side: what no query
 * of the block sees takes no part in any product. */
struct attention_keys {
    int32_t count, tile, tiles;
    int32_t *place;      /* (tiles*tile) of each key in the batch; beyond count: seen by no query */
    int32_t *low, *high; /* (tiles) least and greatest place */
    int32_t *partly;     /* (tiles) some pairs of key and query are masked */
    struct key_run *runs;
    int32_t n_runs, columns;                                           /* columns: sum of the runs, whole tiles */
    int32_t rows, first[ATTENTION_ROWS_MAX], last[ATTENTION_ROWS_MAX]; /* the keys each query sees */
};

/* Floats of scratch for keys in tiles; layout sets the pointers into it. */
size_t attention_keys_layout(struct attention_keys *k, float *base, int64_t count, int64_t tile);
void attention_keys_load(struct attention_keys *k, const struct attention_shape *shape, int64_t sequence);
/* Find runs and columns for queries i0..i0+rows of a sequence. */
void attention_keys_see(struct attention_keys *k, const struct attention_shape *shape, int64_t sequence, int64_t i0,
                        int64_t rows);
/* Scores (rows, ld) of masked pairs become -inf, and so do columns up to a multiple of pad. */
void attention_keys_mask(const struct attention_keys *k, float *s, int64_t ld, int64_t pad);

#endif
