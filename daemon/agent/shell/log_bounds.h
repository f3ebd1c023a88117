/* SPDX-License-Identifier: Apache-2.0 */
/* log_bounds.h - keeps workers' log files within their limit while there are workers. */
#ifndef TITAN_DAEMON_AGENT_SHELL_LOG_BOUNDS_H
#define TITAN_DAEMON_AGENT_SHELL_LOG_BOUNDS_H

#include "base/log.h"
#include "daemon/agent/shell/workers.h"

struct log_bounds;

/* bytes_max: per worker. */
struct log_bounds *log_bounds_open(uv_loop_t *loop, struct workers *workers, struct file_pool *files,
                                   uint64_t bytes_max, const struct log *log);
void log_bounds_watch(struct log_bounds *b);         /* a worker exists: begin to check */
bool log_bounds_working(const struct log_bounds *b); /* a thread has files open and may still answer */
void log_bounds_stop(struct log_bounds *b);          /* ends the checks */
/* No thread may be working. done runs on the loop. */
void log_bounds_close(struct log_bounds *b, void (*done)(void *), void *data);

#endif
