/* SPDX-License-Identifier: Apache-2.0 */
/* fuse.h - two neighbouring actions as one fused action, and the plain actions that a fused action stands for.
 *
 * The model writes plain operations. pass_fuse() puts one fused operation in place of two where it computes the same
 * bits and touches less memory. fuse_undo() is the inverse. The checker looks at actions through fuse_undo(): so it
 * proves that a fused program is the plain program. */
#ifndef TITAN_WORKER_PLAN_FUSE_H
#define TITAN_WORKER_PLAN_FUSE_H

#include "worker/plan/passes.h"

#define FUSE_ACTIONS 2  /* plain actions that a fused action stands for, at most */
#define FUSE_OPERANDS 5 /* operands of a plain action, at most */

struct plain_action {
    struct action action; /* its operands and params are the two members below */
    const struct operand *operands;
    const struct op_params *params;
};
/* n plain actions in their order. The operands and numbers of a fused action's parts are in here. Do not copy this
 * struct. */
struct plain {
    int n;
    struct plain_action actions[FUSE_ACTIONS];
    struct operand operands[FUSE_ACTIONS][FUSE_OPERANDS];
    struct op_params params[FUSE_ACTIONS];
};

/* Fills ret with the action itself, or with the two actions that it stands for. The action must have the operands that
 * its operation takes. */
void fuse_undo(const struct program *p, const struct action *a, struct plain *ret);

/* Joins two actions of the compute stream, if fuse_undo() gives both of them back. Between the two, nothing is computed
 * and nothing touches what the first action touches. The pairs and their fused operations:
 *   ADD, RMSNORM of the sum                       ADD_RMSNORM
 *   COPY, RMSNORM_DGRAD added to the copy         ADD_RMSNORM_DGRAD
 *   LOSS_STATS, LOSS_FINISH of one part           LOSS
 * The first action's inputs then live at the same time as the second action's outputs. A program that fits in memory
 * only without fusion is left as it is. Takes a built program; program_finish() must come after the pass. */
titan_status pass_fuse(struct program *p, const struct pass_options *options, struct titan_error *err) TITAN_MUST_USE;

#endif
