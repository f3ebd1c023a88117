/* SPDX-License-Identifier: Apache-2.0 */
/* worker_process.h - one worker as the kernel sees it: start, kill with all it started, reap. Any thread.
 *
 * A worker leads a process group of its own in the agent's session, has a clean environment, no descriptors but stdin
 * (/dev/null), stdout and stderr (its log), and the job's folder as working directory. It does not get a death signal
 * from its parent: it must outlive the agent, to be adopted by the next one. Where the agent may make
 * cgroups in its own (v2, a delegated subtree), the worker gets one of those, so that killing it is atomic, with its
 * limits (worker_cgroup.h). When memory ends, it is taken before its agent (oom_score_adj: the agent's and 500).
 *
 * posix_spawn, not fork: gRPC's threads hold locks that a forked child would inherit.
 *
 * Where titan-spawnd serves (agent.spawnd), it starts the worker as the job's user, is its parent, opens its log, and
 * has the cgroup; it is asked for every kill and for how the worker has ended. */
#ifndef TITAN_DAEMON_AGENT_SHELL_WORKER_PROCESS_H
#define TITAN_DAEMON_AGENT_SHELL_WORKER_PROCESS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "daemon/agent/shell/spawn_client.h"
#include "daemon/common/cgroup.h"

struct worker_command {
    const char *program; /* titan-worker */
    const char *socket;  /* the agent's */
    const char *page, *directory, *host;
    const char *ports; /* that it may listen at; NULL = any */
    int log, folder;   /* open: its log, to append to (titan-spawnd opens it itself), and directory */
    const char *run;   /* which run of which store */
    uint64_t job_id, worker_id;
    const char *cuda_devices; /* CUDA_VISIBLE_DEVICES for it; NULL = as the agent has it */
    const char *spawnd;       /* titan-spawnd's socket; NULL = it is started here, and the rest is not looked at */
    uid_t uid;
    struct cgroup_limits limits;
};

struct worker_process {
    pid_t pid;
    int pidfd;                     /* readable once it is gone; -1 = none */
    bool child;                    /* ours to reap; false when adopted */
    char cgroup[PATH_MAX];         /* "" = none */
    char spawnd[SPAWN_SOCKET_MAX]; /* the socket of the titan-spawnd that has it; "" = none has */
    uint64_t worker_id;
};

struct worker_end {
    int code, signal; /* code -1: by a signal, or unknown when signal is 0 */
    /* As its own cgroup counts, where titan-spawnd has made one; else 0. */
    uint64_t oom_kills, limit, peak;
};

#define WORKER_PROCESS_NONE ((struct worker_process){.pidfd = -1})

titan_status worker_process_start(const struct worker_command *command, struct worker_process *ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* A process another agent started; spawnd: titan-spawnd's socket, "" = none. TITAN_ENOTFOUND when pid is gone or is not
 * the worker of this page, or of this job. */
titan_status worker_process_adopt(pid_t pid, const char *page, uint64_t job_id, uint64_t worker_id, const char *spawnd,
                                  struct worker_process *ret, struct titan_error *err) TITAN_MUST_USE;
/* One that has not been reported: killed, waited for, and cleared. */
void worker_process_undo(struct worker_process *p);
/* SIGKILL to everything in its group and cgroup. False: titan-spawnd does not answer; to be tried again. */
bool worker_process_kill(const struct worker_process *p);
/* Its /proc/PID/stat, to look at often; -1: not to be had. */
int worker_process_stat(const struct worker_process *p);
/* State letter from it (0 = not known), resident bytes, and processor time of all its threads, in steps of 10 ms. */
char worker_process_state(int stat_fd, uint64_t *ret_rss, uint64_t *ret_cpu_ms);
/* Does one of its threads run, or would if it had a processor? */
bool worker_process_runnable(const struct worker_process *p);
/* How a process ends that is not gone yet (its memory is large, say) or is not ours to reap. False when that is not
 * known; *ret is then as it was. */
bool worker_process_ending(const struct worker_process *p, struct worker_end *ret);
/* The same of a worker that ended while it had no agent; waits for titan-spawnd, for SPAWN_WAIT_MS. */
bool worker_process_departed(const char *spawnd, uint64_t worker_id, struct worker_end *ret);
/* TITAN_OK and how it ended, or TITAN_EAGAIN while it is not gone yet. What is left of its group is killed first. An
 * adopted one cannot be reaped: TITAN_OK with -1 and 0 once it is gone, unless titan-spawnd knows more. */
titan_status worker_process_reap(struct worker_process *p, struct worker_end *ret);
/* Ends what a worker that died while no agent watched has left in its cgroup, and removes the cgroup. */
void worker_process_sweep(uint64_t worker_id);
/* Closes the descriptor, removes the cgroup. */
void worker_process_clear(struct worker_process *p);

#endif
