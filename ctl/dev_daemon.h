/* SPDX-License-Identifier: Apache-2.0 */
/* dev_daemon.h - a private titand for the duration of one run. */
#ifndef TITAN_CTL_DEV_DAEMON_H
#define TITAN_CTL_DEV_DAEMON_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct dev_daemon {
    char state_dir[PATH_MAX]; /* absolute */
    bool own_dir;             /* this process created the folder: at most the jobs' folders stay in it afterwards */
    char server[PATH_MAX + 32];
    pid_t pid; /* 0: not running */
    int pidfd;
};

#define DEV_DAEMON_FOLDER "titan-run-" /* prefix of new folders */
/* Parent of new folders: $TMPDIR, else /tmp. */
void dev_daemon_folders(char *out, size_t cap);
/* Starts `titand dev` from titanctl's folder with this many slots (0: its default) on this device ("auto": the
 * available one). state_dir NULL: a new folder in $TMPDIR. Returns when titand serves; titand ends with this process.
 * The call forks, so it must precede the first gRPC call. The log is titand.log in the state directory. */
titan_status dev_daemon_start(struct dev_daemon *d, const char *state_dir, const char *device, int64_t slots,
                              struct titan_error *err) TITAN_MUST_USE;
/* Ends titand with SIGTERM, or with SIGKILL after 30 s, and cleans up. Also cleans up after a failed start. A folder
 * that dev_daemon_start() made is removed, except for folders of jobs that have more than logs and metrics. keep_jobs:
 * the folders of all jobs stay. Returns whether folders of jobs are left. */
bool dev_daemon_stop(struct dev_daemon *d, bool keep_jobs);

#endif
