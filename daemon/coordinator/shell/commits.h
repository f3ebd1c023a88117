/* SPDX-License-Identifier: Apache-2.0 */
/* commits.h - what the shell's files know of commits: a batch of the core is one, and goes into the store in its order.
 */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_COMMITS_H
#define TITAN_DAEMON_COORDINATOR_SHELL_COMMITS_H

#include "daemon/coordinator/shell/shell.h"

/* A job that the store contradicts, ended with the commit it was found in. */
struct set_aside {
    struct set_aside *next;
    uint64_t job_id;
    int64_t at_ms;
    char reason[512];
};

/* Set the timer for the core's next deadline. */
void shell_set_timer(struct coordinator *c);
/* Of jobs that ended before this start: what no agent had passed on, and was not read from their folders in time. */
void shell_fill_ended(struct coordinator *c);
/* Those that did not go in. */
void commits_free(struct coordinator *c);

#endif
