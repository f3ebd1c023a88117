/* SPDX-License-Identifier: Apache-2.0 */
/* fencing.h - which senders are heard, and by which coordinator (docs/membership.md): terms, names, workers of other
 * jobs. What is refused has no effect and is counted. */
#ifndef TITAN_DAEMON_COORDINATOR_CLUSTER_FENCING_H
#define TITAN_DAEMON_COORDINATOR_CLUSTER_FENCING_H

#include "daemon/coordinator/records/core_record.h"

/* Is every field what it can be? n may be NULL. */
titan_status fence_range(struct core *c, struct noderec *n, const Titan__Internal__AgentMessage *m,
                         struct titan_error *err) TITAN_MUST_USE;
/* Fences the core when a node that is registered, or about to be, proves a higher term; without a proof
 * the session is refused. *ret_drop: the message is of a lower one. */
titan_status fence_message(struct core *c, const char *node, const Titan__Internal__AgentMessage *m, bool *ret_drop,
                           struct titan_error *err) TITAN_MUST_USE;
/* Is the name its own? An agent at another address is taken for the one that had the name when it runs on the same
 * installation, when no worker of that one may train (has_worker), when an operator has given it up, or when its lease
 * is over; and while that one answers, never. */
titan_status fence_name(struct core *c, const struct noderec *n, const Titan__Internal__AgentRegistration *m,
                        const char *identity, bool has_worker, struct titan_error *err) TITAN_MUST_USE;
/* Is it another machine that gets the name? It cannot tell which epochs the agent before it has formed. */
bool fence_replaces(const struct noderec *n, const Titan__Internal__AgentRegistration *m);
/* The sessions that this identity has opened register no more. */
void fence_revoke(struct core *c, const char *identity);
/* The identity of an unregistered session; the caller frees it. "": unknown; NULL: it was revoked since. */
char *fence_take_identity(struct core *c, uint64_t session);
/* Counts it and tells of it, of one node not too often. words: what is refused; may be batch memory. */
void fence_implausible(struct core *c, struct noderec *n, uint64_t job_id, const char *words);
/* A report about a worker that is not there. */
void fence_unknown_worker(struct core *c, struct noderec *n, const struct subject *about);
/* What the node's agent has refused itself. */
void fence_refusals(struct core *c, struct noderec *n, const Titan__Internal__AgentHeartbeat *m);

#endif
