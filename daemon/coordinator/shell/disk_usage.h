/* SPDX-License-Identifier: Apache-2.0 */
/* disk_usage.h - what the jobs of each user have on disk below jobs_dir, for limits.user_disk_mb.
 *
 * Folders of jobs are measured one after the other on a thread for files, in slices: all of them after a start, then
 * one that changes, which is when a checkpoint is written there or its job ends. Sums are kept in memory and never
 * waited for: what has not been measured yet counts as nothing. Loop thread only. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_DISK_USAGE_H
#define TITAN_DAEMON_COORDINATOR_SHELL_DISK_USAGE_H

#include "daemon/coordinator/shell/shell.h"

/* All that are there are measured. Without a limit nothing is, here and below. */
void disk_usage_open(struct coordinator *c);
void disk_usage_free(struct coordinator *c);
void disk_usage_stored(struct coordinator *c, const struct batch *batch); /* these changes are durable */
void disk_usage_changed(struct coordinator *c, uint64_t job_id);          /* its folder has */
void disk_usage_removed(struct coordinator *c, uint64_t job_id);          /* its folder is gone */
/* Has the owner of jobs more than one user may have? With how much, "12.3 GiB of 10.0 GiB", in text. */
bool disk_usage_over(const struct coordinator *c, const char *user, char *text, size_t size);

#endif
