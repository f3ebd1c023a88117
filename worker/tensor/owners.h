/* SPDX-License-Identifier: Apache-2.0 */
/* owners.h - which rank updates a matrix whole.
 *
 * Optimizers such as Muon need each matrix of a layer whole (worker/optim/whole_matrix.h), but the ranges of
 * tensor/layout.h end inside matrices and inside rows. So each matrix has an owner among the ranks of GROUP_OWNERS. In
 * a step these ranks send the owner their parts of the matrix's gradient, and get back their parts of its direction.
 * Each expert's matrix is a matrix of its own.
 *
 * Owners are a pure function of model and mesh. The matrices of a pipeline rank are given out in falling order of work,
 * each to the rank with the least work so far. Replicas do the same work, each for itself.
 *
 * An owner keeps the state of its matrices (state_kinds.owned) whole. Every rank of a stage has room for the state of
 * the fullest owner, so ranks of a program class have equal buffers. */
#ifndef TITAN_WORKER_TENSOR_OWNERS_H
#define TITAN_WORKER_TENSOR_OWNERS_H

#include "base/optimizers.h"
#include "worker/tensor/mesh.h"
#include "worker/tensor/model.h"

struct owned_matrix {
    int tensor;
    int64_t row, rows, cols; /* its rows of the tensor, from `row` on */
    int64_t heads;           /* its rows are the rows of that many heads; 1: they are no heads' */
    int pp_rank;
    int owner;      /* rank in GROUP_OWNERS */
    int64_t values; /* place of its gradient among those of the owner's matrices, in elements */
    struct {
        int64_t rows, cols; /* 0: no such kind */
        int64_t at;         /* place in the owner's state, in elements */
    } state[OPTIMIZER_STATES];
};

struct owners {
    int n;
    struct owned_matrix *matrices; /* in the order of the tensors */
    int *first;                    /* [model tensors + 1]: a tensor's matrices are first[t]..first[t+1] */
    int64_t *values;               /* [pp]: elements of the gradients that each rank has room for */
    /* [pp]: elements of each kind of state that each rank has room for, one kind behind the other, and of all kinds */
    int64_t (*span)[OPTIMIZER_STATES];
    int64_t *kept;
};

struct owners_options {
    const struct model *model;
    const struct mesh *mesh;
    const int *pp_rank;          /* [model units] */
    const struct recipe *recipe; /* for the shapes of the state; borrowed for the call */
};
titan_status owners_open(const struct owners_options *options, struct owners **ret,
                         struct titan_error *err) TITAN_MUST_USE;
void owners_close(struct owners *owners); /* NULL is fine */

/* Does a unit have matrices with owners? owners NULL: no. */
static inline bool owners_have(const struct owners *owners, const struct model_unit *unit)
{
    return owners && owners->first[unit->first_tensor] < owners->first[unit->first_tensor + unit->n_tensors];
}
/* Work of a matrix, in FLOP: an iteration of Newton and Schulz. The work of all methods grows alike. */
double owners_work(int64_t rows, int64_t cols);

#endif
