/* SPDX-License-Identifier: Apache-2.0 */
/* optimizers.h - the optimizers that a run can choose, a row each.
 *
 * optimizer.name updates all parameters, or only the matrices of layers if optimizer.rest names another row for the
 * rest: embedding, head, norms, biases and routers. A row tells which tensors of state the optimizer keeps for a
 * parameter. Layout, checkpoints, resizes, copies for buddies and forecasts follow from the rows.
 *
 * docs/methods.md walks through a new one. */
#ifndef TITAN_BASE_OPTIMIZERS_H
#define TITAN_BASE_OPTIMIZERS_H

#include "base/recipe.h"
#include "base/update_rule.h"

#define OPTIMIZER_STATES 5 /* most tensors of state of a row */

/* An optimizer's part in the schedule of the learning rate (base/learning_rate.h). */
struct optimizer_schedule {
    bool warms, decays; /* in place of lr_scheduler's warm-up, or decay */
    double most;        /* bound of the factor on the peak rate */
};

/* Rows with RULE_DIRECTION update matrices of layers alone. A matrix's owner makes the direction, by the method of the
 * row's name (worker/optim/whole_methods.h). */
struct optimizer {
    const char *name;
    enum update_rule rule;
    int owned; /* how many of the states, the first ones, a matrix's owner keeps; the others go with the master's range
                */
    bool l2;   /* weight decay is added to the gradient */
    bool sums; /* a tensor's rate depends on a sum over the whole tensor: the step has a direction section */
    /* Tensors of state, in the rule's order: optim.STATE.PARAMETER in checkpoints. Each has its parameter's shape, and
     * is cut as its parameter is. NULL: no further one. */
    const char *states[OPTIMIZER_STATES];
    /* How many of the states the recipe keeps, the first ones; NULL: all. */
    int (*kept)(const struct recipe *r);
    /* The rule's own numbers (update_args.own) in update `number`, from 1; NULL: it has none. */
    void (*numbers)(const struct recipe *r, uint64_t number, float ret[UPDATE_OWN]);
    /* In step `step` of `total`; NULL: it has no part. */
    struct optimizer_schedule (*schedule)(const struct recipe *r, int64_t step, int64_t total);
    /* Shape of the state `state` of a matrix (rows, cols), optimizer_state_shape(); NULL: the matrix's. */
    void (*shape)(const struct recipe *r, int state, int64_t rows, int64_t cols, int64_t *ret_rows, int64_t *ret_cols);
};

/* Tensors of state of a run. Tensors of one name that both optimizers keep are one kind, unless owners keep one of
 * them. The optimizer of matrices has the first kinds, in its own order. The residual of replicas that send each other
 * parts of their directions is the last kind, of all parameters. */
#define STATE_KINDS (OPTIMIZER_STATES + UPDATE_STATES + 1)
struct state_kinds {
    int n;
    const char *name[STATE_KINDS];
    unsigned matrices, rest; /* bits of the kinds that matrices of layers, and other parameters, have */
    unsigned owned;          /* bits of the kinds that a matrix's owner keeps whole (worker/tensor/owners.h) */
    unsigned squares;        /* bits of the kinds that are means of squares, without a sign */
    unsigned each; /* bit of the kind of which each replica has a value of its own; a checkpoint has their mean */
};

/* All names, "a|b"; static. */
const char *optimizer_names(void);
/* The row of a name; NULL: there is none. */
const struct optimizer *optimizer_find(const char *name);
/* The rows for matrices of layers, and for other parameters. The recipe is resolved. A row that updates whole matrices
 * leaves the others to AdamW, unless the recipe names a row. */
const struct optimizer *optimizer_of_matrices(const struct recipe *r);
const struct optimizer *optimizer_of_rest(const struct recipe *r);
/* How many of a row's tensors of state the recipe keeps: SGD without momentum keeps none. */
int optimizer_states(const struct optimizer *o, const struct recipe *r);
struct state_kinds optimizer_kinds(const struct recipe *r);
/* Rows and columns of the state `state` of one matrix (rows, cols) that is updated whole. GaLore's basis has a vector
 * in each row; its moments are those of the gradient's products with these vectors: (rows, rank), or (rank, cols) of a
 * matrix with fewer rows than columns. Other states have the matrix's shape. */
void optimizer_state_shape(const struct optimizer *o, const struct recipe *r, int state, int64_t rows, int64_t cols,
                           int64_t *ret_rows, int64_t *ret_cols);
/* Do replicas send each other parts of their directions, and keep the rest in a residual each
 * (parallelism.replicate_method)? */
bool optimizer_keeps_residual(const struct recipe *r);
/* Does a step need sums over whole tensors between the decision and the update? */
bool optimizer_needs_sums(const struct recipe *r);
/* Does a step have a direction section? */
bool optimizer_directs(const struct recipe *r);

#endif
