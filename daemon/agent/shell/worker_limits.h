/* SPDX-License-Identifier: Apache-2.0 */
/* worker_limits.h - the memory and the processors that a worker may have: what its run file asks for ([resources]),
 * within what the site gives one on this node (agent.worker_memory, worker_cpus), which is also what one gets that asks
 * for nothing. Any thread. */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKER_LIMITS_H
#define TITAN_DAEMON_AGENT_SHELL_WORKER_LIMITS_H

#include "base/recipe.h"
#include "daemon/common/cgroup.h"

#define WORKER_LIMITS_WHY 288

/* Of this node. */
struct worker_limits {
    struct cgroup_limits site, machine; /* site: the most for one worker; machine: what there is */
};
/* What can be held. */
struct worker_limits_held {
    struct cgroup_holds can;
    bool unknown;                /* titan-spawnd does not say, for a reason of its own: why */
    char why[WORKER_LIMITS_WHY]; /* not all of it can, and what to do; "" = all can */
};

/* Of this machine, with the site's settings; 0 = none. */
struct worker_limits worker_limits_of(uint64_t site_memory, uint32_t site_cpus);
struct cgroup_limits worker_limits_asked(const struct recipe *r);
/* By titan-spawnd, or in this process's own cgroup where spawnd is "". May take a moment. */
void worker_limits_look(const char *spawnd, struct worker_limits_held *ret);
/* Is there one of the site's that cannot? */
bool worker_limits_unheld(const struct worker_limits *node, const struct worker_limits_held *held);
/* The worker's. A limit of the site's that cannot be held is left out. TITAN_EUNPLACEABLE: a limit that is asked for is
 * above what the node gives, or cannot be held; in one line with both numbers. TITAN_EAGAIN: what can be held is not
 * known. */
titan_status worker_limits_choose(const struct worker_limits *node, const struct cgroup_limits *asked,
                                  const struct worker_limits_held *held, const char *name, struct cgroup_limits *ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* The setting that a limit of memory is of, which a worker has reached: " (resources.memory)" or "
 * (agent.worker_memory)". */
const char *worker_limits_origin(const struct worker_limits *node, uint64_t limit);

#endif
