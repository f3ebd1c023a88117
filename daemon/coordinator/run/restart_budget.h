/* SPDX-License-Identifier: Apache-2.0 */
/* restart_budget.h - what a loss costs: budgets per cause, and the wait before a replacement starts.
 *
 * Each cause has its own budget, and only losses within the job's window count; a job with a window of 0 has one budget
 * for all of them and for good. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_RESTART_BUDGET_H
#define TITAN_DAEMON_COORDINATOR_RUN_RESTART_BUDGET_H

#include "daemon/coordinator/records/core_record.h"

/* A loss that counts: against the budget of its cause, and towards the wait before a replacement. May fail the job.
 * node: where it was; NULL = nowhere in particular. */
void budget_charge(struct core *c, struct jobrec *j, enum loss_cause cause, struct noderec *node, const char *words);
/* The worker ends of the fault that has cost a restart already: one of the whole run is charged once. words: its own.
 */
bool budget_paid(const struct jobrec *j, const struct workrec *w, enum loss_cause cause, const char *words);
/* Before budget_charge: what it is charged for, in the worker's own words. */
void budget_fault(struct core *c, struct jobrec *j, enum loss_cause cause, const char *words);
void budget_restore(const struct core *c, struct jobrec *j, const struct loss *loss);
/* One that costs nothing, but a replacement has to wait as after one that does, and at least a second. */
void budget_wait(struct core *c, struct jobrec *j);
void budget_forgiven(struct jobrec *j); /* it is complete and moving: the wait starts over */
void budget_requeued(struct jobrec *j);

#endif
