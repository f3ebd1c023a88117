/* SPDX-License-Identifier: Apache-2.0 */
/* oom.h - was a worker killed for its memory? The kernel does not tell the parent: its counters do, for a worker that
 * got a SIGKILL that this agent did not send.
 *
 * The cgroup that has the worker's memory counts such kills of its own processes, whatever limit acted: memory.events
 * (v2) or memory.oom_control (v1). Where none counts (no memory controller, the root cgroup), the machine's count is
 * left (oom_kill in /proc/vmstat): it has those in any cgroup, and decides nothing. */
#ifndef TITAN_DAEMON_AGENT_SHELL_OOM_H
#define TITAN_DAEMON_AGENT_SHELL_OOM_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/agent/shell/worker_limits.h"

#define OOM_LOOKS 20 /* a process with much memory takes seconds to go */

struct oom_group;
struct oom_watch {
    struct oom_group *groups;
    const char *proc, *cgroups; /* where they are; tests have their own */
};
void oom_watch_init(struct oom_watch *o);
/* Four times a second, while there are workers: kills that were there OOM_LOOKS looks ago, or before the first worker
 * of a group, are of none that ends now. */
void oom_watch_look(struct oom_watch *o);
/* The group that counts the process's kills: *group is NULL before the first call, and follows the process afterwards,
 * while that lives. */
void oom_group_follow(struct oom_watch *o, struct oom_group **group, pid_t pid);
void oom_group_leave(struct oom_watch *o, struct oom_group **group);

struct oom_numbers {
    uint64_t limit, peak, kills;
};
/* "out of memory: limit 2.0 GiB (resources.memory), peak 2.0 GiB (oom_kill 1)"; of stands behind the limit. */
/* Of a cgroup that has counted a kill. peak 0: not known (Linux 5.19), so it was. */
bool oom_limit_reached(uint64_t limit, uint64_t peak);
void oom_reason(const struct oom_numbers *n, const char *of, char *reason, size_t cap);

enum oom {
    OOM_NO,
    OOM_PERHAPS, /* the machine has killed a process for memory; which one is not known */
    OOM_YES
};
/* Of a process that is gone by a SIGKILL not ours. own: its cgroup, "" = none, with the limits of node. rss_max: the
 * most memory it was seen to have. reason, unless OOM_NO: as oom_reason() has it, with the limit that was reached and,
 * behind it, the setting that it is of, or "(of titand.service)" where it is not the own cgroup's. */
enum oom oom_verdict(struct oom_group *group, const struct oom_watch *o, const char *own,
                     const struct worker_limits *node, uint64_t rss_max, char *reason, size_t cap);

#endif
