/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_scope.h - the cgroup of workers where systemd runs: titan-workers.scope of titan.slice (Delegate=yes).
 *
 * It is no service's: restarts of titand and titan-spawnd and reloads of systemd leave it and the limits in it as they
 * are. systemd keeps a scope while a process is in it. That is the holder, titan-spawnd --hold, in main/. */
#ifndef TITAN_DAEMON_SPAWN_SPAWN_SCOPE_H
#define TITAN_DAEMON_SPAWN_SPAWN_SCOPE_H

#include <limits.h>

#include "base/error.h"

/* Its folder. One that is there costs no call of systemd; else systemd is asked to make it (systemd-run), and waited
 * for at most ten seconds. What the next call finds is the same in all cases. */
titan_status spawn_scope_open(char out[PATH_MAX], struct titan_error *err) TITAN_MUST_USE;
/* The holder: closes all descriptors, is no choice of the kernel's when memory ends (where it may), and ends by
 * SIGTERM. */
void spawn_scope_hold(void) __attribute__((noreturn));

#endif
