/* SPDX-License-Identifier: Apache-2.0 */
/* whole_matrix.h - updates that need a matrix whole (METHOD of base/optimizers.def).
 *
 * Each matrix of a layer has an owner (tensor/owners.h), which gets the matrix's summed gradient in the direction
 * section of a step. The owner makes the matrix's direction from it: RULE_DIRECTION then makes w - lr (direction +
 * decay w) of every element, on the ranks that have it. In the direction section nothing but scratch memory changes. So
 * the owner writes the state after the step to `next`. It becomes the state behind the commit point.
 *
 * The direction depends on nothing but the gradient, the state, the recipe, the step's number, and with some methods
 * the masters: it has the same bits on every mesh, and with any number of threads. */
#ifndef TITAN_WORKER_OPTIM_WHOLE_MATRIX_H
#define TITAN_WORKER_OPTIM_WHOLE_MATRIX_H

#include "base/optimizers.h"
#include "base/recipe.h"
#include "worker/device/device.h"

/* What the directions of a step depend on besides the matrices. */
struct whole_step {
    const struct recipe *recipe; /* borrowed */
    uint64_t number;             /* of updates so far, this one included, from 1 */
    float grad_scale;            /* the summed gradient is multiplied by this first: clip factor / tokens */
    float lr;                    /* of matrices */
    enum dtype dt;               /* compute type: that of Muon's products */
    enum dtype moment;           /* type of the state */
};

/* One matrix, in device memory. */
struct whole_matrix {
    const char *name;     /* of the parameter */
    int64_t rows, cols;   /* of this matrix: an expert's for a tensor of experts */
    int64_t heads;        /* the rows are this many equal parts, which may be treated each for itself; 1: one */
    int64_t number, of;   /* of the matrix among all matrices of the model, the same on every mesh */
    float *values;        /* (rows, cols): the summed gradient; becomes the direction */
    const float *weights; /* (rows, cols): masters; NULL unless whole_reads_weights() */
    const void *state[OPTIMIZER_STATES]; /* shapes: optimizer_state_shape(); fp32 may be `next` itself */
    float *next[OPTIMIZER_STATES];
};

#define WHOLE_SUM_BLOCK 4096 /* elements of a direction whose squares are summed at a time */

/* Does the run's method read the masters? */
bool whole_reads_weights(const struct recipe *r);
/* Have the run's directions the decay of weights in them? */
bool whole_decays(const struct recipe *r);
/* Floating point operations of one matrix, on average over steps: owners share these evenly. */
double whole_flops(const struct recipe *r, int64_t rows, int64_t cols, int64_t heads);
/* Bytes of scratch memory for one matrix. */
size_t whole_work_bytes(const struct recipe *r, enum dtype dt, int64_t rows, int64_t cols, int64_t heads);
/* Enqueues one matrix. work: 256-byte aligned. */
titan_status whole_direction(const struct whole_step *step, const struct whole_matrix *m, void *work,
                             const struct device_ops *ops, struct stream *s) TITAN_MUST_USE;

#endif
