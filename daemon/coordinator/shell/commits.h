/* SPDX-License-Identifier: Apache-2.0 */
/* commits.h - what the shell's files share about commits: a batch of the core is one commit, stored in its order. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_COMMITS_H
#define TITAN_DAEMON_COORDINATOR_SHELL_COMMITS_H

#include "daemon/coordinator/shell/shell.h"

/* A job that the store contradicts. It ends with the commit that revealed this. */
struct set_aside {
    struct set_aside *next;
    uint64_t job_id;
    int64_t at_ms;
    char reason[512];
};

/* Sets the timer for the core's next deadline. */
void shell_set_timer(struct coordinator *c);
/* Fetches metrics of jobs that ended before this start: agents had not passed them on, and they were not read from the
 * jobs' folders in time. */
void shell_fill_ended(struct coordinator *c);
/* Frees the commits that were not stored. */
void commits_free(struct coordinator *c);

#endif
