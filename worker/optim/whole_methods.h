/* SPDX-License-Identifier: Apache-2.0 */
/* whole_methods.h - private to the methods of whole_matrix.h: a method's calls, and scratch memory. */
#ifndef TITAN_WORKER_OPTIM_WHOLE_METHODS_H
#define TITAN_WORKER_OPTIM_WHOLE_METHODS_H

#include "base/cleanup.h"
#include "worker/optim/whole_matrix.h"

/* A method's part of the calls of whole_matrix.h, with the same arguments. */
struct whole_method_calls {
    double (*flops)(const struct recipe *r, int64_t rows, int64_t cols, int64_t heads);
    size_t (*work_bytes)(const struct recipe *r, enum dtype dt, int64_t rows, int64_t cols, int64_t heads);
    titan_status (*direction)(const struct whole_step *step, const struct whole_matrix *m, void *work,
                              const struct device_ops *ops, struct stream *s);
    bool reads_weights;
    bool (*decays)(const struct recipe *r); /* NULL: the direction never has the decay of weights in it */
};

#define METHOD(name, calls) extern const struct whole_method_calls calls;
#include "base/optimizers.def"

/* Scratch memory that is taken piece by piece. With a NULL base nothing but the bytes is counted. */
struct scratch {
    char *base;
    size_t used;
};
static inline void *scratch_take(struct scratch *w, size_t bytes)
{
    char *const piece = w->base ? w->base + w->used : NULL;
    w->used += (bytes + 255) / 256 * 256;
    return piece;
}

/* The sum of the squares of x (n) fp32: *total (device, fp64). blocks: whole_sum_blocks(n) of fp64. */
static inline int64_t whole_sum_blocks(int64_t n)
{
    return (n + WHOLE_SUM_BLOCK - 1) / WHOLE_SUM_BLOCK;
}
static inline titan_status whole_square_sum(double *total, double *blocks, const float *x, int64_t n,
                                            const struct device_ops *ops, struct stream *s)
{
    TRY(ops->block_sums(s, blocks, x, (size_t)n, (size_t)WHOLE_SUM_BLOCK, true));
    return ops->sum(s, total, false, blocks, (size_t)whole_sum_blocks(n));
}

/* Brings state i, of n elements, to `next`, where it may be already. */
static inline titan_status whole_take_state(const struct whole_step *step, const struct whole_matrix *m, int i,
                                            size_t n, const struct device_ops *ops, struct stream *s)
{
    return m->state[i] == m->next[i] ? TITAN_OK : ops->cast(s, m->next[i], DTYPE_F32, m->state[i], step->moment, n);
}

/* whole_adamw.c: enqueues direction (n) = factor times AdamW's direction, without decay, of the gradient scale *
 * values. The matrix's first two states are m and v (n). It is the device's own AdamW, with rate -factor on zeros. */
struct whole_gradient {
    const float *values;
    size_t n;
    float scale, factor;
};
titan_status whole_adamw(const struct whole_step *step, const struct whole_matrix *m, const struct whole_gradient *g,
                         float *direction, const struct device_ops *ops, struct stream *s) TITAN_MUST_USE;

#endif
