/* SPDX-License-Identifier: Apache-2.0 */
/* log_head.h - copies the head of the event log (state/event.h) to places where the store's owner cannot take it back:
 * the daemon's log and, with audit.head_file, the end of a file.
 *
 * A line is written at the start, at the end, after 256 events, and a minute after the first event since the last line;
 * never within a second of the last line. A failed write of the file is a warning, once a minute, and nothing waits for
 * it. Loop thread only. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_LOG_HEAD_H
#define TITAN_DAEMON_COORDINATOR_SHELL_LOG_HEAD_H

#include "daemon/coordinator/shell/shell.h"

/* The shell owns and initialises the timer. */
void log_head_open(struct coordinator *c);
/* Something was committed to the store. */
void log_head_committed(struct coordinator *c);
/* The store is closed: writes its last head. Waits up to two seconds for the file. */
void log_head_close(struct coordinator *c);
void log_head_free(struct coordinator *c);

#endif
