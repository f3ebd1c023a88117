/* SPDX-License-Identifier: Apache-2.0 */
/* plausible.h - can an agent's report be true? Steps, epochs, paths, membership. */
#ifndef TITAN_DAEMON_COORDINATOR_RUN_PLAUSIBLE_H
#define TITAN_DAEMON_COORDINATOR_RUN_PLAUSIBLE_H

#include "daemon/coordinator/records/core_record.h"

/* Can the job have reached this epoch number? */
bool plausible_epoch(const struct core *c, const struct jobrec *j, uint64_t epoch);
/* Does the node hold a worker of the job, or a member of a quorum configuration? */
bool plausible_part(const struct jobrec *j, const struct noderec *n);
/* Is one of the epoch's members or departing ranks on that node? */
bool plausible_member(const struct jobrec *j, const struct noderec *n, const Titan__Internal__FormEpoch *f);
/* Is this where the job keeps its checkpoint of that step? UINT64_MAX = any step. */
bool plausible_path(const struct jobrec *j, uint64_t step, const char *path);
/* Can the job be at that step at all? */
bool plausible_step(const struct jobrec *j, uint64_t step);
/* Can the job have reached the step in this epoch by now? Ask only once the epoch's origin can have been reported. */
bool plausible_reached(const struct core *c, const struct jobrec *j, uint64_t step);

#endif
