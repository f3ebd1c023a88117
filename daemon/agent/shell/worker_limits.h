/* SPDX-License-Identifier: Apache-2.0 */
/* worker_limits.h - a worker's memory and processors: the run file's request ([resources]) within the site's limits per
 * worker on this node (agent.worker_memory, worker_cpus). A worker without a request gets the site's limits. Any
 * thread. */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKER_LIMITS_H
#define TITAN_DAEMON_AGENT_SHELL_WORKER_LIMITS_H

#include "base/recipe.h"
#include "daemon/common/cgroup.h"

#define WORKER_LIMITS_WHY 288

/* The limits of this node. */
struct worker_limits {
    struct cgroup_limits site, machine; /* site: most per worker; machine: all of the machine */
};
/* Which limits can be enforced. */
struct worker_limits_held {
    struct cgroup_holds can;
    bool unknown;                /* titan-spawnd gave no answer; `why` has the reason */
    char why[WORKER_LIMITS_WHY]; /* limits that cannot be enforced, and the remedy; "" = none */
};

/* The limits of this machine with the site's settings; 0 = no setting. */
struct worker_limits worker_limits_of(uint64_t site_memory, uint32_t site_cpus);
struct cgroup_limits worker_limits_asked(const struct recipe *r);
/* Asks titan-spawnd, or looks at this process's own cgroup if spawnd is "". May take a moment. */
void worker_limits_look(const char *spawnd, struct worker_limits_held *ret);
/* Is there a site limit that cannot be enforced? */
bool worker_limits_unheld(const struct worker_limits *node, const struct worker_limits_held *held);
/* Chooses the worker's limits. Leaves out a site limit that cannot be enforced. TITAN_EUNPLACEABLE: a requested limit
 * is above the node's, or cannot be enforced; the error has both numbers in one line. TITAN_EAGAIN: it is unknown what
 * can be enforced. */
titan_status worker_limits_choose(const struct worker_limits *node, const struct cgroup_limits *asked,
                                  const struct worker_limits_held *held, const char *name, struct cgroup_limits *ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* The setting behind a memory limit that a worker reached: " (resources.memory)" or " (agent.worker_memory)". */
const char *worker_limits_origin(const struct worker_limits *node, uint64_t limit);

#endif
