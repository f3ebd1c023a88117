/* SPDX-License-Identifier: Apache-2.0 */
/* spawn_scope.h - the workers' cgroup under systemd: titan-workers.scope of titan.slice (Delegate=yes).
 *
 * It belongs to no service. So restarts of titand and titan-spawnd, and reloads of systemd, keep it and its limits.
 * systemd keeps a scope while it has a process. That process is the holder, titan-spawnd --hold, in main/. */
#ifndef TITAN_DAEMON_SPAWN_SPAWN_SCOPE_H
#define TITAN_DAEMON_SPAWN_SPAWN_SCOPE_H

#include <limits.h>

#include "base/error.h"

/* Gets the scope's folder. If the scope does not exist, systemd-run makes it within ten seconds. An existing scope
 * needs no call of systemd. The next call finds the same folder in all cases. */
titan_status spawn_scope_open(char out[PATH_MAX], struct titan_error *err) TITAN_MUST_USE;
/* The holder closes all descriptors, avoids the OOM killer (where it may), and ends by SIGTERM. */
void spawn_scope_hold(void) __attribute__((noreturn));

#endif
