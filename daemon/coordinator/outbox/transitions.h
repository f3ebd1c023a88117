/* SPDX-License-Identifier: Apache-2.0 */
/* transitions.h - every move of a state. Each function asserts that the state table has the move (state/job.h, epoch.h,
 * worker.h, node.h; records/phase.h), then changes the record, and adds the change with its event to the batch: an
 * illegal move ends the process at its line, before anything of it is stored. */
#ifndef TITAN_DAEMON_COORDINATOR_OUTBOX_TRANSITIONS_H
#define TITAN_DAEMON_COORDINATOR_OUTBOX_TRANSITIONS_H

#include "daemon/coordinator/records/core_record.h"

void move_phase(struct jobrec *j, enum job_phase to); /* the others call it, where a state says the phase */
void move_job(struct core *c, struct jobrec *j, enum job_state to, const char *reason);
void store_status(struct core *c, struct jobrec *j); /* what a move stores as well, in between */
void begin_run(struct core *c, struct jobrec *j);
void end_run(struct core *c, struct jobrec *j, enum run_state to, const char *reason); /* if there is one */
/* The job is in a new epoch, FORMING, of so many members. store_epoch follows, once members and source are set. by: the
 * node of the agent that has formed it; FORMED_HERE, or NULL = a coordinator that the restored store does not know of.
 */
void enter_epoch(struct jobrec *j, uint64_t number, uint32_t world);
#define FORMED_HERE ""
void store_epoch(struct core *c, struct jobrec *j, const char *by);
void move_epoch(struct core *c, struct jobrec *j, enum epoch_state to, const char *why);
void begin_worker(struct core *c, struct workrec *w); /* STARTING */
void move_worker(struct core *c, struct workrec *w, enum worker_state to, const struct exit_report *report,
                 bool counted, const char *why);
void store_pid(struct core *c, struct workrec *w, int64_t pid);
void move_node(struct core *c, struct noderec *n, enum node_state to, const char *message);
void move_node_out(struct core *c, struct noderec *n, const char *message); /* it is removed */
/* Its members cannot go on together in the epoch; charged: without cost. */
void epoch_failed(struct jobrec *j, bool charged);
void epoch_charged(struct jobrec *j); /* its end has cost a restart, is about to, or costs none */

#endif
