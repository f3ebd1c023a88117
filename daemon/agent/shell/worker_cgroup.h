/* SPDX-License-Identifier: Apache-2.0 */
/* worker_cgroup.h - the cgroups that the agent makes for workers below its own, where no titan-spawnd does it.
 *
 * The kernel hands memory and processors on to cgroups only below a cgroup without a process. So the agent goes into
 * main/ beside them when a limit is first wanted, unless its unit begins there (systemd's DelegateSubgroup=main). Of a
 * service without that it stays: systemd could not start the unit again while its workers are there. Any thread. */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKER_CGROUP_H
#define TITAN_DAEMON_AGENT_SHELL_WORKER_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/common/cgroup.h"

#define WORKER_CGROUP_WHY 200

/* The folder that they are made in; false when there is none that others could be made in. */
bool worker_cgroup_home(char out[PATH_MAX]);
/* What they can be limited in. why: what keeps them from the rest, and what to do; "" = nothing does. */
struct cgroup_holds worker_cgroup_holds(char why[WORKER_CGROUP_WHY]);
/* A worker's, with its limits; "" = there is none to be had. Without limits that is no error. */
titan_status worker_cgroup_make(uint64_t worker_id, const struct cgroup_limits *limits, char out[PATH_MAX],
                                struct titan_error *err) TITAN_MUST_USE;
/* One that is there; "" = it is not. */
void worker_cgroup_find(uint64_t worker_id, char out[PATH_MAX]);
bool worker_cgroup_enter(const char *cgroup, pid_t pid);
void worker_cgroup_kill(const char *cgroup);

#endif
