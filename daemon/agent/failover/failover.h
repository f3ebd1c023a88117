/* SPDX-License-Identifier: Apache-2.0 */
/* failover.h - epochs without a coordinator. The agents of a job's members then shrink the job by majority
 * (docs/membership.md, "The right to decide"; tests/model/membership.pml checks the rules).
 *
 *   watch ──► propose ──► revoke ──► commit: watch the new epoch
 *     ▲          │           │
 *     └──────────┴───────────┘  too few promise, or too few are left
 *
 * Agents are ordered by their lowest member rank. Every member's agent watches: it asks the agents before it in this
 * order, until an agent answers. The first agent that answers is the acting leader. The leader asks all agents. An
 * agent that missed a commit gets it when it asks or answers.
 *
 *   failover.c         the state of an attempt, the time, datagrams by kind
 *   failover_lease.c   how long an epoch may go on without a coordinator
 *   failover_epoch.c   questions about epochs: members, quorums, legal sizes
 *   failover_messages.c  addresses and keys of the other agents, messages to them
 *   failover_peers.c   the other agents: which answer, which of their members live, which one leads
 *   failover_propose.c the acting leader's half
 *   failover_accept.c  the other agents' half */
#ifndef TITAN_DAEMON_AGENT_FAILOVER_FAILOVER_H
#define TITAN_DAEMON_AGENT_FAILOVER_FAILOVER_H

#include "daemon/agent/agent_core.h"

struct failover_state; /* state for one job and its accepted epoch */

/* Is the coordinator known, and silent for longer than away_ms? */
bool failover_coordinator_away(const struct agent_core *c, int64_t now);
/* Handles m, another agent's datagram that is neither a ping nor the answer to a ping. */
void failover_on_datagram(struct agent_core *c, const Titan__Internal__PeerMessage *m, const char *from, int64_t now,
                          struct agent_actions *out);
/* A worker here left its epoch: the acting leader that asked gets the worker's holdings. */
void failover_on_quiesced(struct agent_core *c, const Titan__Internal__WorkerQuiesced *m, int64_t now,
                          struct agent_actions *out);
void failover_tick(struct agent_core *c, int64_t now, struct agent_actions *out);
int64_t failover_deadline(const struct agent_core *c); /* INT64_MAX = none */
/* Extends the deadlines of other agents, to promise and to leave an epoch, by ms. */
void failover_shift(struct agent_core *c, int64_t ms);
struct agent_job;
void failover_drop(struct agent_job *j);                                    /* frees the attempt, if any */
void failover_check(const struct agent_core *c, const struct agent_job *j); /* asserts what holds between inputs */

#endif
