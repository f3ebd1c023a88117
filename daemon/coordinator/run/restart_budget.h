/* SPDX-License-Identifier: Apache-2.0 */
/* restart_budget.h - the cost of a loss: budgets per cause, and the wait before a replacement starts.
 *
 * Each cause has its own budget, and only losses within the job's window count. A job with a window of 0 has one budget
 * for all causes and all time. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_RESTART_BUDGET_H
#define TITAN_DAEMON_COORDINATOR_RUN_RESTART_BUDGET_H

#include "daemon/coordinator/records/core_record.h"

/* Charges a loss against the budget of its cause, and lengthens the wait before a replacement. May fail the job. node:
 * the node of the loss; NULL = no particular node. */
void budget_charge(struct core *c, struct jobrec *j, enum loss_cause cause, struct noderec *node, const char *words);
/* Did the fault that ends this worker already cost a restart? A fault of the whole run is charged once. words: the
 * worker's own reason. */
bool budget_paid(const struct jobrec *j, const struct workrec *w, enum loss_cause cause, const char *words);
/* Call it before budget_charge: records the charged fault, in the worker's own words. */
void budget_fault(struct core *c, struct jobrec *j, enum loss_cause cause, const char *words);
void budget_restore(const struct core *c, struct jobrec *j, const struct loss *loss);
/* A loss without cost. A replacement still waits as after a charged loss, and at least a second. */
void budget_wait(struct core *c, struct jobrec *j);
void budget_forgiven(struct jobrec *j); /* the job is complete and moving: the wait starts over */
void budget_requeued(struct jobrec *j);

#endif
