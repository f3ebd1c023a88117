/* SPDX-License-Identifier: Apache-2.0 */
/* fuse.h - two neighbouring actions as one fused action, and the plain actions that a fused action stands for.
 *
 * The model writes plain operations. pass_fuse() replaces two operations by one fused operation that computes the same
 * bits and touches less memory. fuse_undo() is the inverse. The checker sees each action as fuse_undo() gives it. So it
 * proves that a fused program computes the same as the plain program. */
#ifndef TITAN_WORKER_PLAN_FUSE_H
#define TITAN_WORKER_PLAN_FUSE_H

#include "worker/plan/passes.h"

#define FUSE_ACTIONS 2  /* plain actions that a fused action stands for, at most */
#define FUSE_OPERANDS 5 /* operands of a plain action, at most */

struct plain_action {
    struct action action; /* use the members below for operands and params, not the action's own fields */
    const struct operand *operands;
    const struct op_params *params;
};
/* n plain actions in their order. The struct itself contains the operands and parameters of the parts of a fused
 * action, so pointers refer into it. Do not copy this struct. */
struct plain {
    int n;
    struct plain_action actions[FUSE_ACTIONS];
    struct operand operands[FUSE_ACTIONS][FUSE_OPERANDS];
    struct op_params params[FUSE_ACTIONS];
};

/* Fills ret with the plain action, or with the two plain actions that a fused action stands for. The action must have
 * the operands that its operation takes. */
void fuse_undo(const struct program *p, const struct action *a, struct plain *ret);

/* Joins pairs of actions of the compute stream, if fuse_undo() gives both back. Between the two, no other action of the
 * stream may stand, and no action may touch the first action's buffers. The pairs and their fused operations:
 *   ADD, RMSNORM of the sum                       ADD_RMSNORM
 *   COPY, RMSNORM_DGRAD added to the copy         ADD_RMSNORM_DGRAD
 *   LOSS_STATS, LOSS_FINISH of one part           LOSS
 * In a fused action, the first action's inputs live at the same time as the second action's outputs. If a program fits
 * in memory only without fusion, it stays as it is. Takes a built program; program_finish() must come after the pass.
 */
titan_status pass_fuse(struct program *p, const struct pass_options *options, struct titan_error *err) TITAN_MUST_USE;

#endif
