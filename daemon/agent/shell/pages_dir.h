/* SPDX-License-Identifier: Apache-2.0 */
/* pages_dir.h - the folder of workers' pages and flight recorders, in memory.
 *
 * Agent and workers write these files through mappings, a worker at every step. On a disk, such a write waits while the
 * file system accepts no writes (a stalled disk, fsfreeze for a snapshot), and blocks training and the agent's event
 * loop. So the files lie in a folder in /dev/shm. RUN_DIR/pages links to it: the next agent over the same state
 * directory finds them. After a reboot the folder is gone, like the workers. */
#ifndef TITAN_DAEMON_AGENT_SHELL_PAGES_DIR_H
#define TITAN_DAEMON_AGENT_SHELL_PAGES_DIR_H

#include <limits.h>

#include "base/error.h"
#include "base/log.h"

/* Makes the folder if needed, for this user and run_dir alone (0700). Returns run_dir itself if /dev/shm cannot hold
 * it. log gets a line if the link leads to a folder that this agent does not accept. */
void pages_dir_open(const char *run_dir, char out[PATH_MAX], const struct log *log);
/* Removes folder and link when no page is left. */
void pages_dir_close(const char *run_dir, const char *pages_dir);

#endif
