/* SPDX-License-Identifier: Apache-2.0 */
/* recovery.h - the phases of a recovery, from the first report of a loss to the next step. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_RECOVERY_H
#define TITAN_DAEMON_COORDINATOR_RUN_RECOVERY_H

#include "daemon/coordinator/records/core_record.h"

/* Emits recovery.finished once all its values are known. */
void recovery_finish(struct core *c, struct jobrec *j);
/* Starts the clock of recovery.finished, at the first report of a loss. */
void recovery_begin(struct core *c, struct jobrec *j);
void recovery_revoked(struct core *c, struct jobrec *j);
void recovery_quiet(struct core *c, struct jobrec *j); /* only the first call after a revoke counts */
void recovery_formed(struct core *c, struct jobrec *j);
void recovery_ready(struct core *c, struct jobrec *j);
void recovery_stepped(struct core *c, struct jobrec *j);
void recovery_detected(struct jobrec *j, int64_t ms); /* ms: time from the fault to its report */
void recovery_clear(struct jobrec *j);                /* no recovery is under way any more */
void recovery_restored(struct core *c, struct jobrec *j);

#endif
