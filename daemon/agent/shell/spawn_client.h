/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_client.h - the client of titan-spawnd's socket (daemon/spawn/spawn_frames.h). Each call has its own connection,
 * from any thread. titan-spawnd answers at once and leaves slow work to its children. spawn_client_start waits for such
 * a child, so it runs on a thread for files. */
#ifndef TITAN_DAEMON_AGENT_SHELL_SPAWN_CLIENT_H
#define TITAN_DAEMON_AGENT_SHELL_SPAWN_CLIENT_H

#include "daemon/common/cgroup.h"
#include "daemon/spawn/spawn_frames.h"

#define SPAWN_SOCKET_MAX 108
#define SPAWN_LOOP_MS 200  /* wait for an answer on a loop */
#define SPAWN_WAIT_MS 5000 /* wait for an answer to a start, because titan-spawnd may lack a processor for a while */

/* TITAN_OK: the worker runs, and the caller owns *ret_pidfd. Otherwise returns titan-spawnd's status and reason.
 * TITAN_EPERM, TITAN_EINVAL: this node does not start the worker for that user, folder or limit. TITAN_EAGAIN:
 * titan-spawnd does not answer. */
titan_status spawn_client_start(const char *socket, const struct spawn_request *request, const struct spawn_fds *fds,
                                pid_t *ret_pid, int *ret_pidfd, struct titan_error *err) TITAN_MUST_USE;
titan_status spawn_client_signal(const char *socket, uint64_t worker_id, int signal,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Does the worker run, and how did it end? forget: titan-spawnd may forget its end. */
titan_status spawn_client_ask(const char *socket, int wait_ms, uint64_t worker_id, bool forget, struct spawn_reply *ret,
                              struct titan_error *err) TITAN_MUST_USE;

/* Which limits can titan-spawnd enforce? why: what prevents the other limits; "" = nothing. Waits for SPAWN_WAIT_MS; on
 * TITAN_EAGAIN and other errors the answer is unknown. */
titan_status spawn_client_holds(const char *socket, struct cgroup_holds *ret, char why[SPAWN_TEXT],
                                struct titan_error *err) TITAN_MUST_USE;

#endif
