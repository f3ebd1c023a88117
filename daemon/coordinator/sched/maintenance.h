/* SPDX-License-Identifier: Apache-2.0 */
/* maintenance.h - nodes out of service: drains on request, maintenance windows, stopping agents. The return of an agent
 * changes nothing about this. */
#ifndef TITAN_DAEMON_COORDINATOR_SCHED_MAINTENANCE_H
#define TITAN_DAEMON_COORDINATOR_SCHED_MAINTENANCE_H

#include "daemon/coordinator/records/core_record.h"

/* Is this drain request valid? */
titan_status maintenance_check(const struct core_drain *d, int64_t now_ms, struct titan_error *err) TITAN_MUST_USE;
void maintenance_drain(struct core *c, struct noderec *n, const struct core_drain *d); /* d is checked */
void maintenance_undrain(struct core *c, struct noderec *n);
void maintenance_agent_leaves(struct core *c, struct noderec *n, const Titan__Internal__AgentLeaves *m);
void maintenance_tick(struct core *c);
void maintenance_restore(struct core *c, struct noderec *n, const struct node_policy *saved);

#endif
