/* SPDX-License-Identifier: Apache-2.0 */
/* pages_dir.h - where workers' pages and flight recorders lie: in memory.
 *
 * Agent and workers write these files through mappings, a worker at every step. On a disk such a write waits while the
 * file system takes none (a disk that stalls, fsfreeze for a snapshot), and training and the agent's event loop with
 * it. So they lie in /dev/shm, in a folder that RUN_DIR/pages links to: the next agent over the same state directory
 * finds them there. After a reboot the folder is gone, as the workers are. */
#ifndef TITAN_DAEMON_AGENT_SHELL_PAGES_DIR_H
#define TITAN_DAEMON_AGENT_SHELL_PAGES_DIR_H

#include <limits.h>

#include "base/error.h"
#include "base/log.h"

/* The folder, made if need be, of this user and this run_dir alone (0700). run_dir itself where /dev/shm cannot have
 * it. log: is told when the link leads to a folder that is not. */
void pages_dir_open(const char *run_dir, char out[PATH_MAX], const struct log *log);
/* Folder and link go when no page is left in it. */
void pages_dir_close(const char *run_dir, const char *pages_dir);

#endif
