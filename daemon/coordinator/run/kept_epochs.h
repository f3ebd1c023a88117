/* SPDX-License-Identifier: Apache-2.0 */
/* kept_epochs.h - the epochs of a job that its quorum is counted in: the newest complete one and all since. Older ones
 * are kept as well, back to the newest that made a step: a member of a complete epoch that missed that still holds the
 * state of the one before. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_KEPT_EPOCHS_H
#define TITAN_DAEMON_COORDINATOR_RUN_KEPT_EPOCHS_H

#include "daemon/coordinator/records/core_record.h"

/* Is it a member of a quorum configuration? */
bool kept_counts(struct jobrec *j, uint64_t worker_id);
bool kept_lists(struct jobrec *j, uint64_t worker_id); /* of any that is kept? */
/* Where it is, as a member of any epoch that is kept; NULL = not known. */
const struct noderec *kept_node(const struct jobrec *j, uint64_t worker_id);
/* Is any of those there? */
bool kept_any_on(const struct jobrec *j, const struct noderec *n);
bool kept_awaits(const struct jobrec *j, const struct noderec *n);          /* ... the end of any of them? */
const struct kept_epoch *kept_find(const struct jobrec *j, uint64_t epoch); /* NULL = it is not kept */
/* In the order of their numbers; the members are to be filled in. */
struct kept_member *kept_add(struct jobrec *j, uint64_t epoch, uint64_t source, uint32_t n);
void kept_formed(struct jobrec *j); /* the current epoch is a quorum configuration */
/* ... and has its state: those before it are not any more, but a worker may still hold one of them. */
void kept_complete(struct jobrec *j);
void kept_trained(struct jobrec *j); /* ... has made a step: all its members hold it, and those before go */
void kept_release(struct jobrec *j, const struct noderec *n, uint64_t worker_id); /* of its end, on that node */
/* Its agent has registered: workers that it does not list have ended. A listed worker without a record is being
 * stopped, and counts until its end is reported: the command may not arrive. Without a registration the node is given
 * up. */
void kept_node_known(struct core *c, const struct noderec *n, const Titan__Internal__AgentRegistration *registration);
/* The first job that awaits the end of any on that node, also one that waits in the queue; NULL: none does. */
const struct jobrec *kept_any_awaits(const struct core *c, const struct noderec *n);
void kept_drop_node(struct core *c, const struct noderec *n); /* none does: it is forgotten where members were */
size_t kept_first(const struct jobrec *j);
/* Members of the newest epoch that may run still: they have no record any more, and their nodes are away, which have
 * not reported an end. *ret_node: where one of them is. */
uint32_t kept_unheard(const struct jobrec *j, const struct noderec **ret_node);

#endif
