/* SPDX-License-Identifier: Apache-2.0 */
/* transitions.h - every change of state. Each function asserts that the state table has the move (state/job.h, epoch.h,
 * worker.h, node.h; records/phase.h), changes the record, and adds the change with its event to the batch. An illegal
 * move aborts the process before anything is stored. */
#ifndef TITAN_DAEMON_COORDINATOR_OUTBOX_TRANSITIONS_H
#define TITAN_DAEMON_COORDINATOR_OUTBOX_TRANSITIONS_H

#include "daemon/coordinator/records/core_record.h"

void move_phase(struct jobrec *j, enum job_phase to); /* the other moves call it where a state implies the phase */
void move_job(struct core *c, struct jobrec *j, enum job_state to, const char *reason);
void store_status(struct core *c, struct jobrec *j); /* stores the status between two moves */
void begin_run(struct core *c, struct jobrec *j);
void end_run(struct core *c, struct jobrec *j, enum run_state to, const char *reason); /* no-op without a run */
/* The job enters a new epoch, FORMING, of `world` members. store_epoch follows once members and source are set. by: the
 * node of the agent that formed the epoch; FORMED_HERE; NULL = a coordinator unknown to the restored store. */
void enter_epoch(struct jobrec *j, uint64_t number, uint32_t world);
#define FORMED_HERE ""
void store_epoch(struct core *c, struct jobrec *j, const char *by);
void move_epoch(struct core *c, struct jobrec *j, enum epoch_state to, const char *why);
void begin_worker(struct core *c, struct workrec *w); /* STARTING */
void move_worker(struct core *c, struct workrec *w, enum worker_state to, const struct exit_report *report,
                 bool counted, const char *why);
void store_pid(struct core *c, struct workrec *w, int64_t pid);
void move_node(struct core *c, struct noderec *n, enum node_state to, const char *message);
void move_node_out(struct core *c, struct noderec *n, const char *message); /* the node is removed */
/* The members cannot go on together in the epoch. charged: the failure costs no (further) restart. */
void epoch_failed(struct jobrec *j, bool charged);
void epoch_charged(struct jobrec *j); /* the end of the epoch has cost a restart, is about to cost one, or costs none */

#endif
