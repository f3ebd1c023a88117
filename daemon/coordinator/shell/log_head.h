/* SPDX-License-Identifier: Apache-2.0 */
/* log_head.h - the head of the event log (state/event.h), where the store's owner cannot take it back: in the daemon's
 * log and, with audit.head_file, at the end of a file.
 *
 * At the start and at the end, after 256 events, and a minute after the first event that came after a line; not within
 * a second of the last. A file that cannot be written is a warning, once a minute, and nothing waits for it. Loop
 * thread only. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_LOG_HEAD_H
#define TITAN_DAEMON_COORDINATOR_SHELL_LOG_HEAD_H

#include "daemon/coordinator/shell/shell.h"

/* The timer is the shell's, initialised. */
void log_head_open(struct coordinator *c);
/* The store is closed: the last head of it. Waits for the file for two seconds. */
void log_head_close(struct coordinator *c);
void log_head_free(struct coordinator *c);

#endif
