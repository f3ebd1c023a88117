/* SPDX-License-Identifier: Apache-2.0 */
/* store_restore.h - from the store back into a core. */
#ifndef TITAN_DAEMON_COORDINATOR_SHELL_STORE_RESTORE_H
#define TITAN_DAEMON_COORDINATOR_SHELL_STORE_RESTORE_H

#include "daemon/coordinator/core.h"

/* Nodes and every job that has not ended; into a core that has had no input yet. */
titan_status core_restore(struct core *c, struct db *db, struct core_time now, struct titan_error *err) TITAN_MUST_USE;
/* The same, but for jobs of which the store says what cannot be: bad() is called for each instead. */
titan_status core_restore_but(struct core *c, struct db *db, struct core_time now,
                              void (*bad)(uint64_t job_id, const char *why, void *data), void *data,
                              struct titan_error *err) TITAN_MUST_USE;

#endif
