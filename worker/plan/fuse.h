/* SPDX-License-Identifier: Apache-2.0 */
/* fuse.h - two neighbouring actions as one, and what such a one stands for.
 *
 * The model writes plain operations. pass_fuse puts one fused operation in place of two where it computes the same bits
 * and touches less memory; fuse_undo is its inverse. The checker looks at actions through fuse_undo, so what it proves
 * of a fused program is that it is the plain one. */
#ifndef TITAN_WORKER_PLAN_FUSE_H
#define TITAN_WORKER_PLAN_FUSE_H

#include "worker/plan/passes.h"

#define FUSE_ACTIONS 2  /* that one may stand for */
#define FUSE_OPERANDS 5 /* of each of them */

struct plain_action {
    struct action action; /* its operands and params are those beside it */
    const struct operand *operands;
    const struct op_params *params;
};
/* n actions, in their order. Those of a fused one have operands and numbers in here: it is not copied. */
struct plain {
    int n;
    struct plain_action actions[FUSE_ACTIONS];
    struct operand operands[FUSE_ACTIONS][FUSE_OPERANDS];
    struct op_params params[FUSE_ACTIONS];
};

/* The action itself, or the two that it stands for. It has the operands that its operation takes. */
void fuse_undo(const struct program *p, const struct action *a, struct plain *ret);

/* Joins two actions of the compute stream between which nothing is computed and nothing touches what the first one
 * does, where fuse_undo gives both of them back:
 *   ADD, RMSNORM of the sum                       ADD_RMSNORM
 *   COPY, RMSNORM_DGRAD added to the copy         ADD_RMSNORM_DGRAD
 *   LOSS_STATS, LOSS_FINISH of one part           LOSS
 * What the first one reads lives as long as what the second one writes: a program that fits in memory as it is, and
 * would not with this, is left. Takes a built program and leaves one that program_finish has yet to see. */
titan_status pass_fuse(struct program *p, const struct pass_options *options, struct titan_error *err) TITAN_MUST_USE;

#endif
