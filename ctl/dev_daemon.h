/* SPDX-License-Identifier: Apache-2.0 */
/* dev_daemon.h - a titand of our own, for as long as one run takes. */
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
    bool own_dir;             /* made by us: only the jobs' folders are left in it afterwards */
    char server[PATH_MAX + 32];
    pid_t pid; /* 0: not running */
    int pidfd;
};

#define DEV_DAEMON_FOLDER "titan-run-" /* names of its new folders begin so */
/* Where they are made: $TMPDIR, else /tmp. */
void dev_daemon_folders(char *out, size_t cap);
/* `titand dev` (from titanctl's folder) with so many slots (0: its own default) on this device ("auto": what there is)
 * over state_dir, or over a new folder in $TMPDIR when that is NULL; returns when
 * it serves. It dies with this process. Must come before the first call of gRPC: it forks. Its log is titand.log in the
 * state directory. */
titan_status dev_daemon_start(struct dev_daemon *d, const char *state_dir, const char *device, int64_t slots,
                              struct titan_error *err) TITAN_MUST_USE;
/* SIGTERM, wait (at most half a minute, then SIGKILL), tidy up. Works on what start left behind when it failed. */
void dev_daemon_stop(struct dev_daemon *d);

#endif
