/* SPDX-License-Identifier: Apache-2.0 */
/* disk_usage.h - disk usage of each user's jobs below jobs_dir, for limits.user_disk_mb.
 *
 * A file thread measures one job's folder after the other, in slices: all folders after a start, then each folder that
 * changes (a checkpoint is written, or the job ends). Sums are kept in memory, and no caller waits for them: unmeasured
 * folders count as nothing. Loop thread only. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_DISK_USAGE_H
#define TITAN_DAEMON_COORDINATOR_SHELL_DISK_USAGE_H

#include "daemon/coordinator/shell/shell.h"

/* Measures all present folders. Without a limit this and the functions below do nothing. */
void disk_usage_open(struct coordinator *c);
void disk_usage_free(struct coordinator *c);
void disk_usage_stored(struct coordinator *c, const struct batch *batch); /* these changes are durable */
void disk_usage_changed(struct coordinator *c, uint64_t job_id);          /* the job's folder has changed */
void disk_usage_removed(struct coordinator *c, uint64_t job_id);          /* the job's folder is gone */
/* Does the owner use more disk than one user may? text: the numbers, "12.3 GiB of 10.0 GiB". */
bool disk_usage_over(const struct coordinator *c, const char *user, char *text, size_t size);

#endif
