/* SPDX-License-Identifier: Apache-2.0 */
/* oom.h - was a worker killed for its memory? The kernel does not tell the parent: its counters do. The worker's own
 * cgroup is asked first (memory.events), where it has one; else the machine's count of such kills (oom_kill in
 * /proc/vmstat, which counts those for a cgroup's limit too), for a worker that got a SIGKILL that this agent did not
 * send. */
#ifndef TITAN_DAEMON_AGENT_OOM_H
#define TITAN_DAEMON_AGENT_OOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/agent/worker_process.h"

#define OOM_LOOKS 20 /* a process with much memory takes seconds to go */
struct oom_watch {
    uint64_t kills[OOM_LOOKS];        /* of the machine, at the newest looks, as a ring */
    uint64_t looks, attributed;       /* attributed: kills up to this one have had their process */
    const char *vmstat, *cgroup_root; /* where they are; tests have their own */
    char home[PATH_MAX];              /* the agent's own cgroup, for workers that have none; "" = none either */
};
void oom_watch_init(struct oom_watch *o);
/* Four times a second, while there are workers. Kills that were there OOM_LOOKS looks ago are not of one that ends now.
 */
void oom_watch_look(struct oom_watch *o);
/* Of a process that is gone by a SIGKILL not ours; its cgroup is still there. Then reason is "out of memory: limit 2.0
 * GiB, peak 2.0 GiB (oom_kill 1)", with "(of titand.service)" behind the limit where it is not its own cgroup's.
 * rss_max: the most memory it was seen to have. */
bool oom_verdict(struct oom_watch *o, const struct worker_process *p, uint64_t rss_max, char *reason, size_t cap);

#endif
