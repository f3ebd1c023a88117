/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_client.h - the agent's end of titan-spawnd's socket (daemon/spawn/spawn_frames.h). Each call has a connection
 * of its own, and any thread may call. Its answer comes at once: what takes long, titan-spawnd leaves to its children.
 * A start waits for one of these, and belongs on a thread for files. */
#ifndef TITAN_DAEMON_AGENT_SHELL_SPAWN_CLIENT_H
#define TITAN_DAEMON_AGENT_SHELL_SPAWN_CLIENT_H

#include "daemon/common/cgroup.h"
#include "daemon/spawn/spawn_frames.h"

#define SPAWN_SOCKET_MAX 108
#define SPAWN_LOOP_MS 200  /* for an answer that a loop waits for */
#define SPAWN_WAIT_MS 5000 /* for an answer that a start needs: titan-spawnd may have no processor for a while */

/* The worker runs: *ret_pidfd is the caller's. It does not: titan-spawnd's status and reason; TITAN_EPERM and
 * TITAN_EINVAL mean that this node does not start it for that user, folder or limit. TITAN_EAGAIN: titan-spawnd does
 * not answer. */
titan_status spawn_client_start(const char *socket, const struct spawn_request *request, const int *fds, size_t n_fds,
                                pid_t *ret_pid, int *ret_pidfd, struct titan_error *err) TITAN_MUST_USE;
titan_status spawn_client_signal(const char *socket, uint64_t worker_id, int signal,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Whether it runs, and how it has ended. forget: titan-spawnd need not keep that. */
titan_status spawn_client_ask(const char *socket, int wait_ms, uint64_t worker_id, bool forget, struct spawn_reply *ret,
                              struct titan_error *err) TITAN_MUST_USE;

/* What it can limit workers in. why: what keeps it from the rest; "" = nothing does. Waits for SPAWN_WAIT_MS;
 * TITAN_EAGAIN and others: it has not said. */
titan_status spawn_client_holds(const char *socket, struct cgroup_holds *ret, char why[SPAWN_TEXT],
                                struct titan_error *err) TITAN_MUST_USE;

#endif
