/* SPDX-License-Identifier: Apache-2.0 */
/* worker_cgroup.h - the cgroups that the agent makes for workers, below its own cgroup, on nodes without titan-spawnd.
 *
 * The kernel lets cgroups have limits only below a cgroup without a process. So at the first limit the agent moves into
 * main/, beside the workers' cgroups, unless its unit starts it there (systemd's DelegateSubgroup=main). In a service
 * without DelegateSubgroup the agent does not move, because systemd could not restart the unit while its workers live.
 * Any thread. */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKER_CGROUP_H
#define TITAN_DAEMON_AGENT_SHELL_WORKER_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/common/cgroup.h"

#define WORKER_CGROUP_WHY 200

/* The folder for workers' cgroups; false = no cgroups can be made. */
bool worker_cgroup_home(char out[PATH_MAX]);
/* Which limits can be enforced? why: what prevents the other limits, and the remedy; "" = nothing. */
struct cgroup_holds worker_cgroup_holds(char why[WORKER_CGROUP_WHY]);
/* Makes a worker's cgroup with its limits. "" = no cgroup, which is an error only if there are limits. */
titan_status worker_cgroup_make(uint64_t worker_id, const struct cgroup_limits *limits, char out[PATH_MAX],
                                struct titan_error *err) TITAN_MUST_USE;
/* Finds the worker's existing cgroup; "" = none. */
void worker_cgroup_find(uint64_t worker_id, char out[PATH_MAX]);
bool worker_cgroup_enter(const char *cgroup, pid_t pid);
void worker_cgroup_kill(const char *cgroup);

#endif
