/* SPDX-License-Identifier: Apache-2.0 */
/* worker_process.h - a worker's process: start, kill with all its children, reap. Any thread.
 *
 * A worker leads its own process group in the agent's session. It has a clean environment, no descriptors but stdin
 * (/dev/null), stdout and stderr (its log), and the job's folder as working directory. It has no parent death signal,
 * because it must outlive the agent, for the next agent to adopt. If the agent may make cgroups in its own cgroup (v2,
 * a delegated subtree), the worker gets its own cgroup with its limits. Then a kill is atomic (worker_cgroup.h). When
 * memory runs out, the kernel kills the worker before its agent (oom_score_adj: the agent's plus 500).
 *
 * The agent uses posix_spawn, not fork, because gRPC's threads hold locks that a forked child would inherit.
 *
 * With titan-spawnd (agent.spawnd), titan-spawnd starts the worker as the job's user, is its parent, opens its log and
 * owns the cgroup. The agent sends it every kill, and asks it how the worker ended. */
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
    const char *socket;  /* the agent's socket */
    const char *page, *directory, *host;
    const char *ports; /* ports it may listen at; NULL = any */
    /* open descriptors. log: opened to append; unused with titan-spawnd, which opens the log itself. folder: working
     * directory */
    int log, folder;
    const char *run; /* identifies the run and its store */
    uint64_t job_id, worker_id;
    const char *cuda_devices; /* its CUDA_VISIBLE_DEVICES; NULL = the agent's */
    /* titan-spawnd's socket; NULL = the agent starts the worker, and ignores the fields below */
    const char *spawnd;
    uid_t uid;
    struct cgroup_limits limits;
};

struct worker_process {
    pid_t pid;
    int pidfd;                     /* readable after its end; -1 = none */
    bool child;                    /* child of this process, to be reaped; false when adopted */
    char cgroup[PATH_MAX];         /* "" = none */
    char spawnd[SPAWN_SOCKET_MAX]; /* socket of its titan-spawnd; "" = none */
    uint64_t worker_id;
};

struct worker_end {
    int code, signal; /* code -1: a signal ended the process; then signal 0 = unknown */
    /* Values of the worker's own cgroup, if titan-spawnd made one; otherwise 0. */
    uint64_t oom_kills, limit, peak;
};

#define WORKER_PROCESS_NONE ((struct worker_process){.pidfd = -1})

titan_status worker_process_start(const struct worker_command *command, struct worker_process *ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* A process that an earlier agent's page names. */
struct worker_found {
    pid_t pid;
    const char *page; /* path */
    uint64_t job_id, worker_id;
    const char *spawnd; /* titan-spawnd's socket; "" = none */
};
/* Adopts the found process. TITAN_ENOTFOUND: pid is gone, or not the worker of this page and job. */
titan_status worker_process_adopt(const struct worker_found *w, struct worker_process *ret,
                                  struct titan_error *err) TITAN_MUST_USE;
/* Kills, awaits and clears a process that was not yet reported. */
void worker_process_undo(struct worker_process *p);
/* Sends SIGKILL to all processes of its group and cgroup. Returns false if titan-spawnd does not answer; try again. */
bool worker_process_kill(const struct worker_process *p);
/* Opens its /proc/PID/stat for repeated reads; -1 = not available. */
int worker_process_stat(const struct worker_process *p);
/* State letter (0 = unknown), resident bytes, and processor time of all its threads in steps of 10 ms. */
char worker_process_state(int stat_fd, uint64_t *ret_rss, uint64_t *ret_cpu_ms);
/* Is a thread of the process running or ready to run? */
bool worker_process_runnable(const struct worker_process *p);
/* Gets the end of a process that is still exiting (with much memory, say) or is not this agent's child. False =
 * unknown; *ret stays unchanged. */
bool worker_process_ending(const struct worker_process *p, struct worker_end *ret);
/* Gets the end of a worker that ended without an agent. Waits up to SPAWN_WAIT_MS for titan-spawnd. */
bool worker_process_departed(const char *spawnd, uint64_t worker_id, struct worker_end *ret);
/* Reaps an ended process. TITAN_OK: *ret has its end, and the rest of its group was killed before the reap.
 * TITAN_EAGAIN: it lives. An adopted process cannot be reaped. Once it is gone, the end is code -1 and signal 0, unless
 * titan-spawnd knows more. */
titan_status worker_process_reap(struct worker_process *p, struct worker_end *ret);
/* For a worker that died without an agent: kills the processes in its cgroup and removes the cgroup. */
void worker_process_sweep(uint64_t worker_id);
/* Closes the descriptor and removes the cgroup. */
void worker_process_clear(struct worker_process *p);

#endif
