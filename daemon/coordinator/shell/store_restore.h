/* SPDX-License-Identifier: Apache-2.0 */
/* store_restore.h - restores a core from the store. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_STORE_RESTORE_H
#define TITAN_DAEMON_COORDINATOR_SHELL_STORE_RESTORE_H

#include "daemon/coordinator/core.h"

/* Restores nodes and every job that has not ended, into a core without any input yet. Calls bad() for each job with
 * impossible stored state; bad NULL: fails at the first such job. */
titan_status core_restore(struct core *c, struct db *db, struct core_time now,
                          void (*bad)(uint64_t job_id, const char *why, void *data), void *data,
                          struct titan_error *err) TITAN_MUST_USE;

#endif
