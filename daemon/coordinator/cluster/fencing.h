/* SPDX-License-Identifier: Apache-2.0 */
/* fencing.h - which senders the coordinator accepts (docs/membership.md): terms, names, workers of other jobs. A
 * refused message has no effect and is counted. */
#ifndef TITAN_DAEMON_COORDINATOR_CLUSTER_FENCING_H
#define TITAN_DAEMON_COORDINATOR_CLUSTER_FENCING_H

#include "daemon/coordinator/records/core_record.h"

/* Is every field of the message within its range? n may be NULL. */
titan_status fence_range(struct core *c, struct noderec *n, const Titan__Internal__AgentMessage *m,
                         struct titan_error *err) TITAN_MUST_USE;
/* Fences the core when a registered or registering node proves a higher term. A higher term without a proof ends the
 * session. *ret_drop: the message has a lower term; drop it. */
titan_status fence_message(struct core *c, const char *node, const Titan__Internal__AgentMessage *m, bool *ret_drop,
                           struct titan_error *err) TITAN_MUST_USE;
/* May this agent have the name? An agent at another address takes over the name in four cases: the same installation;
 * no worker of the old agent may train (has_worker); an operator gave the old agent up; the lease of the old agent is
 * over. No agent takes over the name while the old agent answers. */
titan_status fence_name(struct core *c, const struct noderec *n, const Titan__Internal__AgentRegistration *m,
                        const char *identity, bool has_worker, struct titan_error *err) TITAN_MUST_USE;
/* Does another machine get the name? The new agent cannot tell which epochs the old agent has formed. */
bool fence_replaces(const struct noderec *n, const Titan__Internal__AgentRegistration *m);
/* Refuses registrations of all sessions that this identity has opened. */
void fence_revoke(struct core *c, const char *identity);
/* Returns the identity of an unregistered session; the caller frees it. "" = unknown; NULL = revoked since. */
char *fence_take_identity(struct core *c, uint64_t session);
/* Counts and logs an implausible report; the log of one node is rate-limited. words: the refused thing; may be batch
 * memory. */
void fence_implausible(struct core *c, struct noderec *n, uint64_t job_id, const char *words);
/* Counts and logs that the node reports a worker that it does not have. */
void fence_unknown_worker(struct core *c, struct noderec *n, const struct subject *about);
/* Takes over the refusal counts of the node's agent. */
void fence_refusals(struct core *c, struct noderec *n, const Titan__Internal__AgentHeartbeat *m);

#endif
