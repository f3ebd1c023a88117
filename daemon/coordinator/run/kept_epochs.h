/* SPDX-License-Identifier: Apache-2.0 */
/* kept_epochs.h - the epochs that a job's quorum is counted in: the newest complete epoch and all epochs since. Older
 * epochs are kept too, back to the newest epoch that made a step. Until all members hold a step of a newer epoch, a
 * worker may still hold the state of an older epoch. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_KEPT_EPOCHS_H
#define TITAN_DAEMON_COORDINATOR_RUN_KEPT_EPOCHS_H

#include "daemon/coordinator/records/core_record.h"

/* Is the worker a member of a quorum configuration? */
bool kept_counts(struct jobrec *j, uint64_t worker_id);
bool kept_lists(struct jobrec *j, uint64_t worker_id); /* is it a member of any kept epoch? */
/* The worker's node, as a member of any kept epoch; NULL = unknown. */
const struct noderec *kept_node(const struct jobrec *j, uint64_t worker_id);
/* Is any member of a kept epoch on this node? */
bool kept_any_on(const struct jobrec *j, const struct noderec *n);
/* is the end of any member on this node awaited? */
bool kept_awaits(const struct jobrec *j, const struct noderec *n);
const struct kept_epoch *kept_find(const struct jobrec *j, uint64_t epoch); /* NULL = not kept */
/* Adds an epoch in the order of numbers; the caller fills in the members. */
struct kept_member *kept_add(struct jobrec *j, uint64_t epoch, uint64_t source, uint32_t n);
void kept_formed(struct jobrec *j); /* the current epoch becomes a quorum configuration */
/* All members of the current epoch have their state. Earlier epochs are no quorum configurations any more, but a worker
 * may still hold the state of an earlier epoch. */
void kept_complete(struct jobrec *j);
void kept_trained(struct jobrec *j); /* all members of the current epoch hold its step: drops earlier epochs */
void kept_release(struct jobrec *j, const struct noderec *n, uint64_t worker_id); /* the worker has ended there */
/* The node's agent has registered: workers that it does not list have ended. A listed worker without a record is being
 * stopped. It counts until its end is reported, because the command to stop may be lost. registration NULL = the node
 * is given up. */
void kept_node_known(struct core *c, const struct noderec *n, const Titan__Internal__AgentRegistration *registration);
/* The first job, also a queued job, that awaits the end of a worker on that node; NULL = none. */
const struct jobrec *kept_any_awaits(const struct core *c, const struct noderec *n);
void kept_drop_node(struct core *c, const struct noderec *n); /* forgets the node, for which no job waits */
size_t kept_first(const struct jobrec *j);
/* Number of members of the newest epoch that may still run. They have no record, and their absent nodes have not
 * reported an end. *ret_node: the node of one of these members. */
uint32_t kept_unheard(const struct jobrec *j, const struct noderec **ret_node);

#endif
