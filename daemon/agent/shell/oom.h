/* SPDX-License-Identifier: Apache-2.0 */
/* oom.h - was a worker killed for its memory? The kernel does not tell the parent. But if a SIGKILL that this agent did
 * not send ended the worker, the kernel's counters show the cause.
 *
 * The cgroup that accounts the worker's memory counts memory kills of its own processes, whichever limit caused them:
 * memory.events (v2) or memory.oom_control (v1). Without such a counter (no memory controller, the root cgroup) only
 * the machine's count is left (oom_kill in /proc/vmstat). That count covers all cgroups, so it is no proof. */
#ifndef TITAN_DAEMON_AGENT_SHELL_OOM_H
#define TITAN_DAEMON_AGENT_SHELL_OOM_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/agent/shell/worker_limits.h"

#define OOM_LOOKS 20 /* a process with much memory takes seconds to exit */

struct oom_group;
struct oom_watch {
    struct oom_group *groups;
    const char *proc, *cgroups; /* roots of /proc and the cgroups; tests set their own */
};
void oom_watch_init(struct oom_watch *o);
/* Called four times a second while there are workers. Kills from OOM_LOOKS looks ago, or from before a group's first
 * worker, do not explain a later end. */
void oom_watch_look(struct oom_watch *o);
/* Sets *group to the group that counts the process's kills. Before the first call *group is NULL. Later calls follow
 * the process while it lives. */
void oom_group_follow(struct oom_watch *o, struct oom_group **group, pid_t pid);
void oom_group_leave(struct oom_watch *o, struct oom_group **group);

struct oom_numbers {
    uint64_t limit, peak, kills;
};
/* Was the limit reached in a cgroup with a counted kill? peak 0 = unknown (before Linux 5.19): returns true. */
bool oom_limit_reached(uint64_t limit, uint64_t peak);
/* "out of memory: limit 2.0 GiB (resources.memory), peak 2.0 GiB (oom_kill 1)"; `of` follows the limit. */
void oom_reason(const struct oom_numbers *n, const char *of, char *reason, size_t cap);

enum oom {
    OOM_NO,
    OOM_PERHAPS, /* the machine killed some process for memory; which process is unknown */
    OOM_YES
};
/* A process that ended by a SIGKILL not from this agent. */
struct oom_victim {
    struct oom_group *group;          /* counts its kills; NULL = none */
    const char *own;                  /* its cgroup, "" = none ... */
    const struct worker_limits *node; /* ... with the limits of node */
    uint64_t rss_max;                 /* the most memory seen */
};
/* Decides whether the victim was killed for memory. Unless it returns OOM_NO, reason gets the text of oom_reason() with
 * the limit that was reached. The text then names the setting of this limit, or "(of titand.service)" for a limit
 * outside the worker's own cgroup. */
enum oom oom_verdict(const struct oom_watch *o, const struct oom_victim *victim, char *reason, size_t cap);

#endif
